//! `--generate`: a sample set of growing difficulty. Levels are kinds of schemas, easy ones first; traps take turns.

mod schemas;
#[cfg(test)]
mod tests;
mod traps;

use serde_json::{Map, Value, json};

use schemas::{LEVELS, Parameters, RandomSource};
use traps::{Scene, TRAPS};

/// Tools beside the one that fits.
const MAX_OTHERS: usize = 4;
const VERBS: &[&str] = &["get", "set", "find", "create", "update", "send", "book", "plan"];

/// Samples as a file has them. The same arguments give the same bytes, in one version of rein.
pub fn lines(n: u32, seed: u64) -> String {
    (0..n).map(|i| sample(i, n, seed).to_string() + "\n").collect()
}

fn sample(i: u32, n: u32, seed: u64) -> Value {
    // Each sample has a source of its own.
    let mut source = RandomSource::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(u64::from(i)));
    let level = (i as usize * LEVELS.len()) / n.max(1) as usize;
    let (trap, spring) = TRAPS[i as usize % TRAPS.len()];
    let (tag, make) = LEVELS[level];
    let mut scene = scene(level, make(&mut source), &mut source);
    spring(&mut scene, &mut source);
    request(scene, [tag, trap])
}

fn scene(level: usize, parameters: Parameters, source: &mut RandomSource) -> Scene {
    let target = format!("{}_{}", source.pick(VERBS), source.word());
    let example = parameters.1.clone();
    let mut tools = vec![tool(&target, parameters)];
    for at in 0..source.below(MAX_OTHERS + 1) {
        let (_, make) = LEVELS[source.below(level + 1)];
        let parameters = make(source);
        tools.push(tool(&format!("{}_{}_{at}", source.pick(VERBS), source.word()), parameters));
    }
    // The tool that fits is not always the first.
    let at = source.below(tools.len());
    tools.swap(0, at);
    let question = json!(format!("Call the tool {target} with exactly these arguments: {example}"));
    Scene { tools, history: Vec::new(), target, example, question, extra: Vec::new(), expect_call: true }
}

fn tool(name: &str, parameters: Parameters) -> Value {
    let mut function = json!({ "name": name, "description": format!("Does what {} says.", name.replace('_', " ")) });
    if let (Some(schema), _) = parameters {
        function["parameters"] = schema;
    }
    json!({ "type": "function", "function": function })
}

fn request(scene: Scene, tags: [&str; 2]) -> Value {
    let mut messages = scene.history;
    messages.push(json!({ "role": "user", "content": scene.question }));
    let mut request = Map::from_iter([("messages".to_owned(), json!(messages)), ("tools".into(), json!(scene.tools))]);
    request.extend(scene.extra.into_iter().map(|(name, value)| (name.to_owned(), value)));
    let mut expect = json!({ "call": scene.expect_call });
    if scene.expect_call {
        expect["tool"] = json!(scene.target);
    }
    json!({ "request": request, "expect": expect, "tags": tags })
}
