//! The codec of Python keyword arguments: the literals that models write in calls.

use serde::de::IgnoredAny;
use serde_json::{Map, Value};

use super::json::push_escaped;
use super::{End, OpenCall, Progress};
use crate::event::Event;
use crate::json_schema::declares;

/// Reserved words cannot name an argument; models append `_`.
const RESERVED: &[&str] = &[
    "False", "None", "True", "and", "as", "assert", "async", "await", "break", "class", "continue", "def", "del",
    "elif", "else", "except", "finally", "for", "from", "global", "if", "import", "in", "is", "lambda", "nonlocal",
    "not", "or", "pass", "raise", "return", "try", "while", "with", "yield",
];

/// `a="x", n=1`.
pub(crate) fn keywords(arguments: &Map<String, Value>) -> String {
    let mut out = String::new();
    for (key, value) in arguments {
        if !out.is_empty() {
            out.push_str(", ");
        }
        out.push_str(key);
        out.push_str(if RESERVED.contains(&key.as_str()) { "_=" } else { "=" });
        literal(value, &mut out);
    }
    out
}

/// How the keyword of an argument is spelled. None: it is not a valid keyword.
pub(crate) fn keyword(name: &str) -> Option<String> {
    let mut chars = name.chars();
    let first = chars.next()?;
    let word = |c: char| c == '_' || c.is_alphanumeric();
    let suffix = if RESERVED.contains(&name) { "_" } else { "" };
    (word(first) && !first.is_numeric() && chars.all(word)).then(|| format!("{name}{suffix}"))
}

/// A JSON string is a Python string: serde_json writes no escape that Python reads differently.
fn literal(value: &Value, out: &mut String) {
    match value {
        Value::Null => out.push_str("None"),
        Value::Bool(true) => out.push_str("True"),
        Value::Bool(false) => out.push_str("False"),
        Value::Number(_) | Value::String(_) => out.push_str(&value.to_string()),
        Value::Array(items) => {
            out.push('[');
            for (i, item) in items.iter().enumerate() {
                out.push_str(if i > 0 { ", " } else { "" });
                literal(item, out);
            }
            out.push(']');
        }
        Value::Object(members) => {
            out.push('{');
            for (i, (key, item)) in members.iter().enumerate() {
                out.push_str(if i > 0 { ", " } else { "" });
                out.push_str(&Value::from(key.as_str()).to_string());
                out.push_str(": ");
                literal(item, out);
            }
            out.push('}');
        }
    }
}

/// Nesting limit.
const MAX_DEPTH: usize = 128;

/// A Python literal as JSON. None: it is not one.
pub(crate) fn to_json(text: &str) -> Option<String> {
    let mut reader = Reader::value();
    // A number or a word has no end of its own.
    for b in text.trim().bytes().chain([b'\n']) {
        reader.feed(b).ok()?;
    }
    reader.settle();
    (reader.at == At::After && reader.stack.is_empty()).then(|| crate::scan::text(&reader.out))
}

/// Reads keyword arguments up to the closing parenthesis.
#[derive(Debug)]
pub(crate) struct Python {
    call: OpenCall,
    reader: Reader,
    /// Text read before it was certain to be a call.
    raw: Vec<u8>,
}

impl Python {
    pub fn new(call: OpenCall, header: &str) -> Self {
        Self { call, reader: Reader::arguments(), raw: header.as_bytes().to_vec() }
    }

    pub fn in_string(&self) -> bool {
        matches!(self.reader.at, At::Str { .. })
    }

    pub fn feed(&mut self, b: u8, out: &mut Vec<Event>) -> Progress {
        let Ok(done) = self.reader.feed(b) else { return Progress::Bad };
        if let Some(key) = self.reader.named.take() {
            let key = self.argument(&key);
            self.reader.out.extend_from_slice(serde_json::Value::from(key).to_string().as_bytes());
            self.reader.out.extend_from_slice(b": ");
        }
        if !self.call.started && self.reader.out.len() > 1 {
            self.call.start(out);
            self.raw.clear();
        }
        if self.call.started {
            self.call.delta.append(&mut self.reader.out);
        } else {
            self.raw.push(b);
        }
        if done { Progress::Done } else { Progress::More }
    }

    /// The argument's name without the `_` that follows a reserved word.
    fn argument(&self, key: &str) -> String {
        let schema = self.call.declared().and_then(|t| t.parameters.as_ref());
        match key.strip_suffix('_') {
            Some(word) if RESERVED.contains(&word) && !declares(schema, key) => word.to_owned(),
            _ => key.to_owned(),
        }
    }

