//! The response templates that transformers 5.24 (`cli/serving`) and TRL 1.16 (`chat_template_utils`) have for models
//! that ship none, and outputs of those models.

use serde_json::{Value, json};

use super::{ResponseTemplateError, from_response_template};
use crate::tests::{cuts, parse, pieces, short};
use crate::{Format, ParserOptions, Region, Tool};

fn qwen3_5() -> Value {
    json!({
        "defaults": {"role": "assistant"},
        "start_anchor": "<|im_start|>assistant\n",
        "fields": {
            "reasoning_content": {"open": "<think>", "close_pattern": r"</think>\s*", "content": "text"},
            "tool_calls": {
                "open_pattern": r"<tool_call>\s*<function=(?P<name>[^\n>]+)>",
                "close_pattern": r"</tool_call>\s*",
                "repeats": true,
                "content": "xml-inline",
                "content_args": {"tag_pattern": r"<parameter=(?P<key>[^>\n]+)>\s*(?P<value>.*?)\s*</parameter>"},
                "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}},
            },
            "content": {"close_pattern": r"<\|im_end\|>\s*", "content": "text"},
        },
    })
}

fn qwen3() -> Value {
    let calls = json!({
        "open_pattern": r"\s*<tool_call>",
        "close": "</tool_call>",
        "repeats": true,
        "content": "json",
        "transform": {"type": "function", "function": "{content}"},
    });
    let mut template = qwen3_5();
    template["fields"]["tool_calls"] = calls;
    template
}

fn glm4_moe() -> Value {
    let calls = json!({
        "open_pattern": r"<tool_call>(?P<name>\S+)\n?",
        "close_pattern": r"</tool_call>\s*",
        "repeats": true,
        "content": "xml-inline",
        "content_args": {
            "tag_pattern": r"<arg_key>(?P<key>[^<]+)</arg_key>\s*\n<arg_value>(?P<value>.*?)</arg_value>",
        },
        "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}},
    });
    let mut template = qwen3_5();
    template["fields"]["tool_calls"] = calls;
    template["fields"]["content"] = json!({"close_pattern": r"<\|user\|>\s*|$", "content": "text"});
    template
}

fn gemma4() -> Value {
    json!({
        "start_anchor": ["<|turn>model\n", "<tool_response|>"],
        "fields": {
            "reasoning_content": {"open": "<|channel>thought\n", "close": "<channel|>", "content": "text"},
            "tool_calls": {
                "open_pattern": r"<\|tool_call>call:(?P<name>\w+)",
                "close": "<tool_call|>",
                "repeats": true,
                "content": "json",
                "content_args": {"unquoted_keys": true, "string_delims": [["<|\"|>", "<|\"|>"]]},
                "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}},
            },
            "content": {"close": ["<turn|>", "<|tool_response>", "<eos>"], "content": "text"},
        },
    })
}

/// A list of objects between two markers, as Cohere's models write calls.
fn list() -> Value {
    json!({"start_anchor": "<|START|>", "fields": {"tool_calls": {
        "open": "<|START_ACTION|>",
        "close": "<|END_ACTION|>",
        "content": "json",
        "transform": {"type": "function", "function": {"name": "{tool_name}", "arguments": "{parameters}"}},
        "transform_each": true,
    }}})
}

const TOKENS: &[&str] = &[
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<|channel>",
    "<channel|>",
    "<|tool_call>",
    "<tool_call|>",
    "<|\"|>",
];

fn derived(template: &Value) -> Vec<&'static Format> {
    from_response_template(template, &|text| TOKENS.contains(&text)).expect("a format")
}

