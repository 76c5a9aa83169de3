//! A schema's constraints on a string apply to its characters, however they are spelled.

use serde_json::{Value, json};

use super::Bench;
use crate::{Response, Rules};

/// Classes around the characters that JSON escapes, and patterns with anchors and alternatives in every place.
const PATTERNS: &[&str] = &[
    r#"^[^"]$"#,
    r#"^[^\\]$"#,
    r#"^[^"\\]$"#,
    r#"^["]$"#,
    r"^[\\]$",
    r"^[^/]$",
    r"^\/$",
    r"^[^\n]$",
    r"^[\n]$",
    r"^.$",
    r"^[\s\S]$",
    r"^\s$",
    r"^\S$",
    r"^[^\s]$",
    r"^[^\S]$",
    r"^[\S ]$",
    r"^\w$",
    r"^\W$",
    r"^\d$",
    r"^\D$",
    r"^[^\w]$",
    r"^[a-z]$",
    r"^[^a-z]$",
    r"^[ -~]$",
    r"^[^ -~]$",
    r"^[\x00-\x1f]$",
    r"^[^\x00-\x1f]$",
    r"^[[&&]]$",
    r"^[+--z]$",
    r"^[\]\[]$",
    r"^[!-/:-@]$",
    r"^\x22$",
    r"^\u0041$",
    r"^\t$",
    r"a",
    r#"""#,
    r"^(a|b)$",
    r"^a|b$",
    r"^(^a$|b)$",
    r"(^|x)a",
    r"(?i)^k$",
    r"^$|^a$",
    r"^a?$",
];
/// Two characters in JSON, and one beyond the basic plane.
const BEYOND_ASCII: &[char] =
    &['\u{7f}', '\u{85}', 'é', '\u{2028}', '\u{feff}', '\u{d7ff}', '\u{e000}', '😀', '\u{10ffff}'];

/// A character's spellings in JSON.
fn spellings(c: char) -> Vec<String> {
    let mut units = [0; 2];
    let units = c.encode_utf16(&mut units);
    let hex = |upper: bool| -> String {
        let unit = |u: &u16| if upper { format!("\\u{u:04X}") } else { format!("\\u{u:04x}") };
        units.iter().map(unit).collect()
    };
    let mut all = vec![hex(false), hex(true)];
    if c >= ' ' && c != '"' && c != '\\' {
        all.push(c.to_string());
    }
    let letter = match c {
        '"' | '\\' | '/' => Some(c),
        '\u{8}' => Some('b'),
        '\u{c}' => Some('f'),
        '\n' => Some('n'),
        '\r' => Some('r'),
        '\t' => Some('t'),
        _ => None,
    };
    all.extend(letter.map(|letter| format!("\\{letter}")));
    all
}

fn of(schema: Value) -> Rules {
    Rules { response: Some(Response::JsonSchema { schema, strict: true }), ..Rules::default() }
}

/// Blanks on which engines differ: the grammar matches a pattern only where all of them do.
fn readers_differ(pattern: &str, c: char) -> bool {
    let blank = ('\u{1c}'..='\u{1f}').contains(&c) || matches!(c, '\u{85}' | '\u{feff}');
    blank && (pattern.contains(r"\s") || pattern.contains(r"\S")) && !pattern.contains(r"\s\S")
}

#[test]
fn classes_apply_to_characters_in_every_spelling() {
    let b = Bench::new(crate::PLAIN, false);
    for pattern in PATTERNS {
        let schema = json!({"type": "string", "pattern": pattern});
        let validator = crate::SchemaValidator::new(&schema).expect("a schema");
        let compiled = b.compile(&of(schema));
        let start = compiled.matcher().expect("a matcher");
        for c in (0..128).filter_map(char::from_u32).chain(BEYOND_ASCII.iter().copied()) {
            let valid = validator.violations(&c.to_string().into(), 1).is_empty();
            for spelling in spellings(c) {
                let text = format!("\"{spelling}\"");
                assert_eq!(serde_json::from_str::<String>(&text).expect("JSON"), c.to_string());
                let ids = b.tokens.encode(text.as_bytes());
                let taken = b.run(&mut start.clone(), &ids) == (ids.len(), true);
                if readers_differ(pattern, c) {
                    assert!(!taken, "{pattern}: {text}");
                } else {
                    assert_eq!(taken, valid, "{pattern}: {text}");
                }
            }
        }
    }
}

/// Everything that a schema requires of text, for texts of several characters in all spellings.
#[test]
fn lengths_formats_and_constants_apply_to_decoded_text() {
    let b = Bench::new(crate::PLAIN, false);
    let texts =
        ["", "a", "\"", "\\", "a/b", "ab", "é", "😀", "😀\"", "\n\t", "2024-02-29", "2023-02-29", "a\\\"b", "\\\\"];
    for schema in [
        json!({"type": "string", "minLength": 1, "maxLength": 1}),
        json!({"type": "string", "minLength": 2}),
        json!({"type": "string", "maxLength": 2, "pattern": "^[^\\\\]*$"}),
        json!({"type": "string", "pattern": "^[^/]+$", "not": {"enum": ["a", "\""]}}),
        json!({"type": "string", "not": {"enum": ["a", "\"", "a/b", "😀", "\\"]}}),
        json!({"type": "string", "format": "date"}),
        json!({"type": "string", "pattern": "^([^\"\\\\]|\\\\.)*$"}),
        json!({"type": "string", "allOf": [{"pattern": "\""}, {"pattern": "\\\\"}]}),
    ] {
        let validator = jsonschema::options().should_validate_formats(true).build(&schema).expect("a schema");
        let compiled = b.compile(&of(schema.clone()));
        for text in texts {
            let each: Vec<Vec<String>> = text.chars().map(spellings).collect();
            for pick in 0..4 {
                let inner: String = each.iter().map(|all| all[pick % all.len()].as_str()).collect();
                let ids = b.tokens.encode(format!("\"{inner}\"").as_bytes());
                let taken = b.run(&mut compiled.matcher().expect("a matcher"), &ids) == (ids.len(), true);
                assert_eq!(taken, validator.is_valid(&text.into()), "{schema}: {inner:?}");
            }
        }
    }
}

