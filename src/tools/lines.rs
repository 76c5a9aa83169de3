//! The loop of the tools that read and write JSON lines, and their common fields.

use std::io::{self, BufRead, Read, Write};

use rein_text::template::MAX_PROMPT_BYTES;
use rein_text::tokenize::Tokenizer;
use serde_json::{Map, Value as Json, json};

/// Maximum length of an input line in bytes: the longest prompt, with JSON escapes.
pub const MAX_LINE_BYTES: usize = 4 * MAX_PROMPT_BYTES;

/// Reads lines and writes one JSON line for each.
pub fn answer_lines(mut input: impl BufRead, mut output: impl Write, answer: impl Fn(&str) -> Json) -> io::Result<()> {
    let mut line = Vec::new();
    loop {
        line.clear();
        if input.by_ref().take(MAX_LINE_BYTES as u64 + 1).read_until(b'\n', &mut line)? == 0 {
            return output.flush();
        }
        let answered = if line.len() > MAX_LINE_BYTES {
            skip_line(&mut input, &line)?;
            json!({ "error": format!("the line is longer than the limit of {MAX_LINE_BYTES} bytes") })
        } else {
            match std::str::from_utf8(&line) {
                Ok(text) => answer(text),
                Err(e) => json!({ "error": format!("the line is not UTF-8: {e}") }),
            }
        };
        output.write_all(to_line(&answered).as_bytes())?;
        // A caller at the other end of a pipe may wait for this answer before it sends the next line.
        output.flush()?;
    }
}

/// Serializes an answer as one line. Escapes the characters that some readers treat as line ends.
fn to_line(answer: &Json) -> String {
    let mut line = answer.to_string();
    for (c, escape) in [('\u{85}', "\\u0085"), ('\u{2028}', "\\u2028"), ('\u{2029}', "\\u2029")] {
        if line.contains(c) {
            line = line.replace(c, escape);
        }
    }
    line.push('\n');
    line
}

/// Skips the rest of a line, after `read`.
fn skip_line(input: &mut impl BufRead, read: &[u8]) -> io::Result<()> {
    let mut ended = read.ends_with(b"\n");
    while !ended {
        let buffer = input.fill_buf()?;
        let (used, found) = match buffer.iter().position(|b| *b == b'\n') {
            Some(at) => (at + 1, true),
            None => (buffer.len(), buffer.is_empty()),
        };
        input.consume(used);
        ended = found;
    }
    Ok(())
}

pub fn token_id(id: &Json, tokenizer: &Tokenizer) -> Result<u32, String> {
    let below = tokenizer.vocab_size();
    let valid = id.as_u64().and_then(|id| u32::try_from(id).ok()).filter(|id| (*id as usize) < below);
    valid.ok_or_else(|| format!("{id} is not a token id; ids are integers from 0 to {}", below - 1))
}

pub fn flag(request: &Map<String, Json>, name: &str) -> Result<Option<bool>, String> {
    match request.get(name) {
        None | Some(Json::Null) => Ok(None),
        Some(Json::Bool(b)) => Ok(Some(*b)),
        Some(_) => Err(format!("{name} must be true or false")),
    }
}
