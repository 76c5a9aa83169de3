//! Which slot of the executor holds what it knows of which sequence. The lowest free one is taken, so there are never
//! more than sequences that were computed at once.

use std::collections::BTreeSet;

use crate::seq::Seq;

#[derive(Debug, Default)]
pub struct SequenceSlots {
    /// One above the highest that was ever taken.
    count: u32,
    free: BTreeSet<u32>,
    /// Their sequences have left, and the executor does not know it yet.
    left: Vec<u32>,
    /// How many of them the current step drops.
    dropping: usize,
}

impl SequenceSlots {
    /// The sequence's slot; a new one if it has none.
    pub fn of(&mut self, seq: &mut Seq) -> u32 {
        *seq.slot.get_or_insert_with(|| {
            seq.told = 0;
            self.free.pop_first().unwrap_or_else(|| {
                self.count += 1;
                self.count - 1
            })
        })
    }

    /// The sequence ended or was preempted. Its slot may be taken at once: a step drops slots before it takes any.
    pub fn leave(&mut self, seq: &mut Seq) {
        if let Some(slot) = seq.slot.take() {
            self.left.push(slot);
            self.free.insert(slot);
        }
    }

    /// What the next step drops.
    pub fn drops(&mut self) -> Vec<u32> {
        self.dropping = self.left.len();
        self.left.clone()
    }

    /// The step was executed.
    pub fn dropped(&mut self) {
        self.left.drain(..self.dropping);
    }

    #[cfg(test)]
    pub fn left(&self) -> BTreeSet<u32> {
        self.left.iter().copied().collect()
    }
}
