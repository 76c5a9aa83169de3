//! Deviations that models write although no template has them. In these outputs `«x»` is the special token `x`;
//! everything else is text.

use super::{Random, cuts, options, parse, short};
use crate::{Format, OwnedPiece, PLAIN, Parser, ParserOptions, Region, Tool, by_name};

const TOOLS: &[&str] = &["search", "mcp.x-y", "f"];

fn format(name: &str) -> &'static Format {
    by_name(name).unwrap_or(PLAIN)
}

/// `«sb»` and similar are short for Kimi's markers.
fn pieces(output: &str) -> Vec<OwnedPiece> {
    let whole = |special: String| match special.as_str() {
        "sb" => "<|tool_calls_section_begin|>".to_owned(),
        "se" => "<|tool_calls_section_end|>".to_owned(),
        "cb" => "<|tool_call_begin|>".to_owned(),
        "ab" => "<|tool_call_argument_begin|>".to_owned(),
        "ce" => "<|tool_call_end|>".to_owned(),
        _ => special,
    };
    let piece = |piece| match piece {
        OwnedPiece::Special(special) => OwnedPiece::Special(whole(special)),
        bytes => bytes,
    };
    super::pieces(output).into_iter().map(piece).collect()
}

fn check(format: &'static Format, start: Region, parse_tools: bool, cases: &[(&str, &str)]) {
    for (output, want) in cases {
        let pieces = pieces(output);
        let mut random = Random::new(7);
        for cut in cuts(&pieces, &mut random) {
            let options = ParserOptions { parse_tools, ..options(start, TOOLS) };
            assert_eq!(short(&parse(format, options, &cut)), *want, "{output:?} cut as {cut:?}");
        }
    }
}

