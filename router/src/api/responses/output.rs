//! The items of an answer. They are written in one way for events, for the final object and for what is stored.

use rein_proto::v1;
use serde::{Serialize, Serializer, ser::SerializeMap};
use serde_json::{Value, json};

use crate::api::openai::finite;

/// What the id of a response begins with.
const RESPONSE_PREFIX: &str = "resp_";

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ItemStatus {
    InProgress,
    Completed,
    Incomplete,
}

#[derive(Debug, Clone, PartialEq)]
pub struct OutputItem {
    pub id: String,
    pub status: ItemStatus,
    pub kind: ItemKind,
}

#[derive(Debug, Clone, PartialEq)]
pub enum ItemKind {
    Reasoning { text: String, sealed: Option<String> },
    Message { text: String, logprobs: Vec<v1::TokenLogprob> },
    FunctionCall { call_id: String, name: String, namespace: Option<String>, arguments: String },
    CustomCall { call_id: String, name: String, namespace: Option<String>, input: String },
}

impl ItemKind {
    fn prefix(&self) -> &'static str {
        match self {
            ItemKind::Reasoning { .. } => "rs",
            ItemKind::Message { .. } => "msg",
            ItemKind::FunctionCall { .. } => "fc",
            ItemKind::CustomCall { .. } => "ctc",
        }
    }

    pub fn call_id(&self) -> Option<&str> {
        match self {
            ItemKind::FunctionCall { call_id, .. } | ItemKind::CustomCall { call_id, .. } => Some(call_id),
            ItemKind::Reasoning { .. } | ItemKind::Message { .. } => None,
        }
    }
}

/// The id of the item at an index of a response's output.
pub fn item_id(response: &str, kind: &ItemKind, index: usize) -> String {
    format!("{}_{}_{index}", kind.prefix(), response.strip_prefix(RESPONSE_PREFIX).unwrap_or(response))
}

/// The part of an item's id that is the same for all items of its response. None: this server did not make the id.
pub fn response_of(item: &str) -> Option<&str> {
    let (_, rest) = item.split_once('_')?;
    let (response, index) = rest.rsplit_once('_')?;
    let generated = response.len() == 32 && response.bytes().all(|c| c.is_ascii_hexdigit());
    (generated && index.parse::<usize>().is_ok()).then_some(response)
}

/// The response whose output has the item.
pub fn response_id(item: &str) -> Option<String> {
    response_of(item).map(|response| format!("{RESPONSE_PREFIX}{response}"))
}

impl Serialize for OutputItem {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("id", &self.id)?;
        match &self.kind {
            ItemKind::Reasoning { text, sealed } => {
                map.serialize_entry("type", "reasoning")?;
                map.serialize_entry("summary", &[(); 0])?;
                let part = (!text.is_empty()).then(|| Part::reasoning(text));
                map.serialize_entry("content", part.as_slice())?;
                if let Some(sealed) = sealed {
                    map.serialize_entry("encrypted_content", sealed)?;
                }
            }
            ItemKind::Message { text, logprobs } => {
                map.serialize_entry("type", "message")?;
                map.serialize_entry("role", "assistant")?;
                let part = (!text.is_empty()).then(|| Part::text(text, logprobs));
                map.serialize_entry("content", part.as_slice())?;
            }
            ItemKind::FunctionCall { call_id, name, namespace, arguments } => {
                map.serialize_entry("type", "function_call")?;
                map.serialize_entry("call_id", call_id)?;
                map.serialize_entry("name", name)?;
                if let Some(namespace) = namespace {
                    map.serialize_entry("namespace", namespace)?;
                }
                map.serialize_entry("arguments", arguments)?;
            }
            ItemKind::CustomCall { call_id, name, namespace, input } => {
                map.serialize_entry("type", "custom_tool_call")?;
                map.serialize_entry("call_id", call_id)?;
                map.serialize_entry("name", name)?;
                if let Some(namespace) = namespace {
                    map.serialize_entry("namespace", namespace)?;
                }
                map.serialize_entry("input", input)?;
            }
        }
        map.serialize_entry("status", &self.status)?;
        map.end()
    }
}

/// A part of an item's content.
#[derive(Debug, Clone, Serialize)]
pub struct Part<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    text: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    annotations: Option<[(); 0]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    logprobs: Option<Vec<Value>>,
}

impl<'a> Part<'a> {
    pub fn reasoning(text: &'a str) -> Self {
        Part { kind: "reasoning_text", text, annotations: None, logprobs: None }
    }

    pub fn text(text: &'a str, logprobs: &[v1::TokenLogprob]) -> Self {
        Part { kind: "output_text", text, annotations: Some([]), logprobs: Some(written(logprobs)) }
    }
}

/// Logprobs as this API writes them.
pub fn written(logprobs: &[v1::TokenLogprob]) -> Vec<Value> {
    let one = |token: &[u8], logprob: Option<f32>| {
        let text = String::from_utf8_lossy(token);
        json!({"token": text, "logprob": finite(logprob), "bytes": token})
    };
    let all = logprobs.iter().map(|logprob| {
        let mut written = one(&logprob.token, logprob.logprob);
        written["top_logprobs"] = logprob.top.iter().map(|top| one(&top.token, Some(top.logprob))).collect();
        written
    });
    all.collect()
}
