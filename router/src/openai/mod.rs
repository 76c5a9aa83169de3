//! The OpenAI API's JSON: decoded into jobs, encoded from events. No status codes and no I/O.

mod chat;
mod completion;
pub(crate) mod constraints;
pub(crate) mod fields;
mod fold;
mod text;
mod wire;

use rein_proto::v1;
use serde_json::{Map, Value};

use crate::{
    error::{Error, Kind},
    job::{ChatJob, Exact, Generation},
    template::lossless,
};
use fields::Fields;

pub use chat::{ChatRequest, chat, encode as encode_chat};
pub use completion::{CompletionRequest, completion, encode as encode_completion};
pub use fold::{chat_body, completion_body};
pub use text::{Detokenize, Tokenize, TokenizeInput, detokenize, tokenize};
pub use wire::{model, models};
#[cfg(test)]
pub use {chat::asked as asked_by_chat, completion::asked as asked_by_completion};

/// How the client wants its answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Delivery {
    pub stream: bool,
    pub include_usage: bool,
    /// The reasoning is generated and not sent.
    pub hide_reasoning: bool,
}

/// A request body: JSON, and its text for what JSON values cannot hold.
pub struct Body<'a> {
    text: &'a str,
    value: Value,
}

impl<'a> Body<'a> {
    /// Says where a body is broken.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Error> {
        let text = std::str::from_utf8(bytes).map_err(|error| {
            let message = format!("the body is not valid UTF-8: the byte at offset {} is wrong", error.valid_up_to());
            Error { code: Some("invalid_utf8"), ..Error::new(Kind::Invalid, message) }
        })?;
        let value = serde_json::from_str(text).map_err(|error| {
            let message = format!("the body is not valid JSON: {error}");
            Error { code: Some("invalid_json"), ..Error::new(Kind::Invalid, message) }
        })?;
        Ok(Body { text, value })
    }

    /// Numbers of the conversation as they are spelled, if that makes a difference to a template.
    fn exact(&self, job: &ChatJob) -> Option<Box<Exact>> {
        let mut exact = lossless::from_str(self.text).ok()?;
        let mut list = |name: &str| match exact.get_mut(name).map(Value::take) {
            Some(Value::Array(items)) => Some(items),
            _ => None,
        };
        let (messages, tools, documents) = (list("messages")?, list("tools").unwrap_or_default(), list("documents"));
        let template_kwargs = match exact.get_mut("chat_template_kwargs").map(Value::take) {
            Some(Value::Object(map)) => map,
            _ => Map::new(),
        };
        let same = messages == job.messages
            && tools == job.tools
            && documents == job.documents
            && template_kwargs == job.template_kwargs;
        (!same).then(|| Box::new(Exact { messages, tools, documents, template_kwargs }))
    }
}

/// Whatever tells the requests of one user or task from others.
fn session(cache_key: Option<String>, user: Option<String>) -> Option<String> {
    [cache_key, user].into_iter().flatten().find(|key| !key.is_empty())
}

/// Fields of OpenAI's API, and of its relatives, that cannot change the result. They are read and dropped.
const HARMLESS: [&str; 7] =
    ["metadata", "store", "service_tier", "safety_identifier", "prompt_cache_retention", "prediction", "request_id"];

/// Fields of other servers that would change the result, and that this one does not have.
const UNSUPPORTED: [&str; 17] = [
    "use_beam_search",
    "length_penalty",
    "early_stopping",
    "bad_words",
    "allowed_token_ids",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "structural_tag",
    "ebnf",
    "regex",
    "json_schema",
    "logits_processors",
    "truncate_prompt_tokens",
    "kv_transfer_params",
    "lora_path",
];

