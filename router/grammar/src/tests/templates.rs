//! The models' own templates: each is detected as the right format, and the turns that they write are read and
//! rendered. templates.py generated `templates.json` from public templates with Python's jinja2.

use serde_json::{Value, json};

use super::{fold, short};
use crate::{
    Call, Event, ModelDirFacts, Parser, ParserOptions, Region, RenderOptions, Tool, Turn, by_name, detect, render,
    render_text,
};

/// Template, format, and whether the renderer writes its turns byte for byte (up to the end of turn).
const TEMPLATES: &[(&str, &str, bool)] = &[
    // A blank before the turn, which belongs to the prompt.
    ("axolotl__jamba.jinja", "jamba", false),
    // An empty reasoning block at the start.
    ("llamacpp__GLM-4.6.jinja", "glm45", false),
    // Its generation prompt opens reasoning that history omits.
    ("llamacpp__MiniMax-M2.jinja", "minimax_m2", false),
    ("llamacpp__Mistral-Small-3.2-24B-Instruct-2506.jinja", "mistral_v11", true),
    ("llamacpp__NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use.jinja", "hermes", true),
    ("llamacpp__Qwen-Qwen2.5-7B-Instruct.jinja", "hermes", true),
    // An empty reasoning block at the start.
    ("llamacpp__Qwen-Qwen3-0.6B.jinja", "hermes", false),
    ("llamacpp__Qwen3-Coder.jinja", "qwen3_coder", true),
    ("llamacpp__deepseek-ai-DeepSeek-V3.1.jinja", "deepseek_v3_1", true),
    ("llamacpp__ibm-granite-granite-4.0.jinja", "hermes", true),
    ("llamacpp__meta-llama-Llama-3.1-8B-Instruct.jinja", "llama_json", true),
    ("llamacpp__mistralai-Mistral-Nemo-Instruct-2407.jinja", "mistral_v3_tekken", true),
    ("llamacpp__moonshotai-Kimi-K2.jinja", "kimi_k2", true),
    // The recipient precedes the channel; text becomes reasoning.
    ("llamacpp__openai-gpt-oss-120b.jinja", "gpt_oss", false),
    ("pub__Kimi-K2-0905.jinja", "kimi_k2", true),
    // The prompt ends inside the reasoning.
    ("smg__kimi_k25.jinja", "kimi_k2", false),
    // Blanks of the template's own indentation.
    ("vllm__tool_chat_template_deepseekv3.jinja", "deepseek_v3", false),
    // Indented JSON.
    ("vllm__tool_chat_template_granite.jinja", "granite", false),
    // A newline after the last call.
    ("vllm__tool_chat_template_granite_20b_fc.jinja", "granite_20b_fc", false),
    // `arguments` for `parameters`.
    ("vllm__tool_chat_template_internlm2_tool.jinja", "internlm2", false),
    // Strings without quotes, which cannot be distinguished from names.
    ("vllm__tool_chat_template_llama3.2_pythonic.jinja", "llama_pythonic", false),
    // History without any marker, with arguments in Python syntax.
    ("vllm__tool_chat_template_phi4_mini.jinja", "functools", false),
];
/// Templates whose history does not contain the calls.
const UNREADABLE: &[&str] =
    &["vllm__tool_chat_template_llama3.2_pythonic.jinja", "vllm__tool_chat_template_phi4_mini.jinja"];
/// Templates that omit text beside calls.
const DROP_TEXT: &[&str] = &[
    "llamacpp__Mistral-Small-3.2-24B-Instruct-2506.jinja",
    "llamacpp__NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use.jinja",
    "llamacpp__meta-llama-Llama-3.1-8B-Instruct.jinja",
    "llamacpp__mistralai-Mistral-Nemo-Instruct-2407.jinja",
    "llamacpp__openai-gpt-oss-120b.jinja",
    "vllm__tool_chat_template_granite.jinja",
    "vllm__tool_chat_template_granite_20b_fc.jinja",
];
const ENDS: &[&str] = &[
    "<|eom|>",
    "<|im_end|>",
    "<|end_of_text|>",
    "<|eot_id|>",
    "<|call|>",
    "<|endoftext|>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
];

fn rows() -> Vec<Value> {
    serde_json::from_str(include_str!("templates.json")).unwrap()
}

fn turn_of(row: &Value) -> Option<&str> {
    let turn = row["turn"].as_str()?.trim_end_matches('\n');
    Some(ENDS.iter().find_map(|e| turn.strip_suffix(e)).unwrap_or(turn))
}

