//! The codec of arguments written as nested elements, with a mark before each tag (MiniMax-M3): an object's members are
//! elements with their names, a list's items are elements named `item`, everything else is text. The schema tells what
//! a text is, and which of its alternatives was written.

use serde_json::{Map, Value};

use super::bare::push_text;
use super::params::read;
use super::{End, OpenCall, Progress};
use crate::event::Event;
use crate::json_schema::{SchemaPlace, SchemaPlaces, Types, declares};
use crate::scan::text;
use crate::schema::ELEMENT_OF_LIST;
use crate::validate::Parts;

/// Nesting limit.
const MAX_DEPTH: usize = 128;
/// Length limit of a tag.
const MAX_TAG: usize = 512;
/// The name of text beside elements, which no grammar allows; other servers use it too.
const BESIDE_ELEMENTS: &str = "$text";
/// Values that are read for the sake of one argument, with each of its schema's alternatives.
const MAX_READINGS: usize = 4096;

/// The members as elements, with `mark` before each tag.
pub(crate) fn members(arguments: &Map<String, Value>, mark: &str) -> String {
    arguments.iter().map(|(name, value)| element(name, value, mark)).collect()
}

fn element(name: &str, value: &Value, mark: &str) -> String {
    let inner = match value {
        Value::String(text) => text.clone(),
        Value::Array(items) => items.iter().map(|item| element(ELEMENT_OF_LIST, item, mark)).collect(),
        Value::Object(inner) => members(inner, mark),
        other => other.to_string(),
    };
    format!("{mark}<{name}>{inner}{mark}</{name}>")
}

/// Reads the elements up to the first end tag outside any of them, which is that of the call.
#[derive(Debug)]
pub(crate) struct Elements {
    call: OpenCall,
    mark: &'static [u8],
    /// The part of a mark that was read.
    seen: Vec<u8>,
    at: At,
    open: Vec<Open>,
    /// An argument has been reported.
    any: bool,
    cut: bool,
    parts: Parts,
    readings: usize,
}

#[derive(Debug)]
enum At {
    Text,
    /// After a mark, before the tag's bracket.
    Mark,
    /// The tag without its brackets.
    Tag(Vec<u8>),
}

/// An element that has not ended.
#[derive(Debug)]
struct Open {
    name: String,
    text: Vec<u8>,
    children: Vec<(String, Content)>,
    /// An argument that can only be a string: reported while it is read, and tags in it are its text.
    streams: bool,
}

#[derive(Debug)]
enum Content {
    Text(String),
    Elements(Vec<(String, Content)>),
}

impl Elements {
    pub fn new(mut call: OpenCall, mark: &'static str, out: &mut Vec<Event>) -> Self {
        call.start(out);
        call.delta.push(b'{');
        Self {
            call,
            mark: mark.as_bytes(),
            seen: Vec::new(),
            at: At::Text,
            open: Vec::new(),
            any: false,
            cut: false,
            parts: Parts::default(),
            readings: 0,
        }
    }

    /// Whether it is in a value, where special tokens count as their letters.
    pub fn in_value(&self) -> bool {
        !self.open.is_empty() && matches!(self.at, At::Text)
    }

    pub fn feed(&mut self, b: u8) -> Progress {
        match &mut self.at {
            At::Text => {
                self.seen.push(b);
                while !self.mark.starts_with(&self.seen) {
                    let first = self.seen.remove(0);
                    if !self.take_text(first) {
                        return Progress::Bad;
                    }
                }
                if self.seen.len() == self.mark.len() {
                    self.seen.clear();
                    self.at = At::Mark;
                }
                Progress::More
            }
            At::Mark if b == b'<' => {
                self.at = At::Tag(Vec::new());
                Progress::More
            }
            At::Mark => Progress::Bad,
            At::Tag(tag) if b == b'>' => {
                let tag = std::mem::take(tag);
                self.at = At::Text;
                let progress = self.take_tag(&text(&tag));
                if progress == Progress::Bad {
                    self.at = At::Tag(tag);
                }
                progress
            }
            At::Tag(tag) if tag.len() < MAX_TAG && !b"\n<".contains(&b) => {
                tag.push(b);
                Progress::More
            }
            At::Tag(_) => Progress::Bad,
        }
    }

    pub fn flush(&mut self, out: &mut Vec<Event>) {
        self.call.flush(out);
    }

