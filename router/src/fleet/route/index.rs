//! An index of the prefix caches of all engines: a map from a block's content hash to the engines that have the block.
//!
//! The map has shards, so that no lookup waits long for a lock. It has two layers: blocks that engines have reported,
//! bounded by bytes, and blocks that are expected there because a sequence was sent, bounded by time. An engine that
//! resets its cache gets a new slot, which has a bit for its cache and one for its host tier. The entries of unused
//! slots are removed in sweeps over many slots.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rein_proto::block_hash;
use rein_proto::internal::{EngineEvents, EngineLoad};

use super::PromptHashes;
use super::block_map::{GenerationalBlockMap, set};
use crate::limits;

const SHARDS: usize = 256;
/// The layer of expected blocks gets one part in this many of the bytes.
const EXPECTED_PART: usize = 8;
/// The bits of caches; the next higher ones are those of host tiers.
const CACHES: u64 = 0x5555_5555_5555_5555;
/// A token in a host tier counts as much as this part of one in the cache: it is copied back.
const HOST_WORTH: (u32, u32) = (7, 8);
/// The slot of an engine that got none because the index is full. It has no entries.
const NO_SLOT: u32 = u32::MAX;

#[derive(Debug)]
struct Shard {
    held: GenerationalBlockMap,
    expected: GenerationalBlockMap,
}

#[derive(Debug, Default)]
struct Table {
    free: Vec<u32>,
    /// The first slot that was never used.
    next: u32,
    live: usize,
    /// Unused slots whose entries are not removed yet.
    retired: Vec<u32>,
    /// Number of engines by block size.
    sizes: BTreeMap<u32, usize>,
}

#[derive(Debug)]
pub struct BlockIndex {
    shards: Box<[Mutex<Shard>]>,
    table: Mutex<Table>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl BlockIndex {
    /// An index of about this many bytes.
    pub fn new(bytes: usize) -> Self {
        let each = bytes / SHARDS;
        let shard = || {
            let expected = each / EXPECTED_PART;
            Mutex::new(Shard {
                held: GenerationalBlockMap::new(each - expected),
                expected: GenerationalBlockMap::new(expected),
            })
        };
        BlockIndex { shards: (0..SHARDS).map(|_| shard()).collect(), table: Mutex::default() }
    }

    fn shard(&self, hash: u64) -> MutexGuard<'_, Shard> {
        lock(&self.shards[(hash >> 32) as usize % SHARDS])
    }

    /// Adds an engine.
    pub fn add_engine(self: &Arc<Self>) -> EngineSlot {
        EngineSlot {
            slot: AtomicU32::new(self.allocate()),
            used: AtomicBool::new(false),
            block_size: AtomicU32::new(0),
            others: AtomicU32::new(0),
            full: AtomicBool::new(false),
            index: self.clone(),
        }
    }

    fn allocate(&self) -> u32 {
        let mut table = lock(&self.table);
        let slot = match table.free.pop() {
            Some(slot) => slot,
            None if (table.next as usize) < limits::ROUTE_SLOTS => {
                table.next += 1;
                table.next - 1
            }
            None => return NO_SLOT,
        };
        table.live += 1;
        slot
    }

    fn retire(&self, slot: u32) {
        if slot == NO_SLOT {
            return;
        }
        let mut table = lock(&self.table);
        table.live -= 1;
        table.retired.push(slot);
        if table.retired.len() < limits::ROUTE_SWEEP.max(table.live / 4) {
            return;
        }
        let retired = std::mem::take(&mut table.retired);
        drop(table);
        let mut slots = Vec::new();
        retired.iter().flat_map(|&slot| [cache_bit(slot), host_bit(slot)]).for_each(|bit| set(&mut slots, bit));
        for shard in &self.shards {
            let mut shard = lock(shard);
            shard.held.forget(&slots);
            shard.expected.forget(&slots);
        }
        lock(&self.table).free.extend(retired);
    }

    /// The block sizes in use, for which prompts are hashed.
    pub fn block_sizes(&self) -> Vec<u32> {
        lock(&self.table).sizes.keys().copied().take(limits::ROUTE_BLOCK_SIZES).collect()
    }

