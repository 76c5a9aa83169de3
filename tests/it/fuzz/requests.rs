//! Requests: mostly valid ones with something unusual, so that they are not rejected early.

use proptest::{collection::vec, option, prelude::*, sample::select};
use serde_json::{Map, Value, json};

use super::{
    constraints::{parameters, response_format, schema, structured_outputs},
    dialects::{COUNT_TOKENS, EMBEDDINGS, INPUT_TOKENS, MESSAGES, RESPONSES},
    values::{deep, json, name, number, text},
};
use crate::it::process::Server;

pub const PATHS: [&str; 10] = [
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/chat/completions/render",
    "/tokenize",
    "/detokenize",
    MESSAGES,
    COUNT_TOKENS,
    RESPONSES,
    INPUT_TOKENS,
    EMBEDDINGS,
];

#[derive(Debug, Clone)]
pub struct Case {
    pub path: &'static str,
    pub body: String,
}

/// Fragments of model output.
const FRAGMENTS: &[&str] = &[
    "Hello",
    " ",
    "\n",
    "<think>",
    "</think>",
    "<|tool_calls_section_begin|>",
    "<|tool_call_begin|>",
    "functions.f:0",
    "functions.get_weather:0",
    "f:1",
    "get_weather",
    "<|tool_call_argument_begin|>",
    "{",
    "}",
    "{}",
    "\"a\"",
    ":",
    "1",
    ",",
    "\"city\":\"Paris\"",
    "\"\\u00e9\\\"",
    "[",
    "]",
    "<|tool_call_end|>",
    "<|tool_calls_section_end|>",
    "<|im_end|>",
    "<tool_call>",
    "</tool_call>",
    "{\"name\": \"f\", \"arguments\": {",
    "{\"name\": \"f\", \"parameters\": {}}",
    "😀",
    "null",
    "1e400",
    "-",
];

/// Token ids of each fragment, with special tokens as such.
pub fn vocabulary(server: &Server) -> Vec<Vec<u64>> {
    let ids = |text: &&str| {
        let answer = server.post("/tokenize", json!({"prompt": text, "add_special_tokens": false})).json();
        answer["tokens"].as_array().expect("ids").iter().map(|id| id.as_u64().expect("an id")).collect()
    };
    FRAGMENTS.iter().map(ids).collect()
}

pub fn script(vocabulary: &[Vec<u64>]) -> BoxedStrategy<Value> {
    let fragment = prop_oneof![12 => select(vocabulary.to_vec()), 1 => (0u64..6000).prop_map(|id| vec![id])];
    vec(fragment, 0..40).prop_map(|parts| json!(parts.concat())).boxed()
}

fn call() -> BoxedStrategy<Value> {
    let arguments = prop_oneof![3 => json().prop_map(|value| json!(value.to_string())), 1 => json(), 1 => text().prop_map(|text| json!(text))];
    (text(), name(), arguments)
        .prop_map(|(id, name, arguments)| json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}))
        .boxed()
}

fn content() -> BoxedStrategy<Value> {
    prop_oneof![
        6 => text().prop_map(Value::String),
        1 => Just(Value::Null),
        1 => vec(text().prop_map(|text| json!({"type": "text", "text": text})), 0..4).prop_map(Value::Array),
        1 => json(),
    ]
    .boxed()
}

fn message() -> BoxedStrategy<Value> {
    let plain = (select(vec!["user", "user", "system", "developer", "assistant", "tool", "wizard"]), content())
        .prop_map(|(role, content)| json!({"role": role, "content": content}));
    let calls = (content(), vec(call(), 0..4), option::of(text())).prop_map(|(content, calls, reasoning)| {
        json!({"role": "assistant", "content": content, "tool_calls": calls, "reasoning_content": reasoning})
    });
    let result =
        (text(), content()).prop_map(|(id, content)| json!({"role": "tool", "tool_call_id": id, "content": content}));
    prop_oneof![5 => plain, 2 => calls, 1 => result, 1 => json()].boxed()
}

fn messages() -> BoxedStrategy<Value> {
    prop_oneof![
        4 => Just(json!([{"role": "user", "content": "hello"}])),
        4 => vec(message(), 0..6).prop_map(Value::Array),
        1 => json(),
        1 => deep(),
    ]
    .boxed()
}

