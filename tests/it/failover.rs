//! Failover: a client's answer does not change when an engine is lost during the request.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use axum::body::Body;
use http_body_util::BodyExt;
use rein_proto::internal::{Step, StepResult};
use rein_router::{ModelEntry, ModelPolicy, Router, RouterConfig};
use rein_text::{model_text::ModelOverrides, model_text::ModelText};
use rein_worker::{
    EngineOptions,
    executor::{Executor, ExecutorError, ExecutorShape, StepPlacement},
    rank::{ModelOptions, RankGroup},
    sim::{Sim, SimOptions},
};
use serde_json::{Value, json};
use tower::ServiceExt;

/// An executor that fails after a number of steps.
struct Mortal {
    executor: Box<dyn Executor>,
    steps: usize,
    taken: Arc<AtomicUsize>,
}

impl Executor for Mortal {
    fn shape(&self) -> ExecutorShape {
        self.executor.shape()
    }

    fn placed(&self) -> StepPlacement {
        self.executor.placed()
    }

    fn submit(&mut self, step: Step) -> Result<(), ExecutorError> {
        self.executor.submit(step)
    }

    fn wait(&mut self) -> Result<StepResult, ExecutorError> {
        if self.taken.fetch_add(1, Ordering::Relaxed) >= self.steps {
            return Err(ExecutorError::Lost("rank 1 is gone".into()));
        }
        self.executor.wait()
    }
}

pub fn text() -> ModelText {
    let demo = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("models/demo");
    ModelText::load(&demo, &ModelOverrides::default()).expect("the demo model")
}

/// The demo model's text over the simulator.
fn demo() -> (ModelText, Box<dyn Executor>) {
    let text = text();
    let sim = Sim::new(SimOptions { vocab_size: text.vocab_size, seed: 3, ..SimOptions::default() });
    (text, Box::new(sim))
}

/// A tiny model with recurrent layers.
fn recurrent() -> (ModelText, Box<dyn Executor>) {
    let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/models/qwen3_next");
    let text = ModelText::load(&dir, &ModelOverrides::default()).expect("the model's text");
    let options =
        ModelOptions { kv_blocks: Some(512), max_context: Some(128), threads: Some(1), ..ModelOptions::default() };
    (text, Box::new(RankGroup::load(&dir, &options, &mut |_, _| ()).expect("the model")))
}

/// A router over engines that fail after these numbers of steps, and a counter of the first one's steps.
fn fleet(lives: &[usize], model: fn() -> (ModelText, Box<dyn Executor>)) -> (axum::Router, Arc<AtomicUsize>) {
    let taken: Vec<Arc<AtomicUsize>> = lives.iter().map(|_| Arc::default()).collect();
    let entries = lives.iter().zip(&taken).map(|(&steps, taken)| {
        let (text, executor) = model();
        let mortal = Mortal { executor, steps, taken: taken.clone() };
        let engine = rein_worker::start(Box::new(mortal), EngineOptions::default());
        let engine = rein_router::transport(engine.into_server());
        ModelEntry { text, engine, kind: String::new(), loras: Vec::new(), policy: ModelPolicy::default() }
    });
    let router = Router::new(RouterConfig::default(), entries.collect()).expect("a router");
    (router.http(), taken[0].clone())
}

pub fn request(i: u64, section: Option<u32>) -> Value {
    let tool = json!({"type": "function", "function": {"name": "book_room", "parameters": {
        "type": "object", "required": ["room", "seats"], "additionalProperties": false,
        "properties": {"room": {"type": "string", "maxLength": 12}, "seats": {"type": "integer"}, "quiet": {"type": "boolean"}}}}});
    let more = match i % 4 {
        0 => json!({"tools": [tool], "tool_choice": "required", "max_tokens": 60, "script": [section]}),
        1 => json!({"logprobs": true, "n": 2}),
        2 => json!({"response_format": {"type": "json_schema", "json_schema": {"name": "a", "strict": true, "schema":
            {"type": "object", "properties": {"tags": {"type": "array", "items": {"enum": ["red", "green"]}, "maxItems": 3}},
             "required": ["tags"], "additionalProperties": false}}}}),
        _ => json!({"tools": [tool]}),
    };
    let mut request = json!({"model": "demo", "messages": [{"role": "user", "content": format!("request {i}")}],
        "temperature": if i.is_multiple_of(3) { 0.0 } else { 1.0 }, "seed": i, "max_tokens": 40});
    let more = more.as_object().expect("an object").clone();
    request.as_object_mut().expect("an object").extend(more);
    request
}

