//! The codec of Gemma's objects: names without quotes, strings between two equal marks and without escapes.

use serde_json::{Map, Value};

use super::json::push_escaped;
use super::python::word;
use super::{End, OpenCall, Progress};
use crate::event::Event;
use crate::scan::text;
use crate::schema::bare_name;

/// Nesting limit.
const MAX_DEPTH: usize = 128;

/// `{a:<|"|>x<|"|>,n:1}`, with the names in alphabetical order, as the models' templates sort them.
pub(crate) fn object(arguments: &Map<String, Value>, quote: &str) -> String {
    let mut members: Vec<_> = arguments.iter().collect();
    members.sort_by_key(|(key, _)| key.to_lowercase());
    let members: Vec<_> = members
        .into_iter()
        .map(|(key, value)| format!("{}:{}", bare_name(key, quote), literal(value, quote)))
        .collect();
    format!("{{{}}}", members.join(","))
}

fn literal(value: &Value, quote: &str) -> String {
    match value {
        Value::String(text) => format!("{quote}{text}{quote}"),
        Value::Array(items) => {
            format!("[{}]", items.iter().map(|item| literal(item, quote)).collect::<Vec<_>>().join(","))
        }
        Value::Object(members) => object(members, quote),
        other => other.to_string(),
    }
}

/// Reads an object from its opening to its closing brace.
#[derive(Debug)]
pub(crate) struct Bare {
    call: OpenCall,
    quote: &'static [u8],
    open: Vec<Open>,
    at: At,
    /// JSON that was not reported yet.
    out: Vec<u8>,
    /// Text read before it was certain to be a call.
    raw: Vec<u8>,
}

/// A container that has not ended, and whether it has a member.
#[derive(Debug)]
struct Open {
    list: bool,
    filled: bool,
}

#[derive(Debug)]
enum At {
    /// Before the opening brace.
    Start,
    /// A name without marks so far, or the end of the object.
    Name(Vec<u8>),
    Colon,
    Value,
    /// A number, a word, or a string without marks.
    Token(Vec<u8>),
    /// In the mark before a string, of which so many bytes were read.
    Mark {
        seen: usize,
        name: bool,
    },
    /// In a string, whose last bytes are so many of the mark.
    Str {
        seen: usize,
        name: bool,
    },
    After,
}

struct Broken;

impl Bare {
    pub fn new(call: OpenCall, header: &str, quote: &'static str) -> Self {
        let raw = header.as_bytes().to_vec();
        Self { call, quote: quote.as_bytes(), open: Vec::new(), at: At::Start, out: Vec::new(), raw }
    }

    pub fn in_string(&self) -> bool {
        matches!(self.at, At::Str { .. })
    }

    /// Whether a special token is the mark of strings.
    pub fn is_mark(&self, token: &str) -> bool {
        token.as_bytes() == self.quote
    }

    pub fn feed(&mut self, b: u8, out: &mut Vec<Event>) -> Progress {
        let Ok(done) = self.read(b) else { return Progress::Bad };
        if !self.call.started && !self.out.is_empty() {
            self.call.start(out);
            self.raw.clear();
        }
        if self.call.started {
            self.call.delta.append(&mut self.out);
        } else {
            self.raw.push(b);
        }
        if done { Progress::Done } else { Progress::More }
    }

    pub fn flush(&mut self, out: &mut Vec<Event>) {
        if self.call.started {
            self.call.flush(out);
        }
    }

    pub fn end(mut self, end: End, out: &mut Vec<Event>) -> String {
        if !self.call.started {
            return text(&self.raw);
        }
        // Text that was neither reported nor a complete value.
        let rest = match self.at {
            At::Name(text) | At::Token(text) if end != End::Whole => text,
            _ => Vec::new(),
        };
        self.call.end(end == End::Whole, out);
        text(&rest)
    }

