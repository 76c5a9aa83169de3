//! Decodes a stream of tokens; holds back bytes until they form whole characters.

use super::Tokenizer;
use super::bytes::ByteJoiner;

/// A piece of decoded output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TokenPiece<'a> {
    /// Text, never empty and always valid UTF-8: invalid sequences are replaced by U+FFFD.
    Bytes(Vec<u8>),
    /// An added token, special or not.
    Special(&'a str),
}

/// Decodes one sequence token by token. The pieces joined equal the lossy text of `Tokenizer::decode`.
#[derive(Debug, Clone)]
pub struct Detokenizer {
    tokenizer: Tokenizer,
    held: Vec<u8>,
    join: ByteJoiner,
}

impl Detokenizer {
    pub(super) fn new(tokenizer: Tokenizer) -> Self {
        let join = ByteJoiner::new(tokenizer.0.start);
        Detokenizer { tokenizer, held: Vec::new(), join }
    }

    /// Adds the next token; returns up to two pieces: an added token may follow text that was held back.
    pub fn push(&mut self, id: u32) -> impl Iterator<Item = TokenPiece<'_>> + use<'_> {
        let (text, special) = match self.tokenizer.special(id) {
            Some(special) => {
                self.join.push_added(&mut self.held);
                (take_lossy(&mut self.held), Some(TokenPiece::Special(special)))
            }
            None => {
                self.join.push(&self.tokenizer.0.table, id, &mut self.held);
                (take_characters(&mut self.held), None)
            }
        };
        text.map(TokenPiece::Bytes).into_iter().chain(special)
    }

    /// Ends the sequence; returns what was held back, with incomplete characters as U+FFFD.
    pub fn finish(&mut self) -> Option<TokenPiece<'static>> {
        self.join.end_run(&mut self.held);
        take_lossy(&mut self.held).map(TokenPiece::Bytes)
    }
}

/// Takes the whole characters out of `held`. Invalid ones become U+FFFD; an incomplete last one stays.
fn take_characters(held: &mut Vec<u8>) -> Option<Vec<u8>> {
    if let Ok(text) = std::str::from_utf8(held) {
        return (!text.is_empty()).then(|| std::mem::take(held));
    }
    let mut out = Vec::with_capacity(held.len() + 3);
    let mut rest = held.as_slice();
    let tail = loop {
        match std::str::from_utf8(rest) {
            Ok(text) => {
                out.extend_from_slice(text.as_bytes());
                break Vec::new();
            }
            Err(error) => {
                let (valid, after) = rest.split_at(error.valid_up_to());
                out.extend_from_slice(valid);
                match error.error_len() {
                    Some(len) => {
                        out.extend_from_slice("\u{fffd}".as_bytes());
                        rest = &after[len..];
                    }
                    None => break after.to_vec(),
                }
            }
        }
    };
    *held = tail;
    (!out.is_empty()).then_some(out)
}

/// Takes everything out of `held`; invalid or incomplete characters become U+FFFD.
fn take_lossy(held: &mut Vec<u8>) -> Option<Vec<u8>> {
    let held = std::mem::take(held);
    (!held.is_empty()).then(|| String::from_utf8_lossy(&held).into_owned().into_bytes())
}
