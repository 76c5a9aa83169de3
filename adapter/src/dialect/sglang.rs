//! SGLang: `/generate` with token ids in and out. Its ids are cumulative, unless it runs with
//! `--incremental-streaming-output`.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{DrawFrame, EXCLUDED_BIAS, EngineFacts, InnerError, Said, logprob, raised};
use crate::draw::{DrawEnd, DrawRequest, DrawnId, EngineTraits};
use crate::limits;

/// Allowed ids that are sent as biases, beside the others.
const ALLOWED: usize = 512;

pub fn traits() -> EngineTraits {
    EngineTraits {
        allow_limit: ALLOWED,
        allow_is_penalized: false,
        bias_limit: limits::MAX_LOGIT_BIAS,
        exclude_first: limits::MAX_LOGIT_BIAS,
        chunk: None,
        counts_generated: true,
        seed_bits: 63,
    }
}

pub fn body(request: &DrawRequest, stream: bool) -> Value {
    let sampling = &request.sampling;
    let mut biases: Map<String, Value> =
        raised(request).into_iter().map(|(id, bias)| (id.to_string(), json!(bias))).collect();
    biases.extend(request.exclude.iter().map(|id| (id.to_string(), json!(EXCLUDED_BIAS))));
    let mut params = json!({
        "max_new_tokens": request.max_tokens,
        "min_new_tokens": 0,
        "n": 1,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": if sampling.top_k == 0 { -1 } else { i64::from(sampling.top_k) },
        "min_p": sampling.min_p,
        "repetition_penalty": sampling.repetition_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "sampling_seed": request.seed,
        // It would ignore the stop tokens of the request, too.
        "ignore_eos": false,
        "stop_token_ids": request.stop_token_ids,
        "no_stop_trim": true,
        "skip_special_tokens": false,
    });
    if !biases.is_empty() {
        params["logit_bias"] = biases.into();
    }
    let mut body = json!({"input_ids": request.prompt, "sampling_params": params, "stream": stream});
    if request.logprobs >= 0 {
        body["return_logprob"] = json!(true);
        body["logprob_start_len"] = json!(-1);
        body["top_logprobs_num"] = json!(request.logprobs);
    }
    if !request.cache_salt.is_empty() {
        body["cache_salt"] = json!(request.cache_salt);
        // Older releases know only this name.
        body["extra_key"] = json!(request.cache_salt);
    }
    body
}

#[derive(Deserialize)]
struct Answer<'a> {
    #[serde(default)]
    output_ids: Vec<u32>,
    #[serde(borrow, default)]
    meta_info: Option<Meta<'a>>,
    #[serde(default)]
    error: Option<InnerError>,
}

/// A log-probability, an id and a text.
type Scored = (Option<f32>, u32, Option<String>);

#[derive(Deserialize)]
struct Meta<'a> {
    #[serde(borrow, default)]
    weight_version: Option<Cow<'a, str>>,
    #[serde(default)]
    finish_reason: Option<FinishKind>,
    completion_tokens: usize,
    #[serde(default)]
    cached_tokens: Option<u32>,
    #[serde(default)]
    output_token_logprobs: Option<Vec<Scored>>,
    #[serde(default)]
    output_top_logprobs: Option<Vec<Option<Vec<Scored>>>>,
}

#[derive(Deserialize)]
struct FinishKind {
    r#type: String,
    #[serde(default)]
    matched: Option<Value>,
    #[serde(default)]
    message: String,
    #[serde(default)]
    status_code: Option<u16>,
}

/// `seen`: tokens of the frames before. `said`: what they have said.
pub fn frame(data: &[u8], seen: usize, said: &mut Said) -> Result<DrawFrame, String> {
    let answer: Answer = serde_json::from_slice(data).map_err(|error| error.to_string())?;
    if let Some(error) = answer.error {
        return Ok(DrawFrame { end: Some(error.into_end()), ..DrawFrame::default() });
    }
    let meta = answer.meta_info.ok_or("`meta_info` is missing")?;
    let said = said.news(None, meta.weight_version.as_deref());
    let (total, ids) = (meta.completion_tokens, answer.output_ids);
    let news = total.checked_sub(seen).ok_or_else(|| format!("completion_tokens went from {seen} to {total}"))?;
    // An abort has no ids.
    if ids.len() < news && meta.finish_reason.is_none() {
        return Err(format!("{news} new tokens of {total}, but {} output_ids", ids.len()));
    }
    let last = |count: usize| count.saturating_sub(news);
    let ids = &ids[last(ids.len())..];
    let scored = meta.output_token_logprobs.unwrap_or_default();
    let scored = &scored[last(scored.len())..];
    let tops = meta.output_top_logprobs.unwrap_or_default();
    let tops = &tops[last(tops.len())..];
    let drawn = ids.iter().enumerate().map(|(place, &id)| {
        let logprob = scored.get(place).filter(|scored| scored.1 == id).map(|scored| {
            let top = tops.get(place).cloned().flatten().unwrap_or_default();
            logprob(id, scored.0, top.into_iter().filter_map(|(value, id, _)| Some((id, value?))))
        });
        DrawnId { id, logprob }
    });
    let end = meta.finish_reason.map(|finish| match finish.r#type.as_str() {
        "length" => DrawEnd::Length,
        "stop" => DrawEnd::Stop(finish.matched.and_then(|id| u32::try_from(id.as_u64()?).ok())),
        _ => match finish.status_code {
            Some(400) => DrawEnd::Failed(format!("the engine rejected the request: {}", finish.message)),
            _ => DrawEnd::Lost(format!("the engine ended the request with {:?}: {}", finish.r#type, finish.message)),
        },
    });
    Ok(DrawFrame { drawn: drawn.collect(), cached_tokens: meta.cached_tokens, end, said })
}

pub fn facts(facts: EngineFacts, info: &Value) -> EngineFacts {
    let number = |name: &str| info.get(name).and_then(Value::as_u64).and_then(|number| u32::try_from(number).ok());
    let (block_size, tokens) = (number("page_size"), number("max_total_num_tokens"));
    EngineFacts {
        version: info.get("version").and_then(Value::as_str).map(str::to_owned),
        context: facts.context.or(number("context_length").map(|context| context as usize)),
        blocks: tokens.map(|tokens| tokens / block_size.unwrap_or(1).max(1)),
        block_size,
        slots: number("max_running_requests"),
        prefix_cache: info.get("disable_radix_cache").and_then(Value::as_bool).map(|disabled| !disabled),
        ..facts
    }
}
