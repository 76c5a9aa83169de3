//! The OpenAI API's JSON: decodes requests into jobs and encodes events. It must not know status codes or do I/O.

mod chat;
mod chunks;
mod collect;
mod completion;
mod embedding;
mod reasoning;
mod refused;
mod text;
mod wire;

use rein_proto::v1;
pub use rein_text::fields::ParsedBody;
use rein_text::{
    InvalidRequest,
    fields::{self, Fields},
};
use serde_json::Value;

use crate::{
    error::Error,
    limits,
    request::job::{ExactValues, Generation, Truncation, range},
};
pub use chat::{ChatRequest, chat, encode as encode_chat};
pub use chunks::Chunks;
pub use collect::{chat_body, completion_body};
pub use completion::{CompletionRequest, completion, encode as encode_completion};
pub use embedding::{EmbeddingRequest, embedding, embedding_body};
pub(super) use reasoning::{ReasoningFields, read as read_reasoning};
pub(crate) use refused::{EVERYWHERE, IN_CONVERSATIONS};
#[cfg(test)]
pub(crate) use refused::{IN_CHATS, IN_COMPLETIONS, IN_EMBEDDINGS};
pub use text::{
    Detokenize, LoadLora, Tokenize, TokenizeInput, UnloadLora, detokenize, detokenized, load_lora, rendered, tokenize,
    tokenized, unload_lora,
};
pub(super) use wire::finite;
pub use wire::{aliased, expected_model, model, models};
#[cfg(test)]
pub use {
    chat::asked as asked_by_chat, completion::asked as asked_by_completion, embedding::asked as asked_by_embedding,
};

/// How the answer is delivered to the client.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DeliveryOptions {
    pub stream: bool,
    pub include_usage: bool,
    /// Every chunk has the usage so far.
    pub continuous_usage: bool,
    /// The reasoning is generated but not sent.
    pub hide_reasoning: bool,
}

/// The fields of a body. The error has the offset of invalid UTF-8 or JSON.
pub fn body(bytes: &[u8]) -> Result<Fields<'_>, InvalidRequest> {
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let message = format!("the body must be UTF-8: the byte at offset {} is invalid", error.valid_up_to());
        InvalidRequest::new("invalid_utf8", message)
    })?;
    Fields::of(text)
}

/// The conversation with exact numbers. None: it has no number that needs them.
fn exact(fields: &mut Fields) -> Option<Box<ExactValues>> {
    let (messages, documents) = (fields.exact_array("messages"), fields.exact_array("documents"));
    let template_kwargs = match fields.exact("chat_template_kwargs") {
        Some(Value::Object(map)) => Some(map),
        _ => None,
    };
    let same = messages.is_none() && documents.is_none() && template_kwargs.is_none();
    (!same).then(|| Box::new(ExactValues { messages, documents, template_kwargs }))
}

/// The session, for routing: `prompt_cache_key`, else `user`.
fn session(cache_key: Option<String>, user: Option<String>) -> Option<String> {
    [cache_key, user].into_iter().flatten().find(|key| !key.is_empty())
}

/// Fields of OpenAI's API, and of similar APIs, that cannot change the result. They are accepted and dropped.
const WITHOUT_EFFECT: [&str; 7] =
    ["metadata", "store", "service_tier", "safety_identifier", "prompt_cache_retention", "prediction", "request_id"];

/// Decodes the fields that all generating endpoints share.
pub(super) fn common(fields: &mut Fields) -> Result<(Generation, DeliveryOptions), Error> {
    for name in WITHOUT_EFFECT {
        fields.take(name);
    }
    fields.refuse(refused::EVERYWHERE)?;
    let completion_limit = fields.integer("max_completion_tokens", 1..=u32::MAX)?;
    let limit = fields.integer("max_tokens", 0..=u32::MAX)?;
    let generation = Generation {
        sampling: sampling(fields)?,
        limits: v1::Limits {
            max_tokens: completion_limit.or(limit),
            min_tokens: fields.integer("min_tokens", 0..=u32::MAX)?,
            stop: stop(fields)?,
            stop_token_ids: fields.ids("stop_token_ids")?.unwrap_or_default(),
            ignore_eos: fields.bool("ignore_eos")?.unwrap_or(false),
            include_stop: include_stop(fields)?,
        },
        n: fields.integer("n", 1..=limits::CHOICES)?,
        logprobs: None,
        prompt_logprobs: fields.integer("prompt_logprobs", 0..=limits::TOP_LOGPROBS)?,
        return_token_ids: fields.bool("return_token_ids")?.unwrap_or(false),
        cache_salt: fields.string("cache_salt")?,
        script: fields.ids("script")?.unwrap_or_default(),
        max_tokens_param: completion_limit.map(|_| "max_completion_tokens"),
        return_grammar: false,
        return_decisions: false,
        priority: fields.signed("priority")?,
        thinking_token_budget: None,
        finish_structured: fields.bool("finish_structured")?.unwrap_or(false),
        truncate_prompt_tokens: truncation(fields)?,
        session: session(fields.string("prompt_cache_key")?, fields.string("user")?),
        fit_max_tokens: false,
        report_prompt: false,
    };
    let best_of = fields.integer("best_of", 1..=u32::MAX)?;
    // Only values that discard no choice are supported.
    if best_of.is_some_and(|best_of| best_of != 1 && best_of != generation.choices()) {
        let why = "it may only be 1 or equal to 'n', because every generated choice is returned";
        return Err(Error::unsupported("best_of", why));
    }
    let stream = fields.bool("stream")?.unwrap_or(false);
    let (mut include_usage, mut continuous_usage) = (false, false);
    if let Some(mut options) = fields.fields("stream_options")? {
        if !stream {
            return Err(Error::invalid("stream_options", "'stream_options' may only be set when 'stream' is true"));
        }
        include_usage = options.bool("include_usage")?.unwrap_or(false);
        // Padding against traffic analysis is accepted but not sent.
        options.bool("include_obfuscation")?;
        continuous_usage = options.bool("continuous_usage_stats")?.unwrap_or(false);
        fields.add_ignored(options);
    }
    // OpenRouter's name. Answers that are not streamed always have the usage.
    if let Some(mut usage) = fields.fields("usage")? {
        include_usage |= usage.bool("include")?.unwrap_or(false);
        fields.add_ignored(usage);
    }
    let hide_reasoning = fields.bool("include_reasoning")? == Some(false);
    Ok((generation, DeliveryOptions { stream, include_usage, continuous_usage, hide_reasoning }))
}

