//! What the conversion of an agent's request costs, in CPU time of its thread: time in which the machine runs something
//! else does not count.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use super::*;

const TOOLS: usize = 24;
const RUNS: usize = 400;
/// A process that shares the core also shares its caches, so the best of several rounds counts.
const ROUNDS: usize = 5;
const MOST: Duration = Duration::from_millis(1);

fn words(seed: usize, count: usize) -> String {
    const WORDS: [&str; 12] =
        ["the", "`file`", "path", "must", "be", "absolute,", "and", "a\n", "\"command\"", "runs", "in", "it."];
    (0..count).map(|i| WORDS[(seed * 7 + i * i + i / 3) % WORDS.len()]).collect::<Vec<_>>().join(" ")
}

/// A request as Claude Code sends it: instructions, long tools, a few turns with calls.
fn body() -> String {
    let tool = |i: usize| {
        let text = |seed: usize| json!({"type": "string", "description": words(i + seed, 20)});
        json!({"name": format!("Tool{i}"), "description": words(i, 330), "input_schema": {
            "$schema": "http://json-schema.org/draft-07/schema#", "type": "object", "additionalProperties": false,
            "required": ["file_path"], "properties": {"file_path": text(1), "pattern": text(2), "limit": {"type": "number"}}}})
    };
    let turn = |i: usize| {
        let id = format!("toolu_{i}");
        [
            json!({"role": "assistant", "content": [{"type": "text", "text": words(i, 30)},
                {"type": "tool_use", "id": id, "name": "Tool1", "input": {"file_path": format!("/src/{i}.rs")}}]}),
            json!({"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": id, "content": words(i + 9, 200)},
                {"type": "text", "text": words(i + 3, 10), "cache_control": {"type": "ephemeral"}}]}),
        ]
    };
    let first = json!({"role": "user", "content": [{"type": "text", "text": words(6, 60)}]});
    let messages: Vec<Value> = std::iter::once(first).chain((0..5).flat_map(turn)).collect();
    let system = [
        json!({"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1; cch=12345;"}),
        json!({"type": "text", "text": words(5, 1500), "cache_control": {"type": "ephemeral"}}),
    ];
    json!({"model": "m", "max_tokens": 32000, "stream": true, "system": system, "messages": messages,
        "tools": (0..TOOLS).map(tool).collect::<Vec<_>>(), "thinking": {"type": "adaptive"},
        "metadata": {"user_id": "u"}})
    .to_string()
}

fn percentiles(mut times: Vec<Duration>) -> [Duration; 2] {
    times.sort_unstable();
    [50, 99].map(|share| times[times.len() * share / 100])
}

#[test]
fn an_agents_request_is_converted_within_a_millisecond() {
    let (body, seal) = (body(), seal());
    assert!((70_000..90_000).contains(&body.len()), "{} bytes", body.len());
    let computed = || Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).expect("a time");
    let round = || {
        let (mut cpu, mut wall) = (Vec::new(), Vec::new());
        for _ in 0..RUNS {
            let (began, at) = (computed(), Instant::now());
            let converted = messages(body.as_bytes(), &seal).expect("it is valid");
            wall.push(at.elapsed());
            cpu.push(computed() - began);
            assert_eq!(converted.value.job.tools.len(), TOOLS);
        }
        (percentiles(cpu), percentiles(wall))
    };
    let rounds: Vec<_> = (0..ROUNDS).map(|_| round()).collect();
    for ([cpu, slow_cpu], [wall, slow_wall]) in &rounds {
        println!("CPU time: median {cpu:?}, p99 {slow_cpu:?}; with waiting: median {wall:?}, p99 {slow_wall:?}");
    }
    let best = rounds.iter().map(|([_, p99], _)| *p99).min().expect("rounds");
    assert!(best < MOST, "p99 {best:?} of {} bytes", body.len());
}
