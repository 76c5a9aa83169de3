//! Finds calls that were delivered as text: JSON objects that name a declared tool and have its arguments, in a format
//! that does not read them.

use serde_json::Value;

use crate::format::Format;
use crate::formats::formats;
use crate::parse::{Parser, ParserOptions};
use crate::scan::Piece;
use crate::tools::Tools;
use crate::unmarked::bare;
use crate::{Event, Region};

const NAMES: [&str; 2] = ["name", "tool_name"];
const ARGUMENTS: [&str; 2] = ["arguments", "parameters"];
/// Bytes of a text in which calls are looked for.
pub const MAX_TEXT_BYTES: usize = 64 << 10;
/// Objects of a text that are read.
const MAX_OBJECTS: usize = 32;

/// The tool that a text calls in a form that its format does not read, and the first format that does. None: the text
/// has no such object.
pub fn lookalike(text: &str, tools: &Tools) -> Option<(String, Option<&'static Format>)> {
    if text.len() > MAX_TEXT_BYTES || !NAMES.iter().any(|name| text.contains(name)) {
        return None;
    }
    let called = text.match_indices('{').take(MAX_OBJECTS).find_map(|(at, _)| {
        let value = serde_json::Deserializer::from_str(&text[at..]).into_iter::<Value>().next()?.ok()?;
        named(&value, tools)
    })?;
    let reads = |format: &'static Format| {
        let options = ParserOptions { start: Region::Text, tools: tools.clone(), parse_tools: true };
        let mut parser = Parser::new(format, options);
        let mut events = Vec::new();
        parser.push(Piece::Bytes(text.as_bytes()), &mut events);
        parser.finish(&mut events);
        let whole = events.iter().any(|e| matches!(e, Event::ToolCallEnd { complete: true, .. }));
        whole && !events.iter().any(|e| matches!(e, Event::Malformed(_)))
    };
    // The tags of a model that was taught them may still come, so a format that reads both comes first. Others read no
    // call without its marker.
    let opens = formats().iter().filter(|f| f.opens);
    let bare = formats().iter().filter(|f| bare(f).is_some());
    Some((called, opens.chain(bare).find(|format| reads(format))))
}

/// The declared tool that an object calls.
fn named(value: &Value, tools: &Tools) -> Option<String> {
    let object = value.as_object()?;
    let call = object.get("function").and_then(Value::as_object).unwrap_or(object);
    let name = NAMES.iter().find_map(|key| call.get(*key))?.as_str()?;
    let arguments = ARGUMENTS.iter().find_map(|key| call.get(*key))?;
    let declared = tools.iter().any(|tool| tool.name == name);
    (declared && (arguments.is_object() || arguments.is_string())).then(|| name.to_owned())
}

#[cfg(test)]
mod tests;
