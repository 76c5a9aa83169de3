//! Converts `system` and `messages` to OpenAI's messages, and records from which part of the request each came.

use std::collections::HashSet;

use rein_text::{
    fields::Fields,
    results::{self, ResultText},
};
use serde_json::{Map, Value, json};

use super::{origins::MessageOrigin, thinking::ThinkingSeal, tools::ToolChanges};
use crate::error::Error;

/// A line that Claude Code adds to its system prompt. In many versions it has a checksum that differs in every request,
/// so that no request would find its predecessor's prompt in a cache.
const BILLING_HEADER: &str = "x-anthropic-billing-header:";

#[derive(Default)]
pub struct DecodedConversation {
    pub messages: Vec<Value>,
    pub origins: Vec<MessageOrigin>,
    /// Paths of blocks that the prompt does not contain.
    pub left_out: Vec<String>,
    pub tool_changes: ToolChanges,
    /// The answer continues the last message.
    pub continues: bool,
}

pub fn conversation(
    system: Option<Value>,
    messages: Vec<Value>,
    seal: &ThinkingSeal,
    model: &str,
) -> Result<DecodedConversation, Error> {
    if messages.is_empty() {
        return Err(Error::invalid("messages", "'messages' must have at least one message"));
    }
    let mut reader =
        Reader { seal, model, out: DecodedConversation::default(), calls: HashSet::new(), turn: Turn::None };
    if let Some(system) = system {
        reader.system("system", "system", system)?;
    }
    let last_user = messages.iter().rposition(|message| message["role"] == "user");
    for (i, message) in messages.into_iter().enumerate() {
        // A system message may be meant for the user's turn before it only.
        let passed = message["clear_at"] == "next_user_message" && last_user.is_some_and(|last| last > i);
        if !(passed && message["role"] == "system") {
            reader.message(&format!("messages[{i}]"), message)?;
        }
    }
    reader.finish()
}

/// A text and its path in the request.
struct TextPart {
    text: String,
    at: String,
}

/// Consecutive messages with one role, which become one turn.
enum Turn {
    None,
    System { at: String, texts: Vec<TextPart> },
    User { at: String, results: Vec<(Value, MessageOrigin)>, texts: Vec<TextPart> },
    Assistant(AssistantTurn),
}

#[derive(Default)]
struct AssistantTurn {
    text: String,
    reasoning: String,
    calls: Vec<Value>,
    origin: MessageOrigin,
}

struct Reader<'a> {
    seal: &'a ThinkingSeal,
    model: &'a str,
    out: DecodedConversation,
    /// Ids of the calls so far.
    calls: HashSet<String>,
    turn: Turn,
}

