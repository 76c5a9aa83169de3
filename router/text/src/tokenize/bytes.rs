//! The bytes of each token, according to the decoder that the tokenizer declares.

use std::collections::{HashMap, HashSet};

use serde_json::Value as Json;
use tokenizers::DecoderWrapper;

use super::{Added, MAX_VOCAB};

/// How the text of a token is converted to bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Decoding {
    byte_level: bool,
    replace: Vec<(String, String)>,
    byte_fallback: bool,
    pub start: LeadingStrip,
}

/// What the decoder removes from the start of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LeadingStrip {
    /// Nothing, or the start is over.
    Nothing,
    /// Up to this many of this ASCII byte.
    Byte(u8, usize),
    /// All spaces of the first token (Metaspace).
    FirstTokenSpaces,
}

impl LeadingStrip {
    /// Removes what must be removed from the bytes of the next token.
    fn apply<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        match *self {
            LeadingStrip::Nothing => bytes,
            LeadingStrip::Byte(byte, left) => {
                let cut = bytes.iter().take(left).take_while(|b| **b == byte).count();
                // A token of only this byte leaves the rest of the count to the next token.
                *self = if cut == bytes.len() && cut < left {
                    LeadingStrip::Byte(byte, left - cut)
                } else {
                    LeadingStrip::Nothing
                };
                &bytes[cut..]
            }
            LeadingStrip::FirstTokenSpaces => {
                *self = LeadingStrip::Nothing;
                &bytes[bytes.iter().take_while(|b| **b == b' ').count()..]
            }
        }
    }
}

impl Decoding {
    /// Reads the declaration of a decoder; the error names an unsupported part.
    pub fn of(decoder: Option<&DecoderWrapper>) -> Result<Self, String> {
        let json = serde_json::to_value(decoder).map_err(|e| format!("decoder: {e}"))?;
        let mut decoding =
            Decoding { byte_level: false, replace: Vec::new(), byte_fallback: false, start: LeadingStrip::Nothing };
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
                    (Some(byte), Some(start), Some(0)) if fused => {
                        self.start = LeadingStrip::Byte(byte, start as usize)
                    }
                    _ => return Err(format!("decoder Strip {step}")),
                }
            }
            Some("Metaspace") => {
                let replacement = step["replacement"].as_str().unwrap_or("▁");
                self.replace.push((replacement.into(), " ".into()));
                if step["prepend_scheme"] != "never" {
                    self.start = LeadingStrip::FirstTokenSpaces;
                }
            }
            Some(other) => return Err(format!("decoder {other}")),
            None => return Err("a tokenizer without a decoder".into()),
        }
        Ok(())
    }

    /// Writes the bytes of a token; true for a fallback byte, which may be only a part of a character.
    fn bytes(&self, token: &str, out: &mut Vec<u8>, from_char: &HashMap<char, u8>) -> bool {
        if self.byte_level {
            let from = out.len();
            for c in token.chars() {
                match from_char.get(&c) {
                    Some(byte) => out.push(*byte),
                    // The decoder copies a token that contains any other character.
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

/// The bytes of all tokens by id, in one buffer.
pub(super) struct TokenTable {
    bytes: Vec<u8>,
    /// Start and end of each token; an unused id starts at `u32::MAX`.
    spans: Vec<(u32, u32)>,
    /// Ids of fallback bytes.
    fallback: HashSet<u32>,
}

impl TokenTable {
    pub fn new(
        tokenizer: &tokenizers::Tokenizer,
        decoding: &Decoding,
        added: &HashMap<u32, Added>,
    ) -> Result<Self, String> {
        let vocab = tokenizer.get_vocab(false);
        let size = vocab.values().chain(added.keys()).max().map_or(0, |id| *id as usize + 1);
        if size > MAX_VOCAB {
            return Err(format!("a vocabulary may have at most {MAX_VOCAB} ids, got {size}"));
        }
        let from_char: HashMap<char, u8> = alphabet().into_iter().zip(0..=u8::MAX).collect();
        let mut table = TokenTable {
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

    /// Whether each byte has a token, so that every text can be encoded without loss.
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

/// Joins the bytes of tokens to text, where the bytes of a token depend on its neighbours.
#[derive(Debug, Clone)]
pub(super) struct ByteJoiner {
    start: LeadingStrip,
    /// The current run of fallback bytes.
    run: Vec<u8>,
}

impl ByteJoiner {
    pub fn new(start: LeadingStrip) -> Self {
        ByteJoiner { start, run: Vec::new() }
    }

    /// Adds a token; appends the bytes that later tokens cannot change.
    pub fn push(&mut self, table: &TokenTable, id: u32, out: &mut Vec<u8>) {
        let Some(bytes) = table.get(id) else {
            return;
        };
        if table.fallback.contains(&id) {
            self.run.extend_from_slice(bytes);
            return;
        }
        self.end_run(out);
        out.extend_from_slice(self.start.apply(bytes));
    }

    /// Ends the text before an added token.
    pub fn push_added(&mut self, out: &mut Vec<u8>) {
        self.end_run(out);
        self.start = LeadingStrip::Nothing;
    }

    /// Ends a run of fallback bytes. A run that is not valid UTF-8 becomes one U+FFFD per byte, as in Python.
    pub fn end_run(&mut self, out: &mut Vec<u8>) {
        if self.run.is_empty() {
            return;
        }
        let run = match std::str::from_utf8(&self.run) {
            Ok(_) => std::mem::take(&mut self.run),
            Err(_) => "\u{fffd}".repeat(std::mem::take(&mut self.run).len()).into_bytes(),
        };
        out.extend_from_slice(self.start.apply(&run));
    }
}

/// The printable character of each byte in a byte-level vocabulary (GPT-2's table).
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
