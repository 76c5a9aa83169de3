//! The codec of arguments written one by one between markers, with raw values. The schema
//! decides which of them are strings.

use serde::de::IgnoredAny;
use serde_json::Value;

use super::json::{Fed, Json};
use super::{End, OpenCall, json, python};
use crate::event::Event;
use crate::format::{Step, marker};
use crate::header::{is_plausible, slots};
use crate::json_schema::{Types, declared, declares};
use crate::validate::Members;

/// Names of arguments that no schema declares and that wrap all others.
const WRAPPERS: [&str; 3] = ["arguments", "input", "parameters"];

/// How [`Codec::Params`](crate::Codec) writes one argument.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    pub open: &'static str,
    /// The steps between `open` and the end of the key.
    pub head: &'static [Step],
    /// None: a literal ends the key, by its last visible character.
    pub key_mark: Option<&'static str>,
    key_char: char,
    /// The marker between key and value.
    pub value_mark: Option<&'static str>,
    pub close: &'static str,
    /// A newline after the key, and one before `close`, do not belong to the value.
    lead: bool,
    tail: bool,
}

impl Shape {
    pub fn of(steps: &'static [Step]) -> Option<Shape> {
        let value = steps.iter().position(|s| *s == Step::Value)?;
        let key = steps.iter().position(|s| *s == Step::Key)?;
        let open = steps.first().and_then(marker)?;
        let close = steps[value..].iter().find_map(marker)?;
        let marks: Vec<usize> = (key..value).filter(|i| marker(&steps[*i]).is_some()).collect();
        let newline = |i: usize, end: bool| match steps.get(i) {
            Some(Step::Lit(l)) => {
                if end {
                    l.ends_with('\n')
                } else {
                    l.starts_with('\n')
                }
            }
            _ => false,
        };
        let literal =
            steps[key..value].iter().rev().find_map(|s| if let Step::Lit(l) = s { Some(l.trim_end()) } else { None });
        Some(Shape {
            open,
            head: &steps[1..marks.first().copied().unwrap_or(value)],
            key_mark: marks.first().and_then(|i| marker(&steps[*i])),
            key_char: literal.and_then(|l| l.chars().next_back()).unwrap_or('\n'),
            value_mark: marks.get(1).and_then(|i| marker(&steps[*i])),
            close,
            lead: newline(value.wrapping_sub(1), true) && marks.is_empty(),
            tail: newline(value + 1, false),
        })
    }

    /// Whether an argument with this key is read with it, as the renderer writes it.
    pub fn reads(&self, key: &str) -> bool {
        let mut head = String::new();
        for step in self.head {
            match step {
                Step::Lit(text) => head.push_str(text),
                Step::Key => head.push_str(key),
                Step::Type => head.push_str("string"),
                Step::IsString => head.push_str("true"),
                _ => {}
            }
        }
        let whole = match self.key_mark {
            Some(mark) => !key.contains(mark),
            // The last visible character of the literal ends the key.
            None => self.key_end(&head) == head.trim_end().len().checked_sub(self.key_char.len_utf8()),
        };
        let end = self.key_end(&head).unwrap_or(head.len());
        whole && slots(self.head, &head[..end]).name.as_deref() == Some(key)
    }

    /// The end of the key in the text after `open`, if a literal ends it. Models omit the literal before a newline.
    pub fn key_end(&self, text: &str) -> Option<usize> {
        if self.key_mark.is_some() { None } else { text.find([self.key_char, '\n']) }
    }
}

#[derive(Debug)]
enum At {
    Between,
    /// The key as read so far, and the rest of its marker.
    Key(String),
    /// After the key; the value's own marker may follow.
    Wait(String),
    Value(Reading),
}

#[derive(Debug)]
struct Reading {
    types: Types,
    /// The value can only be a string, so it is reported while it is read.
    stream: bool,
    /// A leading newline is layout.
    lead: bool,
    /// A newline was read that is layout if nothing follows it.
    newline: bool,
    /// The model wrote that the value is JSON, although it must be a string.
    json: bool,
    /// What is reported before the value: the comma and the key.
    head: String,
    /// The key may wrap all others.
    may_wrap: bool,
    text: String,
    /// Reads a value that can be no string. None: it may be one, or is not JSON.
    reader: Option<Json>,
}

#[derive(Debug)]
pub(crate) struct Params {
    pub call: OpenCall,
    shape: Shape,
    at: At,
    keys: Vec<String>,
    junk: String,
    members: Members,
    reported: Reported,
}

