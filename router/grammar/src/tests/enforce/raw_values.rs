//! Values that formats write as raw text between markers.

use serde_json::{Value, json};

use super::{Bench, rules, tool};
use crate::format::marker;
use crate::{Call, Codec, Format, Markers, RenderOptions, Step, Turn, render};

/// The formats with raw values, and whether their markers are letters.
fn ways() -> impl Iterator<Item = (&'static Format, bool)> {
    let raw = crate::formats().iter().filter(|format| matches!(format.codec(), Codec::Params(_)));
    raw.flat_map(|format| [(format, true), (format, false)])
        .filter(|(format, spelled)| !spelled || format.markers != Markers::Special)
}

/// The steps of an argument.
fn argument(format: &Format) -> &'static [Step] {
    match format.codec() {
        Codec::Params(steps) => steps,
        _ => &[],
    }
}

fn same(a: &str, b: &str) -> bool {
    let value = |text: &str| serde_json::from_str::<Value>(text).ok();
    value(a) == value(b)
}

/// Whether calls with these arguments are accepted, and what is read.
fn tried(b: &Bench, schema: &Value, spelled: bool, arguments: &str) -> (bool, Vec<String>) {
    let rules = rules(vec![tool("write", schema.clone())]);
    let call = Call { name: "write".into(), arguments: arguments.to_owned() };
    let turn = Turn { calls: vec![call.clone(), call], ..Turn::default() };
    let ids = b.tokens.ids(&render(b.format, &turn, RenderOptions { spelled, ..RenderOptions::default() }));
    let read = b.parse(&rules, &ids).unwrap();
    (b.takes_ids(&rules, &ids), read.into_iter().map(|(_, arguments)| arguments).collect())
}

/// A raw value may hold its own end marker: it ends where a marker of the call follows.
#[test]
fn a_value_ends_where_a_marker_of_the_call_follows() {
    let schema = json!({"type": "object", "properties": {"path": {"type": "string"}, "content": {"type": "string"}, "n": {"type": "integer"}},
        "required": ["path", "content"]});
    for (format, spelled) in ways() {
        let b = Bench::new(format, spelled);
        let steps = argument(format);
        let close = steps.iter().skip_while(|step| **step != Step::Value).find_map(marker).expect("a marker");
        let open = steps.iter().find_map(marker).expect("a marker");
        for value in [
            format!("<x>\n  <hello></hello>\n{close}\n<x/>"),
            close.to_owned(),
            format!("{close}\n{close}"),
            format!("a{close}b\n{close}\n\n c"),
            format!("\n{close} {}", &open[..1]),
            "plain".to_owned(),
        ] {
            for (path, content) in [("p", value.as_str()), (value.as_str(), "c"), (value.as_str(), value.as_str())] {
                let arguments = json!({"path": path, "content": content, "n": 1}).to_string();
                let (taken, read) = tried(&b, &schema, spelled, &arguments);
                let whole = read.len() == 2 && read.iter().all(|read| same(read, &arguments));
                assert!(whole, "{} {spelled}: {arguments} is read as {read:?}", format.name);
                assert!(taken, "{} {spelled}: {arguments} is refused", format.name);
            }
        }
    }
}

/// A value in JSON may hold the letters of markers in its strings: it does not end there.
#[test]
fn strings_of_a_json_value_may_hold_markers() {
    let schema = json!({"type": "object", "properties": {"o": {"type": "object", "additionalProperties": true}, "l": {"type": "array"}},
        "required": ["o"]});
    for (format, spelled) in ways() {
        let b = Bench::new(format, spelled);
        let markers: Vec<&str> = format.call_steps().filter_map(marker).collect();
        let closers: String = markers.iter().rev().take(3).copied().collect();
        for text in [markers.concat(), closers.clone(), format!("\\\"{closers}"), markers.join(" ")] {
            let arguments = json!({"o": {"x": text, "y": [text]}, "l": [text, 1]}).to_string();
            let (taken, read) = tried(&b, &schema, spelled, &arguments);
            assert!(taken, "{} {spelled}: {arguments} is refused", format.name);
            let whole = read.len() == 2 && read.iter().all(|read| same(read, &arguments));
            assert!(whole, "{} {spelled}: {arguments} is read as {read:?}", format.name);
        }
    }
}

/// A string with constraints does not take the place of the other types of a union.
#[test]
fn all_types_of_a_union_are_accepted() {
    let bounded = |constraint: Value| {
        let mut string = json!({"type": "string"});
        string.as_object_mut().expect("a map").extend(constraint.as_object().expect("a map").clone());
        string
    };
    for (format, spelled) in ways() {
        let b = Bench::new(format, spelled);
        for (parameter, valid, invalid) in [
            (
                json!({"anyOf": [{"type": "integer"}, bounded(json!({"minLength": 2}))]}),
                vec![json!(7), json!(77), json!("ab")],
                vec![json!("a")],
            ),
            (
                json!({"type": ["string", "null"], "minLength": 5}),
                vec![json!(null), json!("abcde")],
                vec![json!("abcd")],
            ),
            (
                json!({"anyOf": [{"type": "boolean"}, bounded(json!({"pattern": "^x"})), {"type": "null"}]}),
                vec![json!(true), json!(null), json!("xy")],
                vec![json!("y")],
            ),
            (
                json!({"anyOf": [{"enum": ["auto", 3]}, bounded(json!({"maxLength": 2}))]}),
                vec![json!("auto"), json!(3), json!("ab")],
                vec![],
            ),
            (
                json!({"anyOf": [{"type": "number"}, bounded(json!({"format": "date"}))]}),
                vec![json!(1.5), json!("2026-11-28")],
                vec![json!("x")],
            ),
            // A list is not one lexeme: the string is left to validation.
            (
                json!({"anyOf": [{"type": "array", "items": {"type": "integer"}}, bounded(json!({"minLength": 3}))]}),
                vec![json!([1, 2]), json!("abc")],
                vec![],
            ),
        ] {
            let schema = json!({"type": "object", "properties": {"a": parameter, "z": {"type": "string"}}});
            for (values, accepted) in [(valid, true), (invalid, false)] {
                for value in values {
                    let arguments = json!({"a": value, "z": "q"}).to_string();
                    let (taken, read) = tried(&b, &schema, spelled, &arguments);
                    assert_eq!(taken, accepted, "{} {spelled}: {parameter}: {value}", format.name);
                    let whole = read.len() == 2 && read.iter().all(|read| same(read, &arguments));
                    assert!(whole || !accepted, "{} {spelled}: {value} is read as {read:?}", format.name);
                }
            }
        }
    }
}

