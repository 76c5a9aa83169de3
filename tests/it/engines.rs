//! Engines that are already there: the router over adapters, with a stub in the form of each engine. Greedy answers
//! must equal those of the simulator, whatever the engines do on the way.

mod command;
mod recorded;
mod stub;

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use http_body_util::BodyExt;
use rein_adapter::{AdapterOptions, AdapterService, Deployment, EngineDialect, EngineHttp, EngineJoinError, join};
use rein_router::{ModelEntry, ModelPolicy, Router, RouterConfig};
use rein_text::tokenize::Encode;
use rein_worker::EngineOptions;
use rein_worker::sim::{Sim, SimOptions};
use serde_json::{Value, json};
use stub::{FaultPlan, StubEngine, StubFault};
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};
use tower::ServiceExt;

use super::failover::{answer, assert_same, request, text};
use super::hedging::{COUNTED, metric};

/// Long enough for a stub that works.
const TOKEN_DEADLINE: Duration = Duration::from_secs(1);

const PROBES: [&str; 4] = ["Hello, world!", " naïve 日本語 \u{1F600}", "x = {\"a\": [1, 2]}\n\n", "<|im_end|>"];

/// It trusts nobody: the stubs speak http.
fn client(url: &str) -> EngineHttp {
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let tls = builder.with_safe_default_protocol_versions().expect("versions");
    let tls = tls.with_root_certificates(RootCertStore::empty()).with_no_client_auth();
    EngineHttp::new(url.parse().expect("an address"), None, Arc::new(tls)).expect("a client")
}

fn no_fault() -> FaultPlan {
    Arc::new(|_| None)
}

/// The fault of each request whose number is in the range.
fn faulty(numbers: std::ops::Range<usize>, fault: StubFault) -> FaultPlan {
    Arc::new(move |number| numbers.contains(&number).then_some(fault))
}

async fn stub(dialect: EngineDialect, faults: FaultPlan) -> StubEngine {
    let text = text();
    let (vocab, eog) = (text.vocab_size, text.stop_token_ids.clone());
    let tokenize = move |probe: &str| text.tokenizer.encode(probe, Encode::TEMPLATED).expect("ids");
    StubEngine::start(dialect, vocab, &eog, tokenize, faults).await
}

fn deployment() -> Deployment {
    let text = text();
    let ids = |probe: &&str| (probe.to_string(), text.tokenizer.encode(probe, Encode::TEMPLATED).expect("ids"));
    let probes = PROBES.iter().map(ids).collect();
    let (served_name, vocab_size) = (text.name.clone(), text.vocab_size);
    Deployment { served_name: Some(served_name), vocab_size, context: Some(8192), least_context: None, probes }
}

async fn adapter(stub: &StubEngine) -> AdapterService {
    let http = client(&stub.url);
    let joined = join(&http, stub.dialect, &deployment()).await.expect("the stub fits");
    let options = AdapterOptions { token_deadline: TOKEN_DEADLINE, ..AdapterOptions::default() };
    AdapterService::start(http, stub.dialect, deployment(), joined, options)
}

fn entry(transport: rein_router::EngineTransport) -> ModelEntry {
    ModelEntry {
        text: text(),
        engine: transport,
        kind: String::new(),
        loras: Vec::new(),
        policy: ModelPolicy::default(),
    }
}

/// A router over adapters of these engines.
async fn front(stubs: &[&StubEngine], config: RouterConfig) -> axum::Router {
    let mut entries = Vec::new();
    for stub in stubs {
        entries.push(entry(rein_router::transport(adapter(stub).await.into_server())));
    }
    Router::new(config, entries).expect("a router").http()
}

/// The simulator with the stubs' tokens.
fn simulated() -> axum::Router {
    let sim = SimOptions { vocab_size: text().vocab_size, seed: 3, ..SimOptions::default() };
    let engine = rein_worker::start(Box::new(Sim::new(sim)), EngineOptions::default());
    let entries = vec![entry(rein_router::transport(engine.into_server()))];
    Router::new(RouterConfig::default(), entries).expect("a router").http()
}

fn greedy(i: u64) -> Value {
    let mut request = request(i, None);
    let fields = request.as_object_mut().expect("an object");
    fields.retain(|name, _| !["script", "logprobs", "n"].contains(&name.as_str()));
    fields.insert("temperature".into(), json!(0.0));
    if i == 5 {
        fields.insert("min_tokens".into(), json!(30));
    }
    request
}

async fn answers(router: &axum::Router) -> Vec<(u16, Value)> {
    without_kinds(futures::future::join_all((0..8).map(|i| answer(router.clone(), greedy(i)))).await)
}

