//! Requests that end early: clients that leave, engines that fail, limits and drains.

use std::time::Duration;

use serde_json::json;

use super::{fake::Ending, *};

fn hanging() -> TestRouter {
    TestRouter::with(RouterConfig::default(), Fake::ending(Ending::Hang))
}

fn request(more: Value) -> Request<Body> {
    let body = chat_request(&bytes("abc"), more).to_string();
    Request::post("/v1/chat/completions").header("content-type", "application/json").body(body.into()).unwrap()
}

/// The body of a stream from which the first content has been read: all of its choices are open.
async fn begun(response: Response) -> Body {
    let mut body = response.into_body();
    loop {
        let data = body.frame().await.unwrap().unwrap().into_data().unwrap();
        if data.windows(6).any(|part| part == b"data: ") {
            return body;
        }
    }
}

#[tokio::test]
async fn a_client_that_leaves_a_stream_frees_its_slots() {
    let router = hanging();
    let body = begun(router.send(request(json!({"stream": true, "n": 2}))).await).await;
    router.fake.open(2).await;
    assert_eq!(router.router.in_flight(), 1);
    drop(body);
    router.fake.open(0).await;
    assert_eq!(router.router.in_flight(), 0);
    assert!(router.get("/metrics").await.text.contains("rein_abandoned_total 1"));
}

#[tokio::test]
async fn a_client_that_leaves_before_the_answer_frees_its_slot() {
    let router = hanging();
    let mut waiting = Box::pin(router.send(request(json!({}))));
    tokio::select! {
        _ = &mut waiting => panic!("the engine hangs"),
        () = router.fake.open(1) => {}
    }
    drop(waiting);
    router.fake.open(0).await;
    assert_eq!(router.router.in_flight(), 0);
}

#[tokio::test]
async fn the_deadline_ends_a_request_and_frees_its_slot() {
    let config = RouterConfig { request_time: Duration::from_millis(50), ..RouterConfig::default() };
    let router = TestRouter::with(config, Fake::ending(Ending::Hang));
    let whole = router.chat(&bytes("ab"), json!({})).await;
    assert_eq!(
        (whole.status, whole.json()["error"]["code"].clone()),
        (StatusCode::GATEWAY_TIMEOUT, json!("deadline_exceeded"))
    );
    router.fake.open(0).await;
    // On a slow machine the deadline may pass before the stream begins.
    let streamed = Answer::of(router.send(request(json!({"stream": true}))).await).await;
    let told = if streamed.status == StatusCode::OK { "event: error\ndata: {\"error\"" } else { "{\"error\"" };
    assert!(streamed.text.contains(told) && streamed.text.contains("deadline passed"), "{}", streamed.text);
    assert!(!streamed.text.contains("[DONE]"));
    router.fake.open(0).await;
}

#[tokio::test]
async fn an_engine_error_is_the_last_event_and_does_not_reveal_its_cause() {
    let lost = (StatusCode::SERVICE_UNAVAILABLE, "service_unavailable_error", "capacity_lost");
    for (ending, (status, kind, code)) in [
        (Ending::Error, (StatusCode::INTERNAL_SERVER_ERROR, "server_error", "internal_error")),
        (Ending::Silence, lost),
        (Ending::Lost, lost),
        (Ending::Stopped, lost),
    ] {
        let router = TestRouter::with(RouterConfig::default(), Fake::ending(ending));
        let streamed = Answer::of(router.send(request(json!({"stream": true, "n": 2}))).await).await;
        let blocks: Vec<&str> = streamed.text.split_terminator("\n\n").collect();
        let errors = blocks.iter().filter(|block| block.starts_with("event: error\n")).count();
        assert_eq!((errors, blocks.last().unwrap().starts_with("event: error\n")), (1, true), "{}", streamed.text);
        let payload = blocks.last().unwrap().strip_prefix("event: error\ndata: ").unwrap();
        let error = serde_json::from_str::<Value>(payload).unwrap()["error"].clone();
        assert_eq!((&error["type"], &error["code"]), (&json!(kind), &json!(code)), "{ending:?}");
        let whole = router.chat(&bytes("abc"), json!({})).await;
        assert_eq!((whole.status, &whole.json()["error"]["code"]), (status, &json!(code)), "{ending:?}");
        assert_eq!(whole.header("retry-after") == "1", ending != Ending::Error, "{ending:?}");
        assert!(!streamed.text.contains("secret") && !whole.text.contains("secret"));
        assert_eq!(router.router.in_flight(), 0);
    }
}

