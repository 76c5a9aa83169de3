//! The bytes of every token, by the kind of decoder that the tokenizer declares.

use std::collections::{HashMap, HashSet};

use serde_json::Value as Json;
use tokenizers::DecoderWrapper;

use super::{Added, MAX_VOCAB};

/// How a token's text becomes bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Decoding {
    byte_level: bool,
    replace: Vec<(String, String)>,
    byte_fallback: bool,
    pub start: Start,
}

/// What the decoder takes off the start of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Start {
    /// Nothing, or the text has started.
    Keep,
    /// Up to so many of this ASCII byte.
    Strip(u8, usize),
    /// All blanks of the first token (Metaspace).
    FirstToken,
}

impl Start {
    /// What remains of a token's bytes at this point of the text.
    fn text<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        match *self {
            Start::Keep => bytes,
            Start::Strip(byte, left) => {
                let cut = bytes.iter().take(left).take_while(|b| **b == byte).count();
                // A token of nothing but blanks leaves the rest of the allowance to the next one.
                *self = if cut == bytes.len() && cut < left { Start::Strip(byte, left - cut) } else { Start::Keep };
                &bytes[cut..]
            }
            Start::FirstToken => {
                *self = Start::Keep;
                &bytes[bytes.iter().take_while(|b| **b == b' ').count()..]
            }
        }
    }
}

impl Decoding {
    /// Reads a decoder's declaration; the error names what is not supported.
    pub fn of(decoder: Option<&DecoderWrapper>) -> Result<Self, String> {
        let json = serde_json::to_value(decoder).map_err(|e| format!("decoder: {e}"))?;
        let mut decoding =
            Decoding { byte_level: false, replace: Vec::new(), byte_fallback: false, start: Start::Keep };
        match json.get("decoders").and_then(Json::as_array) {
            Some(steps) => {
                let mut fused = false;
                for step in steps {
                    decoding.add(step, fused)?;
                    fused |= step["type"] == "Fuse";
                }
            }
            None => decoding.add(&json, false)?,
        }
        Ok(decoding)
    }

    fn add(&mut self, step: &Json, fused: bool) -> Result<(), String> {
        match step["type"].as_str() {
            Some("ByteLevel") => self.byte_level = true,
            Some("ByteFallback") => self.byte_fallback = true,
            Some("Fuse") => {}
            Some("Replace") => match (step["pattern"]["String"].as_str(), step["content"].as_str()) {
                (Some(from), Some(to)) if !self.byte_fallback && !fused => self.replace.push((from.into(), to.into())),
                _ => return Err(format!("decoder Replace {}", step["pattern"])),
            },
            Some("Strip") => {
                let content = step["content"].as_str().filter(|c| c.len() == 1).map(|c| c.as_bytes()[0]);
                match (content, step["start"].as_u64(), step["stop"].as_u64()) {
                    (Some(byte), Some(start), Some(0)) if fused => self.start = Start::Strip(byte, start as usize),
                    _ => return Err(format!("decoder Strip {step}")),
                }
            }
            Some("Metaspace") => {
                let replacement = step["replacement"].as_str().unwrap_or("▁");
                self.replace.push((replacement.into(), " ".into()));
                if step["prepend_scheme"] != "never" {
                    self.start = Start::FirstToken;
                }
            }
            Some(other) => return Err(format!("decoder {other}")),
            None => return Err("no decoder".into()),
        }
        Ok(())
    }

    /// Writes a token's bytes; true for a byte of the fallback, which is a character only together with its neighbours.
    fn bytes(&self, token: &str, out: &mut Vec<u8>, from_char: &HashMap<char, u8>) -> bool {
        if self.byte_level {
            let from = out.len();
            for c in token.chars() {
                match from_char.get(&c) {
                    Some(byte) => out.push(*byte),
                    // The decoder takes a token with any other character as it is.
                    None => {
                        out.truncate(from);
                        out.extend_from_slice(token.as_bytes());
                        return false;
                    }
                }
            }
            return false;
        }
        if self.byte_fallback
            && token.len() == 6
            && let Some(hex) = token.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'))
            && let Ok(byte) = u8::from_str_radix(hex, 16)
        {
            out.push(byte);
            return true;
        }
        let replaced = self.replace.iter().fold(token.to_owned(), |token, (from, to)| token.replace(from, to));
        out.extend_from_slice(replaced.as_bytes());
        false
    }
}