impl Reader<'_> {
    fn message(&mut self, at: &str, message: Value) -> Result<(), Error> {
        let Value::Object(mut message) = message else { return Err(Error::wrong_type(at, "an object", &message)) };
        let content_at = format!("{at}.content");
        let content = match message.get_mut("content").map(Value::take) {
            None | Some(Value::Null) => return Err(Error::missing(&content_at, "a string or an array of blocks")),
            Some(content) => content,
        };
        match message.get("role") {
            Some(Value::String(role)) => match role.as_str() {
                "user" => self.user(at, content),
                "assistant" => self.assistant(at, content),
                "system" => self.system(at, &content_at, content),
                other => {
                    let message = format!("'{at}.role' must be 'user', 'assistant' or 'system', got '{other}'");
                    Err(Error::invalid(format!("{at}.role"), message))
                }
            },
            None | Some(Value::Null) => Err(Error::missing(&format!("{at}.role"), "'user' or 'assistant'")),
            Some(other) => Err(Error::wrong_type(&format!("{at}.role"), "a string", other)),
        }
    }

    fn system(&mut self, at: &str, content_at: &str, content: Value) -> Result<(), Error> {
        let mut texts = Vec::new();
        for (at, mut block) in blocks(content_at, content)? {
            let text = match kind(&mut block)?.as_str() {
                "text" => text(&mut block, "text")?,
                "tool_addition" => {
                    self.change_tool(at, &mut block, ToolChanges::add)?;
                    continue;
                }
                "tool_removal" => {
                    self.change_tool(at, &mut block, ToolChanges::remove)?;
                    continue;
                }
                other => return Err(not_text(&at, other)),
            };
            let kept = without_billing_header(&text);
            if !kept.is_empty() || kept.len() == text.len() {
                texts.push(TextPart { text: kept, at });
            }
        }
        match &mut self.turn {
            Turn::System { texts: known, .. } => known.append(&mut texts),
            _ => self.begin(Turn::System { at: at.to_owned(), texts }),
        }
        Ok(())
    }

    /// Applies a change of the tools that can be called, `{"tool": {"type": "tool_reference", "name"}}`.
    fn change_tool(
        &mut self,
        at: String,
        block: &mut Block,
        change: fn(&mut ToolChanges, String),
    ) -> Result<(), Error> {
        let at = format!("{at}.tool");
        let mut tool = match block.take("tool") {
            Some(Value::Object(tool)) => block_at(&at, tool),
            Some(other) => return Err(Error::wrong_type(&at, "an object", &other)),
            None => return Err(Error::missing(&at, "a reference to a tool")),
        };
        match kind(&mut tool)?.as_str() {
            "tool_reference" => change(&mut self.out.tool_changes, text(&mut tool, "name")?),
            // Tools of servers that Anthropic calls.
            "mcp_tool_reference" | "mcp_toolset_reference" => self.out.left_out.push(at),
            other => return Err(Error::unsupported(format!("{at}.type"), &format!("'{other}' must be in 'tools'"))),
        }
        Ok(())
    }

    fn user(&mut self, at: &str, content: Value) -> Result<(), Error> {
        let content_at = format!("{at}.content");
        let blocks = blocks(&content_at, content)?;
        if blocks.is_empty() {
            return Err(Error::invalid(&*content_at, format!("'{content_at}' must have at least one block")));
        }
        if !matches!(self.turn, Turn::User { .. }) {
            self.begin(Turn::User { at: at.to_owned(), results: Vec::new(), texts: Vec::new() });
        }
        for (at, mut block) in blocks {
            match kind(&mut block)?.as_str() {
                "text" => {
                    let text = text(&mut block, "text")?;
                    if let Turn::User { texts, .. } = &mut self.turn {
                        texts.push(TextPart { text, at });
                    }
                }
                "tool_result" => {
                    let result = self.result(&at, block)?;
                    if let Turn::User { results, .. } = &mut self.turn {
                        results.push(result);
                    }
                }
                other => return Err(not_text(&at, other)),
            }
        }
        Ok(())
    }

    fn result(&mut self, at: &str, mut block: Block) -> Result<(Value, MessageOrigin), Error> {
        let id = text(&mut block, "tool_use_id")?;
        if !self.calls.contains(&id) {
            let at = format!("{at}.tool_use_id");
            let message = format!("'{at}' must be the id of an earlier 'tool_use' block, got '{id}'");
            return Err(Error::invalid(at, message));
        }
        let content_at = format!("{at}.content");
        let mut texts = Vec::new();
        for (at, mut block) in block.take("content").map_or(Ok(Vec::new()), |content| blocks(&content_at, content))? {
            let text = match kind(&mut block)?.as_str() {
                "text" => text(&mut block, "text")?,
                "tool_reference" => {
                    let name = text(&mut block, "tool_name")?;
                    self.out.tool_changes.add(name.clone());
                    format!("tool_reference: {name}")
                }
                other => {
                    let mut block = block.into_map();
                    block.insert("type".to_owned(), other.into());
                    let ResultText { text, whole } = results::as_text(&block);
                    if !whole {
                        self.out.left_out.push(at.clone());
                    }
                    text
                }
            };
            texts.push(TextPart { text, at });
        }
        match block.take("is_error") {
            None | Some(Value::Bool(false)) => {}
            Some(Value::Bool(true)) => mark_error(&mut texts, &content_at),
            Some(other) => return Err(Error::wrong_type(&format!("{at}.is_error"), "a boolean", &other)),
        }
        let (content, origins) = content(texts);
        let message = json!({"role": "tool", "tool_call_id": id, "content": content});
        Ok((message, MessageOrigin { at: at.to_owned(), content: origins, ..MessageOrigin::default() }))
    }

    fn assistant(&mut self, at: &str, content: Value) -> Result<(), Error> {
        let blocks = blocks(&format!("{at}.content"), content)?;
        if !matches!(self.turn, Turn::Assistant(_)) {
            let origin = MessageOrigin { at: at.to_owned(), ..MessageOrigin::default() };
            self.begin(Turn::Assistant(AssistantTurn { origin, ..AssistantTurn::default() }));
        }
        for (at, block) in blocks {
            self.assistant_block(at, block)?;
        }
        Ok(())
    }

    fn assistant_block(&mut self, at: String, mut block: Block) -> Result<(), Error> {
        let Turn::Assistant(turn) = &mut self.turn else { return Ok(()) };
        match kind(&mut block)?.as_str() {
            "text" => {
                turn.text.push_str(&text(&mut block, "text")?);
                turn.origin.content.push(at);
            }
            "thinking" => {
                let thinking = text(&mut block, "thinking")?;
                let signature = block.string("signature")?.unwrap_or_default();
                match self.seal.open(self.model, &thinking, &signature) {
                    Some(reasoning) => {
                        turn.reasoning.push_str(&reasoning);
                        turn.origin.reasoning.get_or_insert(at);
                    }
                    None => self.out.left_out.push(at),
                }
            }
            "tool_use" => {
                let (id, name) = (text(&mut block, "id")?, text(&mut block, "name")?);
                // As an object, so that the template writes it as the model does.
                let arguments = match block.take("input") {
                    None => json!({}),
                    Some(input @ Value::Object(_)) => input,
                    Some(_) => {
                        self.out.left_out.push(format!("{at}.input"));
                        json!({})
                    }
                };
                let function = json!({"name": name, "arguments": arguments});
                turn.calls.push(json!({"id": id, "type": "function", "function": function}));
                turn.origin.calls.push(at);
                self.calls.insert(id);
            }
            // What Anthropic's own tools did, and reasoning that only Anthropic can read.
            "redacted_thinking" | "server_tool_use" | "mcp_tool_use" => self.out.left_out.push(at),
            other if other.ends_with("_tool_result") => self.out.left_out.push(at),
            other => return Err(not_text(&at, other)),
        }
        Ok(())
    }

    /// Ends the current turn and begins another one.
    fn begin(&mut self, next: Turn) {
        match std::mem::replace(&mut self.turn, next) {
            Turn::None => {}
            Turn::System { at, texts } => self.push_texts("system", at, texts),
            Turn::User { at, results, texts } => {
                for (message, origin) in results {
                    self.push(message, origin);
                }
                self.push_texts("user", at, texts);
            }
            Turn::Assistant(AssistantTurn { text, reasoning, calls, origin }) => {
                let mut message = Map::new();
                message.insert("role".into(), "assistant".into());
                let silent = text.is_empty() && !calls.is_empty();
                message.insert("content".into(), if silent { Value::Null } else { text.into() });
                if !reasoning.is_empty() {
                    message.insert("reasoning_content".into(), reasoning.into());
                }
                if !calls.is_empty() {
                    message.insert("tool_calls".into(), calls.into());
                }
                self.push(message.into(), origin);
            }
        }
    }

    fn push_texts(&mut self, role: &str, at: String, texts: Vec<TextPart>) {
        if !texts.is_empty() {
            let (content, origins) = content(texts);
            let message = json!({"role": role, "content": content});
            self.push(message, MessageOrigin { at, content: origins, ..MessageOrigin::default() });
        }
    }

    fn push(&mut self, message: Value, origin: MessageOrigin) {
        self.out.messages.push(message);
        self.out.origins.push(origin);
    }

    fn finish(mut self) -> Result<DecodedConversation, Error> {
        if let Turn::Assistant(last) = &self.turn {
            let at = &last.origin.at;
            if !last.calls.is_empty() {
                let message =
                    format!("'{at}' calls tools, so a user message with their 'tool_result' blocks must follow");
                return Err(Error::invalid(at, message));
            }
            if last.text.is_empty() && last.reasoning.is_empty() {
                let message =
                    format!("'{at}.content' must have text that the answer continues, because it is the last");
                return Err(Error::invalid(format!("{at}.content"), message));
            }
            self.out.continues = true;
        }
        self.begin(Turn::None);
        if self.out.messages.is_empty() {
            return Err(Error::invalid("messages", "'messages' must have at least one message with text"));
        }
        Ok(self.out)
    }
}