    pub fn flush(&mut self, out: &mut Vec<Event>) {
        if self.call.started {
            self.call.flush(out);
        }
    }

    pub fn end(mut self, end: End, out: &mut Vec<Event>) -> String {
        if !self.call.started {
            return crate::scan::text(&self.raw);
        }
        let mut rest = Vec::new();
        if end != End::Whole {
            // Text that was neither reported nor a complete value.
            rest = self.reader.pending();
            self.reader.settle();
            self.call.delta.append(&mut self.reader.out);
        }
        self.call.end(end == End::Whole, out);
        crate::scan::text(&rest)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Open {
    Arguments,
    List,
    Tuple,
    Dict,
}

#[derive(Debug, PartialEq, Eq)]
enum At {
    /// The name of an argument, or the closing parenthesis.
    Name(Vec<u8>),
    Value,
    /// A key of a dict, or its closing brace.
    Key,
    Colon,
    After,
    Str {
        quote: u8,
        raw: bool,
        key: bool,
        escape: Escape,
        /// The string is empty so far.
        empty: bool,
        /// In a string with three quotes: the number of quotes that were just read in a row.
        triple: Option<u8>,
    },
    /// After a string. Another string continues it; an empty string and the same quote begin one with three quotes.
    Closed {
        quote: u8,
        raw: bool,
        key: bool,
        empty: bool,
    },
    /// A number or a word.
    Token {
        text: Vec<u8>,
        key: bool,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Escape {
    None,
    Slash,
    Hex { left: u8, value: u32 },
    Octal { left: u8, value: u32 },
}

/// Reads a literal byte by byte and writes JSON.
#[derive(Debug)]
struct Reader {
    stack: Vec<Open>,
    at: At,
    out: Vec<u8>,
    /// The innermost container is empty so far.
    empty: bool,
    /// A name that has just ended with `=`.
    named: Option<String>,
    /// The first half of a surrogate pair.
    high: Option<u32>,
}

struct Broken;

impl Reader {
    fn value() -> Self {
        Self { stack: Vec::new(), at: At::Value, out: Vec::new(), empty: true, named: None, high: None }
    }

    fn arguments() -> Self {
        let mut reader = Self::value();
        reader.stack.push(Open::Arguments);
        reader.at = At::Name(Vec::new());
        reader.out.push(b'{');
        reader
    }

    /// Bytes that were read and not written yet.
    fn pending(&mut self) -> Vec<u8> {
        match &mut self.at {
            At::Name(text) | At::Token { text, .. } => std::mem::take(text),
            _ => Vec::new(),
        }
    }

    /// True: the closing parenthesis.
    fn feed(&mut self, b: u8) -> Result<bool, Broken> {
        if let At::Str { .. } = self.at {
            self.string(b)?;
            return Ok(false);
        }
        if let At::Closed { quote, raw, key, empty } = &mut self.at {
            let (raw, key) = (*raw, *key);
            let (escape, long) = (Escape::None, *empty && b == *quote);
            match b {
                _ if long => self.at = At::Str { quote: b, raw, key, escape, empty: false, triple: Some(0) },
                b'"' | b'\'' => self.at = At::Str { quote: b, raw: false, key, escape, empty: true, triple: None },
                _ if b.is_ascii_whitespace() => *empty = false,
                _ => {
                    self.settle();
                    return self.feed(b);
                }
            }
            return Ok(false);
        }
        if let At::Token { text, key } = &mut self.at {
            if b.is_ascii_alphanumeric() || b"_.+-".contains(&b) || b >= 0x80 {
                text.push(b);
                return Ok(false);
            }
            let key = *key;
            if matches!(b, b'"' | b'\'') && text.len() == 1 && b"rRuUbBfF".contains(&text[0]) {
                let raw = text[0].eq_ignore_ascii_case(&b'r');
                self.open_string(b, raw, key);
                return Ok(false);
            }
            let json = word(text).ok_or(Broken)?;
            match key {
                true if json.starts_with('"') => self.out.extend_from_slice(json.as_bytes()),
                true => self.out.extend_from_slice(format!("\"{json}\"").as_bytes()),
                false => self.out.extend_from_slice(json.as_bytes()),
            }
            self.at = if key { At::Colon } else { At::After };
        }
        let blank = b.is_ascii_whitespace();
        match &mut self.at {
            At::Name(name) => match b {
                b'=' if !name.trim_ascii().is_empty() => {
                    let name = crate::scan::text(name.trim_ascii());
                    self.separate();
                    self.named = Some(name);
                    self.at = At::Value;
                }
                b')' if name.trim_ascii().is_empty() => {
                    self.out.push(b'}');
                    return Ok(true);
                }
                _ if blank => {
                    if !name.is_empty() && name.last() != Some(&b' ') {
                        name.push(b' ');
                    }
                }
                _ if (b.is_ascii_alphanumeric() || b == b'_' || b >= 0x80) && name.last() != Some(&b' ') => {
                    name.push(b)
                }
                _ => return Err(Broken),
            },
            _ if blank => {}
            At::Colon if b == b':' => {
                self.out.extend_from_slice(b": ");
                self.at = At::Value;
            }
            At::Key if b == b'}' => return self.close(b),
            At::Value if matches!(b, b']' | b')') && matches!(self.stack.last(), Some(Open::List | Open::Tuple)) => {
                return self.close(b);
            }
            At::Value | At::Key => {
                let key = self.at == At::Key;
                if key || !matches!(self.stack.last(), Some(Open::Dict | Open::Arguments)) {
                    self.separate();
                }
                match b {
                    b'"' | b'\'' => self.open_string(b, false, key),
                    b'[' | b'(' | b'{' if !key => return self.open(b),
                    _ if b.is_ascii_alphanumeric() || b"_.+-".contains(&b) => {
                        self.at = At::Token { text: vec![b], key };
                    }
                    _ => return Err(Broken),
                }
            }
            At::After => match (b, self.stack.last()) {
                (b',', Some(Open::Arguments)) => self.at = At::Name(Vec::new()),
                (b',', Some(Open::Dict)) => self.at = At::Key,
                // A list may end with a comma.
                (b',', Some(_)) => self.at = At::Value,
                _ => return self.close(b),
            },
            At::Colon | At::Str { .. } | At::Closed { .. } | At::Token { .. } => return Err(Broken),
        }
        Ok(false)
    }

    /// Closes a string that is not continued by another literal.
    fn settle(&mut self) {
        if let At::Closed { key, .. } = self.at {
            self.out.push(b'"');
            self.at = if key { At::Colon } else { At::After };
        }
    }

    fn separate(&mut self) {
        if !std::mem::replace(&mut self.empty, false) && !self.stack.is_empty() {
            self.out.extend_from_slice(b", ");
        }
    }

    fn open(&mut self, b: u8) -> Result<bool, Broken> {
        if self.stack.len() == MAX_DEPTH {
            return Err(Broken);
        }
        let (open, json, at) = match b {
            b'{' => (Open::Dict, b'{', At::Key),
            b'(' => (Open::Tuple, b'[', At::Value),
            _ => (Open::List, b'[', At::Value),
        };
        self.stack.push(open);
        self.out.push(json);
        self.at = at;
        self.empty = true;
        Ok(false)
    }

    fn close(&mut self, b: u8) -> Result<bool, Broken> {
        let json = match (b, self.stack.last()) {
            (b')', Some(Open::Arguments)) | (b'}', Some(Open::Dict)) => b'}',
            (b')', Some(Open::Tuple)) | (b']', Some(Open::List)) => b']',
            _ => return Err(Broken),
        };
        let arguments = self.stack.pop() == Some(Open::Arguments);
        self.out.push(json);
        self.at = At::After;
        self.empty = false;
        Ok(arguments)
    }

    fn open_string(&mut self, quote: u8, raw: bool, key: bool) {
        self.out.push(b'"');
        self.at = At::Str { quote, raw, key, escape: Escape::None, empty: true, triple: None };
    }

    fn string(&mut self, b: u8) -> Result<(), Broken> {
        let At::Str { quote, raw, key, escape, empty, triple } = &mut self.at else { return Err(Broken) };
        let (quote, key) = (*quote, *key);
        if *escape == Escape::None && b == quote {
            let whole = triple.as_mut().is_none_or(|seen| {
                *seen += 1;
                *seen == 3
            });
            if whole {
                let (raw, empty) = (*raw, *empty);
                self.pair(None);
                self.at = At::Closed { quote, raw, key, empty };
            }
            return Ok(());
        }
        *empty = false;
        // Fewer than three quotes in a row are text.
        for _ in 0..triple.as_mut().map_or(0, std::mem::take) {
            self.out.extend_from_slice(if quote == b'"' { b"\\\"" } else { b"'" });
        }
        let mut done = None;
        match *escape {
            Escape::None if b == b'\\' && !*raw => *escape = Escape::Slash,
            Escape::None => {
                self.pair(None);
                match b {
                    b'"' | b'\\' => self.out.extend_from_slice(&[b'\\', b]),
                    _ => push_escaped(&mut self.out, b, true),
                }
            }
            Escape::Slash => {
                *escape = match b {
                    b'x' => Escape::Hex { left: 2, value: 0 },
                    b'u' => Escape::Hex { left: 4, value: 0 },
                    b'U' => Escape::Hex { left: 8, value: 0 },
                    b'0'..=b'7' => Escape::Octal { left: 2, value: u32::from(b - b'0') },
                    _ => Escape::None,
                };
                if *escape == Escape::None {
                    self.pair(None);
                    match b {
                        b'n' => self.out.extend_from_slice(b"\\n"),
                        b't' => self.out.extend_from_slice(b"\\t"),
                        b'r' => self.out.extend_from_slice(b"\\r"),
                        b'b' => self.out.extend_from_slice(b"\\b"),
                        b'f' => self.out.extend_from_slice(b"\\f"),
                        b'a' => self.out.extend_from_slice(b"\\u0007"),
                        b'v' => self.out.extend_from_slice(b"\\u000b"),
                        b'"' | b'\\' => self.out.extend_from_slice(&[b'\\', b]),
                        b'\'' => self.out.push(b),
                        b'\n' => {}
                        // An unknown escape stands for itself, including the backslash.
                        _ => {
                            self.out.extend_from_slice(b"\\\\");
                            push_escaped(&mut self.out, b, true);
                        }
                    }
                }
            }
            Escape::Hex { left, value } => {
                let digit = char::from(b).to_digit(16).ok_or(Broken)?;
                let value = value.checked_mul(16).and_then(|v| v.checked_add(digit)).ok_or(Broken)?;
                *escape = if left == 1 { Escape::None } else { Escape::Hex { left: left - 1, value } };
                done = (left == 1).then_some(value);
            }
            Escape::Octal { left, value } => {
                let digit = char::from(b).to_digit(8).filter(|_| left > 0);
                *escape = match digit {
                    Some(d) => Escape::Octal { left: left - 1, value: value * 8 + d },
                    None => Escape::None,
                };
                if digit.is_none() {
                    self.pair(Some(value));
                    return self.string(b);
                }
            }
        }
        if done.is_some() {
            self.pair(done);
        }
        Ok(())
    }

    /// Writes a character, or keeps the first half of a surrogate pair.
    fn pair(&mut self, value: Option<u32>) {
        let high = self.high.take();
        let whole = match (high, value) {
            (Some(h), Some(l @ 0xDC00..=0xDFFF)) => Some(0x10000 + ((h - 0xD800) << 10) + (l - 0xDC00)),
            (Some(_), _) => {
                self.out.extend_from_slice("\u{FFFD}".as_bytes());
                value
            }
            (None, _) => value,
        };
        match whole {
            Some(h @ 0xD800..=0xDBFF) => self.high = Some(h),
            Some(v) => {
                let c = char::from_u32(v).unwrap_or(char::REPLACEMENT_CHARACTER);
                let quoted = serde_json::Value::from(c.to_string()).to_string();
                self.out.extend_from_slice(&quoted.as_bytes()[1..quoted.len() - 1]);
            }
            None => {}
        }
    }
}

/// A number or a word as JSON.
pub(super) fn word(text: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(text).ok()?;
    match text {
        "True" | "true" => return Some("true".into()),
        "False" | "false" => return Some("false".into()),
        "None" | "null" => return Some("null".into()),
        _ => {}
    }
    let plain = text.strip_prefix('+').unwrap_or(text).replace('_', "");
    let (sign, digits) = plain.strip_prefix('-').map_or(("", plain.as_str()), |d| ("-", d));
    for (prefix, radix) in [("0x", 16), ("0o", 8), ("0b", 2)] {
        if let Some(digits) = digits.to_ascii_lowercase().strip_prefix(prefix) {
            return u64::from_str_radix(digits, radix).ok().map(|n| format!("{sign}{n}"));
        }
    }
    // `1.`, `.5` and `1.e5` are numbers only in Python.
    let (mantissa, exponent) = match digits.find(['e', 'E']) {
        Some(n) => digits.split_at(n),
        None => (digits, ""),
    };
    let zero = if mantissa.starts_with('.') { "0" } else { "" };
    let end = if mantissa.ends_with('.') { "0" } else { "" };
    let number = format!("{sign}{zero}{mantissa}{end}{exponent}");
    let is_number =
        number.ends_with(|c: char| c.is_ascii_digit()) && serde_json::from_str::<IgnoredAny>(&number).is_ok();
    is_number.then_some(number)
}

#[cfg(test)]
mod tests;
