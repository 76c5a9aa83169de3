//! A marker that is only mentioned opens no call: the parser reads text, and the grammar takes it, whether calls may be
//! made or not.

use serde_json::json;

use super::{Bench, rules, tool};
use crate::announced::{announcing, opening_markers, sees_code, until_name};
use crate::format::marker;
use crate::tests::{Random, cases};
use crate::unmarked::bare;
use crate::{
    Call, CallPosition, Enforcement, Event, Markers, OwnedPiece, Parser, ParserOptions, Piece, Region, RenderOptions,
    Response, Rules, ToolChoice, Turn, by_name, formats, render,
};

fn declared() -> Rules {
    let command = json!({"type": "object", "required": ["command"], "properties": {"command": {"type": "string"}}});
    rules(vec![tool("Bash", command), tool("ping", json!({"type": "object", "properties": {}}))])
}

/// The text, reasoning and calls of an output; text that is no part of them.
fn read(b: &Bench, rules: &Rules, ids: &[u32]) -> (String, usize, Vec<String>) {
    let options = ParserOptions { start: Region::Text, tools: rules.tools.clone(), parse_tools: true };
    let mut parser = Parser::new(b.format, options);
    let mut events = Vec::new();
    for piece in b.tokens.pieces(ids) {
        match piece {
            OwnedPiece::Bytes(bytes) => bytes.chunks(1).for_each(|b| parser.push(Piece::Bytes(b), &mut events)),
            special @ OwnedPiece::Special(_) => parser.push(special.as_piece(), &mut events),
        }
    }
    parser.finish(&mut events);
    let (mut text, mut calls, mut lost) = (String::new(), 0, Vec::new());
    for event in events {
        match event {
            Event::TextDelta(delta) | Event::ReasoningDelta(delta) => text.push_str(&delta),
            Event::ToolCallStart { .. } => calls += 1,
            Event::ToolCallEnd { complete: false, .. } => lost.push("a cut call".into()),
            Event::Malformed(junk) => lost.push(junk),
            _ => {}
        }
    }
    (text, calls, lost)
}

fn whole_call(b: &Bench, spelled: bool) -> String {
    let call = Call { name: "Bash".into(), arguments: "{\"command\": \"ls\"}".into() };
    let turn = Turn { calls: vec![call], ..Turn::default() };
    let options = RenderOptions { spelled, ..RenderOptions::default() };
    let pieces = render(b.format, &turn, options);
    let text = |piece: &OwnedPiece| match piece {
        OwnedPiece::Bytes(bytes) => String::from_utf8(bytes.clone()).unwrap(),
        OwnedPiece::Special(special) if spelled => special.clone(),
        OwnedPiece::Special(special) => format!("⟦{special}⟧"),
    };
    pieces.iter().map(text).collect()
}

/// Rules under which the same output is text.
fn all_rules() -> Vec<Rules> {
    let auto = declared();
    let none = Rules { choice: ToolChoice::None, ..declared() };
    let names = Rules { enforcement: Enforcement::Names, ..declared() };
    vec![auto, none, names]
}

