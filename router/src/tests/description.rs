//! `/openapi.json` describes every route, every request field and every answer field, and nothing else.

use std::collections::BTreeSet;

use serde_json::json;

use super::{
    messages::{message_events, message_tool, messages_request},
    *,
};
use crate::api::{anthropic, openai, responses};

fn document() -> Value {
    serde_json::from_str(crate::api::openapi::DOCUMENT).unwrap()
}

fn properties(document: &Value, schema: &str) -> BTreeSet<String> {
    document["components"]["schemas"][schema]["properties"].as_object().unwrap().keys().cloned().collect()
}

#[tokio::test]
async fn every_described_route_is_served_with_its_methods_only() {
    let router = TestRouter::new();
    assert_eq!(router.get("/openapi.json").await.ok(), document());
    for (path, item) in document()["paths"].as_object().unwrap() {
        let path = path.replace("{id}", "bytes").replace("{file}", "app.js");
        let described: Vec<&String> = item.as_object().unwrap().keys().collect();
        for method in ["get", "post"] {
            let request = Request::builder().method(method.to_uppercase().as_str()).uri(&path);
            let answer = Answer::of(router.send(request.body(Body::empty()).unwrap()).await).await;
            let status = answer.status;
            let wrong = status == StatusCode::METHOD_NOT_ALLOWED || answer.text.contains("unknown_url");
            assert_eq!(described.contains(&&method.to_owned()), !wrong, "{method} {path}: {status}");
        }
    }
}

#[test]
fn every_route_that_requires_a_key_is_described_so() {
    for (path, item) in document()["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let says = |status: &str| operation["responses"].get(status).is_some();
            let keyed = !crate::api::authenticate::is_public(path);
            // Looking at the list of models is free.
            assert_eq!((says("401"), says("429")), (keyed, keyed && method != "get"), "{method} {path}");
        }
    }
}

#[test]
fn every_route_in_the_code_is_described() {
    let source = include_str!("../api/http/mod.rs");
    let routes: BTreeSet<String> = source
        .lines()
        .filter_map(|line| line.trim().strip_prefix(".route(\"")?.split('"').next())
        .map(|route| route.replace("{*id}", "{id}"))
        .collect();
    let described: BTreeSet<String> = document()["paths"].as_object().unwrap().keys().cloned().collect();
    assert_eq!((routes.len(), routes), (25, described));
}

