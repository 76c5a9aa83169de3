//! Encodes text to the same token ids as Python's `tokenizers` and `tiktoken`, and decodes ids to bytes, also as a
//! stream. It knows no templates.

mod bytes;
mod cuts;
mod encode_limit;
mod kimi;
mod load;
mod prefix_cache;
mod ranks;
mod stream;
mod tekken;
#[cfg(test)]
mod tests;
mod words;

use std::borrow::Cow;
use std::cell::Cell;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use tokenizers::tokenizer::{Model, OffsetType, PreTokenizer};
use tokenizers::{AddedVocabulary, Encoding, OffsetReferential, PreTokenizedString, Token};

pub use encode_limit::EncodeLimit;
pub use load::read_json;
pub(crate) use load::{NAMED_SPECIAL_TOKENS, token_text};
pub use prefix_cache::{PromptCache, PromptCacheStats};
pub use stream::{Detokenizer, TokenPiece};

use bytes::{ByteJoiner, Decoding, LeadingStrip, TokenTable};
use cuts::{Cuts, MIN_PART_BYTES};
use words::WordSplitter;

/// Largest text of one call, bytes. Encoding costs at most about a microsecond per character.
pub const MAX_TEXT_BYTES: usize = 4 << 20;
/// Largest tokenizer file, bytes.
pub const MAX_TOKENIZER_BYTES: u64 = 256 << 20;
/// Bytes of words that are encoded between two looks at the clock.
const BYTES_PER_LOOK: usize = 512;
/// Largest vocabulary, ids.
pub const MAX_VOCAB: usize = 1 << 21;

/// Why a tokenizer cannot be loaded or used.
#[derive(Debug, thiserror::Error)]
pub enum TokenizeError {
    #[error("{path}: {message}")]
    Load { path: String, message: String },
    /// The tokenizer needs something that is not supported.
    #[error("{path}: unsupported tokenizer: {what}")]
    Unsupported { path: String, what: String },
    #[error("the text has {bytes} bytes; the limit is {most}")]
    TooLong { bytes: usize, most: usize },
    #[error("the text may have at most {most} tokens, got at least {least}")]
    TooMany { least: usize, most: usize },
    #[error("encoding the text did not finish before the deadline")]
    Late,
    #[error("the text cannot be encoded: {0}")]
    Encode(String),
}

/// How to encode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Encode {
    /// Whether to add the tokens that the tokenizer puts around a text, such as BOS. False for a rendered prompt.
    pub add_special_tokens: bool,
    /// Whether added tokens in the text become their ids. False for text of clients, so that they cannot write tokens
    /// such as `<|im_end|>` into a prompt.
    pub parse_special: bool,
}

impl Encode {
    /// For a prompt rendered by a template.
    pub const TEMPLATED: Encode = Encode { add_special_tokens: false, parse_special: true };
    /// For text that must stay text.
    pub const TEXT: Encode = Encode { add_special_tokens: false, parse_special: false };
}

/// The tokenizer of a model. Clones share it.
#[derive(Clone)]
pub struct Tokenizer(Arc<Inner>);

struct Inner {
    tokenizer: tokenizers::Tokenizer,
    /// An empty vocabulary of added tokens, for `parse_special: false`.
    no_added: AddedVocabulary,
    /// Whether long texts are split as in Kimi's code.
    splits_like_kimi: bool,
    /// Where prompts may be cut; `None`: nowhere.
    cuts: Option<Cuts>,
    table: TokenTable,
    added: HashMap<u32, Added>,
    added_ids: HashMap<String, u32>,
    start: LeadingStrip,
    /// The most bytes of text that one token can encode; `None` without a limit.
    max_bytes_per_token: Option<usize>,
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
    /// Loads a model directory's tokenizer: `tokenizer.json`, else Kimi's `tiktoken.model`, else Mistral's
    /// `tekken.json`.
    pub fn load(dir: &Path) -> Result<Self, TokenizeError> {
        load::load(dir)
    }

