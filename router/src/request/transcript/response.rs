//! The text of a response so far, and when JSON among them is to be led to its end.

use crate::limits::{DEEP_LEVELS, FINISHING_SHARE, LEVEL_TOKENS, REPETITION_BYTES, REPETITIONS};

/// Why JSON is led to its end: the request wants it, or it repeats itself.
pub const FINISHED_EARLY: &str = "finish_structured";
pub const REPEATED_TEXT: &str = "repeated_text";

#[derive(Default)]
pub struct ResponseText {
    pub text: String,
    /// Open objects and lists, and whether the text ends in a string or after a backslash in one.
    depth: u32,
    in_string: bool,
    escaped: bool,
    /// How much of the text was looked at for repetitions.
    looked_at: usize,
}

impl ResponseText {
    pub fn push(&mut self, text: &str) {
        self.text.push_str(text);
        for byte in text.bytes() {
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' if self.in_string => self.escaped = true,
                b'"' => self.in_string = !self.in_string,
                b'{' | b'[' if !self.in_string => self.depth += 1,
                b'}' | b']' if !self.in_string => self.depth = self.depth.saturating_sub(1),
                _ => {}
            }
        }
    }

    /// Why the JSON, which has this many tokens by now, is led to its end. None: it is not. `most`: most tokens of an
    /// answer that is to be finished within them.
    pub fn leads_to_end(&mut self, tokens: u32, most: Option<u32>) -> Option<&'static str> {
        if self.text.is_empty() {
            return None;
        }
        // More than a quarter is kept for deep values only, and at most half.
        let deep = if self.depth < DEEP_LEVELS { 0 } else { self.depth * LEVEL_TOKENS };
        let due = |most: u32| most.saturating_sub(tokens) <= (most / FINISHING_SHARE).max(deep.min(most / 2));
        if most.is_some_and(due) {
            return Some(FINISHED_EARLY);
        }
        if self.text.len() < self.looked_at + REPETITION_BYTES / 8 {
            return None;
        }
        self.looked_at = self.text.len();
        ends_in_repetition(&self.text).then_some(REPEATED_TEXT)
    }
}

/// Whether the text ends in one text, at least [`REPETITIONS`] times and over at least [`REPETITION_BYTES`]. Numbers
/// do not count: data repeats.
fn ends_in_repetition(text: &str) -> bool {
    let bytes = text.as_bytes();
    let Some(start) = bytes.len().checked_sub(REPETITION_BYTES) else { return false };
    let tail = &bytes[start..];
    let longest = REPETITION_BYTES / REPETITIONS;
    // A text repeats with a period if it equals itself, shifted by the period.
    let repeats = |period: &usize| tail[..tail.len() - period] == tail[*period..];
    let period = (1..=longest).find(repeats);
    period.is_some_and(|period| tail[..period].iter().any(u8::is_ascii_alphabetic) || !tail[..period].is_ascii())
}

#[cfg(test)]
mod tests;
