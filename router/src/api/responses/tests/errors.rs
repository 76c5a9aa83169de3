//! Errors name the fields of the request.

use super::super::origins::{ItemOrigin, Origins, ToolOrigin};
use crate::error::Error;

fn origins() -> Origins {
    let item = |item: &str| ItemOrigin { item: item.into(), ..ItemOrigin::default() };
    Origins {
        messages: vec![
            ItemOrigin { is_text: true, ..item("instructions") },
            item("input[0]"),
            ItemOrigin {
                reasoning: "input[1]".into(),
                calls: vec!["input[3]".into(), "input[4]".into()],
                ..item("input[2]")
            },
            ItemOrigin { is_output: true, ..item("input[5]") },
        ],
        tools: vec![
            ToolOrigin { path: "tools[0]".into(), function: "patch-it".into(), is_custom: true },
            ToolOrigin { path: "tools[3].tools[1]".into(), function: "n__f".into(), is_custom: false },
        ],
    }
}

#[test]
fn paths_are_those_of_the_request() {
    for (own, client) in [
        ("messages", "input"),
        ("messages[0].content", "instructions"),
        ("messages[1].content[2].text", "input[0].content[2].text"),
        ("messages[2].tool_calls[1].function.name", "input[4].name"),
        ("messages[2].tool_calls[0].id", "input[3].call_id"),
        ("messages[2].reasoning_content", "input[1].content"),
        ("messages[2].content", "input[2].content"),
        ("messages[3].content[0]", "input[5].output[0]"),
        ("messages[3].tool_call_id", "input[5].call_id"),
        ("tools[1].function.parameters.properties", "tools[3].tools[1].parameters.properties"),
        ("tools[0].function.name", "tools[0].name"),
        ("tools[patch-it].function.parameters", "tools[0].format.definition"),
        ("tools[n__f].function.parameters", "tools[3].tools[1].parameters"),
        ("tools[other].function.parameters", "tools[other].function.parameters"),
        ("tools", "tools"),
        ("response_format.json_schema.schema", "text.format.schema"),
        ("max_tokens", "max_output_tokens"),
        ("reasoning_effort", "reasoning.effort"),
        ("temperature", "temperature"),
        ("messages[9]", "messages[9]"),
    ] {
        assert_eq!(origins().rename(Error::invalid(own, "")).param.as_deref(), Some(client));
    }
}

#[test]
fn messages_name_the_clients_fields_and_keep_other_words() {
    for (own, client) in [
        (
            "'tools[1].function.name' must be unique: 'tools[0]' is also named 'f'",
            "'tools[3].tools[1].name' must be unique: 'tools[0]' is also named 'f'",
        ),
        ("'messages' may have at most 3 messages, got 4.", "'input' may have at most 3 messages, got 4."),
        ("messages[1].content: é is wrong", "input[0].content: é is wrong"),
        ("the tools of messages", "the tools of messages"),
        ("", ""),
    ] {
        assert_eq!(origins().rename(Error::invalid("x", own)).message, client);
    }
}
