//! `/v1/embeddings`, over HTTP and gRPC.

use base64::{Engine, engine::general_purpose::STANDARD};
use rein_proto::v1;
use serde_json::json;

use super::{
    fake::Ending,
    grpc::{client, request},
    *,
};
use crate::limits;

/// A router whose model has embeddings of four numbers: the number of tokens, 1, 2, 3, divided by their length.
fn router() -> TestRouter {
    TestRouter::with(RouterConfig::default(), embedder(Ending::Finish))
}

fn embedder(ending: Ending) -> Fake {
    Fake { embedding_size: 4, ..Fake::ending(ending) }
}

async fn embed(router: &TestRouter, input: Value, more: Value) -> Answer {
    let mut body = json!({"model": "bytes", "input": input});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    router.post("/v1/embeddings", body).await
}

fn vector(numbers: &[f32]) -> Vec<f32> {
    let length = numbers.iter().map(|x| f64::from(x * x)).sum::<f64>().sqrt();
    numbers.iter().map(|x| (f64::from(*x) / length) as f32).collect()
}

fn numbers(item: &Value) -> Vec<f32> {
    item["embedding"].as_array().unwrap().iter().map(|x| x.as_f64().unwrap() as f32).collect()
}

#[tokio::test]
async fn inputs_come_in_four_shapes() {
    let router = router();
    for (input, tokens) in [
        (json!("ab"), vec![2]),
        (json!([97, 98]), vec![2]),
        (json!(["ab", "abc", "a"]), vec![2, 3, 1]),
        (json!([[97, 98], [97]]), vec![2, 1]),
    ] {
        let body = embed(&router, input, json!({})).await.ok();
        assert_eq!((&body["object"], &body["model"]), (&json!("list"), &json!("bytes")));
        let sum: usize = tokens.iter().sum();
        assert_eq!(body["usage"], json!({"prompt_tokens": sum, "total_tokens": sum}));
        let data = body["data"].as_array().unwrap();
        assert_eq!(data.len(), tokens.len());
        for (i, (item, tokens)) in data.iter().zip(tokens).enumerate() {
            assert_eq!((&item["object"], &item["index"]), (&json!("embedding"), &json!(i)));
            assert_eq!(numbers(item), vector(&[tokens as f32, 1.0, 2.0, 3.0]));
        }
    }
    let start = &router.fake.starts()[0];
    assert!(start.embed && start.prompt == bytes("ab") && !start.hold && !start.finish_is_proposal, "{start:?}");
}

#[tokio::test]
async fn dimensions_cut_and_base64_has_the_same_bits() {
    let router = router();
    let cut = embed(&router, json!("ab"), json!({"dimensions": 2})).await.ok();
    assert_eq!(numbers(&cut["data"][0]), vector(&[2.0, 1.0]));
    let cut = embed(&router, json!("ab"), json!({"dimensions": 2, "encoding_format": "base64"})).await.ok();
    let bytes = STANDARD.decode(cut["data"][0]["embedding"].as_str().unwrap()).unwrap();
    let decoded: Vec<f32> = bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
    assert_eq!(decoded, vector(&[2.0, 1.0]));
}

#[tokio::test]
async fn wrong_requests_name_their_field() {
    let router = router();
    let long = "a".repeat(CONTEXT as usize + 1);
    for (input, more, param, message) in [
        (json!(null), json!({}), "input", "'input' is required: a string"),
        (json!(7), json!({}), "input", "must be a string, an array of strings"),
        (json!([]), json!({}), "input", "must have at least one text"),
        (json!(["a", 7]), json!({}), "input[1]", "must be a string or an array of token ids"),
        (json!(["a", ""]), json!({}), "input[1]", "'input[1]' must have at least one token"),
        (json!(""), json!({}), "input", "'input' must have at least one token"),
        (json!([97, 9999]), json!({}), "input[1]", "between 0 and 265, got 9999"),
        (json!([[97], [98, 9999]]), json!({}), "input[1][1]", "between 0 and 265, got 9999"),
        (json!(["a", long]), json!({}), "input[1]", "'input[1]' has 2049 tokens, but this model's context is 2048"),
        (json!(vec!["a"; limits::EMBEDDING_INPUTS + 1]), json!({}), "input", "at most 2048 texts, got 2049"),
        (json!("a"), json!({"dimensions": 5}), "dimensions", "between 1 and 4, the size of this model's embeddings"),
        (json!("a"), json!({"dimensions": 0}), "dimensions", "'dimensions' must be at least 1, got 0"),
        (json!("a"), json!({"encoding_format": "int8"}), "encoding_format", "'float' or 'base64', got 'int8'"),
        (json!("a"), json!({"input_type": "query"}), "input_type", "write the instruction into 'input'"),
        (json!("a"), json!({"cache_salt": ""}), "cache_salt", "must not be an empty string"),
    ] {
        let answer = embed(&router, input, more).await;
        let error = &answer.json()["error"];
        assert_eq!((answer.status, error["param"].as_str()), (StatusCode::BAD_REQUEST, Some(param)), "{error}");
        assert!(error["message"].as_str().unwrap().contains(message), "{error}");
        assert_eq!(error["type"], "invalid_request_error");
    }
    let fine = embed(&router, json!("a".repeat(CONTEXT as usize)), json!({"colour": 1, "store": true})).await;
    assert_eq!(
        (fine.ok()["usage"]["total_tokens"].as_u64(), fine.header("x-rein-ignored-fields")),
        (Some(2048), "colour")
    );
}

