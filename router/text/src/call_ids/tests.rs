use rand::{Rng, SeedableRng, rngs::StdRng, seq::SliceRandom};
use rein_grammar as grammar;
use serde_json::json;

use super::*;

fn kimi(name: &str, index: usize) -> Option<String> {
    grammar::by_name("kimi_k2").unwrap().native_id(name, index)
}

/// An id without the tool's name.
fn nine(_: &str, index: usize) -> Option<String> {
    Some(format!("{index:09}"))
}

fn no_ids(_: &str, _: usize) -> Option<String> {
    None
}

fn call(id: &str, name: &str) -> Value {
    json!({"id": id, "type": "function", "function": {"name": name, "arguments": "{}"}})
}

fn calls(calls: &[Value]) -> Value {
    json!({"role": "assistant", "content": null, "tool_calls": calls})
}

fn result(id: &str) -> Value {
    json!({"role": "tool", "tool_call_id": id, "content": "r"})
}

fn named(id: &str, name: &str) -> Value {
    json!({"role": "tool", "tool_call_id": id, "name": name, "content": "r"})
}

/// Ids of calls and results in order; a result is written as `>`, its id and its name.
fn ids(messages: &[Value]) -> Vec<String> {
    let of = |message: &Value| -> Vec<String> {
        if message["role"] == "tool" {
            return vec![format!(">{} {}", text(message, "tool_call_id"), text(message, "name")).trim_end().to_owned()];
        }
        message["tool_calls"].as_array().into_iter().flatten().map(|call| text(call, "id").to_owned()).collect()
    };
    messages.iter().flat_map(of).collect()
}

fn rewritten(mut messages: Vec<Value>) -> (usize, Vec<String>) {
    let next = assign_native_ids(&mut messages, kimi);
    (next, ids(&messages))
}

#[test]
fn foreign_ids_become_native_ids_numbered_over_the_conversation() {
    let conversation = vec![
        json!({"role": "user", "content": "x"}),
        calls(&[call("call_a", "f"), call("call_b", "g-2.x")]),
        result("call_b"),
        result("call_a"),
        json!({"role": "assistant", "content": "so"}),
        calls(&[call("call_c", "f")]),
        result("call_c"),
    ];
    let expected = [
        "functions.f:0",
        "functions.g-2.x:1",
        ">functions.g-2.x:1 g-2.x",
        ">functions.f:0 f",
        "functions.f:2",
        ">functions.f:2 f",
    ];
    let (next, ids) = rewritten(conversation.clone());
    assert_eq!((next, ids.iter().map(String::as_str).collect::<Vec<_>>()), (3, expected.to_vec()));
    // A format without ids keeps those of the client. The tool's name is still added.
    let mut left = conversation;
    assert_eq!(assign_native_ids(&mut left, no_ids), 3);
    assert_eq!(super::tests::ids(&left), ["call_a", "call_b", ">call_b g-2.x", ">call_a f", "call_c", ">call_c f"]);
}

#[test]
fn native_ids_with_the_right_index_are_kept() {
    let right = vec![calls(&[call("functions.f:0", "f"), call("functions.g:1", "g")]), named("functions.g:1", "g")];
    assert_eq!(rewritten(right).1, ["functions.f:0", "functions.g:1", ">functions.g:1 g"]);
    // Numbered per turn, as some servers do.
    let per_turn = vec![
        calls(&[call("functions.f:0", "f")]),
        result("functions.f:0"),
        calls(&[call("functions.f:0", "f"), call("functions.f:1", "f")]),
        result("functions.f:1"),
        result("functions.f:0"),
    ];
    let expected =
        ["functions.f:0", ">functions.f:0 f", "functions.f:1", "functions.f:2", ">functions.f:2 f", ">functions.f:1 f"];
    assert_eq!(rewritten(per_turn).1, expected);
    // Swapped ids: a result follows its call, not the number.
    let swapped = vec![calls(&[call("functions.f:1", "f"), call("functions.f:0", "f")]), result("functions.f:0")];
    assert_eq!(rewritten(swapped).1, ["functions.f:0", "functions.f:1", ">functions.f:1 f"]);
}

#[test]
fn results_without_ids_are_matched_to_their_calls() {
    let by_name = vec![calls(&[call("", "f"), call("", "g")]), named("", "g"), named("", "f")];
    assert_eq!(rewritten(by_name).1, ["functions.f:0", "functions.g:1", ">functions.g:1 g", ">functions.f:0 f"]);
    let in_order = vec![calls(&[call("", "f"), call("", "g")]), result(""), result("")];
    assert_eq!(rewritten(in_order).1, ["functions.f:0", "functions.g:1", ">functions.f:0 f", ">functions.g:1 g"]);
    let unknown = vec![calls(&[call("", "f"), call("", "g")]), named("x1", "g"), result("x2")];
    assert_eq!(rewritten(unknown).1, ["functions.f:0", "functions.g:1", ">functions.g:1 g", ">functions.f:0 f"]);
    // Results with an id are matched first.
    let mixed = vec![calls(&[call("a", "f"), call("b", "f")]), result(""), result("a")];
    assert_eq!(rewritten(mixed).1, ["functions.f:0", "functions.f:1", ">functions.f:1 f", ">functions.f:0 f"]);
    let duplicate =
        vec![calls(&[call("a", "f"), call("a", "g"), call("a", "f")]), named("a", "g"), result("a"), result("a")];
    let expected =
        ["functions.f:0", "functions.g:1", "functions.f:2", ">functions.g:1 g", ">functions.f:0 f", ">functions.f:2 f"];
    assert_eq!(rewritten(duplicate).1, expected);
    // Calls of an older turn are not matched.
    let late = vec![calls(&[call("a", "f")]), calls(&[call("b", "g")]), result("b"), named("", "f")];
    assert_eq!(rewritten(late).1, ["functions.f:0", "functions.g:1", ">functions.g:1 g", "> f"]);
    let twice = vec![calls(&[call("a", "f")]), result("a"), result("a")];
    assert_eq!(rewritten(twice).1, ["functions.f:0", ">functions.f:0 f", ">functions.f:0 f"]);
}

