//! `rein check`: tests whether the template, format and tokenizer of a model directory work together for tool calls, so
//! that problems are reported before a request fails. It knows neither weights nor requests.

mod read_back;
mod revisions;
mod settle;
#[cfg(test)]
mod tests;

use rein_grammar::{Format, RESPONSE_TEMPLATE};
use serde::Serialize;
use serde_json::{Value as Json, json};

use crate::call_ids;
use crate::model_text::ModelText;
use crate::sha256_hex;
use crate::template::{ChatTemplate, RenderInput};
use crate::tokenize::Encode;

/// Text of a message that is then searched for in the prompt.
const PROBE: &str = "xqzprobe";

/// Severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    Fine,
    /// Tool calls work, but something else may not behave as expected.
    Warning,
    /// Some or all tool calls fail.
    Broken,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Name of the check.
    pub check: &'static str,
    pub verdict: Verdict,
    pub message: String,
}

/// All findings about a model directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CheckReport {
    pub model: String,
    pub format: &'static str,
    /// SHA-256 of the template for chats with tools; `None` without a template.
    pub template_sha256: Option<String>,
    /// Commit of the checkpoint, when its directory is named after one.
    pub revision: Option<String>,
    pub findings: Vec<Finding>,
}

impl CheckReport {
    pub fn worst(&self) -> Verdict {
        self.findings.iter().map(|finding| finding.verdict).max().unwrap_or(Verdict::Fine)
    }

    /// Logs a warning for each finding that is not fine.
    pub fn warn(&self) {
        for Finding { check, verdict, message } in self.findings.iter().filter(|f| f.verdict > Verdict::Fine) {
            let broken = *verdict == Verdict::Broken;
            tracing::warn!(model = self.model, check, broken, "{message}; run `rein check` for details");
        }
    }
}

