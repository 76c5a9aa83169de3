//! Converts JSON to template values, and these to text like Python's `str()`, `repr()` and `json.dumps`.

use std::cmp::Ordering;
use std::fmt::{self, Write};
use std::sync::Arc;

use minijinja::value::{DynObject, Object, ObjectRepr, ValueKind};
use minijinja::{Error, ErrorKind, Value};
use serde_json::Value as Json;

use super::lazy::LazyJson;
use super::lossless;
use super::views::is_view;
use crate::json_text::run_length;

/// A number that the template engine cannot hold or would print differently: an integer beyond 128 bits, or a float
/// whose Python form has an exponent.
#[derive(Debug)]
pub(super) struct ExactNumber {
    pub(super) text: String,
    pub(super) float: Option<f64>,
}

impl Object for ExactNumber {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }

    fn custom_cmp(self: &Arc<Self>, other: &DynObject) -> Option<Ordering> {
        let other = other.downcast_ref::<Self>()?;
        let value = |n: &ExactNumber| n.float.or_else(|| n.text.parse().ok()).unwrap_or(f64::NAN);
        if self.text == other.text {
            return Some(Ordering::Equal);
        }
        Some(value(self).total_cmp(&value(other)).then_with(|| self.text.cmp(&other.text)))
    }
}

/// The `ExactNumber` behind a value, if it is one.
pub(super) fn number(value: &Value) -> Option<&ExactNumber> {
    value.downcast_object_ref::<ExactNumber>()
}

/// Converts JSON as Python's `json.loads` would, keeping the order of keys.
pub(super) fn from_json(json: &Json) -> Value {
    match json {
        Json::Null => Value::from(()),
        Json::Bool(b) => Value::from(*b),
        Json::Number(n) => match (n.as_i64(), n.as_u64()) {
            (Some(i), _) => Value::from(i),
            (None, Some(u)) => Value::from(u),
            (None, None) => from_float(n.as_f64().unwrap_or(f64::NAN)),
        },
        Json::String(s) => match lossless::literal(s) {
            Some(literal) => from_literal(literal),
            None => Value::from(s.as_str()),
        },
        Json::Array(items) => Value::from(items.iter().map(from_json).collect::<Vec<_>>()),
        Json::Object(map) => Value::from_pairs(map.iter().map(|(k, v)| (Value::from(k.as_str()), from_json(v)))),
    }
}

fn from_literal(literal: &str) -> Value {
    if !lossless::is_integer(literal) {
        return from_float(literal.parse().unwrap_or(f64::NAN));
    }
    match literal.parse::<i128>() {
        Ok(i) => match i64::try_from(i) {
            Ok(i) => Value::from(i),
            Err(_) => Value::from(i),
        },
        Err(_) => Value::from_object(ExactNumber { text: literal.to_owned(), float: None }),
    }
}

pub(super) fn from_float(x: f64) -> Value {
    let text = float_repr(x);
    match text.contains('e') {
        true => Value::from_object(ExactNumber { text, float: Some(x) }),
        false => Value::from(x),
    }
}

/// Python's `repr(float)`: shortest digits, an exponent below 1e-4 and from 1e16 on.
pub(super) fn float_repr(x: f64) -> String {
    if x.is_nan() {
        return "nan".into();
    }
    if x.is_infinite() {
        return if x > 0.0 { "inf".into() } else { "-inf".into() };
    }
    let scientific = format!("{x:e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if x != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{mantissa}e{sign}{:02}", exponent.abs());
    }
    let mut text = x.to_string();
    if !text.contains('.') {
        text.push_str(".0");
    }
    text
}

/// Python's `str(value)` as Jinja prints it: undefined is empty.
pub(super) fn str_of(value: &Value) -> String {
    match (value.kind(), value.as_str()) {
        (_, Some(s)) => s.to_owned(),
        (ValueKind::Undefined, _) => String::new(),
        _ => {
            let mut out = String::new();
            write_repr(&mut out, value);
            out
        }
    }
}