fn tool() -> BoxedStrategy<Value> {
    let right = (name(), option::of(text()), parameters(), option::of(any::<bool>())).prop_map(
        |(name, description, parameters, strict)| {
            let mut function = json!({"name": name, "description": description, "parameters": parameters});
            if let (Some(strict), Some(function)) = (strict, function.as_object_mut()) {
                function.insert("strict".into(), json!(strict));
            }
            json!({"type": "function", "function": function})
        },
    );
    prop_oneof![9 => right, 1 => json()].boxed()
}

fn tool_choice() -> BoxedStrategy<Value> {
    prop_oneof![
        3 => select(vec![json!("auto"), json!("none"), json!("required")]),
        1 => name().prop_map(|name| json!({"type": "function", "function": {"name": name}})),
        1 => json(),
    ]
    .boxed()
}

/// A chat with valid fields that challenges only the grammar's compiler, the engine or the parser.
fn deep_chat(vocabulary: &[Vec<u64>]) -> BoxedStrategy<String> {
    let names = || select(vec!["f", "g", "get_weather", "n.m", "x-y"]);
    let tools = vec((names(), parameters()), 1..4).prop_map(|tools| {
        // Of equal names, the last one wins.
        let tools: std::collections::BTreeMap<_, _> = tools.into_iter().collect();
        let tool = |(name, schema)| json!({"type": "function", "function": {"name": name, "parameters": schema}});
        tools.into_iter().map(tool).collect::<Vec<Value>>()
    });
    let calling = (tools, select(vec!["auto", "auto", "none", "required"]), any::<bool>()).prop_map(
        |(tools, choice, parallel)| json!({"tools": tools, "tool_choice": choice, "parallel_tool_calls": parallel}),
    );
    let formatted = (schema(), any::<bool>()).prop_map(|(schema, strict)| {
        json!({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema, "strict": strict}}})
    });
    let constraint = prop_oneof![
        4 => calling,
        2 => formatted,
        3 => structured_outputs().prop_map(|outputs| json!({"structured_outputs": outputs})),
        1 => Just(json!({})),
    ];
    let sampling = select(vec![
        json!({}),
        json!({"temperature": 0}),
        json!({"temperature": 2, "seed": 7}),
        json!({"n": 3}),
        json!({"stop": ["}", "</think>"]}),
        json!({"stop_token_ids": [5106, 5105, 17]}),
        json!({"min_tokens": 5}),
        json!({"ignore_eos": true}),
        json!({"logprobs": true, "top_logprobs": 3}),
        json!({"return_grammar": true}),
        json!({"include_stop_str_in_output": true, "stop": "a"}),
    ]);
    let delivery = select(vec![
        json!({}),
        json!({"stream": true}),
        json!({"stream": true, "stream_options": {"include_usage": true}}),
    ]);
    (constraint, sampling, delivery, option::weighted(0.8, script(vocabulary)), 1u32..120)
        .prop_map(|(constraint, sampling, delivery, script, most)| {
            let mut body = Map::new();
            for part in [constraint, sampling, delivery] {
                body.extend(part.as_object().cloned().unwrap_or_default());
            }
            body.extend(script.map(|script| ("script".to_owned(), script)));
            body.insert("model".into(), json!("demo"));
            body.insert("max_tokens".into(), json!(most));
            body.insert("messages".into(), json!([{"role": "user", "content": "hello"}]));
            Value::Object(body).to_string()
        })
        .boxed()
}

