//! Tokenizers: text to ids as Python's `tokenizers` and `tiktoken` give them, and ids back to bytes, streaming.

mod bound;
mod bytes;
mod kimi;
mod load;
mod stream;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::cell::Cell;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use tokenizers::tokenizer::{Model, OffsetType, PreTokenizer};
use tokenizers::{AddedVocabulary, PreTokenizedString};

pub use bound::Bound;
pub use load::read_json;
pub(crate) use load::{NAMED, token_text};
pub use stream::{Detokenizer, TokenPiece};

use bytes::{Decoding, Join, Start, Table};

/// Longest text to encode in one call, bytes: encoding costs about a microsecond per character at worst.
pub const MAX_TEXT_BYTES: usize = 4 << 20;
/// Largest tokenizer file, bytes.
pub const MAX_TOKENIZER_BYTES: u64 = 256 << 20;
/// Largest vocabulary, ids.
pub const MAX_VOCAB: usize = 1 << 21;

/// Why a tokenizer cannot be loaded or used.
#[derive(Debug, thiserror::Error)]
pub enum TokenizeError {
    #[error("{path}: {message}")]
    Load { path: String, message: String },
    /// The tokenizer asks for something that is not implemented, by name.
    #[error("{path}: unsupported tokenizer: {what}")]
    Unsupported { path: String, what: String },
    #[error("the text has {bytes} bytes; the limit is {MAX_TEXT_BYTES}")]
    TooLong { bytes: usize },
    #[error("the text has at least {least} tokens; {most} would fit")]
    TooMany { least: usize, most: usize },
    #[error("the time for encoding the text is over")]
    Late,
    #[error("the text cannot be encoded: {0}")]
    Encode(String),
}

/// How to encode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Encode {
    /// Adds what the tokenizer puts around a text, such as a BOS. False after templating.
    pub add_special_tokens: bool,
    /// Turns added tokens spelt in the text into their ids. False for text that must stay text: nobody can then write
    /// `<|im_end|>` into a prompt.
    pub parse_special: bool,
}

impl Encode {
    /// For a prompt that a template rendered.
    pub const TEMPLATED: Encode = Encode { add_special_tokens: false, parse_special: true };
    /// For text that must stay text.
    pub const TEXT: Encode = Encode { add_special_tokens: false, parse_special: false };
}

/// A model's tokenizer; clones share it.
#[derive(Clone)]
pub struct Tokenizer(Arc<Inner>);

struct Inner {
    tokenizer: tokenizers::Tokenizer,
    /// Knows no added token, for `parse_special: false`.
    no_added: AddedVocabulary,
    /// Cuts the text before encoding, where the reference does.
    kimi_cuts: bool,
    table: Table,
    added: HashMap<u32, Added>,
    added_ids: HashMap<String, u32>,
    start: Start,
    /// Bytes of text of which there is at least one token. None: there need not be any.
    longest: Option<usize>,
}

struct Added {
    text: String,
    special: bool,
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer").field("vocab_size", &self.vocab_size()).finish_non_exhaustive()
    }
}

impl Tokenizer {
    /// Loads a model directory's tokenizer: `tokenizer.json`, else Kimi's `tiktoken.model`.
    pub fn load(dir: &Path) -> Result<Self, TokenizeError> {
        load::load(dir)
    }

    fn build(path: &str, tokenizer: tokenizers::Tokenizer, kimi_cuts: bool) -> Result<Self, TokenizeError> {
        let unsupported = |what| TokenizeError::Unsupported { path: path.to_owned(), what };
        let decoding = Decoding::of(tokenizer.get_decoder()).map_err(unsupported)?;
        let added: HashMap<u32, Added> = tokenizer
            .get_added_tokens_decoder()
            .into_iter()
            .map(|(id, token)| (id, Added { text: token.content, special: token.special }))
            .collect();
        let added_ids = added.iter().map(|(id, token)| (token.text.clone(), *id)).collect();
        let table = Table::new(&tokenizer, &decoding, &added).map_err(unsupported)?;
        let longest = bound::longest(&tokenizer, &table, &decoding);
        Ok(Tokenizer(Arc::new(Inner {
            tokenizer,
            no_added: AddedVocabulary::new(),
            kimi_cuts,
            table,
            added,
            added_ids,
            start: decoding.start,
            longest,
        })))
    }

    /// Encodes a text.
    pub fn encode(&self, text: &str, how: Encode) -> Result<Vec<u32>, TokenizeError> {
        self.encode_within(text, how, Bound::default())
    }

