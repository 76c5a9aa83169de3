use super::*;
use serde_json::json;

#[test]
fn argument_types_follow_the_schema() {
    let schema = json!({
        "properties": {
            "s": {"type": "string"},
            "n": {"type": ["integer", "null"]},
            "e": {"enum": ["a", "b"]},
            "m": {"enum": ["a", 1]},
            "c": {"const": 3},
            "r": {"$ref": "#/$defs/list"},
            "o": {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/list"}]},
            "a": {"allOf": [{"type": "string"}, {"minLength": 1}]},
            "x": {},
            "p": {"properties": {}},
            "loop": {"$ref": "#/properties/loop"}
        },
        "$defs": {"list": {"type": "array"}}
    });
    let types = |key: &str| Types::of(Some(&schema), key).0;
    assert_eq!(types("s"), STRING);
    assert_eq!(types("n"), NUMBER | NULL);
    assert_eq!(types("e"), STRING);
    assert_eq!(types("m"), STRING | NUMBER);
    assert_eq!(types("c"), NUMBER);
    assert_eq!(types("r"), ARRAY);
    assert_eq!(types("o"), STRING | ARRAY);
    assert_eq!(types("a"), STRING);
    assert_eq!(types("x"), ANY);
    assert_eq!(types("p"), OBJECT);
    assert_eq!(types("loop"), ANY);
    assert_eq!(types("unknown"), STRING);
    assert_eq!(Types::of(None, "s").0, STRING);
    let open = json!({"additionalProperties": {"type": "integer"}});
    assert_eq!(Types::of(Some(&open), "k").0, NUMBER);
    assert!(declares(Some(&schema), "s") && !declares(Some(&schema), "unknown") && !declares(None, "s"));
}
