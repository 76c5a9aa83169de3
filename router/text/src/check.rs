//! `rein check`: whether a model directory is fit for tool calls, told before a request fails. Template, format and
//! tokenizer are tried against each other. No weights, and nothing of a request.

mod read_back;
mod revisions;
#[cfg(test)]
mod tests;

use rein_grammar::Format;
use serde::Serialize;
use serde_json::{Value as Json, json};

use crate::call_ids;
use crate::model_text::ModelText;
use crate::sha256_hex;
use crate::template::{ChatTemplate, RenderInput};
use crate::tokenize::Encode;

/// What a message spells to be found in the prompt.
const PROBE: &str = "xqzprobe";

/// How good a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    Fine,
    /// Tool calls work; something else may not be as expected.
    Warning,
    /// Tool calls fail, all or some.
    Broken,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What was checked, in a word or two.
    pub check: &'static str,
    pub verdict: Verdict,
    pub message: String,
}

/// What was found out about a model directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CheckReport {
    pub model: String,
    pub format: &'static str,
    /// Of the template for chats with tools. None: there is no template.
    pub template_sha256: Option<String>,
    /// Of the checkpoint, where its directory names one.
    pub revision: Option<String>,
    pub findings: Vec<Finding>,
}

impl CheckReport {
    pub fn worst(&self) -> Verdict {
        self.findings.iter().map(|finding| finding.verdict).max().unwrap_or(Verdict::Fine)
    }

    /// Logs what is not fine.
    pub fn warn(&self) {
        for Finding { check, verdict, message } in self.findings.iter().filter(|f| f.verdict > Verdict::Fine) {
            let broken = *verdict == Verdict::Broken;
            tracing::warn!(model = self.model, check, broken, "{message}; `rein check` tells more");
        }
    }
}

/// Checks a model whose output is read by this format.
pub fn check(text: &ModelText, format: &'static Format) -> CheckReport {
    let mut report = CheckReport {
        model: text.name.clone(),
        format: format.name,
        template_sha256: text.template.as_ref().map(|template| sha256_hex(template.tool_source().as_bytes())),
        revision: text.revision.clone(),
        findings: Vec::new(),
    };
    let Some(template) = &text.template else {
        let message = "the model has no chat template: it can be used with /v1/completions only".into();
        report.findings.push(Finding { check: "template", verdict: Verdict::Broken, message });
        return report;
    };
    let subject = Subject { text, template, format };
    let outcomes = [
        ("format", subject.format()),
        ("plain chat", subject.plain()),
        ("tools", subject.tools()),
        ("arguments", subject.arguments()),
        ("results", subject.results()),
        ("content", subject.content()),
        ("generation prompt", subject.generation_prompt()),
        ("reasoning", subject.reasoning()),
        ("markers", subject.markers()),
        ("read back", read_back::check(&subject)),
        ("revision", revisions::check(&subject)),
    ];
    let finding = |(check, (verdict, message)): (_, Outcome)| Finding { check, verdict, message };
    report.findings = outcomes.into_iter().map(finding).collect();
    report
}

type Outcome = (Verdict, String);

fn fine(message: impl Into<String>) -> Outcome {
    (Verdict::Fine, message.into())
}

fn warning(message: impl Into<String>) -> Outcome {
    (Verdict::Warning, message.into())
}

fn broken(message: impl Into<String>) -> Outcome {
    (Verdict::Broken, message.into())
}

/// What is checked.
struct Subject<'a> {
    text: &'a ModelText,
    template: &'a ChatTemplate,
    format: &'static Format,
}