#[test]
fn calls_are_read_in_every_layout() {
    let parameters = json!({"properties": {"s": {"type": "string"}, "n": {"type": "integer"}}});
    let tools = ["f", "g"].map(|n| Tool { name: n.into(), parameters: Some(parameters.clone()), ..Tool::default() });
    for (template, output, want) in [
        (
            qwen3(),
            "<think>\nHm.\n</think>\n\nSo.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"n\": 3}}\n</tool_call>\n<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>",
            r#"R(Hm.)T(So.)C(f|-|{"n": 3})C(g|-|{})"#,
        ),
        (
            qwen3_5(),
            "So.\n<tool_call>\n<function=f>\n<parameter=s>\nx y\n</parameter>\n<parameter=n>\n3\n</parameter>\n</function>\n</tool_call>",
            r#"T(So.)C(f|-|{"s": "x y", "n": 3})"#,
        ),
        (
            glm4_moe(),
            "«<tool_call>»f\n<arg_key>s</arg_key>\n<arg_value>x</arg_value>\n<arg_key>n</arg_key>\n<arg_value>3</arg_value>\n«</tool_call>»",
            r#"C(f|-|{"s": "x", "n": 3})"#,
        ),
        (
            gemma4(),
            "«<|channel>»thought\nHm.«<channel|>»«<|tool_call>»call:f{n:3,s:«<|\"|>»x«<|\"|>»}«<tool_call|>»",
            r#"R(Hm.)C(f|-|{"n": 3, "s": "x"})"#,
        ),
        (
            list(),
            "<|START_ACTION|>[\n    {\"tool_name\": \"f\", \"parameters\": {\"n\": 3}},\n    {\"tool_name\": \"g\", \"parameters\": {}}\n]<|END_ACTION|>",
            r#"C(f|-|{"n": 3})C(g|-|{})"#,
        ),
    ] {
        let formats = derived(&template);
        assert!(!formats.is_empty());
        let read = |format: &'static Format, cut: &[crate::OwnedPiece]| {
            let options = ParserOptions { start: Region::Text, tools: tools.to_vec().into(), parse_tools: true };
            short(&parse(format, options, cut))
        };
        // The likeliest layout is the first.
        for cut in cuts(&pieces(output), &mut crate::tests::Random::new(3)) {
            assert_eq!(read(formats[0], &cut), want, "{output:?}");
        }
    }
}

#[test]
fn layouts_that_the_template_leaves_open_are_several_formats() {
    let rendered = |format: &&'static Format| {
        let call = crate::Call { name: "f".into(), arguments: json!({"s": "x"}).to_string() };
        let turn = crate::Turn { calls: vec![call], ..crate::Turn::default() };
        crate::render_text(&crate::render(format, &turn, crate::RenderOptions::default()))
    };
    let all: Vec<String> = derived(&qwen3_5()).iter().map(rendered).collect();
    assert_eq!(
        all,
        [
            "<tool_call>\n<function=f>\n<parameter=s>\nx\n</parameter>\n</function>\n</tool_call>",
            "<tool_call><function=f><parameter=s>x</parameter></function></tool_call>",
            "<tool_call>\n<function=f>\n<parameter=s>x</parameter>\n</function>\n</tool_call>",
            "<tool_call><function=f><parameter=s>\nx\n</parameter></function></tool_call>",
            "<tool_call>\n<function=f>\n<parameter=s>\nx\n</parameter>\n</tool_call>",
            "<tool_call><function=f><parameter=s>x</parameter></tool_call>",
            "<tool_call>\n<function=f>\n<parameter=s>x</parameter>\n</tool_call>",
            "<tool_call><function=f><parameter=s>\nx\n</parameter></tool_call>",
        ]
    );
}

#[test]
fn what_cannot_be_derived_says_where() {
    let problem = |template: Value| match from_response_template(&template, &|_| false) {
        Err(ResponseTemplateError::Field { field, .. }) => field,
        other => format!("{other:?}"),
    };
    let with = |path: &str, value: Value| {
        let mut template = qwen3_5();
        *template.pointer_mut(path).expect("a member") = value;
        template
    };
    for (path, value, field) in [
        ("/fields", json!([]), "response_template.fields"),
        ("/fields/tool_calls/content", json!("kv-lines"), "response_template.fields.tool_calls.content"),
        (
            "/fields/tool_calls/open_pattern",
            json!(r"(?:<a>|,)(?P<name>\w+)\("),
            "response_template.fields.tool_calls.open_pattern",
        ),
        (
            "/fields/tool_calls/open_pattern",
            json!(r#"\{"name": "(?P<name>\w+)""#),
            "response_template.fields.tool_calls.open",
        ),
        (
            "/fields/tool_calls/content_args/tag_pattern",
            json!(r"(?=x)(?P<key>\w+)"),
            "response_template.fields.tool_calls.content_args.tag_pattern",
        ),
    ] {
        assert_eq!(problem(with(path, value)), field);
    }
}