/// What was reported of the arguments.
#[derive(Debug, Default)]
struct Reported {
    any: bool,
    /// The only argument so far may be a wrapper: the offset of its value in the collected text.
    wrapper: Option<usize>,
}

impl Reported {
    /// Reports the key, once.
    fn key(&mut self, call: &mut OpenCall, value: &mut Reading) {
        if !value.head.is_empty() {
            call.delta.extend_from_slice(std::mem::take(&mut value.head).as_bytes());
            self.wrapper = value.may_wrap.then_some(call.delta.len());
            self.any = true;
        }
    }
}

impl Params {
    pub fn new(mut call: OpenCall, shape: Shape, out: &mut Vec<Event>) -> Self {
        call.start(out);
        call.delta.push(b'{');
        Self {
            call,
            shape,
            at: At::Between,
            keys: Vec::new(),
            junk: String::new(),
            members: Members::default(),
            reported: Reported::default(),
        }
    }

    pub fn in_value(&self) -> bool {
        matches!(self.at, At::Value(_))
    }

    /// Whether it is in a string of a value in JSON, where markers are text. A line break is none of a string's.
    pub fn in_json_string(&self) -> bool {
        matches!(&self.at, At::Value(Reading { reader: Some(reader), .. }) if reader.in_string())
    }

    /// Whether an argument with this name is still expected.
    pub fn expects(&self, head: &str) -> bool {
        let key = slots(self.shape.head, head).name;
        // Without declarations, any new name is accepted.
        let any = self.call.tools.is_empty();
        key.is_some_and(|k| (any && is_plausible(&k) || declares(self.schema(), &k)) && !self.keys.contains(&k))
    }

    fn schema(&self) -> Option<&Value> {
        self.call.declared().and_then(|t| t.parameters.as_ref())
    }

    /// The first marker of an argument; with `head`, everything before its value.
    pub fn open(&mut self, head: Option<&str>) {
        self.end_value();
        self.unread_key();
        match head {
            Some(head) => self.begin_value(head, false),
            None => self.at = At::Key(String::new()),
        }
    }

    /// A marker between key and value.
    pub fn inner(&mut self, mark: &str) {
        match std::mem::replace(&mut self.at, At::Between) {
            At::Key(head) if self.shape.value_mark.is_some() && Some(mark) == self.shape.key_mark => {
                self.at = At::Wait(head);
            }
            At::Key(head) | At::Wait(head) => self.begin_value(&head, false),
            other => self.at = other,
        }
    }

    pub fn text(&mut self, text: &str) {
        match &mut self.at {
            At::Between if self.junk.is_empty() => self.junk.push_str(text.trim_start()),
            At::Between => self.junk.push_str(text),
            At::Key(head) => match self.shape.key_end(text) {
                Some(n) => {
                    head.push_str(&text[..n]);
                    let head = std::mem::take(head);
                    let lead = self.shape.lead && !text[n..].starts_with('\n');
                    self.begin_value(&head, lead);
                    let ended = text[n..].chars().next().map_or(0, char::len_utf8);
                    self.text(&text[n + ended..]);
                }
                None => head.push_str(text),
            },
            At::Wait(head) => {
                let text = text.trim_start();
                if !text.is_empty() {
                    let head = std::mem::take(head);
                    self.begin_value(&head, false);
                    self.text(text);
                }
            }
            At::Value(value) => {
                let mut text = text;
                if value.lead && !text.is_empty() {
                    value.lead = false;
                    text = text.strip_prefix('\n').unwrap_or(text);
                }
                if !value.stream {
                    value.text.push_str(text);
                    let goes_on = |reader: &mut Json| {
                        text.bytes().all(|b| !(reader.in_string() && b == b'\n') && reader.feed(b) != Fed::Bad)
                    };
                    value.reader.take_if(|reader| !goes_on(reader));
                    if !value.text.trim().is_empty() {
                        self.reported.key(&mut self.call, value);
                    }
                } else if !text.is_empty() {
                    if std::mem::take(&mut value.newline) {
                        push_escaped(&mut self.call.delta, "\n");
                    }
                    if let Some(body) = text.strip_suffix('\n').filter(|_| self.shape.tail) {
                        value.newline = true;
                        text = body;
                    }
                    push_escaped(&mut self.call.delta, text);
                }
            }
        }
    }

