//! Which keywords contain schemas.

use serde_json::{Map, Value};

/// Keywords whose value is a schema, a list of schemas, or an object of schemas.
pub(super) const ONE: &[&str] = &[
    "not",
    "if",
    "then",
    "else",
    "items",
    "additionalItems",
    "contains",
    "additionalProperties",
    "propertyNames",
    "unevaluatedItems",
    "unevaluatedProperties",
    "contentSchema",
];
pub(super) const LIST: &[&str] = &["allOf", "anyOf", "oneOf", "prefixItems", "items"];
pub(super) const NAMED: &[&str] =
    &["properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"];

/// The direct subschemas, with relative pointers.
pub(super) fn below(map: &Map<String, Value>) -> Vec<(String, &Value)> {
    let mut all = Vec::new();
    for (keyword, value) in map {
        match value {
            Value::Object(_) if ONE.contains(&keyword.as_str()) => all.push((format!("/{keyword}"), value)),
            Value::Object(named) if NAMED.contains(&keyword.as_str()) => {
                let escaped = |name: &str| name.replace('~', "~0").replace('/', "~1");
                all.extend(named.iter().map(|(name, one)| (format!("/{keyword}/{}", escaped(name)), one)));
            }
            Value::Array(list) if LIST.contains(&keyword.as_str()) => {
                all.extend(list.iter().enumerate().map(|(i, one)| (format!("/{keyword}/{i}"), one)));
            }
            _ => {}
        }
    }
    all
}
