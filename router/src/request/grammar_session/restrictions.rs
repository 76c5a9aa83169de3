//! Tokens that a request excludes, independent of its grammar.

use std::sync::Arc;

/// `allowed_token_ids` and `bad_words` of a request. Clones share everything.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Restrictions {
    /// One bit per id, lowest bit first. None: all are allowed.
    allowed: Option<Arc<[u8]>>,
    /// The last token of each word is refused if the other tokens have just been generated.
    words: Arc<[Vec<u32>]>,
}

impl Restrictions {
    /// Without `allowed` ids, all ids are allowed. An empty word refuses nothing.
    pub fn new(allowed: &[u32], words: Vec<Vec<u32>>, vocab: usize) -> Self {
        let mut mask = vec![0_u8; vocab.div_ceil(8)];
        for &id in allowed {
            if let Some(byte) = mask.get_mut(id as usize / 8) {
                *byte |= 1 << (id % 8);
            }
        }
        let words = words.into_iter().filter(|word| !word.is_empty()).collect();
        Restrictions { allowed: (!allowed.is_empty()).then(|| mask.into()), words }
    }

    pub fn is_empty(&self) -> bool {
        self.allowed.is_none() && self.words.is_empty()
    }

    /// Whether most draws would be refused, so that a mask at every step is cheaper.
    pub fn has_allow_list(&self) -> bool {
        self.allowed.is_some()
    }

    /// How many of the latest generated tokens the restrictions depend on.
    pub fn lookback(&self) -> usize {
        self.words.iter().map(|word| word.len() - 1).max().unwrap_or(0)
    }

    pub fn refuses(&self, generated: &[u32], id: u32) -> bool {
        let outside = self.allowed.as_ref().is_some_and(|mask| !is_set(mask, id));
        outside || self.refused_ids(generated).any(|refused| refused == id)
    }

    /// The last tokens of the words whose other tokens have just been generated.
    fn refused_ids<'a>(&'a self, generated: &'a [u32]) -> impl Iterator<Item = u32> + 'a {
        self.words.iter().filter_map(|word| {
            let (&last, before) = word.split_last()?;
            generated.ends_with(before).then_some(last)
        })
    }

    /// Removes refused tokens from a mask.
    pub fn apply(&self, generated: &[u32], mask: &mut [u8]) {
        if let Some(allowed) = &self.allowed {
            mask.iter_mut().zip(allowed.iter()).for_each(|(to, allowed)| *to &= allowed);
        }
        for id in self.refused_ids(generated) {
            if let Some(byte) = mask.get_mut(id as usize / 8) {
                *byte &= !(1 << (id % 8));
            }
        }
    }
}

fn is_set(mask: &[u8], id: u32) -> bool {
    mask.get(id as usize / 8).is_some_and(|byte| byte >> (id % 8) & 1 == 1)
}

#[cfg(test)]
mod tests;