    fn begin_value(&mut self, head: &str, lead: bool) {
        let read = slots(self.shape.head, head);
        self.at = At::Between;
        // The empty name counts if the schema declares it.
        let unnamed = || declares(self.schema(), "").then(String::new);
        let key = match read.name {
            Some(key) => {
                self.junk.push_str(read.rest.trim());
                key
            }
            None => match unnamed() {
                Some(key) => key,
                None => return self.junk.push_str(read.rest.trim()),
            },
        };
        let types = match (read.is_string, read.kind.as_deref().and_then(Types::named)) {
            // The schema wins if it contradicts what the model says about the value.
            (Some(string), _) if declares(self.schema(), &key) => Types::of(self.schema(), &key).narrowed_to(string),
            (Some(true), _) => Types::STRING,
            (Some(false), _) => Types::UNKNOWN_BUT_STRING,
            (None, Some(types)) => types,
            (None, None) => Types::of(self.schema(), &key),
        };
        let comma = if self.reported.any { ", " } else { "" };
        let head = format!("{comma}{}: ", Value::from(key.as_str()));
        let may_wrap = self.keys.is_empty() && self.may_wrap(&key);
        let json = read.is_string == Some(false) && types.is_string();
        let stream = types.is_string() && !json;
        self.keys.push(key);
        let reader = (!types.may_be_string()).then(Json::new);
        let text = String::new();
        let mut value = Reading { types, stream, lead, newline: false, json, head, may_wrap, text, reader };
        if stream {
            self.reported.key(&mut self.call, &mut value);
            self.call.delta.push(b'"');
        }
        self.at = At::Value(value);
    }

    /// Whether no text means that the argument is absent: the schema does not require it, and it is no string.
    fn may_be_absent(&self, value: &Reading) -> bool {
        let required = self.schema().and_then(|schema| schema.get("required")).and_then(Value::as_array);
        let requires = |key: &String| required.is_some_and(|names| names.iter().any(|name| name == key));
        !value.types.may_be_string() && self.keys.last().is_some_and(|key| !requires(key))
    }

    /// Ends the value.
    pub fn end_value(&mut self) {
        match std::mem::replace(&mut self.at, At::Between) {
            At::Value(value) if value.stream => self.call.delta.push(b'"'),
            At::Value(value) if value.text.trim().is_empty() && self.may_be_absent(&value) => {}
            At::Value(mut value) => {
                self.reported.key(&mut self.call, &mut value);
                let text = value.text.as_str();
                let text = text.strip_suffix('\n').filter(|_| self.shape.tail).unwrap_or(text);
                let json = self.value(text, &value);
                self.call.delta.extend_from_slice(json.as_bytes());
            }
            other => self.at = other,
        }
    }

    /// A value that may be a string or another type is the string if only that satisfies the schema.
    fn value(&self, text: &str, value: &Reading) -> String {
        if value.json && serde_json::from_str::<String>(text.trim()).is_ok() {
            return text.trim().to_owned();
        }
        let json = read(text, value.types);
        let (Some(schema), Some(key)) = (self.schema(), self.keys.last()) else { return json };
        if !value.types.may_be_string() || json.starts_with('"') {
            return json;
        }
        let suits = |value| self.members.accepts(schema, key, value);
        match serde_json::from_str(&json).is_ok_and(suits) {
            false if suits(Value::from(text)) => Value::from(text).to_string(),
            _ => json,
        }
    }

    fn unread_key(&mut self) {
        match std::mem::replace(&mut self.at, At::Between) {
            At::Key(head) | At::Wait(head) => self.junk.push_str(&head),
            other => self.at = other,
        }
    }

    /// Whether an argument with this name, if it is the only one, wraps the arguments.
    fn may_wrap(&self, key: &str) -> bool {
        WRAPPERS.contains(&key) && !declares(self.schema(), key) && !declared(self.schema()).is_empty()
    }

    /// The arguments inside a wrapper's JSON value: an object with a declared argument, perhaps as a string, or the
    /// value of the only argument.
    fn unwrapped(&self, value: &str) -> Option<String> {
        let names = declared(self.schema());
        let of_these = |object: &str| {
            let members: serde_json::Map<String, Value> = serde_json::from_str(object).ok()?;
            members.keys().any(|key| names.contains(key)).then(|| object.to_owned())
        };
        if value.starts_with('{') {
            return of_these(value);
        }
        let inner = serde_json::from_str::<String>(value).ok();
        let object = inner.and_then(|text| String::from_utf8(json::object(text.as_bytes())?).ok());
        match (object, names.as_slice()) {
            (Some(object), _) => of_these(&object),
            (None, [only]) => Some(format!("{{{}: {value}}}", Value::from(only.as_str()))),
            _ => None,
        }
    }

