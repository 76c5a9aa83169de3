//! What the router knows of a model, from its directory: tokenizer, template, defaults. No weights.

mod generation;
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
pub struct Overrides {
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

impl Overrides {
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
        Ok(Overrides { now, ..Overrides::default() })
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
pub struct Rendered {
    pub prompt: String,
    pub ids: Vec<u32>,
}

/// The router's knowledge of one model.
#[derive(Debug)]
pub struct TextModel {
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

impl TextModel {
    /// Reads a model directory.
    pub fn load(dir: &Path, overrides: &Overrides) -> Result<Self, TextError> {
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
        let wrong = |path: &Path, (field, message): generation::Wrong| TextError::Config {
            path: path.display().to_string(),
            field: field.into(),
            message,
        };
        let generation = generation::defaults(&generation_config).map_err(|error| wrong(&generation_path, error))?;
        for key in generation::without_effect(&generation_config) {
            tracing::warn!(file = %generation_path.display(), key, "this generation default is not implemented and has no effect");
        }
        // Multimodal checkpoints keep the language model's values one level down.
        let text_config = config.get("text_config").unwrap_or(&Json::Null);
        let field = |name: &str| config.get(name).or_else(|| text_config.get(name)).filter(|v| !v.is_null());

        let mut stop: BTreeSet<u32> = eos_token_id.into_iter().collect();
        let eos = |path: &Path, source: &Json| generation::eos_ids(source).map_err(|error| wrong(path, error));
        stop.extend(eos(&config_path, &config)?);
        stop.extend(eos(&config_path, text_config)?);
        let generation_eos = eos(&generation_path, &generation_config)?;
        stop.extend(&generation_eos);
        let architecture =
            field("architectures").and_then(|a| a.get(0)).and_then(Json::as_str).unwrap_or_default().to_owned();
        // Kimi's tokenizer says [EOS], its configuration <|im_end|>; base checkpoints name only one of them.
        if tokenizer.special_id("<|im_middle|>").is_some() {
            stop.extend(["[EOS]", "<|im_end|>"].iter().filter_map(|text| tokenizer.special_id(text)));
        }
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
        Ok(TextModel {
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

    /// The format that the model's calls are read by: the chosen one, else the one that its files show. Some formats end a turn with tokens
    /// that no configuration file names; they end it from here on.
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
    pub fn render(&self, input: &RenderInput) -> Result<Rendered, TextError> {
        self.render_within(input, Bound::default())
    }

    /// The same within a bound.
    pub fn render_within(&self, input: &RenderInput, bound: Bound) -> Result<Rendered, TextError> {
        let prompt = info_span!("template").in_scope(|| {
            let prompt = self.chat_template()?.render(input)?;
            self.check_tools(input, &prompt).map(|()| prompt)
        })?;
        let ids =
            info_span!("tokenize").in_scope(|| self.tokenizer.encode_within(&prompt, Encode::TEMPLATED, bound))?;
        Ok(Rendered { prompt, ids })
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
pub(crate) fn special_tokens(dir: &Path, config: &Json) -> Result<Map<String, Json>, TokenizeError> {
    let map = read_json(&dir.join("special_tokens_map.json"))?;
    let text = |name: &str| {
        let token = config.get(name).filter(|v| !v.is_null()).or_else(|| map.get(name));
        token.and_then(token_text).map(|text| (name.to_owned(), Json::from(text)))
    };
    Ok(NAMED.iter().filter_map(|name| text(name)).collect())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use serde_json::json;

    use super::*;

    /// A model directory with the tiny Kimi tokenizer (its base vocabulary, then [BOS] +0, [EOS] +1, <|im_end|> +2).
    struct Model(PathBuf);

    impl Model {
        fn new(name: &str, config: &Json) -> Self {
            Self::of("kimi", name, config)
        }

        fn of(tokenizer: &str, name: &str, config: &Json) -> Self {
            let dir = std::env::temp_dir().join(format!("rein-textmodel-{}-{name}", std::process::id()));
            fs::create_dir_all(&dir).unwrap();
            let fixture = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src/tokenize/fixtures").join(tokenizer);
            for file in fs::read_dir(fixture).unwrap().map(|entry| entry.unwrap().path()) {
                fs::copy(&file, dir.join(file.file_name().unwrap())).unwrap();
            }
            fs::write(dir.join("config.json"), config.to_string()).unwrap();
            Model(dir)
        }

        fn with(self, file: &str, text: &str) -> Self {
            fs::write(self.0.join(file), text).unwrap();
            self
        }

        fn load(&self) -> Result<TextModel, TextError> {
            TextModel::load(&self.0, &Overrides::default())
        }
    }

    impl Drop for Model {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn config() -> Json {
        json!({"architectures": ["DeepseekV3ForCausalLM"], "max_position_embeddings": 4096, "eos_token_id": [3, 5]})
    }

    fn controls(text: &TextModel) -> ControlTokens {
        ControlTokens::new(text, |_| false, None).unwrap()
    }

    fn user(text: &str) -> RenderInput {
        let messages = vec![json!({"role": "user", "content": text})];
        RenderInput { messages, ..RenderInput::default() }
    }

    #[test]
    fn a_directory_tells_all() {
        let model = Model::new("all", &config())
            .with(
                "generation_config.json",
                r#"{"eos_token_id": 7, "temperature": 0.6, "top_k": 20, "do_sample": true}"#,
            )
            .with(
                "chat_template.jinja",
                "{{ bos_token }}{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}",
            );
        let text = model.load().unwrap();
        let base = text.tokenizer.vocab_size() as u32 - 256;
        assert_eq!(text.stop_token_ids, [3, 5, 7, base + 1], "config, generation_config and the tokenizer's EOS");
        assert_eq!((text.bos_token_id, text.eos_token_id), (Some(base), Some(base + 1)));
        assert_eq!((text.max_context, text.architecture.as_str()), (Some(4096), "DeepseekV3ForCausalLM"));
        assert_eq!((text.generation.temperature, text.generation.top_k), (Some(0.6), Some(20)));
        assert_eq!((text.generation.top_p, text.generation.do_sample), (None, Some(true)));
        assert!(text.name.contains("rein-textmodel") && text.has_special("<tool>") && !text.has_special("<x>"));
        assert!(text.template_source().contains("bos_token"));
        let rendered = text.render(&user("a<tool>")).unwrap();
        assert_eq!(rendered.prompt, "[BOS]a<tool>[EOS]");
        assert_eq!(rendered.ids.first(), Some(&base));
        assert_eq!(rendered.ids[2..], [text.tokenizer.special_id("<tool>").unwrap(), base + 1]);
    }

    #[test]
    fn sanitized_text_cannot_become_a_control_token() {
        let template = "{{ bos_token }}{% for m in messages %}<tool>{{ m.content|trim }}</tool>[EOS]{% endfor %}";
        let text = Model::new("sane", &config()).with("chat_template.jinja", template).load().unwrap();
        let input = user(" a [EOS]b<tool>\u{F0000}[BOS] <|im_end|");
        let controls = controls(&text);
        let rendered = text.render_sanitized(&input, &controls).unwrap();
        assert_eq!(rendered.prompt, "[BOS]<tool>a [EOS]b<tool>[BOS] <|im_end|</tool>[EOS]");
        let control: Vec<&str> = rendered.ids.iter().filter_map(|id| text.tokenizer.special(*id)).collect();
        assert_eq!(control, ["[BOS]", "<tool>", "</tool>", "[EOS]"]);
        assert_eq!(text.tokenizer.decode(&rendered.ids), rendered.prompt.as_bytes());
        let harmless = user("nothing to see");
        assert_eq!(text.render_sanitized(&harmless, &controls).unwrap(), text.render(&harmless).unwrap());
    }

    /// The ids are those of transformers 5.23: `apply_chat_template(..., sanitize_control_tokens=True)`.
    #[test]
    fn sanitized_prompts_equal_transformers() {
        let template = "{{ bos_token }}{% for m in messages %}<tool>{{ m.content|trim }}</tool><|end|>{% endfor %}";
        let mut input = user(" a <|end|>b<tool>\u{F0000}c</tool> Hello <|en");
        input.messages.push(json!({"role": "user", "content": "x</tool>"}));
        for (tokenizer, expected) in [
            (
                "byte_level",
                &[
                    330, 332, 64, 220, 27, 91, 68, 77, 67, 91, 29, 65, 27, 268, 29, 66, 27, 14, 268, 29, 220, 291, 278,
                    275, 91, 68, 77, 333, 331, 332, 87, 27, 14, 268, 29, 333, 331,
                ][..],
            ),
            (
                "byte_fallback",
                &[
                    1, 350, 354, 289, 320, 280, 127, 293, 302, 292, 127, 281, 290, 280, 354, 291, 280, 367, 320, 378,
                    280, 127, 293, 302, 280, 367, 400, 350, 354, 312, 280, 367, 280, 367, 400,
                ],
            ),
            (
                "metaspace",
                &[
                    1, 280, 354, 289, 320, 280, 127, 293, 302, 292, 127, 281, 290, 280, 354, 291, 280, 367, 320, 378,
                    280, 127, 293, 302, 280, 367, 400, 280, 354, 312, 280, 367, 280, 367, 400,
                ],
            ),
        ] {
            let model = Model::of(tokenizer, tokenizer, &config()).with("chat_template.jinja", template);
            let text = model.load().unwrap();
            assert_eq!(text.render_sanitized(&input, &controls(&text)).unwrap().ids, expected, "{tokenizer}");
        }
    }

    #[test]
    fn a_directory_of_the_hubs_cache_names_the_revision() {
        let commit = "94a4053eb8863059dd8afc00937f054e1365abbd";
        let of = |path: &str| revision(Path::new(path));
        assert_eq!(of(&format!("/cache/models--a--b/snapshots/{commit}")).as_deref(), Some(commit));
        assert_eq!(of(&format!("/cache/models--a--b/snapshots/{commit}/")).as_deref(), Some(commit));
        for other in
            [format!("/models/{commit}"), "/x/snapshots/main".into(), format!("/x/snapshots/{}", commit.to_uppercase())]
        {
            assert_eq!(of(&other), None, "{other}");
        }
    }

    #[test]
    fn a_model_without_template_is_for_completions() {
        let text = Model::new("base", &config()).load().unwrap();
        let error = text.render(&user("x")).unwrap_err().to_string();
        assert!(error.contains("has no chat template; use completions"), "{error}");
        assert_eq!(text.template_source(), "");
    }

    #[test]
    fn overrides_win_but_do_not_widen() {
        let model = Model::new("over", &json!({"text_config": config()}));
        let load = |max_context| {
            let overrides =
                Overrides { name: Some("n".into()), max_context: Some(max_context), ..Overrides::default() };
            TextModel::load(&model.0, &overrides).unwrap()
        };
        assert_eq!(
            (load(100).max_context, load(100_000).max_context, load(1).name.as_str()),
            (Some(100), Some(4096), "n")
        );
        assert_eq!(load(1).architecture, "DeepseekV3ForCausalLM");
        assert!(load(1).stop_token_ids.starts_with(&[3, 5]));
    }

    #[test]
    fn a_vocabulary_may_be_padded_beyond_the_tokenizer() {
        let padded = json!({"max_position_embeddings": 8, "vocab_size": 9000, "eos_token_id": 8999});
        let text = Model::new("padded", &padded).load().unwrap();
        assert_eq!((text.vocab_size, text.stop_token_ids.last()), (9000, Some(&8999)));
    }

    #[test]
    fn bad_directories_are_refused_by_name() {
        for (name, config, expected) in [
            ("nothing", json!(null), "config.json"),
            ("context", json!({"max_position_embeddings": 0}), "max_position_embeddings"),
            ("eos", json!({"max_position_embeddings": 8, "eos_token_id": 1_000_000}), "eos_token_id: 1000000"),
        ] {
            let error = Model::new(name, &config).load().unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
        let error = Model::new("json", &config()).with("generation_config.json", "{").load().unwrap_err().to_string();
        assert!(error.contains("generation_config.json"), "{error}");
        for (name, generation, expected) in [
            ("generation", json!({"temperature": -1}), "generation_config.json: temperature: must be"),
            ("list", json!([]), "must be a JSON object"),
            ("geneos", json!({"eos_token_id": [9_999_999]}), "generation_config.json: eos_token_id: 9999999"),
        ] {
            let model = Model::new(name, &config()).with("generation_config.json", &generation.to_string());
            let error = model.load().unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
        let unnamed = Overrides { name: Some(String::new()), ..Overrides::default() };
        let error = TextModel::load(&Model::new("unnamed", &config()).0, &unnamed).unwrap_err().to_string();
        assert!(error.contains("name: the name under which"), "{error}");
        let error = Model::new("jinja", &config()).with("chat_template.jinja", "{% if").load().unwrap_err().to_string();
        assert!(error.contains("does not parse"), "{error}");
    }
}