pub(super) fn write_repr(out: &mut String, value: &Value) {
    match value.kind() {
        ValueKind::Undefined => out.push_str("Undefined"),
        ValueKind::String => write_str_repr(out, value.as_str().unwrap_or_default()),
        ValueKind::Number => match as_float(value) {
            Some(x) => out.push_str(&float_repr(x)),
            None => {
                let _ = write!(out, "{value}");
            }
        },
        // The engine prints a namespace, a macro or an iterable of unknown length.
        ValueKind::Map if value.len().is_some() => {
            out.push('{');
            for (i, key) in value.try_iter().into_iter().flatten().enumerate() {
                out.push_str(if i > 0 { ", " } else { "" });
                write_repr(out, &key);
                out.push_str(": ");
                write_repr(out, &value.get_item(&key).unwrap_or(Value::UNDEFINED));
            }
            out.push('}');
        }
        ValueKind::Seq | ValueKind::Iterable if value.len().is_some() && !is_view(value) => {
            let (open, close) = if value.is_tuple() { ('(', ')') } else { ('[', ']') };
            out.push(open);
            for (i, item) in value.try_iter().into_iter().flatten().enumerate() {
                out.push_str(if i > 0 { ", " } else { "" });
                write_repr(out, &item);
            }
            if value.is_tuple() && value.len() == Some(1) {
                out.push(',');
            }
            out.push(close);
        }
        _ => {
            let _ = write!(out, "{value}");
        }
    }
}

/// The float inside a number value; `None` for integers.
pub(super) fn as_float(value: &Value) -> Option<f64> {
    match value.kind() {
        ValueKind::Number if !value.is_integer() => f64::try_from(value.clone()).ok(),
        _ => number(value).and_then(|n| n.float),
    }
}

fn write_str_repr(out: &mut String, s: &str) {
    let quote = if s.contains('\'') && !s.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in s.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => {
                out.push('\\');
                out.push(c);
            }
            c if is_printable(c) => out.push(c),
            c => {
                let code = c as u32;
                let _ = match code {
                    0..=0xff => write!(out, "\\x{code:02x}"),
                    0x100..=0xffff => write!(out, "\\u{code:04x}"),
                    _ => write!(out, "\\U{code:08x}"),
                };
            }
        }
    }
    out.push(quote);
}

/// The marks around parts of a conversation must pass through the template unchanged, although Python would escape
/// them.
fn is_marker(c: char) -> bool {
    matches!(c, super::MARK_START | super::MARK_END)
}

/// Python's `str.isprintable` for one character. Rust's debug escape uses the same categories, but also escapes a
/// combining mark at the start of a string; so a letter is put before it.
fn is_printable(c: char) -> bool {
    if is_marker(c) {
        return true;
    }
    if c.is_ascii() {
        return !c.is_ascii_control();
    }
    let mut buffer = [0; 5];
    buffer[0] = b'a';
    let len = c.encode_utf8(&mut buffer[1..]).len();
    std::str::from_utf8(&buffer[..=len]).is_ok_and(|s| s.escape_debug().nth(1) == Some(c))
}

/// Python's whitespace, which includes U+001C to U+001F, unlike Rust's.
pub(super) fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\x1c'..='\x1f').contains(&c)
}

/// Arguments of Python's `json.dumps`.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct JsonDumpsOptions {
    pub ensure_ascii: bool,
    /// Indentation of one level; `None` writes one line.
    pub indent: Option<String>,
    pub item_separator: String,
    pub key_separator: String,
    pub sort_keys: bool,
}

impl Default for JsonDumpsOptions {
    fn default() -> Self {
        JsonDumpsOptions {
            ensure_ascii: false,
            indent: None,
            item_separator: ", ".into(),
            key_separator: ": ".into(),
            sort_keys: false,
        }
    }
}

impl JsonDumpsOptions {
    pub fn dump(&self, value: &Value) -> Result<String, Error> {
        let mut out = String::new();
        self.write(&mut out, value, 0)?;
        Ok(out)
    }

