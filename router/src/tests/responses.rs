//! The Responses API over HTTP: a stream, an answer in one piece, what is kept, and a chat agree.

use http::Method;
use rand::{Rng, SeedableRng, rngs::StdRng};
use serde_json::json;

use super::*;
use crate::ResponsesStoreMode;

pub fn keeping() -> RouterConfig {
    RouterConfig { responses_store: ResponsesStoreMode::Memory, ..RouterConfig::default() }
}

fn router(fake: Fake) -> TestRouter {
    TestRouter::with(keeping(), fake)
}

pub fn response_request(script: &[u32], more: &Value) -> Value {
    let mut body = json!({"model": "bytes", "input": "hi", "script": script});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// The events of a streamed response, with their numbers checked.
pub async fn response_events(router: &TestRouter, mut body: Value) -> Vec<Value> {
    body["stream"] = true.into();
    let answer = router.post("/v1/responses", body).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text);
    let events: Vec<Value> = answer
        .text
        .split("\n\n")
        .filter_map(|frame| {
            let (name, data) = frame.split_once("\ndata: ")?;
            let event: Value = serde_json::from_str(data).unwrap();
            assert_eq!(name.strip_prefix("event: "), event["type"].as_str());
            Some(event)
        })
        .collect();
    for (number, event) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], number);
    }
    events
}

/// The sum of the deltas of each item, by id.
pub fn delta_sums(events: &[Value]) -> HashMap<String, String> {
    let mut sums: HashMap<String, String> = HashMap::new();
    for event in events.iter().filter(|event| event["type"].as_str().unwrap().ends_with(".delta")) {
        sums.entry(event["item_id"].as_str().unwrap().into()).or_default().push_str(event["delta"].as_str().unwrap());
    }
    sums
}

/// What an item says, which its deltas must add up to.
pub fn said(item: &Value) -> &str {
    let fields = ["/content/0/text", "/arguments", "/input"];
    fields.iter().find_map(|field| item.pointer(field)?.as_str()).unwrap_or_default()
}

/// Output items without their response.
pub fn item_shapes(response: &Value) -> Vec<Value> {
    let items = response["output"].as_array().unwrap().iter().cloned();
    items
        .map(|mut item| {
            item["id"] = item["id"].as_str().unwrap().split('_').next().unwrap().into();
            item
        })
        .collect()
}

pub fn response_tools() -> Value {
    json!([
        {"type": "function", "name": "f", "parameters": {"type": "object"}},
        {"type": "custom", "name": "g"},
        {"type": "namespace", "name": "n",
         "tools": [{"type": "function", "name": "h", "parameters": {"type": "object"}}]},
    ])
}

fn script(rng: &mut StdRng) -> Vec<u32> {
    let mut script = Vec::new();
    for _ in 0..rng.random_range(1..8) {
        match rng.random_range(0..11) {
            0 => script.push(THINK),
            1 => script.push(END_THINK),
            2 => script.extend([&[SECTION], call("functions.f:0", "{\"a\": \"é\"}").as_slice()].concat()),
            3 => script.extend(call("functions.g:7", "{\"input\": \"x\\ny \\ud83d\\ude42\"}")),
            4 => script.extend([&[SECTION], call("functions.n__h:1", "{\"b\": [1, 2]}").as_slice()].concat()),
            5 => script.push(END_SECTION),
            6 => script.extend((0..4).map(|_| rng.random_range(257..VOCAB))),
            7 => script.extend((0..4).map(|_| rng.random_range(0..256))),
            _ => script.extend(bytes(["one two", "é火🙂", "\n\nSTOP", "a S"][rng.random_range(0..4)])),
        }
    }
    script
}