/// Checks a model whose output is parsed with this format.
pub fn check(text: &ModelText, format: &'static Format) -> CheckReport {
    let mut report = CheckReport {
        model: text.name.clone(),
        format: format.name,
        template_sha256: text.template.as_ref().map(|template| sha256_hex(template.tool_source().as_bytes())),
        revision: text.revision.clone(),
        findings: Vec::new(),
    };
    let Some(template) = &text.template else {
        let message = "the model has no chat template: only /v1/completions can be used".into();
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

fn warning<M: Into<String>>(message: M) -> Outcome {
    (Verdict::Warning, message.into())
}

fn broken<M: Into<String>>(message: M) -> Outcome {
    (Verdict::Broken, message.into())
}

/// The model under test.
struct Subject<'a> {
    text: &'a ModelText,
    template: &'a ChatTemplate,
    format: &'static Format,
}

impl Subject<'_> {
    /// A conversation as a request would give it, with call ids of the format.
    fn input(&self, mut messages: Vec<Json>, tools: bool) -> RenderInput {
        call_ids::assign_native_ids(&mut messages, |name, index| self.format.native_id(name, index));
        RenderInput { messages, tools: tools.then(|| vec![tool()].into()), ..RenderInput::default() }
    }

    fn render(&self, input: &RenderInput) -> Result<String, String> {
        self.template.render(input).map_err(|error| error.to_string())
    }

    /// The prompt of the first of these conversations that the template renders, else the error for the last one.
    fn render_first(&self, conversations: impl IntoIterator<Item = Vec<Json>>) -> Result<String, String> {
        let mut last_error = String::new();
        for messages in conversations {
            match self.render(&self.input(messages, true)) {
                Ok(prompt) => return Ok(prompt),
                Err(error) => last_error = error,
            }
        }
        Err(last_error)
    }

    fn format(&self) -> Outcome {
        match self.format.has_calls() {
            true if self.format.name == RESPONSE_TEMPLATE => {
                fine("tool calls are parsed as the model's response_template describes them")
            }
            _ if self.text.contradiction.is_some() => {
                let contradiction = self.text.contradiction.as_deref().unwrap_or_default();
                let used = self.format.name;
                let outcome = if self.format.has_calls() { warning } else { broken };
                outcome(format!("{contradiction}; {used} is used instead (--format overrides it)"))
            }
            true => fine(format!("tool calls are parsed as {}", self.format.name)),
            false => broken(
                "no tool-call format was detected, so calls are returned as text; choose one with --format (`rein formats` lists them)",
            ),
        }
    }

    fn plain(&self) -> Outcome {
        let asked = |content: Json| self.render(&self.input(vec![json!({"role": "user", "content": content})], false));
        match (asked(PROBE.into()), asked(json!([{"type": "text", "text": PROBE}]))) {
            (Ok(text), Ok(parts)) if text.contains(PROBE) && parts.contains(PROBE) => {
                fine("the template renders a chat without tools")
            }
            (Ok(text), _) if !text.contains(PROBE) => broken("the template drops the user's text"),
            (Ok(_), _) => broken("the template drops the user's text if it is a list of parts"),
            (Err(error), _) => warning(format!("the template rejects a chat without tools: {error}")),
        }
    }

    fn tools(&self) -> Outcome {
        let system = json!({"role": "system", "content": "S"});
        let conversations = [
            ("a first user message", vec![user()]),
            ("a system message", vec![system, user()]),
            ("a tool result", vec![user(), calling(&[arguments()]), result(0)]),
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
            (true, [], Some((_, error))) => broken(format!("the template rejects every chat with tools: {error}")),
            (true, ..) => broken("the template never shows the tools to the model; requests with tools are rejected"),
            (false, [], None) => fine("the template shows the tools"),
            (false, [], Some((name, error))) => {
                warning(format!("the template rejects tools in a chat with {name}: {error}"))
            }
            (false, dropped, _) => {
                broken(format!("the template drops the tools in a chat with {}", dropped.join(" and with ")))
            }
        }
    }

    fn arguments(&self) -> Outcome {
        let tried = [arguments(), Json::from(arguments().to_string())].map(|arguments| {
            let turn = vec![user(), calling_with([arguments].into_iter())];
            let answered = [turn.clone(), vec![result(0)]].concat();
            self.render_first([turn, answered])
        });
        let shown = |prompt: &Result<String, String>| {
            prompt.as_ref().is_ok_and(|prompt| prompt.contains("Zürich") || prompt.contains("Z\\u00fc"))
        };
        match &tried {
            [Err(error), Err(_)] => broken(format!("the template rejects past calls: {error}")),
            all if all.iter().all(shown) && all[0] == all[1] => {
                fine("past calls are shown; arguments as an object and as a string give the same prompt")
            }
            all if all.iter().all(shown) => {
                fine("past calls are shown; arguments given as a string are copied unchanged")
            }
            [Err(error), _] => warning(format!("the template rejects arguments that are an object: {error}")),
            [_, Err(error)] => broken(format!("the template rejects arguments that are a string: {error}")),
            _ => broken("the template does not show the arguments of past calls"),
        }
    }

    fn results(&self) -> Outcome {
        match self.render(&self.input(vec![user(), calling(&[arguments()]), result(0)], true)) {
            Ok(prompt) if prompt.contains(PROBE) => fine("tool results are shown"),
            Ok(_) => broken("the template drops tool results"),
            Err(error) => broken(format!("the template rejects tool results: {error}")),
        }
    }

    /// Past calls whose content is null, as the OpenAI SDK sends it, empty or absent.
    fn content(&self) -> Outcome {
        let answer = json!({"role": "assistant", "content": "Done."});
        let mut prompts = Vec::new();
        for (name, content) in [("null", Some(Json::Null)), ("''", Some("".into())), ("absent", None)] {
            let mut call = calling(&[arguments()]);
            match content {
                Some(content) => call["content"] = content,
                None => drop(call.as_object_mut().and_then(|call| call.shift_remove("content"))),
            }
            let messages = vec![user(), call, result(0), answer.clone(), user()];
            match self.render(&self.input(messages, true)) {
                Ok(prompt) => prompts.push(prompt),
                Err(error) => {
                    return broken(format!("the template rejects a past call whose content is {name}: {error}"));
                }
            }
        }
        match prompts.windows(2).all(|pair| pair[0] == pair[1]) {
            true => fine("past calls with content null, '' and absent give the same prompt"),
            false => fine("past calls with content null, '' and absent are rendered, but give different prompts"),
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
            (Ok(prompt), Ok(_)) if self.answer_follows(&prompt) => {
                fine("the answer directly follows the user's message")
            }
            (Ok(_), Ok(_)) => {
                warning("add_generation_prompt has no effect, and the prompt does not end where an answer begins")
            }
            (Err(error), _) | (_, Err(error)) => broken(format!("the template rejects a chat with tools: {error}")),
        }
    }

    /// Whether the text of an assistant message in the history begins where this prompt ends.
    fn answer_follows(&self, prompt: &str) -> bool {
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
            return fine("not checked: the template rejects past calls even without reasoning");
        }
        call["reasoning_content"] = "xqzthought".into();
        match self.render(&self.input(vec![user(), call, result(0)], true)) {
            Ok(prompt) if prompt.contains("xqzthought") => fine("reasoning before a call is shown until the turn ends"),
            Ok(_) if self.template.tool_source().contains("reasoning_content") => {
                warning("the template drops the reasoning before a call")
            }
            Ok(_) => fine("the template does not show reasoning of past messages"),
            Err(error) => warning(format!("the template rejects a past call with reasoning: {error}")),
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
            return broken(
                "no token ends an answer: neither config.json, generation_config.json nor the tokenizer names an EOS token",
            );
        }
        match (calls.is_empty(), others.is_empty()) {
            (true, true) => fine("every marker of the format is one token of the tokenizer"),
            (false, _) if self.format.needs_tokens() => broken(format!(
                "these markers are not single tokens of the tokenizer, so calls are never detected: {}",
                calls.join(" ")
            )),
            _ if self.format.needs_tokens() => {
                warning(format!("these markers are not single tokens of the tokenizer: {}", others.join(" ")))
            }
            _ => fine(format!(
                "markers of several tokens, which the format allows: {}",
                [calls, others].concat().join(" ")
            )),
        }
    }
}

fn user() -> Json {
    json!({"role": "user", "content": "Hi"})
}

/// Values of several types, and text that JSON, XML and Python escape differently.
fn arguments() -> Json {
    json!({"city": "Zürich \"1\" & <b>", "days": 3, "tags": ["a", "b"]})
}

fn tool() -> Json {
    let string = json!({"type": "string"});
    let properties = json!({"city": string, "days": {"type": "integer"}, "tags": {"type": "array", "items": string}});
    let parameters = json!({"type": "object", "properties": properties, "required": ["city"]});
    json!({"type": "function", "function": {"name": "get_weather", "description": "Weather of a city.", "parameters": parameters}})
}

/// An assistant message with one call per item; arguments are JSON strings, as clients send them.
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
