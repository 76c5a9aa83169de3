//! Bodies of the Messages API, the Responses API and embeddings: mostly valid ones with something unusual.

use proptest::{collection::vec, option, prelude::*, sample::select};
use serde_json::{Map, Value, json};

use super::{
    constraints::{parameters, schema},
    requests::{Case, broken, script},
    values::{deep, json, name, number, text},
};

pub const MESSAGES: &str = "/v1/messages";
pub const COUNT_TOKENS: &str = "/v1/messages/count_tokens";
pub const RESPONSES: &str = "/v1/responses";
pub const INPUT_TOKENS: &str = "/v1/responses/input_tokens";
pub const EMBEDDINGS: &str = "/v1/embeddings";

type Field = BoxedStrategy<(String, Value)>;

fn with(name: &'static str, value: impl Strategy<Value = Value> + 'static) -> Field {
    value.prop_map(move |value| (name.to_owned(), value)).boxed()
}

fn flag() -> BoxedStrategy<Value> {
    any::<bool>().prop_map(Value::Bool).boxed()
}

fn texts() -> BoxedStrategy<Value> {
    vec(text(), 0..4).prop_map(|texts| json!(texts)).boxed()
}

/// Text, or something else in its place.
fn words() -> BoxedStrategy<Value> {
    prop_oneof![9 => text().prop_map(Value::String), 1 => json()].boxed()
}

/// A body of these fields, some of which are there.
fn body(fixed: BoxedStrategy<Value>, field: Field) -> BoxedStrategy<String> {
    (fixed, vec(field, 0..6))
        .prop_map(|(fixed, fields)| {
            let mut body = Map::from_iter(fields);
            body.extend(fixed.as_object().cloned().unwrap_or_default());
            Value::Object(body).to_string()
        })
        .boxed()
}

/// A call and its result often have the same id.
fn id() -> BoxedStrategy<String> {
    prop_oneof![4 => select(vec!["toolu_1", "toolu_2", "call_1"]).prop_map(str::to_owned), 1 => text()].boxed()
}

fn block() -> BoxedStrategy<Value> {
    let result = (id(), words(), option::of(any::<bool>())).prop_map(
        |(id, content, error)| json!({"type": "tool_result", "tool_use_id": id, "content": content, "is_error": error}),
    );
    prop_oneof![
        6 => words().prop_map(|text| json!({"type": "text", "text": text})),
        3 => (id(), name(), json()).prop_map(|(id, name, input)| json!({"type": "tool_use", "id": id, "name": name, "input": input})),
        3 => result,
        1 => (words(), words()).prop_map(|(thought, signature)| json!({"type": "thinking", "thinking": thought, "signature": signature})),
        1 => words().prop_map(|data| json!({"type": "redacted_thinking", "data": data})),
        1 => select(vec!["image", "document", "server_tool_use", "tool_reference", "wizard"]).prop_map(|kind| json!({"type": kind})),
        1 => json(),
    ]
    .boxed()
}

fn content() -> BoxedStrategy<Value> {
    prop_oneof![6 => text().prop_map(Value::String), 4 => vec(block(), 0..4).prop_map(Value::Array), 1 => json()]
        .boxed()
}

fn anthropic_messages() -> BoxedStrategy<Value> {
    let message = (select(vec!["user", "user", "assistant", "system", "wizard"]), content())
        .prop_map(|(role, content)| json!({"role": role, "content": content}));
    prop_oneof![
        4 => Just(json!([{"role": "user", "content": "hello"}])),
        4 => vec(message, 0..6).prop_map(Value::Array),
        1 => json(),
        1 => deep(),
    ]
    .boxed()
}

fn anthropic_tools() -> BoxedStrategy<Value> {
    let tool = (name(), option::of(text()), parameters()).prop_map(
        |(name, description, schema)| json!({"name": name, "description": description, "input_schema": schema}),
    );
    let hosted = name().prop_map(|name| json!({"type": "web_search_20250305", "name": name}));
    vec(prop_oneof![8 => tool, 1 => hosted, 1 => json()], 0..4).prop_map(Value::Array).boxed()
}

