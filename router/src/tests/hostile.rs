//! Clients that do not read, and bodies that would cost much more memory or time than their size.

use std::{
    sync::{Arc, Mutex, mpsc},
    time::{Duration, Instant},
};

use futures::StreamExt;
use rein_proto::v1;
use serde_json::json;

use super::{fake::Ending, *};
use crate::{error::Error, fair::Requester, limits};

fn request(script: &[u32]) -> Request<Body> {
    let body = chat_request(script, with_logprobs(json!({"stream": true}))).to_string();
    Request::post("/v1/chat/completions").body(body.into()).unwrap()
}

/// Logprobs make each token's messages larger.
fn with_logprobs(mut more: Value) -> Value {
    (more["logprobs"], more["top_logprobs"]) = (true.into(), 20.into());
    more
}

/// More tokens than the buffers hold.
fn long() -> Vec<u32> {
    bytes(&"no end of text ".repeat(100))
}

async fn rest(mut body: axum::body::BodyDataStream, mut text: Vec<u8>) -> Vec<Value> {
    while let Some(chunk) = body.next().await {
        text.extend_from_slice(&chunk.unwrap());
    }
    let answer = Answer { status: StatusCode::OK, headers: HeaderMap::new(), text: String::from_utf8(text).unwrap() };
    answer.payloads()
}