#[test]
fn results_of_calls_that_were_cut_off_match_no_other_call() {
    // The client cut off the beginning of the conversation: numbering continues after the largest index.
    let cut = vec![result("functions.f:7"), calls(&[call("functions.g:8", "g")]), result("functions.g:8")];
    assert_eq!(
        rewritten(cut),
        (
            9,
            ["functions.f:7", "functions.g:8", ">functions.g:8 g"]
                .map(|id| id.replace("functions.f:7", ">functions.f:7"))
                .to_vec()
        )
    );
    let clash = vec![calls(&[call("a", "f")]), result("a"), result("functions.f:0")];
    assert_eq!(rewritten(clash), (2, vec!["functions.f:0".into(), ">functions.f:0 f".into(), ">functions.f:1".into()]));
    let foreign =
        vec![result("call_z"), calls(&[call("functions.g:3", "g")]), result("functions.f:99999999999999999999")];
    assert_eq!(
        rewritten(foreign),
        (1, vec![">call_z".into(), "functions.g:0".into(), ">functions.f:99999999999999999999".into()])
    );
    let mut strict = vec![result("call_z"), calls(&[call("call_y", "f")]), result("call_y")];
    assert_eq!(assign_native_ids(&mut strict, nine), 2);
    assert_eq!(ids(&strict), [">000000000", "000000001", ">000000001 f"]);
}

/// Random conversations from fixed seeds, with ids in the style of several clients. The content of a result is the
/// number of the call that it answers.
#[test]
fn every_result_refers_to_its_call() {
    for (seed, native) in (0..2000).zip([kimi as fn(&str, usize) -> Option<String>, nine].into_iter().cycle()) {
        let mut rng = StdRng::seed_from_u64(seed);
        let (mut messages, mut made) = (Vec::new(), Vec::new());
        // How this client writes ids.
        let style = rng.random_range(0..6);
        for turn in 0..rng.random_range(1..6) {
            messages.push(json!({"role": "user", "content": "x"}));
            let first = made.len();
            let count = rng.random_range(0..5);
            for at in 0..count {
                let name = ["f", "g", "a.b-c", "functions.f:1", "0"][rng.random_range(0..5)];
                let id = match style {
                    0 => format!("call_{seed}_{turn}_{at}"),
                    1 => format!("functions.{name}:{}", first + at),
                    2 => format!("functions.{name}:{at}"),
                    3 => format!("{at}"),
                    4 => String::new(),
                    _ => format!("functions.{name}:{}", 40 - first - at),
                };
                made.push((id, name));
            }
            let calls: Vec<Value> = made[first..].iter().map(|(id, name)| call(id, name)).collect();
            if count > 0 || rng.random_bool(0.5) {
                messages.push(self::calls(&calls));
            }
            // Without ids, results refer to calls by order, either among all calls or among those of the same tool.
            let names = if style == 4 { f64::from(rng.random_range(0..2)) } else { 0.5 };
            let mut results: Vec<Value> = (first..made.len())
                .map(|n| {
                    let (id, name) = &made[n];
                    let mut result = result(id);
                    result["content"] = n.into();
                    if rng.random_bool(names) {
                        result["name"] = (*name).into();
                    }
                    result
                })
                .collect();
            if style != 4 {
                results.shuffle(&mut rng);
            }
            if rng.random_bool(0.2) {
                let mut orphan = result(["functions.f:3", "unknown", "000000002"][rng.random_range(0..3)]);
                orphan["content"] = Value::Null;
                if !made.iter().any(|(id, _)| *id == orphan["tool_call_id"]) {
                    results.push(orphan);
                }
            }
            messages.extend(results);
        }
        let calls_of =
            |messages: &[Value]| ids(messages).into_iter().filter(|id| !id.starts_with('>')).collect::<Vec<_>>();
        assign_native_ids(&mut messages, native);
        let ids = calls_of(&messages);
        let distinct: std::collections::HashSet<_> = ids.iter().collect();
        assert_eq!(distinct.len(), ids.len(), "seed {seed}: {ids:?}");
        for result in messages.iter().filter(|message| is_result(message)) {
            let id = text(result, "tool_call_id");
            match result["content"].as_u64() {
                Some(n) => {
                    assert_eq!(id, ids[n as usize], "seed {seed}, call {n}: {messages:#?}");
                    assert_eq!(text(result, "name"), made[n as usize].1);
                }
                None if style == 4 => {}
                None => assert!(!ids.iter().any(|known| known == id), "seed {seed}: {messages:#?}"),
            }
        }
        // Native ids do not change any more.
        let again = messages.clone();
        let mut messages = messages;
        assign_native_ids(&mut messages, native);
        assert_eq!(messages, again, "seed {seed}");
    }
}

/// Quadratic work on a conversation of this size would take minutes.
#[test]
fn long_conversations_take_linear_time() {
    let many: Vec<Value> = (0..50_000).map(|n| call("same", if n % 2 == 0 { "f" } else { "g" })).collect();
    let mut messages = vec![calls(&many)];
    messages.extend((0..50_000).map(|_| named("same", "h")));
    assert_eq!(assign_native_ids(&mut messages, kimi), 50_000);
    assert_eq!(messages[50_000]["tool_call_id"], "functions.g:49999");
}