#[test]
fn deviations_of_kimi_are_read() {
    let cases = [
        ("Hi.«sb»«cb»functions.search:0«ab»{\"q\": 1}«ce»«se»", "T(Hi.)C(search|functions.search:0|{\"q\": 1})"),
        // Ids: no prefix, blanks, no index, dots and dashes.
        ("«sb»«cb»search:2«ab»{}«ce»«se»", "C(search|functions.search:2|{})"),
        ("«sb»\n«cb»\n functions.search:2 \n«ab» {} «ce»\n«se»", "C(search|functions.search:2|{})"),
        ("«sb»«cb»functions.mcp.x-y:0«ab»{}«ce»«se»", "C(mcp.x-y|functions.mcp.x-y:0|{})"),
        ("«sb»«cb»search«ab»{}«ce»«se»", "C(search|-|{})"),
        ("«sb»«cb»functions.nobody:0«ab»{}«ce»«se»", "C(nobody|functions.nobody:0|{})"),
        // No section, no argument marker, no end markers.
        (
            "A «cb»functions.f:0«ab»{}«ce»«cb»functions.f:1«ab»{}«ce» B",
            "T(A )C(f|functions.f:0|{})C(f|functions.f:1|{})T( B)",
        ),
        ("«sb»«cb»functions.f:0{\"a\": 1}«ce»«se»", "C(f|functions.f:0|{\"a\": 1})"),
        ("«sb»«cb»functions.f:0{\"a\": «ce»«se»", "C?(f|functions.f:0|{\"a\": )"),
        ("«sb»«cb»functions.f:0«ab»{}«cb»functions.f:1«ab»{}", "C(f|functions.f:0|{})C(f|functions.f:1|{})"),
        ("«sb»«cb»functions.f:0«ab»{}«se»Done.", "C(f|functions.f:0|{})T(Done.)"),
        // No arguments.
        ("«sb»«cb»functions.f:0«ab»«ce»«se»", "C(f|functions.f:0|{})"),
        ("«sb»«cb»functions.f:0«ab»null«ce»«se»", "C(f|functions.f:0|{})"),
        // Arguments as a string, raw newlines in strings.
        ("«sb»«cb»functions.f:0«ab»\"{\\\"a\\\": 1}\"«ce»«se»", "C(f|functions.f:0|{\"a\": 1})"),
        ("«sb»«cb»functions.f:0«ab»{\"a\": \"x\ny\"}«ce»«se»", "C(f|functions.f:0|{\"a\": \"x\\ny\"})"),
        // The marker before the header is missing.
        ("«sb»search:2«ab»{}«ce»«se»", "C(search|functions.search:2|{})"),
        // Text inside the section is reported, text after it is text.
        (
            "«sb»Let me see«cb»functions.f:0«ab»{}«ce» and «se» after",
            "M(Let me see)C(f|functions.f:0|{})M( and )T( after)",
        ),
        ("«sb»«cb»I will search«ab»{\"a\": 1}«ce»«se»", "M(I will search{\"a\": 1})"),
        ("«sb»«cb»functions.f:0«ab»[1]«ce»«cb»functions.f:1«ab»{}«ce»«se»", "M(functions.f:0[1])C(f|functions.f:1|{})"),
        ("«sb»«cb»functions.f:0«ab»{\"a\": 1}}«ce»«se»", "C(f|functions.f:0|{\"a\": 1})M(})"),
        ("«sb»«cb»functions.f:0«ab»{\"a\": oops}«ce»«se»", "C?(f|functions.f:0|{\"a\": )M(oops})"),
        (
            "«sb»«cb»functions.f:0«ab»{\"a\": 1«ce»«cb»functions.f:1«ab»{}«ce»«se»",
            "C?(f|functions.f:0|{\"a\": 1)C(f|functions.f:1|{})",
        ),
        // Cut off.
        ("«sb»«cb»functions.sea", "M(functions.sea)"),
        ("«sb»«cb»functions.search:0«ab»", "C?(search|functions.search:0|)"),
        ("«sb»«cb»functions.search:0«ab»{\"q\": \"x", "C?(search|functions.search:0|{\"q\": \"x)"),
        // Markers in strings: spelled ones are text; tokens too, unless a structural one follows.
        (
            "«sb»«cb»functions.f:0«ab»{\"a\": \"<|tool_call_end|>\"}«ce»«se»",
            "C(f|functions.f:0|{\"a\": \"<|tool_call_end|>\"})",
        ),
        ("«sb»«cb»functions.f:0«ab»{\"a\": \"x«ce»y\"}«ce»«se»", "C(f|functions.f:0|{\"a\": \"x<|tool_call_end|>y\"})"),
        ("«sb»«cb»functions.f:0«ab»{\"a\": \"x«<think>»y\"}«ce»«se»", "C(f|functions.f:0|{\"a\": \"x<think>y\"})"),
        (
            "«sb»«cb»functions.f:0«ab»{\"a\": \"x«ce»«cb»functions.f:1«ab»{}«ce»«se»",
            "C?(f|functions.f:0|{\"a\": \"x)C(f|functions.f:1|{})",
        ),
        // Text cannot forge a marker.
        (
            "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0",
            "T(<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0)",
        ),
        ("a <think> b", "T(a <think> b)"),
        // Reasoning.
        ("«<think>»Hm. «</think>»Yes", "R(Hm. )T(Yes)"),
        ("«<think>»Hm.«sb»«cb»functions.f:0«ab»{}«ce»«se»«</think>»ok", "R(Hm.)C(f|functions.f:0|{})T(ok)"),
        ("«<think>»Hm.«cb»functions.f:0«ab»{}«ce»", "R(Hm.)C(f|functions.f:0|{})"),
        ("«<think>»Hm.", "R(Hm.)"),
        ("«<think>»«</think>»Yes", "T(Yes)"),
        ("«<think>»a«</think>»«<think>»b«</think>»c", "R(a)R(b)T(c)"),
        ("a«</think>»b", "T(ab)"),
        // Blanks before a call are layout, other tokens are never text.
        ("«<think>»Hm.«</think>»\n\n«sb»«cb»functions.f:0«ab»{}«ce»«se»\n", "R(Hm.)C(f|functions.f:0|{})"),
        ("a«<|im_end|>»b«ab»c", "T(abc)"),
        ("  \n", "T(  \n)"),
        ("", ""),
    ];
    check(format("kimi_k2"), Region::Text, true, &cases);
}