    fn build(path: &str, tokenizer: tokenizers::Tokenizer, splits_like_kimi: bool) -> Result<Self, TokenizeError> {
        let unsupported = |what| TokenizeError::Unsupported { path: path.to_owned(), what };
        let decoding = Decoding::of(tokenizer.get_decoder()).map_err(unsupported)?;
        let added: HashMap<u32, Added> = tokenizer
            .get_added_tokens_decoder()
            .into_iter()
            .map(|(id, token)| (id, Added { text: token.content, special: token.special }))
            .collect();
        let added_ids = added.iter().map(|(id, token)| (token.text.clone(), *id)).collect();
        let table = TokenTable::new(&tokenizer, &decoding, &added).map_err(unsupported)?;
        let max_bytes_per_token = encode_limit::max_bytes_per_token(&tokenizer, &table, &decoding);
        Ok(Tokenizer(Arc::new(Inner {
            cuts: Cuts::new(&tokenizer),
            tokenizer,
            no_added: AddedVocabulary::new(),
            splits_like_kimi,
            table,
            added,
            added_ids,
            start: decoding.start,
            max_bytes_per_token,
        })))
    }

    /// Encodes a text.
    pub fn encode(&self, text: &str, how: Encode) -> Result<Vec<u32>, TokenizeError> {
        self.encode_within(text, how, EncodeLimit::default())
    }

    /// Encodes a text; fails if it exceeds the bound on tokens or time.
    pub fn encode_within(&self, text: &str, how: Encode, bound: EncodeLimit) -> Result<Vec<u32>, TokenizeError> {
        if text.len() > bound.bytes {
            return Err(TokenizeError::TooLong { bytes: text.len(), most: bound.bytes });
        }
        bound.check(self.least_tokens(text.len()))?;
        if self.0.splits_like_kimi && kimi::may_split(text) {
            let mut ids = Vec::new();
            for piece in kimi::split_long_text(text) {
                ids.extend(self.encode_part(piece, how, bound.after(ids.len()))?);
            }
            return Ok(ids);
        }
        self.encode_part(text, how, bound)
    }

    /// Encodes a rendered prompt like `encode_within` with [`Encode::TEMPLATED`]. The ids of its first parts come from
    /// the cache, if it has prompts with the same beginning and salt.
    pub fn encode_prompt(
        &self,
        prompt: &str,
        cache: &PromptCache,
        salt: &str,
        bound: EncodeLimit,
    ) -> Result<Vec<u32>, TokenizeError> {
        let Some(cuts) = self.0.cuts.as_ref().filter(|_| prompt.len() <= bound.bytes) else {
            return self.encode_within(prompt, Encode::TEMPLATED, bound);
        };
        bound.check(self.least_tokens(prompt.len()))?;
        let whole = match self.0.splits_like_kimi && kimi::may_split(prompt) {
            true => kimi::split_long_text(prompt),
            false => vec![prompt],
        };
        let parts = whole.into_iter().flat_map(|text| cuts.parts(text, MIN_PART_BYTES).map(|range| &text[range]));
        let mut ids = Vec::with_capacity(prompt.len() / 4);
        let mut place = cache.start(salt);
        let (mut at, mut found_bytes) = (0, 0);
        for part in parts {
            at += part.len();
            if let Some(node) = place.and_then(|place| cache.find(place, part)) {
                ids.extend_from_slice(&node.ids);
                bound.check(ids.len())?;
                (place, found_bytes) = (Some(node.behind), at);
                continue;
            }
            let from = ids.len();
            ids.extend(self.encode_part(part, Encode::TEMPLATED, bound.after(from))?);
            // The next turn continues the last part, so it will not be found.
            place = place.filter(|_| at < prompt.len()).and_then(|place| cache.store(place, part, &ids[from..]));
        }
        cache.count(found_bytes, prompt.len() - found_bytes);
        Ok(ids)
    }

    /// The fewest tokens that a text of this many bytes can have.
    fn least_tokens(&self, bytes: usize) -> usize {
        self.0.max_bytes_per_token.map_or(0, |most| bytes.div_ceil(most))
    }

