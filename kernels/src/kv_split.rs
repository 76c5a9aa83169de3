//! Which rank of a group has which positions of a sequence, where a KV cache is split over ranks.

use std::ops::Range;

/// Positions that stay together: a tile of attention.
pub const TILE: usize = 64;
/// A tile belongs to one of these lanes in turn, and each rank has the same number of lanes. Attention over a lane has
/// one order, and lanes are joined in one order: so bits do not depend on the number of ranks.
pub const LANES: usize = 8;

/// A rank's part of a cache that is split over `ranks` ranks, of which lane l belongs to l % ranks. Blocks are numbered
/// over these ranks: block b is block b / ranks of rank b % ranks. Every run of `ranks` ranks of a group shares the
/// positions of other KV heads, so each run has the same blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvSplit {
    /// Among those that share the positions.
    pub rank: usize,
    pub ranks: usize,
}

impl KvSplit {
    /// A rank with all positions.
    pub const WHOLE: KvSplit = KvSplit { rank: 0, ranks: 1 };

    /// Of a rank of a group, where `ranks` share positions. None: nothing is split.
    pub fn new(rank: usize, ranks: usize) -> Option<KvSplit> {
        (ranks > 1).then(|| KvSplit { rank: rank % ranks, ranks })
    }

    /// The ranks of the group that share positions with this one, which is rank `of_group` there.
    pub fn sharing(self, of_group: usize) -> Range<usize> {
        let first = of_group - self.rank;
        first..first + self.ranks
    }

    /// Whether a cache with blocks of this size can be split over so many ranks.
    pub fn fits(ranks: usize, block_size: usize) -> bool {
        LANES.is_multiple_of(ranks.max(1)) && TILE.is_multiple_of(block_size.max(1))
    }

    /// The rank that has this position.
    pub fn owner(self, position: usize) -> usize {
        lane_of(position) % self.ranks
    }

    pub fn owns(self, position: usize) -> bool {
        self.owner(position) == self.rank
    }

    /// Its lanes, ascending.
    pub fn lanes(self) -> impl Iterator<Item = usize> + Clone {
        (self.rank..LANES).step_by(self.ranks)
    }
}

pub fn lane_of(position: usize) -> usize {
    position / TILE % LANES
}
