//! The codec of arguments written as nested elements whose tags name the kind of their value (Cohere's Command 5):
//! `<cofl:value name="a" type="list"><cofl:value type="raw">text</cofl:value></cofl:value>`. Strings are `raw`, other
//! scalars `json`, objects `dict`.

use serde::de::IgnoredAny;
use serde_json::{Map, Value};

use super::bare::push_text;
use super::params::read;
use super::{End, OpenCall, Progress};
use crate::event::Event;
use crate::format::Tags;
use crate::json_schema::Types;
use crate::scan::text;
use crate::schema::{ENTITIES, attribute};

/// Nesting limit.
const MAX_DEPTH: usize = 128;
/// Length limit of a tag.
const MAX_TAG: usize = 512;

/// The members as elements.
pub(crate) fn members(arguments: &Map<String, Value>, tags: Tags) -> String {
    arguments.iter().map(|(name, value)| element(Some(name), value, tags)).collect()
}

fn element(name: Option<&str>, value: &Value, tags: Tags) -> String {
    let (kind, inner) = match value {
        Value::String(text) => ("raw", text.clone()),
        Value::Array(items) => ("list", items.iter().map(|item| element(None, item, tags)).collect()),
        Value::Object(inner) => ("dict", members(inner, tags)),
        other => ("json", other.to_string()),
    };
    let name = name.map(|name| format!(" {}", attribute(name))).unwrap_or_default();
    format!("{}{name} type=\"{kind}\">{inner}{}", tags.open, tags.close)
}

/// Reads the elements up to the first end tag outside any of them, which is that of the call.
#[derive(Debug)]
pub(crate) struct Tagged {
    call: OpenCall,
    tags: Tags,
    at: At,
    /// What is open, the arguments themselves included.
    open: Vec<Container>,
}

#[derive(Debug)]
enum At {
    Between,
    /// The tag from its bracket on.
    Tag(Vec<u8>),
    /// In a text, with the part of its end tag that was read; what is no string is collected.
    Leaf {
        seen: Vec<u8>,
        json: Option<Vec<u8>>,
    },
}

#[derive(Debug)]
struct Container {
    list: bool,
    /// Something in it has been reported.
    any: bool,
}

impl Tagged {
    pub fn new(mut call: OpenCall, tags: Tags, out: &mut Vec<Event>) -> Self {
        call.start(out);
        call.delta.push(b'{');
        Self { call, tags, at: At::Between, open: vec![Container { list: false, any: false }] }
    }

    /// Whether it is in a text, where special tokens count as their letters.
    pub fn in_value(&self) -> bool {
        matches!(self.at, At::Leaf { .. })
    }

    pub fn feed(&mut self, b: u8) -> Progress {
        match &mut self.at {
            At::Between if b.is_ascii_whitespace() => Progress::More,
            At::Between if b == b'<' => {
                self.at = At::Tag(vec![b]);
                Progress::More
            }
            At::Between => Progress::Bad,
            At::Tag(tag) if b == b'>' => {
                let tag = std::mem::take(tag);
                self.at = At::Between;
                let progress = self.take_tag(&(text(&tag) + ">"));
                if progress == Progress::Bad {
                    self.at = At::Tag(tag);
                }
                progress
            }
            At::Tag(tag) if tag.len() < MAX_TAG && b != b'<' => {
                tag.push(b);
                Progress::More
            }
            At::Tag(_) => Progress::Bad,
            At::Leaf { seen, json } => {
                let end = self.tags.close.as_bytes();
                seen.push(b);
                while !end.starts_with(seen) {
                    let first = seen.remove(0);
                    match json {
                        Some(json) => json.push(first),
                        None => push_text(&mut self.call.delta, first),
                    }
                }
                if seen.len() == end.len() {
                    let json = json.take();
                    self.end_leaf(json);
                }
                Progress::More
            }
        }
    }

    fn end_leaf(&mut self, json: Option<Vec<u8>>) {
        match json {
            None => self.call.delta.push(b'"'),
            Some(json) => {
                let json = text(&json);
                let is_json = serde_json::from_str::<IgnoredAny>(&json).is_ok();
                let json = if is_json { json.trim().to_owned() } else { read(&json, Types::ANY) };
                self.call.delta.extend_from_slice(json.as_bytes());
            }
        }
        self.at = At::Between;
    }

    fn take_tag(&mut self, tag: &str) -> Progress {
        let outside = self.open.len() == 1;
        if tag == self.tags.close && !outside {
            let list = self.open.pop().is_some_and(|open| open.list);
            self.call.delta.push(if list { b']' } else { b'}' });
            return Progress::More;
        }
        if tag.starts_with("</") {
            return if outside && tag != self.tags.close { Progress::Done } else { Progress::Bad };
        }
        let Some(attributes) = tag.strip_prefix(self.tags.open).and_then(|rest| rest.strip_suffix('>')) else {
            return Progress::Bad;
        };
        let (name, kind) = (value_of(attributes, "name"), value_of(attributes, "type"));
        let Some(parent) = self.open.last_mut() else { return Progress::Bad };
        let key = match (parent.list, name) {
            (true, _) => String::new(),
            (false, Some(name)) => format!("{}: ", Value::from(name)),
            (false, None) => return Progress::Bad,
        };
        let (sign, leaf) = match kind.as_deref() {
            Some("raw") => ("\"", Some(None)),
            Some("json") => ("", Some(Some(Vec::new()))),
            Some("dict") => ("{", None),
            Some("list") => ("[", None),
            _ => return Progress::Bad,
        };
        let comma = if std::mem::replace(&mut parent.any, true) { ", " } else { "" };
        match leaf {
            Some(json) => self.at = At::Leaf { seen: Vec::new(), json },
            None if self.open.len() == MAX_DEPTH => return Progress::Bad,
            None => self.open.push(Container { list: sign == "[", any: false }),
        }
        self.call.delta.extend_from_slice(format!("{comma}{key}{sign}").as_bytes());
        Progress::More
    }

    pub fn flush(&mut self, out: &mut Vec<Event>) {
        self.call.flush(out);
    }

    pub fn end(mut self, end: End, out: &mut Vec<Event>) -> String {
        let whole = end == End::Whole;
        // What broke off; where the output ends, a piece of a tag is no part of it.
        let mut junk = Vec::new();
        match self.at {
            _ if whole => self.call.delta.push(b'}'),
            At::Leaf { seen, json } => {
                self.call.delta.extend(json.unwrap_or_default());
                junk = seen;
            }
            At::Tag(tag) => junk = tag,
            At::Between => {}
        }
        self.call.end(whole, out);
        if end == End::Output { String::new() } else { text(&junk) }
    }
}

/// The value of an attribute.
fn value_of(attributes: &str, name: &str) -> Option<String> {
    let from = attributes.find(&format!(" {name}=\""))? + name.len() + 3;
    let (value, _) = attributes[from..].split_once('"')?;
    Some(ENTITIES.iter().fold(value.to_owned(), |value, (sign, entity)| value.replace(entity, sign)))
}

#[cfg(test)]
mod tests;
