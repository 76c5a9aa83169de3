//! Formats from files, and the page generated from the table.

use super::{options, parse, pieces, short};
use crate::{Call, Format, Region, RenderOptions, Turn, markdown, render};

/// The example in docs/howto/add-a-format.md.
fn example() -> &'static str {
    let page = include_str!("../../../../docs/howto/add-a-format.md");
    page.split("```json\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap_or_default()
}

#[test]
fn a_format_from_a_file_renders_and_parses() {
    let format = Format::from_json(example()).unwrap_or_else(|e| panic!("{e}: {}", example()));
    let again = Format::from_json(example()).unwrap_or_else(|e| panic!("{e}"));
    assert!(std::ptr::eq(format, again));
    let call = Call { name: "search".into(), arguments: "{\"q\": 1}".into() };
    let turn = Turn { reasoning: Some("Hm.".into()), text: "Hi.".into(), calls: vec![call] };
    let rendered = render(format, &turn, RenderOptions::default());
    let got = short(&parse(format, options(Region::Text, &["search"]), &rendered));
    assert_eq!(got, "R(Hm.)T(Hi.)C(search|-|{\"q\": 1})");
    let mentioned = "It begins with <calls> or <call name= and a name.";
    let got = short(&parse(format, options(Region::Text, &["search"]), &pieces(mentioned)));
    assert_eq!(got, format!("T({mentioned})"));
}

#[test]
fn errors_name_the_field() {
    let cases = [
        ("{", "not a format"),
        (r#"{"name": "x", "markers": "loud"}"#, "unknown variant `loud`"),
        (r#"{"name": "x", "markers": "either", "colour": 1}"#, "unknown field `colour`"),
        (r#"{"name": "hermes", "markers": "either"}"#, "name: is the name of a built-in format"),
        (r#"{"name": "x", "markers": "either", "call": [{"tok": "<c>"}]}"#, "call: must have one"),
        (
            r#"{"name": "x", "markers": "either", "call": [{"tok": "<c>"}, {"args": "json"}]}"#,
            "call: must have \"name\"",
        ),
        (
            r#"{"name": "x", "markers": "either", "call": ["name", {"args": {"params": [{"tok": "<p>"}, "key", "value"]}}]}"#,
            "call: params must",
        ),
        (
            r#"{"name": "x", "markers": "either", "call": [{"args": {"object": {"members": []}}}]}"#,
            "call: the object needs",
        ),
        (r#"{"name": "x", "markers": "either", "begin": [{"tok": ""}]}"#, "begin: a marker must not be empty"),
        (r#"{"name": "x", "markers": "either", "reasoning": {"open": [], "close": []}}"#, "reasoning: open and close"),
    ];
    for (text, want) in cases {
        match Format::from_json(text) {
            Ok(_) => panic!("{text} was taken"),
            Err(error) => assert!(error.to_string().contains(want), "{text}: {error}"),
        }
    }
    assert!(Format::from_json(&" ".repeat(1 << 20)).is_err());
}

#[test]
fn the_page_is_generated_from_the_table() {
    let page = include_str!("../../../../docs/reference/formats.md");
    assert_eq!(page, markdown(), "docs/reference/formats.md is outdated; write it with `rein formats --markdown`");
}
