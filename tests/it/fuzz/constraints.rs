//! Constraints that clients send: regular expressions, JSON Schemas, Lark grammars and structural tags, valid and
//! invalid.

use proptest::{collection::vec, prelude::*, sample::select};
use serde_json::{Map, Value, json};

use super::values::{json, name, number, object, text};

const ATOMS: &[&str] = &[
    "a",
    "b",
    "[a-z]",
    "[^a]",
    "[^\\\"]",
    "[^\\\\]",
    "[^\\s\\S]",
    "\\d",
    "\\w",
    "\\s",
    "\\S",
    ".",
    "\\.",
    "\\/",
    "\\p{L}",
    "\\u0041",
    "\\x41",
    "é",
    "[\\u4e00-\\u9fff]",
    "(?i)a",
    "\\b",
    "(?=a)",
    "(?!a)",
    "\\1",
    "[",
    "(",
    ")",
    "{",
    "[a-",
    "\\",
    "\\k<a>",
    "(?<n>a)",
    "[[:alpha:]]",
    "\\cA",
    "\\0",
    "<|im_end|>",
];
const QUANTIFIERS: &[&str] = &[
    "",
    "",
    "",
    "*",
    "+",
    "?",
    "{2}",
    "{0,3}",
    "{3,1}",
    "{0,99}",
    "{1000}",
    "{1,100000}",
    "{1000000}",
    "*?",
    "++",
    "{,5}",
];

pub fn regex() -> BoxedStrategy<String> {
    let atom = select(ATOMS).prop_map(str::to_owned);
    let quantified = (atom, select(QUANTIFIERS)).prop_map(|(atom, quantifier)| atom + quantifier);
    let expression = quantified.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            3 => vec(inner.clone(), 1..4).prop_map(|parts| parts.concat()),
            1 => vec(inner.clone(), 2..4).prop_map(|parts| format!("({})", parts.join("|"))),
            1 => (inner, select(QUANTIFIERS)).prop_map(|(inner, quantifier)| format!("(?:{inner}){quantifier}")),
        ]
    });
    (select(vec!["", "^"]), expression, select(vec!["", "$"]))
        .prop_map(|(begin, expression, end)| format!("{begin}{expression}{end}"))
        .boxed()
}

const TYPES: &[&str] = &["string", "integer", "number", "boolean", "null", "object", "array", "file"];
const FORMATS: &[&str] =
    &["date", "date-time", "time", "email", "uuid", "ipv4", "ipv6", "uri", "hostname", "duration", "regex", "no-such"];
const REFS: &[&str] =
    &["#", "#/$defs/a", "#/$defs/b", "#/properties/a", "#/$defs/none", "#a", "http://example.com/x", "%", "#/%zz"];
const DRAFTS: &[&str] = &[
    "https://json-schema.org/draft/2020-12/schema",
    "https://json-schema.org/draft/2019-09/schema",
    "http://json-schema.org/draft-07/schema#",
    "http://json-schema.org/draft-04/schema#",
    "http://example.com/own",
];

fn count() -> BoxedStrategy<Value> {
    prop_oneof![
        6 => (0u64..6).prop_map(|count| json!(count)),
        2 => select(vec![json!(50), json!(500), json!(5000), json!(1000000), json!(-1), json!(1.5), json!(u64::MAX)]),
    ]
    .boxed()
}

