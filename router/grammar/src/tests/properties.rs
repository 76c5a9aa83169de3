//! Properties of every output and of every schema: nothing panics, and costs are bounded.

use std::sync::OnceLock;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Value, json};

use super::{cases, fold, options};
use crate::tests::enforce::{Bench, rules, tool};
use crate::{OwnedPiece, Parser, Region, Response, Rules, ToolChoice, formats};

/// Limits of examined bytes, per byte of output and in total.
const WORK: (u64, u64) = (600, 20_000);

fn config() -> ProptestConfig {
    ProptestConfig { cases: cases(64) as u32, failure_persistence: None, ..ProptestConfig::default() }
}

fn piece() -> impl Strategy<Value = String> {
    let words = [
        "{\"name\": \"f\", \"arguments\": {",
        "\"a\": ",
        "}}",
        "[",
        "]",
        "\"",
        "\\",
        "f(a=",
        "<",
        "</",
        ">",
        "=",
        "\n",
        " ",
        "1e",
        "f",
    ];
    prop_oneof![
        3 => select(words.to_vec()).prop_map(str::to_owned),
        1 => ".{0,12}",
        1 => "[<|{\\[\"']{1,6}",
    ]
}

/// Markers by their index in the format's list, and text.
fn output() -> impl Strategy<Value = Vec<Result<usize, String>>> {
    vec(prop_oneof![(0..64_usize).prop_map(Ok), piece().prop_map(Err)], 0..40)
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn every_output_is_read(output in output(), bytes in vec(any::<u8>(), 0..20), chunk in 1..9_usize, inside: bool) {
        for format in formats() {
            let markers: Vec<&str> = format.marker_texts().collect();
            let mut pieces: Vec<OwnedPiece> = Vec::new();
            for part in &output {
                pieces.push(match part {
                    Ok(n) if !markers.is_empty() => OwnedPiece::Special(markers[n % markers.len()].to_owned()),
                    Ok(_) => OwnedPiece::Bytes(bytes.clone()),
                    Err(text) => OwnedPiece::Bytes(text.clone().into_bytes()),
                });
            }
            let start = if inside { Region::Reasoning } else { Region::Text };
            let mut parser = Parser::new(format, options(start, &["f"]));
            let (mut events, mut size) = (Vec::new(), 0);
            for piece in &pieces {
                match piece {
                    OwnedPiece::Bytes(all) => {
                        size += all.len() as u64;
                        all.chunks(chunk).for_each(|part| parser.push(crate::Piece::Bytes(part), &mut events));
                    }
                    special => {
                        size += 32;
                        parser.push(special.as_piece(), &mut events);
                    }
                }
            }
            parser.finish(&mut events);
            fold(&events);
            prop_assert!(parser.work() <= WORK.0 * size + WORK.1, "{}: {} for {size} bytes", format.name, parser.work());
        }
    }
}

