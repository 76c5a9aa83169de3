//! What is wrong with a schema, in words for people who do not know the schema of schemas.

use jsonschema::error::{TypeKind, ValidationErrorKind};
use jsonschema::{JsonType, JsonTypeSet, ValidationError};
use serde_json::Value;
use strsim::damerau_levenshtein;

/// The place of a fault, as a JSON pointer, and what is wrong there.
pub fn words(error: &ValidationError<'_>) -> (String, String) {
    let inner = |error: &ValidationError<'_>| error.instance_path().as_str().len();
    if let ValidationErrorKind::AnyOf { context } = error.kind()
        && !error.instance_path().as_str().ends_with("/type")
        && let Some(cause) = context.iter().flatten().max_by_key(|cause| inner(cause))
        && inner(cause) > inner(error)
    {
        // One of several forms, such as a schema or a list of them, is wrong inside.
        return words(cause);
    }
    (error.instance_path().to_string(), at_keyword(error))
}

fn at_keyword(error: &ValidationError<'_>) -> String {
    let (path, found) = (error.instance_path().to_string(), error.instance());
    let keyword = path.rsplit('/').next().unwrap_or_default();
    let shown = short(found);
    match error.kind() {
        ValidationErrorKind::AnyOf { .. } if keyword == "type" => wrong_type(found),
        ValidationErrorKind::Type { kind: TypeKind::Multiple(types) } if *types == schema_types() => {
            format!("must be a schema, an object such as {{\"type\": \"string\"}}, got {shown}")
        }
        ValidationErrorKind::Type { kind: TypeKind::Single(kind) } => {
            let article =
                if matches!(kind, JsonType::Array | JsonType::Integer | JsonType::Object) { "an" } else { "a" };
            format!("must be {article} {kind}, got {shown}")
        }
        ValidationErrorKind::MinItems { limit } => format!("must have at least {limit} item, got {shown}"),
        ValidationErrorKind::Minimum { limit } => format!("must be at least {limit}, got {shown}"),
        ValidationErrorKind::ExclusiveMinimum { limit } => format!("must be above {limit}, got {shown}"),
        ValidationErrorKind::UniqueItems => format!("must not have an item twice, got {shown}"),
        _ => error.to_string(),
    }
}

fn schema_types() -> JsonTypeSet {
    JsonTypeSet::empty().insert(JsonType::Boolean).insert(JsonType::Object)
}

/// Names of types in other languages and dialects.
const OTHER_TYPES: [(&str, &str); 17] = [
    ("any", ""),
    ("bool", "boolean"),
    ("date", "string"),
    ("decimal", "number"),
    ("dict", "object"),
    ("double", "number"),
    ("float", "number"),
    ("int", "integer"),
    ("list", "array"),
    ("long", "integer"),
    ("map", "object"),
    ("nil", "null"),
    ("none", "null"),
    ("str", "string"),
    ("struct", "object"),
    ("text", "string"),
    ("tuple", "array"),
];

/// Which name of `type` is none, which there are, and which one may be meant.
fn wrong_type(found: &Value) -> String {
    const NAMES: [&str; 7] = ["array", "boolean", "integer", "null", "number", "object", "string"];
    let all = "array, boolean, integer, null, number, object and string";
    let items = found.as_array().map_or(std::slice::from_ref(found), Vec::as_slice);
    let Some(wrong) = items.iter().find(|item| !item.as_str().is_some_and(|name| NAMES.contains(&name))) else {
        return format!("must be a type or a list of different types, got {}", short(found));
    };
    let Some(name) = wrong.as_str() else {
        return format!("must be the name of a type ({all}) or a list of them, got {}", short(found));
    };
    let lower = name.to_lowercase();
    let known = OTHER_TYPES.iter().find(|(other, _)| *other == lower).map(|(_, meant)| *meant);
    let alike = || NAMES.iter().copied().find(|known| *known == lower || damerau_levenshtein(known, &lower) <= 2);
    let hint = match known.or_else(alike) {
        Some("") => "; leave \"type\" out to allow every value".to_owned(),
        Some(meant) => format!("; do you mean \"{meant}\"?"),
        None => String::new(),
    };
    format!("{} is no type; there are {all}{hint}", short(wrong))
}

fn short(value: &Value) -> String {
    const MOST: usize = 60;
    let text = value.to_string();
    match text.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests;
