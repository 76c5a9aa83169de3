//! Validates the messages and tools of a request, because a template renders wrong shapes to wrong prompts instead of
//! failing. It knows no template and changes nothing.

use std::borrow::Cow;
use std::collections::HashMap;

use serde_json::{Map, Value};

use crate::{InvalidRequest, limits, surrogates};

const ROLES: [&str; 5] = ["system", "developer", "user", "assistant", "tool"];
/// Fields of the last message with which other APIs ask to continue it: Kimi's, then DeepSeek's and Mistral's.
pub const CONTINUE_FIELDS: [&str; 2] = ["partial", "prefix"];

/// Validates messages in the OpenAI shape.
pub fn check_messages(messages: &[Value]) -> Result<(), InvalidRequest> {
    if messages.is_empty() {
        return Err(InvalidRequest::invalid("messages", "'messages' must have at least one message"));
    }
    if messages.len() > limits::MESSAGES {
        let message = format!("'messages' may have at most {} messages, got {}", limits::MESSAGES, messages.len());
        return Err(InvalidRequest::invalid("messages", message));
    }
    let calls = |message: &Value| message.get("tool_calls").and_then(Value::as_array).map_or(0, Vec::len);
    let calls: usize = messages.iter().map(calls).sum();
    if calls > limits::CALLS {
        let message = format!("'messages' may have at most {} tool_calls in total, got {calls}", limits::CALLS);
        return Err(InvalidRequest::invalid("messages", message));
    }
    for (i, message) in messages.iter().enumerate() {
        let at = format!("messages[{i}]");
        check_message(&at, message)?;
        check_continue_fields(&at, message, i + 1 == messages.len())?;
    }
    Ok(())
}

fn check_continue_fields(at: &str, message: &Value, last: bool) -> Result<(), InvalidRequest> {
    for field in CONTINUE_FIELDS {
        let at = format!("{at}.{field}");
        match message.get(field) {
            None | Some(Value::Null | Value::Bool(false)) => {}
            Some(Value::Bool(true)) if last => check_continuable(&at, message)?,
            Some(Value::Bool(true)) => {
                return Err(InvalidRequest::invalid(&*at, format!("'{at}' may be true only on the last message")));
            }
            Some(other) => return Err(InvalidRequest::wrong_type(&at, "a boolean", other)),
        }
    }
    Ok(())
}

/// Validates that the last message can be continued, as the field `asked` requests.
pub fn check_continuable(asked: &str, last: &Value) -> Result<(), InvalidRequest> {
    let invalid = |why: &str| Err(InvalidRequest::invalid(asked, format!("'{asked}' requires a last message {why}")));
    if last.get("role").and_then(Value::as_str) != Some("assistant") {
        return invalid("with the role assistant");
    }
    if last.get("tool_calls").and_then(Value::as_array).is_some_and(|calls| !calls.is_empty()) {
        return invalid("without tool_calls");
    }
    let given = |field: &str| last.get(field).is_some_and(|value| !value.is_null());
    if !["content", "reasoning_content", "reasoning"].into_iter().any(given) {
        return invalid("with content or reasoning_content");
    }
    Ok(())
}

