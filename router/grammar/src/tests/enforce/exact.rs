//! Whatever the grammar accepts without reporting a relaxation satisfies the schema.

use serde_json::{Value, json};

use super::{Bench, rules, tool};
use crate::validate::accepts;
use crate::{Rules, by_name};

fn x(schema: Value) -> Value {
    json!({"type": "object", "properties": {"x": schema}, "required": ["x"]})
}

fn held(schema: &Value) -> Rules {
    rules(vec![tool("f", schema.clone())])
}

#[test]
fn violations_of_a_schema_are_rejected_or_reported_as_relaxed() {
    let one = |part: Value| x(json!({"oneOf": [{"type": "integer"}, part]}));
    let cases = [
        // A schema without properties that does not allow the empty object.
        (json!({"type": "object", "minProperties": 1}), json!({})),
        (json!({"const": {"a": 1}}), json!({})),
        (json!({"type": "object", "enum": [{"a": 1}]}), json!({})),
        (json!({"type": "object", "if": {"maxProperties": 0}, "then": false}), json!({})),
        (json!({"type": "object", "not": {"type": "object"}}), json!({})),
        (json!({"type": "array"}), json!({})),
        // Keywords for another type let a value satisfy both branches.
        (x(json!({"oneOf": [{"type": "string"}, {"minimum": 0}]})), json!({"x": "b"})),
        (one(json!({"properties": {}})), json!({"x": 1})),
        (one(json!({"minLength": 2})), json!({"x": 1})),
        (x(json!({"oneOf": [{"const": 1}, {"minLength": 2}]})), json!({"x": 1})),
        (x(json!({"oneOf": [{"const": 1}, {"const": 1.0}]})), json!({"x": 1})),
        (x(json!({"oneOf": [{"type": "null"}, {"maxLength": 3}]})), json!({"x": null})),
        // Integers that a double rounds.
        (x(json!({"type": "integer", "minimum": 9_007_199_254_740_993_u64})), json!({"x": 9_007_199_254_740_992_u64})),
        (x(json!({"type": "number", "minimum": 9_007_199_254_740_993_u64})), json!({"x": 9_007_199_254_740_992_u64})),
        // Equal constants.
        (
            x(json!({"type": "array", "items": {"enum": ["a", "a", "b"]}, "uniqueItems": true})),
            json!({"x": ["a", "a"]}),
        ),
        (x(json!({"type": "array", "items": {"enum": [1, 1.0, 2]}, "uniqueItems": true})), json!({"x": [1, 1]})),
        (x(json!({"type": "array", "items": {"enum": [[1], [1.0]]}, "uniqueItems": true})), json!({"x": [[1], [1]]})),
    ];
    for name in ["kimi_k2", "hermes", "qwen3_coder"] {
        let b = Bench::new(by_name(name).expect("a format"), false);
        for (schema, arguments) in &cases {
            assert!(!accepts(schema, arguments), "{schema}");
            let rules = held(schema);
            let Ok(compiled) = b.grammars.compile(&rules) else { continue };
            let told = compiled.is_some_and(|compiled| !compiled.relaxations().is_empty());
            let call = crate::Call { name: "f".into(), arguments: arguments.to_string() };
            let turn = crate::Turn { reasoning: None, text: String::new(), calls: vec![call] };
            let ids = b.tokens.ids(&crate::render(b.format, &turn, crate::RenderOptions::default()));
            assert!(told || !b.takes_ids(&rules, &ids), "{name}: {arguments} for {schema}");
        }
    }
}

