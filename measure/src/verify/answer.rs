//! Reads a response. Violations of the API's form are recorded as problems, not returned as errors. It does not know
//! the request.

use std::time::{Duration, Instant};

use serde_json::Value;

use super::record::{Problem, ProblemKind, RecordedCall, ResponseMode, TokenCounts};
use crate::client::{ApiResponse, Failure, collect, error_text, read_events};

#[derive(Debug, Default)]
pub struct ModelAnswer {
    pub finish_reason: Option<String>,
    pub content: Option<String>,
    pub reasoning: Option<String>,
    pub calls: Vec<RecordedCall>,
    pub usage: Option<TokenCounts>,
    /// Time to the first content, reasoning or call. None without streaming.
    pub first_token: Option<Duration>,
    pub total: Duration,
    /// Violations of the response's form.
    pub problems: Vec<Problem>,
}

pub async fn read(response: ApiResponse, start: Instant, mode: ResponseMode) -> Result<ModelAnswer, Failure> {
    match mode {
        ResponseMode::NonStream => read_whole(response, start).await,
        ResponseMode::Stream => read_stream(response, start).await,
    }
}

async fn read_whole(response: ApiResponse, start: Instant) -> Result<ModelAnswer, Failure> {
    let body = collect(response).await?;
    let total = start.elapsed();
    let value: Value = serde_json::from_slice(&body).map_err(|e| Failure::BadResponse(e.to_string()))?;
    let choice = value.pointer("/choices/0").ok_or_else(|| Failure::BadResponse(no_choices(&body)))?;
    let mut answer = ModelAnswer { total, usage: usage(&value), ..ModelAnswer::default() };
    answer.finish_reason = text(choice, &["finish_reason"]);
    let message = choice.get("message").unwrap_or(&Value::Null);
    answer.content = text(message, &["content"]);
    answer.reasoning = text(message, REASONING);
    for call in message.get("tool_calls").and_then(Value::as_array).into_iter().flatten() {
        let function = call.get("function").unwrap_or(&Value::Null);
        let arguments = answer.arguments(function);
        let name = text(function, &["name"]).unwrap_or_default();
        answer.calls.push(RecordedCall { id: text(call, &["id"]), name, arguments: arguments.unwrap_or_default() });
    }
    Ok(answer)
}

/// The members in which engines send reasoning.
const REASONING: &[&str] = &["reasoning_content", "reasoning"];

fn no_choices(body: &[u8]) -> String {
    format!("no choices: {}", error_text(body))
}

/// The first of these members that is a non-empty string.
fn text(value: &Value, names: &[&str]) -> Option<String> {
    let mut texts = names.iter().filter_map(|n| value.get(n)?.as_str());
    texts.find(|t| !t.is_empty()).map(str::to_owned)
}

fn usage(value: &Value) -> Option<TokenCounts> {
    // Some engines send it inside the choice.
    let usage =
        [value.get("usage"), value.pointer("/choices/0/usage")].into_iter().flatten().find(|u| u.is_object())?;
    let count = |name| usage.get(name).and_then(Value::as_u64);
    Some(TokenCounts { prompt_tokens: count("prompt_tokens"), completion_tokens: count("completion_tokens") })
}

async fn read_stream(response: ApiResponse, start: Instant) -> Result<ModelAnswer, Failure> {
    let mut partial = PartialAnswer::default();
    let mut failure = None;
    let done = read_events(response, start, |data, at| match serde_json::from_slice::<Value>(data) {
        Ok(chunk) if chunk.get("error").is_some_and(|e| !e.is_null()) => {
            failure.get_or_insert(Failure::InStream(error_text(data)));
        }
        Ok(chunk) => partial.add(&chunk, at),
        Err(e) => {
            failure.get_or_insert(Failure::BadResponse(format!("an event is not JSON: {e}")));
        }
    })
    .await?;
    if let Some(failure) = failure {
        return Err(failure);
    }
    let PartialAnswer { mut answer, begun, .. } = partial;
    match (begun, done || answer.finish_reason.is_some()) {
        (false, _) => return Err(Failure::BadResponse("the stream has no choices".into())),
        (true, false) => return Err(Failure::Broken("no finish reason and no [DONE]".into())),
        (true, true) => {}
    }
    if !done {
        answer.stream_problem("the stream does not end with [DONE]");
    }
    answer.total = start.elapsed();
    Ok(answer)
}

