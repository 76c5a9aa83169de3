use serde_json::json;

use super::{Bench, rules, tool};
use crate::{Choice, Response, Rules};

fn respond(response: Response) -> Rules {
    Rules { response: Some(response), ..rules(Vec::new()) }
}

fn with_tool(response: Response) -> Rules {
    Rules { response: Some(response), ..rules(vec![tool("f", json!({"type": "object", "properties": {}}))]) }
}

#[test]
fn json_with_and_without_tools() {
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]});
    for format in ["kimi_k2", "hermes", "plain", "llama_json", "qwen3_coder"] {
        let b = Bench::new(crate::by_name(format).expect("format"), false);
        let json = respond(Response::JsonSchema { schema: schema.clone(), strict: true });
        assert!(b.takes(&json, "\n{\"a\": 1}\n"), "{format}");
        assert!(!b.takes(&json, "") && !b.takes(&json, "hello") && !b.takes(&json, "{}"), "{format}");
        assert!(b.takes(&respond(Response::JsonObject), r#"{"x": [1, 2, {}]}"#), "{format}");
        assert!(!b.takes(&respond(Response::JsonObject), "[]"), "{format}");
        if crate::by_name(format).is_some_and(|f| f.reasoning.is_some()) {
            assert!(b.takes(&json, "⟦<think>⟧hm⟦</think>⟧{\"a\": 1}"), "{format}");
            assert!(!b.takes(&json, "⟦<think>⟧hm"), "{format}");
        }
    }
    let b = Bench::new(crate::by_name("hermes").expect("format"), false);
    let both = with_tool(Response::JsonSchema { schema, strict: true });
    assert!(b.takes(&both, r#"{"a": 1}"#));
    assert!(b.takes(&both, "⟦<tool_call>⟧\n{\"name\": \"f\", \"arguments\": {}}\n⟦</tool_call>⟧"));
    assert!(!b.takes(&both, "text"));
    let forced = Rules { choice: Choice::Required, ..both };
    assert!(!b.takes(&forced, r#"{"a": 1}"#));
    assert!(b.takes(&forced, "⟦<tool_call>⟧\n{\"name\": \"f\", \"arguments\": {}}\n⟦</tool_call>⟧"));
}

#[test]
fn structured_outputs() {
    let b = Bench::new(crate::by_name("kimi_k2").expect("format"), false);
    let regex = respond(Response::Regex(r"\d{3}-[a-z/]+".into()));
    assert!(b.takes(&regex, "123-a/b") && !b.takes(&regex, "12-a"));
    let choice = respond(Response::Choice(vec!["yes".into(), "no".into(), "not \"sure\"".into()]));
    assert!(b.takes(&choice, "no") && b.takes(&choice, "not \"sure\"") && !b.takes(&choice, "maybe"));
    let lark =
        respond(Response::Lark("start: greeting \" \" NAME\ngreeting: \"hi\" | \"hello\"\nNAME: /[A-Z][a-z]*/".into()));
    assert!(b.takes(&lark, "hello Bob") && !b.takes(&lark, "hello bob"));
    let tag = json!({"triggers": ["<fn="], "structures": [
        {"begin": "<fn=a>", "schema": {"type": "integer"}, "end": "</fn>"},
        {"begin": "<fn=b>", "schema": {"type": "boolean"}, "end": "</fn>"}]});
    let tag = respond(Response::StructuralTag(tag));
    assert!(b.takes(&tag, "text <fn=a>12</fn> and <fn=b>true</fn>.") && b.takes(&tag, "") && b.takes(&tag, "<fn"));
    assert!(!b.takes(&tag, "<fn=a>true</fn>") && !b.takes(&tag, "<fn=c>"));
    for bad in [
        Response::Choice(vec![]),
        Response::Lark("nonsense".into()),
        Response::Regex("(".into()),
        Response::StructuralTag(json!({})),
    ] {
        assert!(b.grammars.compile(&respond(bad)).is_err());
    }
}
