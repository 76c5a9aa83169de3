//! Loads the text side of a model from its directory: tokenizer, template, sampling defaults. It never reads weights.

mod generation_config;
mod sanitize;

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Map, Value as Json, json};
use tracing::info_span;

pub use sanitize::{ControlTokens, ReasoningMarkers};

use crate::limits::PROMPT_CACHE_BYTES;
use crate::template::{ChatTemplate, Reason, RenderInput, Sources, TemplateError, TemplateOptions, parse_now};
use crate::tokenize::{
    EncodeLimit, NAMED_SPECIAL_TOKENS, PromptCache, TokenizeError, Tokenizer, read_json, token_text,
};

/// Hexadecimal digits of a commit hash.
const COMMIT_DIGITS: usize = 40;

/// Why a model directory cannot be loaded, or a conversation cannot become a prompt.
#[derive(Debug, thiserror::Error)]
pub enum TextError {
    #[error(transparent)]
    Template(#[from] TemplateError),
    #[error(transparent)]
    Tokenize(#[from] TokenizeError),
    #[error("{path}: {field}: {message}")]
    Config { path: String, field: String, message: String },
}

/// Options of the command line that override the model directory.
#[derive(Debug, Clone, Default)]
pub struct ModelOverrides {
    /// Name of the served model; by default the name of the directory.
    pub name: Option<String>,
    /// A template file instead of the model's.
    pub template: Option<std::path::PathBuf>,
    /// A directory with the tokenizer to use instead.
    pub tokenizer: Option<std::path::PathBuf>,
    /// A smaller context length, tokens.
    pub max_context: Option<usize>,
    /// Fixed time for `strftime_now`.
    pub now: Option<chrono::NaiveDateTime>,
}

impl ModelOverrides {
    /// Reads a fixed template time from `REIN_TEMPLATE_NOW` (ISO date or date-time), so that prompts are reproducible.
    pub fn from_env() -> Result<Self, TextError> {
        let now = match std::env::var("REIN_TEMPLATE_NOW") {
            Ok(text) => Some(parse_now(&text).ok_or_else(|| TextError::Config {
                path: "environment".into(),
                field: "REIN_TEMPLATE_NOW".into(),
                message: format!("must be an ISO date or date-time such as 2026-01-31T12:00:00, got {text:?}"),
            })?),
            Err(_) => None,
        };
        Ok(ModelOverrides { now, ..ModelOverrides::default() })
    }
}

/// Sampling defaults of `generation_config.json`; `None` where the file sets none.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct GenerationDefaults {
    pub temperature: Option<f32>,
    pub top_p: Option<f32>,
    pub top_k: Option<u32>,
    pub min_p: Option<f32>,
    pub repetition_penalty: Option<f32>,
    pub max_new_tokens: Option<u32>,
    /// `Some(false)` selects greedy decoding.
    pub do_sample: Option<bool>,
}

/// A prompt as text and as tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RenderedPrompt {
    pub prompt: String,
    pub ids: Vec<u32>,
}

/// The text side of one model.
#[derive(Debug)]
pub struct ModelText {
    pub name: String,
    pub tokenizer: Tokenizer,
    /// Token ids of the prompts that were rendered.
    pub prompt_cache: PromptCache,
    /// `None` for a base model, which supports only completions.
    pub template: Option<ChatTemplate>,
    pub generation: GenerationDefaults,
    /// Tokens that end a sequence, in ascending order.
    pub stop_token_ids: Vec<u32>,
    /// Context length: tokens of prompt and output together. `None` if the configuration sets none; the engine then
    /// uses the default of the architecture.
    pub max_context: Option<usize>,
    /// Number of token ids that the model accepts and generates; the tokenizer may have fewer.
    pub vocab_size: usize,
    /// The first entry of `architectures`, such as `DeepseekV3ForCausalLM`.
    pub architecture: String,
    pub bos_token_id: Option<u32>,
    pub eos_token_id: Option<u32>,
    /// Commit of the checkpoint's repository, if the directory is named after it as in the Hub's cache.
    pub revision: Option<String>,
    /// How outputs are parsed, as the checkpoint says itself (transformers).
    pub response_template: Option<Json>,
    /// The format that the files and the template tell, once it is known.
    pub detected: Option<&'static rein_grammar::Format>,
    /// Why the detected format is not used.
    pub contradiction: Option<String>,
}

