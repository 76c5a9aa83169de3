//! What is right already stays: an output that the parser reads as text, reasoning and valid calls of declared tools is
//! accepted whole, in whatever order and in the forms that models write beside the format's own.

use serde_json::{Value, json};

use super::{Bench, rules, tool};
use crate::tests::{Random, cases};
use crate::{Call, Codec, Format, Markers, OwnedPiece, Region, RenderOptions, Rules, Turn, formats, render};

fn declared() -> Rules {
    let search = json!({"type": "object", "required": ["q"], "properties": {
        "q": {"type": "string"}, "n": {"type": "integer"}, "in": {"type": "array", "items": {"type": "string"}}}});
    rules(vec![tool("search", search), tool("get_time", json!({"type": "object", "properties": {}}))])
}

const TEXT: &[&str] = &[
    "So",
    " the weather",
    "\n",
    "\n\n",
    "```json\n",
    "\n```",
    "\n```\n",
    "{",
    "}",
    "{\"a\": [1]}",
    "[1, 2]",
    "a < b > c",
    "<b>",
    "</think>",
    "</parameter>",
    "functions.search:0",
    "{\"name\": \"Ann\", \"age\": 3}",
    "1.",
    "日本",
];

fn call(random: &mut Random) -> Call {
    match random.below(3) {
        0 => Call { name: "get_time".into(), arguments: "{}".into() },
        n => {
            let q = *random.pick(&["Rome", "a b", "x\ny", "é", "it's"]);
            let arguments = if n == 1 { json!({"q": q}) } else { json!({"n": 3, "q": q, "in": ["a", "b"]}) };
            Call { name: "search".into(), arguments: arguments.to_string() }
        }
    }
}

/// Some text, reasoning or calls.
fn part(format: &Format, random: &mut Random, spelled: bool, calls: &mut usize, last: bool) -> Vec<OwnedPiece> {
    match random.below(5) {
        0 | 1 => {
            let text: String = (0..1 + random.below(3)).map(|_| *random.pick(TEXT)).collect();
            vec![OwnedPiece::Bytes(text.into_bytes())]
        }
        2 if format.reasoning.is_some() && !spelled => {
            let turn = Turn { reasoning: Some("hm".into()), ..Turn::default() };
            render(format, &turn, RenderOptions { spelled, ..RenderOptions::default() })
        }
        _ if format.has_calls() => {
            let most = if format.many { 2 } else { 1 };
            let turn = Turn { calls: (0..1 + random.below(most)).map(|_| call(random)).collect(), ..Turn::default() };
            let options = RenderOptions { first_index: *calls, spelled, start: Region::Text };
            if format.opens && *calls == 0 && random.one_in(2) {
                *calls += turn.calls.len();
                return opening(&turn, random);
            }
            *calls += turn.calls.len();
            let pieces = render(format, &turn, options);
            // What is missing at the end of another part, what follows would stand for.
            if last && random.one_in(2) { lenient(format, &pieces, random) } else { pieces }
        }
        _ => Vec::new(),
    }
}