#[tokio::test]
async fn streams_answers_kept_responses_and_chats_agree() {
    let mut rng = StdRng::seed_from_u64(31);
    for round in 0..200 {
        let batches = (0..rng.random_range(0..3)).map(|_| rng.random_range(1..6)).collect();
        let router = router(Fake { batches, ..Fake::default() });
        let script = script(&mut rng);
        let mut more = json!({"tools": response_tools(), "return_token_ids": true});
        if rng.random_bool(0.5) {
            more["include"] = json!(["message.output_text.logprobs"]);
        }
        if rng.random_bool(0.7) {
            more["max_output_tokens"] = rng.random_range(1..50).into();
        }
        let at = format!("round {round}: {script:?} {more}");
        let whole = router.post("/v1/responses", response_request(&script, &more)).await.ok();
        let events = response_events(&router, response_request(&script, &more)).await;
        let last = events.last().unwrap();
        let streamed = &last["response"];
        assert_eq!(last["type"], format!("response.{}", streamed["status"].as_str().unwrap()), "{at}");
        assert_eq!(item_shapes(streamed), item_shapes(&whole), "{at}");
        for field in ["status", "usage", "incomplete_details", "malformed", "incomplete_tool_calls", "token_ids"] {
            assert_eq!(streamed.get(field), whole.get(field), "{at}");
        }
        for response in [streamed, &whole] {
            let id = response["id"].as_str().unwrap();
            assert_eq!(router.get(&format!("/v1/responses/{id}")).await.ok(), *response, "{at}");
        }
        // The sum of the events is the final object.
        let (sums, items) = (delta_sums(&events), streamed["output"].as_array().unwrap());
        let finished: Vec<&Value> = events
            .iter()
            .filter(|event| event["type"] == "response.output_item.done")
            .map(|event| &event["item"])
            .collect();
        assert_eq!(finished, items.iter().collect::<Vec<_>>(), "{at}");
        for item in items {
            let sum = sums.get(item["id"].as_str().unwrap()).map_or("", String::as_str);
            assert_eq!(sum, said(item), "{at}");
        }
        // A chat has the same texts, calls and tokens.
        let mut chat = json!({"tools": tools(&["f", "g", "n__h"]), "return_token_ids": true});
        if let Some(limit) = more.get("max_output_tokens") {
            chat["max_tokens"] = limit.clone();
        }
        let chat = &router.chat(&script, chat).await.ok()["choices"][0];
        let joined = |kind: &str| -> String { items.iter().filter(|item| item["type"] == kind).map(said).collect() };
        let text = |field: &str| chat["message"][field].as_str().unwrap_or_default().to_owned();
        assert_eq!((joined("message"), joined("reasoning")), (text("content"), text("reasoning_content")), "{at}");
        assert_eq!(whole["token_ids"], chat["token_ids"], "{at}");
        let ids = |calls: &Value, field: &str| -> Vec<Value> {
            calls.as_array().into_iter().flatten().map(|call| call[field].clone()).collect()
        };
        let complete: Vec<Value> = items
            .iter()
            .filter(|item| item.get("call_id").is_some() && item["status"] == "completed")
            .map(|item| item["call_id"].clone())
            .collect();
        assert_eq!(complete, ids(&chat["message"]["tool_calls"], "id"), "{at}");
    }
}

#[tokio::test]
async fn every_limit_gives_a_prefix_of_the_whole_answer() {
    let router = router(Fake::default());
    let script = [
        &[THINK],
        bytes("hm").as_slice(),
        &[END_THINK],
        &bytes("text 🙂"),
        &[SECTION],
        &call("functions.f:0", "{\"a\": 1}"),
        &call("functions.g:1", "{\"input\": \"x\\ny\"}"),
        &[END_SECTION],
    ]
    .concat();
    let whole = router.post("/v1/responses", response_request(&script, &json!({"tools": response_tools()}))).await.ok();
    assert_eq!(whole["status"], "completed");
    let full = item_shapes(&whole);
    assert_eq!(full.iter().map(said).collect::<Vec<_>>(), ["hm", "text 🙂", "{\"a\": 1}", "x\ny"]);
    for limit in 1..=script.len() {
        let more = json!({"tools": response_tools(), "max_output_tokens": limit});
        let events = response_events(&router, response_request(&script, &more)).await;
        let last = &events.last().unwrap()["response"];
        assert_eq!(last["status"], "incomplete", "{limit}");
        for (item, full) in item_shapes(last).iter().zip(&full) {
            assert_eq!((&item["type"], &item["call_id"]), (&full["type"], &full["call_id"]));
            // The limit can cut a character in two.
            assert!(said(full).starts_with(said(item).trim_end_matches('\u{fffd}')), "{limit}: {item}");
            assert!(item["status"] == "incomplete" || said(item) == said(full), "{limit}: {item}");
        }
    }
}

