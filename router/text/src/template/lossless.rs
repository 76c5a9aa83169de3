//! Parses JSON without changing numbers, because a template must print them as Python does.
//!
//! `serde_json` turns an integer beyond 64 bits into a float and may round the last digit of a float. Python keeps
//! both. So number literals that `serde_json` could change become marked strings: U+F0002 followed by the literal. A
//! string that a client sends in this form prints as the number after the mark.

use serde_json::Value as Json;

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

/// How many bytes at the beginning are plain.
pub(crate) fn run_length(bytes: &[u8], plain: impl Fn(u8) -> bool) -> usize {
    // The compiler checks the bytes of a block at once.
    let blocks = bytes.chunks_exact(32).take_while(|block| block.iter().fold(true, |all, b| all & plain(*b)));
    let whole = 32 * blocks.count();
    let more = bytes[whole..].iter().position(|b| !plain(*b));
    more.map_or(bytes.len(), |more| whole + more)
}

pub(crate) fn skip_string(bytes: &[u8], open: usize) -> usize {
    let mut at = open + 1;
    while at < bytes.len() {
        at += run_length(&bytes[at..], |b| b != b'"' && b != b'\\');
        if at >= bytes.len() {
            break;
        }
        match bytes[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

#[cfg(test)]
mod tests;