#[test]
fn exactly_the_fields_that_are_read_are_described() {
    let document = document();
    let set = |names: Vec<&'static str>| names.into_iter().map(String::from).collect::<BTreeSet<_>>();
    let chat = openai::asked_by_chat(json!({"messages": []}));
    assert_eq!(set(chat), properties(&document, "ChatRequest"));
    let response = responses::asked(json!({"input": "a"}));
    assert_eq!(set(response), properties(&document, "ResponsesRequest"));
    let completion = openai::asked_by_completion(json!({"prompt": "a"}));
    assert_eq!(set(completion), properties(&document, "CompletionRequest"));
    let embedding = openai::asked_by_embedding(json!({"input": "a"}));
    assert_eq!(set(embedding), properties(&document, "EmbeddingRequest"));
    let messages =
        anthropic::asked_by_messages(json!({"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}));
    assert_eq!(set(messages), properties(&document, "MessagesRequest"));
}

#[test]
fn every_field_that_is_refused_is_described_with_its_reason() {
    let document = document();
    for (schema, own) in [
        ("ChatRequest", [openai::IN_CONVERSATIONS, openai::IN_CHATS].concat()),
        ("CompletionRequest", openai::IN_COMPLETIONS.to_vec()),
        ("EmbeddingRequest", openai::IN_EMBEDDINGS.to_vec()),
        ("MessagesRequest", anthropic::IN_MESSAGES.to_vec()),
        ("ResponsesRequest", [openai::IN_CONVERSATIONS, responses::REFUSED].concat()),
    ] {
        let everywhere = if schema == "EmbeddingRequest" { &[] } else { openai::EVERYWHERE };
        let refused: serde_json::Map<String, Value> =
            everywhere.iter().chain(&own).map(|one| (one.name.into(), one.why.into())).collect();
        let schema = &document["components"]["schemas"][schema];
        assert_eq!(schema["x-refused-fields"], Value::Object(refused.clone()));
        // A field that is read is not refused.
        assert!(refused.keys().all(|name| schema["properties"].get(name).is_none()));
    }
}

/// Every field of a value is a property of its schema, recursively, and no required field is missing.
fn fits(document: &Value, schema: &Value, value: &Value, at: &str) {
    if let Some(name) = schema["$ref"].as_str() {
        return fits(document, document.pointer(name.trim_start_matches('#')).unwrap(), value, at);
    }
    if let Some(options) = schema["anyOf"].as_array() {
        let option = options.iter().find(|option| (option["type"] == "null") == value.is_null());
        return fits(document, option.unwrap(), value, at);
    }
    match value {
        Value::Object(map) => {
            for (name, value) in map {
                let schema = match &schema["properties"][name] {
                    Value::Null => &schema["additionalProperties"],
                    schema => schema,
                };
                assert!(schema.is_object(), "{at}.{name} is not described");
                fits(document, schema, value, &format!("{at}.{name}"));
            }
            for name in schema["required"].as_array().into_iter().flatten() {
                assert!(map.contains_key(name.as_str().unwrap()), "{at}.{name} is missing");
            }
        }
        Value::Array(items) => items.iter().for_each(|item| fits(document, &schema["items"], item, &format!("{at}[]"))),
        scalar => {
            let name = match scalar {
                Value::String(_) => "string",
                Value::Bool(_) => "boolean",
                Value::Null => "null",
                Value::Number(number) if number.is_f64() => "number",
                _ => "integer",
            };
            let allowed = match &schema["type"] {
                Value::String(one) => vec![one.as_str()],
                Value::Array(many) => many.iter().filter_map(Value::as_str).collect(),
                _ => {
                    let listed = schema["enum"].as_array().is_some_and(|options| options.contains(scalar));
                    assert!(listed || schema["const"] == *scalar, "{at}: {scalar} is none of {schema}");
                    return;
                }
            };
            assert!(allowed.contains(&name) || (name == "integer" && allowed.contains(&"number")), "{at}: {scalar}");
        }
    }
}

#[tokio::test]
async fn every_answer_fits_its_description() {
    let (router, document) = (TestRouter::new(), document());
    let check = |schema: &str, value: &Value| {
        fits(&document, &document["components"]["schemas"][schema], value, schema);
    };
    let script = [
        &[THINK],
        bytes("w").as_slice(),
        &[END_THINK],
        &bytes("text"),
        &[SECTION],
        &call("functions.f:0", "{}"),
        &[END_SECTION],
    ]
    .concat();
    let broken = [&[SECTION], call("functions.f:0", "{\"a\": oops}").as_slice()].concat();
    check("ChatCompletion", &router.chat(&broken, json!({"tools": tools(&["f"])})).await.ok());
    for chunk in router.stream(&broken, json!({"tools": tools(&["f"])})).await {
        check("ChatCompletionChunk", &chunk);
    }
    let all = json!({"tools": tools(&["f"]), "logprobs": true, "top_logprobs": 2, "prompt_logprobs": 1,
        "return_token_ids": true, "n": 2});
    check("ChatCompletion", &router.chat(&script, all.clone()).await.ok());
    check("ChatCompletion", &router.chat(&bytes("ab"), json!({"stop": "b"})).await.ok());
    let mut streamed = all;
    streamed["stream_options"] = json!({"include_usage": true});
    for chunk in router.stream(&script, streamed).await {
        check("ChatCompletionChunk", &chunk);
    }
    let all = json!({"model": "bytes", "prompt": "ab", "script": bytes("cd"), "echo": true, "logprobs": 1,
        "return_token_ids": true, "stop": "d"});
    check("Completion", &router.post("/v1/completions", all.clone()).await.ok());
    let mut streamed = all;
    streamed["stream"] = true.into();
    for chunk in router.post("/v1/completions", streamed).await.payloads() {
        check("Completion", &chunk);
    }
    let embeds = TestRouter::with(RouterConfig::default(), Fake { embedding_size: 3, ..Fake::default() });
    for encoding in ["float", "base64"] {
        let body = json!({"model": "bytes", "input": ["a"], "encoding_format": encoding});
        check("EmbeddingList", &embeds.post("/v1/embeddings", body).await.ok());
    }
    let all = json!({"model": "bytes", "input": "a", "script": bytes("b"), "return_token_ids": true, "user": "u",
        "max_tool_calls": 1, "prompt_cache_key": "k", "prompt_cache_retention": "24h", "safety_identifier": "s"});
    let response = router.post("/v1/responses", all).await.ok();
    let described = properties(&document, "Response");
    assert!(response.as_object().unwrap().keys().all(|name| described.contains(name)), "{response}");
    let chat = chat_request(&[], json!({}));
    for messages_body in [
        messages_request(&script, json!({"tools": [message_tool("f")]})),
        messages_request(&broken, json!({"tools": [message_tool("f")]})),
    ] {
        check("AnthropicMessage", &router.post("/v1/messages", messages_body.clone()).await.ok());
        let mut streamed = messages_body;
        streamed["stream"] = true.into();
        for event in message_events(&router.post("/v1/messages", streamed).await) {
            check("AnthropicEvent", &event);
        }
    }
    let count = messages_request(&[], json!({}));
    check("AnthropicTokenCount", &router.post("/v1/messages/count_tokens", count).await.ok());
    check("AnthropicError", &router.post("/v1/messages", json!({})).await.json());
    check("Rendered", &router.post("/v1/chat/completions/render", chat).await.ok());
    check("Tokenized", &router.post("/tokenize", json!({"prompt": "a", "return_token_strs": true})).await.ok());
    check("Detokenized", &router.post("/detokenize", json!({"tokens": [97]})).await.ok());
    check("Models", &router.get("/v1/models").await.ok());
    check("Model", &router.get("/v1/models/bytes").await.ok());
    check("Status", &router.get("/ready").await.ok());
    check("Error", &router.chat(&[], json!({"temperature": 9})).await.json());
    check("Error", &router.get("/nowhere").await.json());
}
