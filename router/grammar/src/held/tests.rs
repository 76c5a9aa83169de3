//! Which values are held, and that the cuts do not depend on how the arguments arrive.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{Held, HeldPart, HeldSchemas};
use crate::rules::{Cause, Relaxation, Rules};
use crate::tools::Tool;
use crate::validate::Validators;

fn relaxed(path: &str) -> Relaxation {
    Relaxation { tool: "f".into(), path: path.into(), keyword: "format".into(), cause: Cause::NoMeans }
}

fn plan(schema: &Value, paths: &[&str]) -> Arc<HeldSchemas> {
    let relaxations: Vec<Relaxation> = paths.iter().map(|path| relaxed(path)).collect();
    Arc::new(HeldSchemas::new(schema, &relaxations.iter().collect::<Vec<_>>()).expect("something is relaxed"))
}

/// The held values, with their schemas. None: the whole call.
fn held(plan: &Arc<HeldSchemas>, arguments: &str) -> Option<Vec<(String, Vec<String>)>> {
    let all = |pieces: Vec<&str>| {
        let Held::Values(mut values) = plan.held() else { return None };
        let parts: Vec<HeldPart> = pieces.into_iter().flat_map(|piece| values.push(piece)).collect();
        let text: String = parts
            .iter()
            .map(|part| match part {
                HeldPart::Text(text) | HeldPart::Value { text, .. } => text.as_str(),
            })
            .collect();
        assert_eq!(text, arguments);
        let held = |part| match part {
            HeldPart::Value { text, schemas } => Some((text, schemas)),
            HeldPart::Text(_) => None,
        };
        Some(parts.into_iter().filter_map(held).collect::<Vec<_>>())
    };
    let whole = all(vec![arguments]);
    assert_eq!(whole, all(arguments.split_inclusive(|_: char| true).collect()), "character by character");
    whole
}

fn texts(plan: &Arc<HeldSchemas>, arguments: &str) -> Option<Vec<String>> {
    held(plan, arguments).map(|all| all.into_iter().map(|(text, _)| text).collect())
}

#[test]
fn a_member_is_held_and_its_neighbours_are_not() {
    let schema = json!({"properties": {
        "to": {"type": "string", "format": "email"},
        "a/b~c": {"type": "array", "uniqueItems": true},
        "body": {"type": "string"},
    }});
    let plan = plan(&schema, &["/properties/to", "/properties/a~1b~0c"]);
    let arguments = r#"{ "body":"to: \"x\\", "to" : "a@b.c" , "a\/b~c": [1, {"to": "}"}], "n": {"to": 3} }"#;
    assert_eq!(
        held(&plan, arguments),
        Some(vec![
            (r#""a@b.c""#.into(), vec!["/properties/to".into()]),
            (r#"[1, {"to": "}"}]"#.into(), vec!["/properties/a~1b~0c".into()]),
        ])
    );
}

#[test]
fn values_are_held_at_any_depth_also_through_references() {
    let schema = json!({
        "properties": {"tree": {"$ref": "#/$defs/node"}, "port": {"type": "integer"}},
        "additionalProperties": {"type": "object", "properties": {"port": {"$ref": "#/$defs/port"}}},
        "$defs": {
            "node": {"allOf": [{"properties": {
                "port": {"$ref": "#/$defs/port"},
                "children": {"type": "array", "prefixItems": [{"type": "string"}], "items": {"$ref": "#/$defs/node"}},
            }}]},
            "port": {"type": "integer", "not": {"multipleOf": 7}},
        },
    });
    let plan = plan(&schema, &["/$defs/port"]);
    let arguments =
        r#"{"port":1,"tree":{"port":2,"children":["port",{"port":3,"children":["",{"port": 4}]}]},"x":{"port":5}}"#;
    assert_eq!(texts(&plan, arguments), Some(["2", "3", "4", "5"].map(String::from).to_vec()));
}

#[test]
fn alternatives_are_held_as_a_whole() {
    let schema = json!({"properties": {
        "shape": {"oneOf": [{"properties": {"side": {"type": "number"}}}, {"properties": {"name": {"type": "string"}}}]},
        "named": {"patternProperties": {"^x": {"type": "string"}}, "additionalProperties": {"type": "number"}},
        "list": {"type": "array", "contains": {"type": "number"}},
        "plain": {"type": "object"},
    }});
    let paths = [
        "/properties/shape/oneOf/0/properties/side",
        "/properties/named/additionalProperties",
        "/properties/list/contains",
    ];
    let arguments = r#"{"plain":{"side":1},"shape":{"side":1},"named":{"y":2},"list":[3]}"#;
    assert_eq!(
        texts(&plan(&schema, &paths), arguments),
        Some([r#"{"side":1}"#, r#"{"y":2}"#, "[3]"].map(String::from).to_vec())
    );
}

#[test]
fn what_concerns_the_whole_object_holds_the_whole_call() {
    let schema =
        json!({"properties": {"a": {}}, "anyOf": [{"properties": {"a": {"format": "email"}}}, {"required": ["b"]}]});
    for path in ["", "/anyOf/0", "/anyOf/0/properties/a", "/nowhere/at/all"] {
        assert_eq!(held(&plan(&schema, &[path]), "{}"), None, "{path:?}");
    }
    let foreign = json!({"properties": {"a": {"format": "email"}}, "$ref": "#/missing"});
    assert_eq!(held(&plan(&foreign, &["/properties/a"]), "{}"), None);
}

#[test]
fn a_path_of_a_merged_schema_holds_what_is_around_it() {
    let schema = json!({"properties": {"a": {"allOf": [{"properties": {"b": {}}}, {"properties": {"c": {}}}]}}});
    let plan = plan(&schema, &["/properties/a/properties/c"]);
    assert_eq!(texts(&plan, r#"{"z":1,"a":{"c":2}}"#), Some(vec![r#"{"c":2}"#.into()]));
}

#[test]
fn what_was_mended_is_not_held() {
    let relaxation =
        Relaxation { tool: "f".into(), path: "/properties/a".into(), keyword: "enum".into(), cause: Cause::Mended };
    assert!(HeldSchemas::new(&json!({"properties": {"a": {}}}), &[&relaxation]).is_none());
}

#[test]
fn a_part_is_validated_in_its_document() {
    let schema = json!({
        "$id": "https://example.com/tool",
        "properties": {"pet": {"$ref": "#/$defs/pet"}, "to": {"type": "string", "format": "email"}},
        "required": ["pet", "to"],
        "$defs": {"pet": {"oneOf": [{"$ref": "#/$defs/cat"}, {"required": ["dog"]}]}, "cat": {"required": ["cat"]}},
    });
    let tool = Tool { name: "f".into(), parameters: Some(schema), ..Tool::default() };
    let validators = Validators::new(&Rules { tools: vec![tool].into(), ..Rules::default() });
    let relaxed = ["/properties/to", "/$defs/pet"].map(relaxed);
    assert!(matches!(validators.held("f", &relaxed), Held::Values(_)));
    let accepts =
        |pointer: &str, value: Value| validators.value("f", &[pointer.to_owned()], &value.to_string()).is_ok();
    assert!(accepts("/properties/to", json!("a@b.org")) && !accepts("/properties/to", json!("a")));
    assert!(accepts("/properties/pet", json!({"cat": 1})) && !accepts("/properties/pet", json!({"cat": 1, "dog": 1})));
}