fn scalar_keyword() -> BoxedStrategy<(String, Value)> {
    let key = |names: &'static [&'static str]| select(names).prop_map(str::to_owned);
    prop_oneof![
        6 => (key(&["type"]), select(TYPES).prop_map(|kind| json!(kind))),
        1 => (key(&["type"]), vec(select(TYPES), 0..4).prop_map(|kinds| json!(kinds))),
        2 => (key(&["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"]), number()),
        2 => (key(&["minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties", "minContains", "maxContains"]), count()),
        2 => (key(&["pattern"]), regex().prop_map(Value::String)),
        1 => (key(&["format"]), select(FORMATS).prop_map(|format| json!(format))),
        1 => (key(&["enum"]), vec(json(), 0..5).prop_map(Value::Array)),
        1 => (key(&["const", "default", "title", "description", "examples"]), json()),
        2 => (key(&["required"]), vec(name(), 0..4).prop_map(|names| json!(names))),
        1 => (key(&["$ref", "$dynamicRef", "$recursiveRef"]), select(REFS).prop_map(|reference| json!(reference))),
        1 => (key(&["$schema"]), select(DRAFTS).prop_map(|draft| json!(draft))),
        1 => (key(&["$id", "$anchor", "id", "$dynamicAnchor"]), prop_oneof![name().prop_map(Value::String), json()]),
        1 => (key(&["uniqueItems", "additionalProperties", "additionalItems", "unevaluatedProperties", "unevaluatedItems", "nullable"]),
            any::<bool>().prop_map(Value::Bool)),
        1 => (name(), json()),
    ]
    .boxed()
}

fn nested_keyword(schema: BoxedStrategy<Value>) -> BoxedStrategy<(String, Value)> {
    let key = |names: &'static [&'static str]| select(names).prop_map(str::to_owned);
    let schemas = vec(schema.clone(), 0..9).prop_map(Value::Array);
    let by_pattern = vec((regex(), schema.clone()), 0..4).prop_map(|pairs| Value::Object(Map::from_iter(pairs)));
    prop_oneof![
        6 => (key(&["properties"]), object(schema.clone(), 6)),
        1 => (key(&["$defs", "definitions"]), prop_oneof![object(schema.clone(), 4), json()]),
        1 => (key(&["patternProperties"]), by_pattern),
        1 => (key(&["dependentSchemas", "dependencies"]), object(schema.clone(), 4)),
        1 => (key(&["dependentRequired", "dependencies"]), object(vec(name(), 0..3).prop_map(|names| json!(names)).boxed(), 4)),
        2 => (key(&["items", "additionalProperties", "contains", "propertyNames", "unevaluatedProperties", "additionalItems"]), schema.clone()),
        2 => (key(&["not", "if", "then", "else"]), schema),
        3 => (key(&["anyOf", "allOf", "oneOf", "prefixItems", "items"]), schemas),
    ]
    .boxed()
}

pub fn schema() -> BoxedStrategy<Value> {
    let flat = prop_oneof![
        8 => vec(scalar_keyword(), 0..4).prop_map(|pairs| Value::Object(Map::from_iter(pairs))),
        1 => any::<bool>().prop_map(Value::Bool),
    ];
    flat.prop_recursive(4, 40, 6, |inner| {
        let keyword = prop_oneof![2 => scalar_keyword(), 3 => nested_keyword(inner.boxed())];
        vec(keyword, 1..6).prop_map(|pairs| Value::Object(Map::from_iter(pairs)))
    })
    .boxed()
}

/// Mostly an object's schema, as tools have.
pub fn parameters() -> BoxedStrategy<Value> {
    prop_oneof![
        6 => (object(schema(), 6), vec(name(), 0..3), schema()).prop_map(|(properties, required, more)| {
            let mut whole = more.as_object().cloned().unwrap_or_default();
            whole.insert("type".into(), json!("object"));
            whole.insert("properties".into(), properties);
            whole.insert("required".into(), json!(required));
            Value::Object(whole)
        }),
        2 => schema(),
        1 => (1usize..600).prop_map(|count| {
            let properties = (0..count).map(|number| (format!("p{number}"), json!({"type": "string"})));
            json!({"type": "object", "properties": Map::from_iter(properties)})
        }),
        1 => (1usize..40, regex()).prop_map(|(count, pattern)| {
            let patterns = (0..count).map(|number| (format!("{pattern}{number}"), json!({"type": "integer"})));
            json!({"type": "object", "patternProperties": Map::from_iter(patterns)})
        }),
        1 => json(),
    ]
    .boxed()
}

