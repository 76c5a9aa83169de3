//! Reads `tool_choice`, whose names are those of the client's tools.

use rein_grammar::ToolChoice;
use rein_text::fields::Fields;
use serde_json::Value;

use super::tools::{CallKind, ToolTable};
use crate::error::Error;

const NAMED: &str = "the name of a declared tool";

pub fn read(fields: &mut Fields, tools: &ToolTable) -> Result<ToolChoice, Error> {
    let map = match fields.take("tool_choice") {
        None => return Ok(ToolChoice::Auto),
        Some(Value::String(choice)) => {
            return match choice.as_str() {
                "auto" => Ok(ToolChoice::Auto),
                "none" => Ok(ToolChoice::None),
                "required" => Ok(ToolChoice::Required),
                other => {
                    let message =
                        format!("'tool_choice' must be 'auto', 'none', 'required' or an object, got '{other}'");
                    Err(Error::invalid("tool_choice", message))
                }
            };
        }
        Some(Value::Object(map)) => map,
        Some(other) => return Err(Error::wrong_type("tool_choice", "a string or an object", &other)),
    };
    let mut choice = Fields::within("tool_choice.", map);
    let kind = choice.required("type", "'function', 'custom' or 'allowed_tools'")?;
    let chosen = match kind.as_str() {
        "function" => ToolChoice::Named(named(&mut choice, tools, CallKind::Function)?),
        "custom" => ToolChoice::Named(named(&mut choice, tools, CallKind::Custom)?),
        "allowed_tools" => allowed(&mut choice, tools)?,
        hosted => return Err(cannot_run("tool_choice.type", hosted)),
    };
    fields.add_ignored(choice);
    Ok(chosen)
}

fn cannot_run(at: &str, kind: &str) -> Error {
    let message = format!(
        "'{at}' must be 'function', 'custom' or 'allowed_tools', got '{kind}': this server runs no tools of its own"
    );
    Error::invalid(at, message)
}

/// The function of the tool that `name` and `namespace` name.
fn named(choice: &mut Fields, tools: &ToolTable, kind: CallKind) -> Result<String, Error> {
    let name = choice.required("name", NAMED)?;
    let namespace = choice.string("namespace")?;
    match tools.declared(namespace.as_deref(), &name).filter(|tool| tool.kind == kind) {
        Some(tool) => Ok(tool.function.clone()),
        None => {
            let what = match kind {
                CallKind::Function => "function",
                CallKind::Custom => "custom tool",
            };
            let at = choice.at("name");
            Err(Error::invalid(&*at, format!("'{at}' must be a {what} that 'tools' declares, got '{name}'")))
        }
    }
}

/// `{"mode", "tools": [...]}`. Hosted tools are left out, as in the prompt.
fn allowed(choice: &mut Fields, tools: &ToolTable) -> Result<ToolChoice, Error> {
    let required_call = match choice.string("mode")?.as_deref() {
        Some("required") => true,
        Some("auto") | None => false,
        Some(other) => {
            let message = format!("'tool_choice.mode' must be 'auto' or 'required', got '{other}'");
            return Err(Error::invalid("tool_choice.mode", message));
        }
    };
    let listed = choice.array("tools")?.ok_or_else(|| Error::missing("tool_choice.tools", "an array of tools"))?;
    let mut names = Vec::new();
    for (i, tool) in listed.into_iter().enumerate() {
        let path = format!("tool_choice.tools[{i}]");
        let Value::Object(map) = tool else { return Err(Error::wrong_type(&path, "an object", &tool)) };
        let mut entry = Fields::within(&format!("{path}."), map);
        match entry.required("type", "the type of a tool")?.as_str() {
            "function" => names.push(named(&mut entry, tools, CallKind::Function)?),
            "custom" => names.push(named(&mut entry, tools, CallKind::Custom)?),
            "namespace" => {
                let namespace = entry.required("name", "the name of a declared namespace")?;
                names.extend(tools.within(&namespace).map(|tool| tool.function.clone()));
            }
            _ => {}
        }
        choice.add_ignored(entry);
    }
    if names.is_empty() {
        let message = "'tool_choice.tools' must name at least one function, custom tool or namespace of 'tools'";
        return Err(Error::invalid("tool_choice.tools", message));
    }
    Ok(ToolChoice::Allowed { names, required: required_call })
}
