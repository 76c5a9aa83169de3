//! Device memory of activations. Equal sequences of requests get equal addresses, so that a recorded step can be
//! repeated. It does not know what is stored.

use std::cell::RefCell;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{CudaDevice, DeviceBuffer, Result};

/// What cudaMalloc guarantees, and more than any kernel asks for.
const ALIGNMENT: usize = 256;
/// The memory grows in steps of this size.
const GROWTH: usize = 1 << 20;

/// Which parts of an unbounded address space are in use. The lowest gap that fits is taken.
#[derive(Debug, Default)]
pub(super) struct ArenaLayout {
    /// Ascending and disjoint.
    live: Vec<Range<usize>>,
    peak: usize,
}

impl ArenaLayout {
    /// The start of `bytes` bytes, which are in use until they are given back.
    pub fn take(&mut self, bytes: usize) -> usize {
        let room = bytes.max(1).next_multiple_of(ALIGNMENT);
        let mut start = 0;
        let mut at = 0;
        for range in &self.live {
            if range.start - start >= room {
                break;
            }
            (start, at) = (range.end, at + 1);
        }
        self.live.insert(at, start..start + room);
        self.peak = self.peak.max(start + room);
        start
    }

    /// Takes `bytes` bytes at a start that `take` gave before. False: they are in use.
    pub fn take_at(&mut self, start: usize, bytes: usize) -> bool {
        let room = bytes.max(1).next_multiple_of(ALIGNMENT);
        let at = self.live.partition_point(|range| range.start < start);
        let free = self.live.get(at).is_none_or(|next| start + room <= next.start)
            && at.checked_sub(1).is_none_or(|before| self.live[before].end <= start);
        if free {
            self.live.insert(at, start..start + room);
            self.peak = self.peak.max(start + room);
        }
        free
    }

    pub fn give(&mut self, start: usize) {
        self.live.retain(|range| range.start != start);
    }

    pub fn is_empty(&self) -> bool {
        self.live.is_empty()
    }

    /// The most bytes that were needed at once.
    pub fn peak(&self) -> usize {
        self.peak
    }
}

#[derive(Debug, Default)]
struct State {
    layout: ArenaLayout,
    base: u64,
    capacity: usize,
    /// Memory beyond the arena that is free, until the next `fit`: the driver waits for the device before it frees any.
    spare: Vec<DeviceBuffer>,
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Bytes of an arena, given back when dropped.
#[derive(Debug)]
pub(super) struct ArenaBlock {
    state: Arc<Mutex<State>>,
    /// Where it begins in the arena.
    pub start: usize,
    pub address: u64,
    /// Its memory, if the arena is too small for it.
    beyond: Option<DeviceBuffer>,
}

impl Drop for ArenaBlock {
    fn drop(&mut self) {
        let mut state = lock(&self.state);
        state.layout.give(self.start);
        state.spare.extend(self.beyond.take());
    }
}

#[derive(Debug, Default)]
pub(super) struct DeviceArena {
    state: Arc<Mutex<State>>,
    memory: RefCell<Option<DeviceBuffer>>,
}

impl DeviceArena {
    /// Beyond the end of the arena, memory comes from the driver.
    pub fn take(&self, device: &CudaDevice, bytes: usize) -> Result<ArenaBlock> {
        let mut state = lock(&self.state);
        let start = state.layout.take(bytes);
        let inside = start + bytes <= state.capacity;
        let spare = state.spare.iter().position(|spare| spare.bytes() == bytes).filter(|_| !inside);
        let beyond = match spare {
            _ if inside => Ok(None),
            Some(spare) => Ok(Some(state.spare.swap_remove(spare))),
            None => device.allocate(bytes).map(Some),
        };
        let beyond = beyond.inspect_err(|_| state.layout.give(start))?;
        let address = beyond.as_ref().map_or(state.base + start as u64, DeviceBuffer::address);
        Ok(ArenaBlock { state: Arc::clone(&self.state), start, address, beyond })
    }

    /// The bytes at a start that an earlier block had; None if they are in use.
    pub fn take_at(&self, start: usize, bytes: usize) -> Option<ArenaBlock> {
        let mut state = lock(&self.state);
        if start.checked_add(bytes).is_none_or(|end| end > state.capacity) || !state.layout.take_at(start, bytes) {
            return None;
        }
        let address = state.base + start as u64;
        Some(ArenaBlock { state: Arc::clone(&self.state), start, address, beyond: None })
    }

    /// No memory, for the result of an op that has failed.
    pub fn nothing(&self) -> ArenaBlock {
        ArenaBlock { state: Arc::clone(&self.state), start: usize::MAX, address: 0, beyond: None }
    }

    pub fn is_empty(&self) -> bool {
        lock(&self.state).layout.is_empty()
    }

    /// Whether `fit` would move it.
    pub fn wants_room(&self) -> bool {
        let state = lock(&self.state);
        state.layout.is_empty() && state.layout.peak().next_multiple_of(GROWTH) > state.capacity
    }

    /// Grows an empty arena to what was needed at once so far. Whether it has moved.
    pub fn fit(&self, device: &CudaDevice) -> Result<bool> {
        if !self.wants_room() {
            return Ok(false);
        }
        let mut state = lock(&self.state);
        let need = state.layout.peak().next_multiple_of(GROWTH);
        state.spare.clear();
        let mut memory = self.memory.borrow_mut();
        // Frees the old memory first: both may not fit.
        (*memory, state.capacity) = (None, 0);
        let grown = device.allocate(need)?;
        (state.base, state.capacity) = (grown.address(), need);
        *memory = Some(grown);
        Ok(true)
    }
}

#[cfg(test)]
mod tests;
