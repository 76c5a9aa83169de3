//! The body of a coding agent.

use serde_json::{Value, json};

fn words(seed: usize, count: usize) -> String {
    const WORDS: [&str; 12] =
        ["the", "`file`", "path", "must", "be", "absolute,", "and", "a\n", "\"command\"", "runs", "in", "it."];
    (0..count).map(|i| WORDS[(seed * 7 + i * i + i / 3) % WORDS.len()]).collect::<Vec<_>>().join(" ")
}

/// A request as Claude Code sends it: instructions, long tools, a few turns with calls. About 76 KB with 24 tools.
pub fn agent_body(tools: usize) -> String {
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
        "tools": (0..tools).map(tool).collect::<Vec<_>>(), "thinking": {"type": "adaptive"},
        "metadata": {"user_id": "u"}})
    .to_string()
}
