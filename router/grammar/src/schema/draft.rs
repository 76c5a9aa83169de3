//! Which keywords count in a schema: those of the draft that it names.

use std::borrow::Cow;
use std::collections::HashSet;

use jsonschema::Draft;
use serde_json::{Map, Value};

use super::flat::percent_decoded;
use super::merge::modern;
use super::refs::below;

/// Keywords that not all drafts have: the first and the last that does.
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

/// The draft that a schema names; none if it names none.
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

/// The schema with the keywords that count. Where it names no draft, those of all drafts do, older forms are written as in Draft
/// 2020-12, and annotations of a wrong type, which say nothing about values, are left out.
pub(crate) fn counting(root: &Value) -> Cow<'_, Value> {
    let draft = named(root);
    if !mentions(root, &|key, value| is_foreign(draft, key, value)) {
        return Cow::Borrowed(root);
    }
    let mut root = root.clone();
    each_schema(&mut root, &|map| match draft {
        Some(_) => map.retain(|key, value| !is_foreign(draft, key, value)),
        None => {
            map.retain(|key, value| !is_wrong_annotation(key, value));
            if map.get("items").is_some_and(Value::is_array)
                || ["exclusiveMinimum", "exclusiveMaximum"].iter().any(|k| map.get(*k).is_some_and(Value::is_boolean))
            {
                modern(map);
            }
        }
    });
    Cow::Owned(root)
}

/// Whether a keyword does not count as it stands.
fn is_foreign(draft: Option<Draft>, key: &str, value: &Value) -> bool {
    match (draft, key) {
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

fn mentions(value: &Value, wanted: &dyn Fn(&str, &Value) -> bool) -> bool {
    match value {
        Value::Object(map) => map.iter().any(|(key, value)| wanted(key, value) || mentions(value, wanted)),
        Value::Array(items) => items.iter().any(|value| mentions(value, wanted)),
        _ => false,
    }
}

/// Every schema within, also where only a reference leads.
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
mod tests {
    use serde_json::json;

    use crate::enforce::Bench;
    use crate::{Response, RuleError, Rules};

    fn rules(schema: &serde_json::Value) -> Rules {
        let response = Some(Response::JsonSchema { schema: schema.clone(), strict: false });
        Rules { response, ..Rules::default() }
    }

    /// A keyword constrains values in the drafts that have it, for the grammar and for the judge, and in no others.
    #[test]
    fn keywords_count_in_the_drafts_that_have_them() {
        let b = Bench::new(crate::PLAIN, false);
        let draft = |name: &str| match name {
            "2019-09" | "2020-12" => format!("https://json-schema.org/draft/{name}/schema"),
            name => format!("http://json-schema.org/{name}/schema#"),
        };
        let all = ["draft-04", "draft-06", "draft-07", "2019-09", "2020-12", ""];
        for (schema, broken, since, until) in [
            (json!({"const": 1}), "2", 1, 5),
            (json!({"type": "array", "contains": {"type": "null"}}), "[1]", 1, 5),
            (json!({"type": "object", "propertyNames": {"maxLength": 1}}), "{\"ab\": 1}", 1, 5),
            (json!({"if": {"type": "number"}, "then": {"minimum": 5}}), "1", 2, 5),
            (json!({"type": "object", "dependentRequired": {"a": ["b"]}}), "{\"a\": 1}", 3, 5),
            (json!({"type": "object", "dependentSchemas": {"a": {"required": ["b"]}}}), "{\"a\": 1}", 3, 5),
            (json!({"type": "object", "dependencies": {"a": ["b"]}}), "{\"a\": 1}", 0, 2),
            (json!({"type": "object", "unevaluatedProperties": false}), "{\"a\": 1}", 3, 5),
            (json!({"type": "array", "prefixItems": [{"type": "null"}]}), "[1]", 4, 5),
            (json!({"type": "array", "items": [{"type": "null"}]}), "[1]", 0, 3),
            (json!({"type": "array", "items": [{"type": "null"}], "additionalItems": false}), "[null, 1]", 0, 3),
            (json!({"type": "integer", "maximum": 5, "exclusiveMaximum": true}), "5", 0, 0),
            (json!({"type": "integer", "exclusiveMaximum": 5}), "5", 1, 5),
        ] {
            for (i, name) in all.iter().enumerate() {
                let mut schema = schema.clone();
                if !name.is_empty() {
                    schema["$schema"] = draft(name).into();
                }
                let rules = rules(&schema);
                let Ok(compiled) = b.grammars.compile(&rules) else {
                    // Another form of the keyword, in the named draft.
                    assert!(!name.is_empty() && !(since..=until).contains(&i), "{schema}");
                    continue;
                };
                let compiled = compiled.expect("a grammar");
                // Without a name each keyword counts, in whichever form.
                let counts = name.is_empty() || (since..=until).contains(&i);
                assert_eq!(b.takes(&rules, broken), !counts, "{schema}: the grammar");
                assert_eq!(compiled.validate_response(broken).is_ok(), !counts, "{schema}: the judge");
            }
        }
    }

    /// What makes a schema none is told with its place. It does not make it a schema of an older draft, in which less counts.
    #[test]
    fn a_keyword_of_the_wrong_type_is_refused_at_its_place() {
        let b = Bench::new(crate::PLAIN, false);
        for (part, place) in [
            (json!({"$id": 5}), "/$id"),
            (json!({"$defs": []}), "/$defs"),
            (json!({"$anchor": 1}), "/$anchor"),
            (json!({"$schema": 7}), "/$schema"),
            (json!({"properties": {"a": {"$defs": "x"}}}), "/properties/a/$defs"),
            (json!({"dependentRequired": []}), "/dependentRequired"),
            (json!({"contains": 5}), "/contains"),
            (json!({"items": [{"prefixItems": {}}]}), "/prefixItems"),
        ] {
            let mut schema = json!({"type": "object", "required": ["a"], "dependentRequired": {"a": ["b"]}});
            schema.as_object_mut().expect("a map").extend(part.as_object().expect("a map").clone());
            match b.grammars.compile(&rules(&schema)) {
                Err(RuleError::Unenforceable { path, .. }) => assert!(path.contains(place), "{schema}: {path}"),
                other => panic!("{schema}: {other:?}"),
            }
        }
        let loose =
            json!({"type": "integer", "examples": "3", "deprecated": "yes", "maximum": 4, "exclusiveMaximum": true});
        assert!(b.takes(&rules(&loose), "3") && !b.takes(&rules(&loose), "4"));
        assert!(b.compile(&rules(&loose)).validate_response("4").is_err());
    }
}
