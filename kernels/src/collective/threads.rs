//! Ranks that are threads of one process. This module does not know what is computed.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::*};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};

use super::{AbortHandle, AbortWatch, Collective, ControlLink};
use crate::error::{KernelError, Result};

/// Spin-loop turns before a waiting rank parks (tens of microseconds).
const SPINS: u32 = 4_000;

/// A rank's input to one operation.
#[derive(Default)]
struct Slot {
    op: &'static str,
    /// Root of a broadcast; length of a reduction or broadcast. All ranks must agree.
    detail: (usize, usize),
    parts: Vec<Vec<f32>>,
    bytes: Vec<u8>,
}

impl Slot {
    fn new(op: &'static str, detail: (usize, usize), parts: Vec<Vec<f32>>) -> Slot {
        Slot { op, detail, parts, bytes: Vec::new() }
    }
}

struct Shared {
    size: usize,
    /// Two slots per rank, used alternately: a rank overwrites a slot only after a later operation has completed, that
    /// is, after all ranks have finished reading it.
    slots: Vec<[RwLock<Slot>; 2]>,
    arrived: AtomicUsize,
    /// Number of completed operations.
    round: AtomicU64,
    aborted: AtomicBool,
    reason: OnceLock<String>,
    parked: AtomicUsize,
    lock: Mutex<()>,
    wake: Condvar,
}

/// One rank; dropping it aborts the group for the others.
pub struct Threads {
    rank: usize,
    shared: Arc<Shared>,
    /// Number of operations begun. Only this rank's thread counts.
    round: AtomicU64,
}

/// A group of `size` ranks, in rank order.
pub fn group(size: usize) -> Vec<Threads> {
    let shared = Shared::new(size);
    (0..size).map(|rank| Threads { rank, shared: Arc::clone(&shared), round: AtomicU64::new(0) }).collect()
}

/// The only rank of a group.
pub fn alone() -> Threads {
    Threads { rank: 0, shared: Shared::new(1), round: AtomicU64::new(0) }
}

impl Shared {
    fn new(size: usize) -> Arc<Shared> {
        Arc::new(Shared {
            size,
            slots: (0..size).map(|_| Default::default()).collect(),
            arrived: AtomicUsize::new(0),
            round: AtomicU64::new(0),
            aborted: AtomicBool::new(false),
            reason: OnceLock::new(),
            parked: AtomicUsize::new(0),
            lock: Mutex::new(()),
            wake: Condvar::new(),
        })
    }

    fn guard(&self) -> MutexGuard<'_, ()> {
        self.lock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake_parked(&self) {
        if self.parked.load(SeqCst) > 0 {
            let _guard = self.guard();
            self.wake.notify_all();
        }
    }

    fn abort(&self, reason: &str) {
        let _ = self.reason.set(reason.to_string());
        self.aborted.store(true, SeqCst);
        self.wake_parked();
    }

    fn check(&self) -> Result<()> {
        if self.aborted.load(SeqCst) {
            return Err(KernelError::Aborted(self.reason.get().cloned().unwrap_or_default()));
        }
        Ok(())
    }

    /// Returns when all ranks have arrived at operation `round`.
    fn meet(&self, round: u64) -> Result<()> {
        if self.arrived.fetch_add(1, AcqRel) + 1 == self.size {
            self.arrived.store(0, Relaxed);
            self.round.store(round, SeqCst);
            self.wake_parked();
            return Ok(());
        }
        let mut turns = 0;
        while self.round.load(Acquire) < round {
            if let Err(aborted) = self.check() {
                // A rank that left right after the round completed did not affect it.
                return if self.round.load(SeqCst) < round { Err(aborted) } else { Ok(()) };
            }
            turns += 1;
            if turns < SPINS {
                std::hint::spin_loop();
                continue;
            }
            let mut guard = self.guard();
            // SeqCst pairs with wake_parked: either it sees this rank parked, or this rank sees what it announces.
            self.parked.fetch_add(1, SeqCst);
            while self.round.load(SeqCst) < round && !self.aborted.load(SeqCst) {
                guard = self.wake.wait(guard).unwrap_or_else(PoisonError::into_inner);
            }
            self.parked.fetch_sub(1, SeqCst);
        }
        Ok(())
    }
}

