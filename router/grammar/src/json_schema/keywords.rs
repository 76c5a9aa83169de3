//! The keywords of JSON Schema: what each of them applies to, and older forms of some.

use serde_json::Value;

use super::Schema;

/// The types of values.
pub(crate) const TYPES: [&str; 6] = ["object", "array", "string", "number", "boolean", "null"];

/// Keywords that constrain values of one type, by type.
const TYPED: &[(&str, &[&str])] = &[
    (
        "object",
        &[
            "properties",
            "required",
            "additionalProperties",
            "patternProperties",
            "propertyNames",
            "minProperties",
            "maxProperties",
            "unevaluatedProperties",
        ],
    ),
    ("array", &["items", "prefixItems", "minItems", "maxItems", "uniqueItems", "contains", "unevaluatedItems"]),
    ("string", &["minLength", "maxLength", "pattern", "format"]),
    ("number", &["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"]),
];

/// Other keywords that constrain values.
const UNTYPED: &[&str] = &[
    "$ref",
    "$dynamicRef",
    "allOf",
    "anyOf",
    "oneOf",
    "not",
    "if",
    "then",
    "else",
    "const",
    "enum",
    "type",
    "dependentRequired",
    "dependentSchemas",
    "dependencies",
    "additionalItems",
    "minContains",
    "maxContains",
];

/// Keywords that do not constrain values, or that are read elsewhere.
pub(crate) fn is_annotation(keyword: &str) -> bool {
    !UNTYPED.contains(&keyword) && !TYPED.iter().any(|(_, keywords)| keywords.contains(&keyword))
}

/// Whether a value has this type.
pub(crate) fn is_type(value: &Value, kind: &str) -> bool {
    match value {
        Value::Null => kind == "null",
        Value::Bool(_) => kind == "boolean",
        Value::Number(n) => {
            kind == "number"
                || (kind == "integer" && (n.is_i64() || n.is_u64() || n.as_f64().is_some_and(|f| f.fract() == 0.0)))
        }
        Value::String(_) => kind == "string",
        Value::Array(_) => kind == "array",
        Value::Object(_) => kind == "object",
    }
}

/// The types that a schema names, or that its other keywords imply. Empty: any.
pub(crate) fn types(flat: &Schema) -> Vec<&str> {
    match flat.get("type") {
        Some(Value::String(one)) => return vec![one],
        Some(Value::Array(many)) => {
            let mut all: Vec<_> = many.iter().filter_map(Value::as_str).collect();
            if all.contains(&"number") {
                all.retain(|t| *t != "integer");
            }
            return all;
        }
        _ => {}
    }
    TYPED.iter().filter(|(_, keys)| keys.iter().any(|k| flat.contains_key(*k))).map(|(t, _)| *t).collect()
}

/// The values of a keyword, given once or several times.
pub(crate) fn each(value: &Value) -> Vec<Value> {
    match value {
        Value::Array(many) => many.clone(),
        one => vec![one.clone()],
    }
}

/// Rewrites keywords of older drafts in their current form.
pub(crate) fn modern(map: &mut Schema) {
    if map.get("items").is_some_and(Value::is_array) {
        let prefix = map.remove("items").unwrap_or_default();
        map.insert("prefixItems".into(), prefix);
        if let Some(rest) = map.remove("additionalItems") {
            map.insert("items".into(), rest);
        }
    }
    map.remove("additionalItems");
    for (plain, exclusive) in [("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")] {
        match map.get(exclusive) {
            Some(Value::Bool(true)) => {
                let Some(limit) = map.remove(plain) else { continue };
                map.insert(exclusive.into(), limit);
            }
            Some(Value::Bool(false)) => drop(map.remove(exclusive)),
            _ => {}
        }
    }
    if !map.contains_key("if") {
        map.remove("then");
        map.remove("else");
    }
}

/// The value of a keyword that counts something.
pub(crate) fn count(flat: &Schema, key: &str) -> Option<usize> {
    flat.get(key).and_then(|v| v.as_u64().or_else(|| v.as_f64().map(|f| f as u64))).map(|n| n as usize)
}

/// The number of nodes of a schema.
pub(crate) fn size(value: &Value) -> u64 {
    match value {
        Value::Object(map) => size_of_map(map),
        Value::Array(all) => 1 + all.iter().map(size).sum::<u64>(),
        _ => 1,
    }
}

pub(crate) fn size_of_map(map: &Schema) -> u64 {
    1 + map.values().map(size).sum::<u64>()
}

/// Decodes the percent escapes of a reference.
pub(crate) fn percent_decoded(pointer: &str) -> String {
    let mut out = Vec::new();
    let mut rest = pointer.as_bytes();
    while let [first, after @ ..] = rest {
        let hex = after.get(..2).filter(|_| *first == b'%').and_then(|hex| std::str::from_utf8(hex).ok());
        match hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) => {
                out.push(byte);
                rest = &after[2..];
            }
            None => {
                out.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}
