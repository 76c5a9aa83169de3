//! Converts tools of a request to the types of the grammar and the parser.

use rein_grammar::{Tool, ToolDecl};
use serde_json::Value;

/// Converts a tool in the OpenAI shape; `None` if it has no name.
pub fn tool(tool: &Value) -> Option<Tool> {
    let function = tool.get("function")?;
    Some(Tool {
        name: function.get("name")?.as_str()?.to_owned(),
        parameters: function.get("parameters").filter(|schema| !schema.is_null()).cloned(),
        strict: function.get("strict").and_then(Value::as_bool).unwrap_or(false),
    })
}

pub fn declaration(tool: &Tool) -> ToolDecl {
    ToolDecl { name: tool.name.clone(), parameters: tool.parameters.clone() }
}