#[tokio::test]
async fn an_engines_refusal_is_a_status_before_the_stream_begins() {
    for (code, status, name) in [
        (tonic::Code::ResourceExhausted, StatusCode::TOO_MANY_REQUESTS, "rate_limit_error"),
        (tonic::Code::Unavailable, StatusCode::SERVICE_UNAVAILABLE, "service_unavailable_error"),
        (tonic::Code::InvalidArgument, StatusCode::BAD_REQUEST, "invalid_request_error"),
        (tonic::Code::Internal, StatusCode::INTERNAL_SERVER_ERROR, "server_error"),
    ] {
        let router = TestRouter::with(RouterConfig::default(), Fake { refuse: Some(code), ..Fake::default() });
        let answer = Answer::of(router.send(request(json!({"stream": true}))).await).await;
        assert_eq!((answer.status, answer.json()["error"]["type"].clone()), (status, json!(name)));
        let again = matches!(code, tonic::Code::ResourceExhausted | tonic::Code::Unavailable);
        assert_eq!(answer.header("retry-after") == "1", again);
        assert_eq!(router.router.in_flight(), 0);
    }
}

#[tokio::test]
async fn requests_above_the_limit_get_retry_after() {
    let config = RouterConfig { max_in_flight: 1, max_queued: 0, ..RouterConfig::default() };
    let router = TestRouter::with(config, Fake::ending(Ending::Hang));
    let first = router.send(request(json!({"stream": true}))).await;
    let second = router.chat(&bytes("a"), json!({})).await;
    assert_eq!((second.status, second.header("retry-after")), (StatusCode::TOO_MANY_REQUESTS, "1"));
    drop(first);
    router.fake.open(0).await;
    // A body that was never polled frees its slot, too.
    assert_eq!(router.router.in_flight(), 0);
}

