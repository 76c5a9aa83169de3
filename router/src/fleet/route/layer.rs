//! Which engines hold a content, for a bounded number of contents.

use std::collections::HashMap;
use std::time::Duration;

/// A set of engines by their slots in the index. Most contents are held by one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Slots {
    One(u32),
    /// A bit per slot.
    Many(Box<[u64]>),
}

fn place(slot: u32) -> (usize, u64) {
    (slot as usize / 64, 1 << (slot % 64))
}

/// Sets a bit in a set that grows as it must.
pub(super) fn set(words: &mut Vec<u64>, slot: u32) {
    let (word, bit) = place(slot);
    if words.len() <= word {
        words.resize(word + 1, 0);
    }
    words[word] |= bit;
}

impl Slots {
    fn insert(&mut self, slot: u32) {
        if *self == Slots::One(slot) {
            return;
        }
        let (word, bit) = place(slot);
        if let Slots::Many(words) = self
            && let Some(word) = words.get_mut(word)
        {
            *word |= bit;
            return;
        }
        let mut words = Vec::new();
        self.add_to(&mut words);
        set(&mut words, slot);
        *self = Slots::Many(words.into());
    }

    /// True if none is left.
    fn remove(&mut self, slots: &[u64]) -> bool {
        match self {
            Slots::One(slot) => {
                let (word, bit) = place(*slot);
                slots.get(word).is_some_and(|word| word & bit != 0)
            }
            Slots::Many(words) => {
                words.iter_mut().zip(slots).for_each(|(word, gone)| *word &= !gone);
                words.iter().all(|word| *word == 0)
            }
        }
    }

    pub fn add_to(&self, words: &mut Vec<u64>) {
        match self {
            Slots::One(slot) => set(words, *slot),
            Slots::Many(more) => {
                if words.len() < more.len() {
                    words.resize(more.len(), 0);
                }
                words.iter_mut().zip(more).for_each(|(word, more)| *word |= more);
            }
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Slots::One(_) => ENTRY_BYTES,
            Slots::Many(words) => ENTRY_BYTES + words.len() * 8 + ALLOCATION_BYTES,
        }
    }
}

/// An entry of a hash map that is between half and fully grown.
const ENTRY_BYTES: usize = 48;
const ALLOCATION_BYTES: usize = 16;

#[derive(Debug, Default)]
struct Generation {
    entries: HashMap<u64, Slots>,
    bytes: usize,
}

impl Generation {
    fn take(&mut self, hash: u64) -> Option<Slots> {
        let slots = self.entries.remove(&hash)?;
        self.bytes -= slots.bytes();
        Some(slots)
    }

    fn put(&mut self, hash: u64, slots: Slots) {
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

/// Two generations: what is entered or found is young, and when the young have used up their room, or time, they become
/// the old ones and those before them are forgotten. So the memory is bounded, and what is forgotten was not looked at
/// for long.
#[derive(Debug, Default)]
pub(super) struct Layer {
    young: Generation,
    old: Generation,
    /// Bytes of one generation.
    room: usize,
    turned: Duration,
}

impl Layer {
    /// At least one entry has room.
    pub fn new(bytes: usize) -> Self {
        Layer { room: bytes / 2, ..Layer::default() }
    }

    fn turn(&mut self) {
        self.old = std::mem::take(&mut self.young);
    }

    /// Forget what was entered more than two of these times ago, and nothing of the last.
    pub fn age(&mut self, time: Duration, now: Duration) {
        let since = now.saturating_sub(self.turned);
        if since < time {
            return;
        }
        if since >= time * 2 {
            self.turn();
        }
        self.turn();
        self.turned = now;
    }

    pub fn insert(&mut self, hash: u64, slot: u32) {
        let held = self.young.take(hash).or_else(|| self.old.take(hash));
        let mut slots = held.unwrap_or(Slots::One(slot));
        slots.insert(slot);
        if !self.young.entries.is_empty() && self.young.bytes + slots.bytes() > self.room {
            self.turn();
        }
        self.young.put(hash, slots);
    }

    pub fn remove(&mut self, hash: u64, slots: &[u64]) {
        self.young.remove(hash, slots);
        self.old.remove(hash, slots);
    }

    /// Adds who holds this to `words`.
    pub fn find(&self, hash: u64, words: &mut Vec<u64>) {
        for generation in [&self.young, &self.old] {
            if let Some(slots) = generation.entries.get(&hash) {
                slots.add_to(words);
            }
        }
    }

    /// The same, and it was of use now.
    pub fn touch(&mut self, hash: u64, words: &mut Vec<u64>) {
        if !self.old.entries.is_empty()
            && let Some(slots) = self.old.take(hash)
        {
            if self.young.bytes + slots.bytes() > self.room {
                self.turn();
            }
            self.young.put(hash, slots);
        }
        self.find(hash, words);
    }

    /// These slots hold nothing any more.
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
