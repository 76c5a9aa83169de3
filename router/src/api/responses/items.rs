//! Converts the input of a request, a list of items, to the messages of a chat: an assistant's reasoning, text and
//! calls are items of their own here, and one message there.

use rein_text::{
    fields::Fields,
    results::{self, ResultText},
};
use serde_json::{Map, Value, json};

use super::{custom_input, origins::ItemOrigin, output, tools::ToolTable};
use crate::error::Error;

/// Opens what was sealed as `encrypted_content`. None: it is not this cluster's, this model's or this key's.
pub type ReasoningOpener<'a> = dyn Fn(&str) -> Option<String> + 'a;

/// The messages of a chat, and the items that they come from.
#[derive(Debug, Default)]
pub struct ConvertedInput {
    pub messages: Vec<Value>,
    pub origins: Vec<ItemOrigin>,
}

/// Converts items one by one.
pub struct InputConverter<'a> {
    tools: &'a ToolTable,
    open: &'a ReasoningOpener<'a>,
    converted: ConvertedInput,
    turn: Option<AssistantTurn>,
}

/// An assistant's message that further items may extend.
#[derive(Default)]
struct AssistantTurn {
    reasoning: Option<String>,
    content: Vec<Value>,
    calls: Vec<Value>,
    origin: ItemOrigin,
    /// The response that generated its last item, if this server did.
    response: Option<String>,
}

impl<'a> InputConverter<'a> {
    pub fn new(tools: &'a ToolTable, open: &'a ReasoningOpener<'a>) -> Self {
        InputConverter { tools, open, converted: ConvertedInput::default(), turn: None }
    }

    /// A message that is not an item: `instructions`, or an input that is a text.
    pub fn text(&mut self, path: &str, role: &str, text: String) {
        self.end_turn();
        self.push(path, json!({"role": role, "content": text}), |origin| origin.is_text = true);
    }

    pub fn finish(mut self) -> ConvertedInput {
        self.end_turn();
        self.converted
    }

    /// `body` records the fields that are not read.
    pub fn item(&mut self, path: &str, item: Value, body: &mut Fields) -> Result<(), Error> {
        let Value::Object(map) = item else { return Err(Error::wrong_type(path, "an object", &item)) };
        let mut fields = Fields::within(&format!("{path}."), map);
        let id = fields.string("id")?;
        fields.take("status");
        let response = id.as_deref().and_then(output::response_of).map(str::to_owned);
        let kind = fields.string("type")?;
        match kind.as_deref() {
            None | Some("message") => self.message(path, &mut fields, response)?,
            Some("reasoning") => self.reasoning(path, &mut fields, response)?,
            Some("function_call") => {
                // What is no JSON object is named with the rest of the history.
                let arguments = fields.take("arguments").unwrap_or_default();
                self.call(path, &mut fields, arguments, response)?;
            }
            Some("custom_tool_call") => {
                let input = fields.required("input", "the text that the model passed to the tool")?;
                self.call(path, &mut fields, custom_input::arguments(&input).into(), response)?;
            }
            Some("function_call_output" | "custom_tool_call_output") => self.output(path, &mut fields)?,
            // What tools did that another server ran. Their results are in the text that follows.
            Some(other) if is_hosted(other) => {
                body.extend_ignored(&[path.to_owned()]);
                return Ok(());
            }
            Some(other) => {
                let at = fields.at("type");
                let message = format!(
                    "'{at}' must be message, reasoning, function_call, function_call_output, custom_tool_call or \
                     custom_tool_call_output, got '{other}'"
                );
                return Err(Error { code: Some("unsupported_content"), ..Error::invalid(at, message) });
            }
        }
        body.add_ignored(fields);
        Ok(())
    }

