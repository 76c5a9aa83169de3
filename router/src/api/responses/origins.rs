//! Gives errors the names of the client's fields: the internal job has other messages and tools than the request. It
//! knows paths only.

use std::ops::Range;

use crate::error::Error;

/// Where the messages and tools of a job come from.
#[derive(Debug, Clone, Default)]
pub struct Origins {
    pub messages: Vec<ItemOrigin>,
    pub tools: Vec<ToolOrigin>,
}

/// The tool from which a function is made.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ToolOrigin {
    pub path: String,
    /// The function's name: errors about a schema name the function in place of its index.
    pub function: String,
    /// The function's parameters come from the format of a custom tool.
    pub is_custom: bool,
}

/// The paths of the items from which a message is made.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ItemOrigin {
    pub item: String,
    pub reasoning: String,
    /// The item of each call.
    pub calls: Vec<String>,
    /// The result of a call.
    pub is_output: bool,
    /// The item is the text itself, not an object with it.
    pub is_text: bool,
}

/// Fields of chats, and those of this API that set them.
const RENAMED: [(&str, &str); 6] = [
    ("messages", "input"),
    ("response_format.json_schema.schema", "text.format.schema"),
    ("response_format", "text.format"),
    ("reasoning_effort", "reasoning.effort"),
    ("max_tokens", "max_output_tokens"),
    ("max_completion_tokens", "max_output_tokens"),
];

impl Origins {
    /// The error with this API's paths.
    pub fn rename(&self, error: Error) -> Error {
        Error {
            param: error.param.map(|param| self.path(&param).unwrap_or(param)),
            message: self.text(&error.message),
            ..error
        }
    }

    /// The client's name of a field.
    pub fn field(&self, name: String) -> String {
        self.path(&name).unwrap_or(name)
    }

    /// The client's path. None: it is the same.
    fn path(&self, path: &str) -> Option<String> {
        if let Some((index, rest)) = bracketed(path, "messages") {
            return Some(self.messages.get(index.parse::<usize>().ok()?)?.path(rest));
        }
        if let Some((index, rest)) = bracketed(path, "tools") {
            let named = || self.tools.iter().find(|tool| tool.function == index);
            let tool = index.parse::<usize>().ok().and_then(|index| self.tools.get(index)).or_else(named)?;
            let rest = match rest.strip_prefix(".function").unwrap_or(rest) {
                rest if tool.is_custom && rest.starts_with(".parameters") => ".format.definition",
                rest => rest,
            };
            return Some(format!("{}{rest}", tool.path));
        }
        RENAMED.iter().find_map(|(own, client)| match path.strip_prefix(own)? {
            rest if rest.is_empty() || rest.starts_with('.') => Some(format!("{client}{rest}")),
            _ => None,
        })
    }

    /// The text with the client's paths. Quoted words, and words with an index, are paths.
    fn text(&self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        let mut at = 0;
        for Range { start, end } in words(text) {
            let word = &text[start..end];
            let quoted = text[..start].ends_with('\'') && text[end..].starts_with('\'');
            let path = (quoted || word.contains('[')).then(|| self.path(word)).flatten();
            out.push_str(&text[at..start]);
            out.push_str(path.as_deref().unwrap_or(word));
            at = end;
        }
        out.push_str(&text[at..]);
        out
    }
}

impl ItemOrigin {
    fn path(&self, rest: &str) -> String {
        if let Some((index, rest)) = rest.strip_prefix('.').and_then(|rest| bracketed(rest, "tool_calls")) {
            let rest = match rest.strip_prefix(".function").unwrap_or(rest) {
                ".id" => ".call_id",
                rest => rest,
            };
            return format!(
                "{}{rest}",
                index.parse::<usize>().ok().and_then(|index| self.calls.get(index)).unwrap_or(&self.item)
            );
        }
        if rest == ".reasoning_content" && !self.reasoning.is_empty() {
            return format!("{}.content", self.reasoning);
        }
        match rest {
            _ if self.is_text => self.item.clone(),
            ".tool_call_id" => format!("{}.call_id", self.item),
            _ => match rest.strip_prefix(".content").filter(|_| self.is_output) {
                Some(rest) => format!("{}.output{rest}", self.item),
                None => format!("{}{rest}", self.item),
            },
        }
    }
}

/// `NAME[INDEX]REST`.
fn bracketed<'a>(path: &'a str, name: &str) -> Option<(&'a str, &'a str)> {
    path.strip_prefix(name)?.strip_prefix('[')?.split_once(']')
}

/// The words of a text that may be paths.
fn words(text: &str) -> impl Iterator<Item = Range<usize>> + '_ {
    let part = |c: char| c.is_ascii_alphanumeric() || "_-.[]".contains(c);
    let mut at = 0;
    std::iter::from_fn(move || {
        let start = at + text[at..].find(part)?;
        let end = text[start..].find(|c| !part(c)).map_or(text.len(), |length| start + length);
        at = end;
        // A dot at the end belongs to the sentence.
        Some(start..start + text[start..end].trim_end_matches('.').len())
    })
}