/// Calls without a marker, as models begin an output with them.
fn opening(turn: &Turn, random: &mut Random) -> Vec<OwnedPiece> {
    let object = |call: &Call| format!(r#"{{"name": "{}", "arguments": {}}}"#, call.name, call.arguments);
    let all: Vec<String> = turn.calls.iter().map(object).collect();
    let text = match random.below(4) {
        0 => format!("[{}]", all.join(", ")),
        1 => all.join("\n"),
        2 => format!("```json\n{}\n```", all.join("\n")),
        _ => all.iter().map(|call| format!("```json\n{call}\n```\n")).collect(),
    };
    vec![OwnedPiece::Bytes(text.into_bytes())]
}

/// The same calls as models also write them.
fn lenient(format: &Format, pieces: &[OwnedPiece], random: &mut Random) -> Vec<OwnedPiece> {
    let mut pieces = pieces.to_vec();
    let marked = |pieces: &[OwnedPiece], at: usize| matches!(pieces.get(at), Some(OwnedPiece::Special(_)));
    match random.below(4) {
        // Without the first marker, or the last.
        0 if marked(&pieces, 0) && !format.text.is_needed() => {
            pieces.remove(0);
        }
        // Arguments between markers do not tell their end.
        1 if marked(&pieces, pieces.len().wrapping_sub(1))
            && !format.text.is_needed()
            && (!matches!(format.codec(), Codec::Params(_)) || !format.end.is_empty()) =>
        {
            pieces.pop();
        }
        2 => {
            for piece in &mut pieces {
                let OwnedPiece::Bytes(bytes) = piece else { continue };
                let text = String::from_utf8_lossy(bytes).into_owned();
                let text = match format.codec() {
                    Codec::Object { .. } => text.replace("{\"name\"", "{\"type\": \"function\", \"name\""),
                    _ => text.replace("functions.", ""),
                };
                *bytes = text.into_bytes();
            }
        }
        _ => {
            for piece in &mut pieces {
                let OwnedPiece::Bytes(bytes) = piece else { continue };
                let text = String::from_utf8_lossy(bytes).into_owned();
                *bytes = text.replace(", \"arguments\": {}", "").replace(", \"parameters\": {}", "").into_bytes();
            }
        }
    }
    pieces
}

/// Whether the parser reads this many calls, all valid and of declared tools, and else only text and reasoning.
fn is_right(b: &Bench, compiled: &crate::Compiled, rules: &Rules, pieces: &[OwnedPiece], written: usize) -> bool {
    let Ok(calls) = b.parse(rules, &b.tokens.ids(pieces)) else { return false };
    let named = |name: &str| rules.tools.iter().any(|tool| tool.name == name);
    calls.len() == written
        && calls.iter().all(|(name, arguments)| {
            let object = serde_json::from_str::<Value>(arguments).is_ok_and(|value| value.is_object());
            named(name) && object && compiled.validate(name, arguments).is_ok()
        })
}

#[test]
fn right_outputs_are_accepted_whole() {
    let mut failures = Vec::new();
    let mut right = 0;
    for format in formats().iter().filter(|f| f.has_calls()) {
        for spelled in [false, true] {
            if spelled && format.markers == Markers::Special {
                continue;
            }
            let b = Bench::new(format, spelled);
            let rules = declared();
            let compiled = b.compile(&rules);
            let mut bad = 0;
            for seed in 0..cases(150) {
                let mut random = Random::new(seed);
                let mut calls = 0;
                // These texts have markers of their own, and what they finish is finished.
                let parts = if format.text.is_needed() { 1 } else { 1 + random.below(4) };
                let pieces: Vec<OwnedPiece> =
                    (0..parts).flat_map(|at| part(format, &mut random, spelled, &mut calls, at + 1 == parts)).collect();
                if !is_right(&b, &compiled, &rules, &pieces, calls) {
                    continue;
                }
                right += 1;
                let ids = b.tokens.ids(&pieces);
                let (n, may_stop) = b.run(&mut compiled.matcher().expect("a matcher"), &ids);
                if (n < ids.len() || !may_stop) && bad < 3 {
                    bad += 1;
                    let (taken, rest) = ids.split_at(n);
                    let (taken, rest) = (b.tokens.show(taken), b.tokens.show(rest));
                    failures.push(format!("{} spelled={spelled} seed {seed}: {taken:?} | {rest:?}", format.name));
                }
            }
        }
    }
    assert!(failures.is_empty(), "{} of {right}\n{}", failures.len(), failures.join("\n"));
    assert!(right > 3000, "{right} outputs");
}

/// What the renderer writes is canonical in every format, and offers no blanks but those that it writes.
#[test]
fn the_canonical_form_follows_what_the_renderer_writes() {
    let mut failures = Vec::new();
    for format in formats().iter().filter(|f| f.has_calls()) {
        for spelled in [false, true] {
            if spelled && format.markers == Markers::Special {
                continue;
            }
            let b = Bench::new(format, spelled);
            for seed in 0..6 {
                let mut random = Random::new(seed);
                let most = if format.many { 2 } else { 1 };
                let calls: Vec<Call> = (0..1 + random.below(most)).map(|_| call(&mut random)).collect();
                let reasons = format.reasoning.is_some() && random.one_in(2);
                let turn = Turn { reasoning: reasons.then(|| "hm".into()), calls, ..Turn::default() };
                let choice = if random.one_in(2) { crate::ToolChoice::Required } else { crate::ToolChoice::Auto };
                let compiled = b.compile(&Rules { choice, reasons, ..declared() });
                let Some(mut canonical) = compiled.canonical() else {
                    failures.push(format!("{} {spelled}: no canonical form", format.name));
                    break;
                };
                let options = RenderOptions { spelled, ..RenderOptions::default() };
                let ids = b.tokens.ids(&render(format, &turn, options));
                let lost = (0..=ids.len()).find(|n| {
                    canonical.follow(&ids[..*n]);
                    canonical.mask().is_none()
                });
                if let Some(n) = lost {
                    let (taken, rest) = ids.split_at(n);
                    let (taken, rest) = (b.tokens.show(taken), b.tokens.show(rest));
                    failures.push(format!("{} spelled={spelled} seed {seed}: {taken:?} | {rest:?}", format.name));
                    break;
                }
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