    fn message(&mut self, path: &str, fields: &mut Fields, response: Option<String>) -> Result<(), Error> {
        let role = fields.required("role", "one of user, assistant, system, developer")?;
        // Which part of an answer a message is does not change the prompt.
        fields.take("phase");
        let content = content(fields, "content", false)?;
        match role.as_str() {
            "assistant" => {
                let continues = self.turn.as_ref().is_some_and(|turn| response.is_some() && turn.response == response);
                let turn = self.turn_for(path, response, |turn| turn.content.is_empty() || !turn.calls.is_empty());
                // Texts of one answer are one text in a chat.
                match (turn.content.last_mut().and_then(|part| part.get_mut("text")), content) {
                    (Some(Value::String(text)), Value::String(more)) if continues => text.push_str(&more),
                    (_, content) => turn.content.extend(parts_of(content)),
                }
            }
            "user" | "system" | "developer" => {
                self.end_turn();
                self.push(path, json!({"role": role, "content": content}), |_| {});
            }
            other => {
                let at = fields.at("role");
                let message = format!("'{at}' must be one of user, assistant, system, developer, got '{other}'");
                return Err(Error::invalid(at, message));
            }
        }
        Ok(())
    }

    fn reasoning(&mut self, path: &str, fields: &mut Fields, response: Option<String>) -> Result<(), Error> {
        // A summary is not what the model thought.
        fields.take("summary");
        let sealed = fields.string("encrypted_content")?.filter(|sealed| !sealed.is_empty());
        let parts = fields.array("content")?.unwrap_or_default();
        let opened = sealed.as_ref().map(|sealed| (self.open)(sealed));
        let text = match opened {
            Some(Some(text)) => text,
            // Sealed by another server, before a restart, or for another model or API key. The client cannot mend it.
            Some(None) => {
                let at = fields.at("encrypted_content");
                fields.extend_ignored(&[at]);
                String::new()
            }
            None => {
                let text = |(i, part): (usize, &Value)| match part.get("text") {
                    Some(Value::String(text)) => Ok(text.clone()),
                    _ => Err(Error::missing(&format!("{}[{i}].text", fields.at("content")), "a string")),
                };
                parts.iter().enumerate().map(text).collect::<Result<String, _>>()?
            }
        };
        let turn = self.turn_for(path, response, |turn| turn.content.is_empty() && turn.calls.is_empty());
        if !text.is_empty() {
            turn.reasoning.get_or_insert_default().push_str(&text);
        }
        turn.origin.reasoning = path.to_owned();
        Ok(())
    }

    fn call(
        &mut self,
        path: &str,
        fields: &mut Fields,
        arguments: Value,
        response: Option<String>,
    ) -> Result<(), Error> {
        let name = fields.required("name", "the tool's name")?;
        let namespace = fields.string("namespace")?;
        let id = fields.required("call_id", "the id of the call")?;
        let name = self.tools.function_name(namespace.as_deref(), &name);
        let turn = self.turn_for(path, response, |_| true);
        turn.calls.push(json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}));
        turn.origin.calls.push(path.to_owned());
        Ok(())
    }

    fn output(&mut self, path: &str, fields: &mut Fields) -> Result<(), Error> {
        let id = fields.required("call_id", "the id of the call that this output answers")?;
        for name in ["name", "namespace"] {
            fields.take(name);
        }
        let content = content(fields, "output", true)?;
        self.end_turn();
        self.push(path, json!({"role": "tool", "tool_call_id": id, "content": content}), |origin| {
            origin.is_output = true;
        });
        Ok(())
    }

    /// The turn that an assistant's item belongs to: the current one if it `fits`, or if the same response has
    /// generated its last item; else a new one.
    fn turn_for(
        &mut self,
        path: &str,
        response: Option<String>,
        fits: impl Fn(&AssistantTurn) -> bool,
    ) -> &mut AssistantTurn {
        let same = |turn: &AssistantTurn| response.is_some() && turn.response == response;
        if !self.turn.as_ref().is_some_and(|turn| fits(turn) || same(turn)) {
            self.end_turn();
        }
        let turn = self.turn.get_or_insert_with(|| AssistantTurn {
            origin: ItemOrigin { item: path.to_owned(), ..ItemOrigin::default() },
            ..AssistantTurn::default()
        });
        turn.response = response;
        turn
    }

    fn end_turn(&mut self) {
        let Some(turn) = self.turn.take() else { return };
        let mut message = Map::new();
        message.insert("role".into(), "assistant".into());
        message.insert("content".into(), joined(turn.content));
        message.extend(turn.reasoning.map(|text| ("reasoning_content".to_owned(), text.into())));
        if !turn.calls.is_empty() {
            message.insert("tool_calls".into(), turn.calls.into());
        }
        self.converted.messages.push(Value::Object(message));
        self.converted.origins.push(turn.origin);
    }

    fn push(&mut self, path: &str, message: Value, describe: impl FnOnce(&mut ItemOrigin)) {
        let mut origin = ItemOrigin { item: path.to_owned(), ..ItemOrigin::default() };
        describe(&mut origin);
        self.converted.messages.push(message);
        self.converted.origins.push(origin);
    }
}

