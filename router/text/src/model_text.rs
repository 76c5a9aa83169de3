//! What the router knows of a model, from its directory: tokenizer, template, defaults. No weights.

mod generation_config;
mod sanitize;

use std::collections::BTreeSet;
use std::path::Path;

use rein_grammar::{Detect, Format, PLAIN};
use serde_json::{Map, Value as Json};
use tracing::info_span;

pub use sanitize::{ControlTokens, ReasoningMarkers};

use crate::template::{ChatTemplate, Reason, RenderInput, Sources, TemplateError, TemplateOptions, parse_now};
use crate::tokenize::{Bound, Encode, NAMED, TokenizeError, Tokenizer, read_json, token_text};

/// Hexadecimal digits of a commit.
const COMMIT_DIGITS: usize = 40;

/// Why a model directory cannot be used, or a conversation not be turned into a prompt.
#[derive(Debug, thiserror::Error)]
pub enum TextError {
    #[error(transparent)]
    Template(#[from] TemplateError),
    #[error(transparent)]
    Tokenize(#[from] TokenizeError),
    #[error("{path}: {field}: {message}")]
    Config { path: String, field: String, message: String },
}

/// What the command line says instead of the model directory.
#[derive(Debug, Clone, Default)]
pub struct ModelOverrides {
    /// The name under which the model is served; the directory's name otherwise.
    pub name: Option<String>,
    /// A template file.
    pub template: Option<std::path::PathBuf>,
    /// A directory with another tokenizer.
    pub tokenizer: Option<std::path::PathBuf>,
    /// A smaller context, tokens.
    pub max_context: Option<usize>,
    /// The clock of `strftime_now`.
    pub now: Option<chrono::NaiveDateTime>,
}

impl ModelOverrides {
    /// Takes the template clock from `REIN_TEMPLATE_NOW` (ISO date or date-time), so that prompts can be compared.
    pub fn from_env() -> Result<Self, TextError> {
        let now = match std::env::var("REIN_TEMPLATE_NOW") {
            Ok(text) => Some(parse_now(&text).ok_or_else(|| TextError::Config {
                path: "environment".into(),
                field: "REIN_TEMPLATE_NOW".into(),
                message: format!("{text:?} is not an ISO date or date-time such as 2026-01-31T12:00:00"),
            })?),
            Err(_) => None,
        };
        Ok(ModelOverrides { now, ..ModelOverrides::default() })
    }
}

/// Sampling defaults of `generation_config.json`; `None` where the model says nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct GenerationDefaults {
    pub temperature: Option<f32>,
    pub top_p: Option<f32>,
    pub top_k: Option<u32>,
    pub min_p: Option<f32>,
    pub repetition_penalty: Option<f32>,
    pub max_new_tokens: Option<u32>,
    /// `Some(false)`: the model asks for greedy decoding.
    pub do_sample: Option<bool>,
}

/// A prompt as text and as tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RenderedPrompt {
    pub prompt: String,
    pub ids: Vec<u32>,
}

/// The router's knowledge of one model.
#[derive(Debug)]
pub struct ModelText {
    pub name: String,
    pub tokenizer: Tokenizer,
    /// Absent for a base model: only completions then.
    pub template: Option<ChatTemplate>,
    pub generation: GenerationDefaults,
    /// Tokens that end a sequence, ascending.
    pub stop_token_ids: Vec<u32>,
    /// Prompt and output together, tokens. None: nobody says, and the engine takes the architecture's default.
    pub max_context: Option<usize>,
    /// Ids that the model may be given and may emit; the tokenizer may know fewer.
    pub vocab_size: usize,
    /// The first of `architectures`, such as `DeepseekV3ForCausalLM`.
    pub architecture: String,
    pub bos_token_id: Option<u32>,
    pub eos_token_id: Option<u32>,
    /// Commit of the checkpoint's repository, where the directory names it as the Hub's cache does.
    pub revision: Option<String>,
}

