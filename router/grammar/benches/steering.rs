//! Processor time of enforcement: `cargo bench -p rein-grammar --bench steering`, with the demo model's
//! vocabulary and Kimi's. Linux only: the times are the kernel's.

use std::hint::black_box;
use std::time::Instant;

use rein_grammar::{Compiled, Grammars, Matcher, Rules, Tool, by_name};
use serde_json::json;

mod tokens;

use tokens::{Tokens, computed};

/// Larger than the caches next to a core.
const OTHER_WORK_BYTES: usize = 8 << 20;

/// Distinct tools with typical arguments.
fn tools(n: usize) -> Vec<Tool> {
    let one = |i: usize| Tool {
        name: format!("tool_{i}_of_many"),
        parameters: Some(json!({"type": "object", "required": ["query", format!("kind_{i}")], "properties": {
            "query": {"type": "string", "description": "what to look for"},
            format!("kind_{i}"): {"type": "string", "enum": ["a", "b", format!("c{i}")]},
            "limit": {"type": "integer", "minimum": 1, "maximum": 100},
            format!("options_{i}"): {"type": "object", "properties":
                {"deep": {"type": "boolean"}, "tags": {"type": "array", "items": {"type": "string"}}}},
            "since": {"anyOf": [{"type": "string", "format": "date"}, {"type": "null"}]},
        }})),
        ..Tool::default()
    };
    (0..n).map(one).collect()
}

fn rules(n: usize) -> Rules {
    Rules { tools: tools(n).into(), parallel: true, ..Rules::default() }
}

/// Mean microseconds of `work`, without `setup`.
fn micros<S, T>(repeat: usize, mut setup: impl FnMut() -> S, mut work: impl FnMut(S) -> T) -> f64 {
    let inputs: Vec<S> = (0..repeat).map(|_| setup()).collect();
    let mut outputs = Vec::with_capacity(repeat);
    let began = computed();
    for input in inputs {
        outputs.push(work(input));
    }
    let took = computed() - began;
    drop(outputs);
    took as f64 / 1e3 / repeat as f64
}

const TEXT: &str = "Let me look that up for you: the weather in Paris is mild today, with a few clouds in the afternoon, \
    and 18 degrees at most. If you plan to go out, take a light jacket (it gets cooler after 7 pm).\n\n\
    - Morning: sunny, 12 degrees\n- Afternoon: some clouds, 18 degrees\n- Evening: clear\n\nShall I check tomorrow as well? ";

fn call(number: usize) -> String {
    let arguments = json!({"since": "2026-01-31", "query": TEXT.replace('\n', " "), "kind_3": "b",
        "options_3": {"tags": ["warm", "dry and sunny"], "deep": false}, "limit": 99});
    format!(
        "⟦<|tool_call_begin|>⟧functions.tool_3_of_many:{number}⟦<|tool_call_argument_begin|>⟧{arguments}⟦<|tool_call_end|>⟧"
    )
}

fn accept(matcher: &mut Matcher, id: u32) {
    assert_eq!(matcher.accept(id), Ok(true), "token {id}");
}

/// Microseconds per token when the caches are full of other work, as for a router that sees a token every few
/// milliseconds. The median of wall-clock times: one token is too short for the kernel's own times.
fn after_other_work(compiled: &Compiled, begin: &[u32], ids: &[u32]) -> f64 {
    let mut other = vec![1_u64; OTHER_WORK_BYTES / size_of::<u64>()];
    let mut took = Vec::new();
    while took.len() < 600 {
        let mut matcher = compiled.matcher().expect("a matcher");
        begin.iter().for_each(|id| accept(&mut matcher, *id));
        for id in ids {
            other.iter_mut().for_each(|number| *number = number.wrapping_mul(3));
            black_box(&mut other);
            let began = Instant::now();
            accept(&mut matcher, *id);
            black_box(matcher.forced());
            took.push(began.elapsed());
        }
    }
    took.sort_unstable();
    took[took.len() / 2].as_nanos() as f64 / 1e3
}

/// Requests with one output each. Microseconds per token: only accepting, as in the router, and with masks.
fn per_token(name: &str, compiled: &Compiled, begin: &[u32], ids: &[u32], repeat: usize) {
    let matcher = || {
        let mut matcher = compiled.matcher().expect("a matcher");
        begin.iter().for_each(|id| accept(&mut matcher, *id));
        matcher
    };
    let accepted = micros(repeat, matcher, |mut matcher| {
        ids.iter().for_each(|id| accept(&mut matcher, *id));
        matcher
    });
    let mut forced = 0;
    let steered = micros(repeat, matcher, |mut matcher| {
        for id in ids {
            accept(&mut matcher, *id);
            forced += usize::from(!matcher.forced().is_empty());
        }
        matcher
    });
    let masks = repeat.div_ceil(8);
    let masked = micros(masks, matcher, |mut matcher| {
        for id in ids {
            matcher.mask().expect("a mask");
            accept(&mut matcher, *id);
        }
        matcher
    });
    let cold = after_other_work(compiled, begin, ids);
    let per = |total: f64| total / ids.len() as f64;
    println!(
        "  {name:<22} {:>5} tokens  accept {:>5.2}  steer {:>5.2} (forced {} times)  cold {cold:>5.2}  mask {:>6.1}  us per token",
        ids.len(),
        per(accepted),
        per(steered),
        forced / repeat,
        per(masked),
    );
}

fn run(tokens: &Tokens) {
    println!("{}: {} tokens", tokens.name, tokens.vocab.size());
    let format = by_name("kimi_k2").expect("a format");
    for n in [8, 64] {
        let rules = rules(n);
        let cold = micros(
            200 / n,
            || Grammars::new(format, tokens.vocab.clone()),
            |grammars| {
                grammars.compile(&rules).expect("compiles");
                grammars
            },
        );
        let grammars = Grammars::new(format, tokens.vocab.clone());
        let compiled = grammars.compile(&rules).expect("compiles").expect("binds");
        let cached = micros(200, || (), |()| grammars.compile(&rules).expect("compiles"));
        let copy = micros(200, || (), |()| compiled.matcher().expect("a matcher"));
        println!("  {n:>2} tools: compile {:.2} ms, cached {:.3} ms, a matcher {copy:.0} us", cold / 1e3, cached / 1e3);
    }
    let grammars = Grammars::new(format, tokens.vocab.clone());
    let compiled = grammars.compile(&rules(8)).expect("compiles").expect("binds");
    let text = tokens.encode(TEXT);
    let section = tokens.encode("⟦<|tool_calls_section_begin|>⟧");
    let calls = tokens.encode(&call(0));
    per_token("text", &compiled, &[], &text, 200);
    per_token("text, 10 times as long", &compiled, &[], &text.repeat(10), 40);
    per_token("a call", &compiled, &section, &calls, 200);
    let calls = tokens.encode(&(0..10).map(call).collect::<String>());
    per_token("ten calls", &compiled, &section, &calls, 40);
}

fn main() {
    Tokens::demo_and_kimi().iter().for_each(run);
}