#[test]
fn a_mentioned_marker_is_text_in_every_format() {
    for format in formats() {
        for letters in announcing(format) {
            for spelled in [true, false] {
                let b = Bench::new(format, spelled);
                let marker = if spelled { letters.to_owned() } else { format!("⟦{letters}⟧") };
                let close = letters.replacen('<', "</", 1);
                for text in [
                    format!("The model opens a call with {marker} and closes it."),
                    format!("The tag {marker} comes first, then {close}."),
                    marker.clone(),
                    format!("It ends with {marker}\n"),
                    format!("Between {marker}{close} stands the call."),
                    format!("Write `{marker}` and the name."),
                    format!("{marker}, then {marker} again\n\nand {marker}."),
                ] {
                    let ids = b.tokens.text(&text);
                    for rules in all_rules() {
                        let written = text.replace(['⟦', '⟧'], "");
                        let (read, calls, lost) = read(&b, &rules, &ids);
                        assert_eq!((read.as_str(), calls, lost), (written.as_str(), 0, vec![]), "{}", format.name);
                        let (n, ends) = b.run(&mut b.matcher(&rules), &ids);
                        let seen = b.tokens.show(&ids[..n]);
                        assert!(n == ids.len() && ends, "{} {spelled}: {seen:?} of {text:?}", format.name);
                    }
                    // A call after it is still one.
                    if format.many {
                        let then = text.clone() + "\n\n" + &whole_call(&b, spelled);
                        let ids = b.tokens.text(&then);
                        let (_, calls, lost) = read(&b, &declared(), &ids);
                        assert_eq!((calls, lost), (1, vec![]), "{} {spelled}: {then:?}", format.name);
                        assert!(b.takes_ids(&declared(), &ids), "{} {spelled}: {then:?}", format.name);
                    }
                }
            }
        }
    }
}

#[test]
fn calls_that_are_only_shown_in_code_are_text() {
    for format in formats().iter().filter(|format| sees_code(format)) {
        for spelled in [true, false] {
            let b = Bench::new(format, spelled);
            let call = whole_call(&b, spelled);
            let in_line = call.replace('\n', " ");
            for (text, calls) in [
                (format!("A call:\n\n```xml\n{call}\n```\n\nThat is all."), 0),
                (format!("A call:\n````md\n```\n{call}\n```\n{call}\n````\nDone."), 0),
                (format!("Write `{in_line}` there."), 0),
                (format!("```\n{call}\n```"), 1),
                (format!("```xml\n{call}\n```\nShown: `{in_line}`"), 1),
                (format!("{call}\n```\nx {call}\n```"), 2),
                (format!("A block:\n```\nls\n```\n{call}"), 1),
                (format!("It's `broken\n{call}"), 1),
            ] {
                if calls > 1 && !format.many {
                    continue;
                }
                let ids = b.tokens.text(&text);
                let (_, found, lost) = read(&b, &declared(), &ids);
                assert!(lost.is_empty(), "{} {spelled}: {lost:?} in {text:?}", format.name);
                assert_eq!(found, calls, "{} {spelled}: {text:?}", format.name);
                let took = b.prefix(&declared(), &text);
                assert!(b.takes_ids(&declared(), &ids), "{} {spelled}: {took:?} of {text:?}", format.name);
            }
        }
    }
}

#[test]
fn an_announced_call_is_enforced_as_before() {
    for format in formats() {
        for letters in announcing(format).into_iter().take(1) {
            for spelled in [true, false] {
                let b = Bench::new(format, spelled);
                let call = whole_call(&b, spelled);
                for undeclared in ["Shell", "B", "pong"] {
                    let text = "So ".to_owned() + &call.replace("Bash", undeclared);
                    assert!(!b.takes(&declared(), &text), "{} {spelled}: {text:?} {letters}", format.name);
                }
                let invalid = call.replace("command", "order");
                assert!(!b.takes(&declared(), &invalid), "{} {spelled}: {invalid:?}", format.name);
                let none = Rules { choice: ToolChoice::None, ..declared() };
                assert!(!b.takes(&none, &call), "{} {spelled}: {call:?}", format.name);
            }
        }
    }
}

const PROSE: &[&str] = &[
    "So ",
    "call it",
    "\n",
    "\n",
    " ",
    "`",
    "``",
    "```\n",
    "```xml\n",
    "\n```\n",
    "````",
    "{",
    "[",
    "\"",
    "x",
    ". ",
    "Bash",
    "ping",
    "Bash\n",
    "\"name\"",
    "\"name\": \"Bash\"",
    ": ",
    "(",
    ")",
    ">",
    ">\n",
    "{}",
];