    /// How many tokens of a prompt each engine has cached.
    pub fn matches(&self, prompt: &PromptHashes, now: Duration) -> Matches {
        let (mut all, mut cached) = (PrefixWalk::default(), PrefixWalk::default());
        let mut holders = Vec::new();
        for (size, chain) in &prompt.chains {
            all.begin();
            cached.begin();
            for &hash in chain {
                holders.clear();
                {
                    let mut shard = self.shard(hash);
                    shard.expected.expire(limits::ROUTE_UNCONFIRMED_TIME, now);
                    shard.held.touch(hash, &mut holders);
                    shard.expected.find(hash, &mut holders);
                }
                cached.step(holders.iter().map(|word| word & CACHES), *size);
                if !all.step(holders.iter().map(|word| (word | word >> 1) & CACHES), *size) {
                    break;
                }
            }
            all.end(*size);
            cached.end(*size);
        }
        Matches { all: all.tokens, cached: cached.tokens }
    }

    /// Records that a sequence with this prompt was sent to an engine.
    pub fn anticipate(&self, engine: &EngineSlot, prompt: &PromptHashes, now: Duration) {
        let (slot, size) = (engine.slot.load(Ordering::Relaxed), engine.block_size.load(Ordering::Relaxed));
        let Some((_, chain)) = prompt.chains.iter().find(|(other, _)| *other == size && slot != NO_SLOT) else {
            return;
        };
        engine.used.store(true, Ordering::Relaxed);
        for &hash in chain {
            let mut shard = self.shard(hash);
            shard.expected.expire(limits::ROUTE_UNCONFIRMED_TIME, now);
            shard.expected.insert(hash, cache_bit(slot));
        }
    }

    /// The number of blocks in the index, and about how many bytes they take.
    pub fn size(&self) -> (usize, usize) {
        let sizes = self.shards.iter().map(|shard| {
            let shard = lock(shard);
            (shard.held.entries() + shard.expected.entries(), shard.held.bytes() + shard.expected.bytes())
        });
        sizes.fold((0, 0), |all, one| (all.0 + one.0, all.1 + one.1))
    }
}

fn cache_bit(slot: u32) -> u32 {
    2 * slot
}

fn host_bit(slot: u32) -> u32 {
    2 * slot + 1
}

/// The engines that have all blocks of a prompt so far, by the bits of caches.
#[derive(Debug, Default)]
struct PrefixWalk {
    active: Vec<u64>,
    depth: u32,
    /// By slot, the tokens of the longest prefix.
    tokens: Vec<u32>,
}

impl PrefixWalk {
    fn begin(&mut self) {
        self.active.clear();
        self.depth = 0;
    }

    /// These engines have the next block of `size` tokens. False: none has all.
    fn step(&mut self, mut holders: impl Iterator<Item = u64>, size: u32) -> bool {
        if self.depth == 0 {
            self.active.extend(holders);
        } else {
            let cached = self.depth * size;
            for (word, active) in self.active.iter_mut().enumerate() {
                let both = *active & holders.next().unwrap_or(0);
                raise_cached(&mut self.tokens, word, *active & !both, cached);
                *active = both;
            }
        }
        let any = self.active.iter().any(|word| *word != 0);
        // Without any, the next step must not restart the walk.
        self.depth += 1;
        any
    }

    fn end(&mut self, size: u32) {
        for (word, active) in self.active.iter().enumerate() {
            raise_cached(&mut self.tokens, word, *active, self.depth * size);
        }
    }
}

/// Raises the number of cached tokens of the engines in this word to `cached`.
fn raise_cached(tokens: &mut Vec<u32>, index: usize, mut word: u64, cached: u32) {
    while word != 0 {
        let slot = (index * 64 + word.trailing_zeros() as usize) / 2;
        word &= word - 1;
        if tokens.len() <= slot {
            tokens.resize(slot + 1, 0);
        }
        tokens[slot] = tokens[slot].max(cached);
    }
}

/// The number of cached tokens of a prompt by engine.
#[derive(Debug, Clone, Default)]
pub struct Matches {
    /// In the cache, or in it and then in the host tier.
    all: Vec<u32>,
    cached: Vec<u32>,
}

