//! The gRPC service: the same requests give the same outputs and errors as over HTTP.

use std::time::Duration;

use futures::StreamExt;
use rein_proto::v1::{self, chat_event::Event, inference_client::InferenceClient};
use serde_json::json;
use tonic::{Code, body::Body as GrpcBody};
use tower::util::BoxCloneSyncService;

use super::{fake::Ending, *};

pub type Channel =
    BoxCloneSyncService<http::Request<GrpcBody>, http::Response<GrpcBody>, crate::fleet::transport::TransportError>;

/// A channel to the routes without a socket.
pub fn channel(router: &TestRouter) -> Channel {
    let routes = router.router.grpc().prepare();
    transport(tower::service_fn(move |request: http::Request<GrpcBody>| {
        let routes = routes.clone();
        async move { tower::ServiceExt::oneshot(routes, request).await }
    }))
}

pub fn client(router: &TestRouter) -> InferenceClient<Channel> {
    InferenceClient::new(channel(router))
}

fn user(content: &str) -> v1::Message {
    v1::Message { role: "user".into(), content: Some(content.into()), ..v1::Message::default() }
}

pub fn request(script: &[u32]) -> v1::ChatRequest {
    v1::ChatRequest {
        model: "bytes".into(),
        messages: vec![user("hi")],
        script: script.to_vec(),
        ..v1::ChatRequest::default()
    }
}

pub async fn events(router: &TestRouter, request: v1::ChatRequest) -> Vec<v1::ChatEvent> {
    let stream = client(router).chat(request).await.unwrap().into_inner();
    stream.map(|event| event.unwrap()).collect().await
}

#[tokio::test]
async fn a_chat_is_a_stream_of_typed_events() {
    let router = TestRouter::new();
    let script = [
        &[THINK],
        bytes("w").as_slice(),
        &[END_THINK],
        &bytes("t"),
        &[SECTION],
        &call("functions.f:0", "{}"),
        &[END_SECTION],
    ]
    .concat();
    let tool =
        v1::Tool { name: "f".into(), parameters_json: Some("{\"type\": \"object\"}".into()), ..v1::Tool::default() };
    let asked =
        v1::ChatRequest { tools: vec![tool], return_token_ids: true, top_logprobs: Some(0), ..request(&script) };
    let events = events(&router, asked).await;
    let names: Vec<&str> = events
        .iter()
        .map(|event| match event.event.as_ref().unwrap() {
            Event::Start(_) => "start",
            Event::ReasoningStart(_) => "reasoning{",
            Event::ReasoningDelta(_) => "reasoning",
            Event::ReasoningEnd(_) => "}reasoning",
            Event::TextStart(_) => "text{",
            Event::TextDelta(_) => "text",
            Event::TextEnd(_) => "}text",
            Event::ToolCallStart(_) => "call{",
            Event::ArgumentsDelta(_) => "arguments",
            Event::ToolCallEnd(_) => "}call",
            Event::Malformed(_) => "malformed",
            Event::Done(_) => "done",
            Event::Usage(_) => "usage",
        })
        .collect();
    let mut kinds = names.clone();
    kinds.dedup();
    let expected = [
        "start",
        "reasoning{",
        "reasoning",
        "}reasoning",
        "text{",
        "text",
        "}text",
        "call{",
        "arguments",
        "}call",
        "done",
        "usage",
    ];
    assert_eq!(kinds, expected);
    let ids: Vec<u32> = events.iter().flat_map(|event| event.token_ids.clone()).collect();
    assert_eq!(ids, [script.as_slice(), &[END]].concat());
    assert_eq!(events.iter().map(|event| event.logprobs.len()).sum::<usize>(), ids.len());
    let Some(Event::Start(start)) = &events[0].event else { panic!() };
    assert_eq!((start.model.as_str(), start.prompt_token_ids.is_empty()), ("bytes", false));
    let Some(Event::Usage(v1::UsageEvent { usage: Some(usage) })) = events.last().unwrap().event else { panic!() };
    assert_eq!((usage.completion_tokens, usage.reasoning_tokens, usage.cached_tokens), (ids.len() as u32, 1, 3));
    let done = events.iter().find_map(|event| match &event.event {
        Some(Event::Done(done)) => Some(done.finish_reason()),
        _ => None,
    });
    assert_eq!(done, Some(v1::FinishReason::ToolCalls));
}

