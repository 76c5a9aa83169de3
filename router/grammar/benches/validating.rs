//! The cost of validating a complete call or response, compared with the grammar's cost for the same text. Times are
//! the thread's own processor time: `cargo bench -p rein-grammar --bench validating`.

#[path = "tokens/clock.rs"]
mod clock;

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use rein_grammar::{Compiled, Grammars, PLAIN, Response, Rules, Vocab};
use serde_json::{Value, json};

/// A schema of records with typical members.
fn schema() -> Value {
    json!({"type": "array", "items": {"type": "object", "required": ["query", "kind"], "additionalProperties": false, "properties": {
        "query": {"type": "string", "pattern": "^[^\"]+$"},
        "kind": {"enum": ["a", "b", "c"]},
        "limit": {"type": "integer", "minimum": 1, "maximum": 100},
        "since": {"anyOf": [{"type": "string", "format": "date"}, {"type": "null"}]},
        "options": {"type": "object", "properties": {"deep": {"type": "boolean"}, "tags": {"type": "array", "items": {"type": "string"}}}},
    }}})
}

/// Uses a vocabulary of single bytes.
fn compile(response: Response) -> Compiled {
    let bytes = (0..=255_u8).map(|byte| (vec![byte], false));
    let words = bytes.chain([(b"<|stop|>".to_vec(), true)]);
    let vocab = Vocab::new(words, &[256], None).expect("a vocabulary");
    let rules = Rules { response: Some(response), ..Rules::default() };
    Grammars::new(PLAIN, Arc::new(vocab)).compile(&rules).expect("a schema").expect("a grammar")
}

/// Microseconds per run, as the mean of enough runs.
fn micros(runs: usize, mut run: impl FnMut()) -> f64 {
    let began = clock::computed();
    (0..runs).for_each(|_| run());
    (clock::computed() - began) as f64 / runs as f64 / 1000.0
}

fn compare(name: &str, response: &Response, texts: &[String]) {
    let compiled = compile(response.clone());
    let began = Instant::now();
    compiled.validate_response(&texts[0]).expect("valid");
    println!("{name}: the first, which compiles the validator: {:?} by the clock", began.elapsed());
    println!("{:>9} {:>12} {:>12} {:>9}", "bytes", "validate, us", "grammar, us", "validate, %");
    for text in texts {
        let runs = (4_000_000 / text.len()).min(2_000) + 1;
        let validate = micros(runs, || black_box(compiled.validate_response(black_box(text))).expect("valid"));
        let grammar = micros(runs / 20 + 1, || {
            let mut matcher = compiled.matcher().expect("a matcher");
            assert!(text.bytes().all(|byte| matcher.accept(u32::from(byte)) == Ok(true)));
        });
        println!("{:>9} {validate:>12.1} {grammar:>12.1} {:>9.2}", text.len(), 100.0 * validate / grammar);
    }
}

fn main() {
    let record = json!({"query": "the weather in Paris", "kind": "b", "limit": 99, "since": "2026-01-31", "options": {"deep": false, "tags": ["warm", "dry"]}});
    let sizes = [1, 8, 128, 2048];
    let records = sizes.map(|records| Value::from(vec![record.clone(); records]).to_string());
    compare("json_schema", &Response::JsonSchema { schema: schema(), strict: false }, &records);
    let lines = sizes.map(|lines| "2026-01-31 the weather in Paris\n".repeat(lines));
    compare("regex", &Response::Regex(r"([0-9]{4}-[0-9]{2}-[0-9]{2} [a-zA-Z ]{1,60}\n)+".into()), &lines);
    compare("large regex", &Response::Regex(r"(\d{4}-\d\d-\d\d [\w ]{1,60}\n)+".into()), &lines);
}
