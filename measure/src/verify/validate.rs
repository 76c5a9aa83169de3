//! Finds the problems of a response to a request. It does not know how the response was received.

use std::collections::HashSet;

use rein_grammar::{SchemaValidator, Violation};
use serde_json::{Map, Value};

use super::answer::ModelAnswer;
use super::record::{Problem, ProblemKind, RecordedCall};
use super::sample::Sample;

/// Maximum number of reported violations per value.
const MAX_VIOLATIONS: usize = 8;
/// Maximum length of a message. The validator quotes whole values.
const MAX_MESSAGE_CHARS: usize = 300;
const FINISH_REASONS: &[&str] = &["stop", "length", "tool_calls", "content_filter"];

/// The tool choice of the request.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Choice<'a> {
    Auto,
    None,
    Required,
    Named(&'a str),
}

impl<'a> Choice<'a> {
    fn of(request: &'a Map<String, Value>) -> Self {
        match request.get("tool_choice") {
            Some(Value::String(word)) if word == "none" => Choice::None,
            Some(Value::String(word)) if word == "required" => Choice::Required,
            Some(choice @ Value::Object(_)) => {
                match choice.pointer("/function/name").or(choice.get("name")).and_then(Value::as_str) {
                    Some(name) => Choice::Named(name),
                    None => Choice::Auto,
                }
            }
            _ => Choice::Auto,
        }
    }
}

/// `sent`: the request with the overrides of the run.
pub fn validate(sample: &Sample, sent: &Map<String, Value>, answer: &ModelAnswer) -> Vec<Problem> {
    let mut problems = answer.problems.clone();
    let choice = Choice::of(sent);
    let truncated = answer.finish_reason.as_deref() == Some("length");
    if truncated && !answer.calls.is_empty() {
        problems.push(Problem::new(
            ProblemKind::Truncated,
            format!("{} calls; the last may be incomplete", answer.calls.len()),
        ));
    }
    finish_reason(answer, &choice, &mut problems);
    let whole = answer.calls.len() - usize::from(truncated && !answer.calls.is_empty());
    for (at, call) in answer.calls[..whole].iter().enumerate() {
        let tool = (!call.name.is_empty()).then(|| call.name.clone());
        let found = arguments(sample, call);
        problems.extend(found.into_iter().map(|p| Problem { call: Some(at), tool: tool.clone(), ..p }));
    }
    ids(sample, answer, &mut problems);
    tool_choice(sent, answer, &choice, truncated, &mut problems);
    if answer.calls.is_empty() {
        if answer.finish_reason.as_deref() == Some("stop") {
            response_format(sent, answer, &mut problems);
        }
        if let Some(mark) = answer.content.as_deref().and_then(markup) {
            problems.push(Problem::new(ProblemKind::LeakedMarkup, format!("the content has {mark}")));
        }
    }
    expectations(sample, answer, &mut problems);
    problems
}

fn finish_reason(answer: &ModelAnswer, choice: &Choice<'_>, problems: &mut Vec<Problem>) {
    let calls = answer.calls.len();
    let wrong = match answer.finish_reason.as_deref() {
        None => Some("the finish reason is missing".to_owned()),
        Some(reason) if !FINISH_REASONS.contains(&reason) => {
            Some(format!("`{reason}` is not a finish reason of the API"))
        }
        Some("tool_calls") if calls == 0 => Some("`tool_calls` without calls".into()),
        // OpenAI's endpoint returns `stop` when the request named the tool.
        Some("stop") if calls > 0 && !matches!(choice, Choice::Named(_)) => Some(format!("`stop` with {calls} calls")),
        Some(_) => None,
    };
    problems.extend(wrong.map(|message| Problem::new(ProblemKind::WrongFinishReason, message)));
}

/// The problems of one call: its name, its arguments, and violations of the tool's schema.
fn arguments(sample: &Sample, call: &RecordedCall) -> Vec<Problem> {
    if call.name.is_empty() {
        return vec![Problem::new(ProblemKind::MissingName, "the call has no name")];
    }
    let named = |tool: &&Map<String, Value>| tool.get("name").and_then(Value::as_str) == Some(&call.name);
    let Some(tool) = sample.tools().find(named) else {
        return vec![Problem::new(ProblemKind::UndeclaredTool, format!("`{}` is not declared", call.name))];
    };
    let value: Value = match serde_json::from_str(&call.arguments) {
        Ok(value) => value,
        Err(e) => return vec![Problem::new(ProblemKind::InvalidJson, format!("{e}: {}", clip(&call.arguments)))],
    };
    // Arguments must be an object even without a schema, because they are named.
    if !value.is_object() {
        return vec![violation("", format!("arguments must be an object: {}", clip(&call.arguments)))];
    }
    match tool.get("parameters").filter(|schema| !schema.is_null()) {
        Some(schema) => by_schema(schema, &value, ProblemKind::Schema),
        None => Vec::new(),
    }
}

fn violation(path: &str, message: String) -> Problem {
    Problem { path: Some(path.to_owned()), ..Problem::new(ProblemKind::Schema, message) }
}

fn by_schema(schema: &Value, value: &Value, kind: ProblemKind) -> Vec<Problem> {
    match compile(schema) {
        Ok(validator) => validator
            .violations(value, MAX_VIOLATIONS)
            .into_iter()
            .map(|Violation { path, message }| Problem { kind, ..violation(&path, clip(&message)) })
            .collect(),
        Err(reason) => vec![Problem::new(ProblemKind::SampleSchema, reason)],
    }
}

