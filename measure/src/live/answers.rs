//! The answers to one question: without enforcement, with it, and with a demanded call.

use rein_grammar::{
    Call, CallValidator, Enforcement, Event, Format, Parser, ParserOptions, Region, RenderOptions, Rules, Tools, Turn,
    lookalike, render, render_text,
};
use rein_text::tools::ToolSet;
use serde_json::{Value, json};

use super::{Asked, Question, Served, chat};

/// What became of the calls of one answer.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    pub valid: usize,
    pub invalid: usize,
    /// The tools that a right answer calls were called.
    pub right: bool,
    /// The length ended the answer.
    pub cut: bool,
    /// Tokens of the answer, and those that the format takes for the same calls. None: there are none.
    pub cost: Option<(usize, usize)>,
}

#[derive(Debug)]
pub struct Answers {
    pub question: String,
    pub wants_call: bool,
    /// Without enforcement.
    pub plain: Outcome,
    pub auto: Outcome,
    /// None: the question wants no call.
    pub required: Option<Outcome>,
    /// A valid answer that is another one with enforcement.
    pub changed: bool,
    /// A call was delivered as text.
    pub lost: bool,
    /// The answer without enforcement, with its special tokens.
    text: String,
    prompt: String,
    tools: Tools,
}

/// The calls and the text that a format reads in an output.
struct Read {
    calls: Vec<(String, String)>,
    text: String,
    /// Something is neither text nor a complete call.
    broken: bool,
}

impl Answers {
    pub(super) async fn ask(
        asked: &Asked,
        model: &Served,
        format: &'static Format,
        declared: Vec<Value>,
        question: Question,
        tokens: u32,
    ) -> Result<Self, String> {
        let tools = ToolSet::from(declared.clone()).callable().clone();
        let validator =
            CallValidator::new(&Rules { tools: tools.clone(), enforcement: Enforcement::Off, ..Rules::default() });
        let valid = |call: &(String, String)| validator.as_ref().is_none_or(|v| v.validate(&call.0, &call.1).is_ok());
        let greedy = json!({"temperature": 0, "max_tokens": tokens, "return_token_ids": true});
        let with = |mut body: Value, more: &[&Value]| {
            for more in more {
                let members = more.as_object().into_iter().flatten().map(|(name, value)| (name.clone(), value.clone()));
                body.as_object_mut().into_iter().for_each(|body| body.extend(members.clone()));
            }
            body
        };
        let body = chat(model, &question, &declared);
        let rendered = asked.send("/v1/chat/completions/render", Some(body.clone())).await?;
        let prompt = rendered["prompt"].as_str().unwrap_or_default().to_owned();

        let completion = json!({"model": model.id, "prompt": rendered["token_ids"], "skip_special_tokens": false});
        let plain = asked.send("/v1/completions", Some(with(completion, &[&greedy]))).await?["choices"][0].take();
        let text = plain["text"].as_str().unwrap_or_default().to_owned();
        let read = Read::of(format, &prompt, &tools, &text);
        let fine = !read.broken && read.calls.iter().all(valid);
        let outcome = |calls: &[(String, String)], choice: &Value| {
            let made = calls.iter().filter(|call| valid(call)).count();
            let mut names: Vec<&str> = calls.iter().map(|(name, _)| name.as_str()).collect();
            let mut wanted: Vec<&str> = question.calls.iter().map(String::as_str).collect();
            names.sort_unstable();
            wanted.sort_unstable();
            Outcome {
                valid: made,
                invalid: calls.len() - made,
                right: names == wanted,
                cut: choice["finish_reason"] == "length",
                cost: None,
            }
        };

        let auto = asked.send("/v1/chat/completions", Some(with(body.clone(), &[&greedy]))).await?["choices"][0].take();
        let mut required = None;
        if !question.calls.is_empty() {
            let demand = json!({"tool_choice": "required"});
            let choice =
                asked.send("/v1/chat/completions", Some(with(body, &[&greedy, &demand]))).await?["choices"][0].take();
            let calls = calls_of(&choice);
            let spent = choice["token_ids"].as_array().map_or(0, Vec::len);
            let natural = natural_tokens(asked, model, format, &prompt, &calls).await?;
            required =
                Some(Outcome { cost: (!calls.is_empty()).then_some((spent, natural)), ..outcome(&calls, &choice) });
        }
        let calls = calls_of(&auto);
        let said = auto["message"]["content"].as_str().unwrap_or_default();
        Ok(Answers {
            wants_call: !question.calls.is_empty(),
            changed: fine && plain["finish_reason"] == "stop" && plain["token_ids"] != auto["token_ids"],
            lost: lookalike(said, &tools).is_some() || calls.is_empty() && lookalike(&read.text, &tools).is_some(),
            plain: outcome(&read.calls, &plain),
            auto: outcome(&calls, &auto),
            required,
            question: question.question,
            text,
            prompt,
            tools,
        })
    }

