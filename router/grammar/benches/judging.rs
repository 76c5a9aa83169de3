//! What the last judgement of a finished call or response costs: `cargo bench -p rein-grammar --bench judging`.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use rein_grammar::{Compiled, Grammars, PLAIN, Response, Rules, Vocab};
use serde_json::{Value, json};

/// Of a record with the kinds of members that tools have.
fn schema() -> Value {
    json!({"type": "array", "items": {"type": "object", "required": ["query", "kind"], "additionalProperties": false, "properties": {
        "query": {"type": "string", "pattern": "^[^\"]+$"},
        "kind": {"enum": ["a", "b", "c"]},
        "limit": {"type": "integer", "minimum": 1, "maximum": 100},
        "since": {"anyOf": [{"type": "string", "format": "date"}, {"type": "null"}]},
        "options": {"type": "object", "properties": {"deep": {"type": "boolean"}, "tags": {"type": "array", "items": {"type": "string"}}}},
    }}})
}

fn compile() -> Compiled {
    let bytes = (0..=255_u8).map(|byte| (vec![byte], false));
    let words = bytes.chain([(b"<|stop|>".to_vec(), true)]);
    let vocab = Vocab::new(words, &[256], None).expect("a vocabulary");
    let response = Some(Response::JsonSchema { schema: schema(), strict: false });
    let rules = Rules { response, ..Rules::default() };
    Grammars::new(PLAIN, Arc::new(vocab)).compile(&rules).expect("a schema").expect("a grammar")
}

fn main() {
    let record = json!({"query": "the weather in Paris", "kind": "b", "limit": 99, "since": "2026-01-31", "options": {"deep": false, "tags": ["warm", "dry"]}});
    let text = |records: usize| Value::from(vec![record.clone(); records]).to_string();
    let began = Instant::now();
    compile().validate_response(&text(1)).expect("valid");
    let with_compile = began.elapsed();
    let compiled = compile();
    let began = Instant::now();
    compiled.validate_response(&text(1)).expect("valid");
    println!("the first by a schema: {:?} (its compilation and this: {with_compile:?})", began.elapsed());
    for records in [1, 8, 128, 2048, 8192] {
        let text = text(records);
        let repeat = 20_000 / records + 3;
        let began = Instant::now();
        for _ in 0..repeat {
            black_box(compiled.validate_response(black_box(&text))).expect("valid");
        }
        println!("{:>8} bytes: {:?}", text.len(), began.elapsed() / repeat as u32);
    }
}