impl ModelText {
    /// Reads a model directory.
    pub fn load(dir: &Path, overrides: &ModelOverrides) -> Result<Self, TextError> {
        if overrides.name.as_deref() == Some("") {
            return Err(TextError::Config {
                path: "options".into(),
                field: "name".into(),
                message: "the name under which a model is served must not be empty".into(),
            });
        }
        let config_path = dir.join("config.json");
        let config = read_json(&config_path)?;
        let bad = |field: &str, message: &str| TextError::Config {
            path: config_path.display().to_string(),
            field: field.into(),
            message: message.into(),
        };
        if config.is_null() {
            return Err(bad("config.json", "the model directory has none"));
        }
        let tokenizer_dir = overrides.tokenizer.as_deref().unwrap_or(dir);
        let tokenizer = Tokenizer::load(tokenizer_dir)?;
        let tokenizer_config = read_json(&tokenizer_dir.join("tokenizer_config.json"))?;
        let special_tokens = special_tokens(tokenizer_dir, &tokenizer_config)?;
        let sources = match &overrides.template {
            Some(path) => Sources::from_file(path)?,
            None => Sources::from_model(dir, &tokenizer_config)?,
        };
        let named_id =
            |name: &str| special_tokens.get(name).and_then(Json::as_str).and_then(|t| tokenizer.special_id(t));
        let (bos_token_id, eos_token_id) = (named_id("bos_token"), named_id("eos_token"));
        let generation_path = dir.join("generation_config.json");
        let generation_config = read_json(&generation_path)?;
        let wrong = |path: &Path, (field, message): generation_config::Wrong| TextError::Config {
            path: path.display().to_string(),
            field: field.into(),
            message,
        };
        let generation =
            generation_config::defaults(&generation_config).map_err(|error| wrong(&generation_path, error))?;
        for key in generation_config::without_effect(&generation_config) {
            tracing::warn!(file = %generation_path.display(), key, "this generation default is not implemented and has no effect");
        }
        // Multimodal checkpoints keep the language model's values one level down.
        let text_config = config.get("text_config").unwrap_or(&Json::Null);
        let field = |name: &str| config.get(name).or_else(|| text_config.get(name)).filter(|v| !v.is_null());

        let mut stop: BTreeSet<u32> = eos_token_id.into_iter().collect();
        let eos = |path: &Path, source: &Json| generation_config::eos_ids(source).map_err(|error| wrong(path, error));
        stop.extend(eos(&config_path, &config)?);
        stop.extend(eos(&config_path, text_config)?);
        let generation_eos = eos(&generation_path, &generation_config)?;
        stop.extend(&generation_eos);
        let architecture =
            field("architectures").and_then(|a| a.get(0)).and_then(Json::as_str).unwrap_or_default().to_owned();
        let turn_ends = rein_grammar::turn_ends(|text| tokenizer.special_id(text).is_some());
        stop.extend(turn_ends.filter_map(|text| tokenizer.special_id(text)));
        // A model's vocabulary may be padded beyond its tokenizer's.
        let vocab_size = field("vocab_size").and_then(Json::as_u64).map_or(tokenizer.vocab_size(), |n| n as usize);
        if let Some(id) = stop.iter().find(|id| **id as usize >= vocab_size) {
            let path = if generation_eos.contains(id) { &generation_path } else { &config_path };
            return Err(wrong(path, ("eos_token_id", format!("{id} is not below vocab_size, which is {vocab_size}"))));
        }
        let positive = |n: &Json| n.as_u64().filter(|n| *n > 0).map(|n| n as usize);
        let not_positive = || bad("max_position_embeddings", "not a positive number");
        let context = field("max_position_embeddings").map(|n| positive(n).ok_or_else(not_positive)).transpose()?;
        let max_context = overrides.max_context.into_iter().chain(context).min();
        let options = TemplateOptions { now: overrides.now, special_tokens, ..TemplateOptions::default() };
        let template = match sources.templates.is_empty() {
            true => None,
            false => Some(ChatTemplate::from_sources(sources, options)?),
        };
        let directory = || dir.canonicalize().ok().and_then(|d| Some(d.file_name()?.to_string_lossy().into_owned()));
        Ok(ModelText {
            name: overrides.name.clone().or_else(directory).unwrap_or_else(|| "model".into()),
            tokenizer,
            template,
            generation,
            stop_token_ids: stop.into_iter().collect(),
            max_context,
            vocab_size,
            architecture,
            bos_token_id,
            eos_token_id,
            revision: revision(dir),
        })
    }