fn check_message(at: &str, message: &Value) -> Result<(), InvalidRequest> {
    let Value::Object(message) = message else { return Err(InvalidRequest::wrong_type(at, "an object", message)) };
    let role = match message.get("role") {
        None | Some(Value::Null) => {
            return Err(InvalidRequest::missing(&format!("{at}.role"), &format!("one of {}", ROLES.join(", "))));
        }
        Some(Value::String(role)) => role.as_str(),
        Some(other) => return Err(InvalidRequest::wrong_type(&format!("{at}.role"), "a string", other)),
    };
    if !ROLES.contains(&role) {
        let message = format!("'{at}.role' must be one of {}, got '{role}'", ROLES.join(", "));
        return Err(InvalidRequest::invalid(format!("{at}.role"), message));
    }
    for field in ["name", "tool_call_id", "reasoning_content", "reasoning", "refusal"] {
        match message.get(field) {
            None | Some(Value::Null | Value::String(_)) => {}
            Some(other) => return Err(InvalidRequest::wrong_type(&format!("{at}.{field}"), "a string", other)),
        }
    }
    for (field, instead) in [("function_call", "use tool_calls"), ("audio", "this server has no audio")] {
        if message.get(field).is_some_and(|value| !value.is_null()) {
            return Err(InvalidRequest::unsupported(format!("{at}.{field}"), instead));
        }
    }
    let calls = check_calls(at, message)?;
    if calls && role != "assistant" {
        let text = format!("'{at}.tool_calls' is allowed only for the role assistant, got {role}");
        return Err(InvalidRequest::invalid(format!("{at}.tool_calls"), text));
    }
    let given = |field: &str| message.get(field).is_some_and(|value| !value.is_null());
    if role == "tool" && !given("tool_call_id") && !given("name") {
        return Err(InvalidRequest::missing(
            &format!("{at}.tool_call_id"),
            "the id of the call that this message answers",
        ));
    }
    let declares = check_message_tools(at, role, message)?;
    let has_content = match message.get("content") {
        None | Some(Value::Null) => false,
        Some(Value::String(text)) => !text.is_empty(),
        Some(Value::Array(parts)) => !parts.is_empty(),
        Some(_) => true,
    };
    if declares && has_content {
        let text = format!("'{at}' has both 'tools' and 'content'; declare tools in a message without content");
        return Err(InvalidRequest::invalid(format!("{at}.content"), text));
    }
    check_content(at, role == "assistant" || declares, message)
}

/// Validates the tools that the message declares; true if there are any.
fn check_message_tools(at: &str, role: &str, message: &Map<String, Value>) -> Result<bool, InvalidRequest> {
    let at = format!("{at}.tools");
    match message.get("tools") {
        None | Some(Value::Null) => Ok(false),
        Some(Value::Array(_)) if !declares_tools(role) => Err(InvalidRequest::invalid(
            &*at,
            format!("'{at}' is allowed only for the roles system and developer, got {role}"),
        )),
        Some(Value::Array(tools)) => check_tool_list(&at, tools).map(|()| !tools.is_empty()),
        Some(other) => Err(InvalidRequest::wrong_type(&at, "an array", other)),
    }
}

fn declares_tools(role: &str) -> bool {
    matches!(role, "system" | "developer")
}

/// All tools that the messages declare, in order.
pub fn message_tools(messages: &[Value]) -> impl Iterator<Item = &Value> {
    let declaring = |message: &&Value| message.get("role").and_then(Value::as_str).is_some_and(declares_tools);
    messages.iter().filter(declaring).filter_map(|message| message.get("tools")?.as_array()).flatten()
}

fn check_content(at: &str, optional: bool, message: &Map<String, Value>) -> Result<(), InvalidRequest> {
    let at = format!("{at}.content");
    match message.get("content") {
        Some(Value::String(_)) => Ok(()),
        None | Some(Value::Null) if optional => Ok(()),
        None => Err(InvalidRequest::missing(&at, "a string or an array of text parts")),
        Some(Value::Array(parts)) => {
            parts.iter().enumerate().try_for_each(|(j, part)| check_part(&format!("{at}[{j}]"), part))
        }
        Some(other) => Err(InvalidRequest::wrong_type(&at, "a string or an array of text parts", other)),
    }
}

fn check_part(at: &str, part: &Value) -> Result<(), InvalidRequest> {
    let Value::Object(part) = part else { return Err(InvalidRequest::wrong_type(at, "an object", part)) };
    match part.get("type") {
        Some(Value::String(kind)) if kind == "text" || kind == "refusal" => match part.get(kind.as_str()) {
            Some(Value::String(_)) => Ok(()),
            Some(other) => Err(InvalidRequest::wrong_type(&format!("{at}.{kind}"), "a string", other)),
            None => Err(InvalidRequest::missing(&format!("{at}.{kind}"), "a string")),
        },
        Some(Value::String(kind)) => {
            let message = format!("'{at}.type' must be 'text', got '{kind}': models take only text");
            Err(InvalidRequest {
                code: Some("unsupported_content"),
                ..InvalidRequest::invalid(format!("{at}.type"), message)
            })
        }
        Some(other) => Err(InvalidRequest::wrong_type(&format!("{at}.type"), "a string", other)),
        None => Err(InvalidRequest::missing(&format!("{at}.type"), "'text'")),
    }
}