#[tokio::test]
async fn http_and_grpc_errors_have_the_same_messages() {
    let router = TestRouter::new();
    let sampling = |sampling| v1::ChatRequest { sampling: Some(sampling), ..request(&[]) };
    let limits = |limits| v1::ChatRequest { limits: Some(limits), ..request(&[]) };
    let none = v1::Sampling::default;
    let rows: Vec<(v1::ChatRequest, Value)> = vec![
        (v1::ChatRequest { messages: vec![], ..request(&[]) }, json!({"messages": []})),
        (
            v1::ChatRequest { messages: vec![v1::Message { role: "x".into(), ..user("a") }], ..request(&[]) },
            json!({"messages": [{"role": "x", "content": "a"}]}),
        ),
        (sampling(v1::Sampling { temperature: Some(-1.0), ..none() }), json!({"temperature": -1})),
        (sampling(v1::Sampling { top_p: Some(2.0), ..none() }), json!({"top_p": 2})),
        (sampling(v1::Sampling { logit_bias: [(999, 1.0)].into(), ..none() }), json!({"logit_bias": {"999": 1}})),
        (limits(v1::Limits { max_tokens: Some(4000), ..v1::Limits::default() }), json!({"max_tokens": 4000})),
        (limits(v1::Limits { max_tokens: Some(0), ..v1::Limits::default() }), json!({"max_tokens": 0})),
        (limits(v1::Limits { stop: vec!["".into()], ..v1::Limits::default() }), json!({"stop": [""]})),
        (v1::ChatRequest { model: "other".into(), ..request(&[]) }, json!({"model": "other"})),
        (
            v1::ChatRequest {
                tool_choice: Some(v1::ToolChoice {
                    mode: v1::tool_choice::Mode::Required.into(),
                    ..v1::ToolChoice::default()
                }),
                ..request(&[])
            },
            json!({"tool_choice": "required"}),
        ),
        (v1::ChatRequest { n: Some(500), ..request(&[]) }, json!({"n": 500})),
        (v1::ChatRequest { reasoning_effort: Some("x".into()), ..request(&[]) }, json!({"reasoning_effort": "x"})),
    ];
    for (grpc, http) in rows {
        let status = client(&router).chat(grpc).await.map(|_| ()).unwrap_err();
        let answer = router.chat(&[], http.clone()).await;
        let error = answer.json()["error"].clone();
        assert_eq!(status.message(), error["message"], "{http}");
        let expected = if answer.status == StatusCode::NOT_FOUND { Code::NotFound } else { Code::InvalidArgument };
        assert_eq!(status.code(), expected);
        assert_eq!(status.metadata().get("rein-param").unwrap().to_str().unwrap(), error["param"]);
        assert_eq!(status.metadata().get("rein-code").unwrap().to_str().unwrap(), error["code"]);
    }
    // Values that JSON cannot express.
    let nan = sampling(v1::Sampling { temperature: Some(f32::NAN), ..none() });
    let status = client(&router).chat(nan).await.map(|_| ()).unwrap_err();
    assert_eq!(
        (status.code(), status.message()),
        (Code::InvalidArgument, "'temperature' must be between 0 and 2, got NaN")
    );
    let tool = v1::Tool { name: "f".into(), parameters_json: Some("{".into()), ..v1::Tool::default() };
    let status =
        client(&router).chat(v1::ChatRequest { tools: vec![tool], ..request(&[]) }).await.map(|_| ()).unwrap_err();
    assert!(status.message().starts_with("'tools[0].parameters_json' is not valid JSON"), "{status}");
    assert!(router.fake.starts().is_empty());
}

#[test]
fn the_user_is_the_session_as_over_http() {
    let session = |user: Option<&str>| {
        let asked = v1::ChatRequest { user: user.map(str::to_owned), ..request(&[]) };
        crate::api::grpc::request::chat(0, asked).unwrap().generation.session
    };
    assert_eq!(session(Some("ada")).as_deref(), Some("ada"));
    assert_eq!((session(Some("")), session(None)), (None, None));
}

