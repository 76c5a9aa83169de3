//! Schemas without combinators: references resolved, `allOf` merged, `anyOf` and `oneOf` spelled out.

use serde_json::{Value, json};

use super::{Compiler, Schema};
use crate::rules::RuleError;

/// Keywords that say nothing about values, or that are read where they matter.
pub(super) fn is_annotation(keyword: &str) -> bool {
    const CONSTRAINTS: &[&str] = &[
        "$ref",
        "$dynamicRef",
        "allOf",
        "anyOf",
        "oneOf",
        "not",
        "if",
        "const",
        "enum",
        "type",
        "properties",
        "required",
        "additionalProperties",
        "patternProperties",
        "propertyNames",
        "minProperties",
        "maxProperties",
        "dependentRequired",
        "dependentSchemas",
        "dependencies",
        "unevaluatedProperties",
        "items",
        "prefixItems",
        "additionalItems",
        "minItems",
        "maxItems",
        "uniqueItems",
        "contains",
        "unevaluatedItems",
        "minLength",
        "maxLength",
        "pattern",
        "format",
        "minimum",
        "maximum",
        "exclusiveMinimum",
        "exclusiveMaximum",
        "multipleOf",
    ];
    !CONSTRAINTS.contains(&keyword)
}

/// The constants that a schema allows, if it lists them.
pub(super) fn values(flat: &Schema) -> Option<Vec<Value>> {
    let listed = match (flat.get("const"), flat.get("enum")) {
        (Some(one), None) => vec![one.clone()],
        (None, Some(many)) => many.as_array()?.clone(),
        (Some(one), Some(many)) => many.as_array()?.iter().filter(|v| *v == one).cloned().collect(),
        (None, None) => return None,
    };
    let mut rest: Schema =
        flat.iter().filter(|(k, _)| !is_annotation(k)).map(|(k, v)| (k.clone(), v.clone())).collect();
    rest.retain(|k, _| k != "const" && k != "enum");
    if rest.is_empty() {
        return Some(listed);
    }
    if rest.len() == 1 && rest.contains_key("type") {
        let types = types(flat);
        return Some(listed.into_iter().filter(|v| types.iter().any(|t| is_type(v, t))).collect());
    }
    let rest = Value::Object(rest);
    match jsonschema::draft202012::new(&rest) {
        Ok(validator) => Some(listed.into_iter().filter(|v| validator.is_valid(v)).collect()),
        Err(_) => Some(listed),
    }
}

fn is_type(value: &Value, kind: &str) -> bool {
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

/// The types that a schema names, or that its other keywords imply; empty for any.
pub(super) fn types(flat: &Schema) -> Vec<&str> {
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
    const IMPLIED: &[(&str, &[&str])] = &[
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
            ],
        ),
        ("array", &["items", "prefixItems", "minItems", "maxItems", "uniqueItems", "contains"]),
        ("string", &["minLength", "maxLength", "pattern", "format"]),
        ("number", &["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"]),
    ];
    IMPLIED.iter().filter(|(_, keys)| keys.iter().any(|k| flat.contains_key(*k))).map(|(t, _)| *t).collect()
}

