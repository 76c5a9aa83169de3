//! Rewrites `not` as schemas without it.

use serde_json::{Value, json};

use super::constants::excludes_constants;
use super::{Compiler, Schema};
use crate::json_schema::{TYPES, is_annotation, size};
use crate::limits::{MAX_COMPARISON_STEPS, MAX_SCHEMA_DEPTH};

impl Compiler<'_, '_, '_> {
    /// A union of schemas that accepts exactly what this one rejects. None: that cannot be expressed.
    pub(super) fn negated(&self, schema: &Value) -> Option<Vec<Value>> {
        self.steps.set(MAX_COMPARISON_STEPS);
        self.negate(schema, 0)
    }

    fn negate(&self, schema: &Value, depth: usize) -> Option<Vec<Value>> {
        if depth > MAX_SCHEMA_DEPTH || !self.step(1) {
            return None;
        }
        let map = match schema {
            Value::Bool(true) => return Some(Vec::new()),
            Value::Bool(false) => return Some(vec![Value::Bool(true)]),
            Value::Object(map) => map,
            _ => return None,
        };
        if excludes_constants(schema) {
            return Some(vec![json!({"not": schema})]);
        }
        let mut all = Vec::new();
        for (keyword, value) in map.iter().filter(|(k, _)| !is_annotation(k)) {
            all.extend(self.negate_one(map, keyword, value, depth)?);
        }
        Some(all)
    }

    fn negate_one(&self, map: &Schema, keyword: &str, value: &Value, depth: usize) -> Option<Vec<Value>> {
        let typed = |kind: &str, keyword: &str, value: Value| json!({"type": kind, keyword: value});
        let count = |by: i64| value.as_i64().map(|n| n + by);
        if !self.step(size(value)) {
            return None;
        }
        Some(match keyword {
            "$ref" => {
                let (target, _) = self.resolve(value.as_str()?, "").ok()?;
                return self.negate(target, depth + 1);
            }
            "not" => vec![value.clone()],
            "allOf" => {
                let parts: Option<Vec<_>> = value.as_array()?.iter().map(|one| self.negate(one, depth + 1)).collect();
                parts?.concat()
            }
            "anyOf" => {
                let each: Option<Vec<Value>> = value
                    .as_array()?
                    .iter()
                    .map(|one| self.negate(one, depth + 1).map(|parts| json!({"anyOf": parts})))
                    .collect();
                vec![json!({"allOf": each?})]
            }
            "type" => {
                let named: Vec<&str> = match value {
                    Value::String(one) => vec![one],
                    Value::Array(many) => many.iter().filter_map(Value::as_str).collect(),
                    _ => return None,
                };
                if named.contains(&"integer") && !named.contains(&"number") {
                    return None;
                }
                let rest: Vec<&str> = TYPES.into_iter().filter(|t| !named.contains(t)).collect();
                if rest.is_empty() { Vec::new() } else { vec![json!({"type": rest})] }
            }
            "const" => vec![json!({"not": {"const": value}})],
            "enum" => vec![json!({"not": {"enum": value}})],
            "minimum" if value.is_number() => vec![typed("number", "exclusiveMaximum", value.clone())],
            "maximum" if value.is_number() => vec![typed("number", "exclusiveMinimum", value.clone())],
            "exclusiveMinimum" if value.is_number() => vec![typed("number", "maximum", value.clone())],
            "exclusiveMaximum" if value.is_number() => vec![typed("number", "minimum", value.clone())],
            "minLength" | "minItems" | "minProperties" => {
                let most = count(-1)?;
                let (kind, keyword) = sized(keyword, "max");
                if most < 0 { Vec::new() } else { vec![typed(kind, &keyword, most.into())] }
            }
            "maxLength" | "maxItems" | "maxProperties" => {
                let (kind, keyword) = sized(keyword, "min");
                vec![typed(kind, &keyword, count(1)?.into())]
            }
            "required" => {
                let names = value.as_array()?.iter().filter_map(Value::as_str);
                names.map(|name| json!({"type": "object", "properties": {name: false}})).collect()
            }
            "properties" => {
                let wrong = |(name, schema): (&String, &Value)| json!({"type": "object", "required": [name], "properties": {name: {"not": schema}}});
                value.as_object()?.iter().map(wrong).collect()
            }
            "items" if !value.is_array() && !map.contains_key("prefixItems") => {
                vec![json!({"type": "array", "contains": {"not": value}})]
            }
            "contains" if !map.contains_key("minContains") && !map.contains_key("maxContains") => {
                vec![json!({"type": "array", "items": {"not": value}})]
            }
            _ => return None,
        })
    }
}

/// The type that a size belongs to, and the keyword for its other end.
fn sized(keyword: &str, end: &str) -> (&'static str, String) {
    let what = &keyword[3..];
    let kind = match what {
        "Length" => "string",
        "Items" => "array",
        _ => "object",
    };
    (kind, format!("{end}{what}"))
}