/// A model that writes the tag of an optional argument without a value means that it is absent.
#[test]
fn an_empty_tag_of_an_optional_argument_is_no_argument() {
    let schema = json!({"type": "object", "properties": {"n": {"type": "integer"}, "s": {"type": "string"}, "list": {"type": "array"},
        "must": {"type": "boolean"}}, "required": ["must"]});
    let rules = rules(vec![tool("write", schema)]);
    for (format, spelled) in ways() {
        let b = Bench::new(format, spelled);
        for (arguments, read_as) in [
            (r#"{"n": "", "must": true}"#, Some(r#"{"must": true}"#)),
            (r#"{"must": true, "n": ""}"#, Some(r#"{"must": true}"#)),
            (r#"{"list": "", "n": "", "must": true, "s": "x"}"#, Some(r#"{"must": true, "s": "x"}"#)),
            (r#"{"s": "", "must": true}"#, Some(r#"{"s": "", "must": true}"#)),
            (r#"{"must": ""}"#, None),
        ] {
            let call = Call { name: "write".into(), arguments: arguments.to_owned() };
            let turn = Turn { calls: vec![call], ..Turn::default() };
            let mut pieces = render(format, &turn, RenderOptions { spelled, ..RenderOptions::default() });
            // The renderer calls the empty value a string.
            if argument(format).contains(&Step::Type) {
                continue;
            }
            if argument(format).contains(&Step::IsString) {
                for piece in &mut pieces {
                    if let crate::OwnedPiece::Bytes(text) = piece
                        && !arguments.contains("\"s\"")
                    {
                        *text = String::from_utf8(text.clone())
                            .expect("utf-8")
                            .replace("string=\"true", "string=\"false")
                            .into();
                    }
                }
                if arguments.contains("\"s\"") {
                    continue;
                }
            }
            let ids = b.tokens.ids(&pieces);
            assert_eq!(b.takes_ids(&rules, &ids), read_as.is_some(), "{} {spelled}: {arguments}", format.name);
            let read = b.parse(&rules, &ids).unwrap();
            if let Some(read_as) = read_as {
                assert!(
                    read.len() == 1 && same(&read[0].1, read_as),
                    "{} {spelled}: {arguments}: {read:?}",
                    format.name
                );
            }
        }
    }
}

/// A name that the format cannot write is refused by its name; every other one is read back.
#[test]
fn names_of_arguments_are_read_back_or_refused() {
    let mut failures = Vec::new();
    for (format, spelled) in ways() {
        let b = Bench::new(format, spelled);
        for name in [
            "a>b",
            "a\"b",
            "a'b",
            "a b",
            " a",
            "a ",
            "a\nb",
            "a<b",
            "a=b",
            "</arg_key>",
            "é",
            "a/b",
            "a:b",
            "a\\b",
            "a\">b",
            "a\" b",
            "'a'",
            "\"a\"",
            "a>",
            ">",
            "a\tb",
            "<a>",
            "a string",
            "$ref",
            "a.b",
            "a[0]",
            "{a}",
            "1",
            "true",
            "-",
            "parameter",
            "a,b",
            "name=\"x\"",
        ] {
            let schema = json!({"type": "object", "properties": {name: {"type": "string"}, "z": {"type": "integer"}}, "required": [name, "z"]});
            let arguments = json!({name: "v", "z": 1}).to_string();
            match b.grammars.compile(&rules(vec![tool("write", schema.clone())])) {
                Err(crate::RuleError::Unenforceable { path, .. }) if path == format!("/properties/{name}") => {}
                Err(e) => failures.push(format!("{} {spelled} {name:?}: {e}", format.name)),
                Ok(_) => {
                    let (taken, read) = tried(&b, &schema, spelled, &arguments);
                    if !taken || read.len() != 2 || !read.iter().all(|read| same(read, &arguments)) {
                        failures.push(format!("{} {spelled} {name:?}: {taken} {read:?}", format.name));
                    }
                }
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// A pattern of names constrains the declared properties that it matches, as in JSON.
#[test]
fn patterns_of_names_constrain_declared_arguments() {
    let of = |pattern: &str, type_name: &str| {
        json!({"type": "object", "properties": {"a1": {"type": "integer"}}, "required": ["a1"],
            "patternProperties": {pattern: {"type": type_name}}})
    };
    for format in crate::formats().iter().filter(|format| format.has_calls()) {
        let b = Bench::new(format, false);
        let compile = |schema: Value| b.grammars.compile(&rules(vec![tool("write", schema)]));
        assert!(compile(of("^b", "string")).is_ok() && compile(of("^a", "number")).is_ok(), "{}", format.name);
        // No value is both.
        assert!(compile(of("^a", "string")).is_err(), "{}", format.name);
    }
}
