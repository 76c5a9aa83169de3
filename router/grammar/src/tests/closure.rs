//! The parser reads back whatever the renderer writes, however it is split.

use super::{Random, cases, cuts, parse, wire_ids};
use crate::{
    Call, CallPosition, Codec, Event, Format, Markers, Parser, ParserOptions, Region, RenderOptions, Step, Tool, Turn,
    formats, render,
};
use serde_json::{Map, Value, json};

/// Cases per format, unless set in the environment.
const CASES: u64 = 100;
const NAMES: &[&str] =
    &["search", "get_weather", "mcp__fs.read-file", "a", "functions.odd", "x:1", "wetter_für_ort", "ns/tool"];
/// Names for formats that require identifiers.
const IDENTIFIERS: &[&str] = &["search", "get_weather", "a", "ns.tool", "mcp__fs"];
/// Arguments whose types only a schema tells, because values are raw.
const TYPED: &[(&str, &str)] = &[
    ("text", "string"),
    ("schlüssel", "string"),
    ("class", "string"),
    ("count", "number"),
    ("flag", "boolean"),
    ("list", "array"),
    ("record", "object"),
    ("nothing", "null"),
];
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
/// Only text can contain these, and only if markers are special tokens; JSON strings may contain anything.
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

fn words(random: &mut Random, banned: &[&str], most: usize) -> String {
    let n = random.below(most + 1);
    let words = (0..n).map(|_| if random.one_in(4) { *random.pick(SPELLED) } else { *random.pick(WORDS) });
    let mut text: String = words.collect();
    while let Some(marker) = banned.iter().find(|m| text.contains(**m)) {
        text = text.replace(marker, "");
    }
    text
}

/// Text that would have a meaning in a format.
fn banned(format: &Format) -> Vec<&'static str> {
    if format.markers == Markers::Special {
        Vec::new()
    } else {
        format.all_steps().filter_map(crate::format::marker).collect()
    }
}

fn value(random: &mut Random, depth: usize) -> Value {
    match random.below(if depth > 3 { 6 } else { 8 }) {
        0 => Value::Null,
        1 => json!(random.one_in(2)),
        2 => json!(random.below(1 << 40) as i64 - (1 << 39)),
        3 => json!((random.below(1 << 30) as f64 - 5e8) / 3e-7),
        4 | 5 => json!(words(random, &[], 6)),
        6 => (0..random.below(4)).map(|_| value(random, depth + 1)).collect(),
        _ => Value::Object(object(random, depth + 1)),
    }
}

fn object(random: &mut Random, depth: usize) -> Map<String, Value> {
    (0..random.below(4)).map(|_| (words(random, &[], 3), value(random, depth))).collect()
}

/// Arguments whose keys tell their types. A raw value cannot contain markers.
fn typed(random: &mut Random, banned: &[&str]) -> Map<String, Value> {
    let count = random.below(5);
    let clean = |value: Value| match banned.iter().any(|m| value.to_string().contains(m)) {
        true => json!(["<"]),
        false => value,
    };
    (0..count)
        .map(|_| {
            let (key, kind) = *random.pick(TYPED);
            let value = match kind {
                "string" => json!(words(random, banned, 8)),
                "number" => json!(random.below(1 << 30) as f64 / 8.0),
                "boolean" => json!(random.one_in(2)),
                "array" => clean((0..random.below(4)).map(|_| value(random, 2)).collect()),
                "object" => match clean(Value::Object(object(random, 2))) {
                    Value::Object(map) => Value::Object(map),
                    _ => json!({}),
                },
                _ => Value::Null,
            };
            (key.to_owned(), value)
        })
        .collect()
}

/// The same, with lists and objects whose text alone tells what is in them.
fn elements(random: &mut Random, banned: &[&str]) -> Map<String, Value> {
    let mut all = typed(random, banned);
    for value in all.values_mut() {
        match value {
            Value::Array(items) => items.iter_mut().for_each(|item| *item = json!([random.below(9), random.one_in(2)])),
            Value::Object(members) => members.clear(),
            _ => {}
        }
    }
    all
}

