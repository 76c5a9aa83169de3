//! llama-server: `/completion` with token ids in and out, in chunks that are not streamed: its streams drop the ids of
//! tokens that end inside a UTF-8 character.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::{Value, json};

use super::{DrawFrame, EngineFacts, InnerError, Said, logprob, raised};
use crate::draw::{DrawEnd, DrawRequest, DrawnId, EngineTraits};

/// Allowed ids that are sent as biases. Its grammars have tokens, too, but none that ends inside a UTF-8 character.
const ALLOWED: usize = 1024;
/// Excluded ids of the first request under a wide mask; the second one names all.
const FIRST_EXCLUDED: usize = 1024;
const CHUNK: u32 = 8;

pub fn traits() -> EngineTraits {
    EngineTraits {
        allow_limit: ALLOWED,
        allow_is_penalized: true,
        bias_limit: usize::MAX,
        exclude_first: FIRST_EXCLUDED,
        chunk: Some(CHUNK),
        // It counts the tokens of the prompt, too.
        counts_generated: false,
        seed_bits: 32,
    }
}

pub fn body(request: &DrawRequest) -> Value {
    let sampling = &request.sampling;
    let biases = raised(request).into_iter().map(|(id, bias)| json!([id, bias]));
    let biases: Vec<Value> = biases.chain(request.exclude.iter().map(|id| json!([id, false]))).collect();
    json!({
        "prompt": request.prompt,
        "n_predict": request.max_tokens,
        "stream": false,
        "return_tokens": true,
        // It has no salt: a sequence with one shares nothing.
        "cache_prompt": request.cache_salt.is_empty(),
        "samplers": ["penalties", "temperature", "top_k", "top_p", "min_p"],
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "repeat_penalty": sampling.repetition_penalty,
        // All tokens; not every release knows -1.
        "repeat_last_n": request.prompt.len() + request.max_tokens as usize,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "seed": request.seed,
        "logit_bias": biases,
        // `ignore_eos` would exclude the tokens that end an answer. The ids of the answer are watched instead.
        "ignore_eos": false,
        "stop": [],
        "n_probs": if request.logprobs < 0 { 0 } else { request.logprobs.max(1) },
    })
}

#[derive(Deserialize)]
struct Answer<'a> {
    #[serde(borrow, default)]
    model: Option<Cow<'a, str>>,
    #[serde(default)]
    tokens: Option<Vec<u32>>,
    #[serde(default)]
    stop_type: String,
    #[serde(default)]
    timings: Option<Timings>,
    #[serde(default)]
    completion_probabilities: Vec<Probability>,
    #[serde(default)]
    error: Option<InnerError>,
}

#[derive(Deserialize)]
struct Timings {
    #[serde(default)]
    cache_n: Option<u32>,
}

#[derive(Deserialize)]
struct Probability {
    id: u32,
    #[serde(default)]
    logprob: Option<f32>,
    #[serde(default)]
    top_logprobs: Vec<TopProbability>,
}

#[derive(Deserialize)]
struct TopProbability {
    id: u32,
    logprob: f32,
}

/// `said`: what earlier frames have said.
pub fn frame(data: &[u8], said: &mut Said) -> Result<DrawFrame, String> {
    let answer: Answer = serde_json::from_slice(data).map_err(|error| error.to_string())?;
    if let Some(error) = answer.error {
        return Ok(DrawFrame { end: Some(error.into_end()), ..DrawFrame::default() });
    }
    let said = said.news(answer.model.as_deref(), None);
    let ids = answer.tokens.ok_or("`tokens` is missing")?;
    let end = match answer.stop_type.as_str() {
        "limit" => DrawEnd::Length,
        "eos" | "word" => DrawEnd::Stop(ids.last().copied()),
        other => DrawEnd::Lost(format!("the engine ended the request with stop_type {other:?}")),
    };
    let mut probabilities = answer.completion_probabilities.into_iter();
    let drawn = ids.into_iter().map(|id| {
        let probability = probabilities.next().filter(|probability| probability.id == id);
        let logprob = probability.map(|probability| {
            let top = probability.top_logprobs.into_iter().map(|top| (top.id, top.logprob));
            logprob(id, probability.logprob, top)
        });
        DrawnId { id, logprob }
    });
    let drawn = drawn.collect();
    let cached_tokens = answer.timings.and_then(|timings| timings.cache_n);
    Ok(DrawFrame { drawn, cached_tokens, end: Some(end), said })
}

pub fn facts(facts: EngineFacts, props: &Value) -> EngineFacts {
    let number = |path: &str| props.pointer(path).and_then(Value::as_u64);
    EngineFacts {
        version: props.get("build_info").and_then(Value::as_str).map(str::to_owned),
        context: number("/default_generation_settings/n_ctx").map(|context| context as usize).or(facts.context),
        slots: number("/total_slots").and_then(|slots| u32::try_from(slots).ok()),
        ..facts
    }
}
