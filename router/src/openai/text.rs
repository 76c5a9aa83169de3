//! `/tokenize` and `/detokenize`, in vLLM's shapes.

use serde_json::Value;

use super::{Body, chat, fields::Fields};
use crate::{error::Error, job::ChatJob};

pub struct Tokenize {
    pub input: TokenizeInput,
    pub model: Option<String>,
    /// Report the tokens' texts too.
    pub return_token_strs: bool,
    pub ignored: Vec<String>,
}

pub enum TokenizeInput {
    Text { prompt: String, add_special_tokens: bool },
    Chat(Box<ChatJob>),
}

pub struct Detokenize {
    pub model: Option<String>,
    pub tokens: Vec<u32>,
    pub ignored: Vec<String>,
}

/// A `prompt`, or `messages` and what else a chat is rendered from.
pub fn tokenize(mut body: Body<'_>) -> Result<Tokenize, Error> {
    let mut fields = Fields::new(body.value.take())?;
    let return_token_strs = fields.bool("return_token_strs")?.unwrap_or(false);
    let (model, input) = match fields.string("prompt")? {
        Some(prompt) => {
            let add_special_tokens = fields.bool("add_special_tokens")?.unwrap_or(true);
            (fields.string("model")?, TokenizeInput::Text { prompt, add_special_tokens })
        }
        None => {
            fields.only("add_special_tokens", |value| *value == Value::Bool(false), "the template writes them")?;
            let (mut job, _) = chat::conversation(&mut fields).map_err(|error| match error.param.as_deref() {
                Some("messages") if error.code == Some("missing_required_parameter") => {
                    Error::missing("prompt", "either 'prompt' or 'messages'")
                }
                _ => error,
            })?;
            job.exact = body.exact(&job);
            (job.model.clone(), TokenizeInput::Chat(Box::new(job)))
        }
    };
    Ok(Tokenize { input, model, return_token_strs, ignored: fields.ignored() })
}

pub fn detokenize(body: Body<'_>) -> Result<Detokenize, Error> {
    let mut fields = Fields::new(body.value)?;
    let model = fields.string("model")?;
    let tokens = fields.ids("tokens")?.ok_or_else(|| Error::missing("tokens", "an array of token ids"))?;
    Ok(Detokenize { model, tokens, ignored: fields.ignored() })
}
