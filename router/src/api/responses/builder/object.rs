//! The response object and the frames of a stream.

use rein_proto::v1;
use serde::{Serialize, Serializer, ser::SerializeMap};
use serde_json::{Value, json};

use super::super::output::{OutputItem, Part};
use super::ResponseBuilder;

/// The payload of one event. Absent fields are left out.
#[derive(Serialize, Default)]
pub struct ResponseFrame<'a> {
    #[serde(rename = "type")]
    pub kind: &'static str,
    pub sequence_number: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response: Option<ResponseObject<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub item_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_index: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content_index: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub item: Option<&'a OutputItem>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub part: Option<Part<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delta: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arguments: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logprobs: Option<Vec<Value>>,
    /// Of `error`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub param: Option<Option<&'a str>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ResponseStatus {
    InProgress,
    Completed,
    Incomplete,
    Failed,
}

/// The response so far.
pub struct ResponseObject<'a>(pub &'a ResponseBuilder);

impl Serialize for ResponseObject<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let response = self.0;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("id", &response.parameters.id)?;
        map.serialize_entry("object", "response")?;
        map.serialize_entry("created_at", &response.parameters.created)?;
        map.serialize_entry("status", &response.status)?;
        map.serialize_entry("error", &response.failure)?;
        let incomplete =
            (response.status == ResponseStatus::Incomplete).then(|| json!({"reason": "max_output_tokens"}));
        map.serialize_entry("incomplete_details", &incomplete)?;
        map.serialize_entry("model", &response.parameters.model)?;
        map.serialize_entry("output", &response.items)?;
        map.serialize_entry("usage", &response.usage.as_ref().map(usage))?;
        map.serialize_entry("store", &response.parameters.stored)?;
        for (name, value) in &response.parameters.echo {
            map.serialize_entry(name, value)?;
        }
        // This server's own fields.
        let own = &response.own;
        if !own.malformed.is_empty() {
            map.serialize_entry("malformed", &own.malformed)?;
        }
        if !own.unnamed_calls.is_empty() {
            map.serialize_entry("incomplete_tool_calls", &own.unnamed_calls)?;
        }
        if !own.invalid_response.is_empty() {
            map.serialize_entry("invalid_response", &own.invalid_response)?;
        }
        if !own.ended_early.is_empty() {
            map.serialize_entry("ended_early", &own.ended_early)?;
        }
        if !own.grammar_relaxed.is_empty() {
            map.serialize_entry("grammar_relaxed", &own.grammar_relaxed)?;
        }
        if response.parameters.token_ids {
            map.serialize_entry("prompt_token_ids", &own.prompt_token_ids)?;
            map.serialize_entry("token_ids", &own.token_ids)?;
        }
        map.end()
    }
}

fn usage(usage: &v1::Usage) -> Value {
    json!({
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.total_tokens,
    })
}

/// The answer of `/v1/responses/input_tokens`.
pub fn input_tokens(tokens: usize) -> Value {
    json!({"object": "response.input_tokens", "input_tokens": tokens})
}

/// The answer to a DELETE.
pub fn deleted(id: &str) -> Value {
    json!({"id": id, "object": "response", "deleted": true})
}
