//! The JSON types that a tool's schema allows for an argument: enough to read raw values back. It does not validate.

use serde_json::Value;

use super::names::matches;

const NULL: u8 = 1;
const BOOLEAN: u8 = 2;
const NUMBER: u8 = 4;
const STRING: u8 = 8;
const ARRAY: u8 = 16;
const OBJECT: u8 = 32;
const ANY: u8 = 63;
/// Limit of followed references and of nested schemas.
const MAX_DEPTH: usize = 16;

/// The JSON types that an argument may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Types(u8);

impl Types {
    pub const ANY: Types = Types(ANY);
    pub const STRING: Types = Types(STRING);
    pub const UNKNOWN_BUT_STRING: Types = Types(ANY & !STRING);

    /// The types of the argument `key`. An argument without a schema is a string, as on the wire.
    pub fn of(parameters: Option<&Value>, key: &str) -> Types {
        let Some(root) = parameters else { return Types::STRING };
        match property(root, root, key, MAX_DEPTH) {
            Some(schema) => Types(types(root, schema, MAX_DEPTH)),
            None => Types::STRING,
        }
    }

    /// The types that one schema of a root allows.
    pub fn of_schema(root: &Value, schema: &Value) -> Types {
        Types(types(root, schema, MAX_DEPTH))
    }

    /// Those of both; unchanged if no type would be left.
    pub fn and(self, other: Types) -> Types {
        Types(if self.0 & other.0 == 0 { self.0 } else { self.0 & other.0 })
    }

    /// From a type's name, as some formats write it beside the value.
    pub fn named(name: &str) -> Option<Types> {
        bit(name).map(Types)
    }

    /// Without strings, or only strings, as the model wrote; unchanged if no type would be left.
    pub fn narrowed_to(self, string: bool) -> Types {
        let narrowed = if string { self.0 & STRING } else { self.0 & !STRING };
        Types(if narrowed == 0 { self.0 } else { narrowed })
    }

    pub fn is_string(self) -> bool {
        self.0 == STRING
    }

    pub fn may_be_string(self) -> bool {
        self.0 & STRING != 0
    }

    pub fn may_be_list(self) -> bool {
        self.0 & ARRAY != 0
    }

    pub fn may_be_object(self) -> bool {
        self.0 & OBJECT != 0
    }

    pub fn may_be_null(self) -> bool {
        self.0 & NULL != 0
    }

    pub fn allows(self, value: &Value) -> bool {
        self.0 & bit_of(value) != 0
    }
}

/// The names of the arguments that a schema lists itself.
pub(crate) fn declared(parameters: Option<&Value>) -> Vec<String> {
    let properties = parameters.and_then(|root| root.get("properties")).and_then(Value::as_object);
    properties.map(|properties| properties.keys().cloned().collect()).unwrap_or_default()
}

/// Whether the schema has a property of this name.
pub(crate) fn declares(parameters: Option<&Value>, key: &str) -> bool {
    parameters.is_some_and(|root| listed(root, root, key, MAX_DEPTH).is_some())
}

/// Common names of types that JSON Schema does not define are accepted.
fn bit(name: &str) -> Option<u8> {
    Some(match name {
        "null" | "none" | "None" => NULL,
        "boolean" | "bool" => BOOLEAN,
        "integer" | "number" | "int" | "float" | "double" => NUMBER,
        "string" | "str" => STRING,
        "array" | "list" | "tuple" => ARRAY,
        "object" | "dict" => OBJECT,
        _ => return None,
    })
}

fn bit_of(value: &Value) -> u8 {
    match value {
        Value::Null => NULL,
        Value::Bool(_) => BOOLEAN,
        Value::Number(_) => NUMBER,
        Value::String(_) => STRING,
        Value::Array(_) => ARRAY,
        Value::Object(_) => OBJECT,
    }
}

fn property<'a>(root: &'a Value, schema: &'a Value, key: &str, depth: usize) -> Option<&'a Value> {
    let patterns = || schema.get("patternProperties").and_then(Value::as_object);
    let matched = || patterns()?.iter().find(|(pattern, _)| matches(pattern, key)).map(|(_, schema)| schema);
    let other = || schema.get("additionalProperties").filter(|s| s.is_object());
    listed(root, schema, key, depth).or_else(matched).or_else(other)
}

fn listed<'a>(root: &'a Value, schema: &'a Value, key: &str, depth: usize) -> Option<&'a Value> {
    if depth == 0 {
        return None;
    }
    if let Some(found) = schema.get("properties").and_then(|p| p.get(key)) {
        return Some(found);
    }
    let parts = ["anyOf", "oneOf", "allOf"].iter().filter_map(|k| schema.get(*k)?.as_array()).flatten();
    parts.chain(target(root, schema)).find_map(|s| listed(root, s, key, depth - 1))
}

fn target<'a>(root: &'a Value, schema: &Value) -> Option<&'a Value> {
    let path = schema.get("$ref")?.as_str()?.strip_prefix('#')?;
    root.pointer(path)
}

fn types(root: &Value, schema: &Value, depth: usize) -> u8 {
    if depth == 0 {
        return ANY;
    }
    let mut found = match schema.get("type") {
        Some(Value::String(name)) => bit(name).unwrap_or(ANY),
        Some(Value::Array(names)) => names.iter().filter_map(|n| bit(n.as_str()?)).reduce(|a, b| a | b).unwrap_or(ANY),
        _ => ANY,
    };
    if let Some(values) = schema.get("enum").and_then(Value::as_array) {
        found &= values.iter().map(bit_of).reduce(|a, b| a | b).unwrap_or(ANY);
    }
    if let Some(value) = schema.get("const") {
        found &= bit_of(value);
    }
    for key in ["anyOf", "oneOf"] {
        if let Some(parts) = schema.get(key).and_then(Value::as_array) {
            found &= parts.iter().map(|s| types(root, s, depth - 1)).reduce(|a, b| a | b).unwrap_or(ANY);
        }
    }
    for part in schema.get("allOf").and_then(Value::as_array).into_iter().flatten() {
        found &= types(root, part, depth - 1);
    }
    if let Some(target) = target(root, schema) {
        found &= types(root, target, depth - 1);
    }
    if schema.get("type").is_none() && found == ANY {
        if schema.get("properties").is_some() {
            found = OBJECT;
        } else if schema.get("items").is_some() {
            found = ARRAY;
        }
    }
    if found == 0 { ANY } else { found }
}

#[cfg(test)]
mod tests;