impl ModelText {
    /// Loads a model directory.
    pub fn load(dir: &Path, overrides: &ModelOverrides) -> Result<Self, TextError> {
        if overrides.name.as_deref() == Some("") {
            return Err(TextError::Config {
                path: "options".into(),
                field: "name".into(),
                message: "must not be empty: it is the name of the served model".into(),
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
            return Err(bad("config.json", "the file is missing"));
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
        for key in generation_config::unsupported_keys(&generation_config) {
            tracing::warn!(file = %generation_path.display(), key, "this generation default is not supported and has no effect");
        }
        // Multimodal checkpoints keep the values of the language model in `text_config`.
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
        // The vocabulary of a model may be padded beyond that of its tokenizer.
        let vocab_size = field("vocab_size").and_then(Json::as_u64).map_or(tokenizer.vocab_size(), |n| n as usize);
        if let Some(id) = stop.iter().find(|id| **id as usize >= vocab_size) {
            let path = if generation_eos.contains(id) { &generation_path } else { &config_path };
            return Err(wrong(path, ("eos_token_id", format!("must be below vocab_size ({vocab_size}), got {id}"))));
        }
        let positive = |n: &Json| n.as_u64().filter(|n| *n > 0).map(|n| n as usize);
        let not_positive = || bad("max_position_embeddings", "must be a positive integer");
        // GPT-2 and its kin have the other name.
        let positions = field("max_position_embeddings").or_else(|| field("n_positions"));
        let context = positions.map(|n| positive(n).ok_or_else(not_positive)).transpose()?;
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
            prompt_cache: PromptCache::new(PROMPT_CACHE_BYTES),
            template,
            generation,
            stop_token_ids: stop.into_iter().collect(),
            max_context,
            vocab_size,
            architecture,
            bos_token_id,
            eos_token_id,
            revision: revision(dir),
            response_template: tokenizer_config.get("response_template").filter(|given| !given.is_null()).cloned(),
            detected: None,
            contradiction: None,
        })
    }

    /// Renders and encodes a conversation.
    pub fn render(&self, input: &RenderInput) -> Result<RenderedPrompt, TextError> {
        self.render_within(input, EncodeLimit::default())
    }

    /// Like `render`, within a bound on tokens and time.
    pub fn render_within(&self, input: &RenderInput, bound: EncodeLimit) -> Result<RenderedPrompt, TextError> {
        let prompt = info_span!("template").in_scope(|| {
            let prompt = self.chat_template()?.render(input)?;
            self.check_tools(input, &prompt).map(|()| prompt)
        })?;
        let ids = info_span!("tokenize").in_scope(|| self.encode_prompt(&prompt, input, bound))?;
        Ok(RenderedPrompt { prompt, ids })
    }

    fn encode_prompt(&self, prompt: &str, input: &RenderInput, bound: EncodeLimit) -> Result<Vec<u32>, TokenizeError> {
        self.tokenizer.encode_prompt(prompt, &self.prompt_cache, input.cache_salt.as_deref().unwrap_or_default(), bound)
    }

    /// Fails if the prompt must show the tools but does not show one of them.
    fn check_tools(&self, input: &RenderInput, prompt: &str) -> Result<(), TemplateError> {
        if !input.tools_must_show {
            return Ok(());
        }
        let Some(name) = self.chat_template()?.dropped_tool(input, prompt)? else { return Ok(()) };
        let message = format!(
            "'tools': the chat template of the model {} does not show the tool '{name}' in this conversation, so the model \
             cannot call it; use a template that shows tools, omit the tools, or start the server with --allow-dropped-tools",
            self.name
        );
        Err(TemplateError { reason: Reason::Input, message, param: Some("tools".into()) })
    }

    fn chat_template(&self) -> Result<&ChatTemplate, TemplateError> {
        self.template.as_ref().ok_or_else(|| TemplateError {
            reason: Reason::Missing,
            message: format!(
                "the model {} has no chat template; use completions, or start the server with a template",
                self.name
            ),
            param: Some("model".into()),
        })
    }

    /// The marker that the template writes before a tool's result, and nowhere in a conversation without results: a
    /// model that draws it invents the result of its own call. None: there is no such marker.
    pub fn result_marker(&self) -> Option<String> {
        const RESULT: &str = "what the tool returned";
        let template = self.template.as_ref()?;
        let user = json!({"role": "user", "content": "a question"});
        let call = json!({"id": "call00001", "type": "function", "function": {"name": "f", "arguments": "{}"}});
        let call = json!({"role": "assistant", "content": "", "tool_calls": [call]});
        let result = json!({"role": "tool", "tool_call_id": "call00001", "name": "f", "content": RESULT});
        let render = |messages: Vec<Json>| template.render(&RenderInput { messages, ..RenderInput::default() }).ok();
        let (plain, whole) = (render(vec![user.clone()])?, render(vec![user, call, result])?);
        let before = whole.get(..whole.find(RESULT)?)?.trim_end();
        let marker = before.get(before.rfind('<')?..)?;
        (marker.ends_with('>') && !marker.contains(char::is_whitespace) && !plain.contains(marker))
            .then(|| marker.to_owned())
    }

    /// Source of the template for chats with tools, from which the format is detected; empty without a template.
    pub fn template_source(&self) -> &str {
        self.template.as_ref().map(ChatTemplate::tool_source).unwrap_or_default()
    }

    /// Whether this text is an added token of the tokenizer.
    pub fn has_special(&self, text: &str) -> bool {
        self.tokenizer.special_id(text).is_some()
    }
}

/// The commit in the path of a directory of the Hub's cache: `models--ORG--NAME/snapshots/COMMIT`.
pub fn revision(dir: &Path) -> Option<String> {
    let named = |dir: &Path| {
        let commit = dir.file_name()?.to_str()?;
        let is_commit =
            commit.len() == COMMIT_DIGITS && commit.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        (is_commit && dir.parent()?.file_name()? == "snapshots").then(|| commit.to_owned())
    };
    named(dir).or_else(|| named(&dir.canonicalize().ok()?))
}

/// Named special tokens for the template, from `tokenizer_config.json` or else `special_tokens_map.json`.
pub fn special_tokens(dir: &Path, config: &Json) -> Result<Map<String, Json>, TokenizeError> {
    let map = read_json(&dir.join("special_tokens_map.json"))?;
    let text = |name: &str| {
        let token = config.get(name).filter(|v| !v.is_null()).or_else(|| map.get(name));
        token.and_then(token_text).map(|text| (name.to_owned(), Json::from(text)))
    };
    Ok(NAMED_SPECIAL_TOKENS.iter().filter_map(|name| text(name)).collect())
}

#[cfg(test)]
mod tests;