#[tokio::test]
async fn deadlines_and_cancellation_reach_the_engine() {
    let router = TestRouter::with(RouterConfig::default(), Fake::ending(Ending::Hang));
    let mut cancelled = client(&router).chat(request(&bytes("ab"))).await.unwrap().into_inner();
    cancelled.message().await.unwrap();
    router.fake.open(1).await;
    drop(cancelled);
    router.fake.open(0).await;

    let mut timed = tonic::Request::new(request(&bytes("ab")));
    timed.set_timeout(Duration::from_millis(50));
    // On a slow machine the deadline may pass before the stream begins.
    let items: Vec<_> = match client(&router).chat(timed).await {
        Ok(response) => response.into_inner().collect().await,
        Err(status) => vec![Err(status)],
    };
    assert_eq!(items.last().unwrap().as_ref().unwrap_err().code(), Code::DeadlineExceeded);
    assert_eq!(items.iter().filter(|item| item.is_err()).count(), 1);
    router.fake.open(0).await;
    assert_eq!(router.router.in_flight(), 0);
}

#[tokio::test]
async fn health_reports_a_lost_engine() {
    use tonic_health::pb::{HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient};
    let router = TestRouter::new();
    let mut health = HealthClient::new(channel(&router));
    let check = HealthCheckRequest { service: "rein.v1.Inference".into() };
    assert_eq!(health.check(check.clone()).await.unwrap().into_inner().status(), ServingStatus::Serving);
    let mut watched = health.watch(check.clone()).await.unwrap().into_inner();
    assert_eq!(watched.next().await.unwrap().unwrap().status(), ServingStatus::Serving);
    router.fake.lose();
    assert_eq!(health.check(check).await.unwrap().into_inner().status(), ServingStatus::NotServing);
    assert_eq!(watched.next().await.unwrap().unwrap().status(), ServingStatus::NotServing);
    router.router.drain().await;
    let nothing = tokio::time::timeout(2 * crate::limits::HEALTH_TIME, watched.next()).await;
    assert!(nothing.is_err(), "a status is told once");
}

#[tokio::test]
async fn a_message_over_the_limit_is_refused_as_over_http() {
    let router = TestRouter::with(
        RouterConfig {
            memory: crate::MemoryLimits { body: 1000, ..crate::MemoryLimits::default() },
            ..RouterConfig::default()
        },
        Fake::default(),
    );
    let asked = v1::ChatRequest { messages: vec![user(&"x".repeat(1000))], ..request(&[]) };
    let refused = client(&router).chat(asked).await.err().unwrap();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert_eq!(refused.metadata().get("rein-code").unwrap(), "body_too_large");
    let over_http = router.post("/v1/chat/completions", json!({"x": "x".repeat(1000)})).await.json();
    let limit = |message: &str| message.split(';').next().unwrap_or_default().to_owned();
    assert_eq!(limit(refused.message()), limit(over_http["error"]["message"].as_str().unwrap()));
}

#[tokio::test]
async fn a_stream_whose_engines_are_lost_ends_with_unavailable() {
    let router = TestRouter::with(RouterConfig::default(), Fake::ending(Ending::Lost));
    let items: Vec<_> = client(&router).chat(request(&bytes("ab"))).await.unwrap().into_inner().collect().await;
    let status = items.last().unwrap().as_ref().unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "{status:?}");
    assert_eq!(status.metadata().get("rein-code").unwrap(), "capacity_lost");
}

#[tokio::test]
async fn an_abort_ends_a_stream_with_unavailable() {
    let router = TestRouter::with(RouterConfig::default(), Fake::ending(Ending::Hang));
    let open = client(&router).chat(request(&bytes("ab"))).await.unwrap().into_inner();
    router.router.abort();
    let items: Vec<_> = open.collect().await;
    let status = items.last().unwrap().as_ref().unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::Unavailable, "the server is shutting down"));
    assert_eq!(items.iter().filter(|item| item.is_err()).count(), 1);
    router.fake.open(0).await;
    assert_eq!(router.router.in_flight(), 0);
}

#[tokio::test]
async fn a_full_and_a_draining_router_have_different_codes() {
    let config = RouterConfig { max_in_flight: 1, max_queued: 0, ..RouterConfig::default() };
    let router = TestRouter::with(config, Fake::ending(Ending::Hang));
    let open = client(&router).chat(request(&bytes("ab"))).await.unwrap();
    let full = client(&router).chat(request(&bytes("ab"))).await.map(|_| ()).unwrap_err();
    assert_eq!((full.code(), full.metadata().get("retry-after").is_some()), (Code::ResourceExhausted, true));
    let mut drain = Box::pin(router.router.drain());
    assert!(futures::poll!(drain.as_mut()).is_pending());
    let draining = client(&router).chat(request(&bytes("ab"))).await.map(|_| ()).unwrap_err();
    assert_eq!(draining.code(), Code::Unavailable);
    let mut health = tonic_health::pb::health_client::HealthClient::new(channel(&router));
    let check = tonic_health::pb::HealthCheckRequest { service: "rein.v1.Inference".into() };
    let status = health.check(check).await.unwrap().into_inner().status();
    assert_eq!(status, tonic_health::pb::health_check_response::ServingStatus::NotServing);
    drop(open);
    drain.await;
}

