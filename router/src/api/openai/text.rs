//! `/tokenize`, `/detokenize`, render and LoRA adapters: decodes requests and encodes answers, in vLLM's format.

use rein_proto::internal::LoadLoraRequest;
use rein_text::fields::{ParsedBody, shared::SharedField};
use rein_text::model_text::RenderedPrompt;
use rein_text::tools::ToolSet;
use serde::Serialize;
use serde_json::Value;

use super::chat;
use crate::{
    error::Error,
    request::{job::ChatJob, model::ServedModel},
};

pub struct Tokenize {
    pub input: TokenizeInput,
    pub model: Option<String>,
    /// Return the text of each token.
    pub return_token_strs: bool,
}

pub enum TokenizeInput {
    Text { prompt: String, add_special_tokens: bool },
    Chat(Box<ChatJob>),
}

pub struct Detokenize {
    pub model: Option<String>,
    pub tokens: Vec<u32>,
}

/// Decodes a `prompt`, or `messages` with the other fields from which a chat is rendered.
pub fn tokenize(body: &[u8], known: &SharedField<ToolSet>) -> Result<ParsedBody<Tokenize>, Error> {
    super::body(body)?.read(|fields| {
        let return_token_strs = fields.bool("return_token_strs")?.unwrap_or(false);
        let (model, input) = match fields.string("prompt")? {
            Some(prompt) => {
                let add_special_tokens = fields.bool("add_special_tokens")?.unwrap_or(true);
                (fields.string("model")?, TokenizeInput::Text { prompt, add_special_tokens })
            }
            None => {
                fields.require(
                    "add_special_tokens",
                    |value| *value == Value::Bool(false),
                    "the template writes them",
                )?;
                let (mut job, _) = chat::conversation(fields, known).map_err(|error| match error.param.as_deref() {
                    Some("messages") if error.code == Some("missing_required_parameter") => {
                        Error::missing("prompt", "either 'prompt' or 'messages'")
                    }
                    _ => error,
                })?;
                job.exact = super::exact(fields);
                (job.model.clone(), TokenizeInput::Chat(Box::new(job)))
            }
        };
        Ok(Tokenize { input, model, return_token_strs })
    })
}

pub fn detokenize(body: &[u8]) -> Result<ParsedBody<Detokenize>, Error> {
    super::body(body)?.read(|fields| {
        let model = fields.string("model")?;
        let tokens = fields.ids("tokens")?.ok_or_else(|| Error::missing("tokens", "an array of token ids"))?;
        Ok(Detokenize { model, tokens })
    })
}

pub struct LoadLora {
    pub request: LoadLoraRequest,
    /// The model that it is for.
    pub model: Option<String>,
}

pub struct UnloadLora {
    pub name: String,
}

pub fn load_lora(body: &[u8]) -> Result<ParsedBody<LoadLora>, Error> {
    super::body(body)?.read(|fields| {
        let name = fields.string("lora_name")?.ok_or_else(|| Error::missing("lora_name", "the adapter's name"))?;
        let path = fields.string("lora_path")?.unwrap_or_default();
        let replace = fields.bool("load_inplace")?.unwrap_or(false);
        Ok(LoadLora { request: LoadLoraRequest { name, path, replace }, model: fields.string("model")? })
    })
}

pub fn unload_lora(body: &[u8]) -> Result<ParsedBody<UnloadLora>, Error> {
    super::body(body)?.read(|fields| {
        let name = fields.string("lora_name")?.ok_or_else(|| Error::missing("lora_name", "the adapter's name"))?;
        Ok(UnloadLora { name })
    })
}

#[derive(Serialize)]
struct Tokenized<'a> {
    count: usize,
    max_model_len: u32,
    token_strs: Option<Vec<String>>,
    tokens: &'a [u32],
}

#[derive(Serialize)]
struct RenderedBody<'a> {
    model: &'a str,
    prompt: &'a str,
    count: usize,
    token_ids: &'a [u32],
}

#[derive(Serialize)]
struct Detokenized<'a> {
    prompt: &'a str,
}

/// The answer of `/tokenize`.
pub fn tokenized(model: &ServedModel, tokens: &[u32], context: u32, texts: bool) -> Vec<u8> {
    let text = |&id: &u32| String::from_utf8_lossy(&model.token_bytes(id)).into_owned();
    let token_strs = texts.then(|| tokens.iter().map(text).collect());
    crate::api::to_json(&Tokenized { count: tokens.len(), max_model_len: context, token_strs, tokens })
}

/// The answer of the render endpoint.
pub fn rendered(model: &str, rendered: &RenderedPrompt) -> Vec<u8> {
    let RenderedPrompt { prompt, ids } = rendered;
    crate::api::to_json(&RenderedBody { model, prompt, count: ids.len(), token_ids: ids })
}

/// The answer of `/detokenize`.
pub fn detokenized(text: &[u8]) -> Vec<u8> {
    crate::api::to_json(&Detokenized { prompt: &String::from_utf8_lossy(text) })
}
