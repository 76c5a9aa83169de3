//! The sequences that wait for a slot, and which of them is next. It does not know blocks.
//!
//! Callers are the API keys of the routers, and share the engine's slots. The next slot goes to the caller that holds
//! the fewest slots. If equal, it goes to the caller that has received no slot for the longest time. The sequences of
//! one caller get slots in order of arrival. A caller that holds none need not wait until another one's sequence ends.

use std::collections::{BTreeMap, BTreeSet};

use crate::seq::{CallerHash, SeqId};

#[derive(Debug, Default)]
pub struct Waiting {
    callers: BTreeMap<CallerHash, CallerSequences>,
    /// Sequences that had a slot before, with their callers. They get the next slots before all others.
    preempted: BTreeMap<SeqId, CallerHash>,
    /// Counts the slots given.
    turn: u64,
    len: usize,
}

#[derive(Debug, Default)]
struct CallerSequences {
    waiting: BTreeSet<SeqId>,
    preempted: usize,
    running: usize,
    /// The turn in which it was last given a slot.
    served: u64,
}

impl Waiting {
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn contains(&self, caller: CallerHash, id: SeqId) -> bool {
        self.preempted.contains_key(&id) || self.callers.get(&caller).is_some_and(|own| own.waiting.contains(&id))
    }

    pub fn enter(&mut self, caller: CallerHash, id: SeqId) {
        self.len += usize::from(self.callers.entry(caller).or_default().waiting.insert(id));
    }

    /// Whether there is a next sequence.
    pub fn any(&self, may_run: impl Fn(SeqId) -> bool) -> bool {
        let waiting = self.callers.values().flat_map(|own| &own.waiting);
        self.preempted.keys().chain(waiting).any(|id| may_run(*id))
    }

    /// Whether the caller has a sequence, waiting or with a slot.
    pub fn knows(&self, caller: CallerHash) -> bool {
        self.callers.contains_key(&caller)
    }

    /// Number of the caller's sequences with slots.
    pub fn running(&self, caller: CallerHash) -> usize {
        self.callers.get(&caller).map_or(0, |own| own.running)
    }

    /// The next sequences, of those that may run, of callers that hold no slot.
    pub fn newcomers(&self, may_run: impl Fn(SeqId) -> bool) -> impl Iterator<Item = SeqId> {
        let idle = |caller: &CallerHash| self.running(*caller) == 0;
        let preempted = self.preempted.iter().filter(|(id, caller)| idle(caller) && may_run(**id)).map(|(id, _)| *id);
        let first = self.callers.values().filter(|own| own.running == 0).filter_map(|own| {
            let id = own.waiting.iter().copied().find(|id| may_run(*id))?;
            Some((own.served, id))
        });
        let first: BTreeSet<(u64, SeqId)> = first.collect();
        preempted.collect::<Vec<_>>().into_iter().chain(first.into_iter().map(|(_, id)| id))
    }

    /// The next sequence of those that may run.
    pub fn next(&self, may_run: impl Fn(SeqId) -> bool) -> Option<SeqId> {
        if let Some(id) = self.preempted.keys().copied().find(|id| may_run(*id)) {
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
        let preempted = self.preempted.remove(&id).is_some();
        own.preempted -= usize::from(preempted);
        self.len -= usize::from(own.waiting.remove(&id) || preempted);
        own.running += 1;
        own.served = self.turn;
    }

    /// A sequence loses its slot and waits for the next one.
    pub fn preempt(&mut self, caller: CallerHash, id: SeqId) {
        let own = self.callers.entry(caller).or_default();
        own.preempted += 1;
        own.running = own.running.saturating_sub(1);
        self.preempted.insert(id, caller);
        self.len += 1;
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
        let preempted = self.preempted.remove(&id).is_some();
        if let Some(own) = self.callers.get_mut(&caller) {
            own.preempted -= usize::from(preempted);
            self.len -= usize::from(own.waiting.remove(&id) || preempted);
        }
        self.forget_idle(caller);
    }

    fn forget_idle(&mut self, caller: CallerHash) {
        if self.callers.get(&caller).is_some_and(|own| own.waiting.is_empty() && own.preempted + own.running == 0) {
            self.callers.remove(&caller);
        }
    }
}

#[cfg(test)]
mod tests;
