//! Merges two schemas into one.

use std::cmp::Ordering;

use serde_json::{Value, json};

use super::constants::{excluded, excludes_constants, values};
use super::range::order;
use super::{Compiler, Schema};
use crate::json_schema::{each, is_annotation, matches, modern};

impl Compiler<'_, '_, '_> {
    /// Both schemas at once. None: they contradict each other.
    pub(super) fn merge(&mut self, mut a: Schema, b: &Schema, path: &str) -> Option<Schema> {
        let mut b = b.clone();
        modern(&mut b);
        self.localise(&mut b, path);
        join_items(&mut a, &mut b);
        self.close_off(&mut a, &mut b, path);
        for (key, theirs) in &b {
            let Some(ours) = a.get(key).cloned() else {
                a.insert(key.clone(), theirs.clone());
                continue;
            };
            if ours == *theirs || is_annotation(key) {
                continue;
            }
            let merged = match key.as_str() {
                "properties" | "patternProperties" => {
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
                    let (ours, theirs) = (each(&ours), each(theirs));
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
                "not" if excludes_constants(&ours) && excludes_constants(theirs) => {
                    let mut all = excluded(&a);
                    all.extend(excluded(&b));
                    json!({"enum": all})
                }
                "enum" => {
                    let theirs = theirs.as_array()?;
                    Value::Array(ours.as_array()?.iter().filter(|v| theirs.contains(v)).cloned().collect())
                }
                "const" => return None,
                // A `not` that only excludes constants waits, so that this terminates.
                "not" if excludes_constants(&ours) => {
                    let mut all = a.get("allOf").and_then(Value::as_array).cloned().unwrap_or_default();
                    all.push(json!({"not": ours}));
                    a.insert("allOf".into(), all.into());
                    theirs.clone()
                }
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
                    if order(&ours, theirs) != Ordering::Less { ours } else { theirs.clone() }
                }
                "maximum" | "exclusiveMaximum" | "maxLength" | "maxItems" | "maxProperties" => {
                    if order(&ours, theirs) != Ordering::Greater { ours } else { theirs.clone() }
                }
                "uniqueItems" => Value::Bool(true),
                // Both must hold: a list, which only merged schemas have.
                "pattern" | "format" => {
                    let mut all = each(&ours);
                    all.extend(each(theirs).into_iter().filter(|one| !each(&ours).contains(one)));
                    Value::Array(all)
                }
                other => {
                    self.relax(path, other);
                    ours
                }
            };
            a.insert(key.clone(), merged);
        }
        possible(&a).then_some(a)
    }

    /// Rewrites what a schema says of properties and items that only it knows, before it is merged into another.
    fn localise(&mut self, b: &mut Schema, path: &str) {
        const APPLICATORS: &[&str] =
            &["$ref", "allOf", "anyOf", "oneOf", "if", "dependentSchemas", "patternProperties"];
        for (keyword, plain) in [("unevaluatedProperties", "additionalProperties"), ("unevaluatedItems", "items")] {
            let Some(schema) = b.remove(keyword) else { continue };
            if APPLICATORS.iter().any(|k| b.contains_key(*k)) {
                self.relax(path, keyword);
            } else {
                b.entry(plain).or_insert(schema);
            }
        }
    }

    /// Applies `additionalProperties` of one schema to the properties of the other.
    fn close_off(&mut self, a: &mut Schema, b: &mut Schema, path: &str) {
        let patterns = [&*a, &*b].map(|m| m.get("patternProperties").cloned());
        let clear = patterns[0] == patterns[1];
        for forward in [true, false] {
            let (from, to) = if forward { (&*a, &mut *b) } else { (&*b, &mut *a) };
            let Some(rest) = from.get("additionalProperties").filter(|r| **r != Value::Bool(true)).cloned() else {
                continue;
            };
            if !clear {
                self.relax(path, "additionalProperties");
            }
            let named = from.get("properties").and_then(Value::as_object);
            let known: Vec<String> = named.into_iter().flatten().map(|(k, _)| k.clone()).collect();
            let own: Vec<String> = patterns[usize::from(!forward)]
                .iter()
                .filter_map(Value::as_object)
                .flatten()
                .map(|(k, _)| k.clone())
                .collect();
            let Some(theirs) = to.get_mut("properties").and_then(Value::as_object_mut) else { continue };
            for (name, schema) in theirs.iter_mut().filter(|(name, _)| !known.contains(name)) {
                if !own.iter().any(|pattern| matches(pattern, name)) {
                    *schema = if rest == Value::Bool(false) { rest.clone() } else { json!({"allOf": [schema, rest]}) };
                }
            }
        }
    }
}

/// Items by place, if one of two merged schemas has them: the other's items apply after its places.
fn join_items(a: &mut Schema, b: &mut Schema) {
    let places = |m: &Schema| m.get("prefixItems").and_then(Value::as_array).map_or(0, Vec::len);
    let n = places(a).max(places(b));
    if n == 0 {
        return;
    }
    let at = |m: &Schema, i: usize| {
        let place = m.get("prefixItems").and_then(|p| p.get(i));
        place.or_else(|| m.get("items")).cloned().unwrap_or(Value::Bool(true))
    };
    let both = |i: usize| match (at(a, i), at(b, i)) {
        (Value::Bool(true), one) | (one, Value::Bool(true)) => one,
        (one, other) if one == other => one,
        (one, other) => json!({"allOf": [one, other]}),
    };
    let prefix: Vec<Value> = (0..n).map(both).collect();
    b.remove("prefixItems");
    a.insert("prefixItems".into(), prefix.into());
}

/// False if a required property can have no value, as far as constants show.
fn possible(flat: &Schema) -> bool {
    let required = flat.get("required").and_then(Value::as_array);
    let properties = flat.get("properties").and_then(Value::as_object);
    if flat.get("type") != Some(&"object".into()) {
        return true;
    }
    !required.into_iter().flatten().filter_map(Value::as_str).any(|name| {
        let schema = properties.and_then(|p| p.get(name));
        schema == Some(&Value::Bool(false)) || schema.is_some_and(|s| constants_within(s).is_some_and(|v| v.is_empty()))
    })
}

/// The constants that remain in a schema and its combinations.
fn constants_within(schema: &Value) -> Option<Vec<Value>> {
    let map = schema.as_object()?;
    let parts = map.get("allOf").and_then(Value::as_array).into_iter().flatten();
    let own = if map.contains_key("const") || map.contains_key("enum") { values(map) } else { None };
    let mut left = own;
    let mut banned = excluded(map);
    for part in parts {
        match constants_within(part) {
            Some(theirs) => {
                left = Some(match left {
                    Some(ours) => ours.into_iter().filter(|v| theirs.contains(v)).collect(),
                    None => theirs,
                });
            }
            None => banned.extend(part.as_object().map(excluded).unwrap_or_default()),
        }
    }
    left.map(|left| left.into_iter().filter(|v| !banned.contains(v)).collect())
}
