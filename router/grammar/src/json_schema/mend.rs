//! Reads schemas as their authors meant them where JSON Schema gives them no meaning: serializers write absent keywords
//! as null and empty objects as lists, and other languages have other names for types. One such schema would refuse all
//! tools of an agent, for ever.

use std::collections::HashSet;

use jsonschema::Draft;
use serde_json::{Value, json};

use super::draft::{fault, is_anchor, named};
use super::keywords::{TYPES, percent_decoded};
use super::refs::dangling;
use super::subschemas::{LIST, NAMED, ONE};
use super::{Schema, is_type};
use crate::limits::MAX_SCHEMA_BYTES;

/// What the value of a keyword must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    Schema,
    /// A schema, or a list of schemas.
    Items,
    /// A list of at least one schema.
    Schemas,
    /// An object of schemas.
    Named,
    /// An object of schemas or lists of names.
    Dependencies,
    Type,
    Values,
    Count,
    Number,
    /// A number, or the boolean of Draft 4.
    Limit,
    Divisor,
    Flag,
    Text,
    Names,
    /// An object of lists of names.
    NameLists,
    /// No constraint depends on it.
    Note(Note),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Note {
    Text,
    Flag,
    List,
}

/// The first entry with a keyword counts.
const SHAPES: &[(&[&str], Shape)] = &[
    (&["items"], Shape::Items),
    (&["dependencies"], Shape::Dependencies),
    (ONE, Shape::Schema),
    (LIST, Shape::Schemas),
    (NAMED, Shape::Named),
    (&["type"], Shape::Type),
    (&["enum"], Shape::Values),
    (
        &[
            "minLength",
            "maxLength",
            "minItems",
            "maxItems",
            "minProperties",
            "maxProperties",
            "minContains",
            "maxContains",
        ],
        Shape::Count,
    ),
    (&["minimum", "maximum"], Shape::Number),
    (&["exclusiveMinimum", "exclusiveMaximum"], Shape::Limit),
    (&["multipleOf"], Shape::Divisor),
    (&["uniqueItems"], Shape::Flag),
    (&["pattern", "format", "$ref", "$dynamicRef", "$recursiveRef"], Shape::Text),
    (&["required"], Shape::Names),
    (&["dependentRequired"], Shape::NameLists),
    (
        &[
            "title",
            "description",
            "$comment",
            "contentEncoding",
            "contentMediaType",
            "$id",
            "id",
            "$schema",
            "$anchor",
            "$dynamicAnchor",
        ],
        Shape::Note(Note::Text),
    ),
    (&["deprecated", "readOnly", "writeOnly", "$recursiveAnchor"], Shape::Note(Note::Flag)),
    (&["examples"], Shape::Note(Note::List)),
];

/// The type that another language, or another spelling, calls so.
fn type_named(name: &str) -> Option<&'static str> {
    let name = name.trim().to_ascii_lowercase();
    let meant = match name.as_str() {
        "dict" | "map" | "record" => "object",
        "list" | "tuple" => "array",
        "str" => "string",
        "float" | "double" | "decimal" => "number",
        "int" | "long" => "integer",
        "bool" => "boolean",
        "none" => "null",
        other => other,
    };
    TYPES.into_iter().chain(["integer"]).find(|known| *known == meant)
}

/// A schema, and what in it was given another meaning than JSON Schema gives it, or none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mended {
    pub schema: Value,
    /// JSON pointers.
    pub relaxed: Vec<String>,
}

/// A root that is neither an object nor a boolean stays what it is, and so does a schema that is refused for its size.
pub(crate) fn mended(schema: Value) -> Mended {
    let mut root = schema;
    if !root.is_object() || root.to_string().len() > MAX_SCHEMA_BYTES {
        return Mended { schema: root, relaxed: Vec::new() };
    }
    let recursive = named(&root) == Some(Draft::Draft201909);
    let mut mender = Mender { recursive, relaxed: Vec::new(), targets: Vec::new() };
    mender.schema(&mut root, "");
    // References lead to parts that no keyword contains.
    let mut seen = HashSet::new();
    while let Some(target) = mender.targets.pop() {
        if let (true, Some(part)) = (seen.insert(target.clone()), root.pointer_mut(&target)) {
            mender.schema(part, &target);
        }
    }
    for pointer in dangling(&root) {
        if let Some(Value::Object(map)) = root.pointer_mut(&pointer) {
            map.remove("$ref");
            mender.relax(format!("{pointer}/$ref"));
        }
    }
    // It says that it is of a draft in which it has no meaning: then it is of none.
    let foreign = |root: &Value| match root.get("$schema").and_then(Value::as_str) {
        Some(name) if name.contains("draft-03") => true,
        Some(_) => fault(root).is_some(),
        None => false,
    };
    if foreign(&root)
        && let Value::Object(map) = &mut root
    {
        map.remove("$schema");
    }
    Mended { schema: root, relaxed: mender.relaxed }
}