/// One after the other, because the number of concurrent hedges is limited.
async fn answers_in_turn(router: &axum::Router) -> Vec<(u16, Value)> {
    let mut all = Vec::new();
    for i in 0..8 {
        all.push(answer(router.clone(), greedy(i)).await);
    }
    without_kinds(all)
}

/// The fingerprint names the kind of the engine.
fn without_kinds(mut all: Vec<(u16, Value)>) -> Vec<(u16, Value)> {
    for (_, body) in &mut all {
        body.as_object_mut().expect("an object").remove("system_fingerprint");
    }
    all
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_engine_gives_the_answers_of_the_simulator() {
    let want = answers(&simulated()).await;
    assert!(want.iter().all(|(status, _)| *status == 200), "{want:?}");
    assert!(want[0].1["choices"][0]["message"]["tool_calls"][0].is_object(), "{}", want[0].1);
    for dialect in EngineDialect::ALL {
        let stub = stub(dialect, no_fault()).await;
        let router = front(&[&stub], RouterConfig::default()).await;
        assert_same(&answers(&router).await, &want, &format!("{dialect:?}"));
        let requests = stub.requests();
        assert!(requests.len() > 40, "{dialect:?}: {} requests: the answers were steered", requests.len());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_that_breaks_at_any_request_changes_no_token() {
    let want = answers(&simulated()).await;
    for (dialect, other) in
        EngineDialect::ALL.into_iter().zip([EngineDialect::Sglang, EngineDialect::Vllm, EngineDialect::LlamaServer])
    {
        let calm = stub(dialect, no_fault()).await;
        answers(&front(&[&calm], RouterConfig::default()).await).await;
        let count = calm.requests().len();
        for fault in [
            StubFault::Cut(0),
            StubFault::Cut(1),
            StubFault::Cut(5),
            StubFault::ErrorInside(3),
            StubFault::Status(503),
            StubFault::Status(500),
        ] {
            for number in (0..count).step_by(count / 5 + 1) {
                let first = stub(dialect, faulty(number..usize::MAX, fault)).await;
                let second = stub(other, no_fault()).await;
                let router = front(&[&first, &second], RouterConfig::default()).await;
                let got = answers(&router).await;
                assert_same(&got, &want, &format!("{dialect:?}: {fault:?} from request {number}"));
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_engine_is_asked_again_and_a_dead_one_is_left() {
    let want = answers(&simulated()).await;
    for dialect in EngineDialect::ALL {
        // In the middle of a sequence, 429 is waited for.
        let full = stub(dialect, faulty(1..3, StubFault::Status(429))).await;
        let got = answer(front(&[&full], RouterConfig::default()).await, greedy(0)).await;
        assert_same(&without_kinds(vec![got]), &want[..1], &format!("{dialect:?}: 429"));
        assert!(full.requests().len() > 3, "{dialect:?}");
        // New sequences go to another engine.
        let (full, other) =
            (stub(dialect, faulty(0..usize::MAX, StubFault::Status(429))).await, stub(dialect, no_fault()).await);
        let router = front(&[&full, &other], RouterConfig::default()).await;
        assert_same(&answers(&router).await, &want, &format!("{dialect:?}: full"));
        // Silent, until its health fails.
        let (dead, other) =
            (stub(dialect, faulty(4..usize::MAX, StubFault::Silent)).await, stub(dialect, no_fault()).await);
        let router = front(&[&dead, &other], RouterConfig::default()).await;
        dead.fail_health();
        assert_same(&answers(&router).await, &want, &format!("{dialect:?}: silent"));
    }
}

/// The health of these engines is good.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sequences_of_an_engine_that_drips_or_hangs_resume_on_another() {
    let want = answers(&simulated()).await;
    for dialect in EngineDialect::ALL {
        for fault in [StubFault::Drips, StubFault::NoHead, StubFault::Silent] {
            let slow = stub(dialect, faulty(4..usize::MAX, fault)).await;
            let other = stub(dialect, no_fault()).await;
            let router = front(&[&slow, &other], RouterConfig::default()).await;
            let began = std::time::Instant::now();
            assert_same(&answers(&router).await, &want, &format!("{dialect:?}: {fault:?}"));
            assert!(began.elapsed() < 5 * TOKEN_DEADLINE, "{dialect:?}: {fault:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_that_was_replaced_is_proven_before_it_is_used() {
    let want = answers(&simulated()).await;
    for dialect in EngineDialect::ALL {
        let stub = stub(dialect, no_fault()).await;
        let router = front(&[&stub], RouterConfig::default()).await;
        assert_same(&answers(&router).await, &want, &format!("{dialect:?}"));
        // Its health is always good. A restart takes no time.
        stub.replace(true, true).await;
        let before = stub.requests().len();
        let got = answers(&router).await;
        assert!(got.iter().all(|(status, _)| *status == 503), "{dialect:?}: {got:?}");
        assert_eq!(stub.requests().len(), before, "{dialect:?}: another engine was asked for tokens");
        // Behind a balancer, a connection stays.
        stub.replace(false, false).await;
        until_served(&router).await;
        assert_same(&answers(&router).await, &want, &format!("{dialect:?}: again"));
        stub.replace(true, false).await;
        let got = answers(&router).await;
        if dialect != EngineDialect::Sglang {
            assert!(got.iter().all(|(status, _)| *status == 503), "{dialect:?}: {got:?}");
        }
    }
}

/// Its breaker lets a request through now and then.
async fn until_served(router: &axum::Router) {
    let served = async { while answer(router.clone(), greedy(0)).await.0 != 200 {} };
    tokio::time::timeout(Duration::from_secs(40), served).await.expect("it is used again");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_engine_is_hedged() {
    let want = answers(&simulated()).await;
    for dialect in EngineDialect::ALL {
        let (silent, other) = (stub(dialect, faulty(0..1, StubFault::Silent)).await, stub(dialect, no_fault()).await);
        let hedge_after = Some(Duration::from_millis(20));
        let router = front(&[&silent, &other], RouterConfig { hedge_after, ..RouterConfig::default() }).await;
        let got = answer(router, greedy(0)).await;
        assert_same(&without_kinds(vec![got]), &want[..1], &format!("{dialect:?}"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_race_of_two_engines_has_one_outcome() {
    let sim = simulated();
    let (want, mut hedges) = (answers_in_turn(&sim).await, 0);
    for dialect in EngineDialect::ALL {
        // So short that requests are hedged, unless they are answered at once, and either engine may be first.
        for after in [0, 1] {
            let (first, second) = (stub(dialect, no_fault()).await, stub(dialect, no_fault()).await);
            let hedge_after = Some(Duration::from_micros(after));
            let router = front(&[&first, &second], RouterConfig { hedge_after, ..RouterConfig::default() }).await;
            assert_same(&answers_in_turn(&router).await, &want, &format!("{dialect:?}: raced"));
            for name in COUNTED {
                assert_eq!(metric(&router, name).await, metric(&sim, name).await, "{dialect:?}: {name}");
            }
            assert_eq!(metric(&router, "rein_requests_in_flight").await, 0);
            hedges += metric(&router, "rein_hedges_total").await;
        }
    }
    assert!(hedges > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hostile_engine_ends_its_sequence_only() {
    let want = answers(&simulated()).await;
    for dialect in EngineDialect::ALL {
        for (fault, fails) in [
            (StubFault::Draws(1 << 20), true),
            (StubFault::TooMany, false),
            (StubFault::Endless, true),
            (StubFault::Huge, true),
            (StubFault::NoReason(1), false),
        ] {
            let hostile = stub(dialect, faulty(0..1, fault)).await;
            let router = front(&[&hostile], RouterConfig::default()).await;
            let (status, body) = answer(router.clone(), greedy(1)).await;
            // A loss resumes on the same engine, and then the answer is complete.
            assert!(status == 200 || status >= 500, "{dialect:?}, {fault:?}: {status} {body}");
            if fails {
                assert_eq!(status, 500, "{dialect:?}, {fault:?}: {body}");
            }
            if fault == StubFault::TooMany {
                assert_eq!(body["choices"], want[1].1["choices"], "{dialect:?}");
            }
            assert_same(&answers(&router).await, &want, &format!("{dialect:?} after {fault:?}"));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn masks_that_an_engine_ignores_sometimes_do_not_matter_and_always_are_an_error() {
    let want = answers(&simulated()).await;
    for dialect in EngineDialect::ALL {
        let sometimes = stub(dialect, Arc::new(|number| (number % 4 == 1).then_some(StubFault::Ignores))).await;
        let router = front(&[&sometimes], RouterConfig::default()).await;
        assert_same(&answers(&router).await, &want, &format!("{dialect:?}: sometimes"));
        let always = stub(dialect, Arc::new(|_| Some(StubFault::Ignores))).await;
        let router = front(&[&always], RouterConfig::default()).await;
        let (status, body) = answer(router, greedy(0)).await;
        assert_eq!(status, 500, "{dialect:?}: {body}");
    }
}

/// The engine wants to end where the grammar requires a call: the masked draw gives the stop token first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_token_in_the_first_masked_draw_is_drawn_again() {
    let stop = text().stop_token_ids[0];
    for dialect in EngineDialect::ALL {
        let stub = stub(dialect, Arc::new(move |number| (number < 2).then_some(StubFault::Draws(stop)))).await;
        let router = front(&[&stub], RouterConfig::default()).await;
        let (status, body) = answer(router, greedy(0)).await;
        assert_eq!(status, 200, "{dialect:?}: {body}");
        assert!(body["choices"][0]["message"]["tool_calls"][0].is_object(), "{dialect:?}: {body}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_input_reaches_no_engine() {
    let vocab = text().vocab_size;
    for dialect in EngineDialect::ALL {
        let stub = stub(dialect, no_fault()).await;
        let router = front(&[&stub], RouterConfig::default()).await;
        for (field, value) in [
            ("temperature", json!(2.5)),
            ("logit_bias", json!({vocab.to_string(): 1})),
            ("allowed_token_ids", json!([vocab])),
            ("stop_token_ids", json!([vocab])),
            ("max_tokens", json!(9000)),
            ("prompt_logprobs", json!(1)),
            ("script", json!([1])),
            ("seed", json!("x")),
        ] {
            let mut request = greedy(3);
            request.as_object_mut().expect("an object").insert(field.into(), value.clone());
            let (status, body) = answer(router.clone(), request).await;
            assert_eq!(status, 400, "{dialect:?}, {field} {value}: {body}");
        }
        assert_eq!(stub.requests().len(), 0, "{dialect:?}");
        // A seed of any size is one of 63 bits, or 32, to the engine.
        let mut request = greedy(3);
        request.as_object_mut().expect("an object").insert("seed".into(), json!(-1));
        assert_eq!(answer(router.clone(), request).await.0, 200);
        let bits = if dialect == EngineDialect::LlamaServer { 32 } else { 63 };
        for request in stub.requests() {
            let seed = [&request["seed"], &request["sampling_params"]["sampling_seed"]];
            let seed = seed.into_iter().find_map(Value::as_u64).expect("a seed");
            assert_eq!(seed >> bits, 0, "{dialect:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_with_another_tokenizer_or_of_another_kind_does_not_join() {
    let tokenize = |probe: &str| probe.bytes().map(u32::from).chain([1]).collect();
    for dialect in EngineDialect::ALL {
        let other = StubEngine::start(dialect, text().vocab_size, &[], tokenize, no_fault()).await;
        let http = client(&other.url);
        let error = join(&http, dialect, &deployment()).await.expect_err("another tokenizer");
        assert!(error.to_string().contains("its tokenizer differs: for \"Hello, world!\""), "{error}");
        assert!(matches!(error, EngineJoinError::Refused { .. }));
    }
    let gone = stub(EngineDialect::Vllm, no_fault()).await;
    let http = client(&gone.url);
    drop(gone);
    let plain = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let nothing = client(&format!("http://{}", plain.local_addr().expect("an address")));
    drop(plain);
    let error = join(&nothing, EngineDialect::Vllm, &deployment()).await.expect_err("nothing listens");
    assert!(matches!(error, EngineJoinError::Unanswered(_)), "{error}");
    drop(http);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_its_client_leaves_is_closed_at_the_engine() {
    for dialect in EngineDialect::ALL {
        let stub = stub(dialect, faulty(0..1, StubFault::Silent)).await;
        let service = adapter(&stub).await;
        let transport = rein_router::transport(service.clone().into_server());
        let router = Router::new(RouterConfig::default(), vec![entry(transport)]).expect("a router").http();
        let mut request = greedy(3);
        request.as_object_mut().expect("an object").insert("stream".into(), json!(true));
        let post = http::Request::post("/v1/chat/completions").header("content-type", "application/json");
        let call = router.oneshot(post.body(Body::from(request.to_string())).expect("a request"));
        let reading = async {
            let body = call.await.expect("infallible").into_body();
            body.collect().await.map(|_| ())
        };
        tokio::select! {
            read = reading => panic!("the engine is silent: {read:?}"),
            () = until(|| stub.requests().len() == 1 && service.open() == 1) => {}
        }
        until(|| service.open() == 0).await;
    }
}

/// Yields until this is so; the test's own limit of time ends it otherwise.
async fn until(so: impl Fn() -> bool) {
    let wait = async {
        while !so() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), wait).await.expect("it happens within 20 s");
}
