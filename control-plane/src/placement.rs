use std::ops::Range;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// What placement needs to know of a model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelShape {
    pub attention_heads: usize,
    /// Equal to `attention_heads` where heads do not share keys (MLA shares its latent over all heads: then it is replicated).
    pub kv_heads: usize,
    /// Routed experts per layer; 0 for a dense layer.
    pub experts: Vec<usize>,
}

/// Which rank of a group holds what. Ranks load exactly this.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    pub epoch: u64,
    /// Number of the layout of experts: 0 as the group was made, later never used before. Within an epoch only that changes.
    pub layout: u64,
    pub ranks: Vec<RankPlacement>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankPlacement {
    pub rank: usize,
    /// Attention heads of this rank.
    pub heads: Range<usize>,
    /// Key/value heads of this rank; where there are fewer than ranks, several ranks hold the same one.
    pub kv_heads: Range<usize>,
    /// Per layer, the ids of the experts of this rank.
    pub experts: Vec<Vec<u32>>,
}

#[derive(Debug, Error, PartialEq, Eq)]
pub enum PlacementError {
    #[error("tensor parallel size must be at least 1")]
    NoRanks,
    #[error("{heads} attention heads cannot be shared evenly by {ranks} ranks; choose a size that divides {heads}")]
    Heads { heads: usize, ranks: usize },
    #[error("{kv_heads} key/value heads neither divide into nor are divided by {ranks} ranks")]
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

/// The `rank`th of `ranks` contiguous shares of 0..n, as even as can be.
pub fn share(n: usize, ranks: usize, rank: usize) -> Range<usize> {
    n * rank / ranks..n * (rank + 1) / ranks
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(heads: usize, kv_heads: usize) -> ModelShape {
        ModelShape { attention_heads: heads, kv_heads, experts: vec![0, 10] }
    }

    #[test]
    fn every_head_and_expert_has_one_rank() {
        for ranks in [1, 2, 4, 8] {
            let p = place(&shape(8, 8), ranks, 7).expect("fits");
            let heads: Vec<usize> = p.ranks.iter().flat_map(|r| r.heads.clone()).collect();
            assert_eq!(heads, (0..8).collect::<Vec<_>>());
            let experts: Vec<u32> = p.ranks.iter().flat_map(|r| r.experts[1].clone()).collect();
            assert_eq!(experts, (0..10).collect::<Vec<_>>());
            assert_eq!(p.epoch, 7);
        }
    }

    #[test]
    fn few_kv_heads_are_held_by_the_ranks_whose_queries_need_them() {
        let p = place(&shape(8, 2), 4, 1).expect("fits");
        let kv: Vec<_> = p.ranks.iter().map(|r| r.kv_heads.clone()).collect();
        assert_eq!(kv, [0..1, 0..1, 1..2, 1..2]);
    }

    #[test]
    fn what_cannot_be_shared_is_refused() {
        assert_eq!(place(&shape(8, 8), 0, 1), Err(PlacementError::NoRanks));
        assert_eq!(place(&shape(8, 8), 3, 1), Err(PlacementError::Heads { heads: 8, ranks: 3 }));
        assert_eq!(place(&shape(12, 3), 2, 1), Err(PlacementError::KvHeads { kv_heads: 3, ranks: 2 }));
    }
}
