//! Converts messages as clients send them to the form that a template supports.

use serde_json::{Map, Value as Json, json};

use super::error::TemplateError;
use super::{RenderInput, lossless, python};
use crate::surrogates;

/// The inputs that a template supports, as found by `probe`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct TemplateCapabilities {
    /// Renders tool-call arguments correctly if they are a JSON string.
    pub string_arguments: bool,
    /// Renders tool-call arguments correctly if they are an object.
    pub object_arguments: bool,
    /// What content may be, by role.
    pub content: ContentForms,
    /// Shows the tools that a system message declares.
    pub message_tools: bool,
    /// Shows the tools of a request in every probed conversation.
    pub tools: bool,
    /// How absent content is passed to the template.
    pub no_content: NullContentForms,
}

/// How absent content is passed to the template, by what else the message has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct NullContentForms {
    /// Messages with tool calls.
    pub calls: NullContentForm,
    /// System messages that declare tools.
    pub declarations: NullContentForm,
    /// All others.
    pub other: NullContentForm,
}

/// What the template gets for content that is null or absent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum NullContentForm {
    Null,
    #[default]
    EmptyText,
    NoField,
}

impl NullContentForms {
    fn of(self, message: &Map<String, Json>) -> NullContentForm {
        let lists = |field: &str| message.get(field).and_then(Json::as_array).is_some_and(|items| !items.is_empty());
        match (lists("tool_calls"), lists("tools")) {
            (true, _) => self.calls,
            (_, true) => self.declarations,
            _ => self.other,
        }
    }
}

/// In which forms a template shows content.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum ContentForm {
    #[default]
    Text,
    /// A list of parts; it drops texts.
    Parts,
    Both,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct ContentForms {
    pub user: ContentForm,
    pub system: ContentForm,
    pub assistant: ContentForm,
    pub tool: ContentForm,
}

impl ContentForms {
    pub fn of(&self, role: &str) -> ContentForm {
        match role {
            "system" | "developer" => self.system,
            "assistant" => self.assistant,
            "tool" | "function" | "ipython" => self.tool,
            _ => self.user,
        }
    }
}

/// Names of the field in which clients send reasoning, the most common one first.
pub(super) const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

/// Rejects input that a template would render to a wrong prompt; the error names the field.
pub(super) fn check(input: &RenderInput) -> Result<(), TemplateError> {
    if input.messages.is_empty() && !input.raw {
        return Err(TemplateError::input("messages", "messages must have at least one message"));
    }
    for (i, message) in input.messages.iter().enumerate() {
        let at = format!("messages[{i}]");
        let Json::Object(message) = message else {
            return Err(wrong(&at, "an object", message));
        };
        if !input.raw {
            check_message(&at, message)?;
        }
    }
    for (name, list) in [("tools", input.tools.as_deref()), ("documents", input.documents.as_deref())] {
        for (i, item) in list.into_iter().flatten().enumerate() {
            if !item.is_object() {
                return Err(wrong(&format!("{name}[{i}]"), "an object", item));
            }
        }
    }
    Ok(())
}

fn check_message(at: &str, message: &Map<String, Json>) -> Result<(), TemplateError> {
    let role = match message.get("role") {
        Some(Json::String(role)) if !role.is_empty() => role.as_str(),
        other => return Err(wrong(&format!("{at}.role"), "a string", other.unwrap_or(&Json::Null))),
    };
    let content_at = format!("{at}.content");
    match message.get("content") {
        Some(Json::String(_)) => {}
        Some(Json::Array(parts)) => {
            for (i, part) in parts.iter().enumerate() {
                check_part(&format!("{content_at}[{i}]"), part)?;
            }
        }
        Some(Json::Object(_)) if matches!(role, "tool" | "function" | "ipython") => {}
        content @ (None | Some(Json::Null)) => {
            let declares = matches!(role, "system" | "developer") && message.get("tools").is_some_and(Json::is_array);
            if matches!(role, "user" | "system" | "developer" | "tool") && !declares {
                let what = format!("a string or a list of text parts for the role {role}");
                return Err(wrong(&content_at, &what, content.unwrap_or(&Json::Null)));
            }
        }
        Some(other) => return Err(wrong(&content_at, "a string or a list of text parts", other)),
    }
    match message.get("tool_calls") {
        None | Some(Json::Null) => {}
        Some(Json::Array(calls)) => {
            for (i, call) in calls.iter().enumerate() {
                check_call(&format!("{at}.tool_calls[{i}]"), call)?;
            }
        }
        Some(other) => return Err(wrong(&format!("{at}.tool_calls"), "a list", other)),
    }
    for name in REASONING {
        match message.get(name) {
            None | Some(Json::Null | Json::String(_)) => {}
            Some(other) => return Err(wrong(&format!("{at}.{name}"), "a string", other)),
        }
    }
    for (i, tool) in message.get("tools").and_then(Json::as_array).into_iter().flatten().enumerate() {
        if !tool.is_object() {
            return Err(wrong(&format!("{at}.tools[{i}]"), "an object", tool));
        }
    }
    Ok(())
}

fn check_part(at: &str, part: &Json) -> Result<(), TemplateError> {
    match part {
        Json::String(_) => Ok(()),
        Json::Object(fields) => match fields.get("text") {
            None | Some(Json::String(_)) => Ok(()),
            Some(other) => Err(wrong(&format!("{at}.text"), "a string", other)),
        },
        other => Err(wrong(at, "an object such as {\"type\": \"text\", \"text\": \"...\"}", other)),
    }
}

