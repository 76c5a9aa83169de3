//! Arbitrary JSON: unusual numbers, texts with everything that needs an escape, deep and wide values.

use proptest::{collection::vec, prelude::*, sample::select};
use serde_json::{Map, Value, json};

/// Texts that often break programs.
const TEXTS: &[&str] = &[
    "",
    " ",
    "a",
    "demo",
    "\"",
    "\\",
    "\n\r\t\u{8}\u{c}",
    "\u{0}",
    "\u{1f}\u{7f}\u{85}",
    "é",
    "漢字",
    "😀",
    "\u{feff}",
    "\u{202e}x",
    "e\u{301}",
    "<|im_end|>",
    "<|tool_calls_section_begin|>",
    "</think>",
    "{\"a\":1}",
    "functions.f:0",
    "$ref",
    "__proto__",
    "../../etc/passwd",
    "{{ 7 * 7 }}",
    "%s%n",
];

pub fn text() -> BoxedStrategy<String> {
    prop_oneof![
        6 => select(TEXTS).prop_map(str::to_owned),
        3 => "\\PC{0,24}",
        1 => (select(TEXTS), 1usize..400).prop_map(|(text, times)| text.repeat(times)),
    ]
    .boxed()
}

/// A name of a tool or property, from a small set, so that names repeat.
pub fn name() -> BoxedStrategy<String> {
    prop_oneof![
        8 => select(vec!["f", "g", "get_weather", "a", "b", "city", "x-y", "n.m"]).prop_map(str::to_owned),
        1 => text(),
    ]
    .boxed()
}

pub fn number() -> BoxedStrategy<Value> {
    prop_oneof![
        select(vec![
            json!(0),
            json!(1),
            json!(-1),
            json!(2),
            json!(10),
            json!(-0.0),
            json!(0.5),
            json!(1.0),
            json!(1e-300),
            json!(1e300),
            json!(-1e300),
            json!(i64::MAX),
            json!(i64::MIN),
            json!(u64::MAX),
            json!(1u64 << 53),
            json!((1u64 << 53) + 1),
            json!(4294967296u64),
            json!(5106),
        ]),
        any::<i64>().prop_map(|number| json!(number)),
        (-100i64..100).prop_map(|number| json!(number)),
        any::<f64>().prop_map(|number| json!(number)),
    ]
    .boxed()
}

fn leaf() -> BoxedStrategy<Value> {
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::Bool),
        number(),
        text().prop_map(Value::String),
        Just(json!([])),
        Just(json!({})),
    ]
    .boxed()
}

pub fn object(value: BoxedStrategy<Value>, most: usize) -> BoxedStrategy<Value> {
    vec((name(), value), 0..most).prop_map(|pairs| Value::Object(Map::from_iter(pairs))).boxed()
}

pub fn json() -> BoxedStrategy<Value> {
    leaf()
        .prop_recursive(4, 48, 6, |inner| {
            prop_oneof![vec(inner.clone(), 0..6).prop_map(Value::Array), object(inner.boxed(), 6)]
        })
        .boxed()
}

/// A value inside this many arrays or objects.
pub fn deep() -> BoxedStrategy<Value> {
    (leaf(), 1usize..200, any::<bool>())
        .prop_map(|(mut value, depth, arrays)| {
            for _ in 0..depth {
                value = if arrays { json!([value]) } else { json!({"a": value}) };
            }
            value
        })
        .boxed()
}
