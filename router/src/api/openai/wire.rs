//! The JSON of responses: OpenAI's fields, then vLLM's, then this server's own.

use rein_proto::v1;
use serde::{Serialize, Serializer, ser::SerializeMap};
use serde_json::{Value, json};

use crate::request::model::ServedModel;
pub use crate::request::outcomes::finish_reason;

/// OpenAI's value for an unknown logprob.
const NO_LOGPROB: f32 = -9999.0;

#[derive(Serialize)]
pub struct ChatChunk<'a> {
    pub id: &'a str,
    pub object: &'static str,
    pub created: u64,
    pub model: &'a str,
    pub system_fingerprint: &'a str,
    pub choices: &'a [ChatChoice<'a>],
    /// None: not requested. Some(None): null, because the last chunk has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Option<Usage>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_token_ids: Option<&'a [u32]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_logprobs: Option<PromptLogprobs<'a>>,
}

#[derive(Serialize)]
pub struct ChatChoice<'a> {
    pub index: u32,
    pub delta: Delta<'a>,
    pub logprobs: Option<ChatLogprobs<'a>>,
    pub finish_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_reason: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_ids: Option<&'a [u32]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grammar: Option<GrammarReport>,
    /// Own field: where and why the finished answer violates its schema, choices or regular expression.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub invalid_response: &'a str,
    /// Own field, as in the proto.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub ended_early: &'a str,
    /// Own field, as in the proto.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub grammar_relaxed: &'a str,
}

#[derive(Serialize, Default)]
pub struct Delta<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<&'a [ToolCallDelta<'a>]>,
    /// As in [`Message`], in the last chunk of a choice.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub incomplete_tool_calls: Vec<ToolCall<'a>>,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    pub malformed: &'a [String],
}

#[derive(Serialize, Default)]
pub struct ToolCallDelta<'a> {
    pub index: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<&'a str>,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<&'static str>,
    pub function: FunctionDelta<'a>,
}

#[derive(Serialize, Default)]
pub struct FunctionDelta<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<&'a str>,
    pub arguments: &'a str,
}

#[derive(Serialize)]
pub struct ChatBody<'a> {
    pub id: &'a str,
    pub object: &'static str,
    pub created: u64,
    pub model: &'a str,
    pub system_fingerprint: &'a str,
    pub choices: Vec<ChatBodyChoice<'a>>,
    pub usage: Usage,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_token_ids: Option<&'a [u32]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_logprobs: Option<PromptLogprobs<'a>>,
}

#[derive(Serialize)]
pub struct ChatBodyChoice<'a> {
    pub index: u32,
    pub message: Message<'a>,
    pub logprobs: Option<ChatLogprobs<'a>>,
    pub finish_reason: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_reason: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_ids: Option<&'a [u32]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grammar: Option<GrammarReport>,
    /// Own field: where and why the finished answer violates its schema, choices or regular expression.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub invalid_response: &'a str,
    /// Own field, as in the proto.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub ended_early: &'a str,
    /// Own field, as in the proto.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub grammar_relaxed: &'a str,
}

#[derive(Serialize)]
pub struct Message<'a> {
    pub role: &'static str,
    pub content: Option<&'a str>,
    pub refusal: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall<'a>>,
    /// Calls that must not be executed: incomplete, malformed, or with arguments that violate their schema.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub incomplete_tool_calls: Vec<ToolCall<'a>>,
    /// Texts in place of a call that could not be parsed.
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    pub malformed: &'a [String],
}

#[derive(Serialize)]
pub struct ToolCall<'a> {
    pub id: &'a str,
    #[serde(rename = "type")]
    pub kind: &'static str,
    pub function: Function<'a>,
}

#[derive(Serialize)]
pub struct Function<'a> {
    pub name: &'a str,
    pub arguments: &'a str,
}

impl<'a> From<&'a v1::ToolCall> for ToolCall<'a> {
    fn from(v1::ToolCall { id, name, arguments }: &'a v1::ToolCall) -> Self {
        ToolCall { id, kind: "function", function: Function { name, arguments } }
    }
}

/// `{"content": [...], "refusal": null}`
#[derive(Serialize)]
pub struct ChatLogprobs<'a> {
    content: Vec<ChatLogprob<'a>>,
    refusal: Option<&'static str>,
}

#[derive(Serialize)]
struct ChatLogprob<'a> {
    #[serde(serialize_with = "lossy")]
    token: &'a [u8],
    logprob: f32,
    bytes: &'a [u8],
    top_logprobs: Vec<TopLogprob<'a>>,
}

