//! Which tokens a position may draw: a mask of engine.proto with a vocabulary. It does not know engines.

use bytes::Bytes;

/// A mask over a vocabulary. Bits beyond the vocabulary do not count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllowedTokens {
    bits: Vec<u8>,
    vocab_size: usize,
}

impl AllowedTokens {
    /// `mask` has one bit per id, little endian within each byte; its length has been checked.
    pub fn new(mask: &Bytes, vocab_size: usize) -> Self {
        let mut bits = mask.to_vec();
        bits.resize(vocab_size.div_ceil(8), 0);
        if let (used @ 1.., Some(last)) = (vocab_size % 8, bits.last_mut()) {
            *last &= (1 << used) - 1;
        }
        AllowedTokens { bits, vocab_size }
    }

    pub fn contains(&self, id: u32) -> bool {
        self.bits.get(id as usize / 8).is_some_and(|byte| byte >> (id % 8) & 1 == 1)
    }

    pub fn count(&self) -> usize {
        self.bits.iter().map(|byte| byte.count_ones() as usize).sum()
    }

    pub fn ids(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.vocab_size as u32).filter(|&id| self.contains(id))
    }

    /// The ids that may not be drawn.
    pub fn excluded(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.vocab_size as u32).filter(|&id| !self.contains(id))
    }

    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// Without these ids, unless no other id is left: a grammar that can only end takes precedence over `min_tokens`.
    pub fn without(mut self, ids: &[u32]) -> Self {
        let before = self.bits.clone();
        for &id in ids {
            if let Some(byte) = self.bits.get_mut(id as usize / 8) {
                *byte &= !(1 << (id % 8));
            }
        }
        if self.count() == 0 {
            self.bits = before;
        }
        self
    }
}

#[cfg(test)]
mod tests;
