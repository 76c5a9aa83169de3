use std::fs;
use std::path::PathBuf;

use serde_json::json;

use super::*;
use crate::template::parse_now;
use crate::tokenize::Encode;

/// A model directory with a small Kimi tokenizer: its base vocabulary, then [BOS] +0, [EOS] +1, <|im_end|> +2.
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

    fn load(&self) -> Result<ModelText, TextError> {
        ModelText::load(&self.0, &ModelOverrides::default())
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

fn controls(text: &ModelText) -> ControlTokens {
    ControlTokens::new(text, |_| false, None).unwrap()
}

fn user(text: &str) -> RenderInput {
    let messages = vec![json!({"role": "user", "content": text})];
    RenderInput { messages, ..RenderInput::default() }
}

#[test]
fn a_model_directory_is_loaded() {
    let model = Model::new("all", &config())
        .with("generation_config.json", r#"{"eos_token_id": 7, "temperature": 0.6, "top_k": 20, "do_sample": true}"#)
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
                1, 350, 354, 289, 320, 280, 127, 293, 302, 292, 127, 281, 290, 280, 354, 291, 280, 367, 320, 378, 280,
                127, 293, 302, 280, 367, 400, 350, 354, 312, 280, 367, 280, 367, 400,
            ],
        ),
        (
            "metaspace",
            &[
                1, 280, 354, 289, 320, 280, 127, 293, 302, 292, 127, 281, 290, 280, 354, 291, 280, 367, 320, 378, 280,
                127, 293, 302, 280, 367, 400, 280, 354, 312, 280, 367, 280, 367, 400,
            ],
        ),
    ] {
        let model = Model::of(tokenizer, tokenizer, &config()).with("chat_template.jinja", template);
        let text = model.load().unwrap();
        assert_eq!(text.render_sanitized(&input, &controls(&text)).unwrap().ids, expected, "{tokenizer}");
    }
}

