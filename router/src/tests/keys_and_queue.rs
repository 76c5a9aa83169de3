//! API keys, limits and the queue, as clients see them.

use std::time::Duration;

use prometheus_client::metrics::gauge::ConstGauge;
use rein_proto::v1::{self, inference_client::InferenceClient};
use serde_json::json;
use tonic::Code;

use super::{fake::Ending, *};
use crate::admission::keys::{ApiKeys, key_hash};

pub const KEY: &str = "sk-rein-a-right-one";
pub const OTHER: &str = "sk-rein-another";

pub struct KeyFile(PathBuf);

impl KeyFile {
    fn new(text: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("rein-keys-{}-{number}.toml", std::process::id()));
        std::fs::write(&path, text).unwrap();
        KeyFile(path)
    }
}

impl Drop for KeyFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn key_entry(name: &str, key: &str, limits: &str) -> String {
    format!("[[key]]\nname = \"{name}\"\nhash = \"{}\"\n{limits}\n", key_hash(key))
}

/// A router that requires keys. `limits` are those of `KEY`.
pub fn guarded(limits: &str, config: RouterConfig, fake: Fake) -> (KeyFile, ApiKeys, TestRouter) {
    let file = KeyFile::new(&(key_entry("team-a", KEY, limits) + &key_entry("team-b", OTHER, "")));
    let keys = ApiKeys::open("--api-keys", file.0.clone()).unwrap();
    let router = TestRouter::with(RouterConfig { keys: Some(keys.clone()), ..config }, fake);
    (file, keys, router)
}

pub fn keyed(method: &str, path: &str, key: &str, body: Value) -> Request<Body> {
    let request = Request::builder().method(method).uri(path).header("authorization", format!("Bearer {key}"));
    request.body(if body.is_null() { Body::empty() } else { body.to_string().into() }).unwrap()
}

async fn ask(router: &TestRouter, key: &str, more: Value) -> Answer {
    Answer::of(router.send(keyed("POST", "/v1/chat/completions", key, chat_request(&bytes("ab"), more))).await).await
}

#[tokio::test]
async fn requests_without_a_valid_key_are_refused() {
    let (_file, _, router) = guarded("", RouterConfig::default(), Fake::default());
    let wrong = keyed("POST", "/v1/chat/completions", "sk-wrong", chat_request(&[], json!({})));
    for request in [
        wrong,
        Request::get("/v1/models").body(Body::empty()).unwrap(),
        Request::post("/tokenize").body(json!({"prompt": "a"}).to_string().into()).unwrap(),
        Request::get("/nowhere").header("authorization", format!("Basic {KEY}")).body(Body::empty()).unwrap(),
    ] {
        let answer = Answer::of(router.send(request).await).await;
        assert_eq!((answer.status, answer.header("www-authenticate")), (StatusCode::UNAUTHORIZED, "Bearer"));
        let error = answer.json()["error"].clone();
        assert_eq!((&error["code"], &error["type"]), (&json!("invalid_api_key"), &json!("invalid_request_error")));
        assert!(!answer.text.contains("sk-wrong") && answer.header("x-request-id").contains('-'));
    }
    for path in ["/", "/health", "/ready", "/metrics", "/openapi.json"] {
        assert_eq!(router.get(path).await.status, StatusCode::OK, "{path}");
    }
    ask(&router, KEY, json!({})).await.ok();
    let by_header = Request::get("/v1/models").header("x-api-key", OTHER).body(Body::empty()).unwrap();
    assert_eq!(router.send(by_header).await.status(), StatusCode::OK);
    let metrics = router.get("/metrics").await.text;
    for line in [
        "rein_key_requests_total{key=\"team-a\"} 1",
        "rein_key_requests_total{key=\"team-b\"} 0",
        "rein_key_tokens_total{key=\"team-a\"} 23",
        "rein_key_requests_in_flight{key=\"team-a\"} 0",
        "rein_unauthenticated_total 4",
        "rein_requests_total{surface=\"http\",endpoint=\"key\",status=\"401\"} 4",
    ] {
        assert!(metrics.lines().any(|have| have == line), "{line}\n{metrics}");
    }
    for secret in [KEY, OTHER, &key_hash(KEY), "sk-"] {
        assert!(!metrics.contains(secret), "{secret}");
    }
}

