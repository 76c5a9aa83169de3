//! Validates requests before they reach the engine. It does not know the engine's state.

use std::time::Duration;

use rein_proto::internal::{EventsRequest, Limits, Sampling, Start};
use rein_proto::packed_ids;

use crate::error::InvalidStart;
use crate::executor::ExecutorShape;
use crate::limits;
use crate::scheduler::context_limit;

/// Moves a packed prompt to `prompt`.
pub fn unpack_prompt(start: &mut Start) -> Result<(), InvalidStart> {
    let packed = std::mem::take(&mut start.packed_prompt);
    if packed.is_empty() {
        return Ok(());
    }
    require("packed_prompt", start.prompt.is_empty(), || "may only be set without prompt".into())?;
    let length = packed.len();
    let wrong = || format!("must have four bytes for each token id, got {length} bytes");
    start.prompt =
        packed_ids::unpack(&packed).ok_or_else(|| InvalidStart { field: "packed_prompt", problem: wrong() })?;
    Ok(())
}

/// Checks that every field is in range for an engine of this shape, which generates or only `embeds`.
pub fn check(start: &Start, shape: &ExecutorShape, embeds: bool) -> Result<(), InvalidStart> {
    let (len, context) = (start.prompt.len() + start.resume.len(), context_limit(shape));
    short("request_id", &start.request_id, limits::MAX_REQUEST_ID_BYTES)?;
    require("prompt", !start.prompt.is_empty(), || "must have at least one token".into())?;
    check_task(start, embeds)?;
    // A prompt may be held and scored, or embedded, without drawing a token after it.
    let alone = start.hold || start.embed;
    let drawn = if alone { "" } else { ", including at least one generated token" };
    require("prompt", start.prompt.len() < context + usize::from(alone), || {
        format!("must fit the context of {context} tokens{drawn}, got {} tokens", start.prompt.len())
    })?;
    require("resume", len <= context, || format!("and prompt together must have at most {context} tokens, got {len}"))?;
    vocabulary("prompt", &start.prompt, shape)?;
    vocabulary("resume", &start.resume, shape)?;
    let sampling = start.sampling.as_ref().ok_or_else(|| missing("sampling"))?;
    let bounds = start.limits.as_ref().ok_or_else(|| missing("limits"))?;
    check_sampling(sampling, shape)?;
    check_limits(bounds, start, shape)?;
    short("cache_salt", &start.cache_salt, limits::MAX_CACHE_SALT_BYTES)?;
    for (field, count) in [("logprobs", start.logprobs), ("prompt_logprobs", start.prompt_logprobs)] {
        let max = limits::MAX_LOGPROBS;
        require(field, (-1..=max).contains(&count), || format!("must be -1 (none) or from 0 to {max}, got {count}"))?;
    }
    require("script", start.script.is_empty() || shape.kind == "sim", || {
        "must be empty: only the sim engine supports it".into()
    })?;
    require("script", start.script.len() <= context, || {
        format!("must have at most {context} tokens, got {}", start.script.len())
    })?;
    vocabulary("script", &start.script, shape)
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

/// The interval at which a listener wants messages.
pub fn interval(request: &EventsRequest) -> Result<Duration, InvalidStart> {
    let interval = Duration::from_millis(request.interval_ms.into());
    let (least, most) = (limits::EVENT_INTERVAL, limits::EVENT_SILENCE);
    require("interval_ms", (least..=most).contains(&interval), || {
        format!("must be from {} to {}, got {}", least.as_millis(), most.as_millis(), request.interval_ms)
    })?;
    Ok(interval)
}

fn check_sampling(sampling: &Sampling, shape: &ExecutorShape) -> Result<(), InvalidStart> {
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
    let (count, max) = (sampling.logit_bias.len(), limits::MAX_LOGIT_BIAS);
    require("sampling.logit_bias", count <= max, || format!("must have at most {max} entries, got {count}"))?;
    for bias in &sampling.logit_bias {
        vocabulary("sampling.logit_bias", &[bias.token], shape)?;
        number("sampling.logit_bias", bias.bias, true, "finite")?;
    }
    Ok(())
}

fn check_limits(bounds: &Limits, start: &Start, shape: &ExecutorShape) -> Result<(), InvalidStart> {
    require("limits.max_tokens", bounds.max_tokens >= 1, || "must be at least 1, got 0".into())?;
    require("resume", start.resume.len() <= bounds.max_tokens as usize, || {
        format!("must have at most limits.max_tokens = {} tokens, got {}", bounds.max_tokens, start.resume.len())
    })?;
    require("limits.min_tokens", bounds.min_tokens <= bounds.max_tokens, || {
        format!("must be at most limits.max_tokens = {}, got {}", bounds.max_tokens, bounds.min_tokens)
    })?;
    let (count, max) = (bounds.stop_token_ids.len(), limits::MAX_STOP_TOKENS);
    require("limits.stop_token_ids", count <= max, || format!("must have at most {max} tokens, got {count}"))?;
    vocabulary("limits.stop_token_ids", &bounds.stop_token_ids, shape)
}

fn require(field: &'static str, ok: bool, problem: impl FnOnce() -> String) -> Result<(), InvalidStart> {
    if ok { Ok(()) } else { Err(InvalidStart { field, problem: problem() }) }
}

fn missing(field: &'static str) -> InvalidStart {
    InvalidStart { field, problem: "must be set".into() }
}

fn short(field: &'static str, value: &str, max: usize) -> Result<(), InvalidStart> {
    require(field, value.len() <= max, || format!("must have at most {max} bytes, got {}", value.len()))
}

fn vocabulary(field: &'static str, tokens: &[u32], shape: &ExecutorShape) -> Result<(), InvalidStart> {
    let size = shape.vocab_size;
    match tokens.iter().find(|&&token| token as usize >= size) {
        None => Ok(()),
        Some(token) => Err(InvalidStart {
            field,
            problem: format!("must have token ids below {size}, the size of the vocabulary, got {token}"),
        }),
    }
}