fn tools() -> Vec<Tool> {
    let parameters = json!({"properties": {
        "city": {"type": "string"}, "days": {"type": "integer"}, "tags": {"type": "array"}, "deep": {"type": "object"}
    }});
    ["get_weather", "search"]
        .map(|n| Tool { name: n.into(), parameters: Some(parameters.clone()), ..Tool::default() })
        .into()
}

#[test]
fn each_template_is_detected_as_its_format() {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/templates");
    for (file, format, _) in TEMPLATES {
        let template = std::fs::read_to_string(format!("{directory}/{file}")).expect(file);
        let found = detect(&ModelDirFacts { template: Some(&template), architecture: None, special: &|_| false });
        assert_eq!(found.map(|f| f.name), Some(*format), "{file}");
    }
}

#[test]
fn turns_of_the_models_own_templates_are_read() {
    let mut read = 0;
    for row in rows() {
        let file = row["template"].as_str().unwrap_or_default();
        let case = row["case"].as_str().unwrap_or_default();
        let Some((_, format, _)) = TEMPLATES.iter().find(|(f, ..)| *f == file) else { panic!("{file} is not listed") };
        let (Some(format), Some(turn)) = (by_name(format), turn_of(&row)) else { continue };
        if UNREADABLE.contains(&file) {
            continue;
        }
        let start = format.start_after(row["prompt"].as_str().unwrap_or_default());
        // Whatever the generation prompt has and history has not is not open there.
        let start = if row["unwritten"].as_str().is_some_and(|u| !u.trim().is_empty()) { Region::Text } else { start };
        let mut parser = Parser::new(format, ParserOptions { start, tools: tools().into(), parse_tools: true });
        let mut events = Vec::new();
        for piece in format.split(turn) {
            parser.push(piece.as_piece(), &mut events);
        }
        parser.finish(&mut events);
        let events = fold(&events);
        let mut calls = row["calls"].as_array().cloned().unwrap_or_default();
        if !format.many && format.name == "gpt_oss" {
            calls.truncate(1);
        }
        let (mut names, mut arguments, mut text) = (Vec::new(), Vec::new(), String::new());
        for event in &events {
            match event {
                Event::ToolCallStart { name, .. } => names.push(json!(name)),
                Event::ArgumentsDelta { text, .. } => arguments.push(serde_json::from_str::<Value>(text).unwrap()),
                Event::ToolCallEnd { complete, .. } => assert!(complete, "{file} {case}"),
                Event::TextDelta(s) => text.push_str(s),
                Event::Malformed(s) => panic!("{file} {case}: {s:?} of {turn:?}"),
                _ => {}
            }
        }
        let of = |key: &str| calls.iter().map(|c| c[key].clone()).collect::<Vec<_>>();
        assert_eq!(
            (&names, &arguments),
            (&of("name"), &of("arguments")),
            "{file} {case}: {turn:?} as {}",
            short(&events)
        );
        let want = if DROP_TEXT.contains(&file) { "" } else { row["text"].as_str().unwrap_or_default() };
        assert_eq!(text.trim(), want, "{file} {case}: {turn:?}");
        read += 1;
    }
    assert!(read > 50, "{read} turns");
}

#[test]
fn the_renderer_writes_what_templates_write() {
    let mut equal = 0;
    for row in rows() {
        let file = row["template"].as_str().unwrap_or_default();
        let Some((_, name, true)) = TEMPLATES.iter().find(|(f, ..)| *f == file) else { continue };
        let (Some(format), Some(want)) = (by_name(name), turn_of(&row)) else { continue };
        let call = |c: &Value| Call {
            name: c["name"].as_str().unwrap_or_default().to_owned(),
            // Python's separators, as in the templates' tojson.
            arguments: spaced(&c["arguments"]),
        };
        let calls = row["calls"].as_array().map(|c| c.iter().map(call).collect()).unwrap_or_default();
        let text = if DROP_TEXT.contains(&file) { "" } else { row["text"].as_str().unwrap_or_default() };
        let turn = Turn { reasoning: None, text: text.to_owned(), calls };
        assert_eq!(render_text(&render(format, &turn, RenderOptions::default())), want, "{file} {}", row["case"]);
        equal += 1;
    }
    assert!(equal > 25, "{equal} turns");
}

/// JSON with blanks after commas and colons.
fn spaced(value: &Value) -> String {
    match value {
        Value::Array(items) => format!("[{}]", items.iter().map(spaced).collect::<Vec<_>>().join(", ")),
        Value::Object(members) => {
            let members: Vec<String> =
                members.iter().map(|(k, v)| format!("{}: {}", Value::from(k.as_str()), spaced(v))).collect();
            format!("{{{}}}", members.join(", "))
        }
        other => other.to_string(),
    }
}
