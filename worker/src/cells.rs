//! The cells in which ranks keep recurrent states.

use crate::limits::RECENT_STATES;

/// Cells for recurrent states. Those below `checkpoints` may hold the state at the end of any KV block; each slot has
/// [`RECENT_STATES`] of the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateShape {
    pub checkpoints: usize,
    /// Tokens between two checkpoints of a sequence, a multiple of the block size.
    pub every: usize,
}

impl StateShape {
    /// A slot's recent states begin here.
    pub fn recent(&self, slot: u32) -> u32 {
        self.checkpoints as u32 + slot * RECENT_STATES as u32
    }

    pub fn cells(&self, slots: usize) -> usize {
        self.checkpoints + slots * RECENT_STATES
    }
}