#[tokio::test]
async fn grpc_requires_the_same_keys() {
    let (_file, _, router) = guarded("requests_per_minute = 1", RouterConfig::default(), Fake::default());
    let mut client = InferenceClient::new(grpc::channel(&router));
    let mut list = async |key: Option<&str>| {
        let mut request = tonic::Request::new(v1::ListModelsRequest {});
        if let Some(key) = key {
            request.metadata_mut().insert("authorization", format!("Bearer {key}").parse().unwrap());
        }
        client.list_models(request).await.map(|_| ())
    };
    for key in [None, Some("sk-wrong")] {
        let status = list(key).await.unwrap_err();
        assert_eq!(status.code(), Code::Unauthenticated);
        assert_eq!(status.metadata().get("rein-code").unwrap(), "invalid_api_key");
    }
    list(Some(KEY)).await.unwrap();
    let status = list(Some(KEY)).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert_eq!(status.metadata().get("retry-after").unwrap(), "60");
    let mut health = tonic_health::pb::health_client::HealthClient::new(grpc::channel(&router));
    health.check(tonic_health::pb::HealthCheckRequest { service: String::new() }).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn rate_limit_headers_are_sent_with_every_answer() {
    let limits = "requests_per_minute = 2\ntokens_per_minute = 1000";
    let (_file, _, router) = guarded(limits, RouterConfig::default(), Fake::default());
    let first = ask(&router, KEY, json!({})).await;
    first.ok();
    assert_eq!(
        (first.header("x-ratelimit-limit-requests"), first.header("x-ratelimit-remaining-requests")),
        ("2", "1")
    );
    assert_eq!(first.header("x-ratelimit-limit-tokens"), "1000");
    let left: u64 = first.header("x-ratelimit-remaining-tokens").parse().unwrap();
    assert!((970..1000).contains(&left), "{left}");
    // Listing models does not count.
    for _ in 0..5 {
        let models = Answer::of(router.send(keyed("GET", "/v1/models", KEY, Value::Null)).await).await;
        assert_eq!(models.status, StatusCode::OK);
    }
    ask(&router, KEY, json!({})).await.ok();
    let third = ask(&router, KEY, json!({})).await;
    assert_eq!((third.status, third.header("retry-after")), (StatusCode::TOO_MANY_REQUESTS, "30"));
    assert_eq!(third.json()["error"]["code"], "rate_limit_exceeded");
    assert_eq!(third.header("x-ratelimit-remaining-requests"), "0");
    // Other keys are not affected.
    ask(&router, OTHER, json!({})).await.ok();
    tokio::time::advance(Duration::from_secs(31)).await;
    ask(&router, KEY, json!({})).await.ok();
}

#[tokio::test]
async fn tokens_are_charged_even_if_the_client_leaves() {
    let (_file, _, router) = guarded("tokens_per_minute = 20", RouterConfig::default(), Fake::ending(Ending::Hang));
    let request = chat_request(&bytes("abcdef"), json!({"stream": true}));
    let response = router.send(keyed("POST", "/v1/chat/completions", KEY, request)).await;
    let mut body = response.into_body().into_data_stream();
    futures::StreamExt::next(&mut body).await.unwrap().unwrap();
    drop(body);
    let next = ask(&router, KEY, json!({})).await;
    assert_eq!(next.status, StatusCode::TOO_MANY_REQUESTS, "{}", next.text);
    assert!(next.text.contains("20 tokens per minute"), "{}", next.text);
}

#[tokio::test]
async fn a_keys_requests_in_flight_are_bounded() {
    let (_file, _, router) = guarded("max_in_flight = 1", RouterConfig::default(), Fake::ending(Ending::Hang));
    let request = chat_request(&bytes("a"), json!({"stream": true}));
    let open = router.send(keyed("POST", "/v1/chat/completions", KEY, request.clone())).await;
    let second = ask(&router, KEY, json!({})).await;
    assert_eq!(second.status, StatusCode::TOO_MANY_REQUESTS);
    assert!(second.text.contains("1 requests at once"), "{}", second.text);
    let other = router.send(keyed("POST", "/v1/chat/completions", OTHER, request.clone())).await;
    assert_eq!(other.status(), StatusCode::OK);
    drop(open);
    router.fake.open(1).await;
    let again = router.send(keyed("POST", "/v1/chat/completions", KEY, request)).await;
    assert_eq!(again.status(), StatusCode::OK);
}

#[tokio::test]
async fn a_removed_key_is_refused_without_a_restart() {
    let (file, keys, router) = guarded("", RouterConfig::default(), Fake::default());
    ask(&router, KEY, json!({})).await.ok();
    std::fs::write(&file.0, key_entry("team-b", OTHER, "")).unwrap();
    keys.refresh();
    assert_eq!(ask(&router, KEY, json!({})).await.status, StatusCode::UNAUTHORIZED);
    ask(&router, OTHER, json!({})).await.ok();
    assert!(!router.get("/metrics").await.text.contains("team-a"));
    // An invalid file does not change the keys.
    std::fs::write(&file.0, "[[key]]\nname = 3").unwrap();
    keys.refresh();
    ask(&router, OTHER, json!({})).await.ok();
}

/// Polls until this many requests wait in the queue.
pub async fn waiting(router: &TestRouter, requests: usize) {
    loop {
        let metrics = router.get("/metrics").await.text;
        if metrics.lines().any(|line| line == format!("rein_requests_waiting {requests}")) {
            return;
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_burst_waits_and_is_admitted_by_priority() {
    let config = RouterConfig { max_in_flight: 1, max_queued: 2, ..RouterConfig::default() };
    let router = TestRouter::with(config, Fake::ending(Ending::Hang));
    let send = |script: &str, priority: i64| {
        let body = chat_request(&bytes(script), json!({"stream": true, "priority": priority})).to_string();
        let request = Request::post("/v1/chat/completions").body(Body::from(body)).unwrap();
        tokio::spawn(tower::ServiceExt::oneshot(router.router.http(), request))
    };
    let first = send("a", 0).await.unwrap().unwrap();
    let late = send("b", 5);
    waiting(&router, 1).await;
    let urgent = send("c", -5);
    waiting(&router, 2).await;
    let full = router.chat(&bytes("d"), json!({})).await;
    assert_eq!((full.status, full.header("retry-after")), (StatusCode::TOO_MANY_REQUESTS, "1"));
    drop(first);
    let urgent = urgent.await.unwrap().unwrap();
    assert_eq!(router.fake.starts().last().unwrap().script, bytes("c"));
    drop(urgent);
    drop(late.await.unwrap().unwrap());
    assert_eq!(router.fake.starts().last().unwrap().script, bytes("b"));
    router.fake.open(0).await;
    assert_eq!(router.router.in_flight(), 0);
    assert_eq!(router.chat(&[], json!({"priority": "high"})).await.json()["error"]["param"], "priority");
}

#[tokio::test]
async fn more_choices_than_a_key_may_have_are_a_mistake_of_the_client() {
    let (_file, _, router) = guarded("max_in_flight = 2", RouterConfig::default(), Fake::default());
    let answer = ask(&router, KEY, json!({"n": 3})).await;
    assert_eq!((answer.status, &answer.json()["error"]["param"]), (StatusCode::BAD_REQUEST, &json!("n")));
    assert!(
        answer.text.contains("has 3 choices ('n' for each prompt); the key 'team-a' may have 2 at once"),
        "{}",
        answer.text
    );
    ask(&router, KEY, json!({"n": 2})).await.ok();
    ask(&router, OTHER, json!({"n": 3})).await.ok();
}

#[tokio::test]
async fn a_key_with_many_requests_does_not_delay_another() {
    let config = RouterConfig { max_in_flight: 1, max_queued: 3, ..RouterConfig::default() };
    let (_file, _, router) = guarded("", config, Fake::ending(Ending::Hang));
    let send = |key: &str, script: &str| {
        let request = chat_request(&bytes(script), json!({"stream": true}));
        let request = keyed("POST", "/v1/chat/completions", key, request);
        tokio::spawn(tower::ServiceExt::oneshot(router.router.http(), request))
    };
    let first = send(KEY, "a").await.unwrap().unwrap();
    let mut many = Vec::new();
    for n in 1..=3 {
        many.push(send(KEY, "b"));
        waiting(&router, n).await;
    }
    // The queue is full, so the last request of the key that filled it makes place. The slot is held, so the other key
    // has one beyond it.
    let other = send(OTHER, "c").await.unwrap().unwrap();
    assert_eq!((other.status(), router.fake.starts().last().unwrap().script.clone()), (StatusCode::OK, bytes("c")));
    let evicted = Answer::of(many.pop().unwrap().await.unwrap().unwrap()).await;
    assert_eq!((evicted.status, evicted.header("retry-after")), (StatusCode::TOO_MANY_REQUESTS, "1"));
    waiting(&router, 2).await;
    drop((first, other));
    for waiting in many {
        drop(waiting.await.unwrap().unwrap());
    }
    router.fake.open(0).await;
    let metrics = router.get("/metrics").await.text;
    assert!(metrics.contains("rein_requests_shed_total{reason=\"evicted\"} 1"), "{metrics}");
}

#[tokio::test(start_paused = true)]
async fn a_request_that_would_miss_its_deadline_is_refused_at_once() {
    let config = RouterConfig { max_in_flight: 1, max_queued: 4, ..RouterConfig::default() };
    let router = TestRouter::with(config, Fake::ending(Ending::Hang));
    let request = |seconds: &str| {
        let body = chat_request(&bytes("a"), json!({"stream": true})).to_string();
        let request = Request::post("/v1/chat/completions").header("x-request-timeout", seconds);
        request.body(Body::from(body)).unwrap()
    };
    for wrong in ["", "0", "-1", "soon", "nan"] {
        let answer = Answer::of(router.send(request(wrong)).await).await;
        assert_eq!(
            (answer.status, &answer.json()["error"]["param"]),
            (StatusCode::BAD_REQUEST, &json!("x-request-timeout"))
        );
    }
    let first = router.send(request("1e30")).await;
    tokio::time::advance(Duration::from_secs(8)).await;
    drop(first);
    let mut second = router.send(request("60")).await.into_body();
    let _reader =
        tokio::spawn(async move { while let Some(Ok(_)) = http_body_util::BodyExt::frame(&mut second).await {} });
    let hurried = Answer::of(router.send(request("2.5")).await).await;
    assert_eq!((hurried.status, hurried.header("retry-after")), (StatusCode::TOO_MANY_REQUESTS, "6"));
    assert_eq!(hurried.json()["error"]["code"], "deadline_unreachable");
    // Its deadline passes in the queue.
    let patient = Answer::of(router.send(request("9")).await).await;
    assert_eq!(
        (patient.status, &patient.json()["error"]["code"]),
        (StatusCode::GATEWAY_TIMEOUT, &json!("deadline_exceeded"))
    );
    let metrics = router.get("/metrics").await.text;
    assert!(metrics.contains("rein_requests_shed_total{reason=\"deadline\"} 1"), "{metrics}");
}

#[tokio::test]
async fn the_reference_lists_all_metrics() {
    let process_metrics = crate::ProcessMetrics::new(|registry| {
        registry.register("process_start_time_seconds", "Of the process", ConstGauge::new(60_u64));
    });
    let config = RouterConfig { process_metrics, ..RouterConfig::default() };
    let (_file, _, router) = guarded("", config, Fake::default());
    ask(&router, KEY, json!({})).await.ok();
    let written = router.get("/metrics").await.text;
    assert!(written.contains("# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds 60\n"), "{written}");
    super::metrics_reference::check("Routers", &written);
}

#[tokio::test]
async fn allowed_origins_may_send_requests_and_read_answers() {
    const PAGE: &str = "https://chat.example";
    let config = |origins: &[&str]| RouterConfig {
        cors_origins: origins.iter().map(|origin| origin.parse().unwrap()).collect(),
        ..RouterConfig::default()
    };
    let from = |mut request: Request<Body>, origin: &'static str| {
        request.headers_mut().insert("origin", origin.parse().unwrap());
        request
    };
    let preflight = |origin: &'static str| {
        let mut request = from(keyed("OPTIONS", "/v1/chat/completions", "", Value::Null), origin);
        request.headers_mut().remove("authorization");
        request.headers_mut().insert("access-control-request-method", "POST".parse().unwrap());
        request.headers_mut().insert("access-control-request-headers", "authorization,x-mine".parse().unwrap());
        request
    };
    let allowed = |answer: &Answer| answer.header("access-control-allow-origin").to_owned();
    for (origins, told) in [(&["https://other.example", PAGE][..], PAGE), (&["*"][..], "*")] {
        let (_file, _keys, router) = guarded("", config(origins), Fake::default());
        let asked = Answer::of(router.send(preflight(PAGE)).await).await;
        assert_eq!((asked.status, allowed(&asked)), (StatusCode::NO_CONTENT, told.into()));
        assert_eq!(asked.header("access-control-allow-headers"), "authorization,x-mine");
        assert!(asked.header("access-control-allow-methods").contains("POST"));
        let body = chat_request(&bytes("a"), json!({"nonsense": 1}));
        for (key, body, status) in [
            (KEY, body.clone(), StatusCode::OK),
            (KEY, json!({}), StatusCode::BAD_REQUEST),
            ("wrong", body, StatusCode::UNAUTHORIZED),
        ] {
            let request = from(keyed("POST", "/v1/chat/completions", key, body), PAGE);
            let answer = Answer::of(router.send(request).await).await;
            assert_eq!((answer.status, allowed(&answer)), (status, told.into()));
            let exposed = answer.header("access-control-expose-headers");
            assert!(exposed.contains("x-request-id"), "{exposed}");
            assert_eq!(exposed.contains("x-rein-ignored-fields"), status == StatusCode::OK, "{exposed}");
            assert_eq!(answer.header("vary"), if told == "*" { "" } else { "origin" });
        }
        let nowhere = Answer::of(router.send(from(keyed("GET", "/nowhere", KEY, Value::Null), PAGE)).await).await;
        assert_eq!((nowhere.status, allowed(&nowhere)), (StatusCode::NOT_FOUND, told.into()));
    }
    // Other origins get no CORS headers, and without the option no origin does.
    for origins in [&[PAGE][..], &[]] {
        let router = TestRouter::with(config(origins), Fake::default());
        for request in [
            preflight("https://evil.example"),
            from(keyed("GET", "/v1/models", "", Value::Null), "https://evil.example"),
        ] {
            let answer = Answer::of(router.send(request).await).await;
            assert!(
                !answer.headers.keys().any(|name| name.as_str().starts_with("access-control-")),
                "{:?}",
                answer.headers
            );
        }
    }
    let router = TestRouter::new();
    let asked = Answer::of(router.send(preflight(PAGE)).await).await;
    assert_eq!((asked.status, allowed(&asked)), (StatusCode::METHOD_NOT_ALLOWED, String::new()));
}

#[tokio::test]
async fn kept_responses_and_sealed_reasoning_belong_to_their_key() {
    let config = RouterConfig { responses_store: crate::ResponsesStoreMode::Memory, ..RouterConfig::default() };
    let (_file, _, router) = guarded("", config, Fake::default());
    let send = async |method, path: &str, key, body: Value| {
        Answer::of(router.send(keyed(method, path, key, body)).await).await
    };
    let script = [&[THINK], bytes("hm").as_slice(), &[END_THINK], &bytes("a")].concat();
    let include = json!(["reasoning.encrypted_content"]);
    let body = json!({"model": "bytes", "input": "hi", "script": script, "include": include});
    let kept = send("POST", "/v1/responses", KEY, body).await.ok();
    let path = format!("/v1/responses/{}", kept["id"].as_str().unwrap());
    let continues = json!({"model": "bytes", "input": "x", "previous_response_id": kept["id"], "script": bytes("b")});
    let sealed = json!({"model": "bytes", "script": bytes("b"),
        "input": [{"role": "user", "content": "hi"}, kept["output"][0], {"role": "user", "content": "x"}]});
    // What another key has sealed is left out.
    let foreign = Some("input[1].encrypted_content");
    for (key, fetched, left_out) in [(OTHER, 404, foreign), (KEY, 200, None)] {
        assert_eq!(send("GET", &path, key, Value::Null).await.status.as_u16(), fetched);
        assert_eq!(send("GET", &format!("{path}/input_items"), key, Value::Null).await.status.as_u16(), fetched);
        assert_eq!(send("POST", "/v1/responses", key, continues.clone()).await.status.as_u16(), fetched);
        let answer = send("POST", "/v1/responses", key, sealed.clone()).await;
        assert_eq!(answer.headers.get("x-rein-ignored-fields").map(|value| value.to_str().unwrap()), left_out);
        answer.ok();
        assert_eq!(send("DELETE", &path, key, Value::Null).await.status.as_u16(), fetched);
    }
    assert_eq!(send("GET", &path, KEY, Value::Null).await.status.as_u16(), 404);
}

/// The salt goes to the engine, to the router's index and to its prompt cache: whatever has another one is not shared.
#[tokio::test]
async fn keys_share_no_cached_prefixes_unless_they_say_so() {
    let sharing = "share_prefix_cache = true";
    let file = KeyFile::new(
        &[("a", KEY, ""), ("b", OTHER, ""), ("c", "sk-rein-c", sharing), ("d", "sk-rein-d", sharing)]
            .map(|(name, key, more)| key_entry(name, key, more))
            .concat(),
    );
    let keys = ApiKeys::open("--api-keys", file.0.clone()).unwrap();
    let router = TestRouter::with(RouterConfig { keys: Some(keys), ..RouterConfig::default() }, Fake::default());
    let text = json!({"model": "bytes", "prompt": "ab", "max_tokens": 1});
    let salt = async |key: &str, path: &str, salt: Option<&str>| {
        let mut request = if path == "/v1/completions" { text.clone() } else { chat_request(&bytes("ab"), json!({})) };
        if let Some(salt) = salt {
            request["cache_salt"] = salt.into();
        }
        let answer = Answer::of(router.send(keyed("POST", path, key, request)).await).await;
        assert_eq!(answer.status, StatusCode::OK, "{}", answer.text);
        router.fake.starts().last().unwrap().cache_salt.clone()
    };
    for path in ["/v1/chat/completions", "/v1/completions"] {
        let of = async |key, asked| salt(key, path, asked).await;
        let (a, b) = (of(KEY, None).await, of(OTHER, None).await);
        assert!(a == of(KEY, None).await && a != b && !a.is_empty() && !b.is_empty());
        let (c, d) = (of("sk-rein-c", None).await, of("sk-rein-d", None).await);
        assert_eq!((c.as_str(), d.as_str()), ("", ""));
        // Its own salt separates a client's requests, and nobody gets to another key's by asking for it.
        let (mine, theirs) = (of(KEY, Some("s")).await, of(OTHER, Some("s")).await);
        assert!(mine != theirs && mine != a && mine.len() <= crate::limits::CACHE_SALT_BYTES);
        assert_eq!(of("sk-rein-c", Some("s")).await, of("sk-rein-d", Some("s")).await);
        for stolen in [&a, &mine] {
            assert!(![&a, &mine].contains(&&of("sk-rein-c", Some(stolen)).await));
            assert!(![&a, &mine].contains(&&of(OTHER, Some(stolen)).await));
        }
    }
    let refused = chat_request(&bytes("ab"), json!({"cache_salt": ""}));
    let answer = Answer::of(router.send(keyed("POST", "/v1/chat/completions", KEY, refused)).await).await;
    assert!(answer.status == StatusCode::BAD_REQUEST && answer.text.contains("cache_salt"), "{}", answer.text);
}