    /// True: the last brace.
    fn read(&mut self, b: u8) -> Result<bool, Broken> {
        let blank = b.is_ascii_whitespace();
        match &mut self.at {
            At::Str { seen, name } => {
                let (mut matched, name) = (*seen, *name);
                if b == self.quote[matched] {
                    matched += 1;
                } else {
                    for b in &self.quote[..matched] {
                        push_text(&mut self.out, *b);
                    }
                    // The first byte of a mark does not occur again in it.
                    matched = usize::from(b == self.quote[0]);
                    if matched == 0 {
                        push_text(&mut self.out, b);
                    }
                }
                self.at = match (matched == self.quote.len(), name) {
                    (false, _) => At::Str { seen: matched, name },
                    (true, true) => At::Colon,
                    (true, false) => At::After,
                };
                if matched == self.quote.len() {
                    self.out.push(b'"');
                }
                Ok(false)
            }
            At::Mark { seen, name } => {
                if b != self.quote[*seen] {
                    return Err(Broken);
                }
                let (seen, name) = (*seen + 1, *name);
                self.at = At::Mark { seen, name };
                if seen == self.quote.len() {
                    self.out.push(b'"');
                    self.at = At::Str { seen: 0, name };
                }
                Ok(false)
            }
            At::Token(token) => {
                if !b",}]".contains(&b) {
                    token.push(b);
                    return Ok(false);
                }
                let json = scalar(token.trim_ascii());
                self.out.extend_from_slice(json.as_bytes());
                self.at = At::After;
                self.read(b)
            }
            At::Name(name) if name.is_empty() && (blank || b == b'}') => {
                if blank {
                    Ok(false)
                } else {
                    self.close(b)
                }
            }
            At::Name(name) if name.is_empty() && b == self.quote[0] => {
                self.separate();
                self.at = At::Mark { seen: 1, name: true };
                Ok(false)
            }
            At::Name(name) if b == b':' => {
                let key = text(name.trim_ascii());
                let key = key.strip_prefix('"').and_then(|key| key.strip_suffix('"')).unwrap_or(&key).to_owned();
                if key.is_empty() {
                    return Err(Broken);
                }
                self.separate();
                self.out.extend_from_slice(format!("{}: ", Value::from(key)).as_bytes());
                self.at = At::Value;
                Ok(false)
            }
            At::Name(_) if b"{}[],".contains(&b) => Err(Broken),
            At::Name(name) => {
                name.push(b);
                Ok(false)
            }
            _ if blank => Ok(false),
            At::Start if b == b'{' => self.begin(b),
            At::Colon if b == b':' => {
                self.out.extend_from_slice(b": ");
                self.at = At::Value;
                Ok(false)
            }
            At::Value if b == b']' => self.close(b),
            At::Value => {
                if self.open.last().is_some_and(|open| open.list) {
                    self.separate();
                }
                match b {
                    b'{' | b'[' => return self.begin(b),
                    _ if b == self.quote[0] => self.at = At::Mark { seen: 1, name: false },
                    b'}' | b',' | b':' => return Err(Broken),
                    _ => self.at = At::Token(vec![b]),
                }
                Ok(false)
            }
            At::After if b == b',' => {
                let list = self.open.last().is_some_and(|open| open.list);
                self.at = if list { At::Value } else { At::Name(Vec::new()) };
                Ok(false)
            }
            At::After => self.close(b),
            At::Start | At::Colon => Err(Broken),
        }
    }

    fn separate(&mut self) {
        if let Some(open) = self.open.last_mut()
            && std::mem::replace(&mut open.filled, true)
        {
            self.out.extend_from_slice(b", ");
        }
    }

    fn begin(&mut self, b: u8) -> Result<bool, Broken> {
        if self.open.len() == MAX_DEPTH {
            return Err(Broken);
        }
        let list = b == b'[';
        self.open.push(Open { list, filled: false });
        self.out.push(b);
        self.at = if list { At::Value } else { At::Name(Vec::new()) };
        Ok(false)
    }

    fn close(&mut self, b: u8) -> Result<bool, Broken> {
        match (b, self.open.pop()) {
            (b'}', Some(Open { list: false, .. })) | (b']', Some(Open { list: true, .. })) => {}
            _ => return Err(Broken),
        }
        self.out.push(b);
        self.at = At::After;
        Ok(self.open.is_empty())
    }
}

/// A byte of a string's text.
pub(super) fn push_text(out: &mut Vec<u8>, b: u8) {
    match b {
        b'"' | b'\\' => out.extend_from_slice(&[b'\\', b]),
        _ => push_escaped(out, b, true),
    }
}

/// A number or a word as JSON; anything else is a string.
fn scalar(token: &[u8]) -> String {
    let whole = text(token);
    let quoted = whole.starts_with('"') && serde_json::from_str::<String>(&whole).is_ok();
    word(token).unwrap_or_else(|| if quoted { whole } else { Value::from(whole).to_string() })
}

#[cfg(test)]
mod tests;
