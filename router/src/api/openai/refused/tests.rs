use rein_text::fields::Fields;
use serde_json::{Value, json};

use super::*;

/// Values of every type. None of them is neutral for every field.
fn values() -> Vec<Value> {
    vec![
        json!(true),
        json!(false),
        json!(0),
        json!(1),
        json!(-1),
        json!(0.37),
        json!(""),
        json!("x"),
        json!([]),
        json!(["x"]),
        json!({}),
        json!({"x": 1}),
    ]
}

#[test]
fn every_field_is_refused_by_name_unless_its_value_is_neutral() {
    for (table, what) in
        [(EVERYWHERE, "everywhere"), (IN_CONVERSATIONS, "chats"), (IN_CHATS, "chats"), (IN_COMPLETIONS, "completions")]
    {
        let mut names = std::collections::HashSet::new();
        for one in table {
            assert!(names.insert(one.name), "{} is twice in {what}", one.name);
            let read = |value: Value| {
                let text = json!({one.name: value}).to_string();
                Fields::of(&text).unwrap().read(|fields| fields.refuse(table)).map(|read| read.ignored)
            };
            assert_eq!(read(Value::Null), Ok(vec![]), "{}", one.name);
            let (neutral, other): (Vec<Value>, Vec<Value>) =
                values().into_iter().partition(|value| one.neutral.allows(value));
            for value in neutral {
                assert_eq!(read(value), Ok(vec![]), "{}", one.name);
            }
            assert!(!other.is_empty());
            for value in other {
                let error = read(value).expect_err(one.name);
                assert_eq!((error.param.as_deref(), error.code), (Some(one.name), Some("unsupported_parameter")));
                assert_eq!(error.message, format!("'{}' is not supported: {}", one.name, one.why));
            }
        }
    }
}