/// A field and its possible values; a request has some of them.
fn field(vocabulary: &[Vec<u64>]) -> BoxedStrategy<(String, Value)> {
    let with =
        |names: &'static [&'static str], value: BoxedStrategy<Value>| (select(names).prop_map(str::to_owned), value);
    let small = |range: std::ops::Range<i64>| range.prop_map(|number| json!(number)).boxed();
    let numbers = prop_oneof![3 => number(), 2 => small(0..4), 1 => json()].boxed();
    let texts = prop_oneof![
        vec(text(), 0..5).prop_map(|texts| json!(texts)),
        text().prop_map(|text| json!(text)),
        select(vec!["</think>", "<|im_end|>", "}", "<|tool_call_end|>"]).prop_map(|text| json!([text]))
    ]
    .boxed();
    let ids = vec((0u64..6000).prop_map(|id| json!(id)), 0..5).prop_map(Value::Array).boxed();
    let flag = any::<bool>().prop_map(Value::Bool).boxed();
    prop_oneof![
        6 => with(&["script"], script(vocabulary)),
        5 => with(&["tools"], vec(tool(), 0..4).prop_map(Value::Array).boxed()),
        2 => with(&["tool_choice"], tool_choice()),
        4 => with(&["structured_outputs"], structured_outputs()),
        3 => with(&["response_format"], response_format()),
        2 => with(&["stream"], Just(json!(true)).boxed()),
        1 => with(&["stream_options"], prop_oneof![Just(json!({"include_usage": true})), json()].boxed()),
        1 => with(&["temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "seed"], numbers.clone()),
        1 => with(&["n", "best_of", "top_logprobs", "logprobs", "min_tokens", "max_completion_tokens", "prompt_logprobs"], numbers),
        1 => with(&["stop"], texts),
        1 => with(&["stop_token_ids", "allowed_token_ids"], ids),
        1 => with(&["ignore_eos", "include_stop_str_in_output", "return_token_ids", "parallel_tool_calls", "echo", "add_generation_prompt",
            "continue_final_message", "thinking", "include_reasoning", "skip_special_tokens", "return_grammar", "return_decisions", "logprobs"], flag),
        1 => with(&["logit_bias", "chat_template_kwargs", "documents", "metadata", "reasoning_effort", "cache_salt", "user", "priority"], json()),
        1 => (text(), json()),
    ]
    .boxed()
}

fn chat(vocabulary: &[Vec<u64>]) -> BoxedStrategy<String> {
    (messages(), vec(field(vocabulary), 0..6), 0u32..200)
        .prop_map(|(messages, fields, most)| {
            let mut body = Map::from_iter(fields);
            body.insert("messages".into(), messages);
            body.entry("model").or_insert(json!("demo"));
            body.entry("max_tokens").or_insert(json!(most));
            Value::Object(body).to_string()
        })
        .boxed()
}

fn completion(vocabulary: &[Vec<u64>]) -> BoxedStrategy<String> {
    let prompt = prop_oneof![
        text().prop_map(|text| json!(text)),
        vec(text(), 0..4).prop_map(|texts| json!(texts)),
        vec(0u64..6000, 0..20).prop_map(|ids| json!(ids)),
        json()
    ];
    (prompt, vec(field(vocabulary), 0..5), 0u32..100)
        .prop_map(|(prompt, fields, most)| {
            let mut body = Map::from_iter(fields);
            body.insert("prompt".into(), prompt);
            body.entry("model").or_insert(json!("demo"));
            body.entry("max_tokens").or_insert(json!(most));
            Value::Object(body).to_string()
        })
        .boxed()
}

/// The text of a body with some damage.
pub fn broken(body: BoxedStrategy<String>) -> BoxedStrategy<String> {
    let damage = select(vec![
        "", "\"", "{", "}", "[", ",", "\\", "\\ud800", "1e999", "-", "NaN", "\u{0}", "/*", "null", "\u{feff}", "🦀",
    ]);
    (body, any::<prop::sample::Index>(), damage, any::<bool>())
        .prop_map(|(body, place, damage, cut)| {
            let places: Vec<usize> = body.char_indices().map(|(at, _)| at).chain([body.len()]).collect();
            let at = *place.get(&places);
            format!("{}{damage}{}", &body[..at], if cut { "" } else { &body[at..] })
        })
        .boxed()
}

pub fn case(vocabulary: &[Vec<u64>]) -> BoxedStrategy<Case> {
    let [chat_path, completions, render, tokenize, detokenize, ..] = PATHS;
    let chats = chat(vocabulary);
    let at = |path: &'static str| move |body: String| Case { path, body };
    prop_oneof![
        20 => deep_chat(vocabulary).prop_map(at(chat_path)),
        8 => chats.clone().prop_map(at(chat_path)),
        3 => completion(vocabulary).prop_map(at(completions)),
        2 => broken(chats.clone()).prop_map(at(chat_path)),
        1 => chats.clone().prop_map(at(render)),
        1 => prop_oneof![chats, json().prop_map(|value| value.to_string())].prop_map(at(tokenize)),
        1 => json().prop_map(|value| json!({"tokens": value}).to_string()).prop_map(at(detokenize)),
        1 => prop_oneof![json(), deep()].prop_map(|value| value.to_string()).prop_map(at(chat_path)),
    ]
    .boxed()
}
