use serde_json::json;

use crate::json_schema::fault;

#[test]
fn what_is_wrong_is_said_in_peoples_words() {
    let all = "there are array, boolean, integer, null, number, object and string";
    for (schema, place, says) in [
        (json!({"type": "objekt"}), "/type", format!("\"objekt\" is no type; {all}; do you mean \"object\"?")),
        (json!({"type": "String"}), "/type", format!("\"String\" is no type; {all}; do you mean \"string\"?")),
        (json!({"properties": {"a": {"type": "int"}}}), "/properties/a/type", format!("\"int\" is no type; {all}; do you mean \"integer\"?")),
        (json!({"type": ["string", "nul"]}), "/type", format!("\"nul\" is no type; {all}; do you mean \"null\"?")),
        (json!({"type": "any"}), "/type", format!("\"any\" is no type; {all}; leave \"type\" out to allow every value")),
        (json!({"type": "xyzzy"}), "/type", format!("\"xyzzy\" is no type; {all}")),
        (json!({"type": ["string", "string"]}), "/type", "must be a type or a list of different types, got [\"string\",\"string\"]".into()),
        (json!({"type": 5}), "/type", "must be the name of a type (array, boolean, integer, null, number, object and string) or a list of them, got 5".into()),
        (json!({"properties": {"a": 5}}), "/properties/a", "must be a schema, an object such as {\"type\": \"string\"}, got 5".into()),
        (json!({"properties": []}), "/properties", "must be an object, got []".into()),
        (json!({"required": "a"}), "/required", "must be an array, got \"a\"".into()),
        (json!({"required": ["a", "a"]}), "/required", "must not have an item twice, got [\"a\",\"a\"]".into()),
        (json!({"minLength": -1}), "/minLength", "must be at least 0, got -1".into()),
        (json!({"minLength": "5"}), "/minLength", "must be an integer, got \"5\"".into()),
        (json!({"multipleOf": 0}), "/multipleOf", "must be above 0, got 0".into()),
        (json!({"anyOf": []}), "/anyOf", "must have at least 1 item, got []".into()),
        (json!({"$schema": "http://json-schema.org/draft-07/schema#", "items": {"type": "str"}}), "/items/type", format!("\"str\" is no type; {all}; do you mean \"string\"?")),
    ] {
        assert_eq!(fault(&schema), Some((place.to_owned(), says)), "{schema}");
    }
}
