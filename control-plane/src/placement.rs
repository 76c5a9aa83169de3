//! Tensor-parallel placement: which rank of a group holds which heads and experts.
//!
//! This module does not know workers.

use std::ops::Range;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The properties of a model that placement depends on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelShape {
    pub attention_heads: usize,
    /// Equal to `attention_heads` where heads do not share keys. (MLA shares its latent over all heads, so it is
    /// replicated.)
    pub kv_heads: usize,
    /// Routed experts per layer; 0 for a dense layer.
    pub experts: Vec<usize>,
}

/// Which rank of a group holds what. Ranks load exactly this.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    pub epoch: u64,
    /// Number of the expert layout: 0 at first, later values are never reused. The layout may change within an epoch.
    pub layout: u64,
    pub ranks: Vec<RankPlacement>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankPlacement {
    pub rank: usize,
    /// Attention heads of this rank.
    pub heads: Range<usize>,
    /// Key/value heads of this rank. With fewer key/value heads than ranks, several ranks hold the same head.
    pub kv_heads: Range<usize>,
    /// Per layer, the ids of this rank's experts.
    pub experts: Vec<Vec<u32>>,
}

#[derive(Debug, Error, PartialEq, Eq)]
pub enum PlacementError {
    #[error("the number of ranks (--tp, --group-size) must be at least 1, got 0")]
    NoRanks,
    #[error("cannot split {heads} attention heads evenly over {ranks} ranks; choose a size that divides {heads}")]
    Heads { heads: usize, ranks: usize },
    #[error(
        "cannot split {kv_heads} key/value heads over {ranks} ranks; choose a size that divides {kv_heads} or is a multiple of it"
    )]
    KvHeads { kv_heads: usize, ranks: usize },
}

/// Shards heads and experts over `ranks` ranks.
pub fn place(shape: &ModelShape, ranks: usize, epoch: u64) -> Result<Placement, PlacementError> {
    if ranks == 0 {
        return Err(PlacementError::NoRanks);
    }
    let (heads, kv_heads) = (shape.attention_heads, shape.kv_heads);
    if !heads.is_multiple_of(ranks) {
        return Err(PlacementError::Heads { heads, ranks });
    }
    if !kv_heads.is_multiple_of(ranks) && !ranks.is_multiple_of(kv_heads) {
        return Err(PlacementError::KvHeads { kv_heads, ranks });
    }
    let kv_of = |rank: usize| {
        if kv_heads >= ranks {
            share(kv_heads, ranks, rank)
        } else {
            let head = rank / (ranks / kv_heads);
            head..head + 1
        }
    };
    let ranks = (0..ranks)
        .map(|rank| RankPlacement {
            rank,
            heads: share(heads, ranks, rank),
            kv_heads: kv_of(rank),
            experts: shape.experts.iter().map(|&n| share(n, ranks, rank).map(|e| e as u32).collect()).collect(),
        })
        .collect();
    Ok(Placement { epoch, layout: 0, ranks })
}

/// The `rank`th of `ranks` contiguous, nearly equal shares of 0..n.
pub fn share(n: usize, ranks: usize, rank: usize) -> Range<usize> {
    n * rank / ranks..n * (rank + 1) / ranks
}

#[cfg(test)]
mod tests;
