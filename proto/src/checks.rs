//! Validates what a router sends for a sequence, before it reaches an engine. It does not know the engine's state.

use crate::internal::{Limits, Sampling, Start, Steer};

/// What a sequence of an engine may ask for.
#[derive(Debug, Clone)]
pub struct StartBounds {
    pub vocab_size: usize,
    /// Prompt and generated tokens together.
    pub context: usize,
    /// The engine only computes embeddings.
    pub embeds: bool,
    /// The engine emits the tokens of a script.
    pub scripted: bool,
    pub most_logit_bias: usize,
    pub most_stop_tokens: usize,
    pub most_request_id_bytes: usize,
    pub most_cache_salt_bytes: usize,
    pub most_logprobs: i32,
}

/// A Start, or another request, that no engine of this shape can serve.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field} {problem}")]
pub struct InvalidStart {
    pub field: &'static str,
    pub problem: String,
}

/// A Steer that breaks the protocol. It ends its own sequence.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SteerError {
    #[error("steer.epoch: must be above {current}, got {epoch}")]
    Epoch { epoch: u64, current: u64 },
    #[error("steer.keep: must be at most {generated}, the number of generated tokens, got {keep}")]
    Keep { keep: u32, generated: usize },
    #[error("steer.append: tokens must be below the vocabulary size {vocab_size}, got {token}")]
    Append { token: u32, vocab_size: usize },
    #[error("steer.mask: must have {want} bytes for a vocabulary of {vocab_size}, got {len}")]
    Mask { len: usize, want: usize, vocab_size: usize },
}

/// Checks that every field is in range.
pub fn start(start: &Start, bounds: &StartBounds) -> Result<(), InvalidStart> {
    let (len, context) = (start.prompt.len() + start.resume.len(), bounds.context);
    short("request_id", &start.request_id, bounds.most_request_id_bytes)?;
    require("prompt", !start.prompt.is_empty(), || "must have at least one token".into())?;
    check_task(start, bounds.embeds)?;
    // A prompt may be held and scored, or embedded, without drawing a token after it.
    let alone = start.hold || start.embed;
    let drawn = if alone { "" } else { ", including at least one generated token" };
    require("prompt", start.prompt.len() < context + usize::from(alone), || {
        format!("must fit the context of {context} tokens{drawn}, got {} tokens", start.prompt.len())
    })?;
    require("resume", len <= context, || format!("and prompt together must have at most {context} tokens, got {len}"))?;
    vocabulary("prompt", &start.prompt, bounds)?;
    vocabulary("resume", &start.resume, bounds)?;
    let sampling = start.sampling.as_ref().ok_or_else(|| missing("sampling"))?;
    let limits = start.limits.as_ref().ok_or_else(|| missing("limits"))?;
    check_sampling(sampling, bounds)?;
    check_limits(limits, start, bounds)?;
    short("cache_salt", &start.cache_salt, bounds.most_cache_salt_bytes)?;
    for (field, count) in [("logprobs", start.logprobs), ("prompt_logprobs", start.prompt_logprobs)] {
        let max = bounds.most_logprobs;
        require(field, (-1..=max).contains(&count), || format!("must be -1 (none) or from 0 to {max}, got {count}"))?;
    }
    require("script", start.script.is_empty() || bounds.scripted, || {
        "must be empty: only the sim engine supports it".into()
    })?;
    require("script", start.script.len() <= context, || {
        format!("must have at most {context} tokens, got {}", start.script.len())
    })?;
    vocabulary("script", &start.script, bounds)
}

/// Checks a whole Steer of a sequence with this epoch and number of generated tokens, before anything changes.
pub fn steer(steer: &Steer, epoch: u64, generated: usize, vocab_size: usize) -> Result<(), SteerError> {
    if steer.epoch <= epoch {
        return Err(SteerError::Epoch { epoch: steer.epoch, current: epoch });
    }
    if steer.keep as usize > generated {
        return Err(SteerError::Keep { keep: steer.keep, generated });
    }
    if let Some(&token) = steer.append.iter().find(|&&token| token as usize >= vocab_size) {
        return Err(SteerError::Append { token, vocab_size });
    }
    let want = vocab_size.div_ceil(8);
    match &steer.mask {
        Some(mask) if mask.len() != want => Err(SteerError::Mask { len: mask.len(), want, vocab_size }),
        _ => Ok(()),
    }
}

