//! Writes tools as TypeScript declarations for Kimi K2.5. The Python code of its tokenizer passes them to the template
//! as `tools_ts_str`. Values are printed as in Python, to match that code.

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;

use serde_json::{Map, Value as Json};

use super::{lossless, python};

/// The template variable.
pub(super) const VARIABLE: &str = "tools_ts_str";

const INDENT: &str = "  ";

/// A schema that cannot be declared; the template then falls back to JSON.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(super) struct UnsupportedSchema(String);

type Result<T> = std::result::Result<T, UnsupportedSchema>;

/// Sorts the keys of all objects.
pub(super) fn sorted(json: &Json) -> Json {
    match json {
        Json::Array(items) => items.iter().map(sorted).collect(),
        Json::Object(map) => {
            let mut entries: Vec<_> = map.iter().collect();
            entries.sort_unstable_by_key(|(key, _)| *key);
            entries.into_iter().map(|(key, value)| (key.clone(), sorted(value))).collect()
        }
        other => other.clone(),
    }
}

/// Declares the functions among the tools, whose keys must be sorted. Empty if there are none.
pub(super) fn declare(tools: &[Json]) -> Result<String> {
    let functions = tools.iter().filter(|tool| tool.get("type").is_some_and(|kind| kind == "function"));
    let functions = functions.filter_map(|tool| tool.get("function")?.as_object()).filter(|map| !map.is_empty());
    let mut out = String::new();
    for function in functions {
        declare_function(function, &mut out)?;
    }
    if out.is_empty() {
        return Ok(out);
    }
    Ok(format!("# Tools\n\n## functions\nnamespace functions {{\n{out}}}\n"))
}

fn declare_function(function: &Map<String, Json>, out: &mut String) -> Result<()> {
    let nothing = Map::new();
    let parameters = match function.get("parameters").filter(|parameters| is_true(parameters)) {
        None => &nothing,
        Some(Json::Object(map)) => map,
        Some(other) => return Err(undeclarable(other)),
    };
    let mut names = Definitions::default();
    let object = object(parameters, &mut names)?;
    let mut body = String::new();
    object.write(&mut body, "");
    // A schema that refers to itself needs a name. Its fields keep the order of the schema.
    let own_name = names.refers_to_root;
    if let (true, Kind::Object { mut fields, .. }) = (own_name, object) {
        fields.sort_by_key(|field| field.name);
        out.push_str("interface parameters ");
        Kind::Object { fields, rest: None }.write(out, "");
        out.push('\n');
    }
    for (name, schema) in names.definitions.clone() {
        let definition = parse(schema, &mut names)?;
        if let Some(text) = description(schema.as_object())? {
            comment(text, "", out);
        }
        let _ = write!(out, "interface {name} ");
        definition.kind.write(out, "");
        out.push('\n');
    }
    if let Some(text) = description(Some(function))? {
        comment(text, "", out);
    }
    let name = function.get("name").map_or_else(|| "function".to_owned(), text);
    let _ = writeln!(out, "type {name} = (_: {}) => any;", if own_name { "parameters" } else { body.as_str() });
    Ok(())
}

/// The targets of `$ref`.
#[derive(Default)]
struct Definitions<'a> {
    definitions: Vec<(&'a str, &'a Json)>,
    places: HashMap<&'a str, usize>,
    refers_to_root: bool,
}

struct Type<'a> {
    kind: Kind<'a>,
    description: Option<&'a str>,
    /// Bounds such as `maxLength`, as one line of a comment.
    bounds: String,
}