#[tokio::test]
async fn complete_render_tokenize_and_models_work() {
    let router = TestRouter::new();
    let mut client = client(&router);
    let rendered = client.render(request(&[])).await.unwrap().into_inner();
    assert_eq!(rendered.prompt, "user: hi\nassistant: ");
    assert_eq!(rendered.token_ids, bytes(&rendered.prompt));

    let input = Some(v1::tokenize_request::Input::Text("hé".into()));
    let tokens = v1::TokenizeRequest { model: "bytes".into(), input, add_special_tokens: Some(false) };
    let tokens = client.tokenize(tokens).await.unwrap().into_inner();
    assert_eq!((tokens.ids.as_slice(), tokens.max_context), ([104, 195, 169].as_slice(), CONTEXT));
    assert_eq!(tokens.tokens, [vec![104], vec![195], vec![169]]);
    let text = client.detokenize(v1::DetokenizeRequest { model: "bytes".into(), ids: tokens.ids }).await.unwrap();
    assert_eq!(text.into_inner().text, "hé".as_bytes());

    let models = client.list_models(v1::ListModelsRequest {}).await.unwrap().into_inner().models;
    assert_eq!(
        (models[0].id.as_str(), models[0].max_context, models[0].format.as_str()),
        ("bytes", CONTEXT, "kimi_k2")
    );

    let prompt = Some(v1::complete_request::Prompt::TokenIds(v1::TokenIds { ids: bytes("ab") }));
    let complete = v1::CompleteRequest {
        model: "bytes".into(),
        prompt,
        echo: true,
        script: bytes("cd"),
        return_token_ids: true,
        ..v1::CompleteRequest::default()
    };
    let events: Vec<v1::CompleteEvent> =
        client.complete(complete).await.unwrap().into_inner().map(|event| event.unwrap()).collect().await;
    let text: String = events
        .iter()
        .filter_map(|event| match &event.event {
            Some(v1::complete_event::Event::TextDelta(delta)) => Some(delta.text.as_str()),
            _ => None,
        })
        .collect();
    assert_eq!(text, "abcd");
    assert_eq!(
        events.iter().flat_map(|event| event.token_ids.clone()).collect::<Vec<_>>(),
        [bytes("cd"), vec![END]].concat()
    );
}

#[tokio::test]
async fn reflection_names_the_services_in_both_versions() {
    use tonic_reflection::pb::{v1 as new, v1alpha as old};
    let router = TestRouter::new();
    let ask = new::ServerReflectionRequest {
        host: String::new(),
        message_request: Some(new::server_reflection_request::MessageRequest::ListServices(String::new())),
    };
    let mut client = new::server_reflection_client::ServerReflectionClient::new(channel(&router));
    let mut answers = client.server_reflection_info(futures::stream::iter([ask])).await.unwrap().into_inner();
    let answer = answers.message().await.unwrap().unwrap().message_response.unwrap();
    let new::server_reflection_response::MessageResponse::ListServicesResponse(list) = answer else { panic!() };
    let names: Vec<String> = list.service.into_iter().map(|service| service.name).collect();
    assert!(names.contains(&"rein.v1.Inference".to_owned()), "{names:?}");

    let ask = old::ServerReflectionRequest {
        host: String::new(),
        message_request: Some(old::server_reflection_request::MessageRequest::FileContainingSymbol(
            "rein.v1.Inference".into(),
        )),
    };
    let mut client = old::server_reflection_client::ServerReflectionClient::new(channel(&router));
    let mut answers = client.server_reflection_info(futures::stream::iter([ask])).await.unwrap().into_inner();
    let answer = answers.message().await.unwrap().unwrap().message_response.unwrap();
    assert!(matches!(answer, old::server_reflection_response::MessageResponse::FileDescriptorResponse(_)));
}
