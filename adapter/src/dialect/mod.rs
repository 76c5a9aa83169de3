//! What differs between engines: how a request is written and an answer read. It has no I/O.

mod llama;
mod sglang;
mod vllm;

use std::collections::BTreeMap;
use std::str::FromStr;

use bytes::Bytes;
use rein_proto::internal::{TokenLogprob, TopLogprob};
use serde::Deserialize;

use crate::draw::{DrawEnd, DrawRequest, DrawnId, EngineTraits};
use crate::limits;

/// The bias of an excluded token, in engines that add biases to logits.
const EXCLUDED_BIAS: f32 = -100.0;
/// The bias of allowed tokens, in engines without a list of them: their logits are above all others, with the same
/// distances. The draws are checked anyway.
const ALLOWED_BIAS: f32 = 100.0;

/// The protocol of an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EngineDialect {
    Vllm,
    LlamaServer,
    Sglang,
}

/// What one part of an engine's answer says.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DrawFrame {
    pub drawn: Vec<DrawnId>,
    /// Prompt tokens that the engine had cached, if it says so.
    pub cached_tokens: Option<u32>,
    pub end: Option<DrawEnd>,
    /// What no earlier frame of the answer has said.
    pub said: Option<Said>,
}

/// What an answer says of its engine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Said {
    pub model: Option<String>,
    /// Of the engine or of the weights.
    pub version: Option<String>,
}

impl Said {
    /// Whether nothing that both say differs.
    pub fn agrees(&self, other: &Said) -> bool {
        let agrees = |a: &Option<String>, b: &Option<String>| a.is_none() || b.is_none() || a == b;
        agrees(&self.model, &other.model) && agrees(&self.version, &other.version)
    }

    /// What these fields of an answer say beyond this, which they are then part of.
    fn news(&mut self, model: Option<&str>, version: Option<&str>) -> Option<Said> {
        let new = |known: &Option<String>, said: Option<&str>| said.is_some() && known.as_deref() != said;
        if !new(&self.model, model) && !new(&self.version, version) {
            return None;
        }
        let said = Said { model: model.map(str::to_owned), version: version.map(str::to_owned) };
        self.take(&said, true);
        Some(said)
    }

    /// Takes what `other` says: all of it, or only where this says nothing.
    pub fn take(&mut self, other: &Said, all: bool) {
        for (own, other) in [(&mut self.model, &other.model), (&mut self.version, &other.version)] {
            if other.is_some() && (all || own.is_none()) {
                own.clone_from(other);
            }
        }
    }
}

/// Reads the answer to one request.
#[derive(Debug)]
pub struct DrawReader {
    dialect: EngineDialect,
    /// Tokens that were read.
    seen: usize,
    said: Said,
}

/// Where an engine tells what it is, and how it tokenizes.
#[derive(Debug, Clone, Copy)]
pub struct ProbePaths {
    pub models: &'static str,
    pub version: &'static str,
    pub tokenize: &'static str,
    pub health: &'static str,
}

/// What an engine tells about itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EngineFacts {
    /// Names of models under which it takes requests.
    pub models: Vec<String>,
    pub version: Option<String>,
    /// Prompt and generated tokens together.
    pub context: Option<usize>,
    pub block_size: Option<u32>,
    pub blocks: Option<u32>,
    /// Sequences that it computes at once.
    pub slots: Option<u32>,
    /// Whether it keeps the KV entries of earlier prompts.
    pub prefix_cache: Option<bool>,
}

impl EngineDialect {
    pub const ALL: [EngineDialect; 3] = [EngineDialect::Vllm, EngineDialect::LlamaServer, EngineDialect::Sglang];

