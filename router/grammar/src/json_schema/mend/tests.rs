use serde_json::{Value, json};

use super::super::draft::fault;
use super::{Mended, mended};

/// Schemas as clients write them, what they mean, and what is named.
#[test]
fn odd_schemas_mean_what_their_authors_meant() {
    let cases = [
        // Absent keywords that a serializer wrote.
        (
            json!({"description": null, "enum": null, "type": "string", "minLength": null}),
            json!({"type": "string"}),
            vec![],
        ),
        (json!({"type": "string", "const": null, "$ref": null}), json!({"type": "string"}), vec![]),
        (json!({"const": null}), json!({"const": null}), vec![]),
        (
            json!({"type": ["string", "null"], "const": null}),
            json!({"type": ["string", "null"], "const": null}),
            vec![],
        ),
        (json!({"default": null, "x": null}), json!({"default": null, "x": null}), vec![]),
        (json!({"anyOf": [{"type": "string"}, null]}), json!({"anyOf": [{"type": "string"}]}), vec![]),
        (json!({"properties": {"a": null}}), json!({"properties": {"a": {}}}), vec![]),
        // PHP's empty objects.
        (json!({"type": "object", "properties": []}), json!({"type": "object", "properties": {}}), vec![]),
        (json!({"properties": {"a": []}}), json!({"properties": {"a": {}}}), vec![]),
        (json!({"items": [], "additionalProperties": []}), json!({"items": {}, "additionalProperties": {}}), vec![]),
        (json!({"not": [], "allOf": []}), json!({}), vec![]),
        // Annotations.
        (json!({"title": 5, "description": ["a"], "examples": "x", "readOnly": "no"}), json!({}), vec![]),
        // Draft 3.
        (
            json!({"properties": {"a": {"type": "any", "required": true}, "b": {"required": false}}}),
            json!({"properties": {"a": {}, "b": {}}, "required": ["a"]}),
            vec!["/properties/a/required", "/properties/a/type"],
        ),
        (
            json!({"$schema": "http://json-schema.org/draft-03/schema#", "type": "object"}),
            json!({"type": "object"}),
            vec![],
        ),
        // Types of other languages.
        (json!({"type": "OBJECT"}), json!({"type": "object"}), vec!["/type"]),
        (json!({"type": "float"}), json!({"type": "number"}), vec!["/type"]),
        (json!({"type": ["str", null]}), json!({"type": ["string", "null"]}), vec!["/type"]),
        (json!({"type": "date"}), json!({}), vec!["/type"]),
        (json!({"type": ["string", "date"]}), json!({}), vec!["/type"]),
        (json!({"type": []}), json!({}), vec!["/type"]),
        (json!({"type": {"a": 1}}), json!({}), vec!["/type"]),
        // No meaning.
        (json!({"anyOf": []}), json!({}), vec!["/anyOf"]),
        (json!({"enum": []}), json!({}), vec!["/enum"]),
        (json!({"enum": ["a", "a"]}), json!({"enum": ["a"]}), vec![]),
        (
            json!({"minLength": "3", "maximum": "9", "multipleOf": 0}),
            json!({}),
            vec!["/minLength", "/maximum", "/multipleOf"],
        ),
        (json!({"required": "a", "uniqueItems": 1}), json!({}), vec!["/required", "/uniqueItems"]),
        (json!({"required": ["a", 1, "a"]}), json!({"required": ["a"]}), vec!["/required"]),
        (json!({"items": "string"}), json!({}), vec!["/items"]),
        (json!({"properties": {"a/b": "string"}}), json!({"properties": {"a/b": {}}}), vec!["/properties/a~1b"]),
        // References.
        (json!({"$ref": "#/definitions/A"}), json!({}), vec!["/$ref"]),
        (json!({"items": {"$ref": "https://example.com/a.json"}}), json!({"items": {}}), vec!["/items/$ref"]),
        (
            json!({"$ref": "#/components/A", "components": {"A": {"type": "INTEGER"}}}),
            json!({"$ref": "#/components/A", "components": {"A": {"type": "integer"}}}),
            vec!["/components/A/type"],
        ),
        (
            json!({"$ref": "#user", "$defs": {"a": {"$id": "#user", "type": "string"}}}),
            json!({"$ref": "#user", "$defs": {"a": {"$id": "#user", "type": "string"}}}),
            vec![],
        ),
        // What is wider within these would make them narrower.
        (
            json!({"not": {"type": "date"}, "if": {"enum": []}, "then": false}),
            json!({"then": false}),
            vec!["/not/type", "/not", "/if/enum", "/if"],
        ),
        (
            json!({"oneOf": [{"type": "date"}, {"type": "string"}]}),
            json!({"anyOf": [{}, {"type": "string"}]}),
            vec!["/oneOf/0/type", "/oneOf"],
        ),
        // A form of another draft.
        (
            json!({"$schema": "http://json-schema.org/draft-07/schema#", "minimum": 1, "exclusiveMinimum": true}),
            json!({"minimum": 1, "exclusiveMinimum": true}),
            vec![],
        ),
    ];
    for (schema, meant, named) in cases {
        let Mended { schema: made, relaxed } = mended(schema.clone());
        assert_eq!((made, relaxed), (meant, named.into_iter().map(str::to_owned).collect()), "{schema}");
    }
}

/// Whatever stands at a keyword, the result is a schema, and mending it again changes nothing.
#[test]
fn anything_becomes_a_schema() {
    let odd = [
        json!(null),
        json!(true),
        json!(false),
        json!(0),
        json!(-1),
        json!(1.5),
        json!(""),
        json!("a"),
        json!("object"),
        json!([]),
        json!([null]),
        json!(["a", "a"]),
        json!([{}]),
        json!([[]]),
        json!({}),
        json!({"a": null}),
        json!({"a": []}),
        json!({"a": 1}),
        json!({"a": ["b", 1]}),
        json!({"a": {"type": "Any"}}),
        json!({"type": null}),
    ];
    let drafts = [
        None,
        Some("draft-03"),
        Some("draft-04"),
        Some("draft-06"),
        Some("draft-07"),
        Some("2019-09"),
        Some("2020-12"),
        Some("other"),
    ];
    for (names, _) in super::SHAPES {
        for name in *names {
            for value in &odd {
                for draft in drafts {
                    let mut schema =
                        json!({"properties": {"a": {*name: value}, "b": {*name: value, "type": "string"}}});
                    if let (Some(draft), Value::Object(map)) = (draft, &mut schema) {
                        map.insert("$schema".into(), format!("http://json-schema.org/{draft}/schema#").into());
                    }
                    let made = mended(schema.clone()).schema;
                    assert_eq!(fault(&made), None, "{schema} as {made}");
                    assert_eq!(mended(made.clone()).schema, made, "{schema}");
                }
            }
        }
    }
}

/// A schema that is refused for its size is not mended, and each odd keyword of a smaller one is named once.
#[test]
fn the_size_of_a_schema_bounds_what_is_mended() {
    let odd = |count: usize| {
        let properties: serde_json::Map<String, Value> =
            (0..count).map(|i| (format!("p{i}"), json!({"type": "x"}))).collect();
        json!({"type": "object", "properties": properties})
    };
    assert_eq!(mended(odd(9_000)).relaxed.len(), 9_000);
    let beyond = odd(100_000);
    assert_eq!(mended(beyond.clone()), Mended { schema: beyond, relaxed: Vec::new() });
}