#[tokio::test]
async fn draining_refuses_new_requests_and_waits_for_open_ones() {
    let router = hanging();
    assert_eq!(router.get("/ready").await.status, StatusCode::OK);
    let open = router.send(request(json!({"stream": true}))).await;
    let mut drain = Box::pin(router.router.drain());
    assert!(futures::poll!(drain.as_mut()).is_pending());
    let refused = router.chat(&bytes("a"), json!({})).await;
    assert_eq!((refused.status, refused.header("retry-after")), (StatusCode::SERVICE_UNAVAILABLE, "1"));
    assert_eq!(router.get("/ready").await.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(router.get("/health").await.status, StatusCode::OK);
    drop(open);
    drain.await;
}

#[tokio::test]
async fn a_router_without_its_engine_is_alive_but_not_ready() {
    let fake = Fake { refuse: Some(tonic::Code::Unavailable), ..Fake::default() };
    let router = TestRouter::with(RouterConfig::default(), fake);
    assert_eq!(router.get("/health").await.status, StatusCode::OK);
    assert_eq!(router.get("/ready").await.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(router.get("/v1/models").await.ok()["data"][0]["max_model_len"], json!(null));
}

#[tokio::test]
async fn an_engine_that_is_lost_later_makes_the_router_not_ready() {
    let router = TestRouter::new();
    assert_eq!(router.get("/ready").await.status, StatusCode::OK);
    assert!(router.get("/metrics").await.text.contains("rein_engine_up{model=\"bytes\",engine=\"0\"} 1"));
    router.fake.lose();
    let answer = router.get("/ready").await;
    assert_eq!((answer.status, answer.header("retry-after")), (StatusCode::SERVICE_UNAVAILABLE, "1"));
    assert!(router.get("/metrics").await.text.contains("rein_engine_up{model=\"bytes\",engine=\"0\"} 0"));
    assert_eq!(router.get("/health").await.status, StatusCode::OK);
}

#[tokio::test]
async fn an_abort_ends_every_open_request_with_one_error() {
    let router = hanging();
    let streamed = begun(router.send(request(json!({"stream": true, "n": 2}))).await).await;
    router.fake.open(2).await;
    let mut whole = Box::pin(router.send(request(json!({}))));
    tokio::select! {
        _ = &mut whole => panic!("the engine hangs"),
        () = router.fake.open(3) => {}
    }
    router.router.abort();
    let streamed = Answer::of(Response::new(streamed)).await.text;
    let last = streamed.split_terminator("\n\n").last().unwrap();
    let payload = last.strip_prefix("event: error\ndata: ").unwrap_or_else(|| panic!("{streamed}"));
    let error = serde_json::from_str::<Value>(payload).unwrap()["error"].clone();
    assert_eq!((&error["message"], &error["code"]), (&json!("the server is shutting down"), &json!("unavailable")));
    assert_eq!((streamed.matches("event: error").count(), streamed.contains("[DONE]")), (1, false));
    let whole = Answer::of(whole.await).await;
    assert_eq!(whole.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(whole.json()["error"]["message"], "the server is shutting down");
    router.fake.open(0).await;
    router.router.drain().await;
    assert_eq!(router.chat(&[], json!({})).await.status, StatusCode::SERVICE_UNAVAILABLE);
}

#[tokio::test]
async fn every_answer_has_a_request_id() {
    let router = TestRouter::new();
    for path in ["/health", "/nowhere", "/v1/models", "/v1/chat/completions", "/openapi.json"] {
        assert!(router.get(path).await.header("x-request-id").starts_with("req-"), "{path}");
    }
    let answer = router.chat(&bytes("a"), json!({})).await;
    assert_eq!(answer.header("x-request-id"), answer.ok()["id"]);
    let own = |id: &str| Request::get("/health").header("x-request-id", id).body(Body::empty()).unwrap();
    assert_eq!(Answer::of(router.send(own("mine-7")).await).await.header("x-request-id"), "mine-7");
    let long = "x".repeat(200);
    assert!(Answer::of(router.send(own(&long)).await).await.header("x-request-id").starts_with("req-"));
}

#[tokio::test]
async fn models_are_listed_and_metrics_count_requests() {
    let router = TestRouter::new();
    let list = router.get("/v1/models").await.ok();
    assert_eq!((&list["object"], list["data"].as_array().unwrap().len()), (&json!("list"), 1));
    let model = router.get("/v1/models/bytes").await.ok();
    assert_eq!(model, list["data"][0]);
    assert_eq!(
        (&model["id"], &model["object"], &model["max_model_len"]),
        (&json!("bytes"), &json!("model"), &json!(CONTEXT))
    );
    assert!(model["created"].is_u64() && model["owned_by"].is_string());
    router.chat(&bytes("abc"), json!({})).await.ok();
    router.chat(&bytes("abc"), json!({"temperature": 9})).await;
    let metrics = router.get("/metrics").await.text;
    for line in [
        "rein_requests_total{surface=\"http\",endpoint=\"chat\",status=\"200\"} 1",
        "rein_requests_total{surface=\"http\",endpoint=\"chat\",status=\"400\"} 1",
        "rein_prompt_tokens_total 20",
        "rein_cached_tokens_total 3",
        "rein_generated_tokens_total 4",
        "rein_time_to_first_token_seconds_count 1",
        "rein_inter_token_latency_seconds_count 3",
        "rein_open_streams 0",
        "rein_engine_running_sequences{model=\"bytes\",engine=\"0\"} 2",
    ] {
        assert!(metrics.lines().any(|have| have == line), "{line}\n{metrics}");
    }
}

#[tokio::test]
async fn engines_of_one_model_share_its_load() {
    let fakes = [Fake::ending(Ending::Hang), Fake::ending(Ending::Hang)];
    let entries = fakes.iter().map(|fake| entry(TEMPLATE, fake)).collect();
    let router = TestRouter { router: Router::new(RouterConfig::default(), entries).unwrap(), fake: Fake::default() };
    let mut open = Vec::new();
    for _ in 0..4 {
        open.push(router.send(request(json!({"stream": true}))).await);
    }
    assert_eq!(fakes.each_ref().map(|fake| fake.starts().len()), [2, 2]);
    // Choices of one prompt use the same engine, which has the prompt cached.
    let _choices = begun(router.send(request(json!({"stream": true, "n": 3}))).await).await;
    let mut starts = fakes.each_ref().map(|fake| fake.starts().len());
    starts.sort();
    assert_eq!(starts, [2, 5]);
    assert_eq!(router.get("/v1/models").await.ok()["data"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn a_long_text_gives_the_same_result_off_the_async_threads() {
    let router = TestRouter::new();
    let text = "word ".repeat(20_000);
    let tokens = router.post("/tokenize", json!({"prompt": text})).await.ok();
    assert_eq!(tokens["count"], text.len());
    let messages = json!([{"role": "user", "content": text}]);
    let rendered =
        router.post("/v1/chat/completions/render", chat_request(&[], json!({"messages": messages}))).await.ok();
    assert_eq!(rendered["prompt"], format!("user: {text}\nassistant: "));
}

#[test]
fn a_router_without_models_or_slots_is_rejected() {
    assert!(matches!(Router::new(RouterConfig::default(), vec![]), Err(crate::BuildError::NoModel)));
    let config = RouterConfig { max_in_flight: 0, ..RouterConfig::default() };
    assert!(matches!(Router::open(config), Err(crate::BuildError::NoRequests)));
}

#[tokio::test]
async fn engines_get_the_ids_of_a_prompt_as_bytes_if_they_take_them() {
    let prompts = [false, true].map(async |older| {
        let router = TestRouter::with(RouterConfig::default(), Fake { older, ..Fake::default() });
        router.chat(&bytes("ab"), json!({})).await.ok();
        let start = router.fake.starts().remove(0);
        assert_eq!(start.packed_prompt.is_empty(), older);
        start.prompt
    });
    let [newer, older] = prompts;
    let newer = newer.await;
    assert_eq!(newer, older.await);
    assert!(!newer.is_empty());
}