    /// As in `--engine`, in metrics and in `EngineInfo.kind`.
    pub fn name(self) -> &'static str {
        match self {
            EngineDialect::Vllm => "vllm",
            EngineDialect::LlamaServer => "llama-server",
            EngineDialect::Sglang => "sglang",
        }
    }

    /// Whether it can publish which blocks its cache holds.
    pub fn publishes_blocks(self) -> bool {
        self != EngineDialect::LlamaServer
    }

    pub fn traits(self) -> EngineTraits {
        match self {
            EngineDialect::Vllm => vllm::traits(),
            EngineDialect::LlamaServer => llama::traits(),
            EngineDialect::Sglang => sglang::traits(),
        }
    }

    pub fn path(self) -> &'static str {
        match self {
            EngineDialect::Vllm => "/v1/completions",
            EngineDialect::LlamaServer => "/completion",
            EngineDialect::Sglang => "/generate",
        }
    }

    /// Whether the answer is a stream of events; else it is one JSON document.
    pub fn streams(self, request: &DrawRequest) -> bool {
        match self {
            EngineDialect::Vllm | EngineDialect::Sglang => request.max_tokens > 1,
            // Its streams drop the ids of tokens that end inside a UTF-8 character.
            EngineDialect::LlamaServer => false,
        }
    }

    /// The request's JSON. `model`: the name under which the engine knows it.
    pub fn body(self, request: &DrawRequest, model: &str) -> Bytes {
        let value = match self {
            EngineDialect::Vllm => vllm::body(request, model, self.streams(request)),
            EngineDialect::LlamaServer => llama::body(request),
            EngineDialect::Sglang => sglang::body(request, self.streams(request)),
        };
        value.to_string().into()
    }

    pub fn reader(self) -> DrawReader {
        DrawReader { dialect: self, seen: 0, said: Said::default() }
    }

    pub fn probes(self) -> ProbePaths {
        let (models, tokenize, health) = ("/v1/models", "/tokenize", "/health");
        let version = match self {
            EngineDialect::Vllm => "/version",
            EngineDialect::LlamaServer => "/props",
            EngineDialect::Sglang => "/get_server_info",
        };
        ProbePaths { models, version, tokenize, health }
    }

    /// The body of a request for the ids of a text, without tokens around it.
    pub fn tokenize_body(self, text: &str, model: &str) -> Bytes {
        let value = match self {
            EngineDialect::Vllm | EngineDialect::Sglang => {
                serde_json::json!({"model": model, "prompt": text, "add_special_tokens": false})
            }
            EngineDialect::LlamaServer => {
                serde_json::json!({"content": text, "add_special": false, "parse_special": true})
            }
        };
        value.to_string().into()
    }

    /// From the answers of [`ProbePaths::models`], [`ProbePaths::version`] and `/metrics`; None: no such answer.
    pub fn facts(self, models: &[u8], version: Option<&[u8]>, metrics: Option<&[u8]>) -> Result<EngineFacts, String> {
        let models: Models = serde_json::from_slice(models).map_err(|error| format!("its list of models: {error}"))?;
        let context = models.data.iter().find_map(|model| model.max_model_len);
        let names = models.data.into_iter().map(|model| model.id).collect();
        let facts = EngineFacts { models: names, context, ..EngineFacts::default() };
        let version = version.map(serde_json::from_slice::<serde_json::Value>).transpose();
        let version = version.map_err(|error| format!("its version: {error}"))?.unwrap_or_default();
        Ok(match self {
            EngineDialect::Vllm => vllm::facts(facts, &version, metrics),
            EngineDialect::LlamaServer => llama::facts(facts, &version),
            EngineDialect::Sglang => sglang::facts(facts, &version),
        })
    }
}

impl FromStr for EngineDialect {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let alias = if name == "llama" { "llama-server" } else { name };
        let found = EngineDialect::ALL.into_iter().find(|dialect| dialect.name() == alias);
        found.ok_or_else(|| format!("expected vllm, sglang or llama-server before `=`, got {name:?}"))
    }
}

#[derive(Deserialize)]
struct Models {
    data: Vec<ListedModel>,
}

#[derive(Deserialize)]
struct ListedModel {
    id: String,
    #[serde(default)]
    max_model_len: Option<usize>,
}