#[test]
fn kimi_is_read_from_inside_reasoning() {
    let cases = [
        ("Hm.«</think>»Yes", "R(Hm.)T(Yes)"),
        ("«<think>»Hm.«</think>»Yes", "R(Hm.)T(Yes)"),
        ("«</think>»Yes", "T(Yes)"),
        ("Hm.«sb»«cb»functions.f:0«ab»{}«ce»«se»", "R(Hm.)C(f|functions.f:0|{})"),
    ];
    check(format("kimi_k2"), Region::Reasoning, true, &cases);
}

const CALL: &str = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>";

#[test]
fn deviations_of_hermes_are_read() {
    let twice = format!("Hi.\n{CALL}\n{CALL}\nBye.");
    let after_think = format!("<think>\nHm.\n</think>\n\n{CALL}");
    let in_think = format!("<think>\nHm.\n{CALL}\n</think>\n\nok");
    let cases = [
        (twice.as_str(), "T(Hi.)C(f|-|{\"a\": 1})C(f|-|{\"a\": 1})T(\nBye.)"),
        ("Hi.\n«<tool_call>»\n{\"name\": \"f\", \"arguments\": {}}\n«</tool_call>»", "T(Hi.)C(f|-|{})"),
        (
            "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call><tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>",
            "C(f|-|{})C(f|-|{})",
        ),
        // The object: any order, other keys, strings, null.
        ("<tool_call>{\"arguments\": {\"a\": \"x\"}, \"name\": \"f\"}</tool_call>", "C(f|-|{\"a\": \"x\"})"),
        ("<tool_call>{\"name\": \"f\", \"parameters\": {\"a\": 1}}</tool_call>", "C(f|-|{\"a\": 1})"),
        (
            "<tool_call>{\"name\": \"f\", \"arguments\": \"{\\\"a\\\": \\\"\\u00e9\\\"}\"}</tool_call>",
            "C(f|-|{\"a\": \"é\"})",
        ),
        ("<tool_call>{\"name\": \"f\", \"arguments\": \"\"}</tool_call>", "C(f|-|{})"),
        ("<tool_call>{\"name\": \"f\", \"arguments\": null}</tool_call>", "C(f|-|{})"),
        ("<tool_call>{\"name\": \"f\"}</tool_call>", "C(f|-|{})"),
        ("<tool_call>{\"id\": 7, \"type\": \"function\", \"name\": \"f\", \"arguments\": {}}</tool_call>", "C(f|-|{})"),
        (
            "<tool_call>{\"name\": \"f\", \"arguments\": {}, \"why\": [1, {\"b\": 2}] , \"n\":12}</tool_call>",
            "C(f|-|{})M(\"why\": [1, {\"b\": 2}], \"n\":12)",
        ),
        ("<tool_call>{\"n\\u0061me\" : \"\\u0066\", \"arguments\" : {} }</tool_call>", "C(f|-|{})"),
        // Nothing inside a string ends a call.
        (
            "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"</tool_call>}\\\"<tool_call>\"}}</tool_call>",
            "C(f|-|{\"a\": \"</tool_call>}\\\"<tool_call>\"})",
        ),
        (
            "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"«</tool_call>»«<|x\"|>»\"}}</tool_call>",
            "C(f|-|{\"a\": \"</tool_call><|x\\\"|>\"})",
        ),
        // One brace too few or too many; no end marker, or one too many.
        ("<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}\n</tool_call>ok", "C(f|-|{\"a\": 1})T(ok)"),
        ("<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}}}\n</tool_call>", "C(f|-|{\"a\": 1})M(}\n)"),
        (
            "<tool_call>{\"name\": \"f\", \"arguments\": {}}\n<tool_call>{\"name\": \"f\", \"arguments\": {}}",
            "C(f|-|{})C(f|-|{})",
        ),
        ("<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>\n</tool_call>", "C(f|-|{})"),
        // Several calls between one pair of markers.
        (
            "<tool_call>{\"name\": \"f\", \"arguments\": {}}, {\"name\": \"search\", \"arguments\": {}}\n{\"name\": \"f\"}</tool_call>ok",
            "C(f|-|{})C(search|-|{})C(f|-|{})T(ok)",
        ),
        // Not a call.
        ("<tool_call>{\"x\": bad}\n</tool_call>ok", "M({\"x\": bad}\n)T(ok)"),
        ("<tool_call>{\"name\": \"f\", \"arguments\": [1]}</tool_call>", "M({\"name\": \"f\", \"arguments\": [1]})"),
        (
            "<tool_call>{\"name\": \"f\", \"arguments\": \"x\"}</tool_call>",
            "M({\"name\": \"f\", \"arguments\": \"x\"})",
        ),
        ("<tool_call>{\"arguments\": {\"a\": 1}}</tool_call>", "M({\"arguments\": {\"a\": 1}})"),
        ("<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": x}}</tool_call>", "C?(f|-|{\"a\": )M(x}})"),
        // The markers are only mentioned.
        ("<tool_call>\n{bad}\n</tool_call>ok", "T(<tool_call>\n{bad}\n</tool_call>ok)"),
        ("<tool_call>{\"name\": NAME}</tool_call>", "T(<tool_call>{\"name\": NAME}</tool_call>)"),
        ("<tool_call><function=f>\n</function></tool_call>", "T(<tool_call><function=f>\n</function></tool_call>)"),
        ("<tool_call></tool_call>", "T(<tool_call></tool_call>)"),
        (
            "<tool_call>\n```json\n{\"name\": \"f\", \"arguments\": {}}\n```\n</tool_call>",
            "T(<tool_call>\n```json\n{\"name\": \"f\", \"arguments\": {}}\n```\n</tool_call>)",
        ),
        // JSON in another shape with only one possible meaning.
        (
            "<tool_call>[{\"name\": \"f\", \"arguments\": {}}, {\"name\": \"search\", \"parameters\": {}}]</tool_call>",
            "C(f|-|{})C(search|-|{})",
        ),
        (
            "<tool_call>{\"type\": \"function\", \"function\": {\"name\": \"f\", \"arguments\": \"{}\"}}</tool_call>",
            "C(f|-|{})",
        ),
        ("<tool_call>{'name': 'f', 'arguments': {'a': True}}</tool_call>", "C(f|-|{\"a\":true})"),
        ("<tool_call>[{\"name\": \"nobody\"}]</tool_call>", "M([{\"name\": \"nobody\"}])"),
        ("<tool_call>[{\"name\": \"f\", \"why\": 1}]</tool_call>", "M([{\"name\": \"f\", \"why\": 1}])"),
        (
            "<tool_call>{'name': 'f', 'arguments': {'a': 12345678901234567890}}</tool_call>",
            "M({'name': 'f', 'arguments': {'a': 12345678901234567890}})",
        ),
        // Cut off.
        ("<tool_call>{\"name\": \"f", "M({\"name\": \"f)"),
        ("<tool_call>{\"name\": \"f\", \"argum", "C?(f|-|)"),
        ("<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"x", "C?(f|-|{\"a\": \"x)"),
        ("<tool_call>{\"name\": \"f\", \"arguments\": {}", "C?(f|-|{})"),
        ("<tool_call>{\"name\": \"f\", \"arguments\": {}}", "C(f|-|{})"),
        ("<tool_call>{\"arguments\": {\"a\": 1}, \"name\": \"f\"", "C?(f|-|{\"a\": 1})"),
        ("<tool_call>{\"arguments\": {\"a\": 1}, \"name", "M({\"arguments\": {\"a\": 1}, \"name)"),
        // Text that only begins like a marker.
        ("a < b <tool <tool_ca", "T(a < b <tool <tool_ca)"),
        ("Hi.\n\n<tool_call>{\"name\": \"f\"}</tool_call>", "T(Hi.\n)C(f|-|{})"),
        ("Hi.\n\n", "T(Hi.\n\n)"),
        ("\n\n<tool_call>{\"name\": \"f\"}</tool_call>", "C(f|-|{})"),
        // Reasoning, spelled and as tokens.
        ("<think>\nHm.\n</think>\n\nYes", "R(Hm.)T(Yes)"),
        ("\n«<think>»\nHm.\n\n«</think>»\n\nYes\n", "R(Hm.)T(Yes\n)"),
        ("<think>\n\n</think>\n\nYes", "T(Yes)"),
        (after_think.as_str(), "R(Hm.)C(f|-|{\"a\": 1})"),
        (in_think.as_str(), "R(Hm.)C(f|-|{\"a\": 1})T(ok)"),
        ("<think>use <tool_call> then {\n</think>Yes", "R(use <tool_call> then {)T(Yes)"),
        ("<think>Hm.", "R(Hm.)"),
        ("so <think>x</think>", "T(so <think>x</think>)"),
        ("so «<think>»x«</think>»\ny", "T(so )R(x)T(y)"),
    ];
    check(format("hermes"), Region::Text, true, &cases);
    let inside = [
        ("\nHm.\n</think>\n\nYes", "R(Hm.)T(Yes)"),
        ("<think>\nHm.\n</think>Yes", "R(Hm.)T(Yes)"),
        ("Hm </thin", "R(Hm </thin)"),
        ("Hm.\n<tool_call>\n", "R(Hm.\n<tool_call>)"),
    ];
    check(format("hermes"), Region::Reasoning, true, &inside);
}

#[test]
fn without_tools_markers_are_text_or_dropped() {
    let kimi = [
        ("Hi.«sb»«cb»functions.f:0«ab»{}«ce»«se»", "T(Hi.functions.f:0{})"),
        ("«<think>»Hm.«</think>»Yes", "R(Hm.)T(Yes)"),
    ];
    check(format("kimi_k2"), Region::Text, false, &kimi);
    let hermes = [
        ("see\n<tool_call>{}</tool_call>", "T(see\n<tool_call>{}</tool_call>)"),
        ("see\n«<tool_call>»{}", "T(see\n<tool_call>{})"),
        ("<think>\nHm.\n<tool_call>{\n</think>\n\nYes", "R(Hm.\n<tool_call>{)T(Yes)"),
    ];
    check(format("hermes"), Region::Text, false, &hermes);
    let plain = [
        ("<think>\nHm.\n</think>\n\nYes <tool_call>", "R(Hm.)T(Yes <tool_call>)"),
        ("«<|im_start|>»Yes\n", "T(Yes\n)"),
    ];
    check(PLAIN, Region::Text, true, &plain);
}

#[test]
fn broken_utf8_becomes_replacement_characters() {
    for bytes in [&b"a\xffb"[..], b"a\xf0\x9f\xa6b", b"a\xe6\x97", b"\xc3\xa9", b"\x80\x80", b"a\xe0\x80b"] {
        let want = String::from_utf8_lossy(bytes).into_owned();
        for cut in cuts(&[OwnedPiece::Bytes(bytes.to_vec())], &mut Random::new(3)) {
            let got = short(&parse(format("hermes"), options(Region::Text, TOOLS), &cut));
            assert_eq!(got, format!("T({want})"), "{bytes:?}");
        }
    }
    // A special token ends an incomplete character.
    let pieces = [
        OwnedPiece::Bytes(b"a\xe6".to_vec()),
        OwnedPiece::Special("</think>".into()),
        OwnedPiece::Bytes(b"\x97b".to_vec()),
    ];
    assert_eq!(short(&parse(format("kimi_k2"), options(Region::Text, TOOLS), &pieces)), "T(a\u{FFFD}\u{FFFD}b)");
}

/// Text is held back only while it could become a marker.
#[test]
fn text_is_not_held_longer_than_needed() {
    let tools = vec![Tool { name: "f".into(), parameters: None, ..Tool::default() }].into();
    let mut parser = Parser::new(format("hermes"), ParserOptions { start: Region::Text, tools, parse_tools: true });
    let mut shown = Vec::new();
    for c in ["Hi", "<", "tool", " ", "\n", "x", "<tool_cal", "m"] {
        let mut events = Vec::new();
        parser.push(crate::Piece::Bytes(c.as_bytes()), &mut events);
        shown.push(short(&events));
    }
    assert_eq!(shown, ["T(Hi)", "", "", "T(<tool )", "", "T(\nx)", "", "T(<tool_calm)"]);
}

#[test]
fn transcripts_are_split_at_markers() {
    let kimi = format("kimi_k2");
    let text = "<think>a</think>b <<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>é";
    let pieces = kimi.split(text);
    assert_eq!(crate::render_text(&pieces), text);
    let got = short(&parse(kimi, options(Region::Text, TOOLS), &pieces));
    assert_eq!(got, "R(a)T(b <)C(f|functions.f:0|{})T(é)");
}
