//! `rein render`: renders conversations to prompts and token ids, with JSON lines as input and output. It needs no
//! server. Use it to compare prompts and tokens with another implementation.
//!
//! An input line is one of
//!
//! - a conversation: `{"messages", "tools", "documents", "chat_template_kwargs", "add_generation_prompt",
//!   "continue_final_message", "raw", "call_ids"}` gives `{"prompt", "token_ids"}`; as at the endpoints, past calls get
//!   the ids that the model's format writes, unless `raw` is true or `call_ids` false;
//! - `{"text"}`, which gives `{"token_ids"}`;
//! - `{"token_ids"}`, which gives `{"text"}`.
//!
//! An invalid line gives `{"error"}`, and the next line is read.

use std::error::Error;
use std::path::Path;

use rein_grammar::{Format, ModelDirFacts, PLAIN};
use rein_text::call_ids;
use rein_text::model_text::{ModelOverrides, TextError, special_tokens};
use rein_text::template::{ChatTemplate, RenderInput, Sources, TemplateOptions, lossless};
use rein_text::tokenize::{Encode, TokenizeError, Tokenizer, read_json};
use rein_text::tools::ToolSet;
use serde_json::{Map, Value as Json, json};

use super::lines::{answer_lines, flag, token_id};
use crate::args::RenderArgs;

pub fn run(args: &RenderArgs) -> Result<(), Box<dyn Error>> {
    let overrides = ModelOverrides {
        template: args.template.clone(),
        tokenizer: args.tokenizer.clone(),
        ..ModelOverrides::from_env()?
    };
    let source = match &args.model {
        Some(dir) => {
            crate::model_dir::check(dir)?;
            RenderSource::model(dir, &overrides)?
        }
        None => RenderSource::parts(&overrides)?,
    };
    answer_lines(std::io::stdin().lock(), std::io::stdout().lock(), |line| source.answer(line))?;
    Ok(())
}

/// The template and the tokenizer; each may be missing.
#[derive(Debug)]
pub struct RenderSource {
    template: Option<ChatTemplate>,
    tokenizer: Option<Tokenizer>,
    /// In the model's format, ids of past calls are renamed as the endpoints do it.
    format: &'static Format,
}

impl RenderSource {
    /// Uses the template and tokenizer of a model directory. Does not read weights or `config.json`.
    pub fn model(dir: &Path, overrides: &ModelOverrides) -> Result<Self, TextError> {
        Self::open(Some(dir), overrides)
    }

    /// Uses `overrides.template` and `overrides.tokenizer` without a model directory.
    pub fn parts(overrides: &ModelOverrides) -> Result<Self, TextError> {
        Self::open(None, overrides)
    }

    fn open(dir: Option<&Path>, overrides: &ModelOverrides) -> Result<Self, TextError> {
        let tokenizer_dir = overrides.tokenizer.as_deref().or(dir);
        let (tokenizer, config, special_tokens) = match tokenizer_dir {
            Some(dir) => {
                let config = read_json(&dir.join("tokenizer_config.json"))?;
                let special_tokens = special_tokens(dir, &config)?;
                (Some(Tokenizer::load(dir)?), config, special_tokens)
            }
            None => (None, Json::Null, Map::new()),
        };
        let sources = match (&overrides.template, dir) {
            (Some(path), _) => Sources::from_file(path)?,
            (None, Some(dir)) => Sources::from_model(dir, &config)?,
            (None, None) => Sources::default(),
        };
        let options = TemplateOptions { now: overrides.now, special_tokens, ..TemplateOptions::default() };
        let template = match sources.templates.is_empty() {
            true => None,
            false => Some(ChatTemplate::from_sources(sources, options)?),
        };
        let special = |name: &str| tokenizer.as_ref().is_some_and(|tokenizer| tokenizer.special_id(name).is_some());
        let source = template.as_ref().map(ChatTemplate::tool_source);
        let facts = ModelDirFacts { template: source, architecture: None, special: &special };
        let format = rein_grammar::detect(&facts).unwrap_or(PLAIN);
        Ok(RenderSource { template, tokenizer, format })
    }

    /// Answers one input line.
    pub fn answer(&self, line: &str) -> Json {
        self.try_answer(line).unwrap_or_else(|error| json!({ "error": error }))
    }

    fn try_answer(&self, line: &str) -> Result<Json, String> {
        let request = lossless::from_str(line).map_err(|e| format!("not JSON: {e}"))?;
        let request = request.as_object().ok_or("a line must be a JSON object")?;
        if let Some(text) = request.get("text") {
            let text = text.as_str().ok_or("text must be a string")?;
            let how = Encode {
                add_special_tokens: flag(request, "add_special_tokens")?.unwrap_or(false),
                parse_special: flag(request, "parse_special")?.unwrap_or(true),
            };
            return Ok(json!({ "token_ids": self.tokenizer()?.encode(text, how).map_err(|e| e.to_string())? }));
        }
        if let Some(ids) = request.get("token_ids").or_else(|| request.get("ids")) {
            let tokenizer = self.tokenizer()?;
            let ids = ids.as_array().ok_or("token_ids must be a list of token ids")?;
            let ids = ids.iter().map(|id| token_id(id, tokenizer)).collect::<Result<Vec<_>, _>>()?;
            return Ok(json!({ "text": String::from_utf8_lossy(&tokenizer.decode(&ids)) }));
        }
        let mut input = render_input(request)?;
        if !input.raw && flag(request, "call_ids")?.unwrap_or(true) {
            call_ids::assign_native_ids(&mut input.messages, |name, index| self.format.native_id(name, index));
        }
        let template =
            self.template.as_ref().ok_or("no chat template; set --template, or --model to a model that has one")?;
        let prompt = template.render(&input).map_err(|e| e.to_string())?;
        let ids: Option<Result<_, TokenizeError>> =
            self.tokenizer.as_ref().map(|tokenizer| tokenizer.encode(&prompt, Encode::TEMPLATED));
        let mut answer = Map::new();
        answer.insert("prompt".into(), Json::from(prompt));
        if let Some(ids) = ids {
            answer.insert("token_ids".into(), Json::from(ids.map_err(|e| e.to_string())?));
        }
        Ok(Json::Object(answer))
    }

    fn tokenizer(&self) -> Result<&Tokenizer, String> {
        self.tokenizer.as_ref().ok_or_else(|| "no tokenizer; set --model or --tokenizer".into())
    }
}

fn render_input(request: &Map<String, Json>) -> Result<RenderInput, String> {
    let list = |name: &str| match request.get(name) {
        None | Some(Json::Null) => Ok(None),
        Some(Json::Array(items)) => Ok(Some(items.clone())),
        Some(_) => Err(format!("{name} must be a list")),
    };
    let continue_final_message = flag(request, "continue_final_message")?.unwrap_or(false);
    Ok(RenderInput {
        messages: list("messages")?.ok_or("a line needs messages, text or token_ids")?,
        tools: list("tools")?.map(ToolSet::from),
        documents: list("documents")?,
        add_generation_prompt: flag(request, "add_generation_prompt")?.unwrap_or(!continue_final_message),
        continue_final_message,
        kwargs: match request.get("chat_template_kwargs") {
            None | Some(Json::Null) => Map::new(),
            Some(Json::Object(kwargs)) => kwargs.clone(),
            Some(_) => return Err("chat_template_kwargs must be an object".into()),
        },
        raw: flag(request, "raw")?.unwrap_or(false),
        ..RenderInput::default()
    })
}

#[cfg(test)]
mod tests;