    /// The format that the model's calls are read by: the chosen one, else the one that its files show. Some formats
    /// end a turn with tokens that no configuration file names; they end it from here on.
    pub fn settle_format(&mut self, chosen: Option<&'static Format>) -> &'static Format {
        let special = |name: &str| self.has_special(name);
        let detect = Detect {
            template: self.template.as_ref().map(|_| self.template_source()),
            architecture: Some(&self.architecture),
            special: &special,
        };
        let format = chosen.or_else(|| rein_grammar::detect(&detect)).unwrap_or(PLAIN);
        let stops: Vec<u32> = format.stops.iter().filter_map(|stop| self.tokenizer.special_id(stop)).collect();
        self.stop_token_ids.extend(stops);
        self.stop_token_ids.sort_unstable();
        self.stop_token_ids.dedup();
        format
    }

    /// Renders and encodes a conversation.
    pub fn render(&self, input: &RenderInput) -> Result<RenderedPrompt, TextError> {
        self.render_within(input, Bound::default())
    }

    /// The same within a bound.
    pub fn render_within(&self, input: &RenderInput, bound: Bound) -> Result<RenderedPrompt, TextError> {
        let prompt = info_span!("template").in_scope(|| {
            let prompt = self.chat_template()?.render(input)?;
            self.check_tools(input, &prompt).map(|()| prompt)
        })?;
        let ids =
            info_span!("tokenize").in_scope(|| self.tokenizer.encode_within(&prompt, Encode::TEMPLATED, bound))?;
        Ok(RenderedPrompt { prompt, ids })
    }

    /// Where the tools must be seen, all of them are.
    fn check_tools(&self, input: &RenderInput, prompt: &str) -> Result<(), TemplateError> {
        if !input.tools_must_show {
            return Ok(());
        }
        let Some(name) = self.chat_template()?.dropped_tool(input, prompt)? else { return Ok(()) };
        let message = format!(
            "'tools': the chat template of the model {} does not show the tool '{name}' to the model in this conversation, so that \
             the model cannot call it; use a template that does, leave the tools out, or start the server with --allow-dropped-tools",
            self.name
        );
        Err(TemplateError { reason: Reason::Input, message, param: Some("tools".into()) })
    }

    fn chat_template(&self) -> Result<&ChatTemplate, TemplateError> {
        self.template.as_ref().ok_or_else(|| TemplateError {
            reason: Reason::Missing,
            message: format!("the model {} has no chat template; use completions, or give a template", self.name),
            param: Some("model".into()),
        })
    }

    /// Source of the template for chats with tools, by which a grammar format is recognised; empty without a template.
    pub fn template_source(&self) -> &str {
        self.template.as_ref().map(ChatTemplate::tool_source).unwrap_or_default()
    }

    /// Whether the tokenizer has this text as one added token.
    pub fn has_special(&self, text: &str) -> bool {
        self.tokenizer.special_id(text).is_some()
    }
}

/// The commit that a directory of the Hub's cache names, as in `models--ORG--NAME/snapshots/COMMIT`.
pub fn revision(dir: &Path) -> Option<String> {
    let named = |dir: &Path| {
        let commit = dir.file_name()?.to_str()?;
        let is_commit =
            commit.len() == COMMIT_DIGITS && commit.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        (is_commit && dir.parent()?.file_name()? == "snapshots").then(|| commit.to_owned())
    };
    named(dir).or_else(|| named(&dir.canonicalize().ok()?))
}

/// Named special tokens for the template, from `tokenizer_config.json`, else `special_tokens_map.json`.
pub fn special_tokens(dir: &Path, config: &Json) -> Result<Map<String, Json>, TokenizeError> {
    let map = read_json(&dir.join("special_tokens_map.json"))?;
    let text = |name: &str| {
        let token = config.get(name).filter(|v| !v.is_null()).or_else(|| map.get(name));
        token.and_then(token_text).map(|text| (name.to_owned(), Json::from(text)))
    };
    Ok(NAMED.iter().filter_map(|name| text(name)).collect())
}

#[cfg(test)]
mod tests;
