//! An answer that arrives cut at any byte streams the whole answer, with its ids, in every API.

use std::collections::HashSet;

use rand::{SeedableRng, rngs::StdRng};
use serde_json::json;

use super::{
    messages::{message_events, message_tool, messages_request},
    random::script,
    responses::{delta_sums, item_shapes, keeping, response_events, response_request, response_tools, said},
    *,
};

/// Reasoning, text and two calls, with characters of several bytes, escapes and nested values.
fn transcript() -> Vec<u32> {
    [
        &[THINK],
        bytes("hm 🙂").as_slice(),
        &[END_THINK],
        &bytes("é \"text\"\n"),
        &[SECTION],
        &call("functions.f:0", r#"{"a": {"b": [1, 2.50, "x\ny \ud83d\ude42 é"]}}"#),
        &call("functions.g:1", r#"{"input": "x\ty\\"}"#),
        &[END_SECTION],
    ]
    .concat()
}

/// An answer in all three APIs.
#[derive(Debug, PartialEq)]
struct Answers {
    chat: Value,
    items: Vec<Value>,
    status: Value,
    blocks: Value,
    stop_reason: Value,
}

fn chat_body() -> Value {
    json!({"tools": tools(&["f", "g"]), "return_token_ids": true})
}

fn messages_body() -> Value {
    json!({"tools": [message_tool("f"), message_tool("g")]})
}

/// The blocks without their random ids and signatures, which must be there.
fn without_ids(mut blocks: Value) -> Value {
    let mut ids = HashSet::new();
    for block in blocks.as_array_mut().unwrap() {
        if let Some(id) = block.get_mut("id").map(Value::take) {
            let id = id.as_str().unwrap().to_owned();
            assert!(id.starts_with("toolu_") && ids.insert(id), "{block}");
        }
        if let Some(signature) = block.get_mut("signature").map(Value::take) {
            assert!(!signature.as_str().unwrap().is_empty());
        }
    }
    blocks
}

async fn whole(router: &TestRouter, script: &[u32]) -> Answers {
    let chat = unfold(&router.chat(script, chat_body()).await.ok()).remove(0);
    let body = response_request(script, &json!({"tools": response_tools()}));
    let response = router.post("/v1/responses", body).await.ok();
    let message = router.post("/v1/messages", messages_request(script, messages_body())).await.ok();
    Answers {
        chat,
        items: item_shapes(&response),
        status: response["status"].clone(),
        blocks: without_ids(message["content"].clone()),
        stop_reason: message["stop_reason"].clone(),
    }
}

/// The content of a stream of messages. The text of a call whose arguments are no object is left out, as in an answer
/// that is not streamed.
fn joined_blocks(events: &[Value]) -> Value {
    let (mut blocks, mut json) = (Vec::<Value>::new(), String::new());
    for event in events {
        match event["type"].as_str().unwrap() {
            "content_block_start" => {
                assert_eq!(event["index"], blocks.len());
                blocks.push(event["content_block"].clone());
                json.clear();
            }
            "content_block_delta" => {
                let block = blocks.last_mut().unwrap();
                for (field, text) in event["delta"].as_object().unwrap().iter().filter(|(field, _)| *field != "type") {
                    let text = text.as_str().unwrap();
                    match field.as_str() {
                        "partial_json" => json.push_str(text),
                        field => block[field] = format!("{}{text}", block[field].as_str().unwrap_or_default()).into(),
                    }
                }
            }
            "content_block_stop" => {
                let block = blocks.last_mut().unwrap();
                if block["type"] == "tool_use" {
                    block["input"] = serde_json::from_str(&json).unwrap();
                }
            }
            _ => {}
        }
    }
    let end = events.iter().rev().find(|event| event["type"] == "message_delta").unwrap();
    let cut: Vec<&Value> = end["delta"]["incomplete_tool_calls"].as_array().into_iter().flatten().collect();
    blocks.retain(|block| !cut.iter().any(|cut| cut["id"] == block["id"] && !cut["id"].is_null()));
    blocks.into()
}

async fn streamed(router: &TestRouter, script: &[u32], at: &str) -> Answers {
    let chat = join(&router.stream(script, chat_body()).await).remove(0);
    let events = response_events(router, response_request(script, &json!({"tools": response_tools()}))).await;
    let response = &events.last().unwrap()["response"];
    let (sums, items) = (delta_sums(&events), response["output"].as_array().unwrap());
    for kind in ["added", "done"] {
        let kind = format!("response.output_item.{kind}");
        let ids = events.iter().filter(|event| event["type"] == *kind).map(|event| &event["item"]["id"]);
        assert!(ids.eq(items.iter().map(|item| &item["id"])), "{at}: {kind}");
    }
    for item in items {
        let sum = sums.get(item["id"].as_str().unwrap()).map_or("", String::as_str);
        assert_eq!(sum, said(item), "{at}");
    }
    let kept = router.get(&format!("/v1/responses/{}", response["id"].as_str().unwrap())).await.ok();
    assert_eq!(kept, *response, "{at}");
    let mut body = messages_request(script, messages_body());
    body["stream"] = true.into();
    let events = message_events(&router.post("/v1/messages", body).await);
    let end = events.iter().rev().find(|event| event["type"] == "message_delta").unwrap();
    Answers {
        chat,
        items: item_shapes(response),
        status: response["status"].clone(),
        blocks: without_ids(joined_blocks(&events)),
        stop_reason: end["delta"]["stop_reason"].clone(),
    }
}

#[tokio::test]
async fn an_answer_cut_at_any_byte_streams_the_whole_answer_in_every_api() {
    let router = TestRouter::with(keeping(), Fake::default());
    let script = transcript();
    let expected = whole(&router, &script).await;
    assert_eq!(expected.blocks.as_array().unwrap().len(), 4, "{expected:?}");
    assert_eq!((&expected.status, &expected.stop_reason), (&json!("completed"), &json!("tool_use")));
    for cut in 1..=script.len() {
        router.fake.set_batches(vec![cut, script.len()]);
        let at = format!("cut at {cut}");
        assert_eq!(streamed(&router, &script, &at).await, expected, "{at}");
    }
}

#[tokio::test]
async fn any_output_cut_at_any_byte_streams_the_whole_answer_in_every_api() {
    let mut rng = StdRng::seed_from_u64(33);
    let router = TestRouter::with(keeping(), Fake::default());
    for round in 0..12 {
        let script = script(&mut rng);
        router.fake.set_batches(Vec::new());
        let expected = whole(&router, &script).await;
        for cut in 1..=script.len() {
            router.fake.set_batches(vec![cut, script.len()]);
            let at = format!("round {round}, cut at {cut}: {script:?}");
            assert_eq!(streamed(&router, &script, &at).await, expected, "{at}");
        }
    }
}
