//! Remembers the token ids of prompts by prefix, so that a conversation's next turn encodes only what is new. It knows
//! no tokenizer.
//!
//! The cache is a tree. A node is one part of a prompt, and its parent is the part before it, so a part is found only
//! behind exactly the prompt under which it was stored. Requests can therefore learn from response times no more than
//! a prefix cache of KV blocks shows: whether a whole prefix is known. Prompts with different salts share no nodes.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Approximate memory of a node besides its text and ids: its fields, its entry in the map, and allocations.
const NODE_BYTES: usize = 192;
/// A part of more than this fraction of the limit is not stored, because it would displace too many others.
const LARGEST_FRACTION: usize = 8;

/// The token ids of parts of prompts, bounded in bytes.
#[derive(Debug)]
pub struct PromptCache {
    most: usize,
    hasher: RandomState,
    inner: Mutex<Generations>,
    hit_bytes: AtomicU64,
    missed_bytes: AtomicU64,
}

/// Counters of a [`PromptCache`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PromptCacheStats {
    /// Memory in use, bytes.
    pub bytes: usize,
    /// Bytes of prompts whose tokens were found.
    pub hit_bytes: u64,
    /// Bytes of prompts that were encoded.
    pub missed_bytes: u64,
}

/// The place behind a part of a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place(u64);

impl Place {
    /// Before a prompt without a salt.
    const START: Place = Place(0);
    /// The parent of all salts.
    const SALTS: Place = Place(1);
    const FIRST_FREE: u64 = 2;
}

#[derive(Debug)]
pub(super) struct Node {
    parent: Place,
    text: Box<str>,
    pub ids: Box<[u32]>,
    /// Never reused: after a node is gone, its children cannot be found.
    pub behind: Place,
}

impl Node {
    fn bytes(&self) -> usize {
        NODE_BYTES + self.text.len() + size_of_val(&*self.ids)
    }
}

/// Nodes in two generations: a used node moves to the young one. When the young one has half of all bytes, it becomes
/// the old one, and the old one is dropped.
#[derive(Debug)]
struct Generations {
    young: HashMap<u64, Arc<Node>>,
    old: HashMap<u64, Arc<Node>>,
    young_bytes: usize,
    old_bytes: usize,
    next: u64,
}

impl PromptCache {
    pub fn new(most: usize) -> Self {
        let (young, old) = (HashMap::new(), HashMap::new());
        PromptCache {
            most,
            hasher: RandomState::new(),
            inner: Mutex::new(Generations { young, old, young_bytes: 0, old_bytes: 0, next: Place::FIRST_FREE }),
            hit_bytes: AtomicU64::new(0),
            missed_bytes: AtomicU64::new(0),
        }
    }

    pub fn stats(&self) -> PromptCacheStats {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        PromptCacheStats {
            bytes: inner.young_bytes + inner.old_bytes,
            hit_bytes: self.hit_bytes.load(Ordering::Relaxed),
            missed_bytes: self.missed_bytes.load(Ordering::Relaxed),
        }
    }

    /// The place before the prompts with this salt. `None`: they cannot be stored.
    pub(super) fn start(&self, salt: &str) -> Option<Place> {
        if salt.is_empty() {
            return Some(Place::START);
        }
        let found = self.find(Place::SALTS, salt).map(|node| node.behind);
        found.or_else(|| self.store(Place::SALTS, salt, &[]))
    }

    /// The node of the part `text` at this place.
    pub(super) fn find(&self, parent: Place, text: &str) -> Option<Arc<Node>> {
        let key = self.key(parent, text);
        let matches = |node: &&Arc<Node>| node.parent == parent && *node.text == *text;
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(node) = inner.young.get(&key).cloned() {
            drop(inner);
            return Some(node).filter(|node| matches(&node));
        }
        let node = inner.old.remove(&key)?;
        inner.old_bytes -= node.bytes();
        let dropped = inner.insert(key, node.clone(), self.most);
        drop(inner);
        drop(dropped);
        Some(node).filter(|node| matches(&node))
    }

    /// Stores a part. Returns the place behind it; `None` if it is too large.
    pub(super) fn store(&self, parent: Place, text: &str, ids: &[u32]) -> Option<Place> {
        let key = self.key(parent, text);
        let mut node = Node { parent, text: text.into(), ids: ids.into(), behind: parent };
        if node.bytes() > self.most / LARGEST_FRACTION {
            return None;
        }
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        // Another request may have stored it meanwhile, and may have stored parts behind it.
        if let Some(known) = inner.young.get(&key).filter(|node| node.parent == parent && *node.text == *text) {
            return Some(known.behind);
        }
        node.behind = Place(inner.next);
        inner.next += 1;
        let behind = node.behind;
        let dropped = inner.insert(key, Arc::new(node), self.most);
        drop(inner);
        drop(dropped);
        Some(behind)
    }

    pub(super) fn count(&self, hit_bytes: usize, missed_bytes: usize) {
        self.hit_bytes.fetch_add(hit_bytes as u64, Ordering::Relaxed);
        self.missed_bytes.fetch_add(missed_bytes as u64, Ordering::Relaxed);
    }

    fn key(&self, parent: Place, text: &str) -> u64 {
        self.hasher.hash_one((parent.0, text))
    }
}

impl Generations {
    /// Inserts a young node. Returns what it displaced, which the caller drops without the lock.
    fn insert(&mut self, key: u64, node: Arc<Node>, most: usize) -> (Option<Arc<Node>>, HashMap<u64, Arc<Node>>) {
        let mut dropped = HashMap::new();
        if self.young_bytes + node.bytes() > most / 2 {
            dropped = std::mem::replace(&mut self.old, std::mem::take(&mut self.young));
            self.old_bytes = std::mem::take(&mut self.young_bytes);
        }
        self.young_bytes += node.bytes();
        let replaced = self.young.insert(key, node);
        self.young_bytes -= replaced.as_ref().map_or(0, |node| node.bytes());
        (replaced, dropped)
    }
}

#[cfg(test)]
mod tests;