/// Whether no value can satisfy two of the schemas, as far as types and constants tell.
pub(super) fn disjoint(options: &[Value]) -> bool {
    let apart = |a: &Value, b: &Value| {
        let (Some(a), Some(b)) = (a.as_object(), b.as_object()) else { return false };
        let typed = |m: &Schema| {
            if m.keys().any(|k| matches!(k.as_str(), "$ref" | "allOf" | "anyOf" | "oneOf")) {
                return Vec::new();
            }
            types(m)
                .into_iter()
                .map(|t| if t == "integer" { "number" } else { t })
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        let (ta, tb) = (typed(a), typed(b));
        if !ta.is_empty() && !tb.is_empty() && !ta.iter().any(|t| tb.contains(t)) {
            return true;
        }
        if let (Some(va), Some(vb)) = (values(a), values(b)) {
            return !va.iter().any(|v| vb.contains(v));
        }
        // A property that both require and that tells them apart.
        let required = |m: &Schema, key: &str| {
            m.get("required").and_then(Value::as_array).is_some_and(|r| r.iter().any(|v| v == key))
        };
        let (Some(pa), Some(pb)) =
            (a.get("properties").and_then(Value::as_object), b.get("properties").and_then(Value::as_object))
        else {
            return false;
        };
        pa.iter().any(|(key, sa)| {
            let (Some(sa), Some(sb)) = (sa.as_object(), pb.get(key).and_then(Value::as_object)) else { return false };
            required(a, key)
                && required(b, key)
                && matches!((values(sa), values(sb)), (Some(va), Some(vb)) if !va.iter().any(|v| vb.contains(v)))
        })
    };
    options.iter().enumerate().all(|(i, a)| options[i + 1..].iter().all(|b| apart(a, b)))
}

impl<'s> Compiler<'s, '_, '_> {
    /// What a reference points at, with its path.
    pub(super) fn resolve(&self, reference: &str, path: &str) -> Result<(&'s Value, String), RuleError> {
        let unknown = || self.refuse(path, "$ref", &format!("{reference:?} is not a place in this schema"));
        let pointer = reference.strip_prefix('#').ok_or_else(unknown)?;
        let pointer = percent_decoded(pointer);
        if pointer.is_empty() {
            return Ok((self.root, String::new()));
        }
        self.root.pointer(&pointer).map(|v| (v, pointer.clone())).ok_or_else(unknown)
    }

    /// The schema as a union of schemas without combinators.
    pub(super) fn flatten(&mut self, map: &Schema, path: &str) -> Result<Vec<Schema>, RuleError> {
        self.enter(path)?;
        let mut map = map.clone();
        let out = if let Some(reference) = map.remove("$ref") {
            let reference = reference.as_str().unwrap_or_default().to_owned();
            let (target, at) = self.resolve(&reference, path)?;
            self.combine(map, target, &at)?
        } else if let Some((keyword, options)) = ["anyOf", "oneOf"].into_iter().find_map(|k| Some((k, map.remove(k)?)))
        {
            let options = options.as_array().cloned().unwrap_or_default();
            if keyword == "oneOf" && !disjoint(&options) {
                self.relax(path, keyword);
            }
            let mut all = Vec::new();
            for (i, option) in options.iter().enumerate() {
                all.extend(self.combine(map.clone(), option, &format!("{path}/{keyword}/{i}"))?);
            }
            all
        } else if let Some(all) = map.remove("allOf") {
            let mut parts = all.as_array().cloned().unwrap_or_default().into_iter();
            match parts.next() {
                Some(first) => {
                    let rest: Vec<Value> = parts.collect();
                    if !rest.is_empty() {
                        map.insert("allOf".into(), rest.into());
                    }
                    self.combine(map, &first, &format!("{path}/allOf"))?
                }
                None => vec![map],
            }
        } else {
            vec![map]
        };
        self.depth -= 1;
        Ok(out)
    }

    fn combine(&mut self, base: Schema, other: &Value, path: &str) -> Result<Vec<Schema>, RuleError> {
        match other {
            Value::Bool(true) => self.flatten(&base, path),
            Value::Object(other) => match self.merge(base, other, path) {
                Some(merged) => self.flatten(&merged, path),
                None => Ok(Vec::new()),
            },
            _ => Ok(Vec::new()),
        }
    }

    /// Both schemas at once; none if they contradict.
    fn merge(&mut self, mut a: Schema, b: &Schema, path: &str) -> Option<Schema> {
        close(&mut a, b)?;
        for (key, theirs) in b {
            let Some(ours) = a.get(key).cloned() else {
                a.insert(key.clone(), theirs.clone());
                continue;
            };
            if ours == *theirs || is_annotation(key) {
                continue;
            }
            let merged = match key.as_str() {
                "properties" => {
                    let (mut ours, theirs) = (ours.as_object()?.clone(), theirs.as_object()?);
                    for (name, schema) in theirs {
                        let both = match ours.get(name) {
                            Some(mine) if mine != schema => json!({"allOf": [mine, schema]}),
                            _ => schema.clone(),
                        };
                        ours.insert(name.clone(), both);
                    }
                    Value::Object(ours)
                }
                "required" => {
                    let mut ours = ours.as_array()?.clone();
                    let more: Vec<_> = theirs.as_array()?.iter().filter(|v| !ours.contains(v)).cloned().collect();
                    ours.extend(more);
                    Value::Array(ours)
                }
                "type" => {
                    let list = |v: &Value| match v {
                        Value::Array(many) => many.clone(),
                        one => vec![one.clone()],
                    };
                    let (ours, theirs) = (list(&ours), list(theirs));
                    let has =
                        |l: &[Value], t: &Value| l.contains(t) || (*t == "integer" && l.contains(&"number".into()));
                    let mut both: Vec<Value> = ours.iter().filter(|t| has(&theirs, t)).cloned().collect();
                    both.extend(
                        theirs.iter().filter(|t| has(&ours, t) && !both.contains(t)).cloned().collect::<Vec<_>>(),
                    );
                    if both.is_empty() {
                        return None;
                    }
                    Value::Array(both)
                }
                "enum" => {
                    let theirs = theirs.as_array()?;
                    Value::Array(ours.as_array()?.iter().filter(|v| theirs.contains(v)).cloned().collect())
                }
                "const" => return None,
                "anyOf" | "oneOf" | "$ref" | "allOf" => {
                    let mut all = a.get("allOf").and_then(Value::as_array).cloned().unwrap_or_default();
                    if key == "allOf" {
                        all.extend(theirs.as_array()?.clone());
                    } else {
                        all.push(json!({ key: theirs }));
                    }
                    a.insert("allOf".into(), all.into());
                    continue;
                }
                "items" | "additionalProperties" | "propertyNames" => json!({"allOf": [ours, theirs]}),
                "minimum" | "exclusiveMinimum" | "minLength" | "minItems" | "minProperties" => {
                    if ours.as_f64() >= theirs.as_f64() { ours } else { theirs.clone() }
                }
                "maximum" | "exclusiveMaximum" | "maxLength" | "maxItems" | "maxProperties" => {
                    if ours.as_f64() <= theirs.as_f64() { ours } else { theirs.clone() }
                }
                "uniqueItems" => Value::Bool(true),
                other => {
                    self.relax(path, other);
                    ours
                }
            };
            a.insert(key.clone(), merged);
        }
        Some(a)
    }
}

/// What an object that takes no other property does to another's properties.
fn close(a: &mut Schema, b: &Schema) -> Option<()> {
    let closed = |m: &Schema| m.get("additionalProperties") == Some(&Value::Bool(false));
    let names = |m: &Schema| -> Vec<String> {
        m.get("properties").and_then(Value::as_object).map(|p| p.keys().cloned().collect()).unwrap_or_default()
    };
    let (closed_a, closed_b) = (closed(a), closed(b));
    let (names_a, names_b) = (names(a), names(b));
    let mut forbid = Vec::new();
    if closed_a {
        forbid.extend(names_b.iter().filter(|n| !names_a.contains(n)).cloned());
    }
    if closed_b {
        forbid.extend(names_a.iter().filter(|n| !names_b.contains(n)).cloned());
    }
    if !forbid.is_empty() {
        let mut all = a.get("allOf").and_then(Value::as_array).cloned().unwrap_or_default();
        let never: Schema = forbid.into_iter().map(|n| (n, Value::Bool(false))).collect();
        all.push(json!({"properties": never}));
        a.insert("allOf".into(), all.into());
    }
    if closed_a || closed_b {
        a.insert("additionalProperties".into(), Value::Bool(false));
        a.entry("properties").or_insert_with(|| json!({}));
    }
    Some(())
}

fn percent_decoded(pointer: &str) -> String {
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
