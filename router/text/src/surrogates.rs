//! Half a surrogate pair in a JSON text, `"\ud83d"`, is no character. Clients that cut strings by UTF-16 units send it,
//! and go on sending it: it stands in their history.

use std::borrow::Cow;

use crate::json_text::{run_length, skip_string};

const ESCAPE_BYTES: usize = 6;
/// U+FFFD, as an escape.
const REPLACEMENT: &[u8; ESCAPE_BYTES] = b"\\ufffd";
/// Of the places with half a pair, as many are named.
const MAX_NAMED: usize = 16;

/// The JSON text with U+FFFD for each half of a pair.
pub fn replaced(text: &str) -> Cow<'_, str> {
    let halves = halves(text.as_bytes());
    if halves.is_empty() {
        return Cow::Borrowed(text);
    }
    let mut bytes = text.as_bytes().to_vec();
    replace(&mut bytes, &halves);
    // Escapes are ASCII, before and after.
    String::from_utf8(bytes).map_or(Cow::Borrowed(text), Cow::Owned)
}

/// The same for a body. Also returns the paths of the strings that have such halves.
pub fn replaced_in_body(body: &[u8]) -> (Cow<'_, [u8]>, Vec<String>) {
    let halves = halves(body);
    if halves.is_empty() {
        return (Cow::Borrowed(body), Vec::new());
    }
    let mut bytes = body.to_vec();
    replace(&mut bytes, &halves);
    // What is not UTF-8 is refused when it is parsed.
    let paths = std::str::from_utf8(body).map_or(Vec::new(), |text| paths(text, &halves));
    (Cow::Owned(bytes), paths)
}

fn replace(bytes: &mut [u8], halves: &[usize]) {
    for at in halves {
        bytes[*at..*at + ESCAPE_BYTES].copy_from_slice(REPLACEMENT);
    }
}

/// Where escapes of half a pair begin.
fn halves(bytes: &[u8]) -> Vec<usize> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        at += run_length(&bytes[at..], |b| b != b'\\');
        at += match (unit(bytes, at), unit(bytes, at + ESCAPE_BYTES)) {
            (Some(0xd800..0xdc00), Some(0xdc00..0xe000)) => 2 * ESCAPE_BYTES,
            (Some(0xd800..0xe000), _) => {
                found.push(at);
                ESCAPE_BYTES
            }
            _ => 2,
        };
    }
    found
}

/// The UTF-16 unit of an escape.
fn unit(bytes: &[u8], at: usize) -> Option<u16> {
    let hex = bytes.get(at..at + ESCAPE_BYTES)?.strip_prefix(b"\\u")?;
    let hex = std::str::from_utf8(hex).ok().filter(|hex| hex.bytes().all(|b| b.is_ascii_hexdigit()))?;
    u16::from_str_radix(hex, 16).ok()
}

enum Step<'a> {
    Item(usize),
    Member(&'a str),
}

/// The paths of the strings at these places of a JSON text.
fn paths(text: &str, places: &[usize]) -> Vec<String> {
    let (mut found, mut stack, mut key_next): (Vec<String>, Vec<Step<'_>>, bool) = (Vec::new(), Vec::new(), false);
    let (bytes, mut at, mut places) = (text.as_bytes(), 0, places);
    while let (Some(first), true) = (places.first(), at < bytes.len() && found.len() < MAX_NAMED) {
        match bytes[at] {
            b'{' => {
                stack.push(Step::Member(""));
                key_next = true;
            }
            b'[' => stack.push(Step::Item(0)),
            b'}' | b']' => drop(stack.pop()),
            b',' => match stack.last_mut() {
                Some(Step::Item(index)) => *index += 1,
                _ => key_next = true,
            },
            b'"' => {
                let end = skip_string(bytes, at);
                if let (true, Some(Step::Member(name))) = (std::mem::take(&mut key_next), stack.last_mut()) {
                    *name = text.get(at + 1..end - 1).unwrap_or_default();
                }
                if *first < end {
                    places = &places[places.partition_point(|place| *place < end)..];
                    let path = path(&stack);
                    if !found.contains(&path) {
                        found.push(path);
                    }
                }
                at = end;
                continue;
            }
            _ => {}
        }
        at += 1;
    }
    found
}

fn path(stack: &[Step<'_>]) -> String {
    let mut path = String::new();
    for step in stack {
        match step {
            Step::Item(index) => path.push_str(&format!("[{index}]")),
            Step::Member(name) => {
                if !path.is_empty() {
                    path.push('.');
                }
                path.push_str(name);
            }
        }
    }
    path
}

#[cfg(test)]
mod tests;