enum Kind<'a> {
    Named(String),
    Object { fields: Vec<Field<'a>>, rest: Option<Box<Kind<'a>>> },
    Array(Box<Type<'a>>),
    Enum(&'a [Json]),
    AnyOf(Vec<Kind<'a>>),
}

struct Field<'a> {
    name: &'a str,
    kind: Type<'a>,
    optional: bool,
    default: Option<&'a Json>,
}

fn parse<'a>(schema: &'a Json, names: &mut Definitions<'a>) -> Result<Type<'a>> {
    let map = match schema {
        Json::Bool(any) => return Ok(Type::named(if *any { "any" } else { "null" })),
        Json::Object(map) if map.is_empty() => return Ok(Type::named("any")),
        Json::Object(map) => map,
        _ => return Err(undeclarable(schema)),
    };
    let mut bounds: &[&str] = &[];
    let kind = if let Some(reference) = map.get("$ref") {
        Kind::Named(resolve(reference, names)?)
    } else if let Some(options) = map.get("anyOf") {
        let options = options.as_array().ok_or_else(|| undeclarable(schema))?;
        Kind::AnyOf(options.iter().map(|option| Ok(parse(option, names)?.kind)).collect::<Result<_>>()?)
    } else if let Some(values) = map.get("enum") {
        Kind::Enum(enumerated(values, map.get("type"))?)
    } else {
        match map.get("type").ok_or_else(|| undeclarable(schema))? {
            Json::Array(kinds) => Kind::Named(union(kinds)?),
            Json::String(kind) => match kind.as_str() {
                "object" => object(map, names)?,
                "array" => {
                    bounds = &["maxItems", "minItems"];
                    let item = map.get("items").filter(|items| is_true(items));
                    Kind::Array(Box::new(item.map_or_else(|| Ok(Type::named("any")), |item| parse(item, names))?))
                }
                "string" => {
                    bounds = &["maxLength", "minLength", "pattern"];
                    Kind::Named(kind.clone())
                }
                "number" | "integer" => {
                    bounds = &["maximum", "minimum"];
                    Kind::Named("number".into())
                }
                other => Kind::Named(other.to_owned()),
            },
            _ => return Err(undeclarable(schema)),
        }
    };
    let bounds = bounds.iter().filter_map(|key| Some(format!("{key}: {}", text(map.get(*key)?))));
    let bounds = bounds.collect::<Vec<_>>().join(", ");
    Ok(Type { kind, description: description(Some(map))?, bounds })
}

fn object<'a>(schema: &'a Map<String, Json>, names: &mut Definitions<'a>) -> Result<Kind<'a>> {
    match schema.get("$defs").filter(|definitions| is_true(definitions)) {
        None => {}
        Some(Json::Object(definitions)) => {
            for (name, definition) in definitions {
                let place = *names.places.entry(name).or_insert(names.definitions.len());
                match names.definitions.get_mut(place) {
                    Some(known) => known.1 = definition,
                    None => names.definitions.push((name, definition)),
                }
            }
        }
        Some(other) => return Err(undeclarable(other)),
    }
    let rest = match schema.get("additionalProperties") {
        None | Some(Json::Null) => None,
        Some(Json::Bool(false)) => Some(Kind::Named("never".into())),
        Some(rest @ (Json::Bool(true) | Json::Object(_))) => Some(parse(rest, names)?.kind),
        Some(other) => return Err(undeclarable(other)),
    };
    let mut fields = Vec::new();
    if let Some(properties) = schema.get("properties") {
        let properties = properties.as_object().ok_or_else(|| undeclarable(properties))?;
        let required = match schema.get("required") {
            None => HashSet::new(),
            Some(Json::Array(names)) => names.iter().filter_map(Json::as_str).collect(),
            Some(other) => return Err(undeclarable(other)),
        };
        for (name, property) in properties {
            let optional = !required.contains(name.as_str());
            let default = property.get("default").filter(|default| !default.is_null());
            fields.push(Field { name, kind: parse(property, names)?, optional, default });
        }
        fields.sort_by_key(|field| (field.optional, field.name));
    }
    Ok(Kind::Object { fields, rest: rest.map(Box::new) })
}

fn resolve(reference: &Json, names: &mut Definitions<'_>) -> Result<String> {
    let wrong = |what: &str| Err(UnsupportedSchema(format!("{what}: {}", text(reference))));
    match reference.as_str() {
        Some("#") => {
            names.refers_to_root = true;
            Ok("parameters".into())
        }
        Some(path) if path.starts_with("#/$defs/") => {
            let name = path.rsplit('/').next().unwrap_or_default();
            match names.places.contains_key(name) {
                true => Ok(name.to_owned()),
                false => wrong("Reference not found"),
            }
        }
        _ => wrong("Unsupported reference format"),
    }
}

fn union(kinds: &[Json]) -> Result<String> {
    let name = |kind: &Json| match kind.as_str() {
        Some("string") => Ok("string"),
        Some("number" | "integer") => Ok("number"),
        Some("boolean") => Ok("boolean"),
        Some("null") => Ok("null"),
        Some("object") => Ok("{}"),
        Some("array") => Ok("Array<any>"),
        _ => Err(undeclarable(kind)),
    };
    Ok(kinds.iter().map(name).collect::<Result<Vec<_>>>()?.join(" | "))
}

/// The values of an `enum`; fails if one does not match the `type` next to it.
fn enumerated<'a>(values: &'a Json, kind: Option<&Json>) -> Result<&'a [Json]> {
    let list = values.as_array().ok_or_else(|| undeclarable(values))?;
    let kind = match kind {
        Some(Json::Array(kinds)) => match kinds.as_slice() {
            [one] => one.as_str(),
            [null, other] | [other, null] if null == "null" => other.as_str(),
            _ => {
                return Err(UnsupportedSchema(format!(
                    "Enum type {} is not supported",
                    text(&Json::from(kinds.clone()))
                )));
            }
        },
        Some(kind) => kind.as_str(),
        None => None,
    };
    for value in list.iter().filter(|value| !value.is_null()) {
        let (number, whole) = (number(value), value.is_boolean() || number(value) == Some(true));
        let (fits, what) = match kind {
            Some("string") => (value.is_string() && number.is_none(), "a string"),
            // In Python a boolean is an integer.
            Some("number") => (number.is_some() || value.is_boolean(), "a number"),
            Some("integer") => (whole, "an integer"),
            Some("boolean") => (value.is_boolean(), "a boolean"),
            _ => (true, ""),
        };
        if !fits {
            return Err(UnsupportedSchema(format!("Enum value {} is not {what}", text(value))));
        }
    }
    Ok(list)
}