struct Mender {
    /// The schema is of the draft that has `$recursiveAnchor`.
    recursive: bool,
    relaxed: Vec<String>,
    /// Where local references lead.
    targets: Vec<String>,
}

impl Mender {
    fn relax(&mut self, at: String) {
        self.relaxed.push(at);
    }

    fn schema(&mut self, value: &mut Value, at: &str) {
        match value {
            Value::Object(map) => self.keywords(map, at),
            Value::Bool(_) => {}
            Value::Null => *value = json!({}),
            // PHP writes an empty object so.
            Value::Array(items) if items.is_empty() => *value = json!({}),
            _ => {
                *value = json!({});
                self.relax(at.to_owned());
            }
        }
    }

    fn keywords(&mut self, map: &mut Schema, at: &str) {
        let keys: Vec<String> = map.keys().cloned().collect();
        let mut requires = Vec::new();
        for key in keys {
            let Some((_, shape)) = SHAPES.iter().find(|(names, _)| names.contains(&key.as_str())) else { continue };
            let Some(mut value) = map.get_mut(&key).map(Value::take) else { continue };
            let here = format!("{at}/{key}");
            let known = self.relaxed.len();
            let kept = !value.is_null() && self.keyword(&key, *shape, &mut value, &here, &mut requires);
            // What became wider within these makes them narrower.
            let widened = self.relaxed.len() > known;
            match key.as_str() {
                _ if !kept => drop(map.shift_remove(&key)),
                "not" | "if" if widened => {
                    map.shift_remove(&key);
                    self.relax(here);
                }
                "oneOf" if widened && !map.contains_key("anyOf") => {
                    map.shift_remove(&key);
                    map.insert("anyOf".into(), value);
                    self.relax(here);
                }
                "oneOf" if widened => drop(map.shift_remove(&key)),
                _ => drop(map.insert(key, value)),
            }
        }
        for name in requires {
            let names = map.entry("required").or_insert_with(|| json!([]));
            if let Some(names) = names.as_array_mut().filter(|names| !names.iter().any(|known| *known == name)) {
                names.push(name.into());
            }
        }
        for (plain, exclusive) in [("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")] {
            if map.get(exclusive).is_some_and(Value::is_boolean) && !map.contains_key(plain) {
                map.shift_remove(exclusive);
            }
        }
        // With other types, it is a member that was left out.
        let allows_null = |kind: &Value| match kind {
            Value::String(one) => one == "null",
            Value::Array(many) => many.iter().any(|one| one == "null"),
            _ => true,
        };
        if map.get("const").is_some_and(Value::is_null) && !map.get("type").is_none_or(allows_null) {
            map.shift_remove("const");
        }
    }

