//! Parses JSON without changing numbers, because a template must print them as Python does.
//!
//! `serde_json` turns an integer beyond 64 bits into a float and may round the last digit of a float. Python keeps
//! both. So number literals that `serde_json` could change become marked strings: U+F0002 followed by the literal. A
//! string that a client sends in this form prints as the number after the mark.

use serde_json::Value as Json;

use crate::json_text::skip_string;

/// A private-use character, next to the control-token markers of transformers (U+F0000, U+F0001).
const MARK: char = '\u{F0002}';

/// Like `serde_json::from_str`, but with numbers as described in the module docs.
pub fn from_str(text: &str) -> serde_json::Result<Json> {
    match marked(text) {
        Some(marked) => serde_json::from_str(&marked),
        None => serde_json::from_str(text),
    }
}

/// Like `from_str`, for bytes; invalid UTF-8 is a parser error.
pub fn from_slice(bytes: &[u8]) -> serde_json::Result<Json> {
    match std::str::from_utf8(bytes) {
        Ok(text) => from_str(text),
        Err(_) => serde_json::from_slice(bytes),
    }
}

/// The literal inside a marked string.
pub(super) fn literal(text: &str) -> Option<&str> {
    let literal = text.strip_prefix(MARK)?;
    let digits = literal.strip_prefix('-').unwrap_or(literal);
    let valid = digits.starts_with(|c: char| c.is_ascii_digit())
        && digits.bytes().all(|b| b.is_ascii_digit() || matches!(b, b'.' | b'e' | b'E' | b'+' | b'-'))
        && (is_integer(literal) || literal.parse::<f64>().is_ok());
    valid.then_some(literal)
}

pub(super) fn is_integer(literal: &str) -> bool {
    literal.strip_prefix('-').unwrap_or(literal).bytes().all(|b| b.is_ascii_digit())
}

/// Replaces floats and integers of 19 or more characters in JSON text by marked strings; `None` if there are none.
pub fn marked(text: &str) -> Option<String> {
    let bytes = text.as_bytes();
    let mut out = String::new();
    let (mut at, mut copied) = (0, 0);
    while at < bytes.len() {
        match bytes[at] {
            b'"' => at = skip_string(bytes, at),
            b'-' | b'0'..=b'9' => {
                let start = at;
                while at < bytes.len() && matches!(bytes[at], b'0'..=b'9' | b'.' | b'e' | b'E' | b'+' | b'-') {
                    at += 1;
                }
                let number = &text[start..at];
                // Anything that is not a JSON number is copied, so that the parser rejects it.
                if (!is_integer(number) || number.len() >= 19)
                    && serde_json::from_str::<serde_json::Number>(number).is_ok()
                {
                    out.push_str(&text[copied..start]);
                    out.push('"');
                    out.push(MARK);
                    out.push_str(number);
                    out.push('"');
                    copied = at;
                }
            }
            _ => at += 1,
        }
    }
    if copied == 0 {
        return None;
    }
    out.push_str(&text[copied..]);
    Some(out)
}

#[cfg(test)]
mod tests;