    pub fn flush(&mut self, out: &mut Vec<Event>) {
        if self.reported.wrapper.is_none() {
            self.call.flush(out);
        }
    }

    pub fn end(mut self, end: End, out: &mut Vec<Event>) -> String {
        let complete = end != End::Output && !matches!(self.at, At::Key(_) | At::Wait(_));
        self.unread_key();
        if complete {
            self.end_value();
            // Some models write the whole object in place of single arguments.
            let whole = self.junk.trim();
            if self.keys.is_empty()
                && let Ok(object) = serde_json::from_str::<serde_json::Map<String, Value>>(whole)
            {
                let only = object.iter().next().filter(|(key, _)| object.len() == 1 && self.may_wrap(key));
                let value = only.and_then(|_| Some(whole.split_once(':')?.1.strip_suffix('}')?.trim()));
                let inner = value.and_then(|value| self.unwrapped(value));
                let whole = inner.unwrap_or_else(|| whole.to_owned());
                self.call.delta.extend_from_slice(&whole.as_bytes()[1..]);
                self.junk.clear();
            } else if let Some(at) = self.reported.wrapper
                && let Some(inner) = self.unwrapped(&crate::scan::text(&self.call.delta[at..]))
            {
                let reported = usize::from(self.call.delta.first() != Some(&b'{'));
                self.call.delta = inner.as_bytes()[reported..].to_vec();
            } else {
                self.call.delta.push(b'}');
            }
        } else if let At::Value(mut value) = std::mem::replace(&mut self.at, At::Between) {
            self.reported.key(&mut self.call, &mut value);
            self.call.delta.extend_from_slice(value.text.as_bytes());
        }
        self.call.end(complete, out);
        self.junk
    }
}

fn push_escaped(out: &mut Vec<u8>, text: &str) {
    let quoted = Value::from(text).to_string();
    out.extend_from_slice(&quoted.as_bytes()[1..quoted.len() - 1]);
}

/// A raw value as JSON: whatever the types allow, leniently; otherwise a string.
pub(super) fn read(text: &str, types: Types) -> String {
    let trimmed = text.trim();
    let json = match serde_json::from_str::<IgnoredAny>(trimmed) {
        Ok(_) => Some(trimmed.to_owned()),
        Err(_) => python::to_json(trimmed).or_else(|| escaped(trimmed)).or_else(|| sloppy(trimmed, types)),
    };
    // Only the type counts; a number's text stays unchanged.
    let kind = |json: &str| match json.as_bytes().first() {
        Some(b'{') => Value::Object(serde_json::Map::new()),
        Some(b'[') => Value::Array(Vec::new()),
        Some(b'"') => Value::String(String::new()),
        Some(b't' | b'f') => Value::Bool(true),
        Some(b'n') => Value::Null,
        _ => Value::from(0),
    };
    match json.map(|json| (kind(&json), json)) {
        Some((kind, json)) if !types.may_be_string() || (!kind.is_string() && types.allows(&kind)) => json,
        _ => Value::from(text).to_string(),
    }
}

/// A word or number in a non-standard spelling with only one possible meaning.
fn sloppy(text: &str, types: Types) -> Option<String> {
    let word = ["true", "false", "null"].into_iter().find(|word| text.eq_ignore_ascii_case(word));
    let kind = |json: &str| serde_json::from_str::<Value>(json).is_ok_and(|value| types.allows(&value));
    let number = || {
        let (sign, digits) = text.strip_prefix('-').map_or(("", text), |rest| ("-", rest));
        let digits = digits.trim_start_matches('0');
        digits.starts_with(|c: char| c.is_ascii_digit()).then(|| format!("{sign}{digits}"))
    };
    word.map(str::to_owned).or_else(number).filter(|json| !types.may_be_string() && kind(json))
}

/// JSON that was escaped as if it were inside a string.
fn escaped(text: &str) -> Option<String> {
    let inner: String = serde_json::from_str(&format!("\"{text}\"")).ok()?;
    serde_json::from_str::<IgnoredAny>(&inner).ok().map(|_| inner)
}

#[cfg(test)]
mod tests;
