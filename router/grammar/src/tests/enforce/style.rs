//! How JSON is written where its schema leaves a choice: order of properties, blanks, digits.

use serde_json::{Value, json};

use super::{Bench, rules, tool};
use crate::{Blanks, Call, JsonStyle, PropertyOrder, RenderOptions, Response, RuleError, Rules, Turn};

fn answer(schema: Value) -> Rules {
    Rules { response: Some(Response::JsonSchema { schema, strict: false }), ..Rules::default() }
}

fn any_order(rules: Rules) -> Rules {
    Rules { json: JsonStyle { answers: PropertyOrder::Any, ..rules.json }, ..rules }
}

#[test]
fn answers_keep_the_order_of_their_schema() {
    let b = Bench::new(crate::PLAIN, false);
    let thought = json!({"type": "object", "properties": {"reasoning": {"type": "string"}, "answer": {"type": "integer"}},
        "required": ["answer", "reasoning"], "additionalProperties": false});
    let inner = json!({"type": "object", "properties": {"z": thought, "a": {"type": "array", "items": {"$ref": "#/$defs/t"}}},
        "required": ["z"], "additionalProperties": false, "$defs": {"t": thought}});
    let (first, second) = (r#"{"reasoning": "x", "answer": 1}"#, r#"{"answer": 1, "reasoning": "x"}"#);
    for (schema, ordered, other) in [
        (thought.clone(), first.to_owned(), second.to_owned()),
        (json!({"anyOf": [{"type": "null"}, thought]}), first.to_owned(), second.to_owned()),
        (json!({"allOf": [thought]}), first.to_owned(), second.to_owned()),
        (inner.clone(), format!(r#"{{"z": {first}, "a": [{first}]}}"#), format!(r#"{{"a": [{first}], "z": {first}}}"#)),
        (inner, format!(r#"{{"z": {first}}}"#), format!(r#"{{"z": {first}, "a": [{second}]}}"#)),
    ] {
        let rules = answer(schema);
        assert!(b.takes(&rules, &ordered) && !b.takes(&rules, &other), "{rules:?}");
        let any = any_order(rules);
        assert!(b.takes(&any, &ordered) && b.takes(&any, &other), "{any:?}");
    }
}

#[test]
fn optional_and_undeclared_properties_have_their_place_in_the_order() {
    let b = Bench::new(crate::PLAIN, false);
    let properties = json!({"a": {"type": "integer"}, "b": {"type": "integer"}, "c": {"type": "integer"}});
    let rules =
        answer(json!({"type": "object", "properties": properties, "required": ["b"], "additionalProperties": true}));
    for text in [
        r#"{"b": 1}"#,
        r#"{"a": 1, "b": 1}"#,
        r#"{"b": 1, "c": 1}"#,
        r#"{"a": 1, "b": 1, "c": 1, "x": null, "y": []}"#,
        r#"{"b": 1, "x": 2}"#,
    ] {
        assert!(b.takes(&rules, text), "{text}");
    }
    for text in
        [r#"{}"#, r#"{"b": 1, "a": 1}"#, r#"{"c": 1, "b": 1}"#, r#"{"x": 1, "b": 1}"#, r#"{"b": 1, "x": 1, "c": 1}"#]
    {
        assert!(!b.takes(&rules, text), "{text}");
    }
    // More than a parameter has bits.
    let many: serde_json::Map<String, Value> =
        (0..100).map(|i| (format!("p{i:03}"), json!({"type": "integer"}))).collect();
    let rules = answer(json!({"type": "object", "properties": many, "additionalProperties": false}));
    assert!(b.takes(&rules, r#"{"p003": 1, "p050": 2, "p099": 3}"#));
    assert!(!b.takes(&rules, r#"{"p050": 1, "p003": 2}"#));
}

#[test]
fn arguments_have_the_models_order_unless_the_schemas_is_asked_for() {
    let parameters = json!({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}, "required": ["a", "b"]});
    let schema = JsonStyle { arguments: PropertyOrder::Schema, ..JsonStyle::default() };
    for name in ["kimi_k2", "hermes", "qwen3_coder", "glm45", "minimax_m2", "harmony", "llama_pythonic"] {
        let format = crate::by_name(name).expect("a format");
        let b = Bench::new(format, false);
        let takes = |rules: &Rules, arguments: &str| {
            let call = Call { name: "f".into(), arguments: arguments.into() };
            let ids = b.tokens.ids(&crate::render(
                format,
                &Turn { calls: vec![call], ..Turn::default() },
                RenderOptions::default(),
            ));
            b.takes_ids(rules, &ids)
        };
        let rules = rules(vec![tool("f", parameters.clone())]);
        let (ordered, other) = (r#"{"a": 1, "b": "x"}"#, r#"{"b": "x", "a": 1}"#);
        assert!(takes(&rules, ordered) && takes(&rules, other), "{name}");
        let asked = Rules { json: schema, ..rules };
        assert!(takes(&asked, ordered) && !takes(&asked, other), "{name}");
    }
}

#[test]
fn blanks_are_those_that_are_asked_for() {
    let b = Bench::new(crate::PLAIN, false);
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "array", "items": {"type": "integer"}}},
        "required": ["a"], "additionalProperties": false});
    let with = |blanks| Rules { blanks, ..answer(schema.clone()) };
    let pattern = |pattern: &str| with(Blanks::Pattern(pattern.into()));
    let texts = [
        r#"{"a":1,"b":[1,2]}"#,
        r#"{"a": 1, "b": [1, 2]}"#,
        r#"{"a":  1, "b": [1]}"#,
        "{\n  \"a\": 1\n}",
        r#"{ "a": 1 }"#,
        "{\"a\": 1}\n",
    ];
    let taken = |rules: Rules| texts.map(|text| b.takes(&rules, text));
    assert_eq!(taken(with(Blanks::Any)), [true; 6]);
    assert_eq!(taken(with(Blanks::Few)), [true, true, false, false, false, false]);
    assert_eq!(taken(pattern("[ ]?")), [true, true, false, false, true, false]);
    assert_eq!(taken(pattern(r"[\n ]*")), [true, true, true, true, true, false]);
    assert_eq!(taken(pattern(r"(?:)")), [true, false, false, false, false, false]);
    // Any object, too, and what replaces a refused draw.
    let object = Rules { response: Some(Response::JsonObject), blanks: Blanks::Few, ..Rules::default() };
    assert!(b.takes(&object, r#"{"x": {"y": [1, 2]}}"#) && !b.takes(&object, "{\n\"x\": 1}"));
    // Where a tag's document ends, also if a digit after it could continue its number, and around multiples.
    let tagged = |schema: Value, end: &str, blanks| {
        let tag =
            json!({"type": "tag", "begin": "<", "content": {"type": "json_schema", "json_schema": schema}, "end": end});
        Rules { response: Some(Response::StructuralTag(json!({"format": tag}))), blanks, ..Rules::default() }
    };
    let number_or_text = json!({"type": ["integer", "string"]});
    let multiples = json!({"type": "array", "items": {"type": "integer", "multipleOf": 5}});
    for (schema, plain, blank, end) in [
        (&number_or_text, "<12;", "<12 ;", ";"),
        (&number_or_text, "<12.", "<12 .", "."),
        (&number_or_text, "<\"x\".", "<\"x\" .", "."),
        (&multiples, "<[5,10];", "<[5 ,10];", ";"),
    ] {
        for blanks in [Blanks::Few, Blanks::Pattern("(?:)".into())] {
            let rules = tagged(schema.clone(), end, blanks);
            assert!(b.takes(&rules, plain) && !b.takes(&rules, blank), "{plain} {rules:?}");
        }
        assert!(b.takes(&tagged(schema.clone(), end, Blanks::Any), blank), "{blank}");
    }
    for (text, says) in [("x", "alone"), (r"\s|a", "alone"), ("(", "regular expression"), (".*", "alone")] {
        match b.grammars.compile(&pattern(text)) {
            Err(RuleError::Invalid { field, problem }) => {
                assert!(field.ends_with("whitespace_pattern") && problem.contains(says), "{text}: {problem}");
            }
            other => panic!("{text}: {other:?}"),
        }
    }
    assert!(b.grammars.compile(&pattern(&" ".repeat(200_000))).is_err());
}

/// A model that repeats a digit comes to an end where a double would not change any more.
#[test]
fn numbers_have_as_many_digits_as_doubles_tell_apart() {
    let b = Bench::new(crate::PLAIN, false);
    let rules = answer(json!({"type": "number"}));
    let digits = |text: &str| b.prefix(&rules, text).bytes().filter(u8::is_ascii_digit).count();
    assert_eq!(digits(&format!("0.{}", "3".repeat(50))), 18);
    assert_eq!(digits(&format!("3.{}", "14".repeat(50))), 17);
    assert_eq!(digits(&format!("-123456.{}", "7".repeat(50))), 17);
    assert_eq!(digits(&"9".repeat(50)), 20);
    assert_eq!(digits(&format!("0.{}", "0".repeat(80))), 21);
    for number in
        [f64::MIN_POSITIVE, f64::EPSILON, 0.1 + 0.2, 1.0 / 3.0, 1e15 + 0.3, 123_456_789.123_456_79, -2.5e-5, 5e22]
    {
        // As Python and JavaScript write it.
        let written = [serde_json::to_string(&number).expect("JSON"), format!("{number:?}")];
        for text in written.iter().filter(|text| !text.contains("e-308")) {
            assert!(b.takes(&rules, text), "{text}");
        }
    }
    for text in ["0", "-0", "0.0", "100.000", "0.000001", "1.5e10", "12345678901234567890", "1e5"] {
        assert!(b.takes(&rules, text), "{text}");
    }
}