    fn encode_part(&self, text: &str, how: Encode, bound: EncodeLimit) -> Result<Vec<u32>, TokenizeError> {
        let fail = |e: tokenizers::Error| match e.downcast::<TokenizeError>() {
            Ok(own) => *own,
            Err(other) => TokenizeError::Encode(other.to_string()),
        };
        let tokenizer = &self.0.tokenizer;
        let splitter = WordSplitter::of(tokenizer.get_pre_tokenizer());
        if splitter.is_none() && how.parse_special && bound.is_none() {
            return Ok(tokenizer.encode_fast(text, how.add_special_tokens).map_err(fail)?.get_ids().to_vec());
        }
        let added = if how.parse_special { tokenizer.get_added_vocabulary() } else { &self.0.no_added };
        let mut pieces: PreTokenizedString = added.extract_and_normalize(tokenizer.get_normalizer(), text);
        if let Some(splitter) = splitter {
            let ids = self.encode_words(&pieces, splitter, bound)?;
            return if how.add_special_tokens { self.with_special(ids).map_err(fail) } else { Ok(ids) };
        }
        if let Some(pre_tokenizer) = tokenizer.get_pre_tokenizer() {
            pre_tokenizer.pre_tokenize(&mut pieces).map_err(fail)?;
        }
        // Pieces are tokenized in order, so the count covers the text so far.
        let count = Cell::new(0);
        let tokenize = |piece: &tokenizers::NormalizedString| {
            let tokens = tokenizer.get_model().tokenize(piece.get())?;
            count.set(count.get() + tokens.len());
            bound.check(count.get())?;
            Ok(tokens)
        };
        pieces.tokenize(tokenize).map_err(fail)?;
        let encoding = pieces.into_encoding(None, 0, OffsetType::None).map_err(fail)?;
        // `tokenize` is not called for added tokens, so count again.
        bound.check(encoding.get_ids().len())?;
        Ok(tokenizer.post_process(encoding, None, how.add_special_tokens).map_err(fail)?.get_ids().to_vec())
    }

    /// Adds the tokens that the tokenizer's template puts around a text.
    fn with_special(&self, ids: Vec<u32>) -> Result<Vec<u32>, tokenizers::Error> {
        // No token has this id.
        const TEXT: u32 = u32::MAX;
        let text = Encoding::from_tokens(vec![Token::new(TEXT, String::new(), (0, 0))], 0);
        let around = self.0.tokenizer.post_process(text, None, true)?;
        let parts = around.get_ids().iter().flat_map(|id| match id {
            &TEXT => ids.as_slice(),
            special => std::slice::from_ref(special),
        });
        Ok(parts.copied().collect())
    }

    /// The ids of added tokens and of the words between them.
    fn encode_words(
        &self,
        pieces: &PreTokenizedString,
        splitter: WordSplitter<'_>,
        bound: EncodeLimit,
    ) -> Result<Vec<u32>, TokenizeError> {
        let model = self.0.tokenizer.get_model();
        let (mut ids, mut unlooked) = (Vec::new(), 0);
        for (text, _, tokens) in pieces.get_splits(OffsetReferential::Normalized, OffsetType::None) {
            if let Some(tokens) = tokens {
                ids.extend(tokens.iter().map(|token| token.id));
                bound.check(ids.len())?;
                continue;
            }
            splitter.words(text, &mut |word| {
                let tokens = model.tokenize(word).map_err(|error| TokenizeError::Encode(error.to_string()))?;
                ids.extend(tokens.into_iter().map(|token| token.id));
                unlooked += word.len();
                if unlooked < BYTES_PER_LOOK {
                    return bound.check_tokens(ids.len());
                }
                unlooked = 0;
                bound.check(ids.len())
            })?;
        }
        Ok(ids)
    }

    /// The highest id plus one. Some ids may be unused.
    pub fn vocab_size(&self) -> usize {
        self.0.table.len()
    }

    /// The bytes of a token in the middle of a text; for an added token, its text. `None` for an unused id.
    pub fn token_bytes(&self, id: u32) -> Option<Cow<'_, [u8]>> {
        self.0.table.get(id).map(Cow::Borrowed)
    }

    /// The text of an added token, special or not; `None` for any other id.
    pub fn special(&self, id: u32) -> Option<&str> {
        self.0.added.get(&id).map(|token| token.text.as_str())
    }

    /// Whether the id is an added token marked `special`, which `skip_special_tokens` omits from the text.
    pub fn is_control(&self, id: u32) -> bool {
        self.0.added.get(&id).is_some_and(|token| token.special)
    }

    /// The id of an added token.
    pub fn special_id(&self, text: &str) -> Option<u32> {
        self.0.added_ids.get(text).copied()
    }

    /// All added tokens with their ids, in arbitrary order.
    pub fn added_tokens(&self) -> impl Iterator<Item = (u32, &str)> {
        self.0.added.iter().map(|(id, token)| (*id, token.text.as_str()))
    }

    /// The bytes of a sequence, with added tokens as their text. Unused ids are skipped, as in Python.
    pub fn decode(&self, ids: &[u32]) -> Vec<u8> {
        let mut out = Vec::with_capacity(ids.len() * 4);
        let mut join = ByteJoiner::new(self.0.start);
        for &id in ids {
            match self.special(id) {
                Some(text) => {
                    join.push_added(&mut out);
                    out.extend_from_slice(text.as_bytes());
                }
                None => join.push(&self.0.table, id, &mut out),
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
