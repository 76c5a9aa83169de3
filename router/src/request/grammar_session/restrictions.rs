//! Which tokens a request refuses, whatever its grammar says.

use std::sync::Arc;

/// Clones share everything.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Restrictions {
    /// One bit per id, lowest bit first. None: all are allowed.
    allowed: Option<Arc<[u8]>>,
    /// Of each sequence, the last token is refused where the others have just been generated.
    words: Arc<[Vec<u32>]>,
}

impl Restrictions {
    /// No `allowed` ids: all are. Empty `words` refuse nothing.
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

    /// Most draws would be refused: a mask at every step is cheaper.
    pub fn are_narrow(&self) -> bool {
        self.allowed.is_some()
    }

    /// How many generated tokens count.
    pub fn looks_back(&self) -> usize {
        self.words.iter().map(|word| word.len() - 1).max().unwrap_or(0)
    }

    pub fn refuse(&self, generated: &[u32], id: u32) -> bool {
        let outside = self.allowed.as_ref().is_some_and(|mask| !bit(mask, id));
        outside || self.refused(generated).any(|refused| refused == id)
    }

    /// The last tokens of the words whose other tokens have just been generated.
    fn refused<'a>(&'a self, generated: &'a [u32]) -> impl Iterator<Item = u32> + 'a {
        self.words.iter().filter_map(|word| {
            let (&last, before) = word.split_last()?;
            generated.ends_with(before).then_some(last)
        })
    }

    /// Takes from a mask what is refused here.
    pub fn narrow(&self, generated: &[u32], mask: &mut [u8]) {
        if let Some(allowed) = &self.allowed {
            mask.iter_mut().zip(allowed.iter()).for_each(|(to, allowed)| *to &= allowed);
        }
        for id in self.refused(generated) {
            if let Some(byte) = mask.get_mut(id as usize / 8) {
                *byte &= !(1 << (id % 8));
            }
        }
    }
}

fn bit(mask: &[u8], id: u32) -> bool {
    mask.get(id as usize / 8).is_some_and(|byte| byte >> (id % 8) & 1 == 1)
}

#[cfg(test)]
mod tests;