impl Type<'_> {
    fn named(name: &str) -> Self {
        Type { kind: Kind::Named(name.to_owned()), description: None, bounds: String::new() }
    }

    fn documented(&self) -> bool {
        self.description.is_some() || !self.bounds.is_empty()
    }

    fn write_docs(&self, out: &mut String, indent: &str) {
        if let Some(text) = self.description {
            comment(text, indent, out);
        }
        if !self.bounds.is_empty() {
            let _ = writeln!(out, "{indent}// {}", self.bounds);
        }
    }
}

impl Kind<'_> {
    fn write(&self, out: &mut String, indent: &str) {
        let deeper = format!("{indent}{INDENT}");
        match self {
            Kind::Named(name) => out.push_str(name),
            Kind::Object { fields, rest } if fields.is_empty() && rest.is_none() => out.push_str("{}"),
            Kind::Object { fields, rest } => {
                out.push('{');
                let mut separator = "\n";
                for field in fields {
                    out.push_str(separator);
                    field.write(out, &deeper);
                    separator = ",\n";
                }
                if let Some(rest) = rest {
                    let _ = write!(out, "{separator}{deeper}[k: string]: ");
                    rest.write(out, &deeper);
                }
                let _ = write!(out, "\n{indent}}}");
            }
            Kind::Array(item) if item.documented() => {
                out.push_str("Array<\n");
                item.write_docs(out, &deeper);
                out.push_str(&deeper);
                item.kind.write(out, &deeper);
                let _ = write!(out, "\n{indent}>");
            }
            Kind::Array(item) => {
                out.push_str("Array<");
                item.kind.write(out, indent);
                out.push('>');
            }
            Kind::Enum(values) => {
                let value = |value: &Json| match (value, number(value)) {
                    (Json::String(text), None) => format!("\"{text}\""),
                    _ => text(value),
                };
                out.push_str(&values.iter().map(value).collect::<Vec<_>>().join(" | "));
            }
            Kind::AnyOf(options) => {
                for (i, option) in options.iter().enumerate() {
                    out.push_str(if i == 0 { "" } else { " | " });
                    option.write(out, indent);
                }
            }
        }
    }
}

impl Field<'_> {
    fn write(&self, out: &mut String, indent: &str) {
        self.kind.write_docs(out, indent);
        if let Some(default) = self.default {
            let plain = default.is_boolean() || number(default).is_some();
            let default = if plain { text(default) } else { json(default) };
            let _ = writeln!(out, "{indent}// Default: {default}");
        }
        let _ = write!(out, "{indent}{}{}: ", self.name, if self.optional { "?" } else { "" });
        self.kind.kind.write(out, indent);
    }
}

/// Writes the lines of a comment; an empty line stays empty.
fn comment(text: &str, indent: &str, out: &mut String) {
    for line in text.split('\n') {
        if !line.is_empty() {
            let _ = write!(out, "{indent}// {line}");
        }
        out.push('\n');
    }
}

fn description(schema: Option<&Map<String, Json>>) -> Result<Option<&str>> {
    match schema.and_then(|schema| schema.get("description")).filter(|text| is_true(text)) {
        None => Ok(None),
        Some(Json::String(text)) => Ok(Some(text)),
        Some(other) => Err(undeclarable(other)),
    }
}

/// Like Python's `str`.
fn text(value: &Json) -> String {
    python::str_of(&python::from_json(value))
}

/// For a number, whether it is an integer; else `None`.
fn number(value: &Json) -> Option<bool> {
    match value {
        Json::Number(number) => Some(!number.is_f64()),
        Json::String(text) => lossless::literal(text).map(lossless::is_integer),
        _ => None,
    }
}

/// Like Python's `json.dumps`.
fn json(value: &Json) -> String {
    python::JsonDumpsOptions::default().dump(&python::from_json(value)).expect("JSON can be written as JSON")
}

/// Like Python's `bool`.
fn is_true(value: &Json) -> bool {
    match value {
        Json::Null => false,
        Json::Bool(on) => *on,
        Json::Number(number) => number.as_f64() != Some(0.0),
        Json::String(text) => !text.is_empty(),
        Json::Array(items) => !items.is_empty(),
        Json::Object(map) => !map.is_empty(),
    }
}

fn undeclarable(schema: &Json) -> UnsupportedSchema {
    UnsupportedSchema(format!("Invalid JSON Schema object: {}", text(schema)))
}

#[cfg(test)]
mod tests;