impl Matches {
    pub fn cached_tokens(&self, engine: &EngineSlot) -> u32 {
        let of = |tokens: &[u32]| tokens.get(engine.slot.load(Ordering::Relaxed) as usize).copied().unwrap_or(0);
        let (all, cached) = (of(&self.all), of(&self.cached));
        cached + (all - cached) / HOST_WORTH.1 * HOST_WORTH.0
    }
}

/// An engine's slot in the index. Its entries are removed when it is dropped.
#[derive(Debug)]
pub struct EngineSlot {
    slot: AtomicU32,
    /// The slot may have entries.
    used: AtomicBool,
    /// In tokens; 0: unknown.
    block_size: AtomicU32,
    /// Sequences of other routers, as last reported.
    others: AtomicU32,
    /// Sequences wait for KV blocks, as last reported.
    full: AtomicBool,
    index: Arc<BlockIndex>,
}

impl EngineSlot {
    /// Applies an engine's events, which arrived while this router had `open` sequences there. False: the engine uses
    /// other block hashes, so only its load is used.
    pub fn apply(&self, events: &EngineEvents, open: u32) -> bool {
        self.set_load(&events.load.unwrap_or_default(), open);
        if events.hash_version != block_hash::VERSION || events.block_size == 0 {
            self.clear();
            return false;
        }
        if events.reset {
            self.clear();
        }
        self.set_block_size(events.block_size);
        let slot = self.slot.load(Ordering::Relaxed);
        if slot == NO_SLOT {
            return true;
        }
        if !events.stored.is_empty() || !events.host_stored.is_empty() {
            self.used.store(true, Ordering::Relaxed);
        }
        let tiers = [
            (cache_bit(slot), &events.stored, &events.removed),
            (host_bit(slot), &events.host_stored, &events.host_removed),
        ];
        for (bit, stored, removed) in tiers {
            for &hash in stored {
                self.index.shard(hash).held.insert(hash, bit);
            }
            let mut bits = Vec::new();
            set(&mut bits, bit);
            for &hash in removed {
                let mut shard = self.index.shard(hash);
                shard.held.remove(hash, &bits);
                shard.expected.remove(hash, &bits);
            }
        }
        true
    }

    fn set_load(&self, load: &EngineLoad, open: u32) {
        let others = load.running.saturating_add(load.waiting).saturating_sub(open);
        self.others.store(others, Ordering::Relaxed);
        let (used, total) = (u64::from(load.used_blocks), u64::from(load.total_blocks));
        let full = load.waiting > 0 && used * 100 >= total * limits::ROUTE_FULL_PERCENT;
        self.full.store(full, Ordering::Relaxed);
    }

    /// Removes all that is known of the engine.
    pub fn forget(&self) {
        self.set_load(&EngineLoad::default(), 0);
        self.clear();
        self.set_block_size(0);
    }

    /// Removes the engine's entries. A concurrent request may still add an expected block to the old slot, which is
    /// wrong only until the block expires.
    fn clear(&self) {
        if self.used.swap(false, Ordering::Relaxed) || self.slot.load(Ordering::Relaxed) == NO_SLOT {
            let old = self.slot.swap(self.index.allocate(), Ordering::Relaxed);
            self.index.retire(old);
        }
    }

    fn set_block_size(&self, size: u32) {
        let before = self.block_size.swap(size, Ordering::Relaxed);
        if before == size {
            return;
        }
        let sizes = &mut lock(&self.index.table).sizes;
        if size > 0 {
            *sizes.entry(size).or_default() += 1;
        }
        if let Some(count) = sizes.get_mut(&before) {
            *count -= 1;
            if *count == 0 {
                sizes.remove(&before);
            }
        }
    }

    /// Open sequences on the engine: `open` of this router, and those of other routers in the engine's last report.
    pub fn load(&self, open: u32) -> u32 {
        open.saturating_add(self.others.load(Ordering::Relaxed))
    }

    /// Whether sequences wait there for KV blocks.
    pub fn is_full(&self) -> bool {
        self.full.load(Ordering::Relaxed)
    }
}

impl Drop for EngineSlot {
    fn drop(&mut self) {
        self.set_block_size(0);
        self.index.retire(self.slot.load(Ordering::Relaxed));
    }
}
