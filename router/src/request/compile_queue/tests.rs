use futures::future::join_all;
use rein_grammar::{Tool, Vocab};
use serde_json::json;
use tokio::time::Duration;

use super::*;
use crate::{error::ErrorKind, fair::FairPermit};

fn grammars() -> Arc<Grammars> {
    let bytes = (0..=255).map(|byte| (vec![byte], false)).chain([(b"<|im_end|>".to_vec(), true)]);
    let vocab = Vocab::new(bytes, &[256], None).unwrap();
    Arc::new(Grammars::new(rein_grammar::by_name("hermes").unwrap(), Arc::new(vocab)))
}

fn rules(parameters: Value) -> Rules {
    Rules {
        tools: vec![Tool { name: "f".into(), parameters: Some(parameters), ..Tool::default() }].into(),
        ..Rules::default()
    }
}

fn small() -> Rules {
    rules(json!({"type": "object", "properties": {"a": {"type": "string"}}}))
}

/// Too costly for a first attempt.
fn costly() -> Rules {
    let way = |i: usize| json!({"anyOf": [{"required": [format!("a{i}")]}, {"required": [format!("b{i}")]}]});
    rules(json!({"type": "object", "allOf": (0..16).map(way).collect::<Vec<_>>()}))
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

async fn all_of(permits: &FairSemaphore, n: usize) -> Vec<FairPermit> {
    let requester = Requester { caller: None, deadline: soon() };
    join_all((0..n).map(|_| async { permits.acquire(&requester).await.unwrap() })).await
}

#[tokio::test]
async fn small_grammars_do_not_wait_for_long_ones() {
    let (queue, grammars) = (CompileQueue::new(), grammars());
    let _held = all_of(&queue.long_compiles, limits::LONG_COMPILES).await;
    assert!(queue.compile(&grammars, small(), None, soon()).await.unwrap().is_some());
}

#[tokio::test]
async fn cached_grammars_do_not_wait() {
    let (queue, grammars) = (CompileQueue::new(), grammars());
    queue.compile(&grammars, small(), None, soon()).await.unwrap();
    let _held = all_of(&queue.first_attempts, limits::SHORT_COMPILES).await;
    assert!(queue.compile(&grammars, small(), None, soon()).await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn waiting_for_a_permit_ends_at_the_deadline() {
    let (queue, grammars) = (CompileQueue::new(), grammars());
    let _held = all_of(&queue.long_compiles, limits::LONG_COMPILES).await;
    let error = queue.compile(&grammars, costly(), None, Instant::now() + Duration::from_secs(2)).await;
    assert_eq!(error.unwrap_err().kind, ErrorKind::Deadline);
}

#[tokio::test]
async fn costly_grammars_are_relaxed_under_a_long_permit() {
    let (queue, grammars) = (CompileQueue::new(), grammars());
    let compiled = queue.compile(&grammars, costly(), None, soon()).await.unwrap().unwrap();
    assert_eq!(compiled.relaxations()[0].keyword, "allOf");
    assert_eq!(queue.long_compiles.free(), limits::LONG_COMPILES, "the permit was returned");
}
