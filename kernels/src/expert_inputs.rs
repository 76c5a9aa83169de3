//! Experts as a backend gets them: where they are, their weights, and what changes them.

use std::sync::Arc;

use crate::host_matrix::HostMatrix;

/// The experts of one layer, over the ranks of the group.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExpertTable {
    /// Index of the layer among all layers of the model.
    pub layer: usize,
    /// By expert (global id), the ranks that hold it, ascending.
    pub holders: Vec<Vec<u32>>,
}

impl ExpertTable {
    /// The rank that computes a row's part of `expert`. If several ranks hold it, a hash of the row's token and
    /// position selects one, so that other rows of the batch change nothing. None: no rank holds it.
    pub fn holder(&self, expert: u32, token: u32, position: u32) -> Option<u32> {
        let holders = self.holders.get(expert as usize)?;
        let mut hash = expert.wrapping_mul(0xc2b2_ae3d) ^ token.wrapping_mul(0x85eb_ca77);
        hash ^= position.wrapping_mul(0x9e37_79b1);
        hash = (hash ^ hash >> 15).wrapping_mul(0x2c1b_3c6d);
        hash = (hash ^ hash >> 12).wrapping_mul(0x297a_2d39);
        hash ^= hash >> 15;
        holders.get(((u64::from(hash) * holders.len() as u64) >> 32) as usize).copied()
    }
}

/// Reads the rows of each expert by layer. Any thread may call it, also after the backend is gone.
pub type ExpertCounts = Arc<dyn Fn() -> Vec<Vec<u64>> + Send + Sync>;

/// One expert's three matrices: gate and up are [inter, hidden], down is [hidden, inter].
pub struct ExpertWeights {
    pub id: u32,
    pub gate: HostMatrix,
    pub up: HostMatrix,
    pub down: HostMatrix,
}

/// What the experts of a layer have in place of silu(gate) * up, as in gpt-oss: biases, and with gate at most `limit`
/// and up within it, gate * sigmoid(alpha * gate) * (up + 1).
#[derive(Debug)]
pub struct ClampedGate<V> {
    /// Of all experts of all ranks, one after the other: [experts, inter].
    pub gate: V,
    pub up: V,
    /// [experts, hidden]
    pub down: V,
    pub alpha: f32,
    pub limit: f32,
}

/// A low-rank adapter (LoRA, arXiv:2106.09685) of one linear module: y += x times down transposed times up transposed.
#[derive(Debug, Clone)]
pub struct LowRankPair {
    /// [rank, in]
    pub down: HostMatrix,
    /// [out, rank], with the adapter's scale.
    pub up: HostMatrix,
}

/// The adapters of the experts of one layer: the place of slot s and expert e is s * experts + e.
#[derive(Debug)]
pub struct ExpertAdapters<'a, T> {
    /// Of all ranks.
    pub experts: usize,
    pub gate: &'a T,
    pub up: &'a T,
    pub down: &'a T,
}

impl<T> Clone for ExpertAdapters<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for ExpertAdapters<'_, T> {}

impl<'a, T> ExpertAdapters<'a, T> {
    /// The same with parts of the tables.
    pub(crate) fn map<U>(self, part: impl Fn(&'a T) -> &'a U) -> ExpertAdapters<'a, U> {
        let Self { experts, gate, up, down } = self;
        ExpertAdapters { experts, gate: part(gate), up: part(up), down: part(down) }
    }

    /// The places of a slot.
    pub fn places(&self, slot: usize) -> std::ops::Range<usize> {
        slot * self.experts..(slot + 1) * self.experts
    }
}
