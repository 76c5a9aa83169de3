//! Increasingly difficult schemas, in JSON: the grammar is never wider than the validator.

use serde_json::{Value, json};

use super::{Bench, rules, tool};
use crate::tests::Random;
use crate::{Enforcement, JsonStyle, PropertyOrder, RuleError, Rules, Tool, ToolChoice};

/// Objects that can be satisfied.
pub fn nasty() -> Vec<Value> {
    let object = |properties: Value, required: &[&str]| json!({"type": "object", "properties": properties, "required": required});
    vec![
        json!({}),
        json!({"type": "object"}),
        object(json!({"a": {"type": "string"}}), &["a"]),
        object(
            json!({"a": {"type": "string"}, "b": {"type": "integer"}, "c": {"type": "number"}, "d": {"type": "boolean"}, "e": {"type": "null"}}),
            &["b", "e"],
        ),
        object(json!({"a": {"enum": ["x", "y z", "é\"'\\", 1, 2.5, null, true]}}), &["a"]),
        object(json!({"a": {"const": {"k": [1, "x"]}}}), &["a"]),
        object(
            json!({"a": {"type": "array", "items": {"type": "object", "properties": {"x": {"type": "integer"}, "y": {"type": "string"}}, "required": ["y"]}, "minItems": 1, "maxItems": 3}}),
            &["a"],
        ),
        object(
            json!({"a": {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "boolean"}], "items": {"type": "null"}, "minItems": 1}}),
            &["a"],
        ),
        object(
            json!({"a": {"type": "array", "items": {"enum": ["r", "g", "b"]}, "uniqueItems": true, "minItems": 2}}),
            &["a"],
        ),
        object(
            json!({"n": {"type": "integer", "minimum": 3, "maximum": 12}, "m": {"type": "number", "exclusiveMinimum": 0, "maximum": 1}, "k": {"type": "integer", "multipleOf": 5}}),
            &["n", "m", "k"],
        ),
        object(
            json!({"s": {"type": "string", "minLength": 2, "maxLength": 4}, "p": {"type": "string", "pattern": "^[a-c]{2,3}$"}, "q": {"type": "string", "pattern": "x.y"}}),
            &["s", "p", "q"],
        ),
        object(
            json!({"d": {"type": "string", "format": "date"}, "u": {"type": "string", "format": "uuid"}, "w": {"type": "string", "format": "byte"}}),
            &["d", "u"],
        ),
        object(
            json!({"a": {"anyOf": [{"type": "string"}, {"type": "null"}]}, "b": {"anyOf": [{"type": "integer"}, {"type": "array", "items": {"type": "boolean"}}]}}),
            &["a", "b"],
        ),
        object(json!({"a": {"type": ["integer", "null"]}, "b": {"type": ["boolean", "object"]}}), &["a", "b"]),
        object(
            json!({"a": {"oneOf": [{"type": "integer"}, {"type": "boolean"}]}, "b": {"oneOf": [
            {"type": "object", "properties": {"kind": {"const": "x"}, "v": {"type": "integer"}}, "required": ["kind"]},
            {"type": "object", "properties": {"kind": {"const": "y"}, "w": {"type": "integer"}}, "required": ["kind"]}]}}),
            &["a", "b"],
        ),
        json!({"type": "object", "properties": {"node": {"$ref": "#/$defs/node"}}, "required": ["node"], "$defs": {"node": {"type": "object",
            "properties": {"value": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}}, "required": ["value"]}}}),
        json!({"type": "object", "properties": {"t": {"$ref": "#/definitions/tree"}}, "definitions": {"tree": {"type": "array", "items": {"$ref": "#/definitions/tree"}}}}),
        json!({"allOf": [{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}, {"properties": {"b": {"type": "string"}, "a": {"minimum": 0}}}]}),
        json!({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}),
        object(
            json!({"m": {"type": "object", "additionalProperties": {"type": "integer"}}, "o": {"type": "object", "properties": {"x": {"type": "boolean"}}, "additionalProperties": true, "required": ["x"]}}),
            &["m", "o"],
        ),
        object(
            json!({"m": {"type": "object", "patternProperties": {"^k[0-9]$": {"type": "integer"}}, "additionalProperties": false}, "p": {"type": "object", "propertyNames": {"enum": ["a", "b"]}}}),
            &["m", "p"],
        ),
        object(
            json!({"m": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}, "c": {"type": "integer"}}, "minProperties": 1, "maxProperties": 2}}),
            &["m"],
        ),
        object(
            json!({"kéy \"q\"": {"type": "integer"}, "a.b": {"type": "integer"}, "class": {"type": "integer"}}),
            &[],
        ),
        object(json!({"never": false, "any": true, "empty": {}}), &["any"]),
        object(json!({}), &["undeclared"]),
        object(
            json!({"deep": object(json!({"deep": object(json!({"deep": {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}}}), &["deep"])}), &["deep"])}),
            &["deep"],
        ),
    ]
}