pub async fn answer(router: axum::Router, request: Value) -> (u16, Value) {
    let post = http::Request::post("/v1/chat/completions").header("content-type", "application/json");
    let request = post.body(Body::from(request.to_string())).expect("a request");
    let response = router.oneshot(request).await.expect("infallible");
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.expect("a body").to_bytes();
    let mut body: Value = serde_json::from_slice(&body).expect("JSON");
    for name in ["id", "created"] {
        body.as_object_mut().expect("an object").remove(name);
    }
    // The number of cached tokens depends on the order of the requests.
    if let Some(usage) = body.get_mut("usage").and_then(Value::as_object_mut) {
        usage.remove("prompt_tokens_details");
    }
    (status, body)
}

async fn answers(lives: &[usize]) -> (Vec<(u16, Value)>, usize) {
    let (router, taken) = fleet(lives, demo);
    let section = text().tokenizer.special_id("<|tool_calls_section_begin|>");
    let all = (0..8).map(|i| answer(router.clone(), request(i, section)));
    (futures::future::join_all(all).await, taken.load(Ordering::Relaxed))
}

pub fn assert_same(disturbed: &[(u16, Value)], undisturbed: &[(u16, Value)], when: &str) {
    for (i, (disturbed, undisturbed)) in disturbed.iter().zip(undisturbed).enumerate() {
        let text = |(status, body): &(u16, Value)| format!("{status} {body}");
        let (got, want) = (text(disturbed), text(undisturbed));
        let at = got.bytes().zip(want.bytes()).take_while(|(got, want)| got == want).count();
        let near = |text: &str| {
            String::from_utf8_lossy(&text.as_bytes()[at.saturating_sub(60)..]).chars().take(160).collect::<String>()
        };
        assert!(got == want, "{when}: request {i}:\n{}\n{}", near(&got), near(&want));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_engine_changes_no_token() {
    let (undisturbed, steps) = answers(&[usize::MAX, usize::MAX]).await;
    assert!(undisturbed.iter().all(|(status, _)| *status == 200), "{undisturbed:?}");
    assert!(undisturbed[0].1["choices"][0]["message"]["tool_calls"][0].is_object(), "{}", undisturbed[0].1);
    assert!(steps > 40, "{steps}");
    for life in (0..steps).step_by(5) {
        let (disturbed, _) = answers(&[life, usize::MAX]).await;
        assert_same(&disturbed, &undisturbed, &format!("the first engine failed after {life} steps"));
    }
    // Two of three engines fail, one after the other.
    for life in (0..steps).step_by(11) {
        let (disturbed, _) = answers(&[life, life / 2 + 5, usize::MAX]).await;
        assert_same(&disturbed, &undisturbed, &format!("two engines failed, the first after {life} steps"));
    }
}

/// The second engine computes the recurrent states from the accepted tokens.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_engine_of_a_recurrent_model_changes_no_token() {
    let answers = |lives: &'static [usize]| async move {
        let (router, taken) = fleet(lives, recurrent);
        let request = |i: u64| {
            let mut request = json!({"model": "qwen3_next", "messages": [{"role": "user", "content": format!("{i}")}],
                "temperature": 1.0, "seed": i, "max_tokens": 24, "logprobs": true});
            let schema = json!({"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"],
                "additionalProperties": false});
            if i.is_multiple_of(2) {
                let format = json!({"name": "a", "strict": true, "schema": schema});
                request["response_format"] = json!({"type": "json_schema", "json_schema": format});
            }
            request
        };
        let all = futures::future::join_all((0..6).map(|i| answer(router.clone(), request(i)))).await;
        (all, taken.load(Ordering::Relaxed))
    };
    let (undisturbed, steps) = answers(&[usize::MAX, usize::MAX]).await;
    assert!(undisturbed.iter().all(|(status, _)| *status == 200), "{undisturbed:?}");
    assert!(steps > 12, "{steps}");
    for lives in [&[0, usize::MAX], &[1, usize::MAX], &[4, usize::MAX], &[9, usize::MAX], &[12, usize::MAX]] {
        let (disturbed, _) = answers(lives).await;
        assert_same(&disturbed, &undisturbed, &format!("the first engine failed after {} steps", lives[0]));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_error_says_that_no_engine_is_left() {
    let (answers, _) = answers(&[10]).await;
    assert!(answers.iter().any(|(status, _)| *status != 200), "{answers:?}");
    for (status, body) in answers.iter().filter(|(status, _)| *status != 200) {
        assert!([500, 503].contains(status), "{status} {body}");
        assert!(body["error"]["message"].as_str().is_some_and(|message| message.contains("engine")), "{body}");
    }
}
