//! The CPU time of each step from a chat body to token ids, for the first and the second turn of a conversation with
//! tools: `cargo bench -p rein-text --bench prompts`. It uses the demo model, and Kimi's tokenizer with public
//! templates if they are present.

use std::fmt::Write;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rein_grammar::{CallValidator, Grammars, Rules, Vocab};
use rein_text::model_text::{ControlTokens, ModelOverrides, ModelText};
use rein_text::template::{RenderInput, lossless};
use rein_text::tokenize::{Encode, EncodeLimit, PromptCache};
use rein_text::tools::ToolSet;
use rein_text::{call_ids, conversation, limits, tools};
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};

const TEMPLATES: [&str; 5] = [
    "pub__Kimi-K2-0905",
    "llamacpp__Qwen-Qwen3-0.6B",
    "llamacpp__deepseek-ai-DeepSeek-V3.1",
    "llamacpp__meta-llama-Llama-3.1-8B-Instruct",
    "llamacpp__GLM-4.6",
];

/// Words of an instruction, deterministic.
fn words(seed: usize, count: usize) -> String {
    const WORDS: [&str; 24] = [
        "the", "file", "path", "must", "be", "absolute", "and", "a", "command", "runs", "in", "shell", "`grep`",
        "never", "use", "this", "tool", "when", "results", "are", "needed,", "first\n", "- read", "it.",
    ];
    (0..count).fold(String::new(), |mut text, i| {
        let _ = write!(text, "{} ", WORDS[(seed * 7 + i * i + i / 3) % WORDS.len()]);
        text
    })
}

/// Tools like those of a coding agent: long descriptions, small schemas.
fn declarations(count: usize, description: usize) -> Vec<Value> {
    let tool = |i: usize| {
        json!({"type": "function", "function": {"name": format!("Tool{i}"), "description": words(i, description),
            "parameters": {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object",
                "additionalProperties": false, "required": ["file_path", "pattern"], "properties": {
                    "file_path": {"type": "string", "description": words(i + 1, 12)},
                    "pattern": {"type": "string", "description": words(i + 2, 20)},
                    "limit": {"type": "number", "description": words(i + 3, 10)},
                    "mode": {"type": "string", "enum": ["content", "files_with_matches", "count"]},
                    "edits": {"type": "array", "items": {"type": "object", "properties": {
                        "old": {"type": "string"}, "new": {"type": "string"}, "all": {"type": "boolean", "default": false}},
                        "required": ["old", "new"], "additionalProperties": false}}}}}})
    };
    (0..count).map(tool).collect()
}

/// The body of a turn of a conversation.
fn body(tools: &[Value], system: usize, turn: usize) -> String {
    let mut messages =
        vec![json!({"role": "system", "content": words(5, system)}), json!({"role": "user", "content": words(6, 40)})];
    for i in 0..turn {
        let id = format!("call_{i}");
        let arguments = json!({"file_path": format!("/src/file{i}.rs"), "pattern": words(i, 4)}).to_string();
        let call = json!({"id": id, "type": "function", "function": {"name": "Tool1", "arguments": arguments}});
        messages.push(json!({"role": "assistant", "content": words(i, 12), "tool_calls": [call]}));
        messages.push(json!({"role": "tool", "tool_call_id": id, "content": words(i + 9, 300)}));
    }
    json!({"model": "m", "messages": messages, "tools": tools, "stream": true}).to_string()
}

