//! Recovers calls that are written in another format: JSON in place of the format's own syntax.

use serde_json::{Map, Value};

use super::Parser;
use crate::codec::json::{self, Json};
use crate::codec::python;
use crate::event::Event;

const NAMES: [&str; 2] = ["name", "tool_name"];
const ARGUMENTS: [&str; 2] = ["arguments", "parameters"];
/// Longer numbers may not be reproduced exactly.
const EXACT_DIGITS: usize = 15;

impl Parser {
    /// Reports malformed text as calls if it consists only of JSON that names declared tools. False: it does not.
    pub(super) fn read_foreign_calls(&mut self, junk: &str, out: &mut Vec<Event>) -> bool {
        self.work += junk.len() as u64;
        let Some(calls) = self.calls_in(junk) else { return false };
        for (name, arguments) in calls {
            let index = self.calls;
            self.calls += 1;
            self.tried = true;
            out.push(Event::ToolCallStart { index, id: None, name });
            out.push(Event::ArgumentsDelta { index, text: arguments });
            out.push(Event::ToolCallEnd { index, complete: true });
        }
        true
    }

    fn calls_in(&self, junk: &str) -> Option<Vec<(String, String)>> {
        let text = fenced(junk.trim());
        if self.tools.is_empty() || has_long_number(text) {
            return None;
        }
        // Only a name and its arguments.
        let (name, arguments) = text.split_at(text.find('{')?);
        if self.declares(name.trim()) {
            let arguments = String::from_utf8(json::object(fenced(arguments.trim()).as_bytes())?).ok()?;
            return Some(vec![(name.trim().to_owned(), arguments)]);
        }
        let read = |text: &str| -> Option<Value> {
            let json = serde_json::from_str(text).ok();
            json.or_else(|| serde_json::from_str(&python::to_json(text)?).ok())
        };
        let (text, value) = match read(text) {
            Some(value) => (text, value),
            None => (self.lex.without_layout(text), read(self.lex.without_layout(text))?),
        };
        // A duplicate key would be lost.
        let exact = serde_json::to_string(&value).ok().filter(|_| keys_written(text).is_none_or(|n| n == keys(&value)));
        let items = match exact.map(|_| value)? {
            Value::Array(items) => items,
            item => vec![item],
        };
        let calls: Option<Vec<_>> = items.iter().map(|item| self.call_of(item)).collect();
        calls.filter(|calls| !calls.is_empty())
    }

    /// `{"name", "arguments"}`, or the same as `{"function": ...}`, if nothing would be lost.
    fn call_of(&self, item: &Value) -> Option<(String, String)> {
        let item = item.as_object()?;
        let outer = |key: &String| matches!(key.as_str(), "function" | "type" | "id");
        let call = match item.get("function") {
            Some(Value::Object(inner)) if item.keys().all(outer) => inner,
            _ => item,
        };
        let find = |keys: [&str; 2]| keys.into_iter().find_map(|key| call.get(key));
        let known = |key: &String| NAMES.contains(&key.as_str()) || ARGUMENTS.contains(&key.as_str());
        let name = find(NAMES)?.as_str().filter(|name| self.declares(name))?;
        let arguments = match find(ARGUMENTS) {
            None => Value::Object(Map::new()).to_string(),
            Some(object @ Value::Object(_)) => object.to_string(),
            Some(Value::String(text)) => String::from_utf8(json::object(text.as_bytes())?).ok()?,
            Some(_) => return None,
        };
        call.keys().all(known).then(|| (name.to_owned(), arguments))
    }
}

/// The text without the fence of a code block.
fn fenced(text: &str) -> &str {
    let inner = text.strip_prefix("```").and_then(|rest| rest.strip_suffix("```"));
    inner.map_or(text, |inner| inner.trim_start_matches(|c: char| c.is_ascii_alphanumeric()).trim())
}

fn has_long_number(text: &str) -> bool {
    text.as_bytes().chunk_by(|a, b| a.is_ascii_digit() && b.is_ascii_digit()).any(|run| run.len() > EXACT_DIGITS)
}

fn keys(value: &Value) -> usize {
    match value {
        Value::Object(members) => members.len() + members.values().map(keys).sum::<usize>(),
        Value::Array(items) => items.iter().map(keys).sum(),
        _ => 0,
    }
}

/// Number of keys in JSON text. None: it is not JSON.
fn keys_written(text: &str) -> Option<usize> {
    let mut reader = Json::new();
    let mut keys = 0;
    for b in text.bytes() {
        let inside = reader.in_key();
        if reader.feed(b) == json::Fed::Bad {
            return None;
        }
        keys += usize::from(inside && !reader.in_key());
    }
    Some(keys)
}