    /// Whether the keyword is kept. `requires`: properties that say themselves that they are required.
    fn keyword(&mut self, key: &str, shape: Shape, value: &mut Value, at: &str, requires: &mut Vec<String>) -> bool {
        let fits = match (shape, &mut *value) {
            (Shape::Schema | Shape::Items, Value::Object(_) | Value::Bool(_)) => {
                self.schema(value, at);
                true
            }
            (Shape::Schema | Shape::Items, Value::Array(items)) if items.is_empty() => {
                *value = json!({});
                return !matches!(key, "not" | "if" | "then" | "else");
            }
            (Shape::Items, Value::Array(items)) => {
                self.list(items, at);
                true
            }
            (Shape::Schemas, Value::Array(items)) => {
                items.retain(|item| !item.is_null());
                if items.is_empty() && matches!(key, "allOf" | "prefixItems") {
                    return false;
                }
                self.list(items, at);
                !items.is_empty()
            }
            (Shape::Named | Shape::Dependencies | Shape::NameLists, Value::Array(items)) if items.is_empty() => {
                *value = json!({});
                true
            }
            (Shape::Named | Shape::Dependencies, Value::Object(map)) => {
                for (name, part) in map.iter_mut() {
                    let at = format!("{at}/{}", name.replace('~', "~0").replace('/', "~1"));
                    if shape == Shape::Dependencies && is_names(part) {
                        continue;
                    }
                    // Draft 3 says in the property whether it is required.
                    if let ("properties", Value::Object(members)) = (key, &mut *part)
                        && let Some(Value::Bool(required)) = members.get("required")
                    {
                        if *required {
                            requires.push(name.clone());
                            self.relax(format!("{at}/required"));
                        }
                        members.shift_remove("required");
                    }
                    self.schema(part, &at);
                }
                true
            }
            (Shape::NameLists, Value::Object(map)) => map.values().all(is_names),
            (Shape::Type, _) => return self.kind(value, at),
            (Shape::Values, Value::Array(values)) => {
                let mut seen = HashSet::new();
                values.retain(|value| seen.insert(value.to_string()));
                !values.is_empty()
            }
            (Shape::Count, Value::Number(n)) => n.as_f64().is_some_and(|n| n >= 0.0 && n.fract() == 0.0),
            (Shape::Number | Shape::Limit, Value::Number(_)) | (Shape::Limit | Shape::Flag, Value::Bool(_)) => true,
            (Shape::Divisor, Value::Number(n)) => n.as_f64().is_some_and(|n| n > 0.0),
            (Shape::Text, Value::String(text)) => {
                if let (true, Some(pointer)) = (key == "$ref", text.strip_prefix('#')) {
                    self.targets.push(percent_decoded(pointer));
                }
                true
            }
            (Shape::Names, Value::Array(names)) => {
                let all = names.len();
                names.retain(Value::is_string);
                let (mut seen, some) = (HashSet::new(), names.len());
                names.retain(|name| seen.insert(name.to_string()));
                if some < all {
                    self.relax(at.to_owned());
                }
                // Draft 4 requires one.
                return !names.is_empty();
            }
            (Shape::Note(Note::Text), Value::String(text)) => match key {
                "$anchor" | "$dynamicAnchor" => is_anchor(text),
                _ => true,
            },
            // Other drafts have no such flag.
            (Shape::Note(Note::Flag), Value::Bool(_)) if key == "$recursiveAnchor" => self.recursive,
            (Shape::Note(Note::Flag), Value::Bool(_)) | (Shape::Note(Note::List), Value::Array(_)) => true,
            _ => false,
        };
        if !fits && !matches!(shape, Shape::Note(_)) {
            self.relax(at.to_owned());
        }
        fits
    }

    fn list(&mut self, items: &mut [Value], at: &str) {
        for (i, item) in items.iter_mut().enumerate() {
            self.schema(item, &format!("{at}/{i}"));
        }
    }

    /// Whether the types are kept.
    fn kind(&mut self, value: &mut Value, at: &str) -> bool {
        let given = match &*value {
            Value::Array(many) => many.clone(),
            one => vec![one.clone()],
        };
        let meant = |name: &Value| match name {
            Value::Null => Some("null"),
            Value::String(name) => type_named(name),
            _ => None,
        };
        let mut types: Vec<&str> = given.iter().filter_map(meant).collect();
        let known = types.len() == given.len() && !types.is_empty();
        if !known || types.iter().zip(&given).any(|(meant, given)| meant != given) {
            self.relax(at.to_owned());
        }
        let mut seen = HashSet::new();
        types.retain(|name| seen.insert(*name));
        if value.is_array() {
            *value = json!(types);
        } else {
            *value = json!(types.first());
        }
        known
    }
}

fn is_names(value: &Value) -> bool {
    value.as_array().is_some_and(|names| {
        let mut seen = HashSet::new();
        names.iter().all(|name| is_type(name, "string") && seen.insert(name.to_string()))
    })
}

#[cfg(test)]
mod tests;