impl Subject<'_> {
    /// As a request would be, with call ids of the format.
    fn input(&self, mut messages: Vec<Json>, tools: bool) -> RenderInput {
        call_ids::native_ids(&mut messages, |name, index| self.format.native_id(name, index));
        RenderInput { messages, tools: tools.then(|| vec![tool()]), ..RenderInput::default() }
    }

    fn render(&self, input: &RenderInput) -> Result<String, String> {
        self.template.render(input).map_err(|error| error.to_string())
    }

    /// The first of these conversations that the template renders, and its prompt; else why it refuses the last.
    fn first(&self, conversations: impl IntoIterator<Item = Vec<Json>>) -> Result<String, String> {
        let mut refused = String::new();
        for messages in conversations {
            match self.render(&self.input(messages, true)) {
                Ok(prompt) => return Ok(prompt),
                Err(error) => refused = error,
            }
        }
        Err(refused)
    }

    fn format(&self) -> Outcome {
        match self.format.has_calls() {
            true => fine(format!("tool calls are read as {}", self.format.name)),
            false => broken(
                "no tool-call format is recognised, so that calls come as text; name one with --format (`rein formats` lists them)",
            ),
        }
    }

    fn plain(&self) -> Outcome {
        match self.render(&self.input(vec![user()], false)) {
            Ok(_) => fine("a chat without tools is rendered"),
            Err(error) => warning(format!("the template refuses a chat without tools: {error}")),
        }
    }

    fn tools(&self) -> Outcome {
        let system = json!({"role": "system", "content": "S"});
        let conversations = [
            ("a first question", vec![user()]),
            ("a system message", vec![system, user()]),
            ("a result", vec![user(), calling(&[arguments()]), result(0)]),
        ];
        let (mut shown, mut dropped, mut refused) = (Vec::new(), Vec::new(), None);
        for (name, messages) in conversations {
            let input = self.input(messages, true);
            match self.render(&input) {
                Ok(prompt) => match self.template.dropped_tool(&input, &prompt) {
                    Ok(None) => shown.push(name),
                    _ => dropped.push(name),
                },
                Err(error) => refused = Some((name, error)),
            }
        }
        match (shown.is_empty(), dropped.as_slice(), refused) {
            (true, [], Some((_, error))) => broken(format!("the template refuses every chat with tools: {error}")),
            (true, ..) => broken("the template never shows the tools to the model; requests with tools are refused"),
            (false, [], None) => fine("the template shows the tools"),
            (false, [], Some((name, error))) => warning(format!("the template refuses tools with {name}: {error}")),
            (false, dropped, _) => broken(format!("the template drops the tools with {}", dropped.join(" and with "))),
        }
    }

    fn arguments(&self) -> Outcome {
        let tried = [arguments(), Json::from(arguments().to_string())].map(|arguments| {
            let turn = vec![user(), calling_with([arguments].into_iter())];
            let answered = [turn.clone(), vec![result(0)]].concat();
            self.first([turn, answered])
        });
        let shown = |prompt: &Result<String, String>| {
            prompt.as_ref().is_ok_and(|prompt| prompt.contains("Zürich") || prompt.contains("Z\\u00fc"))
        };
        match &tried {
            [Err(error), Err(_)] => broken(format!("the template refuses past calls: {error}")),
            all if all.iter().all(shown) && all[0] == all[1] => {
                fine("past calls are shown; arguments as an object and as a string give the same prompt")
            }
            all if all.iter().all(shown) => {
                fine("past calls are shown; arguments given as a string are written as they are")
            }
            [Err(error), _] => warning(format!("the template refuses arguments that are an object: {error}")),
            [_, Err(error)] => broken(format!("the template refuses arguments that are a string: {error}")),
            _ => broken("the template does not show the arguments of past calls"),
        }
    }

    fn results(&self) -> Outcome {
        match self.render(&self.input(vec![user(), calling(&[arguments()]), result(0)], true)) {
            Ok(prompt) if prompt.contains(PROBE) => fine("results of calls are shown"),
            Ok(_) => broken("the template drops the results of calls"),
            Err(error) => broken(format!("the template refuses the results of calls: {error}")),
        }
    }

    /// The history that the OpenAI SDK sends, and its variants.
    fn content(&self) -> Outcome {
        let answer = json!({"role": "assistant", "content": "Done."});
        let mut kinds = Vec::new();
        for (name, content) in [("null", Some(Json::Null)), ("''", Some("".into())), ("none", None)] {
            let mut call = calling(&[arguments()]);
            match content {
                Some(content) => call["content"] = content,
                None => drop(call.as_object_mut().and_then(|call| call.shift_remove("content"))),
            }
            let messages = vec![user(), call, result(0), answer.clone(), user()];
            match self.render(&self.input(messages, true)) {
                Ok(prompt) => kinds.push((name, prompt)),
                Err(error) => {
                    return broken(format!("the template refuses a past call whose content is {name}: {error}"));
                }
            }
        }
        match kinds.windows(2).all(|pair| pair[0].1 == pair[1].1) {
            true => fine("past calls with content null, '' and none give the same prompt"),
            false => fine("past calls with content null, '' and none are rendered; the template distinguishes them"),
        }
    }

    fn generation_prompt(&self) -> Outcome {
        let ends = |on| self.render(&RenderInput { add_generation_prompt: on, ..self.input(vec![user()], true) });
        match (ends(true), ends(false)) {
            (Ok(with), Ok(without)) if with != without => {
                let common = with.char_indices().zip(without.chars()).find(|((_, a), b)| a != b);
                fine(format!(
                    "the prompt ends in {:?}",
                    &with[common.map_or(without.len().min(with.len()), |((at, _), _)| at)..]
                ))
            }
            (Ok(prompt), Ok(_)) if self.answers_follow(&prompt) => {
                fine("an answer follows the user's message as it is")
            }
            (Ok(_), Ok(_)) => {
                warning("add_generation_prompt changes nothing, and the prompt does not end where an answer begins")
            }
            (Err(error), _) | (_, Err(error)) => broken(format!("the template refuses a chat with tools: {error}")),
        }
    }

    /// Whether an assistant's text stands in the history where this prompt ends.
    fn answers_follow(&self, prompt: &str) -> bool {
        let answered = vec![user(), json!({"role": "assistant", "content": PROBE})];
        let answered = self.render(&RenderInput { add_generation_prompt: false, ..self.input(answered, true) });
        answered.is_ok_and(|whole| whole.strip_prefix(prompt).is_some_and(|rest| rest.trim_start().starts_with(PROBE)))
    }

    fn reasoning(&self) -> Outcome {
        if self.format.reasoning.is_none() {
            return fine("the format has no reasoning");
        }
        let mut call = calling(&[arguments()]);
        if self.render(&self.input(vec![user(), call.clone(), result(0)], true)).is_err() {
            return fine("not asked: past calls are refused without it, too");
        }
        call["reasoning_content"] = "xqzthought".into();
        match self.render(&self.input(vec![user(), call, result(0)], true)) {
            Ok(prompt) if prompt.contains("xqzthought") => {
                fine("reasoning before a call is shown while its turn goes on")
            }
            Ok(_) if self.template.tool_source().contains("reasoning_content") => {
                warning("the template drops the reasoning before a call")
            }
            Ok(_) => fine("the template does not show reasoning of past messages"),
            Err(error) => warning(format!("the template refuses a past call with reasoning: {error}")),
        }
    }

    fn markers(&self) -> Outcome {
        let single = |marker: &str| {
            let ids = self.text.tokenizer.encode(marker, Encode::TEMPLATED);
            self.text.tokenizer.special_id(marker).is_some() || ids.is_ok_and(|ids| ids.len() == 1)
        };
        let missing = |markers: Vec<&'static str>| -> Vec<&'static str> {
            markers.into_iter().filter(|marker| !single(marker)).collect()
        };
        let (calls, others) = (missing(self.format.call_markers()), missing(self.format.other_markers()));
        if self.text.stop_token_ids.is_empty() {
            return broken("no token ends an answer: neither configuration nor tokenizer names one");
        }
        match (calls.is_empty(), others.is_empty()) {
            (true, true) => fine("the tokenizer has every marker of the format as one token"),
            (false, _) if self.format.needs_tokens() => broken(format!(
                "the tokenizer does not have these markers as one token, so that calls are never seen: {}",
                calls.join(" ")
            )),
            _ if self.format.needs_tokens() => {
                warning(format!("the tokenizer does not have these markers as one token: {}", others.join(" ")))
            }
            _ => fine(format!(
                "spelled with several tokens, as the format allows: {}",
                [calls, others].concat().join(" ")
            )),
        }
    }
}