/// Whether an item tells of a tool that another server runs.
fn is_hosted(kind: &str) -> bool {
    kind.ends_with("_call") || kind.ends_with("_call_output") || kind.starts_with("mcp_")
}

/// Kinds of parts that are texts.
const TEXT_KINDS: [&str; 4] = ["input_text", "output_text", "text", "refusal"];

/// A text, or parts with text. One part becomes a text, as chats have it. In a tool's result, a text stands for what is
/// none.
fn content(fields: &mut Fields, name: &'static str, result: bool) -> Result<Value, Error> {
    let at = fields.at(name);
    let parts = match fields.take(name) {
        Some(Value::String(text)) => return Ok(text.into()),
        Some(Value::Array(parts)) => parts,
        Some(other) => return Err(Error::wrong_type(&at, "a string or an array of text parts", &other)),
        None => return Err(Error::missing(&at, "a string or an array of text parts")),
    };
    let mut converted = Vec::with_capacity(parts.len());
    let mut unread = Vec::new();
    for (i, part) in parts.into_iter().enumerate() {
        let at = format!("{at}[{i}]");
        let Value::Object(map) = part else { return Err(Error::wrong_type(&at, "an object", &part)) };
        let mut part = Fields::within(&format!("{at}."), map);
        let kind = part.required("type", "'input_text'")?;
        let (kind, text) = match kind.as_str() {
            other if result && !TEXT_KINDS.contains(&other) => {
                let mut part = part.into_map();
                part.insert("type".to_owned(), other.into());
                let ResultText { text, whole } = results::as_text(&part);
                if !whole {
                    unread.push(at);
                }
                ("text", text)
            }
            "input_text" | "output_text" | "text" => ("text", part.required("text", "a string")?),
            "refusal" => ("refusal", part.required("refusal", "a string")?),
            other => {
                let at = part.at("type");
                let message = format!(
                    "'{at}' must be 'input_text', 'output_text' or 'refusal', got '{other}': models take only text"
                );
                return Err(Error { code: Some("unsupported_content"), ..Error::invalid(at, message) });
            }
        };
        converted.push(json!({"type": kind, kind: text}));
    }
    fields.extend_ignored(&unread);
    Ok(joined_parts(converted, || Value::Array(Vec::new())))
}

fn parts_of(content: Value) -> Vec<Value> {
    match content {
        Value::Array(parts) => parts,
        text => vec![json!({"type": "text", "text": text})],
    }
}

/// The content of an assistant's message: null if it has no text.
fn joined(parts: Vec<Value>) -> Value {
    joined_parts(parts, || Value::Null)
}

fn joined_parts(mut parts: Vec<Value>, none: impl FnOnce() -> Value) -> Value {
    match parts.as_mut_slice() {
        [] => none(),
        [part] if part.get("text").is_some() => part.get_mut("text").map_or(Value::Null, Value::take),
        _ => Value::Array(parts),
    }
}