fn check_task(start: &Start, embeds: bool) -> Result<(), InvalidStart> {
    require("embed", start.embed == embeds, || match embeds {
        true => "must be true: this engine computes embeddings and generates nothing".into(),
        false => "must be false: this engine generates; `--task embed` starts one for embeddings".into(),
    })?;
    let generates = !start.resume.is_empty() || start.hold || start.finish_is_proposal || start.prompt_logprobs >= 0;
    require("embed", !(start.embed && generates), || {
        "must be false with resume, hold, finish_is_proposal or prompt_logprobs".into()
    })
}

fn check_sampling(sampling: &Sampling, bounds: &StartBounds) -> Result<(), InvalidStart> {
    let number = |field, value: f32, ok: bool, range: &str| {
        require(field, value.is_finite() && ok, || format!("must be {range}, got {value}"))
    };
    number("sampling.temperature", sampling.temperature, sampling.temperature >= 0.0, "at least 0")?;
    number("sampling.top_p", sampling.top_p, sampling.top_p > 0.0 && sampling.top_p <= 1.0, "above 0 and at most 1")?;
    number("sampling.min_p", sampling.min_p, (0.0..=1.0).contains(&sampling.min_p), "from 0 to 1")?;
    let repetition = sampling.repetition_penalty;
    number("sampling.repetition_penalty", repetition, repetition > 0.0, "above 0")?;
    number("sampling.presence_penalty", sampling.presence_penalty, true, "finite")?;
    number("sampling.frequency_penalty", sampling.frequency_penalty, true, "finite")?;
    let (count, max) = (sampling.logit_bias.len(), bounds.most_logit_bias);
    require("sampling.logit_bias", count <= max, || format!("must have at most {max} entries, got {count}"))?;
    for bias in &sampling.logit_bias {
        vocabulary("sampling.logit_bias", &[bias.token], bounds)?;
        number("sampling.logit_bias", bias.bias, true, "finite")?;
    }
    Ok(())
}

fn check_limits(limits: &Limits, start: &Start, bounds: &StartBounds) -> Result<(), InvalidStart> {
    require("limits.max_tokens", limits.max_tokens >= 1, || "must be at least 1, got 0".into())?;
    require("resume", start.resume.len() <= limits.max_tokens as usize, || {
        format!("must have at most limits.max_tokens = {} tokens, got {}", limits.max_tokens, start.resume.len())
    })?;
    require("limits.min_tokens", limits.min_tokens <= limits.max_tokens, || {
        format!("must be at most limits.max_tokens = {}, got {}", limits.max_tokens, limits.min_tokens)
    })?;
    let (count, max) = (limits.stop_token_ids.len(), bounds.most_stop_tokens);
    require("limits.stop_token_ids", count <= max, || format!("must have at most {max} tokens, got {count}"))?;
    vocabulary("limits.stop_token_ids", &limits.stop_token_ids, bounds)
}

pub fn require(field: &'static str, ok: bool, problem: impl FnOnce() -> String) -> Result<(), InvalidStart> {
    if ok { Ok(()) } else { Err(InvalidStart { field, problem: problem() }) }
}

fn missing(field: &'static str) -> InvalidStart {
    InvalidStart { field, problem: "must be set".into() }
}

fn short(field: &'static str, value: &str, max: usize) -> Result<(), InvalidStart> {
    require(field, value.len() <= max, || format!("must have at most {max} bytes, got {}", value.len()))
}

fn vocabulary(field: &'static str, tokens: &[u32], bounds: &StartBounds) -> Result<(), InvalidStart> {
    let size = bounds.vocab_size;
    match tokens.iter().find(|&&token| token as usize >= size) {
        None => Ok(()),
        Some(token) => Err(InvalidStart {
            field,
            problem: format!("must have token ids below {size}, the size of the vocabulary, got {token}"),
        }),
    }
}
