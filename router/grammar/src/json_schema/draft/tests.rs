use serde_json::json;

use crate::tests::enforce::Bench;
use crate::{Response, RuleError, Rules};

/// Strict: the schema counts as it is written.
fn rules(schema: &serde_json::Value) -> Rules {
    let response = Some(Response::JsonSchema { schema: schema.clone(), strict: true });
    Rules { response, ..Rules::default() }
}

/// A keyword constrains values in the drafts that have it and in no others, for the grammar and for the validator.
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
            // Without a named draft, every keyword counts in every form.
            let counts = name.is_empty() || (since..=until).contains(&i);
            assert_eq!(b.takes(&rules, broken), !counts, "{schema}: the grammar");
            assert_eq!(compiled.validate_response(broken).is_ok(), !counts, "{schema}: the validator");
        }
    }
}

/// An invalid schema is rejected with the place of the fault. It does not become a schema of an older draft with
/// fewer keywords.
#[test]
fn a_keyword_of_the_wrong_type_is_rejected_with_its_place() {
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
            Err(RuleError::Invalid { problem, .. }) => assert!(problem.contains(place), "{schema}: {problem}"),
            other => panic!("{schema}: {other:?}"),
        }
    }
    let loose =
        json!({"type": "integer", "examples": "3", "deprecated": "yes", "maximum": 4, "exclusiveMaximum": true});
    assert!(b.takes(&rules(&loose), "3") && !b.takes(&rules(&loose), "4"));
    assert!(b.compile(&rules(&loose)).validate_response("4").is_err());
}
