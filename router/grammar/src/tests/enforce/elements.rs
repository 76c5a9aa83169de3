//! Arguments as nested elements: MiniMax-M3, and Command 5, whose tags name types.

use serde_json::{Value, json};

use super::{Bench, rules, tool};
use crate::validate::Validators;
use crate::{Call, RenderOptions, Turn, render};

#[derive(serde::Deserialize)]
struct Case {
    case: String,
    schema: Value,
    valid: Vec<Value>,
    invalid: Vec<Value>,
}

fn bench(format: &str) -> Bench {
    Bench::new(crate::by_name(format).expect("the format"), false)
}

fn benches() -> [Bench; 2] {
    ["minimax_m3", "command_5"].map(bench)
}

/// Whether a call with these arguments is accepted, and what is read.
fn tried(b: &Bench, schema: &Value, arguments: &Value) -> (bool, String) {
    let rules = rules(vec![tool("write", schema.clone())]);
    let call = Call { name: "write".into(), arguments: arguments.to_string() };
    let turn = Turn { calls: vec![call], ..Turn::default() };
    let ids = b.tokens.ids(&render(b.format, &turn, RenderOptions::default()));
    let read = b.parse(&rules, &ids).unwrap_or_else(|error| vec![(error, String::new())]);
    (b.takes_ids(&rules, &ids), read.into_iter().map(|(_, arguments)| arguments).collect())
}

fn equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a.as_f64() == b.as_f64(),
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| equal(a, b)),
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(key, a)| b.get(key).is_some_and(|b| equal(a, b)))
        }
        (a, b) => a == b,
    }
}