#[tokio::test]
async fn the_prompt_is_that_of_a_chat() {
    let router = router(Fake::default());
    let items = json!([
        {"role": "user", "content": "hi"},
        {"type": "function_call", "call_id": "functions.f:0", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "functions.f:0", "output": "done"},
        {"role": "user", "content": [{"type": "input_text", "text": "and"}]},
    ]);
    let messages = json!([
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": null,
         "tool_calls": [{"id": "functions.f:0", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "functions.f:0", "content": "done"},
        {"role": "user", "content": "and"},
    ]);
    let more = json!({"input": items, "instructions": "Be brief.", "tools": [response_tools()[0]]});
    let answer = router.post("/v1/responses", response_request(&bytes("a"), &more)).await.ok();
    let function = json!([{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]);
    router.chat(&bytes("a"), json!({"messages": messages, "tools": function})).await.ok();
    let starts = router.fake.starts();
    assert_eq!(starts[0].prompt, starts[1].prompt);
    let count = router.post("/v1/responses/input_tokens", response_request(&[], &more)).await.ok();
    assert_eq!(count, json!({"object": "response.input_tokens", "input_tokens": starts[0].prompt.len()}));
    assert_eq!(answer["usage"]["input_tokens"], starts[0].prompt.len());
}

#[tokio::test]
async fn an_engine_that_fails_fails_the_response() {
    let router = router(Fake::ending(fake::Ending::Error));
    let events = response_events(&router, response_request(&bytes("ab"), &json!({}))).await;
    let kinds: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!(kinds[kinds.len() - 2..], ["error", "response.failed"]);
    let failed = &events.last().unwrap()["response"];
    assert_eq!((&failed["status"], &failed["error"]["code"]), (&json!("failed"), &json!("server_error")));
    assert_eq!(failed["output"][0]["status"], "incomplete");
    let answer = router.post("/v1/responses", response_request(&bytes("ab"), &json!({}))).await;
    assert_eq!(
        (answer.status, &answer.json()["error"]["code"]),
        (StatusCode::INTERNAL_SERVER_ERROR, &json!("internal_error"))
    );
}

#[tokio::test]
async fn what_is_not_kept_cannot_be_fetched() {
    let off = TestRouter::new();
    let answer = off.post("/v1/responses", response_request(&bytes("a"), &json!({"store": true}))).await.ok();
    assert_eq!(answer["store"], false);
    let path = format!("/v1/responses/{}", answer["id"].as_str().unwrap());
    for (status, answer) in [
        (404, off.get(&path).await),
        (404, off.get(&format!("{path}/input_items")).await),
        (404, off.post(&format!("{path}/cancel"), json!({})).await),
        (400, off.post("/v1/responses", response_request(&[], &json!({"previous_response_id": "resp_x"}))).await),
        (
            400,
            off.post(
                "/v1/responses",
                response_request(&[], &json!({"input": [{"type": "item_reference", "id": "msg_x"}]})),
            )
            .await,
        ),
    ] {
        assert_eq!(answer.status.as_u16(), status, "{}", answer.text);
        assert!(answer.text.contains("--responses-store"), "{}", answer.text);
    }
    let on = router(Fake::default());
    let unkept = on.post("/v1/responses", response_request(&bytes("a"), &json!({"store": false}))).await.ok();
    assert_eq!(unkept["store"], false);
    let path = format!("/v1/responses/{}", unkept["id"].as_str().unwrap());
    let delete = Request::builder().method(Method::DELETE).uri(&path).body(Body::empty()).unwrap();
    assert_eq!(on.send(delete).await.status(), StatusCode::NOT_FOUND);
    assert_eq!(on.get(&path).await.status, StatusCode::NOT_FOUND);
    let unknown = json!({"previous_response_id": unkept["id"]});
    let answer = on.post("/v1/responses", response_request(&[], &unknown)).await;
    assert_eq!(
        (answer.status, &answer.json()["error"]["param"]),
        (StatusCode::NOT_FOUND, &json!("previous_response_id"))
    );
}

#[tokio::test]
async fn wrong_bodies_get_errors_that_name_their_fields() {
    let router = router(Fake::default());
    let mut rng = StdRng::seed_from_u64(9);
    let values = [
        json!(null),
        json!(true),
        json!(-1),
        json!(1e300),
        json!("x"),
        json!([]),
        json!([[]]),
        json!([{}]),
        json!({}),
        json!({"type": "x"}),
        json!([{"type": "function"}]),
        json!([{"type": "custom", "name": ""}]),
        json!([{"type": "namespace", "name": "n", "tools": [{}]}]),
        json!([{"type": "message", "role": "user", "content": [{"type": "input_text"}]}]),
        json!([{"type": "reasoning", "content": [1]}]),
        json!([{"type": "item_reference", "id": "msg_1"}]),
        json!({"format": {"type": "json_schema", "name": "x", "strict": true, "schema": {"type": 3}}}),
    ];
    let names = [
        "input",
        "instructions",
        "tools",
        "tool_choice",
        "text",
        "reasoning",
        "include",
        "metadata",
        "store",
        "stream",
        "previous_response_id",
        "max_output_tokens",
        "top_logprobs",
        "truncation",
        "temperature",
        "model",
        "script",
        "parallel_tool_calls",
        "prompt_cache_key",
        "chat_template_kwargs",
        "background",
        "conversation",
        "prompt",
    ];
    for _ in 0..600 {
        let mut body = response_request(&bytes("a"), &json!({}));
        for _ in 0..rng.random_range(1..4) {
            body[names[rng.random_range(0..names.len())]] = values[rng.random_range(0..values.len())].clone();
        }
        for path in ["/v1/responses", "/v1/responses/input_tokens"] {
            let answer = router.post(path, body.clone()).await;
            assert!(answer.status.as_u16() < 500, "{body}: {}", answer.text);
            if answer.status != StatusCode::OK {
                let error = answer.json();
                assert!(error["error"]["message"].is_string(), "{body}: {error}");
                let said = format!("{} {}", error["error"]["message"], error["error"]["param"]);
                assert!(!said.contains("messages[") && !said.contains(".function."), "{body}: {said}");
            }
        }
    }
}
