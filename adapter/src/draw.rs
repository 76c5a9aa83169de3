//! One request to an engine, before it is written in the engine's own form. It has no I/O.

use rein_proto::internal::{Sampling, TokenLogprob};

/// What differs between engines in what one request can say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineTraits {
    /// Ids that a request can name as the only ones allowed.
    pub allow_limit: usize,
    /// These ids have raised logits, to which the engine then applies the repetition penalty.
    pub allow_is_penalized: bool,
    /// Ids whose logits a request can change, all together.
    pub bias_limit: usize,
    /// Of those, ids that are excluded before the whole complement of a mask is tried.
    pub exclude_first: usize,
    /// Tokens of a request without a mask. None: as many as the sequence may have.
    pub chunk: Option<u32>,
    /// Presence and frequency penalties count the tokens that the request generates, and no others.
    pub counts_generated: bool,
    pub seed_bits: u32,
}

/// Why a request is sent, for metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DrawReason {
    /// The first request of a sequence.
    Start,
    /// The first request of a sequence that another engine has begun.
    Resume,
    /// One token under a mask, after a refused one.
    Masked,
    /// The tokens after a masked, appended or last token of a chunk.
    Free,
    /// One token of a sequence that waits for its router after each.
    Held,
}

impl DrawReason {
    pub const ALL: [DrawReason; 5] =
        [DrawReason::Start, DrawReason::Masked, DrawReason::Free, DrawReason::Held, DrawReason::Resume];

    pub fn name(self) -> &'static str {
        match self {
            DrawReason::Start => "start",
            DrawReason::Resume => "resume",
            DrawReason::Masked => "masked",
            DrawReason::Free => "free",
            DrawReason::Held => "held",
        }
    }
}

/// A request for tokens after a prompt. Every parameter is set, because engines have their own defaults.
#[derive(Debug, Clone, PartialEq)]
pub struct DrawRequest {
    /// Counts up from 1 within a sequence.
    pub number: u64,
    pub why: DrawReason,
    /// The prompt and the generated tokens so far.
    pub prompt: Vec<u32>,
    pub max_tokens: u32,
    /// Without seed and `logit_bias`. Penalties are those that the engine itself applies.
    pub sampling: Sampling,
    pub seed: u64,
    /// The only ids that may be drawn. Empty: no such list.
    pub allow: Vec<u32>,
    /// Ids that may not be drawn.
    pub exclude: Vec<u32>,
    /// Added to logits. In ascending order of ids.
    pub bias: Vec<(u32, f32)>,
    /// Tokens after which the engine stops. Empty: none.
    pub stop_token_ids: Vec<u32>,
    /// -1: none.
    pub logprobs: i32,
    pub cache_salt: String,
    /// Number of ids that the mask allows, if there is one.
    pub width: Option<usize>,
}

/// A token that an engine drew.
#[derive(Debug, Clone, PartialEq)]
pub struct DrawnId {
    pub id: u32,
    pub logprob: Option<TokenLogprob>,
}

/// How a request ended.
#[derive(Debug, Clone, PartialEq)]
pub enum DrawEnd {
    /// It has all tokens that were asked for.
    Length,
    /// At a stop token, which may be missing among the ids.
    Stop(Option<u32>),
    /// The engine is lost; the sequence can resume on another one.
    Lost(String),
    /// The engine broke its own protocol, or rejected the request: the sequence ends.
    Failed(String),
}