/// Text made of pieces of markers, fences and prose.
#[test]
fn grammar_and_parser_agree_on_what_is_text() {
    let (mut texts, mut calls) = (0, 0);
    let mut failures = Vec::new();
    // Where no marker announces calls, their own beginning does, which has another test.
    for format in formats().iter().filter(|format| format.has_calls() && bare(format).is_none()) {
        for spelled in [true, false] {
            if spelled && format.markers == Markers::Special {
                continue;
            }
            let b = Bench::new(format, spelled);
            let mut pieces: Vec<String> = PROSE.iter().map(|piece| (*piece).to_owned()).collect();
            for letters in format.call_steps().filter_map(marker) {
                pieces.push(letters.to_owned());
                pieces.push(letters.chars().take(letters.chars().count() / 2).collect());
            }
            for letters in opening_markers(format) {
                let marker = if spelled { letters.to_owned() } else { format!("⟦{letters}⟧") };
                pieces.extend([marker.clone(), marker.clone() + "\n", marker]);
            }
            let matchers: Vec<_> = all_rules().iter().map(|rules| (rules.clone(), b.matcher(rules))).collect();
            let mut random = Random::new(5);
            for _ in 0..cases(150) {
                let text: String = (0..1 + random.below(9)).map(|_| random.pick(&pieces).as_str()).collect();
                let ids = b.tokens.text(&text);
                let (read, made, lost) = read(&b, &declared(), &ids);
                // A declared name may begin a call, and so may its beginning where a text is one call or none.
                let named = announcing(format).iter().any(|letters| {
                    let written = text.replace(['⟦', '⟧'], "");
                    until_name(format, letters).is_none()
                        && written.split(letters).skip(1).any(|rest| ["Bas", "pin"].iter().any(|n| rest.starts_with(n)))
                });
                let trial = format.calls == CallPosition::InsteadOfText && text.contains("\"name\": \"Bash\"");
                let is_text = !named && !trial && made == 0 && lost.is_empty() && read == text.replace(['⟦', '⟧'], "");
                texts += usize::from(is_text);
                calls += made;
                for (rules, matcher) in &matchers {
                    let took = b.run(&mut matcher.clone(), &ids) == (ids.len(), true);
                    if is_text && !took {
                        failures.push(format!("{} {spelled} {:?}: refuses {text:?}", format.name, rules.choice));
                    }
                    // Where no tool may be called, none is looked for: what is lost of a call is text.
                    let none = rules.choice == ToolChoice::None;
                    if took && (!none && !lost.is_empty() || none && made > 0) {
                        failures
                            .push(format!("{} {spelled} {:?}: takes {text:?}, {lost:?}", format.name, rules.choice));
                    }
                }
            }
        }
    }
    assert!(failures.is_empty(), "{} failures\n{}", failures.len(), failures[..failures.len().min(30)].join("\n"));
    assert!(texts > 3000, "{texts} texts, {calls} calls");
}

/// A client's structural tag may name the markers, so they stay tokens there: no text spells a call with them.
#[test]
fn markers_that_stay_tokens_open_calls_only() {
    let tag = json!({"format": {"type": "const_string", "value": "yes"}});
    for name in ["qwen3_coder", "hermes", "glm45", "minimax_m2"] {
        let b = Bench::new(by_name(name).unwrap(), false);
        let rules = Rules {
            response: Some(Response::StructuralTag(tag.clone())),
            start: Region::Reasoning,
            reasons: true,
            ..declared()
        };
        let call = whole_call(&b, false);
        assert!(b.takes(&rules, &format!("So.{call}")), "{name}: {:?}", b.prefix(&rules, &format!("So.{call}")));
        for wrong in [call.replace("Bash", "Shell"), call.replace("command", "order")] {
            for text in
                [format!("So.{wrong}"), format!("So.{wrong}⟦</think>⟧yes"), format!("`So.{wrong}`⟦</think>⟧yes")]
            {
                assert!(!b.takes(&rules, &text), "{name}: {text:?}");
            }
        }
    }
}
