//! Finds texts that do nothing but repeat themselves.

use crate::limits::{REPETITION_BYTES, REPETITIONS};

/// Whether the text ends in one text, at least [`REPETITIONS`] times and over at least [`REPETITION_BYTES`]. Numbers
/// do not count: data repeats.
pub fn ends_in_repetition(text: &str) -> bool {
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