#[derive(Serialize)]
struct TopLogprob<'a> {
    #[serde(serialize_with = "lossy")]
    token: &'a [u8],
    logprob: f32,
    bytes: &'a [u8],
}

impl<'a> ChatLogprobs<'a> {
    pub fn new(logprobs: &'a [v1::TokenLogprob]) -> Option<Self> {
        let top = |top: &'a v1::TopLogprob| TopLogprob {
            token: &top.token,
            logprob: finite(Some(top.logprob)),
            bytes: &top.token,
        };
        let one = |one: &'a v1::TokenLogprob| ChatLogprob {
            token: &one.token,
            logprob: finite(one.logprob),
            bytes: &one.token,
            top_logprobs: one.top.iter().map(top).collect(),
        };
        (!logprobs.is_empty()).then(|| ChatLogprobs { content: logprobs.iter().map(one).collect(), refusal: None })
    }
}

/// JSON has no infinities.
pub fn finite(logprob: Option<f32>) -> f32 {
    logprob.filter(|logprob| logprob.is_finite()).unwrap_or(NO_LOGPROB)
}

fn lossy<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&String::from_utf8_lossy(bytes))
}

/// vLLM's format: per prompt token null or `{"id": {"logprob", "rank", "decoded_token"}, ...}`, the token itself first.
pub struct PromptLogprobs<'a>(&'a [v1::TokenLogprob]);

pub fn prompt_logprobs(logprobs: &[v1::TokenLogprob]) -> Option<PromptLogprobs<'_>> {
    (!logprobs.is_empty()).then_some(PromptLogprobs(logprobs))
}

impl Serialize for PromptLogprobs<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(|token| token.logprob.is_some().then_some(PromptLogprob(token))))
    }
}

struct PromptLogprob<'a>(&'a v1::TokenLogprob);

impl Serialize for PromptLogprob<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let entry = |token: &[u8], logprob: Option<f32>, rank: u32| {
            json!({
                "logprob": finite(logprob),
                "rank": (rank > 0).then_some(rank),
                "decoded_token": String::from_utf8_lossy(token),
            })
        };
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry(&self.0.id.to_string(), &entry(&self.0.token, self.0.logprob, self.0.rank))?;
        for (i, top) in self.0.top.iter().enumerate().filter(|(_, top)| top.id != self.0.id) {
            map.serialize_entry(&top.id.to_string(), &entry(&top.token, Some(top.logprob), i as u32 + 1))?;
        }
        map.end()
    }
}

#[derive(Serialize)]
pub struct CompletionBody<'a> {
    pub id: &'a str,
    pub object: &'static str,
    pub created: u64,
    pub model: &'a str,
    pub system_fingerprint: &'a str,
    pub choices: Vec<CompletionChoice<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Option<Usage>>,
}

#[derive(Serialize)]
pub struct CompletionChoice<'a> {
    pub index: u32,
    pub text: &'a str,
    pub logprobs: Option<CompletionLogprobs>,
    pub finish_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_reason: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_ids: Option<&'a [u32]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_token_ids: Option<&'a [u32]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_logprobs: Option<PromptLogprobs<'a>>,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub invalid_response: &'a str,
    /// Own field, as in the proto.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub ended_early: &'a str,
    /// Own field, as in the proto.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub grammar_relaxed: &'a str,
}

/// Parallel lists, one entry per token. Offsets are in characters of the choice's text.
#[derive(Serialize)]
pub struct CompletionLogprobs {
    tokens: Vec<String>,
    token_logprobs: Vec<Option<f32>>,
    top_logprobs: Vec<Option<serde_json::Map<String, Value>>>,
    text_offset: Vec<u32>,
}

impl CompletionLogprobs {
    pub fn new(logprobs: &[v1::TokenLogprob]) -> Option<Self> {
        if logprobs.is_empty() {
            return None;
        }
        let mut lists = CompletionLogprobs {
            tokens: Vec::with_capacity(logprobs.len()),
            token_logprobs: Vec::with_capacity(logprobs.len()),
            top_logprobs: Vec::with_capacity(logprobs.len()),
            text_offset: Vec::with_capacity(logprobs.len()),
        };
        for logprob in logprobs {
            let token = String::from_utf8_lossy(&logprob.token).into_owned();
            lists.text_offset.push(logprob.text_offset.unwrap_or(0));
            lists.token_logprobs.push(logprob.logprob.map(|value| finite(Some(value))));
            lists.top_logprobs.push(logprob.logprob.map(|value| {
                let mut top = serde_json::Map::new();
                top.insert(token.clone(), finite(Some(value)).into());
                for other in &logprob.top {
                    let other_token = String::from_utf8_lossy(&other.token).into_owned();
                    top.entry(other_token).or_insert_with(|| finite(Some(other.logprob)).into());
                }
                top
            }));
            lists.tokens.push(token);
        }
        Some(lists)
    }
}

