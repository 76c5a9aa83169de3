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
        for field in fields(text).unwrap() {
            let value = value("x", field.text, &ValueMemoryBudget::of(text.len())).unwrap();
            found.insert(field.name.into_owned(), value);
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

#[test]
fn invalid_json_is_found_in_every_field_whether_it_is_read_or_not() {
    let deep = format!("{}1{}", "[".repeat(200), "]".repeat(200));
    for wrong in [r#""\ud800""#, r#""\x""#, "1e999", "01", "nul", "[1,]", "{\"a\"}", "\"a\nb\"", deep.as_str(), ""] {
        for text in [
            format!(r#"{{"other":{wrong},"number":7}}"#),
            format!(r#"{{"number":7,"number":{wrong},"number":7}}"#),
            format!(r#"{{"refused":{wrong},"refused":null,"number":7}}"#),
            format!(r#"{{"other":{wrong},"number":"no integer"}}"#),
        ] {
            let expected = serde_json::from_str::<Value>(&text).unwrap_err();
            let read = crate::fields::Fields::of(&text).and_then(|fields| {
                fields.read(|fields| {
                    fields.refuse(&[crate::fields::refused("refused", crate::fields::NeutralValues::None, "no")])?;
                    fields.integer("number", 0..=9)
                })
            });
            let error = read.map(|read| read.value).unwrap_err();
            assert_eq!(error.code, Some("invalid_json"), "{text}: {error:?}");
            let expected = expected.to_string();
            let what = match wrong {
                "1e999" => expected.replace(TOO_LARGE_NUMBER, "has a number beyond the range of 64-bit floats"),
                wrong if wrong == deep => {
                    expected.replace(TOO_DEEP, "may have arrays and objects in each other up to a depth of 127")
                }
                _ => format!("is not valid JSON: {expected}"),
            };
            assert_eq!(error.message, format!("the body {what}"), "{text}");
        }
    }
}

#[test]
fn the_deepest_value_has_the_depth_that_the_error_names() {
    let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    assert_eq!(document("at", &nested(limits::JSON_DEPTH)).unwrap().to_string(), nested(limits::JSON_DEPTH));
    assert!(document("at", &nested(limits::JSON_DEPTH + 1)).unwrap_err().message.contains("depth of 127"));
}