#[tokio::test]
async fn a_model_has_one_task() {
    let (embeds, generates) = (router(), TestRouter::new());
    let message = "the model 'bytes' computes embeddings and does not generate; use /v1/embeddings or another model";
    for (path, body) in [
        ("/v1/chat/completions", chat_request(&[], json!({}))),
        ("/v1/completions", json!({"model": "bytes", "prompt": "a"})),
        ("/v1/responses", json!({"model": "bytes", "input": "a"})),
        ("/v1/messages", json!({"model": "bytes", "max_tokens": 5, "messages": [{"role": "user", "content": "a"}]})),
    ] {
        let answer = embeds.post(path, body).await;
        assert_eq!((answer.status, &answer.json()["error"]["message"]), (StatusCode::BAD_REQUEST, &json!(message)));
    }
    let answer = embed(&generates, json!("a"), json!({})).await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST);
    let error = &answer.json()["error"];
    assert_eq!((&error["param"], &error["code"]), (&json!("model"), &json!("model_not_supported")));
    assert!(error["message"].as_str().unwrap().contains("served with --task embed"), "{error}");
    assert!(embeds.fake.starts().is_empty() && generates.fake.starts().is_empty());
    let status = client(&embeds).chat(request(&[])).await.map(drop).unwrap_err();
    assert_eq!((status.code(), status.message()), (tonic::Code::InvalidArgument, message));
}

#[tokio::test]
async fn grpc_gives_the_same_numbers() {
    let router = router();
    let input = |input| v1::EmbedInput { input: Some(input) };
    let request = v1::EmbedRequest {
        model: "bytes".into(),
        input: vec![
            input(v1::embed_input::Input::Text("ab".into())),
            input(v1::embed_input::Input::TokenIds(v1::TokenIds { ids: bytes("abc") })),
        ],
        dimensions: Some(3),
        ..v1::EmbedRequest::default()
    };
    let answer = client(&router).embed(request.clone()).await.unwrap().into_inner();
    let values: Vec<Vec<f32>> = answer.embeddings.into_iter().map(|embedding| embedding.values).collect();
    assert_eq!(values, [vector(&[2.0, 1.0, 2.0]), vector(&[3.0, 1.0, 2.0])]);
    let usage = answer.usage.unwrap();
    assert_eq!((usage.prompt_tokens, usage.total_tokens, usage.cached_tokens), (5, 5, 6));
    let empty = v1::EmbedRequest { input: vec![v1::EmbedInput { input: None }], ..request };
    let status = client(&router).embed(empty).await.unwrap_err();
    assert!(status.message().contains("input[0]"), "{status}");
}

#[tokio::test]
async fn requests_are_counted() {
    let router = router();
    embed(&router, json!(["a", "b"]), json!({})).await.ok();
    embed(&router, json!([]), json!({})).await;
    let metrics = router.get("/metrics").await.text;
    for line in [
        r#"rein_finished_total{model="bytes",reason="stop"} 2"#,
        r#"rein_requests_total{surface="http",endpoint="embeddings",status="200"} 1"#,
        r#"rein_requests_total{surface="http",endpoint="embeddings",status="400"} 1"#,
        "rein_prompt_tokens_total 2",
        "rein_cached_tokens_total 6",
        "rein_open_streams 0",
        "rein_generation_duration_seconds_count 1",
    ] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
}

#[tokio::test]
async fn the_deadline_ends_a_request_and_its_sequences() {
    let router = TestRouter::with(RouterConfig::default(), embedder(Ending::Prefill));
    let body = json!({"model": "bytes", "input": ["a", "b"]}).to_string();
    let request = Request::post("/v1/embeddings").header("x-request-timeout", "0.2");
    let request = request.header("content-type", "application/json").body(body.into()).unwrap();
    let answer = Answer::of(router.send(request).await).await;
    assert_eq!(answer.status, StatusCode::GATEWAY_TIMEOUT);
    router.fake.open(0).await;
    let metrics = router.get("/metrics").await.text;
    let line = r#"rein_finished_total{model="bytes",reason="deadline_exceeded"} 2"#;
    assert!(metrics.contains(line), "{metrics}");
}

#[tokio::test]
async fn more_inputs_than_are_computed_at_once_keep_their_order() {
    let router =
        TestRouter::with(RouterConfig { max_in_flight: 40, ..RouterConfig::default() }, embedder(Ending::Finish));
    let inputs: Vec<String> = (1..=100).map(|n| "a".repeat(n)).collect();
    let body = embed(&router, json!(inputs), json!({"dimensions": 2})).await.ok();
    for (i, item) in body["data"].as_array().unwrap().iter().enumerate() {
        assert_eq!(numbers(item), vector(&[(i + 1) as f32, 1.0]));
    }
}