#[tokio::test(start_paused = true)]
async fn a_client_that_pauses_gives_up_its_engine_and_loses_no_tokens() {
    let router = TestRouter::new();
    let expected = join(&router.stream(&long(), with_logprobs(json!({}))).await);
    let mut body = router.send(request(&long())).await.into_body().into_data_stream();
    let mut text = Vec::new();
    for pauses in 1..=2 {
        // The first chunk after a pause may have events from before it.
        while text.is_empty() || router.fake.starts().len() < 1 + pauses {
            text.extend_from_slice(&body.next().await.unwrap().unwrap());
        }
        router.fake.open(1).await;
        tokio::time::sleep(2 * limits::STALL_GRACE).await;
        router.fake.open(0).await;
        let metrics = router.get("/metrics").await.text;
        for line in [&format!("rein_parked_total {pauses}"), "rein_requests_parked 1", "rein_in_flight_slots 0"] {
            assert!(metrics.lines().any(|have| have == line), "{line}\n{metrics}");
        }
    }
    assert_eq!(join(&rest(body, text).await), expected);
    assert_eq!(router.fake.starts().len(), 4);
    assert!(!router.fake.starts().last().unwrap().resume.is_empty());
    let metrics = router.get("/metrics").await.text;
    for line in ["rein_stalled_total 0", "rein_abandoned_total 0", "rein_resumed_total 0"] {
        assert!(metrics.lines().any(|have| have == line), "{line}\n{metrics}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_request_of_a_client_that_stops_reading_ends() {
    let router = TestRouter::with(RouterConfig::default(), Fake::ending(Ending::Hang));
    // One client never reads, one stops, and one reads all that arrives.
    let unread = router.send(request(&long())).await.into_body().into_data_stream();
    let mut stopped = router.send(request(&long())).await.into_body().into_data_stream();
    let first = stopped.next().await.unwrap().unwrap();
    let mut reading = router.send(request(&bytes("a"))).await.into_body().into_data_stream();
    let reader = tokio::spawn(async move { while let Some(Ok(_)) = reading.next().await {} });
    tokio::time::sleep(limits::CLIENT_STALL - limits::STALL_GRACE).await;
    router.fake.open(1).await;
    let metrics = router.get("/metrics").await.text;
    assert!(metrics.contains("rein_requests_parked 2\n") && router.router.in_flight() == 1, "{metrics}");
    tokio::time::sleep(2 * limits::STALL_GRACE).await;
    let metrics = router.get("/metrics").await.text;
    assert!(metrics.contains("rein_requests_parked 0\n") && router.router.in_flight() == 1, "{metrics}");
    assert!(metrics.contains("rein_stalled_total 2\n") && metrics.contains("rein_abandoned_total 0\n"), "{metrics}");
    for (mut body, mut text) in [(unread, Vec::new()), (stopped, first.to_vec())] {
        while let Some(chunk) = body.next().await {
            text.extend_from_slice(&chunk.unwrap());
        }
        let text = String::from_utf8(text).unwrap();
        assert_eq!(text.matches("event: error\n").count(), 1, "{text}");
        assert!(text.contains("\"code\":\"client_stalled\"") && !text.contains("[DONE]"), "{text}");
    }
    reader.abort();
    assert!(reader.await.unwrap_err().is_cancelled());
    router.fake.open(0).await;
    assert_eq!(router.router.in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn the_deadline_ends_a_parked_request() {
    let config = RouterConfig { request_time: 3 * limits::STALL_GRACE, ..RouterConfig::default() };
    let router = TestRouter::with(config, Fake::ending(Ending::Hang));
    let mut body = router.send(request(&long())).await.into_body().into_data_stream();
    let mut text = body.next().await.unwrap().unwrap().to_vec();
    tokio::time::sleep(4 * limits::STALL_GRACE).await;
    assert_eq!(router.router.in_flight(), 0);
    while let Some(chunk) = body.next().await {
        text.extend_from_slice(&chunk.unwrap());
    }
    let text = String::from_utf8(text).unwrap();
    assert!(text.contains("deadline_exceeded") && text.matches("event: error\n").count() == 1, "{text}");
}

#[tokio::test(start_paused = true)]
async fn grpc_clients_that_stop_reading_are_handled_the_same() {
    use rein_proto::v1::{self, inference_client::InferenceClient};
    let router = TestRouter::with(RouterConfig::default(), Fake::ending(Ending::Hang));
    let mut client = InferenceClient::new(grpc::channel(&router));
    let request = v1::ChatRequest {
        model: "bytes".into(),
        messages: vec![v1::Message { role: "user".into(), content: Some("hi".into()), ..v1::Message::default() }],
        script: long(),
        top_logprobs: Some(20),
        ..v1::ChatRequest::default()
    };
    let mut events = client.chat(request).await.unwrap().into_inner();
    events.message().await.unwrap().unwrap();
    tokio::time::sleep(limits::CLIENT_STALL + limits::STALL_GRACE).await;
    router.fake.open(0).await;
    assert_eq!(router.router.in_flight(), 0);
    let status = loop {
        match events.message().await {
            Ok(event) => assert!(event.is_some(), "an end without an error"),
            Err(status) => break status,
        }
    };
    assert_eq!(status.metadata().get("rein-code").unwrap(), "client_stalled");
}

/// An array of this item, of about `mib` MiB.
fn array(item: &str, mib: usize) -> String {
    let count = (mib << 20) / (item.len() + 1);
    format!("[{}{item}]", format!("{item},").repeat(count))
}

#[tokio::test]
async fn values_are_bounded_by_the_memory_that_they_take() {
    let router = TestRouter::new();
    for (path, field, item) in [
        ("/v1/chat/completions", "messages", "[]"),
        ("/v1/chat/completions", "messages", "{\"role\":\"user\",\"content\":\"\"}"),
        ("/v1/chat/completions", "tools", "{}"),
        ("/v1/chat/completions", "logit_bias", "1"),
        ("/v1/chat/completions", "chat_template_kwargs", "[[]]"),
        ("/v1/chat/completions/render", "messages", "0"),
        ("/v1/completions", "prompt", "\"\""),
        ("/v1/completions", "stop", "[{}]"),
        ("/tokenize", "messages", "{\"\":0}"),
        ("/detokenize", "tokens", "-1"),
    ] {
        let messages = match field {
            "tools" | "logit_bias" | "chat_template_kwargs" => "\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],",
            _ => "",
        };
        let body = format!("{{\"model\":\"bytes\",{messages}\"{field}\":{}}}", array(item, 8));
        let answer = router.post_bytes(path, body).await;
        let error = answer.json()["error"].clone();
        assert_eq!((answer.status, &error["code"]), (StatusCode::BAD_REQUEST, &json!("too_many_values")), "{error}");
        assert_eq!(error["param"], field);
    }
    // Unread fields, and values that are not larger than their text, do not count.
    let unknown = format!("\"x\":{}", array("[]", 8));
    let text = format!("\"messages\":[{{\"role\":\"user\",\"content\":\"{}\"}}]", "x".repeat(1_000));
    let body = format!("{{\"model\":\"bytes\",{unknown},{text},\"max_tokens\":1,\"script\":[97]}}");
    let answer = router.post_bytes("/v1/chat/completions", body).await;
    answer.ok();
    assert_eq!(answer.header("x-rein-ignored-fields"), "x");
    // Of fields with the same name, the last one counts, as usual in JSON.
    let twice = "{\"model\":\"nowhere\",\"messages\":0,\"model\":\"bytes\",\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}";
    router.post_bytes("/tokenize", twice).await.ok();
    let many = format!("{{{}\"model\":\"bytes\"}}", "\"\":0,".repeat(1_000_000));
    assert_eq!(router.post_bytes("/tokenize", many).await.json()["error"]["code"], "too_many_fields");
    let deep = format!("{{\"messages\":{}{}}}", "[".repeat(200), "]".repeat(200));
    assert_eq!(router.post_bytes("/tokenize", deep).await.json()["error"]["code"], "invalid_json");
    let call = "{\"id\":\"a\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}";
    let calls = format!("[{}{call}]", format!("{call},").repeat(rein_text::limits::CALLS));
    let body = format!("{{\"messages\":[{{\"role\":\"assistant\",\"tool_calls\":{calls}}}]}}");
    let error = router.post_bytes("/tokenize", body).await.json()["error"].clone();
    assert!(error["message"].as_str().unwrap().contains("at most 16384 tool_calls"), "{error}");
}

#[tokio::test]
async fn errors_repeat_only_a_bounded_part_of_the_request() {
    let router = TestRouter::new();
    let long = "é".repeat(500_000);
    for request in [
        chat_request(&[], json!({"model": long})),
        chat_request(&[], json!({"tool_choice": long})),
        chat_request(&[], json!({"logit_bias": {long.clone(): 1}})),
        chat_request(&[], json!({"messages": [{"role": long, "content": ""}]})),
    ] {
        let answer = router.post("/v1/chat/completions", request).await;
        assert!(answer.status.is_client_error() && answer.text.len() < 10_000, "{}", answer.text.len());
    }
    let mut request = chat_request(&bytes("a"), json!({}));
    request[long] = 1.into();
    let answer = router.post("/v1/chat/completions", request).await;
    answer.ok();
    assert_eq!(answer.header("x-rein-ignored-fields"), "?".repeat(rein_text::limits::HEADER_NAME_BYTES / 2));
    // Names within a field, and those of schemas.
    let key = "k".repeat(200_000);
    let schema = json!({"type": "object", "properties": {key.clone(): {"type": "string", "pattern": "^(?=a)b"}}});
    let tool = json!({"type": "function", "function": {"name": "f", "parameters": schema}});
    let request = chat_request(&bytes("a"), json!({"chat_template_kwargs": {key: 1}, "tools": [tool]}));
    let answer = router.post("/v1/chat/completions", request).await;
    for name in ["x-rein-ignored-fields", "x-rein-relaxed"] {
        let value = answer.headers.get(name).map_or(0, |value| value.len());
        assert!(value <= 2 * rein_text::limits::HEADER_NAME_BYTES, "{name}: {value}");
    }
}

#[tokio::test]
async fn a_prompt_that_cannot_fit_is_refused_before_it_is_encoded() {
    let router = TestRouter::new();
    let text = "汉".repeat(1_000_000);
    for (path, request) in [
        ("/v1/chat/completions", chat_request(&[], json!({"messages": [{"role": "user", "content": text}]}))),
        ("/v1/completions", json!({"model": "bytes", "prompt": text})),
    ] {
        let error = router.post(path, request).await.json()["error"].clone();
        assert_eq!(error["code"], "context_length_exceeded");
        // A lower bound from the longest token, which has 28 bytes.
        let message = error["message"].as_str().unwrap();
        assert!(message.contains("at least 10714") && message.contains("context is 2048 tokens"), "{message}");
    }
    // The endpoints that only tokenize return all tokens.
    let told = router.post("/tokenize", json!({"prompt": "汉".repeat(30_000)})).await.ok();
    assert_eq!(told["count"], 90_000);
}

#[tokio::test]
async fn a_message_of_many_values_is_refused_over_grpc() {
    use rein_proto::v1::{self, inference_client::InferenceClient};
    let router = TestRouter::new();
    let mut client = InferenceClient::new(grpc::channel(&router));
    let many = v1::ChatRequest {
        model: "bytes".into(),
        messages: vec![v1::Message::default(); 1_000_000],
        ..v1::ChatRequest::default()
    };
    let status = client.chat(many).await.unwrap_err();
    assert_eq!(status.metadata().get("rein-code").unwrap(), "too_many_values");
    let parameters = format!("{{\"x\":{}}}", array("[]", 8));
    let tool = v1::Tool { name: "f".into(), parameters_json: Some(parameters), ..v1::Tool::default() };
    let message = v1::Message { role: "user".into(), content: Some("a".into()), ..v1::Message::default() };
    let one =
        |tools| v1::ChatRequest { model: "bytes".into(), messages: vec![message.clone()], tools, ..Default::default() };
    let status = client.render(one(vec![tool])).await.unwrap_err();
    assert_eq!(status.metadata().get("rein-code").unwrap(), "too_many_values");
    assert_eq!(status.metadata().get("rein-param").unwrap(), "tools[0].parameters_json");
    client.render(one(Vec::new())).await.unwrap();
}

#[tokio::test]
async fn an_output_that_needs_too_many_grammar_states_ends_only_its_request() {
    let router = TestRouter::new();
    // Each position adds a grammar item for every position in every alternative.
    let ways: Vec<String> = (2..=20).map(|parts| vec!["s"; parts].join(" ")).collect();
    let grammar = format!("start: s\ns: \"a\" | {}", ways.join(" | "));
    let more = json!({"structured_outputs": {"grammar": grammar}});
    router.chat(&bytes("aaaa"), more.clone()).await.ok();

    let script = bytes(&"a".repeat(100));
    let answer = router.chat(&script, more.clone()).await;
    let error = answer.json()["error"].clone();
    assert_eq!((answer.status, &error["code"]), (StatusCode::BAD_REQUEST, &json!("grammar_limit_exceeded")), "{error}");
    assert!(error["message"].as_str().unwrap().contains("exceeds the grammar's limits"), "{error}");

    let mut request = chat_request(&script, more.clone());
    request["stream"] = true.into();
    let streamed = router.post("/v1/chat/completions", request).await;
    assert_eq!(streamed.status, StatusCode::OK, "the stream had begun");
    assert_eq!(streamed.text.matches("event: error\n").count(), 1, "{}", streamed.text);
    assert!(streamed.text.contains("\"code\":\"grammar_limit_exceeded\""), "{}", streamed.text);
    assert!(!streamed.text.contains("[DONE]"), "{}", streamed.text);
    router.fake.open(0).await;
    router.chat(&bytes("aaaa"), more).await.ok();
}

/// Each choice has its own copy of the grammar's state, and all requests share the memory for these.
#[tokio::test(start_paused = true)]
async fn the_state_of_grammars_has_a_budget_over_all_choices() {
    let config = RouterConfig {
        memory: crate::MemoryLimits { matchers: 16 << 20, ..crate::MemoryLimits::default() },
        ..RouterConfig::default()
    };
    let router = TestRouter::with(config, Fake::ending(Ending::Hang));
    // A choice of 4,000 words takes 2 to 3 MiB.
    let words: Vec<String> = (0..4_000).map(|i| format!("\"w{i}\"")).collect();
    let grammar = json!({"structured_outputs": {"grammar": format!("start: {}", words.join(" | "))}, "stream": true});
    let with = |n: u32| {
        let mut body = chat_request(&bytes("w"), grammar.clone());
        body["n"] = n.into();
        Request::post("/v1/chat/completions").body(Body::from(body.to_string())).unwrap()
    };
    let answer = |response: Response<Body>| async {
        let (status, headers) = (response.status(), response.headers().clone());
        let text = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
        Answer { status, headers, text: String::from_utf8(text.to_vec()).unwrap() }
    };
    let large = answer(router.send(with(100)).await).await;
    assert_eq!((large.status, large.json()["error"]["param"].clone()), (StatusCode::BAD_REQUEST, json!("n")));
    let held = router.send(with(5)).await;
    assert_eq!(held.status(), StatusCode::OK);
    let refused = answer(router.send(with(5)).await).await;
    let error = refused.json()["error"].clone();
    assert_eq!((refused.status, &error["code"]), (StatusCode::TOO_MANY_REQUESTS, &json!("overloaded")), "{error}");
    assert!(refused.headers.contains_key("retry-after"), "{error}");
    drop(held);
    let next = router.send(with(5)).await;
    assert_eq!(next.status(), StatusCode::OK);
}

/// Bad words are tokenized once for all prompts, off the async threads.
#[tokio::test]
async fn many_bad_words_do_not_cost_once_per_prompt() {
    let router = TestRouter::new();
    let words: Vec<String> = (0..limits::BAD_WORDS).map(|i| format!("{i}{}", "x".repeat(1000))).collect();
    let body = json!({"model": "bytes", "prompt": vec!["a"; 256], "bad_words": words, "script": bytes("b")});
    let began = Instant::now();
    let answer = router.post("/v1/completions", body);
    let ticks = async {
        let mut longest = Duration::ZERO;
        loop {
            let before = Instant::now();
            tokio::time::sleep(Duration::from_millis(1)).await;
            longest = longest.max(before.elapsed());
            if longest > Duration::from_secs(2) || began.elapsed() > Duration::from_secs(60) {
                return longest;
            }
        }
    };
    tokio::select! {
        biased;
        answer = answer => assert_eq!(answer.ok()["choices"].as_array().unwrap().len(), 256),
        longest = ticks => panic!("the async thread was blocked for {longest:?}"),
    }
}

/// Slow grammar work waits for its turn no longer than the deadline, and its own end no longer either.
#[tokio::test]
async fn slow_grammar_work_hears_the_deadline() {
    let router = TestRouter::new();
    let model = router.router.state.named("bytes").unwrap();
    let within = |time| Requester { caller: None, deadline: tokio::time::Instant::now() + time };
    let soon = || within(Duration::from_millis(50));
    let (ends, works) = mpsc::sync_channel::<()>(1);
    let works = Arc::new(Mutex::new(works));
    for turn in 0..=limits::SLOW_MATCHES {
        let works = works.clone();
        let error = model.run_slow_match(&soon(), move || works.lock().unwrap().recv().is_ok()).await.unwrap_err();
        assert_eq!(error.code, Error::deadline().code, "{turn}");
    }
    drop(ends);
    let done = model.run_slow_match(&within(Duration::from_secs(60)), || true).await;
    assert!(done.is_ok());
}

/// The request of a single answer, over HTTP or gRPC.
async fn detokenize(router: &TestRouter, grpc: bool, tokens: Vec<u32>) -> Body {
    if !grpc {
        let body = json!({"tokens": tokens}).to_string();
        return router.send(Request::post("/detokenize").body(body.into()).unwrap()).await.into_body();
    }
    let message = prost::Message::encode_to_vec(&v1::DetokenizeRequest { model: "bytes".into(), ids: tokens });
    let frame = [&[0][..], &(message.len() as u32).to_be_bytes(), &message].concat();
    let request = Request::post("/rein.v1.Inference/Detokenize").header("content-type", "application/grpc");
    let request = request.body(tonic::body::Body::new(Body::from(frame))).unwrap();
    let response = router.router.grpc().prepare().oneshot(request).await.unwrap();
    Body::new(response.into_body())
}

#[tokio::test(start_paused = true)]
async fn a_single_answer_keeps_its_slot_until_it_is_read() {
    for grpc in [false, true] {
        let router = TestRouter::new();
        let tokens = vec![u32::from(b'a'); 3 * limits::UNREAD_PIECE_BYTES];
        let read = detokenize(&router, grpc, tokens.clone()).await;
        assert_eq!(router.router.in_flight(), 1, "{grpc}");
        let mut paused = detokenize(&router, grpc, tokens.clone()).await.into_data_stream();
        let piece = paused.next().await.unwrap().unwrap();
        assert!(!piece.is_empty() && piece.len() <= limits::UNREAD_PIECE_BYTES, "{grpc}");
        tokio::time::sleep(limits::CLIENT_STALL - Duration::from_secs(1)).await;
        assert_eq!(router.router.in_flight(), 2, "{grpc}");
        assert!(read.collect().await.unwrap().to_bytes().len() >= tokens.len(), "{grpc}");
        assert_eq!(router.router.in_flight(), 1, "{grpc}");
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert_eq!(router.router.in_flight(), 0, "{grpc}");
        while let Some(Ok(_)) = paused.next().await {}
    }
}
