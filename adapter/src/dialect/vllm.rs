//! vLLM: `/v1/completions` with token ids in and out.

use std::borrow::Cow;
use std::collections::HashMap;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{DrawFrame, EXCLUDED_BIAS, EngineFacts, InnerError, Said, logprob};
use crate::draw::{DrawEnd, DrawRequest, DrawnId, EngineTraits};
use crate::limits;

/// More allowed ids or biases end a GPU engine with the second model runner (vllm#55164).
const IDS: usize = 1024;

pub fn traits() -> EngineTraits {
    EngineTraits {
        allow_limit: IDS,
        allow_is_penalized: false,
        bias_limit: limits::MAX_LOGIT_BIAS,
        exclude_first: IDS,
        chunk: None,
        counts_generated: true,
        seed_bits: 63,
    }
}

pub fn body(request: &DrawRequest, model: &str, stream: bool) -> Value {
    let sampling = &request.sampling;
    let mut body = json!({
        "model": model,
        "prompt": request.prompt,
        "max_tokens": request.max_tokens,
        "min_tokens": 0,
        "n": 1,
        "echo": false,
        "add_special_tokens": false,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": if sampling.top_k == 0 { -1 } else { i64::from(sampling.top_k) },
        "min_p": sampling.min_p,
        "repetition_penalty": sampling.repetition_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "seed": request.seed,
        "stop": [],
        "stop_token_ids": request.stop_token_ids,
        "ignore_eos": true,
        "skip_special_tokens": false,
        "return_token_ids": true,
        "stream": stream,
    });
    let more = body.as_object_mut().map(|body| body as &mut Map<String, Value>);
    let Some(more) = more else { return body };
    if stream {
        more.insert("stream_options".into(), json!({"include_usage": true}));
    }
    let mut biases: Map<String, Value> = request.bias.iter().map(|(id, bias)| (id.to_string(), json!(bias))).collect();
    biases.extend(request.exclude.iter().map(|id| (id.to_string(), json!(EXCLUDED_BIAS))));
    if !biases.is_empty() {
        more.insert("logit_bias".into(), biases.into());
    }
    if !request.allow.is_empty() {
        more.insert("allowed_token_ids".into(), json!(request.allow));
    }
    if request.logprobs >= 0 {
        more.insert("logprobs".into(), json!(request.logprobs));
        more.insert("return_tokens_as_token_ids".into(), json!(true));
    }
    if !request.cache_salt.is_empty() {
        more.insert("cache_salt".into(), json!(request.cache_salt));
    }
    body
}

#[derive(Deserialize)]
struct Chunk<'a> {
    #[serde(borrow, default)]
    model: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    system_fingerprint: Option<Cow<'a, str>>,
    #[serde(default)]
    choices: Vec<Choice>,
    #[serde(default)]
    usage: Option<Usage>,
    #[serde(default)]
    error: Option<InnerError>,
    /// Releases before 0.10 put an error's fields at the top.
    #[serde(default)]
    object: String,
    #[serde(default)]
    message: String,
}

#[derive(Deserialize)]
struct Choice {
    #[serde(default)]
    token_ids: Option<Vec<u32>>,
    #[serde(default)]
    finish_reason: Option<String>,
    #[serde(default)]
    stop_reason: Option<Value>,
    #[serde(default)]
    logprobs: Option<Logprobs>,
}

#[derive(Deserialize)]
struct Logprobs {
    #[serde(default)]
    token_logprobs: Vec<Option<f32>>,
    #[serde(default)]
    top_logprobs: Vec<Option<HashMap<String, f32>>>,
}

#[derive(Deserialize)]
struct Usage {
    #[serde(default)]
    prompt_tokens_details: Option<PromptDetails>,
}

#[derive(Deserialize)]
struct PromptDetails {
    #[serde(default)]
    cached_tokens: Option<u32>,
}

/// `said`: what earlier frames have said.
pub fn frame(data: &[u8], said: &mut Said) -> Result<DrawFrame, String> {
    let chunk: Chunk = serde_json::from_slice(data).map_err(|error| error.to_string())?;
    if let Some(error) = chunk.error {
        return Ok(DrawFrame { end: Some(error.into_end()), ..DrawFrame::default() });
    }
    if chunk.object == "error" {
        let end = InnerError::Text(chunk.message).into_end();
        return Ok(DrawFrame { end: Some(end), ..DrawFrame::default() });
    }
    let cached_tokens = chunk.usage.and_then(|usage| usage.prompt_tokens_details?.cached_tokens);
    let said = said.news(chunk.model.as_deref(), chunk.system_fingerprint.as_deref());
    let Some(choice) = chunk.choices.into_iter().next() else {
        return Ok(DrawFrame { cached_tokens, said, ..DrawFrame::default() });
    };
    let end = match choice.finish_reason.as_deref() {
        None => None,
        Some("length") => Some(DrawEnd::Length),
        Some("stop") => Some(DrawEnd::Stop(choice.stop_reason.and_then(|id| u32::try_from(id.as_u64()?).ok()))),
        Some(reason) => Some(DrawEnd::Lost(format!("the engine ended the request with {reason:?}"))),
    };
    // The last chunk may have no ids, every other one does.
    let ids = match choice.token_ids {
        Some(ids) => ids,
        None if end.is_some() => Vec::new(),
        None => return Err("`token_ids` is missing; vLLM 0.10.2 or later returns it".into()),
    };
    let logprobs = choice.logprobs;
    let drawn = ids.into_iter().enumerate().map(|(place, id)| {
        let logprob = logprobs.as_ref().map(|logprobs| {
            let top = logprobs.top_logprobs.get(place).cloned().flatten().unwrap_or_default();
            let id_of = |name: &str| name.strip_prefix("token_id:")?.parse::<u32>().ok();
            let top = top.into_iter().filter_map(|(name, value)| Some((id_of(&name)?, value)));
            logprob(id, logprobs.token_logprobs.get(place).copied().flatten(), top)
        });
        DrawnId { id, logprob }
    });
    Ok(DrawFrame { drawn: drawn.collect(), cached_tokens, end, said })
}

pub fn facts(facts: EngineFacts, version: &Value, metrics: Option<&[u8]>) -> EngineFacts {
    let text = metrics.map(String::from_utf8_lossy).unwrap_or_default();
    let cache = text.lines().find(|line| line.starts_with("vllm:cache_config_info{")).unwrap_or_default();
    let label = |name: &str| {
        let start = cache.find(&format!("{name}=\""))? + name.len() + 2;
        cache.get(start..)?.split('"').next()
    };
    let number = |name: &str| label(name).and_then(|value| value.parse().ok());
    EngineFacts {
        version: version.get("version").and_then(Value::as_str).map(str::to_owned),
        block_size: number("block_size"),
        blocks: number("num_gpu_blocks").or_else(|| number("num_cpu_blocks")),
        prefix_cache: label("enable_prefix_caching").map(|value| value == "True"),
        ..facts
    }
}