/// Validates the calls of the message; true if there are any.
fn check_calls(at: &str, message: &Map<String, Value>) -> Result<bool, InvalidRequest> {
    let at = format!("{at}.tool_calls");
    let calls = match message.get("tool_calls") {
        None | Some(Value::Null) => return Ok(false),
        Some(Value::Array(calls)) => calls,
        Some(other) => return Err(InvalidRequest::wrong_type(&at, "an array", other)),
    };
    for (j, call) in calls.iter().enumerate() {
        let at = format!("{at}[{j}]");
        let Value::Object(call) = call else { return Err(InvalidRequest::wrong_type(&at, "an object", call)) };
        match call.get("id") {
            None | Some(Value::Null | Value::String(_)) => {}
            Some(other) => return Err(InvalidRequest::wrong_type(&format!("{at}.id"), "a string", other)),
        }
        check_type_is_function(&at, call)?;
        let function = match call.get("function") {
            Some(Value::Object(function)) => function,
            Some(other) => return Err(InvalidRequest::wrong_type(&format!("{at}.function"), "an object", other)),
            None => {
                return Err(InvalidRequest::missing(&format!("{at}.function"), "an object with name and arguments"));
            }
        };
        // Arguments may be anything: a stream that the length cut leaves half an object, and an error would come back
        // on every turn.
        check_name(&format!("{at}.function.name"), function)?;
    }
    Ok(!calls.is_empty())
}

/// Paths of past calls' arguments that are no JSON object. Templates get `{}` in their place, or the text if they print
/// texts.
pub fn broken_arguments(messages: &[Value]) -> Vec<String> {
    let mut paths = Vec::new();
    for (i, message) in messages.iter().enumerate() {
        let calls = message.get("tool_calls").and_then(Value::as_array);
        for (j, call) in calls.into_iter().flatten().enumerate() {
            let whole = match call.pointer("/function/arguments") {
                Some(Value::Object(_)) => true,
                // Empty arguments are common for tools without parameters.
                Some(Value::String(text)) => text.trim().is_empty() || is_object(text),
                _ => false,
            };
            if !whole {
                paths.push(format!("messages[{i}].tool_calls[{j}].function.arguments"));
            }
        }
    }
    paths
}

/// Whether the text is a JSON object, without half surrogate pairs, which serde_json skips unread.
fn is_object(text: &str) -> bool {
    text.trim_start().starts_with('{')
        && serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok()
        && matches!(surrogates::replaced(text), Cow::Borrowed(_))
}

fn check_type_is_function(at: &str, object: &Map<String, Value>) -> Result<(), InvalidRequest> {
    match object.get("type") {
        None | Some(Value::Null) => Ok(()),
        Some(Value::String(kind)) if kind == "function" => Ok(()),
        Some(Value::String(kind)) => {
            Err(InvalidRequest::invalid(format!("{at}.type"), format!("'{at}.type' must be 'function', got '{kind}'")))
        }
        Some(other) => Err(InvalidRequest::wrong_type(&format!("{at}.type"), "'function'", other)),
    }
}

fn check_name<'a>(at: &str, function: &'a Map<String, Value>) -> Result<&'a str, InvalidRequest> {
    match function.get("name") {
        Some(Value::String(name)) if name.is_empty() => {
            Err(InvalidRequest::invalid(at, format!("'{at}' must not be an empty string")))
        }
        Some(Value::String(name)) if name.len() > limits::TOOL_NAME_BYTES => {
            let message = format!("'{at}' may have at most {} bytes, got {}", limits::TOOL_NAME_BYTES, name.len());
            Err(InvalidRequest::invalid(at, message))
        }
        Some(Value::String(name)) if name.chars().any(|c| c.is_control() || c.is_whitespace()) => {
            Err(InvalidRequest::invalid(at, format!("'{at}' must not contain whitespace or control characters")))
        }
        Some(Value::String(name)) => Ok(name),
        Some(other) => Err(InvalidRequest::wrong_type(at, "a string", other)),
        None => Err(InvalidRequest::missing(at, "the function's name")),
    }
}