/// Decodes the fields of sampling, which all APIs share.
pub fn sampling(fields: &mut Fields) -> Result<v1::Sampling, Error> {
    Ok(v1::Sampling {
        temperature: fields.number("temperature", range::TEMPERATURE)?,
        top_p: fields.number("top_p", range::TOP_P)?,
        top_k: top_k(fields)?,
        min_p: fields.number("min_p", range::MIN_P)?,
        repetition_penalty: fields.number("repetition_penalty", range::REPETITION_PENALTY)?,
        presence_penalty: fields.number("presence_penalty", range::PRESENCE_PENALTY)?,
        frequency_penalty: fields.number("frequency_penalty", range::FREQUENCY_PENALTY)?,
        logit_bias: logit_bias(fields)?,
        allowed_token_ids: allowed_token_ids(fields)?,
        bad_words: strings("bad_words", fields.array("bad_words")?.unwrap_or_default())?,
        seed: fields.seed("seed")?,
    })
}

/// As in vLLM, -1 turns it off.
fn top_k(fields: &mut Fields) -> Result<Option<u32>, Error> {
    let Some(value) = fields.take("top_k") else { return Ok(None) };
    match fields::integer(&value) {
        Some(-1) => Ok(Some(0)),
        Some(k) => u32::try_from(k).map(Some).map_err(|_| {
            let message = format!("'top_k' must be between 1 and {}, or 0 or -1 for off, got {value}", u32::MAX);
            Error::invalid("top_k", message)
        }),
        None => Err(Error::wrong_type("top_k", "an integer", &value)),
    }
}

/// Empty: all tokens are allowed.
fn allowed_token_ids(fields: &mut Fields) -> Result<Vec<u32>, Error> {
    match fields.ids("allowed_token_ids")? {
        Some(ids) if ids.is_empty() => {
            Err(Error::invalid("allowed_token_ids", "'allowed_token_ids' must have at least one token id, got none"))
        }
        ids => Ok(ids.unwrap_or_default()),
    }
}

/// How many tokens of the prompt's end to keep. As in vLLM, -1 fits the prompt to the context.
pub fn truncation(fields: &mut Fields) -> Result<Option<Truncation>, Error> {
    let Some(value) = fields.take("truncate_prompt_tokens") else { return Ok(None) };
    let number =
        fields::integer(&value).ok_or_else(|| Error::wrong_type("truncate_prompt_tokens", "an integer", &value))?;
    Truncation::new(number).map(Some).ok_or_else(|| Truncation::invalid(value))
}

pub fn strings(name: &str, items: Vec<Value>) -> Result<Vec<String>, Error> {
    let string = |(i, item)| match item {
        Value::String(text) => Ok(text),
        other => Err(Error::wrong_type(&format!("{name}[{i}]"), "a string", &other)),
    };
    items.into_iter().enumerate().map(string).collect()
}

fn stop(fields: &mut Fields) -> Result<Vec<String>, Error> {
    match fields.take("stop") {
        None => Ok(Vec::new()),
        Some(Value::String(stop)) => Ok(vec![stop]),
        Some(Value::Array(items)) => strings("stop", items),
        Some(other) => Err(Error::wrong_type("stop", "a string or an array of strings", &other)),
    }
}

/// vLLM's or SGLang's name of the field.
fn include_stop(fields: &mut Fields) -> Result<bool, Error> {
    let (include, keep) = (fields.bool("include_stop_str_in_output")?, fields.bool("no_stop_trim")?);
    Ok(include.or(keep).unwrap_or(false))
}

fn logit_bias(fields: &mut Fields) -> Result<std::collections::HashMap<u32, f32>, Error> {
    let bias = |(token, bias): (String, Value)| {
        let at = format!("logit_bias.{token}");
        let id = token.parse().map_err(|_| {
            Error::invalid(&*at, format!("'logit_bias' must map token ids to numbers, got the key '{token}'"))
        })?;
        Ok((id, fields::number(&at, &bias, range::LOGIT_BIAS)?))
    };
    fields.object("logit_bias")?.unwrap_or_default().into_iter().map(bias).collect()
}

/// Every field that `read` reads of a body, for tests of the documentation.
#[cfg(test)]
pub fn names_read<T>(body: &Value, read: impl FnOnce(&mut Fields) -> Result<T, Error>) -> Vec<&'static str> {
    let text = body.to_string();
    let mut fields = Fields::of(&text).unwrap();
    read(&mut fields).unwrap_or_else(|error| panic!("{error}"));
    fields.read_names().to_vec()
}
