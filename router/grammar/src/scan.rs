//! The parser's input: pieces become bytes in which a special token is `0xFF text 0xFF`, so that text cannot forge one.
//! Everything else in the buffer is valid UTF-8; an incomplete character waits outside.

/// One piece of detokenized output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Piece<'a> {
    /// Text; may end inside a character.
    Bytes(&'a [u8]),
    /// An added token of the tokenizer, by its text.
    Special(&'a str),
}

/// [`Piece`] with its text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OwnedPiece {
    Bytes(Vec<u8>),
    Special(String),
}

impl OwnedPiece {
    pub fn as_piece(&self) -> Piece<'_> {
        match self {
            OwnedPiece::Bytes(b) => Piece::Bytes(b),
            OwnedPiece::Special(s) => Piece::Special(s),
        }
    }
}

pub(crate) const FRAME: u8 = 0xFF;
const REPLACEMENT: &[u8] = "\u{FFFD}".as_bytes();
/// Consumed bytes that the buffer keeps before it moves the rest to the front.
const SLACK: usize = 4096;

#[derive(Debug, Default)]
pub(crate) struct Input {
    bytes: Vec<u8>,
    pos: usize,
    /// The start of a character, at most three bytes.
    partial: Vec<u8>,
    /// Bytes moved to the front so far.
    moved: u64,
}

impl Input {
    pub fn push_bytes(&mut self, piece: &[u8]) {
        let mut joined;
        let mut rest = piece;
        if !self.partial.is_empty() {
            joined = std::mem::take(&mut self.partial);
            joined.extend_from_slice(piece);
            rest = &joined;
        }
        loop {
            match std::str::from_utf8(rest) {
                Ok(_) => return self.bytes.extend_from_slice(rest),
                Err(e) => {
                    let (good, bad) = rest.split_at(e.valid_up_to());
                    self.bytes.extend_from_slice(good);
                    let Some(n) = e.error_len() else {
                        self.partial = bad.to_vec();
                        return;
                    };
                    self.bytes.extend_from_slice(REPLACEMENT);
                    rest = &bad[n..];
                }
            }
        }
    }

    pub fn push_special(&mut self, text: &str) {
        self.flush_partial();
        self.bytes.push(FRAME);
        self.bytes.extend_from_slice(text.as_bytes());
        self.bytes.push(FRAME);
    }

    /// No more bytes can complete the incomplete character.
    pub fn flush_partial(&mut self) {
        if !std::mem::take(&mut self.partial).is_empty() {
            self.bytes.extend_from_slice(REPLACEMENT);
        }
    }

    /// Drops the start of a character.
    pub fn drop_partial(&mut self) {
        self.partial.clear();
    }

    /// What was not consumed, with the start of a character.
    pub fn held(&self) -> Vec<u8> {
        [self.rest(), &self.partial].concat()
    }

    /// Drops what was not consumed.
    pub fn clear(&mut self) {
        self.consume(self.rest().len());
        self.partial.clear();
    }

    pub fn rest(&self) -> &[u8] {
        &self.bytes[self.pos..]
    }

    pub fn consume(&mut self, n: usize) {
        self.pos += n;
        if self.pos == self.bytes.len() {
            self.bytes.clear();
            self.pos = 0;
        } else if self.pos > SLACK && self.pos * 2 > self.bytes.len() {
            self.bytes.drain(..self.pos);
            self.pos = 0;
            self.moved += self.bytes.len() as u64;
        }
    }

    pub fn moved(&self) -> u64 {
        self.moved
    }
}

/// The special token at the start of `rest`, and its length in bytes.
pub(crate) fn framed(rest: &[u8]) -> Option<(&str, usize)> {
    let inner = rest.strip_prefix(&[FRAME])?;
    let end = inner.iter().position(|&b| b == FRAME)?;
    Some((std::str::from_utf8(&inner[..end]).ok()?, end + 2))
}

/// The buffer's bytes as text. They are valid UTF-8 wherever the parser cuts; if that ever failed, only the broken
/// character would be lost.
pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
