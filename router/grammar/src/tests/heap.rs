//! What compiled grammars are said to take, against what they take of the heap.

use serde_json::{Map, Value, json};

use super::enforce::Tokens;
use crate::{Compiled, Grammars, Response, Rules, Tool, by_name};

/// As in the server. It counts what each thread allocates.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// What this thread has allocated and not freed.
fn heap() -> i64 {
    let allocated = tikv_jemalloc_ctl::thread::allocatedp::read().expect("statistics").get();
    let freed = tikv_jemalloc_ctl::thread::deallocatedp::read().expect("statistics").get();
    allocated as i64 - freed as i64
}

fn object(members: impl Iterator<Item = (String, Value)>) -> Value {
    json!({"type": "object", "properties": members.collect::<Map<_, _>>(), "additionalProperties": false})
}

/// Schemas of many kinds; all differ with `k`.
fn schemas(k: usize) -> Vec<Value> {
    let many = |n: usize, member: &dyn Fn(usize) -> Value| object((0..n).map(|i| (format!("p{k}_{i}"), member(i))));
    let pattern = |pattern: String| json!({"type": "string", "pattern": pattern});
    let formats = ["date-time", "email", "uuid", "uri", "ipv6"];
    let constants = |i: usize| many(5, &|j| json!({"const": format!("{k} {i} {j}")}));
    vec![
        many(60, &|i| pattern(format!("^[A-Z]{{2}}{k}-[0-9]{{{}}}$", 1 + i % 7))),
        many(2, &|i| pattern(format!("^(?:[a-z]{{1,{}}}|[0-9]{{2,{}}}x?){{3,40}}$", 10 + i, k + 20))),
        many(5, &|i| pattern(format!("^\\p{{L}}{{1,{}}}{k}$", 5 + i))),
        many(3, &|_| json!({"type": "string"})),
        many(60, &|_| json!({"type": "string"})),
        many(30, &|i| json!({"type": "string", "minLength": i, "maxLength": 50 + i + k})),
        many(30, &|i| json!({"enum": (0..30).map(|e| format!("value {k} {i} {e}")).collect::<Vec<_>>()})),
        many(30, &|i| json!({"type": "number", "minimum": i, "maximum": 1000 + k})),
        many(20, &|i| json!({"type": "string", "format": (formats[i % 5])})),
        many(20, &|i| json!({"type": "array", "items": {"type": "integer", "minimum": i}, "maxItems": 10 + k % 5})),
        (0..20).fold(json!({"type": "string"}), |inner, i| object([(format!("n{k}_{i}"), inner)].into_iter())),
        json!({"anyOf": (0..20).map(constants).collect::<Vec<_>>()}),
        json!({"type": "object", "properties": {format!("a{k}"): {}}, "additionalProperties": {"type": "integer"}}),
    ]
}

/// Makes all that is made when it is first needed.
fn complete(compiled: &Compiled) {
    drop(compiled.canonical());
    let _ = (compiled.validate("f", "{}"), compiled.validate_response("{}"));
}

fn rules(schema: Value, of_a_tool: bool) -> Rules {
    match of_a_tool {
        false => Rules { response: Some(Response::JsonSchema { schema, strict: false }), ..Rules::default() },
        true => {
            let tool = Tool { name: "f".into(), parameters: Some(schema), ..Tool::default() };
            Rules { tools: vec![tool].into(), ..Rules::default() }
        }
    }
}

/// `cargo test -p rein-grammar --lib heap -- --nocapture` prints the ratios.
#[test]
fn compiled_grammars_take_about_what_is_counted() {
    for name in ["hermes", "qwen3_coder", "kimi_k2", "harmony"] {
        let format = by_name(name).expect("a format");
        let grammars = Grammars::new(format, Tokens::of(format, false).vocab());
        for of_a_tool in [false, true] {
            for kind in 0..schemas(0).len() {
                // What all grammars share is made with the first.
                let [_, (heap, counted)] = [1, 2].map(|k| {
                    let rules = rules(schemas(k)[kind].clone(), of_a_tool);
                    let before = heap();
                    let compiled = grammars.compile(&rules).expect("valid").expect("a grammar");
                    complete(&compiled);
                    (heap() - before, compiled.cached_bytes())
                });
                let ratio = heap as f64 / counted as f64;
                println!("{name}, tool: {of_a_tool}, kind {kind}: {heap} bytes, {counted} counted: {ratio:.2}");
                assert!((0.3..1.6).contains(&ratio), "{name}, tool: {of_a_tool}, kind {kind}: {ratio:.2}");
            }
        }
    }
}

#[test]
fn a_cache_of_grammars_holds_what_it_may() {
    const MOST: usize = 8 << 20;
    let format = by_name("hermes").expect("a format");
    let grammars = |most: usize| Grammars::new(format, Tokens::of(format, false).vocab()).with_cache(most);
    let compile = |grammars: &Grammars, k: usize| {
        for schema in schemas(k) {
            complete(&grammars.compile(&rules(schema, false)).expect("valid").expect("a grammar"));
        }
    };
    // What all grammars share is made with the first.
    compile(&grammars(0), 0);
    let grammars = grammars(MOST);
    let before = heap();
    for k in 1..6 {
        compile(&grammars, k);
        let taken = (heap() - before) as f64 / MOST as f64;
        println!("{taken:.2} times the limit after {} grammars", k * schemas(0).len());
        assert!((0.3..1.3).contains(&taken), "{taken:.2} times the limit");
    }
}