/// Long but ordinary addresses are accepted; the grammar rejects what the validator rejects.
#[test]
fn formats_accept_ordinary_values() {
    let b = Bench::new(crate::PLAIN, false);
    let parts = |part: &str, count: usize| vec![part; count].join(".");
    let mail = |local: String| format!("{local}@mail.example.com");
    for (format, values) in [
        (
            "email",
            vec![
                "a@b".to_owned(),
                mail("customer-support-team-europe-west+billing".into()),
                mail("first.middle.last.name.of.them".into()),
                mail("x".repeat(64)),
                mail("x".repeat(65)),
                mail("a..b".into()),
                "a@eu-west-1.mail.internal.corp.example.co.uk".into(),
            ],
        ),
        (
            "hostname",
            vec![
                "localhost".to_owned(),
                "ip-10-0-0-1.eu-central-1.compute.internal".into(),
                parts("node-0-pool", 10),
                parts("a", 127),
                parts(&"a-".repeat(20), 2),
                parts(&"a-b".repeat(12), 4),
                parts(&"x".repeat(70), 1),
            ],
        ),
    ] {
        let schema = json!({"type": "string", "format": format});
        let validator = jsonschema::options().should_validate_formats(true).build(&schema).expect("a schema");
        let compiled = b.compile(&of(schema));
        for value in values {
            let ids = b.tokens.encode(format!("\"{value}\"").as_bytes());
            let taken = b.run(&mut compiled.matcher().expect("a matcher"), &ids) == (ids.len(), true);
            // The grammar leaves out names with this many labels.
            let expected = validator.is_valid(&value.as_str().into()) && value.split('.').count() < 100;
            assert_eq!(taken, expected, "{format}: {value}");
        }
    }
}

#[test]
fn keys_are_validated_by_their_decoded_text() {
    let b = Bench::new(crate::PLAIN, false);
    let keys = ["a", "\"", "\\", "a/b", "n1", "n\"", "é", ""];
    for schema in [
        json!({"type": "object", "propertyNames": {"pattern": "^[^\"]+$"}}),
        json!({"type": "object", "propertyNames": {"maxLength": 1}}),
        json!({"type": "object", "propertyNames": {"not": {"const": "a"}}}),
        json!({"type": "object", "patternProperties": {"^n[^\"]": {"type": "integer"}}, "additionalProperties": {"type": "boolean"}}),
        json!({"type": "object", "patternProperties": {"[\"\\\\]": {"type": "integer"}}, "additionalProperties": {"type": "boolean"}}),
        json!({"type": "object", "properties": {"a": {"type": "integer"}, "\"": {"type": "boolean"}}, "additionalProperties": {"type": "null"}}),
    ] {
        let validator = crate::SchemaValidator::new(&schema).expect("a schema");
        let compiled = b.compile(&of(schema.clone()));
        for key in keys {
            let each: Vec<Vec<String>> = key.chars().map(spellings).collect();
            for (value, shown) in [(json!(1), "1"), (json!(true), "true"), (json!(null), "null")] {
                let mut plain = false;
                let valid = validator.violations(&json!({key: value}), 1).is_empty();
                for pick in 0..4 {
                    let inner: String = each.iter().map(|all| all[pick % all.len()].as_str()).collect();
                    let ids = b.tokens.encode(format!("{{\"{inner}\": {shown}}}").as_bytes());
                    let taken = b.run(&mut compiled.matcher().expect("a matcher"), &ids) == (ids.len(), true);
                    assert!(!taken || valid, "{schema}: {inner:?}: {shown}");
                    plain |= taken;
                }
                assert_eq!(plain, valid, "{schema}: {key:?}: {shown}");
            }
        }
    }
}

/// Without escapes, each character stands for itself, including a backslash.
#[test]
fn raw_values_are_accepted_unescaped() {
    let takes = |name: &str, schema: Value, value: &str| {
        let b = Bench::new(crate::by_name(name).expect("a format"), false);
        let rules = super::rules(vec![super::tool("f", json!({"type": "object", "properties": {"a": schema}}))]);
        let arguments = json!({"a": value}).to_string();
        let turn = crate::Turn { calls: vec![crate::Call { name: "f".into(), arguments }], ..crate::Turn::default() };
        let ids = b.tokens.ids(&crate::render(b.format, &turn, crate::RenderOptions::default()));
        b.takes_ids(&rules, &ids)
    };
    for name in ["qwen3_coder", "glm45", "minimax_m2", "deepseek_v3_2"] {
        let pattern = |p: &str| json!({"type": "string", "pattern": p});
        for value in ["x\"y", "x\\y", "x\\\"y", "xy", "x/y", "é"] {
            for (p, valid) in [
                ("^[^\"]+$", !value.contains('"')),
                ("^[^\\\\]+$", !value.contains('\\')),
                ("[\"/]", value.contains(['"', '/'])),
            ] {
                assert_eq!(takes(name, pattern(p), value), valid, "{name}: {p} {value:?}");
            }
            let short = json!({"type": "string", "maxLength": 2});
            assert_eq!(takes(name, short, value), value.chars().count() <= 2, "{name}: {value:?}");
        }
    }
}