fn schema() -> impl Strategy<Value = Value> {
    let number = prop_oneof![
        Just(json!(0)),
        Just(json!(-1)),
        Just(json!(3)),
        Just(json!(2.5)),
        Just(json!(1e300)),
        Just(json!(5_000_000))
    ];
    let kind = select(vec!["object", "array", "string", "integer", "number", "boolean", "null"]);
    let constant = prop_oneof![
        Just(json!("a")),
        Just(json!("é\"")),
        Just(json!(1)),
        Just(json!(null)),
        Just(json!({"a": [1]})),
        number.clone()
    ];
    let pattern = select(vec!["^a+$", "b", "(", "^(?=x)", "^x|y$", "\\d{2}", "[^\\x00-\\x7f]", "a{1000}", "^$"]);
    let keyword = select(vec![
        "minimum",
        "maximum",
        "exclusiveMinimum",
        "exclusiveMaximum",
        "multipleOf",
        "minLength",
        "maxLength",
        "minItems",
        "maxItems",
        "minProperties",
        "maxProperties",
        "minContains",
    ]);
    let leaf = prop_oneof![
        any::<bool>().prop_map(Value::Bool),
        Just(json!({})),
        kind.clone().prop_map(|t| json!({"type": t})),
        (kind, keyword, number).prop_map(|(t, k, n)| json!({"type": t, k: n})),
        pattern.prop_map(|p| json!({"pattern": p})),
        select(vec!["date", "ipv6", "byte"]).prop_map(|f| json!({"type": "string", "format": f})),
        vec(constant.clone(), 1..4).prop_map(|all| json!({"enum": all})),
        constant.prop_map(|one| json!({"const": one})),
        select(vec!["#", "#/properties/a", "#/$defs/a", "#a", "other.json"]).prop_map(|r| json!({"$ref": r})),
        vec(select(vec!["a", "b"]), 0..3).prop_map(|names| json!({"required": names})),
        Just(json!({"uniqueItems": true, "type": "array"})),
    ];
    leaf.prop_recursive(5, 48, 4, |inner| {
        let one = select(vec![
            "not",
            "items",
            "contains",
            "additionalProperties",
            "propertyNames",
            "unevaluatedProperties",
            "unevaluatedItems",
        ]);
        let list = select(vec!["allOf", "anyOf", "oneOf", "prefixItems"]);
        let named = select(vec!["properties", "patternProperties", "$defs", "dependentSchemas"]);
        let name = select(vec!["a", "b", "^a", "é"]);
        prop_oneof![
            (one, inner.clone()).prop_map(|(k, s)| json!({k: s})),
            (list, vec(inner.clone(), 1..4)).prop_map(|(k, s)| json!({k: s})),
            (named, name, inner.clone()).prop_map(|(k, n, s)| json!({k: {n: s}})),
            (inner.clone(), inner.clone(), inner.clone()).prop_map(|(c, t, e)| json!({"if": c, "then": t, "else": e})),
            // Two at once.
            (inner.clone(), inner).prop_map(|(a, b)| match (a, b) {
                (Value::Object(mut a), Value::Object(b)) => {
                    a.extend(b);
                    Value::Object(a)
                }
                (a, _) => a,
            }),
        ]
    })
}

fn bench(name: &'static str) -> &'static Bench {
    static BENCHES: OnceLock<Vec<(&'static str, Bench)>> = OnceLock::new();
    let all = BENCHES.get_or_init(|| {
        let bench = |name| (name, Bench::new(crate::by_name(name).expect("a format"), false));
        ["plain", "kimi_k2", "qwen3_coder", "llama_pythonic"].map(bench).into()
    });
    all.iter().find(|(n, _)| *n == name).map(|(_, bench)| bench).expect("a bench")
}

proptest! {
    #![proptest_config(config())]

    /// A schema is rejected or compiled, and whatever its grammar alone accepts, validation accepts.
    #[test]
    fn every_schema_is_compiled_or_rejected(schema in schema()) {
        let response = Rules { response: Some(Response::JsonSchema { schema: schema.clone(), strict: false }), ..Rules::default() };
        if let Ok(Some(compiled)) = bench("plain").grammars.compile(&response) {
            for text in ["null", "true", "1", "2.5", "\"a\"", "\"aa\"", "[]", "[1]", "[\"a\", 1]", "{}", "{\"a\": 1}", "{\"b\": null, \"a\": \"a\"}"] {
                let b = bench("plain");
                let ids = b.tokens.encode(text.as_bytes());
                let taken = b.run(&mut compiled.matcher().expect("a matcher"), &ids) == (ids.len(), true);
                if taken && compiled.relaxations().is_empty() {
                    prop_assert!(compiled.validate_response(text).is_ok(), "{text} for {schema}");
                }
            }
        }
        for name in ["kimi_k2", "qwen3_coder", "llama_pythonic"] {
            let rules = Rules { choice: ToolChoice::Required, ..rules(vec![tool("f", schema.clone())]) };
            let _ = bench(name).grammars.compile(&rules);
        }
    }
}

#[test]
fn newlines_alone_are_no_reasoning_without_text() {
    for format in formats() {
        let mut parser = Parser::new(format, options(Region::Reasoning, &["f"]));
        let mut events = Vec::new();
        parser.push(crate::Piece::Bytes(b"\n"), &mut events);
        parser.finish(&mut events);
        fold(&events);
    }
}