/// Compiles a schema. A schema with an unknown dialect in `$schema` counts as Draft 2020-12.
pub fn compile(schema: &Value) -> Result<SchemaValidator, String> {
    let result = match (SchemaValidator::new(schema), schema.get("$schema").and_then(Value::as_str)) {
        (Err(_), Some(dialect)) if !dialect.contains("json-schema.org/") => {
            let mut plain = schema.clone();
            plain.as_object_mut().and_then(|members| members.shift_remove("$schema"));
            SchemaValidator::new(&plain)
        }
        (result, _) => result,
    };
    result.map_err(|Violation { path, message }| clip(&format!("{message} at {path}")))
}

fn ids(sample: &Sample, answer: &ModelAnswer, problems: &mut Vec<Problem>) {
    let past: HashSet<&str> = sample.past_ids().collect();
    let mut seen = HashSet::new();
    for (at, call) in answer.calls.iter().enumerate() {
        let (kind, message) = match call.id.as_deref() {
            None => (ProblemKind::MissingId, "the call has no id".into()),
            Some(id) if !seen.insert(id) => (ProblemKind::DuplicateId, format!("`{id}` is used twice in the response")),
            Some(id) if past.contains(id) => {
                (ProblemKind::DuplicateId, format!("`{id}` is the id of a call in the history"))
            }
            Some(_) => continue,
        };
        problems.push(Problem { call: Some(at), tool: Some(call.name.clone()), ..Problem::new(kind, message) });
    }
}

fn tool_choice(
    sent: &Map<String, Value>,
    answer: &ModelAnswer,
    choice: &Choice<'_>,
    truncated: bool,
    problems: &mut Vec<Problem>,
) {
    let calls = &answer.calls;
    let broken = match choice {
        Choice::None if !calls.is_empty() => Some(format!("expected no calls for `none`, got {}", calls.len())),
        Choice::Required if calls.is_empty() && !truncated => Some("expected a call for `required`, got none".into()),
        Choice::Named(name) if calls.is_empty() && !truncated => Some(format!("expected a call of `{name}`, got none")),
        Choice::Named(name) => {
            calls.iter().find(|c| c.name != *name).map(|c| format!("expected a call of `{name}`, got `{}`", c.name))
        }
        _ => None,
    };
    problems.extend(broken.map(|message| Problem::new(ProblemKind::ToolChoice, message)));
    if sent.get("parallel_tool_calls") == Some(&Value::Bool(false)) && calls.len() > 1 {
        problems
            .push(Problem::new(ProblemKind::ParallelCalls, format!("expected at most one call, got {}", calls.len())));
    }
}

fn response_format(sent: &Map<String, Value>, answer: &ModelAnswer, problems: &mut Vec<Problem>) {
    let Some(format) = sent.get("response_format") else { return };
    let kind = format.get("type").and_then(Value::as_str).unwrap_or("text");
    if kind == "text" {
        return;
    }
    let content = answer.content.as_deref().unwrap_or_default();
    match (serde_json::from_str::<Value>(content), format.pointer("/json_schema/schema")) {
        (Err(e), _) => problems.push(Problem::new(ProblemKind::ResponseFormat, format!("{e}: {}", clip(content)))),
        (Ok(value), Some(schema)) if kind == "json_schema" => {
            problems.extend(by_schema(schema, &value, ProblemKind::ResponseFormat));
        }
        (Ok(value), _) if kind == "json_object" && !value.is_object() => {
            problems
                .push(Problem::new(ProblemKind::ResponseFormat, format!("expected an object, got {}", clip(content))));
        }
        _ => {}
    }
}

/// Finds text that looks like a tool-call token. In a response without calls, it means that a call was not parsed.
fn markup(content: &str) -> Option<&str> {
    let starts = content.match_indices('<').map(|(at, _)| at);
    starts.filter_map(|at| content.get(at..=at + content[at..].find('>')?)).find(|tag| {
        let name = tag.trim_matches(|c: char| !c.is_alphanumeric());
        let plain = name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '▁'));
        plain && name.len() < 40 && name.contains("tool") && name.contains("call")
    })
}

fn expectations(sample: &Sample, answer: &ModelAnswer, problems: &mut Vec<Problem>) {
    let truth = &sample.truth;
    let calls = &answer.calls;
    let missed = match (truth.expect.call, &truth.expect.tool) {
        (Some(true), _) if calls.is_empty() => Some("expected a call, got none".to_owned()),
        (Some(false), _) if !calls.is_empty() => Some(format!("expected no call, got `{}`", calls[0].name)),
        (_, Some(tool)) if !calls.is_empty() && calls.iter().all(|c| c.name != *tool) => {
            Some(format!("expected a call of `{tool}`, got `{}`", calls[0].name))
        }
        _ => None,
    };
    problems.extend(missed.map(|message| Problem::new(ProblemKind::Expectation, message)));
    let counted = answer.usage.and_then(|u| u.prompt_tokens);
    if let (Some(truth), Some(counted)) = (truth.prompt_tokens, counted)
        && truth != counted
    {
        let message = format!("expected {truth} prompt tokens, got {counted}");
        problems.push(Problem::new(ProblemKind::PromptTokens, message));
    }
}

fn clip(text: &str) -> String {
    match text.char_indices().nth(MAX_MESSAGE_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
