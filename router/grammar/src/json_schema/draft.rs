//! Decides which keywords count in a schema: those of the draft that it names.

use std::borrow::Cow;
use std::collections::HashSet;

use jsonschema::Draft;
use serde_json::{Map, Value};

use super::keywords::{modern, percent_decoded};
use super::subschemas::below;
use super::words::words;

/// Keywords that not all drafts have, with the first and the last draft that has them.
const SINCE: &[(&str, Draft, Draft)] = &[
    ("const", Draft::Draft6, Draft::Draft202012),
    ("contains", Draft::Draft6, Draft::Draft202012),
    ("propertyNames", Draft::Draft6, Draft::Draft202012),
    ("if", Draft::Draft7, Draft::Draft202012),
    ("then", Draft::Draft7, Draft::Draft202012),
    ("else", Draft::Draft7, Draft::Draft202012),
    ("dependentRequired", Draft::Draft201909, Draft::Draft202012),
    ("dependentSchemas", Draft::Draft201909, Draft::Draft202012),
    ("unevaluatedItems", Draft::Draft201909, Draft::Draft202012),
    ("unevaluatedProperties", Draft::Draft201909, Draft::Draft202012),
    ("minContains", Draft::Draft201909, Draft::Draft202012),
    ("maxContains", Draft::Draft201909, Draft::Draft202012),
    ("$anchor", Draft::Draft201909, Draft::Draft202012),
    ("$recursiveAnchor", Draft::Draft201909, Draft::Draft201909),
    ("$recursiveRef", Draft::Draft201909, Draft::Draft201909),
    ("prefixItems", Draft::Draft202012, Draft::Draft202012),
    ("$dynamicAnchor", Draft::Draft202012, Draft::Draft202012),
    ("$dynamicRef", Draft::Draft202012, Draft::Draft202012),
    ("dependencies", Draft::Draft4, Draft::Draft7),
    ("additionalItems", Draft::Draft4, Draft::Draft201909),
];

/// The draft that a schema names, if any.
pub(crate) fn named(schema: &Value) -> Option<Draft> {
    let name = schema.get("$schema")?.as_str()?;
    let known = [
        ("draft-03", Draft::Draft4),
        ("draft-04", Draft::Draft4),
        ("draft-06", Draft::Draft6),
        ("draft-07", Draft::Draft7),
        ("2019-09", Draft::Draft201909),
    ];
    let found = known.iter().find(|(part, _)| name.contains(part));
    Some(found.map_or(Draft::Draft202012, |(_, draft)| *draft))
}

/// The schema with the keywords that count. If it names no draft, the keywords of all drafts count, older forms are
/// rewritten as in Draft 2020-12, and annotations of a wrong type, which do not constrain values, are removed. The
/// fragment of an `$id`, which newer drafts refuse, is an anchor.
pub(crate) fn counting(root: &Value) -> Cow<'_, Value> {
    let draft = named(root);
    if !mentions(root, &|key, value| is_foreign(draft, key, value)) {
        return Cow::Borrowed(root);
    }
    let mut root = root.clone();
    each_schema(&mut root, &|map| {
        anchor_fragment(map, draft);
        if draft.is_some() {
            map.retain(|key, value| !is_foreign(draft, key, value));
            return;
        }
        map.retain(|key, value| !is_wrong_annotation(key, value));
        if map.get("items").is_some_and(Value::is_array)
            || ["exclusiveMinimum", "exclusiveMaximum"].iter().any(|k| map.get(*k).is_some_and(Value::is_boolean))
        {
            modern(map);
        }
    });
    Cow::Owned(root)
}

/// Why this is no schema of the draft that it names: a JSON pointer, and what is wrong there.
pub(crate) fn fault(schema: &Value) -> Option<(String, String)> {
    let schema = &*counting(schema);
    let result = match named(schema) {
        Some(Draft::Draft4) => jsonschema::draft4::meta::validate(schema),
        Some(Draft::Draft6) => jsonschema::draft6::meta::validate(schema),
        Some(Draft::Draft7) => jsonschema::draft7::meta::validate(schema),
        Some(Draft::Draft201909) => jsonschema::draft201909::meta::validate(schema),
        _ => jsonschema::draft202012::meta::validate(schema),
    };
    result.err().map(|error| words(&error))
}

/// The fragment of an `$id`, in the drafts that expect it in `$anchor`.
fn id_fragment(draft: Option<Draft>, value: &Value) -> Option<(&str, &str)> {
    let id = value.as_str().filter(|_| draft.is_none_or(|draft| draft >= Draft::Draft201909))?;
    id.split_once('#').filter(|(_, fragment)| !fragment.is_empty())
}

fn anchor_fragment(map: &mut Map<String, Value>, draft: Option<Draft>) {
    let Some(id) = map.get("$id").cloned() else { return };
    let Some((address, fragment)) = id_fragment(draft, &id) else { return };
    match address {
        "" => drop(map.shift_remove("$id")),
        _ => drop(map.insert("$id".into(), address.into())),
    }
    if is_anchor(fragment) {
        map.entry("$anchor").or_insert_with(|| fragment.into());
    }
}

/// Whether a keyword in this form does not count.
fn is_foreign(draft: Option<Draft>, key: &str, value: &Value) -> bool {
    match (draft, key) {
        (_, "$id") => id_fragment(draft, value).is_some(),
        (Some(draft), _) => SINCE.iter().any(|(name, first, last)| *name == key && (draft < *first || draft > *last)),
        (None, "items") => value.is_array(),
        (None, "exclusiveMinimum" | "exclusiveMaximum") => value.is_boolean(),
        (None, _) => is_wrong_annotation(key, value),
    }
}

fn is_wrong_annotation(key: &str, value: &Value) -> bool {
    match key {
        "examples" => !value.is_array(),
        "$comment" | "contentEncoding" | "contentMediaType" => !value.is_string(),
        "deprecated" | "readOnly" | "writeOnly" => !value.is_boolean(),
        _ => false,
    }
}

pub(super) fn is_anchor(text: &str) -> bool {
    let mut chars = text.chars();
    chars.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && chars.all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
}

fn mentions(value: &Value, wanted: &dyn Fn(&str, &Value) -> bool) -> bool {
    match value {
        Value::Object(map) => map.iter().any(|(key, value)| wanted(key, value) || mentions(value, wanted)),
        Value::Array(items) => items.iter().any(|value| mentions(value, wanted)),
        _ => false,
    }
}

/// Every schema within, including those reached only by a reference.
fn each_schema(root: &mut Value, edit: &dyn Fn(&mut Map<String, Value>)) {
    let (mut seen, mut ahead) = (HashSet::new(), vec![String::new()]);
    while let Some(pointer) = ahead.pop() {
        if !seen.insert(pointer.clone()) {
            continue;
        }
        let Some(Value::Object(map)) = root.pointer_mut(&pointer) else { continue };
        edit(map);
        ahead.extend(below(map).into_iter().map(|(at, _)| format!("{pointer}{at}")));
        let target = map.get("$ref").and_then(Value::as_str).and_then(|reference| reference.strip_prefix("#/"));
        ahead.extend(target.map(|target| format!("/{}", percent_decoded(target))));
    }
}

#[cfg(test)]
mod tests;
