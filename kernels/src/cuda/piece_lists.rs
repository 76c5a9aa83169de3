//! Lists of the pieces of work that latent attention has in a step: all layers have the same. It does not make them.

use std::cell::RefCell;
use std::sync::Arc;

use super::arena::ArenaBlock;

/// The lanes of a rank: lane `first + i * step` is number i of `count`, and begins `i * stride` blocks into a
/// sequence's table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Lanes {
    pub count: usize,
    pub first: usize,
    pub step: usize,
    pub stride: usize,
}

/// Rows that are computed at once, and how many pieces each can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LatentWork {
    pub rows: usize,
    pub chunks: usize,
    /// Rows of a tile.
    pub tile: usize,
}

/// What makes the pieces of a step other ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PiecesOf {
    pub sequences: u64,
    pub first: usize,
    pub rows: usize,
    pub heads: usize,
    pub work: LatentWork,
    pub lanes: Option<Lanes>,
}

/// The pieces of rows: the arrays of latent.cu.
pub(super) struct PieceList {
    pub of: PiecesOf,
    pub arrays: [ArenaBlock; 11],
}

impl PieceList {
    pub fn tile_first(&self) -> u64 {
        self.arrays[8].address
    }

    pub fn tile_rows(&self) -> u64 {
        self.arrays[9].address
    }
}

/// Those of the step that is under way.
#[derive(Default)]
pub(super) struct StepPieces(RefCell<Vec<Arc<PieceList>>>);

impl StepPieces {
    /// The list of an earlier layer, or a new one.
    pub fn get(&self, of: PiecesOf, make: impl FnOnce() -> [ArenaBlock; 11]) -> Arc<PieceList> {
        if let Some(list) = self.0.borrow().iter().find(|list| list.of == of) {
            return Arc::clone(list);
        }
        let list = Arc::new(PieceList { of, arrays: make() });
        self.0.borrow_mut().push(Arc::clone(&list));
        list
    }

    pub fn forget(&self) {
        self.0.borrow_mut().clear();
    }
}
