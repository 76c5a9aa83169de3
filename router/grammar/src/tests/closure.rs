//! Whatever the renderer writes, the parser reads back, however it is cut.

use super::{Random, covered, cuts, options, parse};
use crate::{Call, Event, Format, Markers, Region, RenderOptions, Turn, render};
use serde_json::{Map, Value, json};

const CASES: u64 = 2000;
const NAMES: &[&str] =
    &["search", "get_weather", "mcp__fs.read-file", "a", "functions.odd", "x:1", "wetter_für_ort", "ns/tool"];
const WORDS: &[&str] = &[
    "the",
    "weather",
    " ",
    "\n",
    "\n\n",
    " is 21 °C",
    "日本語",
    "🦀",
    "{",
    "}",
    "{\"name\": \"x\"}",
    "\"",
    "\\",
    "functions.",
    ":0",
    "<",
    "<<",
    "<t",
    "<tool",
    "<tool_",
    "<tool_cal",
    "</tool_calls",
    "<|tool",
    "<|tool_call_",
    "</thin",
    "<thin",
    "tool_call>",
    "&lt;",
    "\u{0}",
    "\r\n",
    "ÿ",
    "</s>",
    "[TOOL_CALLS]",
];
/// Only text can hold these, and only where markers are special tokens; in JSON strings anything goes.
const SPELLED: &[&str] = &[
    "<tool_call>",
    "</tool_call>",
    "<think>",
    "</think>",
    "<|tool_calls_section_begin|>",
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
    "<|tool_calls_section_end|>",
    "\n</tool_call>\n",
];

fn words(random: &mut Random, spelled: bool, most: usize) -> String {
    let n = random.below(most + 1);
    let words = (0..n).map(|_| if spelled && random.one_in(4) { *random.pick(SPELLED) } else { *random.pick(WORDS) });
    let mut text: String = words.collect();
    while let Some(marker) = SPELLED.iter().find(|m| !spelled && text.contains(**m)) {
        text = text.replace(marker, "");
    }
    text
}

fn value(random: &mut Random, depth: usize) -> Value {
    match random.below(if depth > 3 { 6 } else { 8 }) {
        0 => Value::Null,
        1 => json!(random.one_in(2)),
        2 => json!(random.below(1 << 40) as i64 - (1 << 39)),
        3 => json!((random.below(1 << 30) as f64 - 5e8) / 3e-7),
        4 | 5 => json!(words(random, true, 6)),
        6 => (0..random.below(4)).map(|_| value(random, depth + 1)).collect(),
        _ => Value::Object(object(random, depth + 1)),
    }
}

fn object(random: &mut Random, depth: usize) -> Map<String, Value> {
    (0..random.below(4)).map(|_| (words(random, true, 3), value(random, depth))).collect()
}

fn turn(format: &Format, random: &mut Random) -> Turn {
    let spelled = format.markers == Markers::Special;
    let layout = format.reasoning.as_ref().is_some_and(|r| !r.layout[0].is_empty());
    let mut reasoning = random.one_in(2).then(|| format!("hm{}.", words(random, spelled, 8)));
    if format.reasoning.is_none() {
        reasoning = None;
    }
    let n = if format.has_calls() { random.below(4) } else { 0 };
    let calls = (0..n)
        .map(|_| {
            let arguments = Value::Object(object(random, 0));
            let arguments = match random.below(3) {
                0 => serde_json::to_string_pretty(&arguments).unwrap_or_default(),
                _ => arguments.to_string(),
            };
            Call { name: (*random.pick(NAMES)).to_owned(), arguments }
        })
        .collect();
    let mut text = words(random, spelled, 10);
    // Blanks alone before calls, and newlines after reasoning, are layout by definition.
    if text.trim().is_empty() || (layout && text.starts_with('\n')) {
        text = if random.one_in(2) { String::new() } else { format!("So{text}") };
    }
    Turn { reasoning, text, calls }
}

