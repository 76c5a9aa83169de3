//! Which slot of the executor holds what it knows of which sequence. The lowest free one is taken, so there are never
//! more than sequences that were computed at once.

use std::collections::{BTreeSet, VecDeque};

use crate::seq::Seq;

#[derive(Debug, Default)]
pub struct SequenceSlots {
    /// One above the highest that was ever taken.
    count: u32,
    free: BTreeSet<u32>,
    /// Their sequences have left, and no step has told the executor yet.
    left: BTreeSet<u32>,
    /// What each step that was made and not executed yet drops.
    dropping: VecDeque<Vec<u32>>,
}

impl SequenceSlots {
    /// The sequence's slot; a new one if it has none.
    pub fn of(&mut self, seq: &mut Seq) -> u32 {
        *seq.slot.get_or_insert_with(|| {
            seq.told = 0;
            seq.told_history = 0;
            self.free.pop_first().unwrap_or_else(|| {
                self.count += 1;
                self.count - 1
            })
        })
    }

    /// The sequence ended or was preempted. Its slot may be taken at once: a step drops slots before it takes any.
    pub fn leave(&mut self, seq: &mut Seq) {
        if let Some(slot) = seq.slot.take() {
            self.left.insert(slot);
            self.free.insert(slot);
        }
    }

    /// What the next step drops.
    pub fn drops(&mut self) -> Vec<u32> {
        let drops: Vec<u32> = std::mem::take(&mut self.left).into_iter().collect();
        self.dropping.push_back(drops.clone());
        drops
    }

    /// The oldest of these steps was executed.
    pub fn dropped(&mut self) {
        self.dropping.pop_front();
    }

    /// A step failed: the newest, or the oldest. What it dropped may still be held; a slot that was taken again forgets
    /// what it held by its next row.
    pub fn not_dropped(&mut self, newest: bool) {
        let drops = if newest { self.dropping.pop_back() } else { self.dropping.pop_front() };
        self.left.extend(drops.into_iter().flatten().filter(|slot| self.free.contains(slot)));
    }

    #[cfg(test)]
    pub fn left(&self) -> BTreeSet<u32> {
        self.left.clone()
    }
}