    pub fn end(mut self, end: End, out: &mut Vec<Event>) -> String {
        let whole = end == End::Whole;
        if whole {
            self.call.delta.push(b'}');
        } else if self.open.first().is_some_and(|argument| !argument.streams) {
            let kept = self.keep_whole();
            while !self.open.is_empty() {
                self.close();
            }
            self.call.delta.truncate(self.call.delta.len() - kept);
        }
        self.call.end(whole, out);
        // A tag that broke off; where the output ends, a piece of one is no part of it.
        match self.at {
            At::Tag(tag) if end != End::Output => format!("<{}", text(&tag)),
            At::Text if end != End::Output => text(&self.seen),
            At::Tag(_) | At::Mark | At::Text => String::new(),
        }
    }

    /// The output was cut: what of an argument was not whole is no part of it.
    pub fn cut(&mut self) {
        self.cut = true;
    }

    /// Drops the elements of a cut output that have no whole part. Returns the number of the others, which is that of
    /// the brackets at their end.
    fn keep_whole(&mut self) -> usize {
        if !self.cut {
            return 0;
        }
        let kept = self.open.iter().rposition(|open| !open.children.is_empty()).map_or(0, |at| at + 1);
        self.open.truncate(kept);
        kept
    }

    /// False: text outside the arguments.
    fn take_text(&mut self, b: u8) -> bool {
        match self.open.last_mut() {
            None => b.is_ascii_whitespace(),
            Some(open) if open.streams => {
                push_text(&mut self.call.delta, b);
                true
            }
            Some(open) => {
                open.text.push(b);
                true
            }
        }
    }

    fn take_tag(&mut self, tag: &str) -> Progress {
        let ends = tag.strip_prefix('/');
        match (self.open.last(), ends) {
            (None, Some(_)) => return Progress::Done,
            (Some(open), Some(name)) if open.name == name || (!open.streams && !self.has_known_name()) => self.close(),
            (Some(open), Some(_)) if !open.streams => return Progress::Bad,
            (Some(open), _) if open.streams => format!("<{tag}>").bytes().for_each(|b| {
                self.take_text(b);
            }),
            _ if self.open.len() == MAX_DEPTH || tag.is_empty() => return Progress::Bad,
            _ => self.begin(tag),
        }
        Progress::More
    }

    /// Whether the innermost element's end tag must have its name: a grammar cannot compare two undeclared names.
    fn has_known_name(&self) -> bool {
        let known = |open: &Open| match self.open.len() {
            1 => declares(self.parameters(), &open.name) || open.name == ELEMENT_OF_LIST,
            _ => open.name == ELEMENT_OF_LIST,
        };
        self.open.last().is_some_and(known)
    }

    fn begin(&mut self, name: &str) {
        let mut streams = false;
        if self.open.is_empty() {
            let string = |root: &Value, place: &SchemaPlace| SchemaPlaces(root).types(place).is_string();
            streams = self.parameters().is_some_and(|root| {
                let places = SchemaPlaces(root).argument(name);
                !places.is_empty() && places.iter().all(|place| string(root, place))
            });
            let comma = if std::mem::replace(&mut self.any, true) { ", " } else { "" };
            let head = format!("{comma}{}: {}", Value::from(name), if streams { "\"" } else { "" });
            self.call.delta.extend_from_slice(head.as_bytes());
        }
        self.open.push(Open { name: name.to_owned(), text: Vec::new(), children: Vec::new(), streams });
    }

    fn close(&mut self) {
        let Some(Open { name, text: read, mut children, streams }) = self.open.pop() else { return };
        // Text beside elements has no place in JSON.
        if !children.is_empty() && !read.trim_ascii().is_empty() {
            children.push((BESIDE_ELEMENTS.to_owned(), Content::Text(text(&read))));
        }
        let content = if children.is_empty() { Content::Text(text(&read)) } else { Content::Elements(children) };
        match self.open.last_mut() {
            Some(parent) => parent.children.push((name, content)),
            None if streams => self.call.delta.push(b'"'),
            None => {
                self.readings = 0;
                let places = self.parameters().map(|root| SchemaPlaces(root).argument(&name)).unwrap_or_default();
                let json = self.json(&content, &places);
                self.call.delta.extend_from_slice(json.as_bytes());
            }
        }
    }

    fn parameters(&self) -> Option<&Value> {
        self.call.declared().and_then(|tool| tool.parameters.as_ref())
    }

