//! A least-recently-used cache, limited in bytes. It does not know what it holds, but how large it is.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{LazyLock, Mutex, PoisonError};

/// 128 bits that clients cannot predict.
pub type Key = [u64; 2];

static HASHERS: LazyLock<[RandomState; 2]> = LazyLock::new(|| [RandomState::new(), RandomState::new()]);

pub(crate) fn key_of(text: &[u8]) -> Key {
    HASHERS.each_ref().map(|state| state.hash_one(text))
}

pub struct Cache<T> {
    most: usize,
    /// Bytes by which a value has grown since it was stored.
    growth: Option<fn(&T) -> usize>,
    inner: Mutex<Inner<T>>,
}

struct Entry<T> {
    value: T,
    /// When it was stored.
    bytes: usize,
    used: u64,
}

struct Inner<T> {
    entries: HashMap<Key, Entry<T>>,
    /// When they were stored.
    bytes: usize,
    clock: u64,
}

impl<T: Clone> Cache<T> {
    pub fn new(most: usize) -> Self {
        Self { most, growth: None, inner: Mutex::new(Inner { entries: HashMap::new(), bytes: 0, clock: 0 }) }
    }

    /// For values that grow.
    pub fn of_growing(most: usize, growth: fn(&T) -> usize) -> Self {
        Self { growth: Some(growth), ..Self::new(most) }
    }

    pub fn get(&self, key: Key) -> Option<T> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.clock += 1;
        let now = inner.clock;
        let entry = inner.entries.get_mut(&key)?;
        entry.used = now;
        Some(entry.value.clone())
    }

    /// Stores the value, evicting the least recently used ones. A value of more than a quarter of all bytes is not
    /// stored, because it would displace too many others.
    pub fn keep(&self, key: Key, value: T, bytes: usize) {
        if bytes > self.most / 4 {
            return;
        }
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.clock += 1;
        let used = inner.clock;
        inner.bytes += bytes;
        if let Some(before) = inner.entries.insert(key, Entry { value, bytes, used }) {
            inner.bytes -= before.bytes;
        }
        let growth = |value: &T| self.growth.map_or(0, |growth| growth(value));
        let mut grown: usize = match self.growth {
            Some(growth) => inner.entries.values().map(|entry| growth(&entry.value)).sum(),
            None => 0,
        };
        while inner.bytes + grown > self.most
            && let Some(oldest) = inner.entries.iter().min_by_key(|(_, entry)| entry.used).map(|(key, _)| *key)
            && let Some(entry) = inner.entries.remove(&oldest)
        {
            inner.bytes -= entry.bytes;
            // It may have grown more since.
            grown = grown.saturating_sub(growth(&entry.value));
        }
    }
}

#[cfg(test)]
mod tests;
