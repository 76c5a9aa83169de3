//! What an engine's prefix cache holds, as far as the adapter knows: the blocks that the engine reports, or else those
//! of the prompts that it was sent, least recently used first. Routers read it as the Events of engine.proto. It does
//! not know the engine.
//!
//! An engine may have evicted more, or keep more, than this says. Then a router chooses worse, and the answer is the
//! same.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::stream::{self, BoxStream, StreamExt};
use rein_proto::block_hash;
use rein_proto::internal::EngineEvents;
use tokio::time::{Instant, sleep};
use tonic::Status;

use crate::limits;

/// Changes that are kept for listeners; a listener that misses more gets a snapshot.
const LOG: usize = 65_536;
/// Hashes in one part of a snapshot.
const PART: usize = 32_768;

/// A change of an engine's prefix cache, with hashes of engine.proto.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheChange {
    Stored(u64),
    Removed(u64),
    Cleared,
}

#[derive(Debug)]
pub struct CacheFeed {
    block_size: u32,
    /// Blocks that the engine's cache holds. 0: it keeps none.
    capacity: usize,
    /// Whether the engine reports its blocks.
    reported: bool,
    blocks: Mutex<Blocks>,
}

#[derive(Debug, Default)]
struct Blocks {
    /// When each block was used last.
    used: HashMap<u64, u64>,
    /// The block of each time.
    order: BTreeMap<u64, u64>,
    time: u64,
    /// Hashes, and whether they were stored.
    log: VecDeque<(u64, bool)>,
    /// Number of changes before the first one in the log.
    before: u64,
    /// Prompts since the last report that must cause one, and when the first was sent.
    unreported: Option<(Instant, u32)>,
}

impl CacheFeed {
    pub fn new(block_size: u32, capacity: usize, reported: bool) -> Arc<Self> {
        Arc::new(CacheFeed { block_size: block_size.max(1), capacity, reported, blocks: Mutex::default() })
    }

    /// Whether the engine has reported nothing although it must have stored blocks.
    pub fn silent(&self) -> bool {
        self.reported && self.blocks().silent()
    }

    /// Whether the engine reports its blocks: None if nobody asked it to.
    pub fn reports(&self) -> Option<bool> {
        self.reported.then(|| !self.silent())
    }

    /// What the engine has reported.
    pub fn apply(&self, changes: &[CacheChange]) {
        let mut blocks = self.blocks();
        if blocks.silent() {
            // The guesses until now.
            blocks.clear();
        }
        blocks.unreported = None;
        for change in changes {
            match *change {
                CacheChange::Stored(hash) => blocks.touch(hash),
                CacheChange::Removed(hash) => blocks.remove(hash),
                CacheChange::Cleared => blocks.clear(),
            }
        }
        while blocks.used.len() > self.capacity {
            blocks.evict();
        }
    }

    fn blocks(&self) -> MutexGuard<'_, Blocks> {
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The engine computes these tokens: their full blocks are in its cache. Returns how many tokens of leading blocks
    /// were there before.
    pub fn note(&self, salt: &str, tokens: &[u32]) -> usize {
        if self.capacity == 0 {
            return 0;
        }
        let size = self.block_size as usize;
        let mut blocks = self.blocks();
        let (mut leading, mut known) = (0, true);
        // The first blocks are used last, so that a chain is evicted from its end.
        let hashes: Vec<u64> = block_hash::chain(salt, tokens, size).take(self.capacity).collect();
        for hash in &hashes {
            known &= blocks.used.contains_key(hash);
            leading += usize::from(known);
        }
        if self.reported {
            if leading < hashes.len() {
                blocks.unreported.get_or_insert_with(|| (Instant::now(), 0)).1 += 1;
            }
            if !blocks.silent() {
                return leading * size;
            }
        }
        for hash in hashes.into_iter().rev() {
            blocks.touch(hash);
        }
        while blocks.used.len() > self.capacity {
            blocks.evict();
        }
        leading * size
    }

    /// The events for one listener, without the engine's load: a snapshot, then changes at this interval.
    pub fn listen(self: &Arc<Self>, interval: Duration) -> BoxStream<'static, Result<EngineEvents, Status>> {
        let state = (self.clone(), None::<u64>, VecDeque::new());
        stream::unfold(state, move |(feed, mut position, mut parts)| async move {
            if parts.is_empty() {
                if position.is_some() {
                    sleep(interval).await;
                }
                let (events, at) = feed.since(position);
                (parts, position) = (events, Some(at));
            }
            let event = parts.pop_front()?;
            Some((Ok(event), (feed, position, parts)))
        })
        .boxed()
    }

    /// The changes since a position, or a snapshot, in at least one message; and the position after them.
    fn since(&self, position: Option<u64>) -> (VecDeque<EngineEvents>, u64) {
        let blocks = self.blocks();
        let at = blocks.before + blocks.log.len() as u64;
        let base = EngineEvents {
            hash_version: block_hash::VERSION,
            block_size: self.block_size,
            complete: true,
            ..EngineEvents::default()
        };
        if let Some(missed) = position.and_then(|position| position.checked_sub(blocks.before)) {
            // The last change of a hash counts.
            let changes: BTreeMap<u64, bool> = blocks.log.iter().skip(missed as usize).copied().collect();
            let of = |wanted: bool| changes.iter().filter(move |(_, stored)| **stored == wanted).map(|(hash, _)| *hash);
            let (stored, removed) = (of(true).collect(), of(false).collect());
            return (VecDeque::from([EngineEvents { stored, removed, ..base }]), at);
        }
        let all: Vec<u64> = blocks.order.values().copied().collect();
        let mut parts: VecDeque<EngineEvents> = all
            .chunks(PART)
            .map(|part| EngineEvents { stored: part.to_vec(), complete: false, ..base.clone() })
            .collect();
        if parts.is_empty() {
            parts.push_back(base);
        }
        if let Some(first) = parts.front_mut() {
            first.reset = true;
        }
        if let Some(last) = parts.back_mut() {
            last.complete = true;
        }
        (parts, at)
    }
}

impl Blocks {
    fn touch(&mut self, hash: u64) {
        self.time += 1;
        match self.used.insert(hash, self.time) {
            Some(before) => drop(self.order.remove(&before)),
            None => self.change(hash, true),
        }
        self.order.insert(self.time, hash);
    }

    fn silent(&self) -> bool {
        self.unreported.is_some_and(|(since, prompts)| {
            prompts >= limits::SILENT_PROMPTS && since.elapsed() > limits::EVENT_SILENCE
        })
    }

    fn remove(&mut self, hash: u64) {
        if let Some(time) = self.used.remove(&hash) {
            self.order.remove(&time);
            self.change(hash, false);
        }
    }

    fn clear(&mut self) {
        while !self.used.is_empty() {
            self.evict();
        }
    }

    fn evict(&mut self) {
        if let Some((_, hash)) = self.order.pop_first() {
            self.used.remove(&hash);
            self.change(hash, false);
        }
    }

    fn change(&mut self, hash: u64, stored: bool) {
        self.log.push_back((hash, stored));
        if self.log.len() > LOG {
            self.log.pop_front();
            self.before += 1;
        }
    }
}

#[cfg(test)]
mod tests;