fn user() -> Json {
    json!({"role": "user", "content": "Hi"})
}

/// Values of several types, and text that JSON, XML and Python spell in their own ways.
fn arguments() -> Json {
    json!({"city": "Zürich \"1\" & <b>", "days": 3, "tags": ["a", "b"]})
}

fn tool() -> Json {
    let string = json!({"type": "string"});
    let properties = json!({"city": string, "days": {"type": "integer"}, "tags": {"type": "array", "items": string}});
    let parameters = json!({"type": "object", "properties": properties, "required": ["city"]});
    json!({"type": "function", "function": {"name": "get_weather", "description": "Weather of a city.", "parameters": parameters}})
}

/// An assistant message with a call for each of these arguments, a string as clients send them.
fn calling(arguments: &[Json]) -> Json {
    calling_with(arguments.iter().map(|arguments| arguments.to_string().into()))
}

fn calling_with(arguments: impl Iterator<Item = Json>) -> Json {
    let call = |(i, arguments): (usize, Json)| {
        let function = json!({"name": "get_weather", "arguments": arguments});
        json!({"id": format!("call_{i}"), "type": "function", "function": function})
    };
    json!({"role": "assistant", "content": null, "tool_calls": arguments.enumerate().map(call).collect::<Vec<_>>()})
}

fn result(call: usize) -> Json {
    json!({"role": "tool", "tool_call_id": format!("call_{call}"), "name": "get_weather", "content": PROBE})
}
