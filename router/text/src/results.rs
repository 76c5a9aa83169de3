//! What a tool's result says to a model that reads text only. Agents send screenshots and documents as results, and
//! cannot take them back: an error would come again on every turn.

use serde_json::{Map, Value};

/// A part of a tool's result as text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResultText {
    pub text: String,
    /// False: the part cannot be read, and the text stands for it.
    pub whole: bool,
}

/// A part that is not plain text, in the form of any of the APIs.
pub fn as_text(part: &Map<String, Value>) -> ResultText {
    let kind = string(part.get("type")).unwrap_or("part");
    let read = match kind {
        "document" => document(part),
        "search_result" => search_result(part),
        // Plain text with another name.
        "text" | "input_text" | "output_text" => string(part.get("text")).map(str::to_owned),
        "refusal" => string(part.get("refusal")).map(str::to_owned),
        _ => None,
    };
    match read {
        Some(text) => ResultText { text, whole: true },
        None => {
            let what = kind.trim_start_matches("input_").trim_end_matches("_url");
            let file = part.get("file").and_then(Value::as_object).unwrap_or(part);
            let name = ["filename", "title", "name"].into_iter().find_map(|name| string(file.get(name)));
            let name = name.map(|name| format!(" {name:?}")).unwrap_or_default();
            ResultText { text: format!("[{what}{name}: not shown, because this model reads only text]"), whole: false }
        }
    }
}

/// Replaces what is no text in the results among these messages of OpenAI's form. Returns the paths of what cannot be
/// read.
pub fn replace_unreadable(messages: &mut [Value]) -> Vec<String> {
    let mut paths = Vec::new();
    for (i, message) in messages.iter_mut().enumerate() {
        if message.get("role").is_none_or(|role| role != "tool") {
            continue;
        }
        let Some(Value::Array(parts)) = message.get_mut("content") else { continue };
        for (j, part) in parts.iter_mut().enumerate() {
            let Value::Object(fields) = part else { continue };
            if !fields.get("type").is_some_and(|kind| kind.is_string() && kind != "text" && kind != "refusal") {
                continue;
            }
            let ResultText { text, whole } = as_text(fields);
            if !whole {
                paths.push(format!("messages[{i}].content[{j}]"));
            }
            *part = serde_json::json!({"type": "text", "text": text});
        }
    }
    paths
}

/// `{"source": {"type": "text", "data"} | {"type": "content", "content"}, "title", "context"}`.
fn document(part: &Map<String, Value>) -> Option<String> {
    let source = part.get("source")?;
    let body = match string(source.get("type"))? {
        "text" => string(source.get("data"))?.to_owned(),
        "content" => texts(source.get("content")?)?,
        _ => return None,
    };
    let head = ["title", "context"].into_iter().filter_map(|name| string(part.get(name)));
    Some(head.chain([body.as_str()]).collect::<Vec<_>>().join("\n"))
}

/// `{"title", "source", "content"}`.
fn search_result(part: &Map<String, Value>) -> Option<String> {
    let body = texts(part.get("content")?)?;
    let head = ["title", "source"].into_iter().filter_map(|name| string(part.get(name)));
    Some(head.chain([body.as_str()]).collect::<Vec<_>>().join("\n"))
}

/// A text, or the texts of blocks. None: a block has none.
fn texts(content: &Value) -> Option<String> {
    match content {
        Value::String(text) => Some(text.clone()),
        Value::Array(blocks) => {
            let texts: Option<Vec<&str>> = blocks.iter().map(|block| string(block.get("text"))).collect();
            texts.map(|texts| texts.join("\n"))
        }
        _ => None,
    }
}

fn string(value: Option<&Value>) -> Option<&str> {
    value.and_then(Value::as_str)
}

#[cfg(test)]
mod tests;