/// What chat and completions have in common.
fn common(fields: &mut Fields) -> Result<(Generation, Delivery), Error> {
    for name in HARMLESS {
        fields.take(name);
    }
    for name in UNSUPPORTED {
        let default = |value: &Value| match value {
            Value::Bool(on) => !on,
            Value::Array(items) => items.is_empty(),
            Value::Number(number) => name == "length_penalty" && number.as_f64() == Some(1.0),
            _ => false,
        };
        fields.only(name, default, "this server does not have it, and it would change the result")?;
    }
    let completion_limit = fields.integer("max_completion_tokens", 1)?;
    let limit = fields.integer("max_tokens", 0)?;
    let generation = Generation {
        sampling: v1::Sampling {
            temperature: fields.number("temperature")?,
            top_p: fields.number("top_p")?,
            top_k: top_k(fields)?,
            min_p: fields.number("min_p")?,
            repetition_penalty: fields.number("repetition_penalty")?,
            presence_penalty: fields.number("presence_penalty")?,
            frequency_penalty: fields.number("frequency_penalty")?,
            logit_bias: logit_bias(fields)?,
            seed: fields.seed("seed")?,
        },
        limits: v1::Limits {
            max_tokens: completion_limit.or(limit),
            min_tokens: fields.integer("min_tokens", 0)?,
            stop: stop(fields)?,
            stop_token_ids: fields.ids("stop_token_ids")?.unwrap_or_default(),
            ignore_eos: fields.bool("ignore_eos")?.unwrap_or(false),
            include_stop: fields.bool("include_stop_str_in_output")?.unwrap_or(false),
        },
        n: fields.integer("n", 1)?,
        logprobs: None,
        prompt_logprobs: fields.integer("prompt_logprobs", 0)?,
        return_token_ids: fields.bool("return_token_ids")?.unwrap_or(false),
        cache_salt: fields.string("cache_salt")?,
        script: fields.ids("script")?.unwrap_or_default(),
        max_tokens_param: completion_limit.map(|_| "max_completion_tokens"),
        return_grammar: false,
        priority: fields.signed("priority")?,
        session: session(fields.string("prompt_cache_key")?, fields.string("user")?),
    };
    let best_of = fields.integer("best_of", 1)?;
    if best_of.is_some_and(|best_of| best_of != generation.choices()) {
        return Err(Error::unsupported(
            "best_of",
            "no more choices are generated than returned; it may only equal 'n'",
        ));
    }
    let stream = fields.bool("stream")?.unwrap_or(false);
    let mut include_usage = false;
    if let Some(mut options) = fields.fields("stream_options")? {
        if !stream {
            return Err(Error::invalid("stream_options", "'stream_options' may only be set when 'stream' is true"));
        }
        include_usage = options.bool("include_usage")?.unwrap_or(false);
        // Padding against traffic analysis, which we do not send.
        options.bool("include_obfuscation")?;
        options.only(
            "continuous_usage_stats",
            |value| *value == Value::Bool(false),
            "usage comes once, at the end of the stream",
        )?;
        fields.remember(options);
    }
    let hide_reasoning = fields.bool("include_reasoning")? == Some(false);
    Ok((generation, Delivery { stream, include_usage, hide_reasoning }))
}

/// vLLM writes -1 for off.
fn top_k(fields: &mut Fields) -> Result<Option<u32>, Error> {
    Ok(match fields.take("top_k") {
        None => None,
        Some(value) => match value.as_i64() {
            Some(-1) => Some(0),
            Some(k) => Some(u32::try_from(k).map_err(|_| {
                Error::invalid("top_k", format!("'top_k' must be at least 1, or 0 or -1 for off, got {k}"))
            })?),
            None => return Err(Error::wrong_type("top_k", "an integer", &value)),
        },
    })
}

fn stop(fields: &mut Fields) -> Result<Vec<String>, Error> {
    let items = match fields.take("stop") {
        None => return Ok(Vec::new()),
        Some(Value::String(stop)) => return Ok(vec![stop]),
        Some(Value::Array(items)) => items,
        Some(other) => return Err(Error::wrong_type("stop", "a string or an array of strings", &other)),
    };
    let string = |(i, item)| match item {
        Value::String(stop) => Ok(stop),
        other => Err(Error::wrong_type(&format!("stop[{i}]"), "a string", &other)),
    };
    items.into_iter().enumerate().map(string).collect()
}

fn logit_bias(fields: &mut Fields) -> Result<std::collections::HashMap<u32, f32>, Error> {
    let bias = |(token, bias): (String, Value)| {
        let at = format!("logit_bias.{token}");
        let id = token.parse().map_err(|_| {
            Error::invalid(&*at, format!("'logit_bias' must map token ids to numbers, got the key '{token}'"))
        })?;
        match bias.as_f64() {
            Some(bias) => Ok((id, bias as f32)),
            None => Err(Error::wrong_type(&at, "a number", &bias)),
        }
    };
    fields.object("logit_bias")?.unwrap_or_default().into_iter().map(bias).collect()
}