    /// The content as JSON: by the first of its schemas' alternatives that it satisfies.
    fn json(&mut self, content: &Content, places: &[SchemaPlace]) -> String {
        self.readings += 1;
        let mut ways: Vec<SchemaPlace> = match self.parameters() {
            Some(root) if self.readings < MAX_READINGS => {
                places.iter().flat_map(|place| SchemaPlaces(root).ways(place)).collect()
            }
            _ => places.iter().take(1).cloned().collect(),
        };
        if ways.is_empty() {
            ways.push(SchemaPlace::default());
        }
        let mut all: Vec<(String, &SchemaPlace)> = Vec::new();
        for way in &ways {
            all.extend(self.readings_of(content, way).into_iter().map(|json| (json, way)));
        }
        let alike = all.windows(2).all(|pair| pair[0].0 == pair[1].0);
        let chosen = if alike { None } else { all.iter().position(|(json, way)| self.accepts(json, way)) };
        all.into_iter().nth(chosen.unwrap_or_default()).map_or_else(|| "null".to_owned(), |(json, _)| json)
    }

    fn accepts(&mut self, json: &str, place: &SchemaPlace) -> bool {
        let root = self.call.declared().and_then(|tool| tool.parameters.as_ref());
        let (Some(root), Ok(value)) = (root, serde_json::from_str(json)) else { return true };
        place.pointers().iter().all(|pointer| self.parts.accepts(root, pointer, &value))
    }

    /// What the content may be by a schema without alternatives, the likeliest first.
    fn readings_of(&mut self, content: &Content, place: &SchemaPlace) -> Vec<String> {
        let types = self.parameters().map_or(Types::ANY, |root| SchemaPlaces(root).types(place));
        match content {
            Content::Text(text) => texts(text, types),
            Content::Elements(children) => {
                let list = children.iter().all(|(name, _)| name == ELEMENT_OF_LIST);
                let mut all = Vec::new();
                if list && types.may_be_list() {
                    all.push(self.list(children, place));
                }
                if types.may_be_object() || all.is_empty() {
                    all.push(self.object(children, place));
                }
                all
            }
        }
    }

    fn list(&mut self, children: &[(String, Content)], place: &SchemaPlace) -> String {
        let mut items = Vec::new();
        for (i, (_, item)) in children.iter().enumerate() {
            items.push(self.item(item, place, i));
        }
        format!("[{}]", items.join(", "))
    }

    fn item(&mut self, item: &Content, list: &SchemaPlace, index: usize) -> String {
        let place = self.parameters().and_then(|root| SchemaPlaces(root).item(list, index));
        self.json(item, place.as_slice())
    }

    /// Elements with the same name are a list.
    fn object(&mut self, children: &[(String, Content)], place: &SchemaPlace) -> String {
        let mut members: Vec<String> = Vec::new();
        for (at, (name, content)) in children.iter().enumerate() {
            let is_name = |(other, _): &&(String, Content)| other == name;
            if children[..at].iter().any(|child| is_name(&child)) {
                continue;
            }
            let place = self.parameters().and_then(|root| SchemaPlaces(root).member(place, name));
            let same: Vec<&Content> = children.iter().filter(is_name).map(|(_, content)| content).collect();
            let value = match same.as_slice() {
                [_] => self.json(content, place.as_slice()),
                many => {
                    let place = place.unwrap_or_default();
                    let items = many.iter().enumerate().map(|(i, item)| self.item(item, &place, i));
                    format!("[{}]", items.collect::<Vec<_>>().join(", "))
                }
            };
            members.push(format!("{}: {value}", Value::from(name.as_str())));
        }
        format!("{{{}}}", members.join(", "))
    }
}

/// What a text may be, the likeliest first.
fn texts(text: &str, types: Types) -> Vec<String> {
    let quoted = Value::from(text).to_string();
    if types.is_string() {
        return vec![quoted];
    }
    if text.trim().is_empty() {
        let empty = [(types.may_be_list(), "[]"), (types.may_be_object(), "{}"), (types.may_be_null(), "null")];
        let string = types.may_be_string().then_some(quoted);
        let others = empty.into_iter().filter(|(may, _)| *may).map(|(_, json)| json.to_owned());
        let all: Vec<String> = string.into_iter().chain(others).collect();
        return if all.is_empty() { vec!["null".to_owned()] } else { all };
    }
    let json = read(text, types);
    if types.may_be_string() && json != quoted { vec![json, quoted] } else { vec![json] }
}

#[cfg(test)]
mod tests;
