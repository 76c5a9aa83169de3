//! Decodes `tools` and `tool_choice`.

use std::{collections::HashSet, sync::Arc};

use rein_grammar::ToolChoice;
use rein_text::{fields::Fields, tools::ToolSet};
use serde_json::{Map, Value, json};

use crate::error::Error;

/// The tools of a request, in OpenAI's format.
#[derive(Default)]
pub struct DecodedTools {
    pub tools: ToolSet,
    /// For each of `tools`, its index in the request and its name.
    pub origins: Vec<(usize, String)>,
    /// Tools that run at Anthropic: their names and their paths in the request.
    pub hosted: Vec<(String, String)>,
    /// Fields of tools that were not read.
    pub ignored: Vec<String>,
}

/// Fields of a tool that were read before its declaration, or that cannot change the result.
const WITHOUT_EFFECT: [&str; 4] = ["type", "defer_loading", "cache_control", "eager_input_streaming"];

/// What the conversation says about the tools that can be called.
#[derive(Default)]
pub struct ToolChanges {
    added: HashSet<String>,
    removed: HashSet<String>,
}

impl ToolChanges {
    /// A message, or the result of a tool search, makes a tool available.
    pub fn add(&mut self, name: String) {
        self.removed.remove(&name);
        self.added.insert(name);
    }

    pub fn remove(&mut self, name: String) {
        self.added.remove(&name);
        self.removed.insert(name);
    }

    pub fn is_empty(&self) -> bool {
        self.added.is_empty() && self.removed.is_empty()
    }

    /// Whether a tool can be called; a deferred one only if it was added.
    fn offers(&self, name: &str, deferred: bool) -> bool {
        self.added.contains(name) || !(deferred || self.removed.contains(name))
    }
}

/// Decodes the tools of a request.
pub fn tools(fields: &mut Fields, changes: &ToolChanges) -> Result<Arc<DecodedTools>, Error> {
    let (mut decoded, declared) = offered(fields.array("tools")?.unwrap_or_default(), changes)?;
    let exact = fields.exact_array("tools").map(|items| offered(items, changes)).transpose()?;
    decoded.tools = ToolSet::new(declared, exact.map(|(_, tools)| tools));
    Ok(Arc::new(decoded))
}

/// Tools that can be called, and what else is known of the list.
fn offered(items: Vec<Value>, changes: &ToolChanges) -> Result<(DecodedTools, Vec<Value>), Error> {
    let (mut decoded, mut tools) = (DecodedTools::default(), Vec::new());
    for (i, item) in items.into_iter().enumerate() {
        let at = format!("tools[{i}]");
        let Value::Object(tool) = item else { return Err(Error::wrong_type(&at, "an object", &item)) };
        let text = |field: &str| tool.get(field).and_then(Value::as_str).unwrap_or_default();
        match tool.get("type") {
            None | Some(Value::Null) => {}
            Some(Value::String(kind)) if kind == "custom" => {}
            Some(Value::String(kind)) if is_hosted(kind) => {
                let name = if text("name").is_empty() { kind } else { text("name") };
                decoded.hosted.push((name.to_owned(), at));
                continue;
            }
            Some(Value::String(kind)) => {
                let message = format!("'{at}.type' must be 'custom' or a type with a version date, got '{kind}'");
                return Err(Error::invalid(format!("{at}.type"), message));
            }
            Some(other) => return Err(Error::wrong_type(&format!("{at}.type"), "a string", other)),
        }
        match tool.get("name") {
            Some(Value::String(_)) => {}
            None | Some(Value::Null) => return Err(Error::missing(&format!("{at}.name"), "the tool's name")),
            Some(other) => return Err(Error::wrong_type(&format!("{at}.name"), "a string", other)),
        }
        if !changes.offers(text("name"), tool.get("defer_loading") == Some(&Value::Bool(true))) {
            continue;
        }
        decoded.origins.push((i, text("name").to_owned()));
        let mut fields = Fields::within(&format!("{at}."), tool);
        tools.push(declaration(&mut fields)?);
        decoded.ignored.extend(fields.into_ignored());
    }
    Ok((decoded, tools))
}

/// Whether a type of tools runs at Anthropic, such as `web_search_20250305`, or needs a model trained for it.
fn is_hosted(kind: &str) -> bool {
    let date = kind.rsplit('_').next().unwrap_or_default();
    kind == "mcp_toolset" || date.len() == 8 && date.bytes().all(|byte| byte.is_ascii_digit())
}

fn declaration(tool: &mut Fields) -> Result<Value, Error> {
    for name in WITHOUT_EFFECT {
        tool.take(name);
    }
    let mut function = Map::new();
    function.extend(tool.take("name").map(|name| ("name".to_owned(), name)));
    function.extend(tool.take("description").map(|text| ("description".to_owned(), text)));
    match tool.take("input_schema") {
        Some(schema @ Value::Object(_)) => function.insert("parameters".into(), schema),
        Some(other) => return Err(Error::wrong_type(&tool.at("input_schema"), "a JSON Schema", &other)),
        None => return Err(Error::missing(&tool.at("input_schema"), "a JSON Schema of the tool's input")),
    };
    function.extend(tool.take("strict").map(|strict| ("strict".to_owned(), strict)));
    Ok(json!({"type": "function", "function": function}))
}

/// Decodes `tool_choice`. Also returns whether an answer may have several calls.
pub fn choice(fields: &mut Fields, decoded: &DecodedTools) -> Result<(ToolChoice, bool), Error> {
    let Some(mut choice) = fields.fields("tool_choice")? else { return Ok((ToolChoice::Auto, true)) };
    let parallel = !choice.bool("disable_parallel_tool_use")?.unwrap_or(false);
    let name = choice.string("name")?;
    let kind = choice.required("type", KINDS)?;
    let chosen = match kind.as_str() {
        "auto" => ToolChoice::Auto,
        "none" => ToolChoice::None,
        "any" if decoded.tools.is_empty() => {
            let message = "'tool_choice.type' may be 'any' only if 'tools' has a tool that this server can offer";
            return Err(Error::invalid("tool_choice.type", message));
        }
        "any" => ToolChoice::Required,
        "tool" => ToolChoice::Named(declared(name, decoded)?),
        other => {
            let message = format!("'tool_choice.type' must be {KINDS}, got '{other}'");
            return Err(Error::invalid("tool_choice.type", message));
        }
    };
    fields.add_ignored(choice);
    Ok((chosen, parallel))
}

const KINDS: &str = "'auto', 'any', 'tool' or 'none'";

/// The name, if it is that of a declared tool.
fn declared(name: Option<String>, decoded: &DecodedTools) -> Result<String, Error> {
    let at = "tool_choice.name";
    let name = name.ok_or_else(|| Error::missing(at, "the name of a declared tool"))?;
    if decoded.origins.iter().any(|(_, declared)| *declared == name) {
        return Ok(name);
    }
    if decoded.hosted.iter().any(|(hosted, _)| *hosted == name) {
        let why = format!("'{name}' runs at Anthropic; declare a tool with an 'input_schema' instead");
        return Err(Error::unsupported(at, &why));
    }
    Err(Error::invalid(at, format!("'{at}' is '{name}', which is not declared in 'tools'")))
}