/// A partially received stream.
#[derive(Debug, Default)]
struct PartialAnswer {
    answer: ModelAnswer,
    /// The index of each call in the stream.
    indexes: Vec<u64>,
    begun: bool,
}

impl PartialAnswer {
    fn add(&mut self, chunk: &Value, at: Duration) {
        self.answer.usage = usage(chunk).or(self.answer.usage);
        let Some(choice) = chunk.pointer("/choices/0") else { return };
        self.begun = true;
        let delta = choice.get("delta").unwrap_or(&Value::Null);
        let (content, reasoning) = (text(delta, &["content"]), text(delta, REASONING));
        let calls = delta.get("tool_calls").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        if content.is_some() || reasoning.is_some() || !calls.is_empty() {
            self.answer.first_token.get_or_insert(at);
            if self.answer.finish_reason.is_some() {
                self.answer.stream_problem("content after the finish reason");
            }
        }
        for (all, new) in [(&mut self.answer.content, content), (&mut self.answer.reasoning, reasoning)] {
            if let Some(new) = new {
                all.get_or_insert_default().push_str(&new);
            }
        }
        calls.iter().for_each(|call| self.add_call(call));
        if let Some(reason) = text(choice, &["finish_reason"]) {
            if self.answer.finish_reason.as_ref().is_some_and(|r| *r != reason) {
                self.answer.stream_problem("the finish reason changes");
            }
            self.answer.finish_reason = Some(reason);
        }
    }

    fn add_call(&mut self, part: &Value) {
        let (id, function) = (text(part, &["id"]), part.get("function").unwrap_or(&Value::Null));
        let name = text(function, &["name"]);
        let index = part.get("index").and_then(Value::as_u64);
        let known = match index {
            Some(index) => self.indexes.iter().position(|i| *i == index),
            None => {
                self.answer.stream_problem("a chunk of a call has no index");
                // Tolerant clients start a new call at each id.
                if id.is_some() { None } else { self.indexes.len().checked_sub(1) }
            }
        };
        let at = known.unwrap_or_else(|| {
            let next = self.indexes.len() as u64;
            if index.is_some_and(|i| i != next) {
                self.answer.stream_problem("the indexes of the calls are not 0, 1, 2, ...");
            }
            self.indexes.push(index.unwrap_or(next));
            self.answer.calls.push(RecordedCall::default());
            self.answer.calls.len() - 1
        });
        let arguments = self.answer.arguments(function).unwrap_or_default();
        let mut problems = Vec::new();
        let Some(call) = self.answer.calls.get_mut(at) else { return };
        call.arguments.push_str(&arguments);
        match (&call.id, id) {
            (Some(old), Some(new)) if *old != new => problems.push("the id of a call changes"),
            (None, Some(new)) => call.id = Some(new),
            _ => {}
        }
        if let Some(name) = name {
            if !call.name.is_empty() {
                problems.push("the name of a call is sent more than once");
            }
            if call.name != name {
                call.name.push_str(&name);
            }
        }
        problems.into_iter().for_each(|message| self.answer.stream_problem(message));
    }
}

impl ModelAnswer {
    fn stream_problem(&mut self, message: &str) {
        self.add_problem(ProblemKind::StreamShape, message);
    }

    /// Records each problem once.
    fn add_problem(&mut self, kind: ProblemKind, message: &str) {
        if !self.problems.iter().any(|p| p.message == message) {
            self.problems.push(Problem::new(kind, message));
        }
    }

    fn arguments(&mut self, function: &Value) -> Option<String> {
        match function.get("arguments")? {
            Value::String(text) => Some(text.clone()),
            Value::Null => None,
            other => {
                self.add_problem(ProblemKind::ArgumentsType, "arguments are not a string");
                Some(other.to_string())
            }
        }
    }
}