impl DrawReader {
    /// Reads one event's data, or the whole answer. Err: it is not what the engine's protocol says.
    pub fn read(&mut self, data: &[u8]) -> Result<DrawFrame, String> {
        if data.trim_ascii() == b"[DONE]" {
            let why = "the engine ended its stream without a finish reason".to_owned();
            return Ok(DrawFrame { end: Some(DrawEnd::Lost(why)), ..DrawFrame::default() });
        }
        let frame = match self.dialect {
            EngineDialect::Vllm => vllm::frame(data, &mut self.said),
            EngineDialect::LlamaServer => llama::frame(data, &mut self.said),
            EngineDialect::Sglang => sglang::frame(data, self.seen, &mut self.said),
        };
        let mut frame = frame.map_err(|error| {
            let error = plain(&error, limits::ERROR_CHARS);
            format!("the engine's answer is not understood: {error}")
        })?;
        if let Some(DrawEnd::Failed(why) | DrawEnd::Lost(why)) = &mut frame.end {
            *why = plain(why, limits::ERROR_CHARS);
        }
        self.seen += frame.drawn.len();
        Ok(frame)
    }
}

/// The biases of a request. With allowed ids only theirs, each at least [`ALLOWED_BIAS`]: a client's own bias neither
/// lets another token compete nor makes an allowed one do so.
fn raised(request: &DrawRequest) -> BTreeMap<u32, f32> {
    let own: BTreeMap<u32, f32> = request.bias.iter().copied().collect();
    if request.allow.is_empty() {
        return own;
    }
    let own = |id: &u32| own.get(id).copied().unwrap_or_default();
    let least = request.allow.iter().map(own).fold(0.0, f32::min);
    request.allow.iter().map(|id| (*id, own(id) - least + ALLOWED_BIAS)).collect()
}

/// An error inside an answer: a string, or an object with a message.
#[derive(Deserialize)]
#[serde(untagged)]
enum InnerError {
    Text(String),
    Object {
        #[serde(default)]
        message: String,
        #[serde(default)]
        code: Option<serde_json::Value>,
    },
}

impl InnerError {
    /// An engine that rejects the request would reject it again; otherwise the engine has failed.
    fn into_end(self) -> DrawEnd {
        let (message, code) = match self {
            InnerError::Text(message) => (message, None),
            InnerError::Object { message, code } => (message, code.and_then(|code| code.as_u64())),
        };
        match code {
            Some(400 | 413 | 422) => DrawEnd::Failed(format!("the engine rejected the request: {message}")),
            _ => DrawEnd::Lost(format!("the engine failed: {message}")),
        }
    }
}

/// The message of an error response; the whole text if it has no message field.
pub fn error_text(body: &[u8]) -> String {
    let value: Option<serde_json::Value> = serde_json::from_slice(body).ok();
    let at = |path: &&str| value.as_ref()?.pointer(path)?.as_str();
    let message = ["/error/message", "/message", "/detail", "/error"].iter().find_map(at);
    let text = message.map_or_else(|| String::from_utf8_lossy(body).into_owned(), str::to_owned);
    plain(&text, limits::ERROR_CHARS)
}

/// The beginning of a foreign text, without control characters: those of a terminal could do harm there.
pub fn plain(text: &str, chars: usize) -> String {
    let plain = |c: char| if c.is_control() { ' ' } else { c };
    text.trim().chars().take(chars).map(plain).collect()
}

/// A token with its log-probability and the best alternatives.
fn logprob(id: u32, logprob: Option<f32>, top: impl IntoIterator<Item = (u32, f32)>) -> TokenLogprob {
    let mut top: Vec<TopLogprob> = top.into_iter().map(|(id, logprob)| TopLogprob { id, logprob }).collect();
    top.sort_by(|a, b| b.logprob.total_cmp(&a.logprob).then(a.id.cmp(&b.id)));
    let rank = top.iter().position(|other| other.id == id).map_or(0, |place| place as u32 + 1);
    TokenLogprob { id, logprob, rank, top }
}

#[cfg(test)]
mod tests;
