//! `rein render`: JSON lines in, JSON lines out, with no server. It is how to compare prompts and tokens with anybody.
//!
//! A line is a conversation `{"messages", "tools", "documents", "chat_template_kwargs", "add_generation_prompt",
//! "continue_final_message", "raw"}`, giving `{"prompt", "token_ids"}`; or `{"text"}`, giving `{"token_ids"}`; or
//! `{"token_ids"}`, giving `{"text"}`. A line that cannot be answered gives `{"error"}`; the next line goes on.

use std::error::Error;
use std::path::Path;

use rein_text::model_text::{ModelOverrides, TextError, special_tokens};
use rein_text::template::{ChatTemplate, RenderInput, Sources, TemplateOptions, lossless};
use rein_text::tokenize::{Encode, TokenizeError, Tokenizer, read_json};
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

/// What to render with.
#[derive(Debug)]
pub struct RenderSource {
    template: Option<ChatTemplate>,
    tokenizer: Option<Tokenizer>,
}

impl RenderSource {
    /// A model directory: its template and its tokenizer. Weights and `config.json` are not needed.
    pub fn model(dir: &Path, overrides: &ModelOverrides) -> Result<Self, TextError> {
        Self::open(Some(dir), overrides)
    }

    /// `overrides.template` and/or `overrides.tokenizer`, without a model.
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
        Ok(RenderSource { template, tokenizer })
    }

    /// Answers one line.
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
        let input = render_input(request)?;
        let template =
            self.template.as_ref().ok_or("there is no chat template; give a model that has one, or a template")?;
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
        self.tokenizer.as_ref().ok_or_else(|| "there is no tokenizer; give a model or a tokenizer directory".into())
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
        tools: list("tools")?,
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
