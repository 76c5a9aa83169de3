//! Outputs that the length cut: an unfinished call is never text.

use super::{Random, cut, options, pieces, short};
use crate::marks::Lexicon;
use crate::render::{Call, RenderOptions, Turn, render};
use crate::{Event, Format, OwnedPiece, Parser, Region, by_name, formats};

/// The events of an output that was cut, and whether the parser still awaits the call that a marker announced.
fn parse_cut(format: &'static Format, output: &[OwnedPiece]) -> (Vec<Event>, bool) {
    let mut parser = Parser::new(format, options(Region::Text, &["search", "set"]));
    let mut events = Vec::new();
    output.iter().for_each(|piece| parser.push(piece.as_piece(), &mut events));
    parser.cut();
    parser.finish(&mut events);
    (events, parser.awaits_call())
}

fn text(events: &[Event]) -> String {
    let delta = |event: &Event| match event {
        Event::TextDelta(text) => Some(text.clone()),
        _ => None,
    };
    events.iter().filter_map(delta).collect()
}

#[test]
fn an_unfinished_call_is_never_text() {
    let mut failures = Vec::new();
    for format in formats().iter().filter(|f| f.has_calls()) {
        for (spelled, said) in [(false, ""), (true, ""), (false, "Hi there."), (true, "Hi there.")] {
            let call = Call { name: "search".into(), arguments: r#"{"q": "abc", "n": [1, {"m": 2}]}"#.into() };
            let second = Call { name: "set".into(), arguments: "{}".into() };
            let turn = |calls: &[Call]| Turn { text: said.into(), calls: calls.into(), ..Turn::default() };
            let options = RenderOptions { spelled, ..RenderOptions::default() };
            let output = cut(&render(format, &turn(&[call, second]), options), 3, &mut Random::new(3));
            for n in 0..=output.len() {
                let (events, awaits) = parse_cut(format, &output[..n]);
                let written = written(&output[..n]);
                // Heads of blocks tell only with the name that a call begins.
                let begun = match Lexicon::new(format).blocks {
                    Some(_) => written.contains("search"),
                    None => !written.strip_prefix(said).unwrap_or_default().trim().is_empty(),
                };
                let told =
                    awaits || events.iter().any(|e| matches!(e, Event::ToolCallStart { .. } | Event::Malformed(_)));
                if begun && !told || !said.starts_with(text(&events).trim_end()) {
                    failures.push(format!("{} spelled={spelled} {written:?}: {}", format.name, short(&events)));
                }
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

fn written(output: &[OwnedPiece]) -> String {
    let text = |piece: &OwnedPiece| match piece {
        OwnedPiece::Bytes(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        OwnedPiece::Special(special) => special.clone(),
    };
    output.iter().map(text).collect()
}

#[test]
fn text_that_cannot_become_a_call_stays_text() {
    let cases = [
        ("llama_json", r#"{"answer": "#, r#"T({"answer": )"#),
        ("llama_json", r#"{"answer": {"name": "sea"#, r#"T({"answer": )M({"name": "sea)"#),
        ("llama_json", r#"{"name": "nob"#, r#"T({"name": "nob)"#),
        ("llama_json", r#"{"name": "sea"#, r#"M({"name": "sea)"#),
        ("llama_json", r#"{"type": "function", "na"#, r#"M({"type": "function", "na)"#),
        ("llama_json", r#"Use {"parameters": {"q": 1}"#, r#"T(Use {"parameters": {"q": 1})"#),
        ("llama_json", "{ braces } and", "T({ braces } and)"),
        ("mistral_v3", r#"[{"name": "search", "argu"#, "C?(search|-|)"),
        ("mistral_v3", r#"[{"answer": "#, r#"T([{"answer": )"#),
        ("mistral_v3", "[1, 2", "T([1, 2)"),
        ("mistral_v3", r#"[{"name": "search", "arguments": {}}, {"na"#, r#"C(search|-|{})M({"na)"#),
        ("hermes", "a < b", "T(a < b)"),
        ("hermes", "Hi <tool_", "T(Hi )M(<tool_)"),
        ("hermes", "Hi <table>", "T(Hi <table>)"),
    ];
    for (name, output, want) in cases {
        let format = by_name(name).unwrap();
        for seed in 0..4 {
            let output = cut(&pieces(output), 4, &mut Random::new(seed));
            assert_eq!(short(&super::fold(&parse_cut(format, &output).0)), want, "{name}: {output:?}");
        }
    }
}

/// The arguments of each call.
fn arguments(events: &[Event]) -> Vec<String> {
    let mut calls: Vec<String> = Vec::new();
    for event in events {
        match event {
            Event::ToolCallStart { .. } => calls.push(String::new()),
            Event::ArgumentsDelta { text, .. } => calls.last_mut().unwrap().push_str(text),
            _ => {}
        }
    }
    calls
}

/// What is reported of a call that the length cut is the beginning of its arguments, without pieces of markers.
#[test]
fn the_arguments_of_a_cut_call_are_their_beginning() {
    let mut failures = Vec::new();
    for format in formats().iter().filter(|f| f.has_calls()) {
        for (spelled, most) in [(false, 1), (true, 1), (true, 3)] {
            let call = Call {
                name: "search".into(),
                arguments: r#"{"q": "a <b> é\n", "n": [1, {"m": 2}], "s": "</x>", "d": 12}"#.into(),
            };
            let turn = Turn { calls: vec![call.clone(), call], ..Turn::default() };
            let options = RenderOptions { spelled, ..RenderOptions::default() };
            let output = cut(&render(format, &turn, options), most, &mut Random::new(5));
            let whole = arguments(&parse_cut(format, &output).0);
            for n in 0..=output.len() {
                let told = arguments(&parse_cut(format, &output[..n]).0);
                for (told, whole) in told.iter().zip(&whole) {
                    if !whole.starts_with(told) {
                        failures.push(format!("{} {spelled} {:?}: {told}", format.name, written(&output[..n])));
                    }
                }
            }
        }
    }
    assert!(failures.is_empty(), "{}\n{}", failures.len(), failures.join("\n"));
}