    /// Encodes a text, unless it has more tokens than it may have or takes longer than it may take.
    pub fn encode_within(&self, text: &str, how: Encode, bound: Bound) -> Result<Vec<u32>, TokenizeError> {
        if text.len() > MAX_TEXT_BYTES {
            return Err(TokenizeError::TooLong { bytes: text.len() });
        }
        bound.check(self.least_tokens(text.len()))?;
        if self.0.kimi_cuts && text.len() > kimi::MAX_RUN {
            let mut ids = Vec::new();
            for piece in kimi::cut(text) {
                ids.extend(self.encode_whole(piece, how, bound.after(ids.len()))?);
            }
            return Ok(ids);
        }
        self.encode_whole(text, how, bound)
    }

    /// A text of so many bytes has no fewer tokens.
    fn least_tokens(&self, bytes: usize) -> usize {
        self.0.longest.map_or(0, |longest| bytes.div_ceil(longest))
    }

    fn encode_whole(&self, text: &str, how: Encode, bound: Bound) -> Result<Vec<u32>, TokenizeError> {
        let fail = |e: tokenizers::Error| match e.downcast::<TokenizeError>() {
            Ok(own) => *own,
            Err(other) => TokenizeError::Encode(other.to_string()),
        };
        let tokenizer = &self.0.tokenizer;
        if how.parse_special && bound.is_none() {
            return Ok(tokenizer.encode_fast(text, how.add_special_tokens).map_err(fail)?.get_ids().to_vec());
        }
        let added = if how.parse_special { tokenizer.get_added_vocabulary() } else { &self.0.no_added };
        let mut pieces: PreTokenizedString = added.extract_and_normalize(tokenizer.get_normalizer(), text);
        if let Some(pre_tokenizer) = tokenizer.get_pre_tokenizer() {
            pre_tokenizer.pre_tokenize(&mut pieces).map_err(fail)?;
        }
        // Piece by piece in order, so that the count so far is one of the whole text.
        let count = Cell::new(0);
        let tokenize = |piece: &tokenizers::NormalizedString| {
            let tokens = tokenizer.get_model().tokenize(piece.get())?;
            count.set(count.get() + tokens.len());
            bound.check(count.get())?;
            Ok(tokens)
        };
        pieces.tokenize(tokenize).map_err(fail)?;
        let encoding = pieces.into_encoding(None, 0, OffsetType::None).map_err(fail)?;
        // Added tokens are no pieces.
        bound.check(encoding.get_ids().len())?;
        Ok(tokenizer.post_process(encoding, None, how.add_special_tokens).map_err(fail)?.get_ids().to_vec())
    }

    /// One more than the highest id; ids in between may be unused.
    pub fn vocab_size(&self) -> usize {
        self.0.table.len()
    }

    /// The bytes of a token as they stand in the middle of a text; for an added token its text. `None` for an unused
    /// id.
    pub fn token_bytes(&self, id: u32) -> Option<Cow<'_, [u8]>> {
        self.0.table.get(id).map(Cow::Borrowed)
    }

    /// The text of an added token, special or not; `None` for any other id.
    pub fn special(&self, id: u32) -> Option<&str> {
        self.0.added.get(&id).map(|token| token.text.as_str())
    }

    /// Whether the id is an added token marked `special`, which `skip_special_tokens` leaves out of a text.
    pub fn is_control(&self, id: u32) -> bool {
        self.0.added.get(&id).is_some_and(|token| token.special)
    }

    /// The id of an added token.
    pub fn special_id(&self, text: &str) -> Option<u32> {
        self.0.added_ids.get(text).copied()
    }

    /// All added tokens with their ids, in no order.
    pub fn added_tokens(&self) -> impl Iterator<Item = (u32, &str)> {
        self.0.added.iter().map(|(id, token)| (*id, token.text.as_str()))
    }

    /// The bytes of a sequence, added tokens as their text; unused ids are left out, as in Python.
    pub fn decode(&self, ids: &[u32]) -> Vec<u8> {
        let mut out = Vec::with_capacity(ids.len() * 4);
        let mut join = Join::new(self.0.start);
        for &id in ids {
            match self.special(id) {
                Some(text) => {
                    join.special(&mut out);
                    out.extend_from_slice(text.as_bytes());
                }
                None => join.text(&self.0.table, id, &mut out),
            }
        }
        join.end_run(&mut out);
        out
    }

    /// A streaming decoder for one sequence.
    pub fn detokenizer(&self) -> Detokenizer {
        Detokenizer::new(self.clone())
    }
}
