use rein_grammar::{Tool, Vocab};
use serde_json::json;
use tokio::time::Duration;

use super::*;
use crate::error::Kind;

fn grammars() -> Arc<Grammars> {
    let bytes = (0..=255).map(|byte| (vec![byte], false)).chain([(b"<|im_end|>".to_vec(), true)]);
    let vocab = Vocab::new(bytes, &[256], None).unwrap();
    Arc::new(Grammars::new(rein_grammar::by_name("hermes").unwrap(), Arc::new(vocab)))
}

fn rules(parameters: Value) -> Rules {
    Rules { tools: vec![Tool { name: "f".into(), parameters: Some(parameters), strict: false }], ..Rules::default() }
}

fn small() -> Rules {
    rules(json!({"type": "object", "properties": {"a": {"type": "string"}}}))
}

/// A first attempt does not finish it.
fn costly() -> Rules {
    let way = |i: usize| json!({"anyOf": [{"required": [format!("a{i}")]}, {"required": [format!("b{i}")]}]});
    rules(json!({"type": "object", "allOf": (0..16).map(way).collect::<Vec<_>>()}))
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

#[tokio::test]
async fn small_grammars_do_not_wait_for_long_ones() {
    let (compiling, grammars) = (CompileQueue::new(), grammars());
    let _held = compiling.long.clone().acquire_many_owned(limits::LONG_GRAMMARS as u32).await.unwrap();
    assert!(compiling.compile(&grammars, small(), None, soon()).await.unwrap().is_some());
}

#[tokio::test]
async fn what_was_compiled_waits_for_nothing() {
    let (compiling, grammars) = (CompileQueue::new(), grammars());
    compiling.compile(&grammars, small(), None, soon()).await.unwrap();
    let _held = compiling.first.clone().acquire_many_owned(limits::GRAMMARS_AT_FIRST as u32).await.unwrap();
    assert!(compiling.compile(&grammars, small(), None, soon()).await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn a_deadline_is_heard_while_a_grammar_waits() {
    let (compiling, grammars) = (CompileQueue::new(), grammars());
    let _held = compiling.long.clone().acquire_many_owned(limits::LONG_GRAMMARS as u32).await.unwrap();
    let error = compiling.compile(&grammars, costly(), None, Instant::now() + Duration::from_secs(2)).await;
    assert_eq!(error.unwrap_err().kind, Kind::Deadline);
}

#[tokio::test]
async fn costly_grammars_are_relaxed_in_their_own_turn() {
    let (compiling, grammars) = (CompileQueue::new(), grammars());
    let compiled = compiling.compile(&grammars, costly(), None, soon()).await.unwrap().unwrap();
    assert_eq!(compiled.relaxations()[0].keyword, "allOf");
    assert_eq!(compiling.long.available_permits(), limits::LONG_GRAMMARS, "the turn is over");
}
