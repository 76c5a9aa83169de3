//! Limits the size of a text, the number of its tokens and the time of encoding it.

use std::time::Instant;

use serde_json::Value as Json;

use super::bytes::{Decoding, TokenTable};
use super::{MAX_TEXT_BYTES, TokenizeError};

/// A limit on bytes, tokens and time. The default has only the first.
#[derive(Debug, Clone, Copy)]
pub struct EncodeLimit {
    /// At most [`MAX_TEXT_BYTES`].
    pub bytes: usize,
    pub tokens: Option<usize>,
    pub until: Option<Instant>,
    /// Tokens of the prompt before this text; they count too.
    before: usize,
}

impl Default for EncodeLimit {
    fn default() -> Self {
        EncodeLimit { bytes: MAX_TEXT_BYTES, tokens: None, until: None, before: 0 }
    }
}

impl EncodeLimit {
    pub fn bytes(self, bytes: usize) -> Self {
        EncodeLimit { bytes: bytes.min(MAX_TEXT_BYTES), ..self }
    }

    pub fn until(until: impl Into<Instant>) -> Self {
        EncodeLimit { until: Some(until.into()), ..EncodeLimit::default() }
    }

    pub fn tokens(self, tokens: usize) -> Self {
        EncodeLimit { tokens: Some(tokens), ..self }
    }

    pub(super) fn is_none(&self) -> bool {
        self.tokens.is_none() && self.until.is_none()
    }

    /// The bound for a text that follows this many tokens.
    pub fn after(self, tokens: usize) -> Self {
        EncodeLimit { before: self.before + tokens, ..self }
    }

    /// Fails if a text with at least this many tokens exceeds the bound, or if the time is over.
    pub(super) fn check(&self, tokens: usize) -> Result<(), TokenizeError> {
        self.check_tokens(tokens)?;
        match self.until {
            Some(until) if Instant::now() >= until => Err(TokenizeError::Late),
            _ => Ok(()),
        }
    }

    /// Like [`Self::check`], without a look at the clock.
    pub(super) fn check_tokens(&self, tokens: usize) -> Result<(), TokenizeError> {
        let least = self.before + tokens;
        match self.tokens {
            Some(most) if least > most => Err(TokenizeError::TooMany { least, most }),
            _ => Ok(()),
        }
    }
}

/// The most bytes of text that one token can encode. `None` if there is no such limit: if normalizers or pre-tokenizers
/// drop text, if some bytes have no token, or if added tokens include the whitespace around them.
pub(super) fn max_bytes_per_token(
    tokenizer: &tokenizers::Tokenizer,
    table: &TokenTable,
    decoding: &Decoding,
) -> Option<usize> {
    let json = |part: Result<Json, serde_json::Error>| part.ok();
    let normalizer = json(serde_json::to_value(tokenizer.get_normalizer()))?;
    let pre_tokenizer = json(serde_json::to_value(tokenizer.get_pre_tokenizer()))?;
    let factor = max_shrink_factor(&normalizer)?;
    let strips = tokenizer.get_added_tokens_decoder().into_values().any(|token| token.lstrip || token.rstrip);
    let lossless = keeps_text(&pre_tokenizer) && !strips && table.has_all_bytes(decoding);
    lossless.then(|| table.longest().max(1) * factor)
}

/// The largest factor by which a normalizer can shorten a text.
fn max_shrink_factor(normalizer: &Json) -> Option<usize> {
    match normalizer["type"].as_str() {
        None if normalizer.is_null() => Some(1),
        // The letters of a Korean syllable shrink from nine bytes to three, the Kelvin sign from three bytes to one.
        Some("NFC" | "NFD") => Some(4),
        Some("Prepend") => Some(1),
        // A space becomes a character of at least one byte.
        Some("Replace") if normalizer["pattern"]["String"] == " " => {
            normalizer["content"].as_str().filter(|content| !content.is_empty()).map(|_| 1)
        }
        Some("Sequence") => normalizer["normalizers"].as_array()?.iter().map(max_shrink_factor).product(),
        _ => None,
    }
}

fn keeps_text(pre_tokenizer: &Json) -> bool {
    match pre_tokenizer["type"].as_str() {
        None => pre_tokenizer.is_null(),
        Some("ByteLevel" | "Digits" | "Metaspace" | "UnicodeScripts") => true,
        Some("Split") => pre_tokenizer["behavior"] != "Removed",
        Some("Sequence") => pre_tokenizer["pretokenizers"].as_array().is_some_and(|steps| steps.iter().all(keeps_text)),
        _ => false,
    }
}
