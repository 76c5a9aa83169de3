//! The sequences that wait for a slot, and which of them is next. It does not know blocks.
//!
//! Callers are the API keys of the routers, and share the engine's slots. The next slot goes to the caller that holds
//! the fewest slots. If equal, it goes to the caller that has received no slot for the longest time. The sequences of
//! one caller get slots in order of arrival.

use std::collections::{BTreeMap, BTreeSet};

use crate::seq::{CallerHash, SeqId};

#[derive(Debug, Default)]
pub struct Waiting {
    callers: BTreeMap<CallerHash, CallerSequences>,
    /// Sequences that had a slot before. They get the next slots before all others.
    preempted: BTreeSet<SeqId>,
    /// Counts the slots given.
    turn: u64,
    len: usize,
}

#[derive(Debug, Default)]
struct CallerSequences {
    waiting: BTreeSet<SeqId>,
    running: usize,
    /// The turn in which it was last given a slot.
    served: u64,
}

impl Waiting {
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn contains(&self, caller: CallerHash, id: SeqId) -> bool {
        self.preempted.contains(&id) || self.callers.get(&caller).is_some_and(|own| own.waiting.contains(&id))
    }

    pub fn enter(&mut self, caller: CallerHash, id: SeqId) {
        self.len += usize::from(self.callers.entry(caller).or_default().waiting.insert(id));
    }

    /// Whether there is a next sequence.
    pub fn any(&self, may_run: impl Fn(SeqId) -> bool) -> bool {
        let waiting = self.callers.values().flat_map(|own| &own.waiting);
        self.preempted.iter().chain(waiting).any(|id| may_run(*id))
    }

    /// The next sequence of those that may run.
    pub fn next(&self, may_run: impl Fn(SeqId) -> bool) -> Option<SeqId> {
        if let Some(id) = self.preempted.iter().copied().find(|id| may_run(*id)) {
            return Some(id);
        }
        let first = self.callers.values().filter_map(|own| {
            let id = own.waiting.iter().copied().find(|id| may_run(*id))?;
            Some((own.running, own.served, id))
        });
        first.min().map(|(.., id)| id)
    }

    /// A waiting sequence is given a slot.
    pub fn run(&mut self, caller: CallerHash, id: SeqId) {
        self.turn += 1;
        let own = self.callers.entry(caller).or_default();
        self.len -= usize::from(own.waiting.remove(&id) || self.preempted.remove(&id));
        own.running += 1;
        own.served = self.turn;
    }

    /// A sequence loses its slot and waits for the next one.
    pub fn preempt(&mut self, caller: CallerHash, id: SeqId) {
        self.end(caller);
        self.len += usize::from(self.preempted.insert(id));
    }

    /// A sequence with a slot ends.
    pub fn end(&mut self, caller: CallerHash) {
        if let Some(own) = self.callers.get_mut(&caller) {
            own.running = own.running.saturating_sub(1);
        }
        self.forget_idle(caller);
    }

    /// A waiting sequence ends.
    pub fn leave(&mut self, caller: CallerHash, id: SeqId) {
        let own = self.callers.get_mut(&caller).is_some_and(|own| own.waiting.remove(&id));
        self.len -= usize::from(own || self.preempted.remove(&id));
        self.forget_idle(caller);
    }

    fn forget_idle(&mut self, caller: CallerHash) {
        if self.callers.get(&caller).is_some_and(|own| own.waiting.is_empty() && own.running == 0) {
            self.callers.remove(&caller);
        }
    }
}

#[cfg(test)]
mod tests;
