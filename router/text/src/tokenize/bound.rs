//! How many tokens a text may have, and how long encoding it may take.

use std::time::Instant;

use serde_json::Value as Json;

use super::TokenizeError;
use super::bytes::{Decoding, Table};

/// What encoding a text may come to. The default is no bound.
#[derive(Debug, Clone, Copy, Default)]
pub struct Bound {
    pub tokens: Option<usize>,
    pub until: Option<Instant>,
    /// Tokens before this text.
    before: usize,
}

impl Bound {
    pub fn until(until: impl Into<Instant>) -> Self {
        Bound { until: Some(until.into()), ..Bound::default() }
    }

    pub fn tokens(self, tokens: usize) -> Self {
        Bound { tokens: Some(tokens), ..self }
    }

    pub(super) fn is_none(&self) -> bool {
        self.tokens.is_none() && self.until.is_none()
    }

    /// For the text that follows so many tokens.
    pub fn after(self, tokens: usize) -> Self {
        Bound { before: self.before + tokens, ..self }
    }

    /// Whether a text that has at least so many tokens may be encoded on.
    pub(super) fn check(&self, tokens: usize) -> Result<(), TokenizeError> {
        let least = self.before + tokens;
        match self.tokens {
            Some(most) if least > most => Err(TokenizeError::TooMany { least, most }),
            _ if self.until.is_some_and(|until| Instant::now() >= until) => Err(TokenizeError::Late),
            _ => Ok(()),
        }
    }
}

/// Bytes of text of which there is at least one token. None where a token may stand for any number of bytes, or none
/// for some: behind normalizers and pre-tokenizers that drop text, with an unknown token, or with tokens that take the
/// blanks around them.
pub(super) fn longest(tokenizer: &tokenizers::Tokenizer, table: &Table, decoding: &Decoding) -> Option<usize> {
    let json = |part: Result<Json, serde_json::Error>| part.ok();
    let normalizer = json(serde_json::to_value(tokenizer.get_normalizer()))?;
    let pre_tokenizer = json(serde_json::to_value(tokenizer.get_pre_tokenizer()))?;
    let shrinks = shrinks(&normalizer)?;
    let strips = tokenizer.get_added_tokens_decoder().into_values().any(|token| token.lstrip || token.rstrip);
    let lossless = keeps_text(&pre_tokenizer) && !strips && table.has_all_bytes(decoding);
    lossless.then(|| table.longest().max(1) * shrinks)
}

/// By how much a normalizer can shorten a text at most.
fn shrinks(normalizer: &Json) -> Option<usize> {
    match normalizer["type"].as_str() {
        None if normalizer.is_null() => Some(1),
        // Nine bytes of a Korean syllable's letters become three, and so do the three of the Kelvin sign one.
        Some("NFC" | "NFD") => Some(4),
        Some("Prepend") => Some(1),
        // Blanks become a longer character.
        Some("Replace") if normalizer["pattern"]["String"] == " " => {
            normalizer["content"].as_str().filter(|content| !content.is_empty()).map(|_| 1)
        }
        Some("Sequence") => normalizer["normalizers"].as_array()?.iter().map(shrinks).product(),
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