/// A content block.
type Block = Fields<'static>;

fn kind(block: &mut Block) -> Result<String, Error> {
    Ok(block.required("type", "the kind of block, such as 'text'")?)
}

fn text(block: &mut Block, field: &'static str) -> Result<String, Error> {
    Ok(block.required(field, "a string")?)
}

fn block_at(at: &str, block: Map<String, Value>) -> Block {
    Fields::within(&format!("{at}."), block)
}

/// The blocks of a content, with their paths. A string is one text block.
fn blocks(at: &str, content: Value) -> Result<Vec<(String, Block)>, Error> {
    match content {
        Value::String(text) => {
            let block = Map::from_iter([("type".to_owned(), "text".into()), ("text".to_owned(), text.into())]);
            Ok(vec![(at.to_owned(), block_at(at, block))])
        }
        Value::Array(items) => {
            let block = |(j, item)| match item {
                Value::Object(block) => {
                    let at = format!("{at}[{j}]");
                    Ok((at.clone(), block_at(&at, block)))
                }
                other => Err(Error::wrong_type(&format!("{at}[{j}]"), "an object", &other)),
            };
            items.into_iter().enumerate().map(block).collect()
        }
        other => Err(Error::wrong_type(at, "a string or an array of blocks", &other)),
    }
}