#[test]
fn values_that_satisfy_such_a_schema_are_accepted() {
    let b = Bench::new(by_name("kimi_k2").expect("a format"), false);
    for (schema, arguments) in [
        (json!({"const": {"a": 1}}), r#"{"a": 1}"#),
        (json!({"type": "object", "minProperties": 1}), r#"{"a": 1}"#),
        (json!({"type": "object"}), "{}"),
        (json!({"minProperties": 0}), "{}"),
        (x(json!({"type": "integer", "maximum": 9_007_199_254_740_993_u64})), r#"{"x": 9007199254740993}"#),
        (x(json!({"type": "integer", "minimum": 0, "maximum": u64::MAX})), r#"{"x": 18446744073709551615}"#),
        (x(json!({"oneOf": [{"type": "string"}, {"type": "integer", "minimum": 0}]})), r#"{"x": 3}"#),
    ] {
        let call = format!(
            "⟦<|tool_calls_section_begin|>⟧⟦<|tool_call_begin|>⟧functions.f:0⟦<|tool_call_argument_begin|>⟧{arguments}⟦<|tool_call_end|>⟧⟦<|tool_calls_section_end|>⟧"
        );
        assert!(b.takes(&held(&schema), &call), "{arguments} for {schema}");
    }
}

/// A raw value that could be JSON or a string is read as what satisfies its schema.
#[test]
fn raw_values_are_read_as_their_schema_allows() {
    let cases = [
        (json!({"type": ["string", "integer"]}), "1.5", json!("1.5")),
        (json!({"type": ["string", "integer"]}), "15", json!(15)),
        (json!({"type": ["string", "integer"]}), "1e400", json!("1e400")),
        (
            json!({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "integer"}}]}),
            "[\"a\"]",
            json!("[\"a\"]"),
        ),
        (json!({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "integer"}}]}), "[1]", json!([1])),
        (json!({"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "string"}]}), "(1,)", json!("(1,)")),
        (json!({"anyOf": [{"type": "string"}, {"$ref": "#/$defs/a"}]}), "{}", json!("{}")),
        (json!({"anyOf": [{"type": "string"}, {"$ref": "#/$defs/a"}]}), "{\"a\": 1}", json!({"a": 1})),
        (json!({"anyOf": [{"type": "string"}, {"type": "number", "maximum": 3}]}), "+5", json!("+5")),
        (json!({"enum": ["1", 2]}), "1", json!("1")),
        (json!({"enum": ["1", 2]}), "2", json!(2)),
        (json!({"not": {"type": "null"}}), "null", json!("null")),
    ];
    let b = Bench::new(by_name("qwen3_coder").expect("a format"), false);
    for (schema, raw, want) in cases {
        let mut schema = x(schema);
        schema["$defs"] = json!({"a": {"type": "object", "required": ["a"]}});
        let text =
            format!("⟦<tool_call>⟧\n<function=f>\n<parameter=x>\n{raw}\n</parameter>\n</function>\n⟦</tool_call>⟧");
        let calls = b.parse(&held(&schema), &b.tokens.text(&text)).expect("a call");
        assert_eq!(calls[0].1.parse::<Value>().expect("JSON"), json!({"x": want}), "{raw} for {schema}");
    }
}

/// A pattern that the validator cannot read does not disable other checks.
#[test]
fn an_unsupported_pattern_does_not_disable_other_checks() {
    for pattern in ["\\A\\d+\\Z", "(", "\\h", "*a"] {
        let schema = json!({"type": "object", "properties": {"a": {"type": "string", "pattern": pattern},
            "b": {"type": "array", "items": {"type": "integer"}, "uniqueItems": true}}});
        assert!(accepts(&schema, &json!({"b": [1, 2]})) && !accepts(&schema, &json!({"b": [1, 1]})), "{pattern}");
        let negated = json!({"not": {"pattern": pattern}, "required": ["k"]});
        assert!(accepts(&negated, &json!({"k": 1})) && !accepts(&negated, &json!({})), "{pattern}");
        let keys = json!({"patternProperties": {pattern: {}}, "additionalProperties": false, "required": ["k"]});
        assert!(accepts(&keys, &json!({"k": 1})) && !accepts(&keys, &json!({})), "{pattern}");
    }
}

/// Constants and names that the format cannot write.
#[test]
fn values_that_cannot_be_written_are_omitted() {
    let b = Bench::new(by_name("qwen3_coder").expect("a format"), true);
    let schema = json!({"type": "object", "properties": {"x": {"enum": ["a", "b</parameter>\n</function>"]}, "k\nl": {"type": "integer"}}});
    let call = |inner: &str| format!("<tool_call>\n<function=f>\n{inner}</function>\n</tool_call>");
    let of = |key: &str, value: &str| call(&format!("<parameter={key}>\n{value}\n</parameter>\n"));
    let rules = held(&schema);
    assert!(b.takes(&rules, &of("x", "a")) && !b.takes(&rules, &of("x", "b</parameter>\n</function>")));
    assert!(!b.takes(&rules, &of("k\nl", "1")));
    let required = json!({"type": "object", "properties": {"k\nl": {"type": "integer"}}, "required": ["k\nl"]});
    assert!(b.grammars.compile(&held(&required)).is_err());
}