fn expected(format: &Format, turn: &Turn, first_index: usize) -> Vec<Event> {
    let mut out = Vec::new();
    if let Some(r) = &turn.reasoning {
        out.extend([Event::ReasoningStart, Event::ReasoningDelta(r.clone()), Event::ReasoningEnd]);
    }
    if !turn.text.is_empty() {
        out.extend([Event::TextStart, Event::TextDelta(turn.text.clone()), Event::TextEnd]);
    }
    for (index, call) in turn.calls.iter().enumerate() {
        let id = format.native_id(&call.name, first_index + index);
        out.push(Event::ToolCallStart { index, id, name: call.name.clone() });
        out.push(Event::ArgumentsDelta { index, text: call.arguments.clone() });
        out.push(Event::ToolCallEnd { index, complete: true });
    }
    out
}

#[test]
fn rendered_turns_are_read_back_however_they_are_cut() {
    for format in covered() {
        for seed in 0..CASES {
            let mut random = Random::new(seed);
            let turn = turn(format, &mut random);
            let start = if turn.reasoning.is_some() && random.one_in(2) { Region::Reasoning } else { Region::Text };
            let first_index = random.below(30);
            let render_options = RenderOptions { start, first_index, spelled: random.one_in(2) };
            let pieces = render(format, &turn, render_options);
            let want = expected(format, &turn, first_index);
            for cut in cuts(&pieces, &mut random) {
                let got = parse(format, options(start, NAMES), &cut);
                assert_eq!(got, want, "{} seed {seed}: {cut:?}", format.name);
            }
        }
    }
}

/// An output may stop anywhere: a call that is not whole is never told as one, and nothing told before is taken back.
#[test]
fn a_truncated_turn_never_tells_a_whole_call_that_is_not() {
    for format in covered().filter(|f| f.has_calls()) {
        for seed in 0..60 {
            let mut random = Random::new(seed);
            let turn = turn(format, &mut random);
            let pieces = render(format, &turn, RenderOptions::default());
            let bytes = super::cut(&pieces, 1, &mut random);
            for n in 0..bytes.len() {
                // The checks are in `fold`: a complete call's arguments are an object.
                let events = parse(format, options(Region::Text, NAMES), &bytes[..n]);
                let mut calls = turn.calls.iter();
                let mut text = String::new();
                for event in &events {
                    match event {
                        Event::ToolCallStart { name, .. } => {
                            text.clear();
                            assert_eq!(Some(name), calls.next().map(|c| &c.name), "{} seed {seed}", format.name);
                        }
                        Event::ArgumentsDelta { text: t, .. } => text.clone_from(t),
                        Event::ToolCallEnd { index, complete: true } => {
                            assert_eq!(text, turn.calls[*index].arguments, "{} seed {seed}", format.name);
                        }
                        _ => {}
                    }
                }
            }
        }
    }
}

/// With every byte of arguments pushed, all but what is held for UTF-8 has gone out.
#[test]
fn arguments_stream_as_they_grow() {
    for format in covered().filter(|f| f.has_calls()) {
        let call = Call { name: "search".into(), arguments: r#"{"q": "abc </tool_call> def", "n": [1, 2]}"#.into() };
        let turn = Turn { calls: vec![call], ..Turn::default() };
        let mut parser = crate::Parser::new(format, options(Region::Text, NAMES));
        let (mut events, mut seen, mut started) = (Vec::new(), 0, 0);
        let mut random = Random::new(1);
        for piece in super::cut(&render(format, &turn, RenderOptions::default()), 1, &mut random) {
            events.clear();
            parser.push(piece.as_piece(), &mut events);
            for event in &events {
                match event {
                    Event::ToolCallStart { .. } => started += 1,
                    Event::ArgumentsDelta { text, .. } => {
                        assert_eq!(text.len(), 1, "{}: {text:?}", format.name);
                        seen += 1;
                    }
                    _ => {}
                }
            }
        }
        assert_eq!((started, seen), (1, turn.calls[0].arguments.len()), "{}", format.name);
    }
}