pub(super) fn tools(names: &[&str]) -> Vec<Tool> {
    let properties: Map<String, Value> = TYPED.iter().map(|(k, t)| ((*k).to_owned(), json!({"type": t}))).collect();
    let parameters = Some(json!({"type": "object", "properties": properties}));
    names
        .iter()
        .map(|name| Tool { name: (*name).to_owned(), parameters: parameters.clone(), ..Tool::default() })
        .collect()
}

fn names(format: &Format) -> &'static [&'static str] {
    if format.codec() == Codec::Python { IDENTIFIERS } else { NAMES }
}

fn options(format: &Format, start: Region) -> ParserOptions {
    ParserOptions { start, tools: tools(names(format)).into(), parse_tools: true }
}

fn turn(format: &Format, random: &mut Random) -> Turn {
    let banned = banned(format);
    let layout =
        format.reasoning.as_ref().is_some_and(|r| !r.layout[2].is_empty()) || format.calls == CallPosition::BeforeText;
    let mut reasoning = random.one_in(2).then(|| format!("hm{}.", words(random, &banned, 8)));
    if format.reasoning.is_none() {
        reasoning = None;
    }
    let most = if format.many { 4 } else { 2 };
    let n = if format.has_calls() { random.below(most) } else { 0 };
    let calls: Vec<Call> = (0..n)
        .map(|_| {
            let arguments = Value::Object(match format.codec() {
                Codec::Json | Codec::Keyed | Codec::Object { .. } => object(random, 0),
                Codec::Params(_) | Codec::Bare(_) => typed(random, &banned),
                Codec::Elements(_) => elements(random, &banned),
                Codec::Tagged(_) => object(random, 0),
                Codec::Python | Codec::Code => typed(random, &[]),
            });
            let arguments = match random.below(3) {
                0 => serde_json::to_string_pretty(&arguments).unwrap(),
                _ => arguments.to_string(),
            };
            Call { name: (*random.pick(names(format))).to_owned(), arguments }
        })
        .collect();
    let mut text = words(random, &banned, 10);
    // Only blanks before calls, and newlines after reasoning, are layout by definition.
    if text.trim().is_empty() || (layout && text.starts_with('\n')) {
        text = if random.one_in(2) { String::new() } else { format!("So{text}") };
    }
    if format.calls == CallPosition::InsteadOfText && !calls.is_empty() {
        text = String::new();
    }
    Turn { reasoning, text, calls }
}

/// The arguments as reported if they are reported as written; otherwise their value.
fn canonical(format: &Format, arguments: &str) -> String {
    match format.codec() {
        Codec::Json | Codec::Keyed | Codec::Object { .. } => arguments.to_owned(),
        // Those of a cut call are no JSON.
        Codec::Bare(_) => serde_json::from_str(arguments).map_or(String::new(), |v| sorted(v).to_string()),
        Codec::Params(_) | Codec::Elements(_) | Codec::Tagged(_) | Codec::Python | Codec::Code => {
            serde_json::from_str::<Value>(arguments).map(|v| v.to_string()).unwrap_or_else(|_| arguments.to_owned())
        }
    }
}

/// With the members of objects in alphabetical order.
fn sorted(value: Value) -> Value {
    match value {
        Value::Object(map) => {
            let mut members: Vec<_> = map.into_iter().map(|(key, value)| (key, sorted(value))).collect();
            members.sort_by(|(a, _), (b, _)| a.cmp(b));
            Value::Object(members.into_iter().collect())
        }
        Value::Array(all) => all.into_iter().map(sorted).collect(),
        other => other,
    }
}

fn expected(format: &Format, turn: &Turn, first_index: usize) -> Vec<Event> {
    let mut out = Vec::new();
    if let Some(r) = &turn.reasoning {
        out.extend([Event::ReasoningStart, Event::ReasoningDelta(r.clone()), Event::ReasoningEnd]);
    }
    let text = [Event::TextStart, Event::TextDelta(turn.text.clone()), Event::TextEnd];
    let has_text = !turn.text.is_empty();
    if has_text && format.calls != CallPosition::BeforeText {
        out.extend(text.clone());
    }
    for (index, call) in turn.calls.iter().enumerate() {
        let id = format.native_id(&call.name, first_index + index).filter(|_| wire_ids(format));
        out.push(Event::ToolCallStart { index, id, name: call.name.clone() });
        out.push(Event::ArgumentsDelta { index, text: canonical(format, &call.arguments) });
        out.push(Event::ToolCallEnd { index, complete: true });
    }
    if has_text && format.calls == CallPosition::BeforeText {
        out.extend(text);
    }
    out
}