fn anthropic_field(vocabulary: &[Vec<u64>]) -> Field {
    let choice = prop_oneof![
        3 => select(vec!["auto", "any", "none", "wizard"]).prop_map(|kind| json!({"type": kind})),
        1 => (name(), any::<bool>()).prop_map(|(name, only)| json!({"type": "tool", "name": name, "disable_parallel_tool_use": only})),
        1 => json(),
    ];
    let thinking = prop_oneof![
        select(vec!["enabled", "disabled", "adaptive", "wizard"])
            .prop_map(|kind| json!({"type": kind, "budget_tokens": 1024})),
        (number(), words())
            .prop_map(|(tokens, display)| json!({"type": "enabled", "budget_tokens": tokens, "display": display})),
        json()
    ];
    let output = (schema(), words())
        .prop_map(|(schema, effort)| json!({"effort": effort, "format": {"type": "json_schema", "schema": schema}}));
    prop_oneof![
        8 => with("script", script(vocabulary)),
        6 => with("tools", anthropic_tools()),
        2 => with("tool_choice", choice),
        3 => with("stream", prop_oneof![4 => Just(json!(true)), 1 => json()]),
        2 => with("thinking", thinking),
        2 => with("system", prop_oneof![words(), vec(block(), 0..3).prop_map(Value::Array)]),
        1 => with("stop_sequences", prop_oneof![3 => texts(), 1 => json()]),
        1 => with("output_config", prop_oneof![2 => output, 1 => json()]),
        1 => (select(vec!["temperature", "top_p", "top_k", "max_tokens", "seed"]).prop_map(str::to_owned), number()),
        1 => (select(vec!["metadata", "cache_control", "context_management", "service_tier", "container"]).prop_map(str::to_owned), json()),
        1 => (text(), json()),
    ]
    .boxed()
}

fn item() -> BoxedStrategy<Value> {
    let part = (select(vec!["input_text", "output_text", "refusal", "input_image"]), words())
        .prop_map(|(kind, text)| json!({"type": kind, "text": text}));
    let content = prop_oneof![3 => words(), 1 => vec(part, 0..3).prop_map(Value::Array)];
    let message = (select(vec!["user", "assistant", "system", "developer", "wizard"]), content)
        .prop_map(|(role, content)| json!({"type": "message", "role": role, "content": content}));
    let call = (id(), name(), prop_oneof![json().prop_map(|value| json!(value.to_string())), json()]);
    prop_oneof![
        6 => message,
        3 => call.prop_map(|(id, name, arguments)| json!({"type": "function_call", "call_id": id, "name": name, "arguments": arguments})),
        3 => (id(), words()).prop_map(|(id, output)| json!({"type": "function_call_output", "call_id": id, "output": output})),
        1 => (id(), name(), words()).prop_map(|(id, name, input)| json!({"type": "custom_tool_call", "call_id": id, "name": name, "input": input})),
        1 => (id(), words()).prop_map(|(id, output)| json!({"type": "custom_tool_call_output", "call_id": id, "output": output})),
        1 => words().prop_map(|sealed| json!({"type": "reasoning", "summary": [], "encrypted_content": sealed})),
        1 => json(),
    ]
    .boxed()
}

fn input() -> BoxedStrategy<Value> {
    prop_oneof![
        4 => Just(json!("hello")),
        4 => vec(item(), 0..6).prop_map(Value::Array),
        1 => json(),
        1 => deep(),
    ]
    .boxed()
}

fn responses_tools() -> BoxedStrategy<Value> {
    let function = || {
        (name(), parameters(), option::of(any::<bool>())).prop_map(
            |(name, parameters, strict)| json!({"type": "function", "name": name, "parameters": parameters, "strict": strict}),
        )
    };
    let grammar = select(vec!["start: \"a\"+", "start: /[ab]{3}/", "[ab]+", "start: start", "start: (", ""]);
    let custom =
        (name(), option::of((select(vec!["lark", "regex", "wizard"]), grammar))).prop_map(|(name, grammar)| {
            let mut tool = json!({"type": "custom", "name": name});
            if let (Some((syntax, definition)), Some(tool)) = (grammar, tool.as_object_mut()) {
                tool.insert("format".into(), json!({"type": "grammar", "syntax": syntax, "definition": definition}));
            }
            tool
        });
    let namespace = (name(), vec(function(), 0..3))
        .prop_map(|(name, tools)| json!({"type": "namespace", "name": name, "description": "d", "tools": tools}));
    let hosted = select(vec!["web_search", "mcp", "wizard"]).prop_map(|kind| json!({"type": kind}));
    vec(prop_oneof![6 => function(), 2 => custom, 1 => namespace, 1 => hosted, 1 => json()], 0..4)
        .prop_map(Value::Array)
        .boxed()
}