#[derive(Serialize, Debug, Clone, Copy)]
pub struct Usage {
    prompt_tokens: u32,
    completion_tokens: u32,
    total_tokens: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_tokens_details: Option<PromptDetails>,
    #[serde(skip_serializing_if = "Option::is_none")]
    completion_tokens_details: Option<CompletionDetails>,
}

#[derive(Serialize, Debug, Clone, Copy)]
struct PromptDetails {
    cached_tokens: u32,
}

#[derive(Serialize, Debug, Clone, Copy)]
struct CompletionDetails {
    reasoning_tokens: u32,
}

impl From<&v1::Usage> for Usage {
    fn from(usage: &v1::Usage) -> Self {
        Usage {
            prompt_tokens: usage.prompt_tokens,
            completion_tokens: usage.completion_tokens,
            total_tokens: usage.total_tokens,
            prompt_tokens_details: Some(PromptDetails { cached_tokens: usage.cached_tokens }),
            completion_tokens_details: Some(CompletionDetails { reasoning_tokens: usage.reasoning_tokens }),
        }
    }
}

impl Usage {
    /// The usage in the middle of an answer, without details.
    pub fn so_far(prompt_tokens: u32, completion_tokens: u32) -> Self {
        Usage {
            prompt_tokens,
            completion_tokens,
            total_tokens: prompt_tokens + completion_tokens,
            prompt_tokens_details: None,
            completion_tokens_details: None,
        }
    }
}

/// Own type: what the grammar did to a choice.
#[derive(Serialize, Debug)]
pub struct GrammarReport {
    checked: u64,
    refused: u64,
    forced: u64,
    held: u64,
    masks: u64,
    microseconds: f64,
    refusals: Vec<Refusal>,
    /// With return_decisions.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    decisions: Vec<Decision>,
}

/// How a generated token came about.
#[derive(Serialize, Debug)]
struct Decision {
    id: u32,
    token: String,
    kind: &'static str,
    refused: Vec<Refusal>,
}

#[derive(Serialize, Debug)]
struct Refusal {
    position: u32,
    id: u32,
    token: String,
}

impl From<&v1::GrammarReport> for GrammarReport {
    fn from(report: &v1::GrammarReport) -> Self {
        let refusal = |refusal: &v1::Refusal| Refusal {
            position: refusal.position,
            id: refusal.id,
            token: String::from_utf8_lossy(&refusal.token).into_owned(),
        };
        let decision = |decision: &v1::Decision| Decision {
            id: decision.id,
            token: String::from_utf8_lossy(&decision.token).into_owned(),
            kind: match decision.kind() {
                v1::DecisionKind::Masked => "masked",
                v1::DecisionKind::Forced => "forced",
                v1::DecisionKind::Drawn | v1::DecisionKind::Unspecified => "drawn",
            },
            refused: decision.refused.iter().map(refusal).collect(),
        };
        GrammarReport {
            checked: report.checked,
            refused: report.refused,
            forced: report.forced,
            held: report.held,
            masks: report.masks,
            microseconds: report.nanos as f64 / 1e3,
            refusals: report.refusals.iter().map(refusal).collect(),
            decisions: report.decisions.iter().map(decision).collect(),
        }
    }
}

/// The stop string, or the id of the stop token that the request named.
pub fn stop_reason(done: &v1::Done) -> Option<Value> {
    let string = || (!done.stop_reason.is_empty()).then(|| done.stop_reason.as_str().into());
    done.stop_token.map(Value::from).or_else(string)
}

pub fn model(model: &ServedModel, max_context: Option<u32>) -> Value {
    json!({
        "id": model.name(),
        "object": "model",
        "created": model.created,
        "owned_by": "rein",
        "max_model_len": max_context,
        "format": model.format.name,
        "revision": model.text.revision.clone().or_else(|| model.pool.revision()),
        "root": model.lora.as_ref().map_or(model.name(), |lora| &lora.path),
        "parent": model.lora.as_ref().map(|_| model.base_name()),
    })
}

/// A model that has had no engine yet.
pub fn expected_model(name: &str) -> Value {
    json!({"id": name, "object": "model", "created": 0, "owned_by": "rein", "max_model_len": null})
}

/// A model under a further name.
pub fn aliased(mut model: Value, alias: &str, name: &str) -> Value {
    model["id"] = alias.into();
    model["root"] = name.into();
    model
}

pub fn models(models: Vec<Value>) -> Value {
    json!({"object": "list", "data": models})
}
