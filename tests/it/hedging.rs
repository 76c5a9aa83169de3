//! Hedging: if the first engine is silent, the client gets the same answer from another one, and it is counted once.

use std::sync::mpsc;
use std::time::Duration;

use axum::body::Body;
use http_body_util::BodyExt;
use rein_proto::internal::{Step, StepResult};
use rein_router::{ModelEntry, ModelPolicy, Router, RouterConfig};
use rein_worker::EngineOptions;
use rein_worker::executor::{Executor, ExecutorError, ExecutorShape};
use rein_worker::sim::{Sim, SimOptions};
use serde_json::Value;
use tower::ServiceExt;

use super::failover::{answer, assert_same, request, text};

/// A simulator whose first step blocks until its gate is dropped.
struct Silent {
    sim: Sim,
    gate: Option<mpsc::Receiver<()>>,
}

impl Executor for Silent {
    fn shape(&self) -> ExecutorShape {
        self.sim.shape()
    }

    fn submit(&mut self, step: Step) -> Result<(), ExecutorError> {
        self.sim.submit(step)
    }

    fn wait(&mut self) -> Result<StepResult, ExecutorError> {
        if let Some(gate) = self.gate.take() {
            // An error means that the gate was dropped.
            let _ = gate.recv();
        }
        self.sim.wait()
    }
}

/// A router over two engines. If `blocked`, the first one is silent until the returned sender is dropped.
fn fleet(hedge_after: Option<Duration>, blocked: bool) -> (Router, mpsc::SyncSender<()>) {
    let (gate, gated) = mpsc::sync_channel(1);
    let mut gated = Some(gated).filter(|_| blocked);
    let entries = (0..2).map(|_| {
        let text = text();
        let sim = Sim::new(SimOptions { vocab_size: text.vocab_size, seed: 3, ..SimOptions::default() });
        let silent = Silent { sim, gate: gated.take() };
        let engine = rein_worker::start(Box::new(silent), EngineOptions::default());
        let engine = rein_router::transport(engine.into_server());
        ModelEntry { text, engine, kind: String::new(), loras: Vec::new(), policy: ModelPolicy::default() }
    });
    let config = RouterConfig { hedge_after, ..RouterConfig::default() };
    (Router::new(config, entries.collect()).expect("a router"), gate)
}

pub async fn metric(router: &axum::Router, name: &str) -> u64 {
    let request = http::Request::get("/metrics").body(Body::empty()).expect("a request");
    let body = router.clone().oneshot(request).await.expect("infallible").into_body();
    let text = body.collect().await.expect("a body").to_bytes();
    let line = String::from_utf8_lossy(&text);
    let line = line.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ').map(str::to_owned));
    line.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no {name}"))
}

pub const COUNTED: [&str; 2] = ["rein_prompt_tokens_total", "rein_generated_tokens_total"];

/// Sends the requests one after the other, because the number of concurrent hedges is limited.
async fn answers(router: &Router) -> (Vec<(u16, Value)>, Vec<u64>) {
    let section = text().tokenizer.special_id("<|tool_calls_section_begin|>");
    let mut answers = Vec::new();
    for i in 0..8 {
        answers.push(answer(router.http(), request(i, section)).await);
    }
    let mut counted = Vec::new();
    for name in COUNTED {
        counted.push(metric(&router.http(), name).await);
    }
    (answers, counted)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hedging_changes_no_token_and_no_count() {
    let (calm, _gate) = fleet(None, false);
    let (undisturbed, counted) = answers(&calm).await;
    assert!(undisturbed.iter().all(|(status, _)| *status == 200), "{undisturbed:?}");
    assert_eq!(metric(&calm.http(), "rein_hedges_total").await, 0);
    let (router, gate) = fleet(Some(Duration::from_millis(20)), true);
    let (hedged, counted_hedged) = answers(&router).await;
    assert_same(&hedged, &undisturbed, "hedged");
    assert_eq!(counted_hedged, counted);
    let (hedges, won) =
        (metric(&router.http(), "rein_hedges_total").await, metric(&router.http(), "rein_hedges_won_total").await);
    assert!(hedges > 0 && won == hedges, "{won} of {hedges}");
    assert_eq!(
        (metric(&router.http(), "rein_resumed_total").await, metric(&router.http(), "rein_retries_total").await),
        (0, 0)
    );
    drop(gate);
    // Now both engines answer, and the later answer is dropped.
    let (hedged, _) = answers(&router).await;
    assert_same(&hedged, &undisturbed, "awake");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_race_of_two_engines_has_one_outcome() {
    let (calm, _gate) = fleet(None, false);
    let (undisturbed, counted) = answers(&calm).await;
    // So short that every request is hedged.
    for after in [0, 1] {
        let (router, _gate) = fleet(Some(Duration::from_micros(after)), false);
        let (raced, counted_raced) = answers(&router).await;
        assert_same(&raced, &undisturbed, "raced");
        assert_eq!(counted_raced, counted);
        assert!(metric(&router.http(), "rein_requests_in_flight").await == 0);
    }
}