/// Of the instances that Python's jsonschema finds valid, those of objects are accepted and read back as they are. What
/// is accepted of the others is read as something valid: a text may be another type's.
#[test]
fn instances_are_accepted_and_read_back() {
    // Undeclared members come after the required ones; a text that is a constant of two types is the number.
    const OTHERS: &[(&str, &str)] =
        &[("props+additional schema", r#"{"b":1,"a":"x"}"#), ("typed enum mix", r#"{"b":"1"}"#)];
    for b in benches() {
        instances(&b, OTHERS);
    }
}

fn instances(b: &Bench, others: &[(&str, &str)]) {
    let cases: Vec<Case> = serde_json::from_str(include_str!("schemas.json")).expect("cases");
    let (mut tried_any, mut failures) = (0, Vec::new());
    for Case { case, schema, valid, invalid } in cases.into_iter().filter(|case| case.schema["type"] == "object") {
        let rules = rules(vec![tool("write", schema.clone())]);
        let Ok(Some(compiled)) = b.grammars.compile(&rules) else { continue };
        let lax = !compiled.relaxations().is_empty();
        let validators = Validators::new(&rules);
        for (instance, is_valid) in valid.iter().map(|one| (one, true)).chain(invalid.iter().map(|one| (one, false))) {
            if !instance.is_object() || others.contains(&(&case, &instance.to_string())) {
                continue;
            }
            tried_any += 1;
            let (taken, read) = tried(b, &schema, instance);
            let same = serde_json::from_str::<Value>(&read).is_ok_and(|read| equal(&read, instance));
            let holds = match is_valid {
                true => taken && same,
                false => !taken || lax || validators.call("write", &read).is_ok(),
            };
            if !holds {
                failures.push(format!("{case}: {instance} (valid: {is_valid}) taken {taken}, read {read}"));
            }
        }
    }
    assert!(tried_any > 100, "{tried_any}");
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Each alternative of a union is read by its own schema.
#[test]
fn alternatives_are_told_apart() {
    let union = json!({"anyOf": [
        {"type": "object", "properties": {"kind": {"const": "text"}, "value": {"type": "string"}}, "required": ["kind", "value"]},
        {"type": "object", "properties": {"kind": {"const": "count"}, "value": {"type": "integer"}}, "required": ["kind", "value"]},
        {"type": "array", "items": {"type": "string"}},
    ]});
    let schema = json!({"type": "object", "properties": {
        "one": union, "many": {"type": "array", "items": {"$ref": "#/properties/one"}},
        "short": {"anyOf": [{"type": "integer"}, {"type": "string", "minLength": 2}]},
        "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "size": {"type": ["integer", "null"]},
    }});
    for b in benches() {
        unions(&b, &schema);
    }
}

fn unions(b: &Bench, schema: &Value) {
    for arguments in [
        json!({"one": {"kind": "text", "value": "5"}}),
        json!({"one": {"kind": "count", "value": 5}}),
        json!({"one": ["5", "true", ""]}),
        json!({"many": [{"kind": "count", "value": 1}, {"kind": "text", "value": "1"}, ["x"]]}),
        json!({"short": 7, "maybe": "x <b>y</b>\n", "size": null}),
        json!({"short": "ab", "maybe": "7", "size": 3}),
        json!({"maybe": "", "many": []}),
    ] {
        let (taken, read) = tried(b, schema, &arguments);
        assert!(taken, "{arguments}");
        assert_eq!(serde_json::from_str::<Value>(&read).ok(), Some(arguments));
    }
    for arguments in [json!({"one": {"kind": "count", "value": "x"}}), json!({"short": "a"}), json!({"size": "x"})] {
        assert!(!tried(b, schema, &arguments).0, "{arguments}");
    }
}

/// What a tag cannot hold is refused by name, or left out if the tool can do without.
#[test]
fn names_that_no_tag_can_hold_are_refused() {
    let b = bench("minimax_m3");
    let nested = |required: &[&str]| {
        json!({"type": "object", "properties": {"o": {"type": "object", "properties": {"a>b": {"type": "string"}, "c": {"type": "string"}},
            "required": required}}, "required": ["o"]})
    };
    let refused =
        b.grammars.compile(&rules(vec![tool("write", nested(&["a>b"]))])).err().map(|error| error.to_string());
    assert!(refused.as_ref().is_some_and(|text| text.contains("/properties/o/properties/a>b")), "{refused:?}");
    let (taken, read) = tried(&b, &nested(&[]), &json!({"o": {"c": "x"}}));
    assert_eq!((taken, read.as_str()), (true, r#"{"o": {"c": "x"}}"#));
}

/// A free object's names are not compared with their end tags, which the parser does not need.
#[test]
fn free_objects_take_any_names() {
    let schema = json!({"type": "object", "properties": {"env": {"type": "object"}, "rest": {}, "map": {"type": "object",
        "additionalProperties": {"type": "integer"}}}});
    let arguments =
        json!({"env": {"PATH": "/bin", "n": {"x": [1, 2.5, true]}}, "rest": ["a", {"b": "c"}], "map": {"k": 1}});
    for b in benches() {
        let (taken, read) = tried(&b, &schema, &arguments);
        assert!(taken);
        assert_eq!(serde_json::from_str::<Value>(&read).ok().as_ref(), Some(&arguments));
        assert!(!tried(&b, &schema, &json!({"map": {"k": "x"}})).0);
    }
}

/// Names with a meaning in tags are written with XML's entities, as Cohere's template does; a string cannot hold its
/// end tag.
#[test]
fn tags_that_name_types_hold_any_name() {
    let b = bench("command_5");
    let schema = json!({"type": "object", "properties": {"a<\"b\">": {"type": "object", "properties": {"c&d": {"type": "string"}}}},
        "required": ["a<\"b\">"]});
    let arguments = json!({"a<\"b\">": {"c&d": "x &amp; </cofl:valu y"}});
    let (taken, read) = tried(&b, &schema, &arguments);
    assert!(taken);
    assert_eq!(serde_json::from_str::<Value>(&read).ok(), Some(arguments));
    let ends = json!({"a<\"b\">": {"c&d": "x</cofl:value>y"}});
    assert!(!tried(&b, &schema, &ends).0);
}
