//! `rein verify --generate`: generates samples of increasing difficulty. Each combines a level, which is a kind of
//! schema, with a trap. It sends no requests.

mod schemas;
#[cfg(test)]
mod tests;
mod traps;

use serde_json::{Map, Value, json};

use schemas::{LEVELS, Parameters, RandomSource};
use traps::{SampleDraft, TRAPS};

/// Maximum number of tools besides the target.
const MAX_OTHERS: usize = 4;
const VERBS: &[&str] = &["get", "set", "find", "create", "update", "send", "book", "plan"];

/// Generates the lines of a samples file. Equal arguments give equal lines within one version of rein.
pub fn lines(n: u32, seed: u64) -> String {
    (0..n).map(|i| sample(i, n, seed).to_string() + "\n").collect()
}

fn sample(i: u32, n: u32, seed: u64) -> Value {
    // Each sample has its own source, so that it does not depend on the samples before it.
    let mut source = RandomSource::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(u64::from(i)));
    let level = (i as usize * LEVELS.len()) / n.max(1) as usize;
    let (trap, apply) = TRAPS[i as usize % TRAPS.len()];
    let (tag, make) = LEVELS[level];
    let mut draft = draft(level, make(&mut source), &mut source);
    apply(&mut draft, &mut source);
    request(draft, [tag, trap])
}

fn draft(level: usize, parameters: Parameters, source: &mut RandomSource) -> SampleDraft {
    let target = format!("{}_{}", source.pick(VERBS), source.word());
    let example = parameters.1.clone();
    let mut tools = vec![tool(&target, parameters)];
    for at in 0..source.below(MAX_OTHERS + 1) {
        let (_, make) = LEVELS[source.below(level + 1)];
        let parameters = make(source);
        tools.push(tool(&format!("{}_{}_{at}", source.pick(VERBS), source.word()), parameters));
    }
    // The target is not always the first tool.
    let at = source.below(tools.len());
    tools.swap(0, at);
    let question = json!(format!("Call the tool {target} with exactly these arguments: {example}"));
    SampleDraft { tools, history: Vec::new(), target, example, question, extra: Vec::new(), expect_call: true }
}

fn tool(name: &str, parameters: Parameters) -> Value {
    let mut function = json!({ "name": name, "description": format!("Does what {} says.", name.replace('_', " ")) });
    if let (Some(schema), _) = parameters {
        function["parameters"] = schema;
    }
    json!({ "type": "function", "function": function })
}

fn request(draft: SampleDraft, tags: [&str; 2]) -> Value {
    let mut messages = draft.history;
    messages.push(json!({ "role": "user", "content": draft.question }));
    let mut request = Map::from_iter([("messages".to_owned(), json!(messages)), ("tools".into(), json!(draft.tools))]);
    request.extend(draft.extra.into_iter().map(|(name, value)| (name.to_owned(), value)));
    let mut expect = json!({ "call": draft.expect_call });
    if draft.expect_call {
        expect["tool"] = json!(draft.target);
    }
    json!({ "request": request, "expect": expect, "tags": tags })
}
