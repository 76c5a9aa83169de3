//! Converts tools of a request to the types of the grammar and the parser.

use std::sync::Arc;

use rein_grammar::{Rules, Tool, ToolDecl};
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

/// Like [`tool`], without a copy.
pub fn into_tool(mut tool: Value) -> Option<Tool> {
    let function = tool.get_mut("function")?;
    Some(Tool {
        name: function.get("name")?.as_str()?.to_owned(),
        strict: function.get("strict").and_then(Value::as_bool).unwrap_or(false),
        parameters: function.get_mut("parameters").map(Value::take).filter(|schema| !schema.is_null()),
    })
}

pub fn declaration(tool: &Tool) -> ToolDecl {
    ToolDecl { name: tool.name.clone(), parameters: tool.parameters.clone() }
}

/// What the parser needs to know of the tools, without a copy if nobody else uses the rules.
pub fn declarations(rules: Arc<Rules>) -> Arc<[ToolDecl]> {
    match Arc::try_unwrap(rules) {
        Ok(rules) => {
            rules.tools.into_iter().map(|tool| ToolDecl { name: tool.name, parameters: tool.parameters }).collect()
        }
        Err(shared) => shared.tools.iter().map(declaration).collect(),
    }
}