fn read(format: &'static Format, start: Region, pieces: &[crate::OwnedPiece]) -> Vec<Event> {
    let mut events = parse(format, options(format, start), pieces);
    for event in &mut events {
        if let Event::ArgumentsDelta { text, .. } = event {
            *text = canonical(format, text);
        }
    }
    events
}

#[test]
fn rendered_turns_are_read_back_however_they_are_split() {
    for format in formats() {
        for seed in 0..cases(CASES) {
            let mut random = Random::new(seed);
            let turn = turn(format, &mut random);
            let start = if turn.reasoning.is_some() && random.one_in(2) { Region::Reasoning } else { Region::Text };
            let first_index = random.below(30);
            let render_options = RenderOptions { start, first_index, spelled: random.one_in(2) };
            let pieces = render(format, &turn, render_options);
            let want = expected(format, &turn, first_index);
            for cut in cuts(&pieces, &mut random) {
                let got = read(format, start, &cut);
                assert_eq!(got, want, "{} seed {seed}: {cut:?}", format.name);
            }
        }
    }
}

/// An output may stop anywhere: an incomplete call is never reported as complete, and no earlier event is withdrawn.
#[test]
fn a_truncated_turn_never_reports_an_incomplete_call_as_complete() {
    for format in formats().iter().filter(|f| f.has_calls()) {
        for seed in 0..4 {
            let mut random = Random::new(seed);
            let turn = turn(format, &mut random);
            let pieces = render(format, &turn, RenderOptions::default());
            let bytes = super::cut(&pieces, 1, &mut random);
            for n in 0..bytes.len() {
                // `fold` checks that a complete call's arguments are an object.
                let events = read(format, Region::Text, &bytes[..n]);
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
                            let want = canonical(format, &turn.calls[*index].arguments);
                            assert_eq!(text, want, "{} seed {seed}", format.name);
                        }
                        _ => {}
                    }
                }
            }
        }
    }
}

/// Strings are reported as they grow, unless the call's id follows them.
#[test]
fn arguments_stream_as_they_grow() {
    let late_id = |f: &Format| match f.codec() {
        Codec::Object { members, .. } => members.last().is_some_and(|m| m.id().is_some()),
        _ => false,
    };
    for format in formats().iter().filter(|f| f.has_calls() && !late_id(f)) {
        let call = Call { name: "search".into(), arguments: r#"{"text": "abc </x> def ghi", "list": [1, 2]}"#.into() };
        let turn = Turn { calls: vec![call], ..Turn::default() };
        let mut parser = Parser::new(format, options(format, Region::Text));
        let (mut events, mut seen, mut started) = (Vec::new(), 0, 0);
        let mut random = Random::new(1);
        for piece in super::cut(&render(format, &turn, RenderOptions::default()), 1, &mut random) {
            events.clear();
            parser.push(piece.as_piece(), &mut events);
            for event in &events {
                match event {
                    Event::ToolCallStart { .. } => started += 1,
                    Event::ArgumentsDelta { text, .. } => {
                        assert!(text.len() < 16, "{}: {text:?}", format.name);
                        seen += 1;
                    }
                    _ => {}
                }
            }
        }
        assert!(started == 1 && seen > 10, "{}: {seen} deltas", format.name);
    }
}

#[test]
fn the_table_has_what_parser_and_renderer_need() {
    for format in formats().iter().filter(|f| f.has_calls()) {
        let args = format.call.iter().filter(|s| matches!(s, Step::Args(_))).count();
        assert_eq!(args, 1, "{}: one place for the arguments", format.name);
        let named = format.call.contains(&Step::Name) != matches!(format.codec(), Codec::Keyed | Codec::Object { .. });
        assert!(named, "{}: one place for the name", format.name);
    }
}