fn check_call(at: &str, call: &Json) -> Result<(), TemplateError> {
    let Json::Object(call) = call else {
        return Err(wrong(at, "an object", call));
    };
    let (at, function) = match call.get("function") {
        Some(Json::Object(function)) => (format!("{at}.function"), function),
        None | Some(Json::Null) => (at.to_owned(), call),
        Some(other) => return Err(wrong(&format!("{at}.function"), "an object", other)),
    };
    match function.get("name") {
        None | Some(Json::String(_)) => {}
        Some(other) => return Err(wrong(&format!("{at}.name"), "a string", other)),
    }
    Ok(())
}

fn wrong(at: &str, expected: &str, got: &Json) -> TemplateError {
    let got = match got {
        Json::Null => "null or nothing".to_owned(),
        Json::Bool(b) => b.to_string(),
        Json::Number(n) => n.to_string(),
        Json::String(s) => match lossless::literal(s) {
            Some(number) => number.to_owned(),
            None => format!("the string {:?}", s.chars().take(40).collect::<String>()),
        },
        Json::Array(_) => "a list".to_owned(),
        Json::Object(_) => "an object".to_owned(),
    };
    TemplateError::input(at, format!("{at} must be {expected}, got {got}"))
}

/// Converts messages for a template with these traits: parses string arguments, joins text parts, removes null fields
/// and replaces absent content.
pub(super) fn normalize(messages: &[Json], traits: &TemplateCapabilities) -> Vec<Json> {
    messages.iter().map(|message| message.as_object().map_or(Json::Null, |m| normalize_message(m, traits))).collect()
}

fn normalize_message(message: &Map<String, Json>, traits: &TemplateCapabilities) -> Json {
    let mut out = Map::with_capacity(message.len() + 2);
    let role = message.get("role").and_then(Json::as_str).unwrap_or_default();
    let form = traits.content.of(role);
    let absent = match traits.no_content.of(message) {
        NullContentForm::Null => Some(Json::Null),
        NullContentForm::EmptyText => Some(Json::String(String::new())),
        NullContentForm::NoField => None,
    };
    for (key, value) in message.iter().filter(|(key, value)| !value.is_null() || *key == "content") {
        let value = match (key.as_str(), value) {
            ("content", Json::Null) => match &absent {
                Some(absent) => absent.clone(),
                None => continue,
            },
            ("content", Json::Array(parts)) if form == ContentForm::Text => flatten(parts),
            ("content", Json::String(text)) if form == ContentForm::Parts && !text.is_empty() => {
                json!([{"type": "text", "text": text}])
            }
            ("tool_calls", Json::Array(calls)) => calls.iter().cloned().map(|call| mend_call(call, traits)).collect(),
            _ => value.clone(),
        };
        out.insert(key.clone(), value);
    }
    if let (false, Some(absent)) = (message.contains_key("content"), absent) {
        out.insert("content".into(), absent);
    }
    Json::Object(out)
}

/// Removes the tools that system messages declare, for a template that does not read them there. Removes a message that
/// has only tools.
pub(super) fn take_message_tools(messages: &mut Vec<Json>) -> Vec<Json> {
    let mut tools = Vec::new();
    messages.retain_mut(|message| {
        let declared = match message.as_object_mut() {
            Some(message) if matches!(message.get("role"), Some(role) if role == "system" || role == "developer") => {
                message.shift_remove("tools")
            }
            _ => None,
        };
        let Some(Json::Array(declared)) = declared else { return true };
        tools.extend(declared);
        message.get("content").is_some_and(|content| !content.is_null())
    });
    tools
}

/// Copies the reasoning from the name that the client used to `reasoning_content` and `thinking`. transformers does the
/// same in its renderer, so raw messages get it too.
pub(super) fn alias_reasoning(message: Json) -> Json {
    let Json::Object(message) = message else {
        return message;
    };
    let Some(reasoning) = REASONING.iter().find_map(|name| message.get(*name).filter(|v| !v.is_null())).cloned() else {
        return Json::Object(message);
    };
    let mut out = Map::with_capacity(message.len() + 2);
    out.insert("thinking".into(), reasoning.clone());
    out.extend(message);
    out.insert("reasoning_content".into(), reasoning);
    Json::Object(out)
}

/// Joins text parts; a list with other parts is left unchanged.
fn flatten(parts: &[Json]) -> Json {
    let texts: Option<Vec<&str>> = parts
        .iter()
        .map(|part| match part {
            Json::String(text) => Some(text.as_str()),
            part => match part.get("type").and_then(Json::as_str) {
                None | Some("text" | "input_text" | "output_text") => part.get("text").and_then(Json::as_str),
                Some(_) => None,
            },
        })
        .collect();
    texts.map_or_else(|| Json::Array(parts.to_vec()), |texts| Json::String(texts.join("\n")))
}

/// Gives a call arguments in a form that the template renders. Arguments that are no JSON object become an empty one,
/// or stay a text if the template prints texts.
fn mend_call(mut call: Json, traits: &TemplateCapabilities) -> Json {
    let nested = call.get("function").is_some_and(Json::is_object);
    let holder = if nested { call.get_mut("function") } else { Some(&mut call) };
    let Some(Json::Object(holder)) = holder else { return call };
    let arguments = holder.get("arguments").unwrap_or(&Json::Null);
    let mended = match arguments {
        Json::String(_) if traits.string_arguments => return call,
        Json::String(text) => match lossless::from_str(&surrogates::replaced(text)) {
            Ok(object @ Json::Object(_)) => object,
            _ => Json::Object(Map::new()),
        },
        Json::Object(_) if traits.object_arguments => return call,
        Json::Object(_) => arguments.clone(),
        _ => Json::Object(Map::new()),
    };
    let mended = match python::JsonDumpsOptions::default().dump(&python::from_json(&mended)) {
        Ok(text) if !traits.object_arguments => Json::String(text),
        _ => mended,
    };
    holder.insert("arguments".into(), mended);
    call
}
