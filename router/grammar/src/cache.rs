//! A least-recently-used cache, limited in bytes. It does not know what it holds.

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
    inner: Mutex<Inner<T>>,
}

struct Entry<T> {
    value: T,
    bytes: usize,
    used: u64,
}

struct Inner<T> {
    entries: HashMap<Key, Entry<T>>,
    bytes: usize,
    clock: u64,
}

impl<T: Clone> Cache<T> {
    pub fn new(most: usize) -> Self {
        Self { most, inner: Mutex::new(Inner { entries: HashMap::new(), bytes: 0, clock: 0 }) }
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
        while inner.bytes > self.most
            && let Some(oldest) = inner.entries.iter().min_by_key(|(_, entry)| entry.used).map(|(key, _)| *key)
            && let Some(entry) = inner.entries.remove(&oldest)
        {
            inner.bytes -= entry.bytes;
        }
    }
}

#[cfg(test)]
mod tests;
