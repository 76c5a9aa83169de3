//! Finds out what a template understands by rendering small conversations with it, once, when it is loaded.

use minijinja::Value;
use serde_json::{Map, Value as Json, json};

use super::engine::Engine;
use super::normalize::{PartLists, Traits};
use super::python;

const TEXT: &str = "xqzprobe";
const ARGUMENTS: &str = r#"{"xqzkey": "xqzvalue"}"#;

pub(super) fn probe(engine: &Engine, name: &str, source: &str) -> Traits {
    let render = |messages: Vec<Json>| render(engine, name, source, &messages);
    let lists = |conversation: &dyn Fn(Json) -> Vec<Json>| {
        let text = render(conversation(json!(TEXT)))?;
        let parts = render(conversation(json!([{"type": "text", "text": TEXT}])));
        // A template that does not take the role apart shows nothing; one that prints a list shows its quotes.
        text.contains(TEXT).then(|| {
            parts.is_some_and(|parts| {
                parts.contains(TEXT) && !["'type'", "\"type\"", "\\\"type"].iter().any(|t| parts.contains(t))
            })
        })
    };
    let user = |content: Json| vec![json!({"role": "user", "content": content})];
    let system =
        |content: Json| vec![json!({"role": "system", "content": content}), json!({"role": "user", "content": "Hi"})];
    let assistant = |content: Json| {
        vec![
            json!({"role": "user", "content": "Hi"}),
            json!({"role": "assistant", "content": content}),
            json!({"role": "user", "content": "Hi"}),
        ]
    };
    let tool = |content: Json| {
        let mut messages = calling(json!({"a": "b"}));
        messages.push(json!({"role": "tool", "tool_call_id": "abcdefghi", "name": "f", "content": content}));
        messages
    };
    let by_user = lists(&user).unwrap_or(false);
    let part_lists = PartLists {
        user: by_user,
        system: lists(&system).unwrap_or(by_user),
        assistant: lists(&assistant).unwrap_or(by_user),
        tool: lists(&tool).unwrap_or(by_user),
    };
    let string_arguments = match (render(calling(json!(ARGUMENTS))), render(calling(json!({"xqzkey": "xqzvalue"})))) {
        (Some(text), _) if text.contains("xqzkey") => text.contains(ARGUMENTS),
        (_, Some(_)) => false,
        // Neither worked on this conversation; go by what the source says.
        _ => source.contains("arguments is string") || source.contains("arguments'] is string"),
    };
    let tool = json!({"type": "function", "function": {"name": TEXT, "description": "", "parameters": {}}});
    let declared = json!({"role": "system", "content": "", "tools": [tool]});
    let message_tools = render(vec![declared, json!({"role": "user", "content": "Hi"})]);
    Traits { string_arguments, part_lists, message_tools: message_tools.is_some_and(|prompt| prompt.contains(TEXT)) }
}

fn calling(arguments: Json) -> Vec<Json> {
    let call = json!({"id": "abcdefghi", "type": "function", "function": {"name": "f", "arguments": arguments}});
    vec![json!({"role": "user", "content": "Hi"}), json!({"role": "assistant", "content": "", "tool_calls": [call]})]
}

fn render(engine: &Engine, name: &str, source: &str, messages: &[Json]) -> Option<String> {
    let mut context: Map<String, Json> = engine.special_tokens().clone();
    context.insert("messages".into(), Json::Array(messages.to_vec()));
    context.insert("tools".into(), Json::Null);
    context.insert("documents".into(), Json::Null);
    context.insert("add_generation_prompt".into(), Json::Bool(false));
    let context = Value::from_pairs(context.iter().map(|(k, v)| (k.as_str(), python::from_json(v))));
    engine.render(name, source, context).ok()
}
