//! Remembers what was made of the text of a field, for clients that send the same text in every request. It does not
//! know what that is.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use rein_grammar::Cache;
use xxhash_rust::xxh3::xxh3_128_with_seed;

use super::Fields;
use crate::InvalidRequest;

/// Bytes of a text below which nothing is remembered: it is made again as fast.
const LEAST_BYTES: usize = 1 << 10;
/// Approximate memory of what is made of a field, per byte of its values and of its text.
const COPIES: usize = 3;

/// What was made of the texts of one field, bounded in bytes.
pub struct SharedField<T> {
    known: Cache<Arc<Known<T>>>,
    /// Clients cannot choose texts with equal hashes.
    seed: u64,
}

struct Known<T> {
    text: Box<str>,
    /// Memory of the field's values, which every request is charged.
    bytes: usize,
    made: T,
}

impl<T: Clone> SharedField<T> {
    pub fn new(most: usize) -> Self {
        SharedField { known: Cache::new(most), seed: RandomState::new().hash_one(most) }
    }

    /// What `make` returns for this field. It must depend on nothing else, and must read nothing else.
    pub fn read<E: From<InvalidRequest>>(
        &self,
        fields: &mut Fields,
        name: &'static str,
        make: impl FnOnce(&mut Fields) -> Result<T, E>,
    ) -> Result<T, E> {
        let Some(text) = fields.text(name).filter(|text| text.len() >= LEAST_BYTES) else { return make(fields) };
        let hash = xxh3_128_with_seed(text.as_bytes(), self.seed);
        let key = [hash as u64, (hash >> 64) as u64];
        if let Some(known) = self.known.get(key).filter(|known| *known.text == *text) {
            fields.skip(name, known.bytes)?;
            return Ok(known.made.clone());
        }
        let before = fields.value_bytes();
        let made = make(fields)?;
        if fields.is_valid() {
            let bytes = fields.value_bytes() - before;
            let known = Known { text: text.into(), bytes, made: made.clone() };
            self.known.keep(key, Arc::new(known), COPIES * (bytes + text.len()));
        }
        Ok(made)
    }
}

#[cfg(test)]
mod tests;