/// Validates the name of a declared function. Calls in the history may have other names, because another server may
/// have allowed them.
fn check_declared_name<'a>(at: &str, function: &'a Map<String, Value>) -> Result<&'a str, InvalidRequest> {
    let name = check_name(at, function)?;
    match name.chars().find(|&c| !c.is_ascii_alphanumeric() && !"_-.".contains(c)) {
        None => Ok(name),
        Some(c) => {
            let message = format!("'{at}' may contain only letters, digits, '_', '-' and '.', got {c:?} in '{name}'");
            Err(InvalidRequest::invalid(at, message))
        }
    }
}

/// Validates that tool names begin with a letter, for formats whose models were trained on such names.
pub fn check_names_begin_with_letter(tools: &[Value], messages: &[Value]) -> Result<(), InvalidRequest> {
    let in_messages = messages.iter().enumerate().filter_map(|(i, message)| {
        Some((format!("messages[{i}].tools"), message.get("tools")?.as_array()?.as_slice()))
    });
    for (at, tools) in std::iter::once(("tools".to_owned(), tools)).chain(in_messages) {
        for (i, tool) in tools.iter().enumerate() {
            let name = tool.pointer("/function/name").and_then(Value::as_str).unwrap_or_default();
            if !name.starts_with(|c: char| c.is_ascii_alphabetic()) {
                let at = format!("{at}[{i}].function.name");
                let message = format!("'{at}' must begin with a letter for this model, got '{name}'");
                return Err(InvalidRequest::invalid(at, message));
            }
        }
    }
    Ok(())
}

/// Validates the tools of a request. The limit includes tools that its messages declare.
pub fn check_tools(tools: &[Value], messages: &[Value]) -> Result<(), InvalidRequest> {
    let count = tools.len() + message_tools(messages).count();
    if count > limits::TOOLS {
        let message =
            format!("'tools' may have at most {} tools, including those in messages, got {count}", limits::TOOLS);
        return Err(InvalidRequest::invalid("tools", message));
    }
    check_tool_list("tools", tools)
}

/// Validates tools in the OpenAI shape: `{"type": "function", "function": {"name", "description", "parameters"}}`.
fn check_tool_list(at: &str, tools: &[Value]) -> Result<(), InvalidRequest> {
    let mut names = HashMap::new();
    for (i, tool) in tools.iter().enumerate() {
        let first = |j: usize| format!("{at}[{j}]");
        let at = first(i);
        let Value::Object(tool) = tool else { return Err(InvalidRequest::wrong_type(&at, "an object", tool)) };
        check_type_is_function(&at, tool)?;
        if tool.get("type").is_none_or(Value::is_null) {
            return Err(InvalidRequest::missing(&format!("{at}.type"), "'function'"));
        }
        let function = match tool.get("function") {
            Some(Value::Object(function)) => function,
            Some(other) => return Err(InvalidRequest::wrong_type(&format!("{at}.function"), "an object", other)),
            None => {
                return Err(InvalidRequest::missing(&format!("{at}.function"), "an object with name and parameters"));
            }
        };
        let name = check_declared_name(&format!("{at}.function.name"), function)?;
        if let Some(earlier) = names.insert(name, i) {
            let (at, earlier) = (format!("{at}.function.name"), first(earlier));
            return Err(InvalidRequest::invalid(
                &*at,
                format!("'{at}' must be unique: '{earlier}' is also named '{name}'"),
            ));
        }
        match function.get("description") {
            None | Some(Value::Null | Value::String(_)) => {}
            Some(other) => {
                return Err(InvalidRequest::wrong_type(&format!("{at}.function.description"), "a string", other));
            }
        }
        match function.get("parameters") {
            None | Some(Value::Null | Value::Object(_)) => {}
            Some(other) => {
                return Err(InvalidRequest::wrong_type(&format!("{at}.function.parameters"), "a JSON Schema", other));
            }
        }
        match function.get("strict") {
            None | Some(Value::Null | Value::Bool(_)) => {}
            Some(other) => {
                return Err(InvalidRequest::wrong_type(&format!("{at}.function.strict"), "a boolean", other));
            }
        }
    }
    Ok(())
}