fn responses_field(vocabulary: &[Vec<u64>]) -> Field {
    let choice = prop_oneof![
        3 => select(vec!["auto", "none", "required", "wizard"]).prop_map(|choice| json!(choice)),
        1 => (select(vec!["function", "custom", "web_search"]), name()).prop_map(|(kind, name)| json!({"type": kind, "name": name})),
        1 => name().prop_map(|name| json!({"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": name}]})),
        1 => json(),
    ];
    let text = (schema(), any::<bool>()).prop_map(
        |(schema, strict)| json!({"format": {"type": "json_schema", "name": "n", "schema": schema, "strict": strict}}),
    );
    let reasoning = prop_oneof![
        select(vec!["low", "none", "wizard"]).prop_map(|effort| json!({"effort": effort, "summary": "auto"})),
        json()
    ];
    prop_oneof![
        8 => with("script", script(vocabulary)),
        6 => with("tools", responses_tools()),
        2 => with("tool_choice", choice),
        3 => with("stream", prop_oneof![4 => Just(json!(true)), 1 => json()]),
        2 => with("text", prop_oneof![3 => text, 1 => json()]),
        2 => with("reasoning", reasoning),
        2 => with("include", prop_oneof![2 => Just(json!(["reasoning.encrypted_content"])), 1 => json()]),
        1 => with("instructions", words()),
        1 => (select(vec!["parallel_tool_calls", "store", "background"]).prop_map(str::to_owned), flag()),
        1 => (select(vec!["temperature", "top_p", "max_output_tokens", "max_tool_calls", "top_logprobs", "seed"]).prop_map(str::to_owned), number()),
        1 => (select(vec!["metadata", "previous_response_id", "prompt", "conversation", "truncation", "prompt_cache_key"]).prop_map(str::to_owned), json()),
        1 => (super::values::text(), json()),
    ]
    .boxed()
}

fn messages(vocabulary: &[Vec<u64>]) -> BoxedStrategy<String> {
    let fixed = (anthropic_messages(), 1u32..120)
        .prop_map(|(messages, most)| json!({"model": "demo", "messages": messages, "max_tokens": most}));
    body(fixed.boxed(), anthropic_field(vocabulary))
}

fn responses(vocabulary: &[Vec<u64>]) -> BoxedStrategy<String> {
    let fixed = (input(), 1u32..120)
        .prop_map(|(input, most)| json!({"model": "demo", "input": input, "max_output_tokens": most}));
    body(fixed.boxed(), responses_field(vocabulary))
}

fn embeddings() -> BoxedStrategy<String> {
    let ids = || vec(prop_oneof![9 => 0u64..5000, 1 => any::<u64>()], 0..12);
    let input = prop_oneof![
        4 => text().prop_map(|text| json!(text)),
        4 => vec(words(), 0..6).prop_map(Value::Array),
        2 => ids().prop_map(|ids| json!(ids)),
        2 => vec(ids(), 0..4).prop_map(|lists| json!(lists)),
        1 => (text(), 1usize..3000).prop_map(|(text, times)| json!(vec![text; times])),
        1 => json(),
        1 => deep(),
    ];
    let field = prop_oneof![
        3 => with("encoding_format", prop_oneof![select(vec!["float", "base64", "int8"]).prop_map(|format| json!(format)), json()]),
        3 => with("dimensions", prop_oneof![(0u32..70).prop_map(|size| json!(size)), number(), json()]),
        1 => with("add_special_tokens", flag()),
        1 => (select(vec!["user", "cache_salt", "priority", "input_type", "truncate_prompt_tokens"]).prop_map(str::to_owned), json()),
        1 => (text(), json()),
    ];
    body(input.prop_map(|input| json!({"model": "demo", "input": input})).boxed(), field.boxed())
}

fn at(path: &'static str, body: BoxedStrategy<String>) -> BoxedStrategy<Case> {
    body.prop_map(move |body| Case { path, body }).boxed()
}

/// For a server that generates.
pub fn generating(vocabulary: &[Vec<u64>]) -> BoxedStrategy<Case> {
    let (anthropic, openai) = (messages(vocabulary), responses(vocabulary));
    prop_oneof![
        8 => at(MESSAGES, anthropic.clone()),
        8 => at(RESPONSES, openai.clone()),
        1 => at(COUNT_TOKENS, anthropic.clone()),
        1 => at(INPUT_TOKENS, openai.clone()),
        1 => at(MESSAGES, broken(anthropic)),
        1 => at(RESPONSES, broken(openai)),
        1 => at(EMBEDDINGS, embeddings()),
    ]
    .boxed()
}

/// For a server of embeddings.
pub fn embedding(vocabulary: &[Vec<u64>]) -> BoxedStrategy<Case> {
    prop_oneof![
        12 => at(EMBEDDINGS, embeddings()),
        2 => at(EMBEDDINGS, broken(embeddings())),
        1 => generating(vocabulary),
    ]
    .boxed()
}
