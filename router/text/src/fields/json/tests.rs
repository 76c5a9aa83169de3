use serde_json::json;

use super::*;

#[test]
fn fields_equal_those_of_the_json_parser() {
    for text in [
        r#"{}"#,
        r#" { } "#,
        r#"{"a":1}"#,
        "\n{ \"a\" : [1, {\"b\": \"]}\\\"\"}] ,\t\"c\\u0041\\\"\":null, \"a\": -1.5e3 , \"\": \"x\\\\\" }\r\n",
        r#"{"true":true,"s":"{\"a\":1}","e":[[],{}]}"#,
    ] {
        let Value::Object(expected) = serde_json::from_str(text).unwrap() else { panic!("{text}") };
        let mut found = Map::new();
        for (name, raw) in fields(text).unwrap() {
            found.insert(name.into_owned(), value("x", raw, &ValueMemoryBudget::of(text.len())).unwrap());
        }
        assert_eq!(found, expected, "{text}");
    }
}

#[test]
fn values_of_every_type_are_bounded() {
    let budget = || ValueMemoryBudget { limit: 100_000, used: Cell::new(0) };
    for text in [
        format!("[{}]", "[],".repeat(10_000) + "[]"),
        format!("[{}]", "1,".repeat(10_000) + "1"),
        format!("[{}]", "{\"\":0},".repeat(1_000) + "{}"),
        format!("[\"{}\"]", "x".repeat(100_001)),
        format!("{{\"{}\":0}}", "x".repeat(100_001)),
    ] {
        let error = value("messages", &text, &budget()).unwrap_err();
        assert_eq!(error.code, Some("too_many_values"), "{}", &text[..20]);
        assert_eq!(error.param.as_deref(), Some("messages"));
    }
    assert_eq!(value("x", "[1, \"a\", {\"b\": null}]", &budget()).unwrap(), json!([1, "a", {"b": null}]));
}

#[test]
fn ids_take_four_bytes_each_and_other_lists_are_values() {
    let budget = ValueMemoryBudget { limit: 100_000, used: Cell::new(0) };
    let text = format!("[{}]", "7,".repeat(20_000) + "7");
    assert_eq!(ids("prompt", &text, &budget).unwrap().map(|ids| ids.len()), Some(20_001));
    for text in ["[]", "\"a\"", "[\"a\"]", "[1, -1]", "[1.0]", "[[1]]"] {
        assert_eq!(ids("prompt", text, &ValueMemoryBudget::of(10)).unwrap(), None, "{text}");
    }
    let text = format!("[{}]", "7,".repeat(30_000) + "7");
    let budget = ValueMemoryBudget { limit: 100_000, used: Cell::new(0) };
    assert_eq!(ids("prompt", &text, &budget).unwrap_err().code, Some("too_many_values"));
}

#[test]
fn the_number_of_fields_is_bounded() {
    let text = format!("{{{}\"\":0}}", "\"\":0,".repeat(limits::BODY_FIELDS));
    assert_eq!(fields(&text).unwrap_err().code, Some("too_many_fields"));
}
