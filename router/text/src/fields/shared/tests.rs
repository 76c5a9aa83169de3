use std::cell::Cell;

use serde_json::Value;

use super::*;
use crate::fields::ParsedBody;

const ENOUGH: usize = 1 << 20;

/// Reads `tools` of the body and counts how often it is made.
fn read(shared: &SharedField<usize>, made: &Cell<usize>, body: &str) -> Result<ParsedBody<usize>, InvalidRequest> {
    Fields::of(body)?.read(|fields| {
        shared.read(fields, "tools", |fields| {
            made.set(made.get() + 1);
            fields.array("tools").map(|tools| tools.map_or(0, |tools| tools.len()))
        })
    })
}

fn body(before: &str, tools: &str) -> String {
    format!(r#"{{"a": {before}, "tools": {tools}}}"#)
}

fn tools(count: usize) -> String {
    serde_json::to_string(&vec!["a tool with a name and a description"; count]).expect("JSON")
}

#[test]
fn the_same_text_is_made_once_and_charged_each_time() {
    let (shared, made) = (SharedField::new(ENOUGH), Cell::new(0));
    let first = read(&shared, &made, &body("1", &tools(100))).expect("a body");
    let again = read(&shared, &made, &body("[2, 3]", &tools(100))).expect("a body");
    assert_eq!((first.value, again.value, made.get()), (100, 100, 1));
    assert!(first.bytes > 100 && first.bytes == again.bytes, "{} {}", first.bytes, again.bytes);
    // It counts as read, and other fields are still reported.
    assert_eq!((first.ignored, again.ignored), (vec!["a".to_owned()], vec!["a".to_owned()]));
    assert_eq!(read(&shared, &made, &body("1", &tools(101))).expect("a body").value, 101);
    assert_eq!(made.get(), 2);
    // A text that is written in another way is another text.
    let spaced = tools(100).replace(",", ", ");
    assert_eq!((read(&shared, &made, &body("1", &spaced)).expect("a body").value, made.get()), (100, 3));
}

#[test]
fn short_texts_and_absent_fields_are_made_each_time() {
    let (shared, made) = (SharedField::new(ENOUGH), Cell::new(0));
    for (i, body) in [body("1", "[1]"), body("1", "[1]"), r#"{"a": 1}"#.to_owned()].iter().enumerate() {
        read(&shared, &made, body).expect("a body");
        assert_eq!(made.get(), i + 1);
    }
}

#[test]
fn errors_are_not_remembered() {
    let (shared, made) = (SharedField::new(ENOUGH), Cell::new(0));
    let wrong = format!(r#"{{"x": {}}}"#, tools(100));
    let invalid = tools(100).replace("tool", r"\x");
    for text in [&wrong, &invalid] {
        for _ in 0..2 {
            let error = read(&shared, &made, &body("1", text)).map(|read| read.value).expect_err("an error");
            assert!(["invalid_type", "invalid_json"].contains(&error.code.unwrap_or_default()), "{error:?}");
        }
    }
    // Invalid JSON is not even made.
    assert_eq!(made.get(), 2);
    // An error elsewhere in the body is found after the field was known.
    read(&shared, &made, &body("1", &tools(100))).expect("a body");
    assert!(read(&shared, &made, &body("01", &tools(100))).is_err());
}

#[test]
fn known_values_are_charged_to_the_budget_of_the_request() {
    let (shared, made) = (SharedField::new(256 << 20), Cell::new(0));
    let tools = format!("[{}0]", "0,".repeat(100_000));
    let large = format!(r#"{{"tools": {tools}, "padding": "{}"}}"#, "x".repeat(4 << 20));
    assert_eq!(read(&shared, &made, &large).expect("a body").value, 100_001);
    assert_eq!(read(&shared, &made, &large).expect("a body").value, 100_001);
    assert_eq!(made.get(), 1);
    let spent = Fields::of(&large).expect("a body").read(|fields| {
        fields.budget = crate::fields::json::ValueMemoryBudget::of(0);
        fields.skip("tools", 64 << 20)?;
        Ok::<_, InvalidRequest>(Value::Null)
    });
    assert_eq!(spent.map(|read| read.value).expect_err("an error").code, Some("too_many_values"));
}