/// A message's content and the paths of its parts.
fn content(mut texts: Vec<TextPart>) -> (Value, Vec<String>) {
    let single = texts.len() <= 1;
    let origins = texts.iter_mut().map(|part| std::mem::take(&mut part.at)).collect();
    let mut texts = texts.into_iter().map(|part| part.text);
    match single {
        true => (texts.next().unwrap_or_default().into(), origins),
        false => (texts.map(|text| json!({"type": "text", "text": text})).collect(), origins),
    }
}

/// Templates know no failed results, so the text says that the call failed, unless its first line says so already.
fn mark_error(texts: &mut Vec<TextPart>, at: &str) {
    match texts.first_mut() {
        None => texts.push(TextPart { text: "Error".into(), at: at.to_owned() }),
        Some(first) => {
            let line = first.text.lines().next().unwrap_or_default();
            if !line.to_ascii_lowercase().contains("error") {
                first.text.insert_str(0, "Error: ");
            }
        }
    }
}

fn without_billing_header(text: &str) -> String {
    if !text.contains(BILLING_HEADER) {
        return text.to_owned();
    }
    text.split_inclusive('\n').filter(|line| !line.trim_start().starts_with(BILLING_HEADER)).collect()
}

fn not_text(at: &str, kind: &str) -> Error {
    let message = match kind {
        "image" | "document" => format!("'{at}.type' is '{kind}', but models take only text"),
        _ => format!("'{at}.type' is '{kind}', which is not allowed here"),
    };
    Error { code: Some("unsupported_content"), ..Error::invalid(format!("{at}.type"), message) }
}