    fn write(&self, out: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
        if let Some(json) = LazyJson::of(value) {
            return self.write_json(out, json, depth);
        }
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::String => self.write_string(out, value.as_str().unwrap_or_default()),
            ValueKind::Number => out.push_str(&scalar(value)),
            ValueKind::Seq | ValueKind::Iterable if !is_view(value) => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.write_block(out, depth, ('[', ']'), items.len(), |out, i| self.write(out, &items[i], depth + 1))?;
            }
            ValueKind::Map => {
                let mut entries = Vec::new();
                for key in value.try_iter()? {
                    let item = value.get_item(&key)?;
                    entries.push((key_text(&key)?, item));
                }
                if self.sort_keys {
                    entries.sort_by(|a, b| a.0.cmp(&b.0));
                }
                self.write_block(out, depth, ('{', '}'), entries.len(), |out, i| {
                    self.write_string(out, &entries[i].0);
                    out.push_str(&self.key_separator);
                    self.write(out, &entries[i].1, depth + 1)
                })?;
            }
            _ if number(value).is_some() => out.push_str(&scalar(value)),
            kind => {
                let what = if kind == ValueKind::Undefined { "Undefined".into() } else { kind.to_string() };
                return Err(Error::new(
                    ErrorKind::InvalidOperation,
                    format!("Object of type {what} is not JSON serializable"),
                ));
            }
        }
        Ok(())
    }

    /// What `write` writes for the value that `from_json` makes.
    fn write_json(&self, out: &mut String, json: &Json, depth: usize) -> Result<(), Error> {
        match json {
            Json::String(text) if lossless::literal(text).is_none() => self.write_string(out, text),
            Json::Array(items) => {
                self.write_block(out, depth, ('[', ']'), items.len(), |out, i| {
                    self.write_json(out, &items[i], depth + 1)
                })?;
            }
            Json::Object(map) => {
                let mut entries: Vec<(&String, &Json)> = map.iter().collect();
                if self.sort_keys {
                    entries.sort_by_key(|(key, _)| *key);
                }
                self.write_block(out, depth, ('{', '}'), entries.len(), |out, i| {
                    let (key, value) = entries[i];
                    self.write_string(out, key);
                    out.push_str(&self.key_separator);
                    self.write_json(out, value, depth + 1)
                })?;
            }
            scalar => self.write(out, &from_json(scalar), depth)?,
        }
        Ok(())
    }

    fn write_block(
        &self,
        out: &mut String,
        depth: usize,
        (open, close): (char, char),
        len: usize,
        mut item: impl FnMut(&mut String, usize) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let newline = |out: &mut String, depth: usize| {
            if let Some(indent) = &self.indent {
                out.push('\n');
                (0..depth).for_each(|_| out.push_str(indent));
            }
        };
        out.push(open);
        for i in 0..len {
            if i > 0 {
                out.push_str(&self.item_separator);
            }
            newline(out, depth + 1);
            item(out, i)?;
        }
        if len > 0 {
            newline(out, depth);
        }
        out.push(close);
        Ok(())
    }

    fn write_string(&self, out: &mut String, s: &str) {
        // Every byte of a character beyond ASCII is at least 0x80, so a run of plain bytes ends at a character.
        let plain = |b: u8| b >= b' ' && b != b'"' && b != b'\\' && (!self.ensure_ascii || b < 0x7f);
        out.push('"');
        let mut rest = s;
        loop {
            let (run, after) = rest.split_at(run_length(rest.as_bytes(), plain));
            out.push_str(run);
            let Some(c) = after.chars().next() else { break };
            self.write_char(out, c);
            rest = &after[c.len_utf8()..];
        }
        out.push('"');
    }

    fn write_char(&self, out: &mut String, c: char) {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\x08' => out.push_str("\\b"),
            '\x0c' => out.push_str("\\f"),
            c if c < ' ' || (self.ensure_ascii && !(' '..='~').contains(&c) && !is_marker(c)) => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
            c => out.push(c),
        }
    }
}

/// A number as `json.dumps` writes it: its repr, except for infinities and NaN.
fn scalar(value: &Value) -> String {
    match as_float(value) {
        Some(x) if x.is_nan() => "NaN".into(),
        Some(x) if x.is_infinite() => if x > 0.0 { "Infinity" } else { "-Infinity" }.into(),
        Some(x) => float_repr(x),
        None => value.to_string(),
    }
}

fn key_text(key: &Value) -> Result<String, Error> {
    match key.kind() {
        ValueKind::String => Ok(key.as_str().unwrap_or_default().to_owned()),
        ValueKind::None => Ok("null".into()),
        ValueKind::Bool => Ok(if key.is_true() { "true" } else { "false" }.into()),
        ValueKind::Number => Ok(scalar(key)),
        kind => Err(Error::new(
            ErrorKind::InvalidOperation,
            format!("keys must be str, int, float, bool or None, not {kind}"),
        )),
    }
}

#[cfg(test)]
mod tests;