/// Microseconds of CPU time of one run, the median of some.
fn micros<T>(runs: usize, mut run: impl FnMut() -> T) -> f64 {
    let computed = || {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        time.tv_sec as f64 * 1e6 + time.tv_nsec as f64 / 1e3
    };
    let mut times: Vec<f64> = (0..runs)
        .map(|_| {
            let began = computed();
            let done = black_box(run());
            let time = computed() - began;
            drop(done);
            time
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn list(body: &Value, name: &str) -> Vec<Value> {
    body[name].as_array().cloned().unwrap_or_default()
}

fn input(body: &str) -> RenderInput {
    let body = lossless::from_str(body).expect("JSON");
    let mut messages = list(&body, "messages");
    call_ids::assign_native_ids(&mut messages, |name, index| Some(format!("functions.{name}:{index}")));
    let tools = Some(list(&body, "tools")).filter(|tools| !tools.is_empty()).map(ToolSet::from);
    RenderInput { messages, tools, tools_must_show: true, ..RenderInput::default() }
}

struct Model {
    text: ModelText,
    controls: ControlTokens,
    grammars: Grammars,
}

impl Model {
    fn new(dir: &Path, template: Option<PathBuf>) -> Self {
        let mut text =
            ModelText::load(dir, &ModelOverrides { template, ..ModelOverrides::default() }).expect("a model");
        let format = text.settle_format(None);
        let controls = ControlTokens::new(&text, |text| format.is_marker(text), None).expect("controls");
        let tokenizer = text.tokenizer.clone();
        let token = |id: u32| {
            let bytes = tokenizer.token_bytes(id).map(|bytes| bytes.into_owned()).unwrap_or_default();
            (bytes, tokenizer.is_control(id))
        };
        let encoder = text.tokenizer.clone();
        let encode = move |text: &str| encoder.encode(text, Encode::TEMPLATED).unwrap();
        let tokens = (0..text.vocab_size as u32).map(token);
        let vocab = Vocab::new(tokens, &text.stop_token_ids, Some(Box::new(encode))).expect("a vocabulary");
        let grammars = Grammars::new(format, Arc::new(vocab));
        Model { text, controls, grammars }
    }

    fn measure(&mut self, name: &str, tools: &[Value], system: usize) {
        let bodies = [0, 1].map(|turn| body(tools, system, turn));
        let inputs = bodies.each_ref().map(|body| input(body));
        let rules = |input: &RenderInput| Rules {
            tools: input.tools.clone().unwrap_or_default().callable().clone(),
            parallel: true,
            ..Rules::default()
        };
        let parsed: Value = serde_json::from_str(&bodies[1]).expect("JSON");
        let (messages, declared) = (list(&parsed, "messages"), list(&parsed, "tools"));
        let known = rules(&inputs[1]);
        let compiled = self.grammars.compile(&known).ok().flatten();
        let Ok(rendered) = self.text.render(&inputs[1]) else { return println!("{name}: not rendered") };
        println!(
            "\n{name}: {} tools, a body of {} bytes, a prompt of {} bytes and {} tokens; CPU time in us",
            tools.len(),
            bodies[1].len(),
            rendered.prompt.len(),
            rendered.ids.len()
        );
        const RUNS: usize = 40;
        let whole = |text: &mut ModelText, input: &RenderInput, controls: &ControlTokens| {
            text.render_sanitized_within(input, controls, EncodeLimit::default()).expect("a prompt")
        };
        let steps = [
            ("parse the JSON", micros(RUNS, || serde_json::from_str::<Value>(&bodies[1]))),
            ("find inexact numbers", micros(RUNS, || lossless::marked(&bodies[1]))),
            (
                "check messages and tools",
                micros(RUNS, || {
                    (
                        conversation::check_messages(&messages).is_ok(),
                        conversation::check_tools(&declared, &messages).is_ok(),
                    )
                }),
            ),
            ("convert tools", micros(RUNS, || declared.iter().filter_map(tools::tool).collect::<Vec<_>>())),
            ("call validator", micros(RUNS, || CallValidator::new(&known))),
            ("find the grammar", micros(RUNS, || self.grammars.known(&known))),
            ("copy the matcher", micros(RUNS, || compiled.as_ref().map(|compiled| compiled.matcher().is_ok()))),
            ("render", micros(RUNS, || self.text.template.as_ref().map(|template| template.render(&inputs[1])))),
            ("encode whole", micros(RUNS, || self.text.tokenizer.encode(&rendered.prompt, Encode::TEMPLATED))),
        ];
        for (step, time) in steps {
            println!("{step:>26} {time:>9.0}");
        }
        let mut turns = [Vec::new(), Vec::new(), Vec::new()];
        for _ in 0..RUNS {
            self.text.prompt_cache = PromptCache::new(limits::PROMPT_CACHE_BYTES);
            for (times, input) in turns.iter_mut().zip([&inputs[0], &inputs[1], &inputs[1]]) {
                times.push(micros(1, || whole(&mut self.text, input, &self.controls)));
            }
        }
        for (turn, mut times) in ["prompt, first turn", "prompt, second turn", "prompt, again"].into_iter().zip(turns) {
            times.sort_by(f64::total_cmp);
            println!("{turn:>26} {:>9.0}", times[RUNS / 2]);
        }
    }
}

fn main() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let fixtures = root.join("tests/fixtures");
    let mut models = vec![("demo".to_owned(), Model::new(&root.join("models/demo"), None))];
    let kimi = std::env::temp_dir().join(format!("rein-bench-prompts-{}", std::process::id()));
    std::fs::create_dir_all(&kimi).expect("a folder");
    for file in ["tiktoken.model", "tokenizer_config.json"] {
        std::fs::copy(fixtures.join("kimi_k2").join(file), kimi.join(file)).expect("a copy");
    }
    std::fs::write(kimi.join("config.json"), "{}").expect("a file");
    for name in TEMPLATES {
        let template = fixtures.join(format!("templates/{name}.jinja"));
        models.push((name.to_owned(), Model::new(&kimi, Some(template))));
    }
    std::fs::remove_dir_all(&kimi).expect("to remove the folder");
    for (name, mut model) in models {
        model.measure(&name, &declarations(8, 6), 0);
        model.measure(&name, &declarations(24, 300), 1800);
    }
}
