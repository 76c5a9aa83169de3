//! A budget of bytes that callers share. It does not know what they are for.
//!
//! A caller with an API key may hold at most [`SHARE`] times what is left then: one alone two thirds of the budget, two
//! together two fifths each. So something is left for the next caller, whatever others hold. What waits is served in
//! order of arrival, but the requests of one caller do not wait for those of another that must.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::{
    sync::oneshot,
    time::{Instant, timeout, timeout_at},
};

use crate::{error::Error, fair::CallerName, limits};

/// What a caller may hold, as a multiple of what is left.
const SHARE: usize = 2;

/// Bytes that requests share.
#[derive(Clone)]
pub struct MemoryBudget {
    bytes: usize,
    state: Arc<Mutex<BudgetState>>,
    /// What it is for, in errors.
    purpose: &'static str,
}

struct BudgetState {
    free: usize,
    held: HashMap<CallerName, usize>,
    waiting: VecDeque<Waiting>,
}

struct Waiting {
    caller: CallerName,
    bytes: usize,
    /// It gets what it waits for.
    give: oneshot::Sender<Given>,
}

/// A share of a budget. Dropping it returns the share.
pub struct MemoryCharge {
    given: Given,
    /// Bytes that do not count.
    uncounted: usize,
    purpose: &'static str,
}

/// Bytes that are returned when dropped: also those that arrive when nobody waits for them any more.
struct Given {
    state: Arc<Mutex<BudgetState>>,
    caller: CallerName,
    bytes: usize,
}

impl MemoryBudget {
    pub fn new(bytes: usize, purpose: &'static str) -> Self {
        let state = BudgetState { free: bytes, held: HashMap::new(), waiting: VecDeque::new() };
        MemoryBudget { bytes, state: Arc::new(Mutex::new(state)), purpose }
    }

    /// The most that a caller can hold.
    pub fn most(&self, caller: &CallerName) -> usize {
        if caller.is_some() { self.bytes / (SHARE + 1) * SHARE } else { self.bytes }
    }

    /// A charge of which only what is above `uncounted` bytes counts.
    pub fn open_charge(&self, caller: CallerName, uncounted: usize) -> MemoryCharge {
        MemoryCharge { given: Given { state: self.state.clone(), caller, bytes: 0 }, uncounted, purpose: self.purpose }
    }

    #[cfg(test)]
    pub fn free(&self) -> usize {
        locked(&self.state).free
    }
}

fn locked(state: &Mutex<BudgetState>) -> MutexGuard<'_, BudgetState> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl BudgetState {
    /// Whether the caller may have so many bytes more now.
    fn allows(&self, caller: &CallerName, bytes: usize) -> bool {
        let Some(left) = self.free.checked_sub(bytes) else { return false };
        let held = self.held.get(caller).copied().unwrap_or_default() + bytes;
        caller.is_none() || held <= left.saturating_mul(SHARE)
    }

    fn take(&mut self, caller: &CallerName, bytes: usize) {
        self.free -= bytes;
        *self.held.entry(caller.clone()).or_default() += bytes;
    }

    fn give_back(&mut self, caller: &CallerName, bytes: usize) {
        self.free += bytes;
        if let Some(held) = self.held.get_mut(caller) {
            *held -= bytes;
            if *held == 0 {
                self.held.remove(caller);
            }
        }
    }

    /// Takes what waiting requests may have now, and those out of the queue that have left it.
    fn served(&mut self) -> Vec<Waiting> {
        let (mut served, mut waits) = (Vec::new(), HashSet::new());
        for waiting in std::mem::take(&mut self.waiting) {
            let Waiting { caller, bytes, give } = &waiting;
            if give.is_closed() {
                continue;
            }
            if !waits.contains(caller) && self.allows(caller, *bytes) {
                self.take(caller, *bytes);
                served.push(waiting);
            } else {
                waits.insert(caller.clone());
                self.waiting.push_back(waiting);
            }
        }
        served
    }
}

/// Gives what is free to those that wait.
fn serve(state: &Arc<Mutex<BudgetState>>) {
    let served = locked(state).served();
    for Waiting { caller, bytes, give } in served {
        // If nobody waits any more, the bytes are returned by this.
        let _ = give.send(Given { state: state.clone(), caller, bytes });
    }
}

impl Drop for Given {
    fn drop(&mut self) {
        if self.bytes > 0 {
            locked(&self.state).give_back(&self.caller, self.bytes);
            serve(&self.state);
        }
    }
}

impl MemoryCharge {
    /// Sets the charge to `bytes` in total, and waits for them if necessary.
    pub async fn resize(&mut self, bytes: usize, until: Instant) -> Result<(), Error> {
        let Some(more) = self.shrink(bytes) else { return Ok(()) };
        if self.take(more) {
            return Ok(());
        }
        let given = {
            let (give, given) = oneshot::channel();
            let waiting = Waiting { caller: self.given.caller.clone(), bytes: more, give };
            locked(&self.given.state).waiting.push_back(waiting);
            given
        };
        // It may have become free meanwhile.
        serve(&self.given.state);
        match timeout_at(until, timeout(limits::MEMORY_WAIT, given)).await {
            Ok(Ok(Ok(mut given))) => {
                self.given.bytes += std::mem::take(&mut given.bytes);
                Ok(())
            }
            _ => Err(self.full()),
        }
    }

    /// Like [`MemoryCharge::resize`], but fails at once if the bytes are not free.
    pub fn try_resize(&mut self, bytes: usize) -> Result<(), Error> {
        let Some(more) = self.shrink(bytes) else { return Ok(()) };
        if self.take(more) { Ok(()) } else { Err(self.full()) }
    }

    /// Takes the bytes, if they are free and no request of this caller waits.
    fn take(&mut self, bytes: usize) -> bool {
        let mut state = locked(&self.given.state);
        let waits = state.waiting.iter().any(|other| other.caller == self.given.caller && !other.give.is_closed());
        let takes = !waits && state.allows(&self.given.caller, bytes);
        if takes {
            state.take(&self.given.caller, bytes);
            self.given.bytes += bytes;
        }
        takes
    }

    /// Returns what is above `bytes` to the budget, or else the bytes that are missing.
    fn shrink(&mut self, bytes: usize) -> Option<usize> {
        let counted = bytes.saturating_sub(self.uncounted);
        let missing = counted.checked_sub(self.given.bytes).filter(|missing| *missing > 0);
        if missing.is_none() && self.given.bytes > counted {
            let rest = self.given.bytes - counted;
            self.given.bytes = counted;
            locked(&self.given.state).give_back(&self.given.caller, rest);
            serve(&self.given.state);
        }
        missing
    }

    fn full(&self) -> Error {
        Error::full(format!("the memory for {} is full; try again later", self.purpose))
    }
}

#[cfg(test)]
mod tests;
