//! Tools become functions, and calls of functions find their tools.

use std::sync::Arc;

use rein_grammar::ToolChoice;
use rein_text::fields::Fields;
use serde_json::{Map, Value, json};

use super::super::{
    choice,
    tools::{CallKind, ConvertedTools, convert},
};
use crate::error::Error;

fn converted(tools: Value) -> Result<(Arc<ConvertedTools>, Vec<String>), Error> {
    let tools = Fields::within("", Map::from_iter([("tools".to_owned(), tools)])).read(convert)?.value;
    let ignored = tools.ignored.clone();
    Ok((tools, ignored))
}

#[test]
fn functions_custom_tools_and_namespaces_become_functions() {
    let schema = json!({"type": "object", "properties": {"a": {"type": "string"}}});
    let (tools, ignored) = converted(json!([
        {"type": "function", "name": "f", "description": "does", "parameters": schema, "strict": true, "defer": 1},
        {"type": "function", "name": "g", "parameters": schema, "strict": false},
        {"type": "web_search", "filters": {}},
        {"type": "custom", "name": "patch", "description": "Patches", "format": {"type": "text"}},
        {"type": "namespace", "name": "mcp__n", "description": "Notes", "tools": [
            {"type": "function", "name": "get", "description": "Gets", "parameters": schema},
            {"type": "custom", "name": "put"}]},
    ]))
    .unwrap();
    let input = |more: Value| {
        let mut input = json!({"type": "string"});
        input.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({"type": "object", "properties": {"input": input}, "required": ["input"], "additionalProperties": false})
    };
    let function = |function: Value| json!({"type": "function", "function": function});
    assert_eq!(
        *tools.functions,
        [
            function(json!({"name": "f", "description": "does", "parameters": schema, "strict": true})),
            function(json!({"name": "g", "parameters": schema})),
            function(json!({"name": "patch", "description": "Patches", "parameters": input(json!({}))})),
            function(json!({"name": "mcp__n__get", "parameters": schema,
                "description": "Gets\n\nAll functions named mcp__n__...: Notes"})),
            function(json!({"name": "mcp__n__put", "parameters": input(json!({}))})),
        ]
    );
    assert_eq!(ignored, ["tools[0].defer", "tools[2]:web_search"]);
    let get = tools.table.called("mcp__n__get").unwrap();
    assert_eq!((get.namespace.as_deref(), &*get.name, get.kind), (Some("mcp__n"), "get", CallKind::Function));
    assert_eq!(tools.table.called("patch").unwrap().kind, CallKind::Custom);
    assert_eq!(
        tools.table.origins().map(|origin| origin.path).collect::<Vec<_>>(),
        ["tools[0]", "tools[1]", "tools[3]", "tools[4].tools[0]", "tools[4].tools[1]"]
    );
}

#[test]
fn a_custom_tools_grammar_becomes_part_of_its_schema() {
    for (format, keyword, value) in [
        (json!({"type": "grammar", "syntax": "regex", "definition": "a|b"}), "pattern", "^(?:a|b)$"),
        (json!({"type": "grammar", "syntax": "lark", "definition": "start: \"x\""}), "x-rein-lark", "start: \"x\""),
    ] {
        let (tools, _) = converted(json!([{"type": "custom", "name": "c", "format": format}])).unwrap();
        assert_eq!(tools.functions[0]["function"]["parameters"]["properties"]["input"][keyword], value);
    }
    for (format, param) in [
        (json!({"type": "grammar", "syntax": "bnf", "definition": "a"}), "tools[0].format.syntax"),
        (json!({"type": "grammar", "syntax": "lark"}), "tools[0].format.definition"),
        (json!({"type": "json"}), "tools[0].format.type"),
        (json!({}), "tools[0].format.type"),
    ] {
        let error = converted(json!([{"type": "custom", "name": "c", "format": format}])).unwrap_err();
        assert_eq!(error.param.as_deref(), Some(param));
    }
}

#[test]
fn joined_names_are_unique_and_come_back() {
    let function = |name: &str| json!({"type": "function", "name": name});
    let namespace = |name: &str, tools: Vec<Value>| json!({"type": "namespace", "name": name, "tools": tools});
    let (tools, _) = converted(json!([
        namespace("a", vec![function("b__c"), function("d e")]),
        namespace("a__b", vec![function("c")]),
        function("a__d_e"),
        namespace("a", vec![function("b__c__2")]),
    ]))
    .unwrap();
    let names: Vec<&str> = tools.functions.iter().map(|tool| tool["function"]["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["a__b__c", "a__d_e__2", "a__b__c__2", "a__d_e", "a__b__c__2__2"]);
    for (namespace, name) in
        [(Some("a"), "b__c"), (Some("a"), "d e"), (Some("a__b"), "c"), (None, "a__d_e"), (Some("a"), "b__c__2")]
    {
        let tool = tools.table.called(&tools.table.function_name(namespace, name)).unwrap();
        assert_eq!((tool.namespace.as_deref(), &*tool.name), (namespace, name));
    }
    assert_eq!(tools.table.function_name(Some("x y"), "z"), "x_y__z");
    assert_eq!(tools.table.function_name(None, "undeclared"), "undeclared");
}

#[test]
fn tool_choice_names_the_clients_tools() {
    let tools = json!([
        {"type": "function", "name": "f"},
        {"type": "custom", "name": "c"},
        {"type": "web_search"},
        {"type": "namespace", "name": "n",
         "tools": [{"type": "function", "name": "f"}, {"type": "custom", "name": "g"}]},
    ]);
    let (tools, _) = converted(tools).unwrap();
    let chosen = |choice: Value| {
        let body = json!({"tool_choice": choice}).to_string();
        choice::read(&mut Fields::of(&body).unwrap(), &tools.table)
    };
    let allowed = |names: &[&str], required| ToolChoice::Allowed {
        names: names.iter().map(|name| (*name).to_owned()).collect(),
        required,
    };
    for (choice, expected) in [
        (json!(null), ToolChoice::Auto),
        (json!("none"), ToolChoice::None),
        (json!("required"), ToolChoice::Required),
        (json!({"type": "function", "name": "f"}), ToolChoice::Named("f".into())),
        (json!({"type": "function", "name": "f", "namespace": "n"}), ToolChoice::Named("n__f".into())),
        (json!({"type": "custom", "name": "c"}), ToolChoice::Named("c".into())),
        (
            json!({"type": "allowed_tools", "mode": "required", "tools": [
                {"type": "custom", "name": "c"}, {"type": "namespace", "name": "n"}, {"type": "web_search"}]}),
            allowed(&["c", "n__f", "n__g"], true),
        ),
    ] {
        assert_eq!(chosen(choice.clone()).unwrap(), expected, "{choice}");
    }
    for (choice, param) in [
        (json!("any"), "tool_choice"),
        (json!(3), "tool_choice"),
        (json!({}), "tool_choice.type"),
        (json!({"type": "web_search"}), "tool_choice.type"),
        (json!({"type": "function", "name": "c"}), "tool_choice.name"),
        (json!({"type": "custom", "name": "f"}), "tool_choice.name"),
        (json!({"type": "function"}), "tool_choice.name"),
        (json!({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "web_search"}]}), "tool_choice.tools"),
        (json!({"type": "allowed_tools", "mode": "some", "tools": []}), "tool_choice.mode"),
        (json!({"type": "allowed_tools", "tools": [{"type": "function", "name": "x"}]}), "tool_choice.tools[0].name"),
    ] {
        assert_eq!(chosen(choice.clone()).unwrap_err().param.as_deref(), Some(param), "{choice}");
    }
}