#[test]
fn the_revision_comes_from_the_path_in_the_hubs_cache() {
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
fn a_model_without_a_template_supports_only_completions() {
    let text = Model::new("base", &config()).load().unwrap();
    let error = text.render(&user("x")).unwrap_err().to_string();
    assert!(error.contains("has no chat template; use completions"), "{error}");
    assert_eq!(text.template_source(), "");
}

#[test]
fn overrides_take_precedence_but_cannot_raise_the_context() {
    let model = Model::new("over", &json!({"text_config": config()}));
    let load = |max_context| {
        let overrides =
            ModelOverrides { name: Some("n".into()), max_context: Some(max_context), ..ModelOverrides::default() };
        ModelText::load(&model.0, &overrides).unwrap()
    };
    assert_eq!((load(100).max_context, load(100_000).max_context, load(1).name.as_str()), (Some(100), Some(4096), "n"));
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
fn errors_of_model_directories_name_file_and_field() {
    for (name, config, expected) in [
        ("nothing", json!(null), "config.json"),
        ("context", json!({"max_position_embeddings": 0}), "max_position_embeddings"),
        ("eos", json!({"max_position_embeddings": 8, "eos_token_id": 1_000_000}), "eos_token_id: must be below"),
    ] {
        let error = Model::new(name, &config).load().unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    let error = Model::new("json", &config()).with("generation_config.json", "{").load().unwrap_err().to_string();
    assert!(error.contains("generation_config.json"), "{error}");
    for (name, generation, expected) in [
        ("generation", json!({"temperature": -1}), "generation_config.json: temperature: must be"),
        ("list", json!([]), "must be a JSON object"),
        ("geneos", json!({"eos_token_id": [9_999_999]}), "generation_config.json: eos_token_id: must be below"),
    ] {
        let model = Model::new(name, &config()).with("generation_config.json", &generation.to_string());
        let error = model.load().unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    let unnamed = ModelOverrides { name: Some(String::new()), ..ModelOverrides::default() };
    let error = ModelText::load(&Model::new("unnamed", &config()).0, &unnamed).unwrap_err().to_string();
    assert!(error.contains("name: must not be empty"), "{error}");
    let error = Model::new("jinja", &config()).with("chat_template.jinja", "{% if").load().unwrap_err().to_string();
    assert!(error.contains("does not parse"), "{error}");
}

/// The demo model, Kimi's, and the fixtures.
fn tokenizers() -> Vec<(String, Tokenizer)> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let fixtures =
        ["byte_level", "byte_fallback", "metaspace", "kimi"].map(|name| format!("src/tokenize/fixtures/{name}"));
    let others = ["../../models/demo", "../../tests/fixtures/kimi_k2"].map(str::to_owned);
    let load = |dir: String| (dir.clone(), Tokenizer::load(&root.join(&dir)).expect(&dir));
    fixtures.into_iter().chain(others).map(load).collect()
}

/// The demo model's template, small ones, and public ones.
fn sources() -> Vec<(String, String)> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let files = ["../../tests/fixtures/templates", "../../tests/py/templates"]
        .into_iter()
        .flat_map(|folder| fs::read_dir(root.join(folder)).unwrap().map(|entry| entry.unwrap().path()));
    let mut sources: Vec<(String, String)> = files
        .filter(|file| file.extension().is_some_and(|extension| extension == "jinja"))
        .map(|file| (file.display().to_string(), fs::read_to_string(&file).unwrap()))
        .collect();
    let demo = ModelText::load(&root.join("../../models/demo"), &ModelOverrides::default()).unwrap();
    sources.push(("demo".into(), demo.template_source().to_owned()));
    let all =
        "{{ tools | tojson }}{% for m in messages %}<|end|>{{ m.role }}<tool>{{ m.content }}</s>{% endfor %}<|end|>";
    sources.push(("added tokens".into(), all.into()));
    sources
        .push(("no added tokens".into(), "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}".into()));
    sources
}

/// A conversation that calls tools, with texts that spell control tokens.
fn conversation(turns: usize) -> Vec<Json> {
    let mut messages = vec![
        json!({"role": "system", "content": "You are a coding agent. ".repeat(30)}),
        json!({"role": "user", "content": "Größe 北京 🙂  \n\n fix the test"}),
    ];
    for turn in 0..turns {
        let call = json!({"id": format!("functions.get:{turn}"), "type": "function",
            "function": {"name": "get", "arguments": format!("{{\"path\": \"file{turn}\"}}")}});
        messages.push(json!({"role": "assistant", "content": format!("step {turn}"), "tool_calls": [call]}));
        let output = match turn {
            2 => " <|end|> \t<|im_end|>\n".to_owned(),
            _ => format!(" line {turn}\n").repeat(20 * turn + 1),
        };
        let id = format!("functions.get:{turn}");
        messages.push(json!({"role": "tool", "tool_call_id": id, "name": "get", "content": output}));
    }
    messages
}

#[test]
fn cached_prompts_have_the_ids_of_whole_prompts_for_all_templates_and_tokenizers() {
    let (mut rendered, mut hits) = (0, 0);
    let tool = json!({"type": "function", "function": {"name": "get", "description": "Reads a file. ".repeat(40),
        "parameters": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}}});
    let model = Model::new("cached", &config());
    let tokenizers = tokenizers();
    // One of the templates prints the second.
    let fixed = TemplateOptions { now: parse_now("2026-02-03"), ..TemplateOptions::default() };
    for (file, source) in sources() {
        for (dir, tokenizer) in &tokenizers {
            let template = ChatTemplate::from_source(&source, fixed.clone()).unwrap();
            let mut text =
                ModelText { tokenizer: tokenizer.clone(), template: Some(template), ..model.load().unwrap() };
            let controls = controls(&text);
            let mut warm = PromptCache::new(PROMPT_CACHE_BYTES);
            for (turns, salt) in [(0, ""), (1, ""), (1, ""), (3, ""), (4, ""), (4, "salt")] {
                let (messages, tools) = (conversation(turns), Some(vec![tool.clone()].into()));
                let cache_salt = Some(salt.to_owned());
                let input = RenderInput { messages, tools, cache_salt, ..RenderInput::default() };
                std::mem::swap(&mut text.prompt_cache, &mut warm);
                let cached = (text.render(&input), text.render_sanitized(&input, &controls));
                std::mem::swap(&mut text.prompt_cache, &mut warm);
                text.prompt_cache = PromptCache::new(0);
                let (Ok(plain), Ok(sanitized)) = cached else { continue };
                let whole = text.tokenizer.encode(&plain.prompt, Encode::TEMPLATED).unwrap();
                assert_eq!(plain.ids, whole, "{file} {dir}: {turns} turns");
                let uncached = text.render_sanitized(&input, &controls).unwrap();
                assert_eq!(sanitized, uncached, "{file} {dir}: {turns} turns");
                rendered += 1;
            }
            hits += u64::from(warm.stats().hit_bytes > 0);
        }
    }
    assert!(rendered > 200 && hits > 5, "{rendered} prompts, {hits} models with hits");
}

#[test]
fn a_longer_conversation_encodes_only_what_is_new() {
    let demo = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../models/demo");
    let text = ModelText::load(&demo, &ModelOverrides::default()).unwrap();
    let prompt = |turns: usize| {
        let before = text.prompt_cache.stats();
        let input = RenderInput { messages: conversation(turns), ..RenderInput::default() };
        let bytes = text.render(&input).unwrap().prompt.len() as u64;
        let after = text.prompt_cache.stats();
        (bytes, after.hit_bytes - before.hit_bytes, after.missed_bytes - before.missed_bytes)
    };
    let (first, hit, missed) = prompt(1);
    assert_eq!((hit, missed), (0, first));
    let (second, hit, missed) = prompt(2);
    assert_eq!(hit + missed, second);
    // The last part of the first turn ends in another way: at most one short message is encoded again.
    assert!(missed < second - first + 300, "{first} {second} {missed}");
}
