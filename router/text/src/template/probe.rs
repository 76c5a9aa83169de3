//! Detects which inputs a template supports, by rendering small conversations when it is loaded.

use minijinja::Value;
use serde_json::{Map, Value as Json, json};

use super::engine::Engine;
use super::normalize::{ContentForm, ContentForms, NullContentForm, NullContentForms, TemplateCapabilities};
use super::python;

const TEXT: &str = "xqzprobe";
const ARGUMENTS: &str = r#"{"xqzkey": "xqzvalue"}"#;
/// How templates write these arguments as JSON.
const JSON_FORMS: [&str; 2] = [ARGUMENTS, r#"{"xqzkey":"xqzvalue"}"#];

pub(super) fn probe(engine: &Engine, name: &str, source: &str) -> TemplateCapabilities {
    let render = |messages: Vec<Json>| render(engine, name, source, &messages, Json::Null);
    let lists = |conversation: &dyn Fn(Json) -> Vec<Json>| {
        let text = render(conversation(json!(TEXT)));
        let parts = render(conversation(json!([{"type": "text", "text": TEXT}])));
        // A template that iterates over parts shows the text; one that prints the list as it is also shows its quotes.
        let iterates = parts.is_some_and(|parts| {
            parts.contains(TEXT) && !["'type'", "\"type\"", "\\\"type"].iter().any(|t| parts.contains(t))
        });
        match text.is_some_and(|text| text.contains(TEXT)) {
            true => Some(if iterates { ContentForm::Both } else { ContentForm::Text }),
            false => iterates.then_some(ContentForm::Parts),
        }
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
    let by_user = lists(&user).unwrap_or_default();
    let content = ContentForms {
        user: by_user,
        system: lists(&system).unwrap_or(by_user),
        assistant: lists(&assistant).unwrap_or(by_user),
        tool: lists(&tool).unwrap_or(by_user),
    };
    let object = render(calling(json!({"xqzkey": "xqzvalue"})));
    let writes_json = object.as_ref().is_some_and(|prompt| JSON_FORMS.iter().any(|form| prompt.contains(form)));
    let string_arguments = match (render(calling(json!(ARGUMENTS))), object) {
        (Some(text), object) if text.contains("xqzkey") => {
            text.contains(ARGUMENTS) && object.is_none_or(|object| shows_dict(&object))
        }
        (_, Some(_)) => false,
        // The template rejects this conversation with both forms: look at the source.
        _ => source.contains("arguments is string") || source.contains("arguments'] is string"),
    };
    let tool = json!({"type": "function", "function": {"name": TEXT, "description": "", "parameters": {}}});
    let declared = json!({"role": "system", "content": "", "tools": [tool.clone()]});
    let message_tools = render(vec![declared, json!({"role": "user", "content": "Hi"})]);
    let message_tools = message_tools.is_some_and(|prompt| prompt.contains(TEXT));
    let arguments = if string_arguments { json!(ARGUMENTS) } else { json!({"xqzkey": "xqzvalue"}) };
    let no_content = probe_no_content(&render, &arguments, message_tools);
    let result = json!({"role": "tool", "tool_call_id": "abcdefghi", "name": "f", "content": "1"});
    let tried = [user(json!("Hi")), system(json!("S")), [calling(arguments), vec![result]].concat()];
    let with_tools = tried.iter().filter_map(|messages| self::render(engine, name, source, messages, json!([tool])));
    let shown: Vec<bool> = with_tools.map(|prompt| prompt.contains(TEXT)).collect();
    let tools = !shown.is_empty() && shown.iter().all(|shown| *shown);
    let object_arguments = writes_json || !string_arguments;
    TemplateCapabilities { string_arguments, object_arguments, content, message_tools, tools, no_content }
}

fn probe_no_content(
    render: &dyn Fn(Vec<Json>) -> Option<String>,
    arguments: &Json,
    message_tools: bool,
) -> NullContentForms {
    let user = json!({"role": "user", "content": "Hi"});
    let answer = json!({"role": "assistant", "content": "Yo"});
    let call = |id: &str| json!({"id": id, "type": "function", "function": {"name": "f", "arguments": arguments}});
    let calling = |calls: &[&str], reasoning: Option<&str>| {
        let calls: Vec<Json> = calls.iter().map(|id| call(id)).collect();
        let mut message = json!({"role": "assistant", "tool_calls": calls});
        if let Some(reasoning) = reasoning {
            message = super::normalize::alias_reasoning(with_field(message, "reasoning_content", json!(reasoning)));
        }
        message
    };
    let result = |id: &str| json!({"role": "tool", "tool_call_id": id, "name": "f", "content": "1"});
    let (one, two) = ("abcdefghi", "abcdefghj");
    let calls = [
        vec![user.clone(), calling(&[one], None)],
        vec![user.clone(), calling(&[one], None), result(one)],
        vec![user.clone(), calling(&[one], None), result(one), answer.clone(), user.clone()],
        vec![user.clone(), calling(&[one], None), result(one), calling(&[two], None), result(two)],
        vec![user.clone(), calling(&[one], Some(TEXT)), result(one), answer.clone(), user.clone()],
        vec![user.clone(), calling(&[one], Some(TEXT)), result(one)],
        vec![user.clone(), calling(&[one, two], None), result(one), result(two), answer, user.clone()],
    ];
    let silent = json!({"role": "assistant"});
    let thought = super::normalize::alias_reasoning(with_field(silent.clone(), "reasoning_content", json!(TEXT)));
    let other = [
        vec![user.clone(), silent.clone(), user.clone()],
        vec![user.clone(), thought.clone(), user.clone()],
        vec![user.clone(), silent],
        vec![user.clone(), thought],
    ];
    let tool = json!({"type": "function", "function": {"name": "f", "description": "", "parameters": {}}});
    let declarations = [vec![json!({"role": "system", "tools": [tool]}), user]];
    NullContentForms {
        calls: probe_absent(render, &calls),
        other: probe_absent(render, &other),
        declarations: if message_tools { probe_absent(render, &declarations) } else { NullContentForm::default() },
    }
}

/// How to pass absent content in these conversations: the form with which the template renders most of them. When null
/// and an empty text are equally good but give different prompts, null: the template tests for it.
fn probe_absent(render: &dyn Fn(Vec<Json>) -> Option<String>, conversations: &[Vec<Json>]) -> NullContentForm {
    let prompts = |content: Option<Json>| -> Vec<Option<String>> {
        let filled = |message: &Json| match (&content, message.get("content")) {
            (Some(content), None) => with_field(message.clone(), "content", content.clone()),
            _ => message.clone(),
        };
        conversations.iter().map(|messages| render(messages.iter().map(filled).collect())).collect()
    };
    let candidates = [
        (NullContentForm::Null, prompts(Some(Json::Null))),
        (NullContentForm::EmptyText, prompts(Some(json!("")))),
        (NullContentForm::NoField, prompts(None)),
    ];
    // A prompt that prints the null counts as failed.
    let spelled = |prompt: &Option<String>| {
        prompt.as_ref().map(|prompt| ["None", "null"].iter().map(|null| prompt.matches(null).count()).sum::<usize>())
    };
    let fewest: Vec<Option<usize>> =
        (0..conversations.len()).map(|i| candidates.iter().filter_map(|(_, all)| spelled(&all[i])).min()).collect();
    let good = |prompts: &[Option<String>]| {
        prompts.iter().zip(&fewest).filter(|(prompt, fewest)| prompt.is_some() && spelled(prompt) == **fewest).count()
    };
    let [null, empty, none] = [0, 1, 2].map(|i| good(&candidates[i].1));
    if none > null.max(empty) {
        NullContentForm::NoField
    } else if null > empty || (null == empty && candidates[0].1 != candidates[1].1) {
        NullContentForm::Null
    } else {
        NullContentForm::EmptyText
    }
}

fn with_field(mut message: Json, field: &str, value: Json) -> Json {
    message[field] = value;
    message
}

/// Whether the arguments appear as JSON, or as a Python dict if the template does not use `tojson`. Otherwise the
/// template writes arguments in another syntax, and a JSON string in it would not be what the model was trained on.
fn shows_dict(prompt: &str) -> bool {
    let solid: String = prompt.chars().filter(|c| !c.is_whitespace()).collect();
    [r#"{"xqzkey":"xqzvalue"}"#, "{'xqzkey':'xqzvalue'}", r#"{\"xqzkey\":\"xqzvalue\"}"#]
        .iter()
        .any(|dict| solid.contains(dict))
}

fn calling(arguments: Json) -> Vec<Json> {
    let call = json!({"id": "abcdefghi", "type": "function", "function": {"name": "f", "arguments": arguments}});
    vec![json!({"role": "user", "content": "Hi"}), json!({"role": "assistant", "content": "", "tool_calls": [call]})]
}

fn render(engine: &Engine, name: &str, source: &str, messages: &[Json], tools: Json) -> Option<String> {
    let mut context: Map<String, Json> = engine.special_tokens().clone();
    context.insert("messages".into(), Json::Array(messages.to_vec()));
    context.insert("tools".into(), tools);
    context.insert("documents".into(), Json::Null);
    context.insert("add_generation_prompt".into(), Json::Bool(false));
    let context = Value::from_pairs(context.iter().map(|(k, v)| (k.as_str(), python::from_json(v))));
    engine.render(name, source, context).ok()
}
