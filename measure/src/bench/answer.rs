//! Reads a response, and records when its chunks arrived and how many tokens it has. It ignores their text.

use std::time::{Duration, Instant};

use serde::Deserialize;

use crate::client::{ApiResponse, Failure, collect, error_text, read_events};

/// The measurements of one answer. Times are relative to the time at which the request was sent.
#[derive(Debug, Clone, Default)]
pub struct BenchAnswer {
    /// Arrival of each chunk with content. Empty without streaming.
    pub chunks: Vec<Duration>,
    /// Arrival of the last content or of the finish reason, whichever is later.
    pub last_token: Duration,
    pub total: Duration,
    /// As counted by the endpoint.
    pub prompt_tokens: Option<u64>,
    pub completion_tokens: Option<u64>,
    pub tool_calls: u64,
}

#[derive(Debug, Default, Deserialize)]
struct Chunk {
    #[serde(default)]
    choices: Vec<Choice>,
    usage: Option<Usage>,
    error: Option<serde_json::Value>,
}

#[derive(Debug, Deserialize)]
struct Usage {
    prompt_tokens: Option<u64>,
    completion_tokens: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
struct Choice {
    delta: Option<Delta>,
    message: Option<Delta>,
    text: Option<String>,
    finish_reason: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Delta {
    content: Option<String>,
    reasoning_content: Option<String>,
    reasoning: Option<String>,
    tool_calls: Option<Vec<ToolCall>>,
}

#[derive(Debug, Deserialize)]
struct ToolCall {
    function: Option<Function>,
}

#[derive(Debug, Deserialize)]
struct Function {
    name: Option<String>,
}

impl Choice {
    fn has_content(&self) -> bool {
        let filled = |s: &Option<String>| s.as_ref().is_some_and(|s| !s.is_empty());
        filled(&self.text)
            || self.delta.as_ref().is_some_and(|d| {
                filled(&d.content)
                    || filled(&d.reasoning_content)
                    || filled(&d.reasoning)
                    || d.tool_calls.as_ref().is_some_and(|c| !c.is_empty())
            })
    }

    /// The number of calls that start in this chunk. Later chunks of a call have no name.
    fn calls(&self) -> u64 {
        let calls = self.delta.as_ref().or(self.message.as_ref()).and_then(|d| d.tool_calls.as_deref());
        let named = |c: &&ToolCall| c.function.as_ref().is_some_and(|f| f.name.as_ref().is_some_and(|n| !n.is_empty()));
        calls.unwrap_or_default().iter().filter(named).count() as u64
    }
}

impl BenchAnswer {
    fn add(&mut self, chunk: &Chunk, at: Duration) {
        if chunk.choices.iter().any(Choice::has_content) {
            self.chunks.push(at);
            self.last_token = at;
        }
        if chunk.choices.iter().any(|c| c.finish_reason.is_some()) {
            self.last_token = at;
        }
        self.tool_calls += chunk.choices.iter().map(Choice::calls).sum::<u64>();
        if let Some(usage) = &chunk.usage {
            self.prompt_tokens = usage.prompt_tokens.or(self.prompt_tokens);
            self.completion_tokens = usage.completion_tokens.or(self.completion_tokens);
        }
    }
}

pub async fn read(response: ApiResponse, start: Instant, stream: bool) -> Result<BenchAnswer, Failure> {
    if stream { read_stream(response, start).await } else { read_whole(response, start).await }
}

async fn read_whole(response: ApiResponse, start: Instant) -> Result<BenchAnswer, Failure> {
    let body = collect(response).await?;
    let total = start.elapsed();
    let chunk: Chunk = serde_json::from_slice(&body).map_err(|e| Failure::BadResponse(e.to_string()))?;
    if chunk.choices.is_empty() {
        return Err(Failure::BadResponse("no choices".into()));
    }
    let mut answer = BenchAnswer { total, ..BenchAnswer::default() };
    answer.add(&chunk, total);
    answer.chunks.clear();
    Ok(answer)
}

async fn read_stream(response: ApiResponse, start: Instant) -> Result<BenchAnswer, Failure> {
    let mut answer = BenchAnswer::default();
    let mut finished = false;
    let mut failure = None;
    let done = read_events(response, start, |data, at| match serde_json::from_slice::<Chunk>(data) {
        Ok(Chunk { error: Some(_), .. }) => {
            failure.get_or_insert(Failure::InStream(error_text(data)));
        }
        Ok(chunk) => {
            finished |= chunk.choices.iter().any(|c| c.finish_reason.is_some());
            answer.add(&chunk, at);
        }
        Err(e) => {
            failure.get_or_insert(Failure::BadResponse(e.to_string()));
        }
    })
    .await?;
    answer.total = start.elapsed();
    match failure {
        Some(failure) => Err(failure),
        // Some endpoints omit [DONE]. A finish reason also proves that the answer is complete.
        None if done || finished => Ok(answer),
        None => Err(Failure::Broken("no finish reason and no [DONE]".into())),
    }
}
