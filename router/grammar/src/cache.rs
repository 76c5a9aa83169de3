//! What was used last, up to a number of bytes.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// 128 bits that nobody outside can aim at.
pub(crate) type Key = [u64; 2];

pub(crate) struct Cache<T> {
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

    /// Keeps the value in the place of those that were not used for longest. A value of more than a quarter of all bytes
    /// is not kept: it would displace what others use.
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
mod tests {
    use super::*;

    #[test]
    fn bytes_bound_what_is_kept() {
        let cache = Cache::new(100);
        for i in 0..10 {
            cache.keep([i, 0], i, 20);
            assert_eq!(cache.get([0, 0]), Some(0), "what is used stays");
        }
        let kept: Vec<u64> = (0..10).filter(|i| cache.get([*i, 0]).is_some()).collect();
        assert_eq!(kept, [0, 6, 7, 8, 9]);
        cache.keep([99, 0], 99, 26);
        assert_eq!(cache.get([99, 0]), None, "what is too large displaces nothing");
        for bytes in [20, 20, 20, 20] {
            cache.keep([9, 0], 9, bytes);
        }
        assert_eq!(cache.get([6, 0]), Some(6), "a value that is kept again counts once");
    }
}
