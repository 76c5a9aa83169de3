//! How many adapters a group takes, and the memory that they may take.

use rein_control_plane::{RankPlacement, place};
use rein_kernels::{Precision, WeightRole};

use crate::checkpoint::LoadError;
use crate::model::{Spec, numbers_of_rank_one};

/// The LoRA adapters that a group takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LoraLimits {
    /// At the same time.
    pub slots: usize,
    /// Bytes of all of them on a rank. None: what full slots of this rank take, of all modules outside of experts.
    pub room: Option<usize>,
    pub rank: usize,
}

impl LoraLimits {
    /// Bytes on each of so many ranks.
    pub fn room_of(&self, spec: &Spec, ranks: usize, precision: Precision) -> Result<usize, LoadError> {
        if self.slots == 0 {
            return Ok(0);
        }
        if let Some(room) = self.room {
            return Ok(room);
        }
        let placement = place(&spec.shape(), ranks, 1)?;
        let of = |rank: &RankPlacement| -> usize {
            let linears = spec.linears().filter(|l| l.role != WeightRole::Expert);
            linears.map(|l| numbers_of_rank_one(l, rank, ranks)).sum()
        };
        let most = placement.ranks.iter().map(of).max().unwrap_or(0);
        Ok(self.slots * self.rank * most * number_bytes(precision))
    }
}

/// Of an adapter's number on a device.
pub fn number_bytes(precision: Precision) -> usize {
    if precision == Precision::F32 { 4 } else { 2 }
}
