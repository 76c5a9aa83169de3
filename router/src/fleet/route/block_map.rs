//! A bounded map from a block's content hash to the engines that have the block.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher};
use std::sync::LazyLock;
use std::time::Duration;

use rein_proto::splitmix::mix;

/// A set of engines, by their slots in the index. Most blocks are on one engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum BlockHolders {
    One(u32),
    /// A bit per slot.
    Many(Box<[u64]>),
}

fn word_and_bit(slot: u32) -> (usize, u64) {
    (slot as usize / 64, 1 << (slot % 64))
}

/// Sets a bit, and extends the set if necessary.
pub(super) fn set(words: &mut Vec<u64>, slot: u32) {
    let (word, bit) = word_and_bit(slot);
    if words.len() <= word {
        words.resize(word + 1, 0);
    }
    words[word] |= bit;
}

impl BlockHolders {
    fn insert(&mut self, slot: u32) {
        if *self == BlockHolders::One(slot) {
            return;
        }
        let (word, bit) = word_and_bit(slot);
        if let BlockHolders::Many(words) = self
            && let Some(word) = words.get_mut(word)
        {
            *word |= bit;
            return;
        }
        let mut words = Vec::new();
        self.add_to(&mut words);
        set(&mut words, slot);
        *self = BlockHolders::Many(words.into());
    }

    /// Removes slots. True: the set is empty.
    fn remove(&mut self, slots: &[u64]) -> bool {
        match self {
            BlockHolders::One(slot) => {
                let (word, bit) = word_and_bit(*slot);
                slots.get(word).is_some_and(|word| word & bit != 0)
            }
            BlockHolders::Many(words) => {
                words.iter_mut().zip(slots).for_each(|(word, gone)| *word &= !gone);
                words.iter().all(|word| *word == 0)
            }
        }
    }

    pub fn add_to(&self, words: &mut Vec<u64>) {
        match self {
            BlockHolders::One(slot) => set(words, *slot),
            BlockHolders::Many(more) => {
                if words.len() < more.len() {
                    words.resize(more.len(), 0);
                }
                words.iter_mut().zip(more).for_each(|(word, more)| *word |= more);
            }
        }
    }

    fn bytes(&self) -> usize {
        match self {
            BlockHolders::One(_) => ENTRY_BYTES,
            BlockHolders::Many(words) => ENTRY_BYTES + words.len() * 8 + ALLOCATION_BYTES,
        }
    }
}

/// Bytes of an entry of a hash map, averaged over its load.
const ENTRY_BYTES: usize = 48;
const ALLOCATION_BYTES: usize = 16;

/// Content hashes are spread evenly, but clients can choose them, so a number that no client knows is mixed in.
#[derive(Debug, Clone, Copy, Default)]
struct SeededHash;

struct SeededHasher(u64);

impl BuildHasher for SeededHash {
    type Hasher = SeededHasher;

    fn build_hasher(&self) -> SeededHasher {
        static SEED: LazyLock<u64> = LazyLock::new(rand::random);
        SeededHasher(*SEED)
    }
}

impl Hasher for SeededHasher {
    fn write_u64(&mut self, number: u64) {
        self.0 = mix(self.0 ^ number);
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[derive(Debug, Default)]
struct Generation {
    entries: HashMap<u64, BlockHolders, SeededHash>,
    bytes: usize,
}

impl Generation {
    fn take(&mut self, hash: u64) -> Option<BlockHolders> {
        let slots = self.entries.remove(&hash)?;
        self.bytes -= slots.bytes();
        Some(slots)
    }

    fn put(&mut self, hash: u64, slots: BlockHolders) {
        self.bytes += slots.bytes();
        self.entries.insert(hash, slots);
    }

    fn remove(&mut self, hash: u64, slots: &[u64]) {
        if let Some(mut held) = self.take(hash)
            && !held.remove(slots)
        {
            self.put(hash, held);
        }
    }

    fn forget(&mut self, slots: &[u64]) {
        let mut freed = 0;
        self.entries.retain(|_, held| {
            let gone = held.remove(slots);
            freed += if gone { held.bytes() } else { 0 };
            !gone
        });
        self.bytes -= freed;
    }
}

/// A map in two generations. Entries that are inserted or used are in the young one. When that is full, or after a
/// time, it becomes the old one, and the previous old one is dropped. This bounds the memory, and drops the entries
/// that were not used for the longest time.
#[derive(Debug, Default)]
pub(super) struct GenerationalBlockMap {
    young: Generation,
    old: Generation,
    /// Most bytes of one generation.
    room: usize,
    advanced: Duration,
}

impl GenerationalBlockMap {
    /// A layer of at most `bytes` bytes, but at least one entry.
    pub fn new(bytes: usize) -> Self {
        GenerationalBlockMap { room: bytes / 2, ..GenerationalBlockMap::default() }
    }

    fn advance(&mut self) {
        self.old = std::mem::take(&mut self.young);
    }

    /// Drops entries that are older than two of these times. Keeps those that are younger than one.
    pub fn expire(&mut self, time: Duration, now: Duration) {
        let since = now.saturating_sub(self.advanced);
        if since < time {
            return;
        }
        if since >= time * 2 {
            self.advance();
        }
        self.advance();
        self.advanced = now;
    }

    pub fn insert(&mut self, hash: u64, slot: u32) {
        if let Some(BlockHolders::One(held)) = self.young.entries.get(&hash)
            && *held == slot
        {
            return;
        }
        let held = self.young.take(hash).or_else(|| self.old.take(hash));
        let mut slots = held.unwrap_or(BlockHolders::One(slot));
        slots.insert(slot);
        if !self.young.entries.is_empty() && self.young.bytes + slots.bytes() > self.room {
            self.advance();
        }
        self.young.put(hash, slots);
    }

    pub fn remove(&mut self, hash: u64, slots: &[u64]) {
        self.young.remove(hash, slots);
        self.old.remove(hash, slots);
    }

    /// Adds the engines that have this block to `words`.
    pub fn find(&self, hash: u64, words: &mut Vec<u64>) {
        for generation in [&self.young, &self.old] {
            if let Some(slots) = generation.entries.get(&hash) {
                slots.add_to(words);
            }
        }
    }

    /// The same, and moves the entry to the young generation.
    pub fn touch(&mut self, hash: u64, words: &mut Vec<u64>) {
        if !self.old.entries.is_empty()
            && let Some(slots) = self.old.take(hash)
        {
            if self.young.bytes + slots.bytes() > self.room {
                self.advance();
            }
            self.young.put(hash, slots);
        }
        self.find(hash, words);
    }

    /// Removes these slots from all entries.
    pub fn forget(&mut self, slots: &[u64]) {
        self.young.forget(slots);
        self.old.forget(slots);
    }

    pub fn entries(&self) -> usize {
        self.young.entries.len() + self.old.entries.len()
    }

    pub fn bytes(&self) -> usize {
        self.young.bytes + self.old.bytes
    }
}