impl Threads {
    /// Publishes `mine`, waits for all ranks, and calls `read` with each rank's slot in rank order.
    fn exchange(&self, mine: Slot, mut read: impl FnMut(usize, &Slot)) -> Result<()> {
        let (op, detail, shared) = (mine.op, mine.detail, &*self.shared);
        shared.check()?;
        let round = self.round.fetch_add(1, Relaxed) + 1;
        let turn = (round % 2) as usize;
        *shared.slots[self.rank][turn].write().unwrap_or_else(PoisonError::into_inner) = mine;
        shared.meet(round)?;
        for (rank, slots) in shared.slots.iter().enumerate() {
            let slot = slots[turn].read().unwrap_or_else(PoisonError::into_inner);
            if slot.op != op || slot.detail != detail {
                let what = format!(
                    "rank {} calls it with {detail:?}, but rank {rank} calls {} with {:?}",
                    self.rank, slot.op, slot.detail
                );
                shared.abort(&format!("{op}: {what}"));
                return Err(KernelError::Shape { op, what });
            }
            read(rank, &slot);
        }
        Ok(())
    }

    fn check_root(&self, op: &'static str, root: usize) -> Result<()> {
        if root < self.shared.size {
            return Ok(());
        }
        Err(KernelError::Shape { op, what: format!("root {root} of {} ranks", self.shared.size) })
    }
}

impl ControlLink for Threads {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.shared.size
    }

    fn share(&self, root: usize, bytes: &mut Vec<u8>) -> Result<()> {
        self.check_root("share", root)?;
        let mine = if root == self.rank { std::mem::take(bytes) } else { Vec::new() };
        self.exchange(Slot { bytes: mine, ..Slot::new("share", (root, 0), Vec::new()) }, |rank, slot| {
            if rank == root {
                bytes.clone_from(&slot.bytes);
            }
        })
    }

    fn gather_bytes(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        let mut all = Vec::with_capacity(self.shared.size);
        let mine = Slot { bytes: bytes.to_vec(), ..Slot::new("gather_bytes", (0, 0), Vec::new()) };
        self.exchange(mine, |_, slot| all.push(slot.bytes.clone()))?;
        Ok(all)
    }

    fn abort(&self, reason: &str) {
        self.shared.abort(reason);
    }

    fn abort_handle(&self) -> AbortHandle {
        let shared = Arc::clone(&self.shared);
        AbortHandle::new(move |reason| shared.abort(reason))
    }

    /// Which rank is waited for is not known.
    fn give_up_handle(&self) -> AbortHandle {
        self.abort_handle()
    }

    fn abort_watch(&self) -> AbortWatch {
        let shared = Arc::clone(&self.shared);
        AbortWatch::new(move || match shared.check() {
            Err(KernelError::Aborted(reason)) => Some(reason),
            _ => None,
        })
    }
}

impl Collective for Threads {
    fn all_reduce(&self, x: &mut [f32]) -> Result<()> {
        if self.shared.size == 1 {
            return self.shared.check();
        }
        let mine = x.to_vec();
        self.exchange(Slot::new("all_reduce", (0, x.len()), vec![mine]), |rank, slot| {
            let part = &slot.parts[0];
            if rank == 0 {
                x.copy_from_slice(part);
            } else {
                x.iter_mut().zip(part).for_each(|(x, y)| *x += y);
            }
        })
    }

    fn all_gather(&self, x: &[f32]) -> Result<Vec<Vec<f32>>> {
        let mut all = Vec::with_capacity(self.shared.size);
        let mine = Slot::new("all_gather", (0, 0), vec![x.to_vec()]);
        self.exchange(mine, |_, slot| all.push(slot.parts[0].clone()))?;
        Ok(all)
    }

    fn gather(&self, root: usize, x: &[f32]) -> Result<Vec<Vec<f32>>> {
        self.check_root("gather", root)?;
        let mut all = Vec::new();
        let mine = Slot::new("gather", (root, 0), vec![x.to_vec()]);
        self.exchange(mine, |_, slot| {
            if self.rank == root {
                all.push(slot.parts[0].clone());
            }
        })?;
        Ok(all)
    }

    fn all_to_all(&self, parts: Vec<Vec<f32>>) -> Result<Vec<Vec<f32>>> {
        if parts.len() != self.shared.size {
            let what = format!("needs one part for each of {} ranks, got {}", self.shared.size, parts.len());
            return Err(KernelError::Shape { op: "all_to_all", what });
        }
        let mut all = Vec::with_capacity(self.shared.size);
        let mine = Slot::new("all_to_all", (0, 0), parts);
        self.exchange(mine, |_, slot| all.push(slot.parts[self.rank].clone()))?;
        Ok(all)
    }

    fn broadcast(&self, root: usize, x: &mut [f32]) -> Result<()> {
        self.check_root("broadcast", root)?;
        let mine = if root == self.rank { vec![x.to_vec()] } else { Vec::new() };
        self.exchange(Slot::new("broadcast", (root, x.len()), mine), |rank, slot| {
            if rank == root {
                x.copy_from_slice(&slot.parts[0]);
            }
        })
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        if self.shared.size > 1 {
            self.shared.abort(&format!("rank {} left the group", self.rank));
        }
    }
}