    /// How many valid calls of the answer without enforcement a format reads.
    pub fn read_by(&self, format: &'static Format) -> usize {
        let read = Read::of(format, &self.prompt, &self.tools, &self.text);
        let rules = Rules { tools: self.tools.clone(), enforcement: Enforcement::Off, ..Rules::default() };
        let validator = CallValidator::new(&rules);
        let valid = |(name, arguments): &&(String, String)| {
            validator.as_ref().is_some_and(|validator| validator.validate(name, arguments).is_ok())
        };
        read.calls.iter().filter(valid).count()
    }
}

impl Read {
    fn of(format: &'static Format, prompt: &str, tools: &Tools, text: &str) -> Read {
        let options = ParserOptions { start: format.start_after(prompt), tools: tools.clone(), parse_tools: true };
        let mut parser = Parser::new(format, options);
        let mut events = Vec::new();
        format.split(text).iter().for_each(|piece| parser.push(piece.as_piece(), &mut events));
        parser.finish(&mut events);
        let mut read = Read { calls: Vec::new(), text: String::new(), broken: false };
        let mut open = (String::new(), String::new());
        for event in events {
            match event {
                Event::TextDelta(text) => read.text.push_str(&text),
                Event::ToolCallStart { name, .. } => open = (name, String::new()),
                Event::ArgumentsDelta { text, .. } => open.1.push_str(&text),
                Event::ToolCallEnd { complete: true, .. } => read.calls.push(std::mem::take(&mut open)),
                Event::ToolCallEnd { .. } | Event::Malformed(_) => read.broken = true,
                _ => {}
            }
        }
        read
    }
}

fn calls_of(choice: &Value) -> Vec<(String, String)> {
    let text = |call: &Value, key: &str| call["function"][key].as_str().unwrap_or_default().to_owned();
    let calls = choice["message"]["tool_calls"].as_array().into_iter().flatten();
    calls.map(|call| (text(call, "name"), text(call, "arguments"))).collect()
}

/// The tokens that the format itself takes for these calls.
async fn natural_tokens(
    asked: &Asked,
    model: &Served,
    format: &Format,
    prompt: &str,
    calls: &[(String, String)],
) -> Result<usize, String> {
    let call = |(name, arguments): &(String, String)| Call { name: name.clone(), arguments: arguments.clone() };
    let turn = Turn { reasoning: None, text: String::new(), calls: calls.iter().map(call).collect() };
    // Reasoning that the prompt has begun is closed first.
    let start: Region = format.start_after(prompt);
    let text = render_text(&render(format, &turn, RenderOptions { start, ..RenderOptions::default() }));
    let body = json!({"model": model.id, "prompt": text, "add_special_tokens": false});
    let tokens = asked.send("/tokenize", Some(body)).await?;
    // The end of the answer is a token as well.
    Ok(tokens["count"].as_u64().unwrap_or_default() as usize + 1)
}
