//! The state of one request's grammar.

use std::sync::Arc;

use llguidance::api::StopReason;
use llguidance::toktrie::TokTrie;

use crate::limits::MAX_FORCED_TOKENS;
use crate::vocab::Vocab;

/// The end of one request; no other request is affected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MatcherError {
    #[error("the output needs more grammar states than are allowed: {0}")]
    Limit(String),
    #[error("the grammar failed: {0}")]
    Internal(String),
}

/// Decides token by token what may come next. Clones are independent.
pub struct Matcher {
    inner: llguidance::Matcher,
    vocab: Arc<Vocab>,
    /// A stop token was taken.
    ended: bool,
}

impl Clone for Matcher {
    fn clone(&self) -> Self {
        // Shared lexer states would let one request's failure end another.
        Self { inner: self.inner.deep_clone(), vocab: self.vocab.clone(), ended: self.ended }
    }
}

impl std::fmt::Debug for Matcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Matcher").field("stopped", &self.is_stopped()).finish_non_exhaustive()
    }
}

impl Matcher {
    pub(crate) fn new(inner: llguidance::Matcher, vocab: Arc<Vocab>) -> Self {
        Self { inner, vocab, ended: false }
    }

    /// Takes the token if the grammar allows it; otherwise the state is as before.
    pub fn accept(&mut self, id: u32) -> Result<bool, MatcherError> {
        if self.ended || id as usize >= self.vocab.size() {
            return Ok(false);
        }
        let stop = self.vocab.is_stop(id);
        if self.at_end() {
            self.ended = stop;
            return Ok(stop);
        }
        let taken = self.inner.try_consume_tokens(&[id]).map_err(|e| self.error(&e))? == 1;
        // A token of the grammar may be a stop token elsewhere.
        self.ended = taken && stop && self.inner.stop_reason() == StopReason::EndOfSentence;
        Ok(taken)
    }

    /// The tokens that may come next, one bit per id, lowest bit first: `ceil(size / 8)` bytes.
    pub fn mask(&mut self) -> Result<Vec<u8>, MatcherError> {
        let bytes = self.vocab.size().div_ceil(8);
        let mut mask = vec![0_u8; bytes];
        if self.ended {
            return Ok(mask);
        }
        if self.at_end() {
            set(&mut mask, self.vocab.stops());
            return Ok(mask);
        }
        if let Some(id) = self.forced_special() {
            set(&mut mask, &[id]);
            return Ok(mask);
        }
        let allowed = self.inner.compute_mask().map_err(|e| self.error(&e))?;
        let words = allowed.as_slice().iter().flat_map(|w| w.to_le_bytes());
        mask.iter_mut().zip(words).for_each(|(to, from)| *to = from);
        let used = self.vocab.size() % 8;
        if let Some(last) = mask.last_mut().filter(|_| used != 0) {
            *last &= (1 << used) - 1;
        }
        Ok(mask)
    }

    /// Tokens that must come next, as the tokenizer itself would write them; often none. They still have to be accepted.
    pub fn forced(&mut self) -> Vec<u32> {
        if self.ended || !self.vocab.canonical() || self.at_end() {
            return Vec::new();
        }
        let bytes = self.inner.compute_ff_bytes();
        if bytes.is_empty() {
            return Vec::new();
        }
        let mut ids = self.inner.compute_ff_tokens();
        ids.truncate(MAX_FORCED_TOKENS);
        // A tokenizer may add to a text, such as a blank before it.
        if bytes.starts_with(&self.vocab.trie().decode_raw(&ids)) { ids } else { Vec::new() }
    }

    /// Whether the turn may end here.
    pub fn may_stop(&mut self) -> bool {
        self.ended || self.at_end() || self.inner.is_accepting().unwrap_or(false)
    }

    /// Nothing but a stop token can follow, or one has come.
    pub fn is_stopped(&self) -> bool {
        self.ended || self.at_end()
    }

    fn at_end(&self) -> bool {
        matches!(self.inner.stop_reason(), StopReason::NoExtension | StopReason::NoExtensionBias)
    }

    /// Bytes that are forced already and stand for a special token, which is one id however its bytes look.
    fn forced_special(&mut self) -> Option<u32> {
        let bytes = self.inner.compute_ff_bytes();
        let rest = bytes.strip_prefix(&[TokTrie::SPECIAL_TOKEN_MARKER, b'['])?;
        let digits = rest.split(|b| *b == b']').next()?;
        std::str::from_utf8(digits).ok()?.parse().ok()
    }

    fn error(&self, e: &dyn std::fmt::Display) -> MatcherError {
        let text = e.to_string();
        let line = text.lines().next().unwrap_or_default().to_owned();
        match self.inner.stop_reason() {
            StopReason::LexerTooComplex | StopReason::ParserTooComplex => MatcherError::Limit(line),
            _ if line.contains("Too many items") || line.contains("too complex") => MatcherError::Limit(line),
            _ => MatcherError::Internal(line),
        }
    }
}

fn set(mask: &mut [u8], ids: &[u32]) {
    for id in ids {
        if let Some(byte) = mask.get_mut(*id as usize / 8) {
            *byte |= 1 << (id % 8);
        }
    }
}