pub fn lark() -> BoxedStrategy<String> {
    let leaf = prop_oneof![
        4 => select(vec!["\"a\"", "\"b\"", "\"\"", "a", "b", "start", "T", "U", "<|im_end|>", "<[5106]>", "<[0-9]>", "<[*]>", "@x", "%json {}"])
            .prop_map(str::to_owned),
        2 => regex().prop_map(|regex| format!("/{regex}/")),
        1 => schema().prop_map(|schema| format!("%json {schema}")),
    ];
    let expression = leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            3 => vec(inner.clone(), 1..4).prop_map(|parts| parts.join(" ")),
            2 => vec(inner.clone(), 2..4).prop_map(|parts| format!("({})", parts.join(" | "))),
            1 => (inner.clone(), select(QUANTIFIERS)).prop_map(|(inner, quantifier)| format!("({inner}){quantifier}")),
            1 => (inner.clone(), inner).prop_map(|(a, b)| format!("{a} & ~{b}")),
        ]
    });
    let rule = (
        select(vec!["start", "start", "a", "b", "T", "U", "%ignore", "a[lazy]", "b[max_tokens=3]", "T[suffix=\"x\"]"]),
        expression,
    )
        .prop_map(|(name, expression)| format!("{name}: {expression}"));
    vec(rule, 1..6).prop_map(|rules| rules.join("\n")).boxed()
}

/// A tree of xgrammar's formats.
fn tag() -> BoxedStrategy<Value> {
    let leaf = prop_oneof![
        text().prop_map(|text| json!({"type": "const_string", "value": text})),
        schema().prop_map(|schema| json!({"type": "json_schema", "json_schema": schema})),
        (schema(), select(vec!["qwen_xml", "minimax_xml", "deepseek_xml", "glm_xml", "no-such"]))
            .prop_map(|(schema, style)| json!({"type": "json_schema", "json_schema": schema, "style": style})),
        regex().prop_map(|regex| json!({"type": "regex", "pattern": regex})),
        lark().prop_map(|grammar| json!({"type": "grammar", "grammar": grammar})),
        text().prop_map(|token| json!({"type": "token", "token": token})),
        Just(json!({"type": "any_text"})),
        json(),
    ];
    leaf.prop_recursive(3, 16, 4, |inner| {
        let list = vec(inner.clone(), 0..4).prop_map(Value::Array).boxed();
        prop_oneof![
            list.clone().prop_map(|elements| json!({"type": "sequence", "elements": elements})),
            list.clone().prop_map(|elements| json!({"type": "or", "elements": elements})),
            (text(), inner.clone(), text())
                .prop_map(|(begin, content, end)| json!({"type": "tag", "begin": begin, "content": content, "end": end})),
            (vec(text(), 0..3), list, any::<bool>(), any::<bool>()).prop_map(|(triggers, tags, one, stop)| {
                json!({"type": "triggered_tags", "triggers": triggers, "tags": tags, "at_least_one": one, "stop_after_first": stop})
            }),
            inner.prop_map(|content| json!({"type": "star", "content": content})),
        ]
    })
    .prop_map(|format| json!({"type": "structural_tag", "format": format}))
    .boxed()
}

/// `structured_outputs`, mostly with one constraint.
pub fn structured_outputs() -> BoxedStrategy<Value> {
    let one = prop_oneof![
        3 => schema().prop_map(|schema| json!({"json": schema})),
        3 => regex().prop_map(|regex| json!({"regex": regex})),
        2 => vec(text(), 0..6).prop_map(|texts| json!({"choice": texts})),
        1 => (1usize..3000).prop_map(|count| json!({"choice": (0..count).map(|number| format!("choice {number}")).collect::<Vec<_>>()})),
        4 => lark().prop_map(|grammar| json!({"grammar": grammar})),
        3 => tag().prop_map(|tag| json!({"structural_tag": tag.to_string()})),
        1 => tag().prop_map(|tag| json!({"structural_tag": tag})),
    ];
    prop_oneof![8 => one, 1 => json()].boxed()
}

pub fn response_format() -> BoxedStrategy<Value> {
    prop_oneof![
        1 => select(vec![json!({"type": "text"}), json!({"type": "json_object"})]),
        4 => (schema(), any::<bool>())
            .prop_map(|(schema, strict)| json!({"type": "json_schema", "json_schema": {"name": "n", "schema": schema, "strict": strict}})),
        1 => tag(),
        1 => json(),
    ]
    .boxed()
}
