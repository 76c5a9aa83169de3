use serde_json::{Value, json};

use super::{Elements, members};
use crate::codec::{End, OpenCall, Progress, arguments_of};
use crate::tools::Tool;

const MARK: &str = "]<]minimax[>[";

/// The arguments as JSON text, and whether they ended.
fn read(schema: &Value, written: &str) -> (String, bool) {
    let tool = Tool { name: "f".into(), parameters: Some(schema.clone()), ..Tool::default() };
    let call = OpenCall::of_f(vec![tool].into());
    let mut events = Vec::new();
    let mut body = Elements::new(call, MARK, &mut events);
    let mut done = false;
    for b in written.bytes() {
        match body.feed(b) {
            Progress::More => {}
            Progress::Done => {
                done = true;
                break;
            }
            Progress::Bad => break,
        }
    }
    body.end(if done { End::Whole } else { End::Broken }, &mut events);
    (arguments_of(events), done)
}

#[test]
fn what_is_written_is_read_back() {
    let text = json!({"type": "string"});
    for (schema, value) in [
        (json!({}), json!({})),
        (json!({"properties": {"a": text}}), json!({"a": " ]<]minimax[> <x> \"\n\\ é"})),
        (json!({"properties": {"a": {"items": text}}}), json!({"a": ["1", "", "null"]})),
        (json!({"properties": {"a": {"type": "object"}}}), json!({"a": {}})),
        (json!({"properties": {"a": {"items": {"items": {"type": "number"}}}}}), json!({"a": [[1, 2.5], [], [-3]]})),
        // An object may have a member with the name of items.
        (json!({"properties": {"a": {"properties": {"item": text}}}}), json!({"a": {"item": "x"}})),
        (json!({"additionalProperties": {"$ref": "#/$defs/t"}, "$defs": {"t": text}}), json!({"x": "1", "y": "2"})),
        (json!({"allOf": [{"properties": {"a": {"allOf": [text]}}}]}), json!({"a": "7"})),
        (
            json!({"anyOf": [{"properties": {"a": text}, "required": ["a"]}, {"properties": {"b": {"type": "array", "prefixItems": [text, {"type": "integer"}]}}}]}),
            json!({"b": ["1", 1]}),
        ),
    ] {
        let written = members(value.as_object().expect("an object"), MARK) + MARK + "</invoke>";
        let (read, done) = read(&schema, &written);
        assert!(done, "{written}");
        assert_eq!(serde_json::from_str::<Value>(&read).ok(), Some(value), "{schema}");
    }
}

/// What other servers report of models' output: elements with one name are a list, a list's element may be missing.
#[test]
fn repeated_elements_are_a_list() {
    let schema = json!({"properties": {"o": {"type": "object", "properties": {"tag": {"type": "array", "items": {"type": "string"}}}}}});
    let written =
        ["<o>", "<tag>1", "</tag>", "<tag>b", "</tag>", "</o>", "</invoke>"].map(|tag| format!("{MARK}{tag}"));
    assert_eq!(read(&schema, &written.concat()), (r#"{"o": {"tag": ["1", "b"]}}"#.to_owned(), true));
}

#[test]
fn what_has_no_end_is_not_whole() {
    let schema = json!({"properties": {"s": {"type": "string"}}});
    for written in ["<s>a", "<s>a]<]minimax[>[</s>", "", "x", "<s>a]<]minimax[>[x"].map(|tag| format!("{MARK}{tag}")) {
        assert!(!read(&schema, &written).1, "{written}");
    }
}

/// Alternatives of alternatives are read a bounded number of times.
#[test]
fn unions_of_unions_take_bounded_time() {
    let mut schema = json!({"type": "integer"});
    for _ in 0..12 {
        let option = json!({"type": "object", "properties": {"a": schema, "b": schema}});
        schema = json!({"anyOf": [option, {"type": "object", "properties": {"a": {"type": "string"}}}]});
    }
    let mut value = json!("x");
    for _ in 0..12 {
        value = json!({"a": value});
    }
    let written = members(json!({"v": value}).as_object().expect("an object"), MARK) + MARK + "</invoke>";
    assert!(read(&json!({"properties": {"v": schema}}), &written).1);
}
