//! Property tests: for any conversation, rendering returns a prompt of bounded size or an error, and never panics.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Map, Value as Json, json};

use super::{ChatTemplate, RenderInput, TemplateOptions};

/// Loops, filters and slices as in the templates of models.
const SOURCES: &[&str] = &[
    "{% for m in messages %}<{{ m.role }}>{{ m['content'] | trim }}{% if m.tool_calls %}{% for c in m.tool_calls %}{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %}{% endif %}{% endfor %}",
    "{% for m in messages[::-1] %}{{ loop.index }}{{ m.content.split('</think>')[-1].lstrip('\\n') }}{% endfor %}{{ tools | tojson(indent=2) if tools }}",
    "{% set ns = namespace(n=0) %}{% for m in messages %}{% if m.content is string %}{% set ns.n = ns.n + m.content|length %}{% else %}{% for p in m.content %}{{ p.text or p }}{% endfor %}{% endif %}{% endfor %}{{ ns.n }}{{ messages[0].content[1:3] }}",
];

fn value() -> impl Strategy<Value = Json> {
    let leaf = prop_oneof![
        Just(Json::Null),
        any::<bool>().prop_map(Json::from),
        any::<i64>().prop_map(Json::from),
        any::<f64>().prop_map(Json::from),
        ".{0,8}".prop_map(Json::from),
        select(vec!["", "<|im_end|>", "</think>", "{{ x }}", "{% raw %}", "\u{f0000}\u{f0001}", "\0"])
            .prop_map(Json::from),
    ];
    leaf.prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(Json::from),
            vec((select(vec!["text", "type", "function", "name", "arguments", "é"]), inner), 0..4)
                .prop_map(|all| Json::Object(all.into_iter().map(|(k, v)| (k.to_owned(), v)).collect())),
        ]
    })
}

fn message() -> impl Strategy<Value = Json> {
    let role = select(vec!["user", "assistant", "system", "tool", "developer", "?"]);
    let fields = vec(
        (select(vec!["content", "tool_calls", "name", "tool_call_id", "reasoning_content", "tools"]), value()),
        0..4,
    );
    (role, fields).prop_map(|(role, fields)| {
        let mut message = Map::new();
        message.insert("role".into(), role.into());
        message.extend(fields.into_iter().map(|(k, v)| (k.to_owned(), v)));
        Json::Object(message)
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_conversation_is_rendered_or_rejected(
        messages in vec(message(), 0..5),
        tools in proptest::option::of(vec(value(), 0..3)),
        kwargs in vec((select(vec!["thinking", "messages", "tools", "x"]), value()), 0..3),
        flags: [bool; 3],
    ) {
        for source in SOURCES {
            let template = ChatTemplate::from_source(source, TemplateOptions::default()).unwrap();
            for raw in [false, true] {
                let input = RenderInput {
                    messages: messages.clone(),
                    tools: tools.clone().map(crate::tools::ToolSet::from),
                    kwargs: kwargs.iter().map(|(k, v)| ((*k).to_owned(), v.clone())).collect(),
                    add_generation_prompt: flags[0],
                    continue_final_message: flags[1],
                    raw,
                    ..RenderInput::default()
                };
                let size = json!(messages).to_string().len() + json!(tools).to_string().len();
                if let Ok(text) = template.render(&input) {
                    prop_assert!(text.len() < 4096 + 64 * size, "{} bytes of {size}", text.len());
                }
            }
        }
    }

    /// Templates of random fragments.
    #[test]
    fn every_source_is_compiled_or_rejected(parts in vec(select(vec![
        "{{", "}}", "{%", "%}", "{#", "#}", "{%-", " for x in ", "messages", " if ", " endif ", " endfor ", " set ", " macro f(a) ", " endmacro ",
        "|", "tojson", "[::-1]", "[", "]", "(", ")", "'", "\"", ".content", "raise_exception('x')", " generation ", " endgeneration ", "+", "~", "%", "0", "é", "\n",
    ]), 0..24)) {
        let source = parts.concat();
        if let Ok(template) = ChatTemplate::from_source(&source, TemplateOptions::default()) {
            let messages = vec![json!({"role": "user", "content": "Hi"})];
            let _ = template.render(&RenderInput { messages, ..RenderInput::default() });
        }
    }
}