/// Bytes by id, in one buffer.
pub(super) struct Table {
    bytes: Vec<u8>,
    /// Start and end; an unused id has start = u32::MAX.
    spans: Vec<(u32, u32)>,
    /// Ids of fallback bytes.
    fallback: HashSet<u32>,
}

impl Table {
    pub fn new(
        tokenizer: &tokenizers::Tokenizer,
        decoding: &Decoding,
        added: &HashMap<u32, Added>,
    ) -> Result<Self, String> {
        let vocab = tokenizer.get_vocab(false);
        let size = vocab.values().chain(added.keys()).max().map_or(0, |id| *id as usize + 1);
        if size > MAX_VOCAB {
            return Err(format!("a vocabulary of {size} ids; the limit is {MAX_VOCAB}"));
        }
        let from_char: HashMap<char, u8> = alphabet().into_iter().zip(0..=u8::MAX).collect();
        let mut table = Table {
            bytes: Vec::with_capacity(vocab.len() * 8),
            spans: vec![(u32::MAX, 0); size],
            fallback: HashSet::new(),
        };
        for (token, id) in &vocab {
            let start = table.bytes.len() as u32;
            if decoding.bytes(token, &mut table.bytes, &from_char) {
                table.fallback.insert(*id);
            }
            table.spans[*id as usize] = (start, table.bytes.len() as u32);
        }
        for (id, token) in added {
            let start = table.bytes.len() as u32;
            table.bytes.extend_from_slice(token.text.as_bytes());
            table.spans[*id as usize] = (start, table.bytes.len() as u32);
            table.fallback.remove(id);
        }
        Ok(table)
    }

    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// Bytes of the longest token.
    pub fn longest(&self) -> usize {
        let used = self.spans.iter().filter(|(start, _)| *start != u32::MAX);
        used.map(|(start, end)| (end - start) as usize).max().unwrap_or(0)
    }

    /// Whether every byte is a token, so that a text loses nothing.
    pub fn has_all_bytes(&self, decoding: &Decoding) -> bool {
        let mut seen = [false; 256];
        for id in 0..self.spans.len() as u32 {
            if let Some(&[byte]) = self.get(id)
                && (decoding.byte_level || self.fallback.contains(&id))
            {
                seen[usize::from(byte)] = true;
            }
        }
        seen.iter().all(|seen| *seen)
    }

    pub fn get(&self, id: u32) -> Option<&[u8]> {
        let (start, end) = *self.spans.get(id as usize)?;
        (start != u32::MAX).then(|| &self.bytes[start as usize..end as usize])
    }
}

/// Joins tokens to text, as far as tokens depend on their neighbours.
#[derive(Debug, Clone)]
pub(super) struct Join {
    start: Start,
    /// Fallback bytes whose run goes on.
    run: Vec<u8>,
}

impl Join {
    pub fn new(start: Start) -> Self {
        Join { start, run: Vec::new() }
    }

    /// Appends what is certain after this token.
    pub fn text(&mut self, table: &Table, id: u32, out: &mut Vec<u8>) {
        let Some(bytes) = table.get(id) else {
            return;
        };
        if table.fallback.contains(&id) {
            self.run.extend_from_slice(bytes);
            return;
        }
        self.end_run(out);
        out.extend_from_slice(self.start.text(bytes));
    }

    /// An added token stands here.
    pub fn special(&mut self, out: &mut Vec<u8>) {
        self.end_run(out);
        self.start = Start::Keep;
    }

    /// Ends a run of fallback bytes: a run that is not UTF-8 as a whole becomes one U+FFFD per byte, as in Python.
    pub fn end_run(&mut self, out: &mut Vec<u8>) {
        if self.run.is_empty() {
            return;
        }
        let run = match std::str::from_utf8(&self.run) {
            Ok(_) => std::mem::take(&mut self.run),
            Err(_) => "\u{fffd}".repeat(std::mem::take(&mut self.run).len()).into_bytes(),
        };
        out.extend_from_slice(self.start.text(&run));
    }
}

/// The printable character that stands for each byte in a byte-level vocabulary (GPT-2's table).
pub(super) fn alphabet() -> [char; 256] {
    let mut next = 256_u32;
    std::array::from_fn(|byte| {
        if matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff) {
            return byte as u8 as char;
        }
        next += 1;
        char::from_u32(next - 1).unwrap_or('\u{fffd}')
    })
}