fn bench() -> Bench {
    Bench::new(crate::by_name("kimi_k2").expect("kimi"), false)
}

#[test]
fn random_walks_are_valid_json() {
    let b = bench();
    let mut random = Random::new(3);
    let mut failures = Vec::new();
    let (mut ended, mut calls) = (0, 0);
    for schema in nasty() {
        let r = Rules { choice: ToolChoice::Required, ..rules(vec![tool("f", schema.clone())]) };
        let compiled = match b.grammars.compile(&r) {
            Ok(Some(compiled)) => compiled,
            other => {
                failures.push(format!("{schema}: {other:?}"));
                continue;
            }
        };
        for _ in 0..25 {
            let Some(ids) = b.walk(&mut compiled.matcher().expect("a matcher"), &mut random, 800) else { continue };
            ended += 1;
            let found = b.parse(&r, &ids).unwrap_or_else(|e| panic!("{schema}: {e} in {}", b.tokens.show(&ids)));
            for (_, a) in &found {
                calls += 1;
                if let Err(e) = compiled.validate("f", a)
                    && compiled.relaxations().is_empty()
                {
                    failures.push(format!("{schema}: {e} in {a:?}"));
                    break;
                }
            }
        }
    }
    println!("{ended} walks ended, {calls} calls");
    assert!(ended > 200, "{ended} walks ended");
    assert!(failures.is_empty(), "{} failures\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn properties_come_in_any_order_and_others_are_rejected() {
    let b = bench();
    let schema = json!({"type": "object", "required": ["a", "b"], "properties": {
        "a": {"type": "integer"}, "b": {"type": "string"}, "c": {"type": "boolean"}, "d": {"type": "array", "items": {"type": "integer"}}}});
    let validator = jsonschema::draft202012::new(&schema).expect("a schema");
    let r = rules(vec![tool("f", schema)]);
    let compiled = b.compile(&r);
    let members = [("a", "1"), ("b", "\"x\""), ("c", "true"), ("d", "[1, 2]"), ("e", "1"), ("a", "\"x\"")];
    let mut checked = 0;
    // Every sequence of up to four members, including repetitions.
    for code in 0..7_usize.pow(4) {
        let picked: Vec<_> =
            (0..4).map(|i| code / 7_usize.pow(i) % 7).take_while(|d| *d < 6).map(|d| members[d]).collect();
        for (comma, colon) in [(",", ":"), (", ", ": "), (" ,\n  ", " : ")] {
            let text = picked.iter().map(|(k, v)| format!("\"{k}\"{colon}{v}")).collect::<Vec<_>>().join(comma);
            let text = format!("{{{text}}}");
            let mut keys: Vec<_> = picked.iter().map(|m| m.0).collect();
            let count = keys.len();
            keys.sort_unstable();
            keys.dedup();
            let want = keys.len() == count
                && !keys.contains(&"e")
                && validator.is_valid(&serde_json::from_str(&text).expect("JSON"));
            let call = format!(
                "⟦<|tool_calls_section_begin|>⟧⟦<|tool_call_begin|>⟧functions.f:0⟦<|tool_call_argument_begin|>⟧{text}⟦<|tool_call_end|>⟧⟦<|tool_calls_section_end|>⟧"
            );
            let ids = b.tokens.text(&call);
            let got = b.run(&mut compiled.matcher().expect("a matcher"), &ids) == (ids.len(), true);
            assert_eq!(got, want, "{text}");
            checked += 1;
        }
    }
    assert!(checked > 5000);
}

#[test]
fn many_properties_keep_their_order() {
    let b = bench();
    let properties: serde_json::Map<String, Value> =
        (0..70).map(|i| (format!("p{i}"), json!({"type": "integer"}))).collect();
    let schema = json!({"type": "object", "properties": properties, "required": ["p3", "p69"]});
    let r = Rules { choice: ToolChoice::Required, ..rules(vec![tool("f", schema)]) };
    let call = |a: &str| {
        format!(
            "⟦<|tool_calls_section_begin|>⟧⟦<|tool_call_begin|>⟧functions.f:0⟦<|tool_call_argument_begin|>⟧{a}⟦<|tool_call_end|>⟧⟦<|tool_calls_section_end|>⟧"
        )
    };
    assert!(b.takes(&r, &call(r#"{"p3": 1, "p69": 2}"#)));
    assert!(b.takes(&r, &call(r#"{"p0": 1, "p3": 1, "p40": 3, "p69": 2}"#)));
    assert!(!b.takes(&r, &call(r#"{"p69": 1, "p3": 2}"#)));
    assert!(!b.takes(&r, &call(r#"{"p3": 1}"#)));
    assert!(!b.takes(&r, &call(r#"{"p3": 1, "p3": 1, "p69": 2}"#)));
}

#[test]
fn relaxations_are_reported() {
    let b = bench();
    let schema = json!({"type": "object", "properties": {
        "a": {"type": "string", "pattern": "^(?=x)"}, "b": {"not": {"type": "string"}}, "c": {"type": "string", "format": "regex"},
        "d": {"type": "array", "items": {"type": "integer"}, "uniqueItems": true}}});
    let compiled = b.compile(&rules(vec![tool("f", schema.clone())]));
    let told: Vec<_> = compiled.relaxations().iter().map(|r| (r.path.as_str(), r.keyword.as_str())).collect();
    assert_eq!(told, [("/properties/a", "pattern"), ("/properties/c", "format"), ("/properties/d", "uniqueItems")]);
    let strict = rules(vec![Tool { name: "f".into(), parameters: Some(schema), strict: true, ..Tool::default() }]);
    match b.grammars.compile(&Rules { enforcement: Enforcement::Off, ..strict }) {
        Err(RuleError::Unenforceable { path, keyword, field, .. }) => {
            assert_eq!((path.as_str(), keyword.as_str()), ("/properties/a", "pattern"));
            assert!(field.contains('f'));
        }
        other => panic!("{other:?}"),
    }
    assert!(compiled.validate("f", r#"{"d": [1, 1]}"#).is_err_and(|v| v.path == "/d"));
    assert!(compiled.validate("f", r#"{"d": [1, 2]}"#).is_ok());
    assert!(compiled.validate("g", "{}").is_err() && compiled.validate("f", "[").is_err());
}

/// Expanded, twenty dependencies would be a million ways: they are left to validation instead.
#[test]
fn parts_that_would_be_too_large_are_left_to_validation() {
    let names: Vec<String> = (0..20).map(|i| format!("p{i}")).collect();
    let properties: serde_json::Map<String, Value> =
        names.iter().map(|n| (n.clone(), json!({"type": "integer"}))).collect();
    let depends: serde_json::Map<String, Value> = names.iter().map(|n| (n.clone(), json!(["p0"]))).collect();
    let schema = json!({"type": "object", "properties": properties, "dependentRequired": depends});
    let compiled = bench().compile(&rules(vec![tool("f", schema)]));
    assert!(compiled.relaxations().iter().any(|r| r.keyword == "dependentRequired"), "{:?}", compiled.relaxations());
    assert!(compiled.validate("f", r#"{"p1": 1}"#).is_err() && compiled.validate("f", r#"{"p1": 1, "p0": 1}"#).is_ok());
}

#[test]
fn unsatisfiable_schemas_are_rejected() {
    let b = bench();
    for schema in [
        json!([]),
        json!({"type": "nonsense"}),
        json!({"type": "object", "properties": {"a": {"$ref": "#/$defs/none"}}}),
        json!({"type": "object", "properties": {"a": false}, "required": ["a"]}),
        json!({"type": "object", "properties": {"a": {"$ref": "#/properties/a"}}, "required": ["a"]}),
        json!({"type": "object", "properties": {"a": {"description": "x".repeat(300 << 10)}}}),
        json!({"type": "object", "properties": []}),
    ] {
        let shown: String = schema.to_string().chars().take(80).collect();
        let result = b.grammars.compile(&rules(vec![tool("f", schema)]));
        assert!(result.is_err(), "{shown}: {result:?}");
    }
    let many = (0..=crate::MAX_TOOLS).map(|i| tool(&format!("t{i}"), json!({}))).collect();
    assert!(matches!(b.grammars.compile(&rules(many)), Err(RuleError::TooLarge { .. })));
    assert!(b.grammars.compile(&rules(vec![tool("f", json!({})), tool("f", json!({}))])).is_err());
}

#[test]
fn an_empty_property_name_is_accepted() {
    let schema =
        json!({"type": "object", "properties": {"": {"type": "string"}, "a": {"type": "integer"}}, "required": ["a"]});
    let rules = rules(vec![tool("f", schema)]);
    for name in ["qwen3_coder", "deepseek_v3_2", "minimax_m2"] {
        let b = Bench::new(crate::by_name(name).expect("a format"), false);
        let takes = |key: &str| {
            let call = crate::Call { name: "f".into(), arguments: format!(r#"{{"{key}": "x", "a": 1}}"#) };
            let turn = crate::Turn { calls: vec![call], ..crate::Turn::default() };
            let ids = b.tokens.ids(&crate::render(b.format, &turn, crate::RenderOptions::default()));
            let read = b.parse(&rules, &ids).expect("a call")[0].1.contains(&format!("\"{key}\":"));
            b.takes_ids(&rules, &ids) && read
        };
        assert!(takes("") && !takes("b"), "{name}");
    }
}

/// `schemas.json` has realistic schemas with instances as validated by Python's jsonschema (including formats). Valid
/// instances are accepted in every spelling and in either order; others are rejected, unless they are left to
/// validation. Undeclared members are accepted after the required ones only.
#[test]
fn instances_are_validated_as_by_python_jsonschema() {
    #[derive(serde::Deserialize)]
    struct Case {
        case: String,
        schema: Value,
        valid: Vec<Value>,
        invalid: Vec<Value>,
    }
    const LAX: &[&str] = &["oneOf overlapping", "oneOf required either", "uniqueItems", "min/maxProperties open"];
    let cases: Vec<Case> = serde_json::from_str(include_str!("schemas.json")).expect("cases");
    let b = Bench::new(crate::PLAIN, false);
    let mut failures = Vec::new();
    for Case { case, schema, valid, invalid } in cases {
        let declared = |word: &str, name: &str| match &schema[word] {
            Value::Object(properties) => properties.contains_key(name),
            Value::Array(required) => required.iter().any(|required| required == name),
            _ => false,
        };
        let early = |text: &str| {
            let instance: Value = serde_json::from_str(text).expect("JSON");
            let Value::Object(members) = instance else { return false };
            let names: Vec<&String> = members.keys().collect();
            let last = names.iter().rposition(|name| declared("required", name)).unwrap_or_default();
            names[..last].iter().any(|name| !declared("properties", name) && !declared("required", name))
        };
        let response = Some(crate::Response::JsonSchema { schema: schema.clone(), strict: false });
        let json = JsonStyle { answers: PropertyOrder::Any, ..JsonStyle::default() };
        let compiled = b.compile(&Rules { response, json, ..Rules::default() });
        let takes = |text: &str| {
            let ids = b.tokens.encode(text.as_bytes());
            b.run(&mut compiled.matcher().expect("a matcher"), &ids) == (ids.len(), true)
        };
        let lax = !compiled.relaxations().is_empty();
        if lax != LAX.contains(&case.as_str()) {
            failures.push(format!("{case}: {:?}", compiled.relaxations()));
        }
        for instance in &valid {
            let spaced = serde_json::to_string_pretty(instance).expect("JSON");
            for text in [instance.to_string(), spaced, reversed(instance).to_string()] {
                if takes(&text) == early(&text) {
                    failures.push(format!("{case}: {text} is {}", if early(&text) { "taken" } else { "refused" }));
                }
            }
        }
        for instance in &invalid {
            let text = instance.to_string();
            if takes(&text) && !lax {
                failures.push(format!("{case}: {text} is taken"));
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Members in reverse order.
fn reversed(value: &Value) -> Value {
    match value {
        Value::Object(map) => Value::Object(map.iter().rev().map(|(k, v)| (k.clone(), reversed(v))).collect()),
        Value::Array(items) => items.iter().map(reversed).collect(),
        other => other.clone(),
    }
}

#[test]
fn arguments_one_by_one_obey_formats_lengths_and_patterns() {
    let schema = json!({"type": "object", "additionalProperties": false, "properties": {
        "at": {"type": "string", "format": "date"}, "p": {"type": "string", "pattern": "^[a-c]{2,3}$"},
        "l": {"type": "string", "minLength": 2, "maxLength": 3}, "n": {"type": "string", "not": {"enum": ["bad", "worse"]}}}});
    let rules = Rules { choice: ToolChoice::Required, ..rules(vec![tool("f", schema)]) };
    for name in ["llama_pythonic", "qwen3_coder", "deepseek_v3_2", "kimi_k3", "hermes"] {
        let b = Bench::new(crate::by_name(name).expect("a format"), false);
        let compiled = b.compile(&rules);
        assert_eq!(compiled.relaxations(), [], "{name}");
        let takes = |arguments: Value| {
            let call = crate::Call { name: "f".into(), arguments: arguments.to_string() };
            let turn = crate::Turn { calls: vec![call], ..crate::Turn::default() };
            let ids = b.tokens.ids(&crate::render(b.format, &turn, crate::RenderOptions::default()));
            b.run(&mut compiled.matcher().expect("a matcher"), &ids) == (ids.len(), true)
        };
        assert!(takes(json!({"at": "2026-11-21", "p": "abc", "l": "日本", "n": "badly"})), "{name}");
        for wrong in [
            json!({"at": "21.11.2026"}),
            json!({"p": "abcd"}),
            json!({"l": "abcd"}),
            json!({"l": "é"}),
            json!({"n": "bad"}),
        ] {
            assert!(!takes(wrong.clone()), "{name}: {wrong}");
        }
    }
}

#[test]
fn undeclared_arguments_are_accepted_if_the_schema_allows_them() {
    let schema =
        json!({"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": {"type": "integer"}});
    let rules = Rules { choice: ToolChoice::Required, ..rules(vec![tool("f", schema)]) };
    for format in crate::formats().iter().filter(|f| f.has_calls()) {
        let b = Bench::new(format, false);
        let call = crate::Call { name: "f".into(), arguments: r#"{"a": "x", "other": 3}"#.into() };
        let turn = crate::Turn { calls: vec![call], ..crate::Turn::default() };
        let ids = b.tokens.ids(&crate::render(format, &turn, crate::RenderOptions::default()));
        assert_eq!(b.run(&mut b.matcher(&rules), &ids), (ids.len(), true), "{}", format.name);
        let calls = b.parse(&rules, &ids).expect("a call");
        assert_eq!(
            serde_json::from_str::<Value>(&calls[0].1).ok(),
            Some(json!({"a": "x", "other": 3})),
            "{}",
            format.name
        );
    }
}

/// The last undeclared member is followed by the end, not by a comma that nothing can follow.
#[test]
fn undeclared_members_end_in_no_dead_end() {
    let b = Bench::new(crate::PLAIN, false);
    let unit = json!({"unit": {"type": "string"}});
    for (schema, most) in [
        (json!({"type": "object", "properties": unit}), 32),
        (json!({"type": "object", "properties": unit, "required": ["unit"]}), 32),
        (
            json!({"type": "object", "properties": unit, "required": ["unit"], "additionalProperties": {"type": "number"}}),
            1_000,
        ),
        (json!({"type": "object", "properties": unit, "patternProperties": {"^x": {"type": "number"}}}), 1_000),
    ] {
        let response = crate::Response::JsonSchema { schema: schema.clone(), strict: false };
        let rules = Rules { response: Some(response), ..Rules::default() };
        let others = |count: usize| (0..count).map(|i| format!(", \"x{i}\": {i}")).collect::<String>();
        let whole = format!("{{\"unit\": \"m\"{}}}", others(most));
        assert!(b.takes(&rules, &whole), "{schema}");
        let begun = whole.trim_end_matches('}');
        for more in [",", ", ", ",\n"] {
            assert_eq!(b.prefix(&rules, &format!("{begun}{more}")).trim_end(), begun, "{schema}");
        }
        assert!(b.takes(&rules, &format!("{{\"unit\": \"m\"{}}}", others(most - 1))), "{schema}");
    }
    // In any order, declared members may follow undeclared ones, however many those are.
    let json = JsonStyle { answers: PropertyOrder::Any, ..JsonStyle::default() };
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a"]});
    let rules =
        Rules { response: Some(crate::Response::JsonSchema { schema, strict: false }), json, ..Rules::default() };
    let others: String = (0..32).map(|i| format!(", \"x{i}\": {i}")).collect();
    assert!(b.takes(&rules, &format!("{{\"a\": 1{others}, \"b\": 2}}")));
}

#[test]
fn numbers_do_not_round_to_a_bound_that_they_exclude() {
    let schema = json!({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 5});
    let b = Bench::new(crate::PLAIN, false);
    let rules = Rules { response: Some(crate::Response::JsonSchema { schema, strict: false }), ..Rules::default() };
    let near_zero = format!("0.{}4", "0".repeat(330));
    let near_five = format!("4.{}", "9".repeat(30));
    for good in ["0.001", "4.999", "0.25", "1", "4"] {
        assert!(b.takes(&rules, good), "{good}");
    }
    assert!(
        !b.takes(&rules, &near_zero) && !b.takes(&rules, &near_five) && !b.takes(&rules, "0") && !b.takes(&rules, "5")
    );
}

#[test]
fn constants_that_their_format_or_pattern_excludes_are_not_offered() {
    let b = Bench::new(crate::PLAIN, false);
    for constraint in
        [json!({"format": "date"}), json!({"pattern": "^[0-9]"}), json!({"format": "date", "pattern": "^2"})]
    {
        let mut schema = json!({"type": "string", "enum": ["a", "2024-02-29"]});
        schema.as_object_mut().expect("an object").extend(constraint.as_object().cloned().expect("an object"));
        let response = Some(crate::Response::JsonSchema { schema, strict: true });
        let compiled = b.grammars.compile(&Rules { response, ..Rules::default() }).expect("compiles").expect("binds");
        for (text, taken) in [("\"a\"", false), ("\"2024-02-29\"", true)] {
            let ids = b.tokens.encode(text.as_bytes());
            let ended = b.run(&mut compiled.matcher().expect("a matcher"), &ids) == (ids.len(), true);
            assert_eq!(ended, taken, "{text}: {constraint}");
        }
    }
}

/// As many tools as a request may have, of several sizes: they compile, and what they cost too much is named.
#[test]
fn a_thousand_tools_compile() {
    let parameter = |i: usize| match i % 4 {
        0 => json!({"type": "string", "description": "A text."}),
        1 => json!({"type": "integer", "minimum": 0, "maximum": 100}),
        2 => json!({"enum": ["a", "b", "c"]}),
        _ => {
            json!({"type": "array", "items": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}})
        }
    };
    for format in crate::formats().iter().filter(|format| format.has_calls()) {
        let sizes: &[usize] = if ["qwen3_coder", "jamba"].contains(&format.name) { &[3, 24] } else { &[3] };
        for members in sizes {
            let schema = |of: usize| {
                let properties: serde_json::Map<String, Value> =
                    (0..*members).map(|i| (format!("p{of}_{i}"), parameter(of + i))).collect();
                json!({"type": "object", "properties": properties, "required": [format!("p{of}_0")]})
            };
            let tools = (0..crate::MAX_TOOLS).map(|i| tool(&format!("tool_{i}"), schema(i))).collect();
            let b = Bench::new(format, false);
            let compiled = b.grammars.compile(&rules(tools));
            let compiled =
                compiled.unwrap_or_else(|e| panic!("{}, {members}: {e}", format.name)).expect("rules that bind");
            compiled.matcher().expect("a matcher");
        }
    }
}
