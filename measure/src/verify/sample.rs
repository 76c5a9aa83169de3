//! The samples file: requests, and what is known about their correct answers.

use std::path::Path;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::VerifyError;

/// The members that are sent from a line without `request`.
const REQUEST_FIELDS: &[&str] = &[
    "messages",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "response_format",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "n",
    "stop",
    "seed",
    "max_tokens",
    "max_completion_tokens",
    "frequency_penalty",
    "presence_penalty",
    "logit_bias",
    "logprobs",
    "top_logprobs",
    "reasoning_effort",
    "thinking",
    "chat_template_kwargs",
    "structured_outputs",
    "user",
];
/// The members that identify a request. Sampling parameters are not among them.
const IDENTITY: &[&str] = &["messages", "tools", "tool_choice", "parallel_tool_calls", "response_format"];
/// A role in the vendor verifier's samples. It means `system`.
const INPUT_ROLE: &str = "_input";

#[derive(Debug, Clone)]
pub struct Sample {
    /// Line number in the file, from 1.
    pub index: u64,
    pub hash: String,
    pub request: Map<String, Value>,
    pub truth: Truth,
}

/// What a line says about the correct answer.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct Truth {
    /// Length of the prompt with the model's own tokenizer and template.
    pub prompt_tokens: Option<u64>,
    #[serde(default)]
    pub expect: Expect,
    /// The report shows figures by tag.
    #[serde(default)]
    pub tags: Vec<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
pub struct Expect {
    pub call: Option<bool>,
    pub tool: Option<String>,
}

impl Sample {
    pub fn parse(index: u64, line: &str) -> Result<Self, String> {
        let value: Value = serde_json::from_str(line).map_err(|e| format!("not JSON: {e}"))?;
        let Value::Object(mut members) = value else { return Err("must be a JSON object".into()) };
        let mut request = match members.shift_remove("request") {
            Some(Value::Object(request)) => request,
            Some(_) => return Err("`request` must be an object".into()),
            None => {
                let fields = REQUEST_FIELDS.iter().filter_map(|f| members.shift_remove_entry(*f));
                fields.collect()
            }
        };
        let truth = Truth {
            prompt_tokens: member(&members, "prompt_tokens")?.unwrap_or_default(),
            expect: member(&members, "expect")?.unwrap_or_default(),
            tags: member(&members, "tags")?.unwrap_or_default(),
        };
        match request.get_mut("messages") {
            Some(Value::Array(messages)) if !messages.is_empty() => messages.iter_mut().for_each(normalize),
            _ => return Err("`messages` must be a list with at least one message".into()),
        }
        Ok(Self { index, hash: hash(&request), request, truth })
    }

    /// The declared tools of the request and of its messages.
    pub fn tools(&self) -> impl Iterator<Item = &Map<String, Value>> {
        let messages = self.request.get("messages").and_then(Value::as_array);
        let lists = messages.into_iter().flatten().map(|m| m.get("tools"));
        std::iter::once(self.request.get("tools"))
            .chain(lists)
            .filter_map(|list| list?.as_array())
            .flatten()
            .filter_map(|tool| tool.get("function").unwrap_or(tool).as_object())
    }

    /// Ids of calls in the history.
    pub fn past_ids(&self) -> impl Iterator<Item = &str> {
        let messages = self.request.get("messages").and_then(Value::as_array);
        let calls = messages.into_iter().flatten().filter_map(|m| m.get("tool_calls")?.as_array()).flatten();
        calls.filter_map(|c| c.get("id")?.as_str())
    }
}

fn member<T: serde::de::DeserializeOwned>(members: &Map<String, Value>, name: &str) -> Result<Option<T>, String> {
    match members.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => T::deserialize(value).map(Some).map_err(|e| format!("`{name}`: {e}")),
    }
}

fn normalize(message: &mut Value) {
    if let Some(role) = message.get_mut("role")
        && role == INPUT_ROLE
    {
        *role = "system".into();
    }
}

/// The hash of a request whose messages may still have the roles of the file.
pub fn hash_unnormalized(request: &Map<String, Value>) -> String {
    let mut request = request.clone();
    if let Some(Value::Array(messages)) = request.get_mut("messages") {
        messages.iter_mut().for_each(normalize);
    }
    hash(&request)
}

fn hash(request: &Map<String, Value>) -> String {
    let mut state = FNV_OFFSET;
    for field in IDENTITY {
        // A null member is equivalent to a missing one.
        if let Some(value) = request.get(*field).filter(|v| !v.is_null()) {
            feed(&mut state, field.as_bytes());
            feed_value(&mut state, value);
        }
    }
    format!("{state:032x}")
}

// FNV-1a with 128 bits. The standard hasher is not used, because its results may change between versions.
const FNV_OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
const FNV_PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;

fn feed(state: &mut u128, bytes: &[u8]) {
    // 0xff separates values, because it does not occur in UTF-8.
    for byte in bytes.iter().chain(&[0xff]) {
        *state = (*state ^ u128::from(*byte)).wrapping_mul(FNV_PRIME);
    }
}

/// Hashes members in the order of their names, because other programs may write them in another order.
fn feed_value(state: &mut u128, value: &Value) {
    match value {
        Value::Object(members) => {
            feed(state, b"{");
            let mut members: Vec<_> = members.iter().collect();
            members.sort_by_key(|(name, _)| *name);
            for (name, value) in members {
                feed(state, name.as_bytes());
                feed_value(state, value);
            }
            feed(state, b"}");
        }
        Value::Array(items) => {
            feed(state, b"[");
            items.iter().for_each(|item| feed_value(state, item));
            feed(state, b"]");
        }
        other => feed(state, other.to_string().as_bytes()),
    }
}

/// Loads all samples of a file.
pub fn load(path: &Path) -> Result<Vec<Sample>, VerifyError> {
    let read = |source| VerifyError::Read { option: "--samples", path: path.into(), source };
    let text = std::fs::read_to_string(path).map_err(read)?;
    let mut samples = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        if !line.trim().is_empty() {
            let sample = Sample::parse(number, line);
            samples.push(sample.map_err(|reason| VerifyError::Line { path: path.into(), number, reason })?);
        }
    }
    if samples.is_empty() { Err(VerifyError::NoSamples(path.into())) } else { Ok(samples) }
}
