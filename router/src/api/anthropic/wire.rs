//! The JSON of answers: Anthropic's fields, then this server's own.

use rein_proto::v1;
use serde::Serialize;
use serde_json::json;

use super::request::AnswerOptions;
use crate::request::model::random_call_id;

/// A new id for a call. The model's own ids repeat from conversation to conversation; clients expect unique ones.
pub fn call_id() -> String {
    random_call_id("toolu_")
}

#[derive(Serialize, Clone, Copy, Default)]
pub struct MessageUsage {
    /// Without those that the cache held.
    input_tokens: u32,
    cache_creation_input_tokens: u32,
    cache_read_input_tokens: u32,
    output_tokens: u32,
    output_tokens_details: OutputTokens,
}

#[derive(Serialize, Clone, Copy, Default)]
struct OutputTokens {
    thinking_tokens: u32,
}

impl From<v1::Usage> for MessageUsage {
    fn from(usage: v1::Usage) -> Self {
        MessageUsage {
            input_tokens: usage.prompt_tokens.saturating_sub(usage.cached_tokens),
            cache_creation_input_tokens: 0,
            cache_read_input_tokens: usage.cached_tokens,
            output_tokens: usage.completion_tokens,
            output_tokens_details: OutputTokens { thinking_tokens: usage.reasoning_tokens },
        }
    }
}

/// How a message ends.
#[derive(Serialize, Default)]
pub struct MessageEnd {
    pub stop_reason: Option<&'static str>,
    pub stop_sequence: Option<String>,
    /// Own field: calls that must not be executed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub incomplete_tool_calls: Vec<IncompleteToolUse>,
    /// Own field: texts in place of a call that could not be parsed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub malformed: Vec<String>,
    /// Own field: where and why the finished answer violates its schema.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub invalid_response: String,
    /// Own field, as in the proto.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub ended_early: String,
    /// Own field, as in the proto.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub grammar_relaxed: String,
}

#[derive(Serialize)]
pub struct IncompleteToolUse {
    pub id: String,
    pub name: String,
    /// The text of the input so far.
    pub partial_json: String,
}

impl MessageEnd {
    /// `id` gives the id that the client knows a call by.
    pub fn new(done: v1::Done, options: AnswerOptions, mut id: impl FnMut(&str) -> String) -> Self {
        let v1::Usage { completion_tokens, .. } = done.usage.unwrap_or_default();
        let stop_string =
            (done.stop_token.is_none() && !done.stop_reason.is_empty()).then_some(done.stop_reason.clone());
        let stop_reason = match (done.finish_reason(), &stop_string) {
            (v1::FinishReason::ToolCalls, _) => "tool_use",
            (v1::FinishReason::Length, _) if completion_tokens < options.max_tokens => "model_context_window_exceeded",
            (v1::FinishReason::Length, _) => "max_tokens",
            (_, Some(_)) => "stop_sequence",
            (_, None) => "end_turn",
        };
        let incomplete = done.incomplete_tool_calls.into_iter().map(|v1::ToolCall { id: own, name, arguments }| {
            IncompleteToolUse { id: id(&own), name, partial_json: arguments }
        });
        MessageEnd {
            stop_reason: Some(stop_reason),
            stop_sequence: stop_string.filter(|_| stop_reason == "stop_sequence"),
            incomplete_tool_calls: incomplete.collect(),
            malformed: done.malformed,
            invalid_response: done.invalid_response,
            ended_early: done.ended_early,
            grammar_relaxed: done.grammar_relaxed,
        }
    }
}

/// A message with these content blocks.
#[derive(Serialize)]
pub struct MessageHead<'a, B> {
    pub id: &'a str,
    #[serde(rename = "type")]
    pub kind: &'static str,
    pub role: &'static str,
    pub model: &'a str,
    pub content: Vec<B>,
    #[serde(flatten)]
    pub end: MessageEnd,
    pub usage: MessageUsage,
}

impl<'a, B: Serialize> MessageHead<'a, B> {
    pub fn new(start: &'a v1::Started, content: Vec<B>, end: MessageEnd, usage: v1::Usage) -> Self {
        MessageHead {
            id: &start.id,
            kind: "message",
            role: "assistant",
            model: &start.model,
            content,
            end,
            usage: usage.into(),
        }
    }
}

/// The answer of `/v1/messages/count_tokens`.
pub fn counted(tokens: usize) -> Vec<u8> {
    json!({"input_tokens": tokens}).to_string().into_bytes()
}
