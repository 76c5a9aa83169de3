//! Renames the fields in errors: requests are checked in OpenAI's form, clients know the fields that they sent.

use crate::error::Error;

/// From which part of the request a message came.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MessageOrigin {
    /// Path of the message, or of the block that became a message of its own.
    pub at: String,
    /// Paths of its texts.
    pub content: Vec<String>,
    /// Paths of its calls.
    pub calls: Vec<String>,
    /// Path of its first reasoning.
    pub reasoning: Option<String>,
}

/// The origins of all messages and tools.
#[derive(Debug, Clone, Default)]
pub struct FieldOrigins {
    pub(super) messages: Vec<MessageOrigin>,
    /// Index in the request and name of each tool.
    pub(super) tools: Vec<(usize, String)>,
}

/// Fields that have another name in the Messages API. The longest prefix comes first.
const RENAMED: [(&str, &str); 9] = [
    ("response_format.json_schema.schema", "output_config.format.schema"),
    ("response_format", "output_config.format"),
    ("reasoning_effort", "output_config.effort"),
    ("thinking_token_budget", "thinking.budget_tokens"),
    ("parallel_tool_calls", "tool_choice.disable_parallel_tool_use"),
    ("continue_final_message", "messages"),
    ("stop[", "stop_sequences["),
    ("'stop'", "'stop_sequences'"),
    ("'tool_calls'", "'tool_use'"),
];
/// Parts of a tool that have another name in the Messages API. The longest prefix comes first.
const TOOL_PARTS: [(&str, &str); 2] = [(".function.parameters", ".input_schema"), (".function", "")];
const CALL_PARTS: [(&str, &str); 2] = [(".function.arguments", ".input"), (".function", "")];

impl FieldOrigins {
    /// The error in terms of the request's own fields.
    pub fn rename(&self, error: Error) -> Error {
        let mut message = self.renamed(&error.message);
        if error.code == Some("context_length_exceeded") {
            // Clients look for these words, and then shorten the conversation.
            message = format!("prompt is too long: {message}");
        }
        Error { message, param: error.param.as_deref().map(|param| self.renamed(param)), ..error }
    }

    /// The name of a field that the template does not read.
    pub fn rename_field(&self, field: &str) -> String {
        self.renamed(field)
    }

    /// A text with the names of fields replaced.
    fn renamed(&self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        let mut rest = text;
        // A name begins where no other name goes on.
        let mut inside = false;
        while let Some(c) = rest.chars().next() {
            if !inside && let Some((name, length)) = self.field(rest) {
                out.push_str(&name);
                rest = &rest[length..];
                inside = true;
                continue;
            }
            inside = c.is_ascii_alphanumeric() || "_.]".contains(c);
            out.push(c);
            rest = &rest[c.len_utf8()..];
        }
        out
    }

    /// The field with which a text begins: its name in the request, and the length of its internal name.
    fn field(&self, text: &str) -> Option<(String, usize)> {
        let path = |prefix: &str| {
            let inner = text.strip_prefix(prefix)?;
            let close = inner.find(']')?;
            Some((&inner[..close], &inner[close + 1..]))
        };
        if let Some((index, rest)) = path("messages[") {
            let origin = self.messages.get(index.parse::<usize>().ok()?)?;
            let (name, left) = origin.part(rest);
            return Some((name, text.len() - left.len()));
        }
        if let Some((tool, rest)) = path("tools[") {
            let known = match tool.parse::<usize>() {
                Ok(index) => self.tools.get(index),
                Err(_) => self.tools.iter().find(|(_, name)| name == tool),
            };
            let at = format!("tools[{}]", known?.0);
            let (name, left) = replaced(at, rest, &TOOL_PARTS);
            return Some((name, text.len() - left.len()));
        }
        RENAMED.into_iter().find(|(from, _)| text.starts_with(from)).map(|(from, to)| (to.to_owned(), from.len()))
    }
}

impl MessageOrigin {
    /// The part of the message that `rest` begins with, and the text after it.
    fn part<'a>(&self, rest: &'a str) -> (String, &'a str) {
        let indexed = |prefix: &str, known: &[String]| {
            let inner = rest.strip_prefix(prefix)?;
            let close = inner.find(']')?;
            let at = known.get(inner[..close].parse::<usize>().ok()?)?;
            Some((at.clone(), &inner[close + 1..]))
        };
        if let Some((at, rest)) = indexed(".content[", &self.content) {
            return (at, rest);
        }
        if let Some((at, rest)) = indexed(".tool_calls[", &self.calls) {
            return replaced(at, rest, &CALL_PARTS);
        }
        if let Some(rest) = rest.strip_prefix(".reasoning_content") {
            return (self.reasoning.clone().unwrap_or_else(|| self.at.clone()), rest);
        }
        if let Some(rest) = rest.strip_prefix(".tool_call_id") {
            return (format!("{}.tool_use_id", self.at), rest);
        }
        match (rest.strip_prefix(".content"), self.content.as_slice()) {
            (Some(rest), [only]) => (only.clone(), rest),
            (Some(rest), _) if self.at == "system" => (self.at.clone(), rest),
            _ => (self.at.clone(), rest),
        }
    }
}

fn replaced<'a>(at: String, rest: &'a str, parts: &[(&str, &str)]) -> (String, &'a str) {
    let found = parts.iter().find_map(|(from, to)| Some((to, rest.strip_prefix(from)?)));
    found.map_or((at.clone(), rest), |(to, rest)| (format!("{at}{to}"), rest))
}
