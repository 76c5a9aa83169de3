//! Recurrent states at the ends of registered blocks: where a sequence with the same prefix, or one that goes back, can
//! begin. A block without one serves only as the past of others.

use std::collections::BTreeMap;

use super::{BlockId, BlockPool};
use crate::cells::StateShape;

#[derive(Debug)]
pub(super) struct Checkpoints {
    every: usize,
    count: usize,
    free: Vec<u32>,
    /// The blocks that have one, by when it was last used.
    held: BTreeMap<u64, BlockId>,
    /// The key in `held` of each cell.
    used: Vec<u64>,
    next: u64,
}

impl Checkpoints {
    pub fn new(shape: StateShape) -> Self {
        let StateShape { checkpoints: count, every } = shape;
        let free = (0..count as u32).rev().collect();
        Self { every, count, free, held: BTreeMap::new(), used: vec![0; count], next: 0 }
    }

    fn touch(&mut self, cell: u32, block: BlockId) {
        self.held.remove(&self.used[cell as usize]);
        self.next += 1;
        self.used[cell as usize] = self.next;
        self.held.insert(self.next, block);
    }
}

impl BlockPool {
    /// Whether sequences have recurrent states.
    pub fn has_states(&self) -> bool {
        self.checkpoints.is_some()
    }

    /// The cell with the state after a block.
    pub fn cell(&self, block: BlockId) -> Option<u32> {
        self.blocks[block as usize].registered.as_ref()?.cell
    }

    /// Whether a checkpoint at this position stays when the sequence has a later one.
    pub fn keeps_checkpoint(&self, position: usize) -> bool {
        self.checkpoints.as_ref().is_some_and(|checkpoints| position.is_multiple_of(checkpoints.every))
    }

    /// A sequence begins after this block.
    pub fn touch_checkpoint(&mut self, block: BlockId) {
        if let (Some(cell), Some(checkpoints)) = (self.cell(block), &mut self.checkpoints) {
            checkpoints.touch(cell, block);
        }
    }

    /// A cell for a checkpoint: a free one, or else that of the checkpoint that was not used for longest, unless `read`
    /// says that a row of this step begins with it.
    pub fn take_cell(&mut self, read: impl Fn(u32) -> bool) -> Option<u32> {
        let checkpoints = self.checkpoints.as_mut()?;
        if let Some(cell) = checkpoints.free.pop() {
            return Some(cell);
        }
        let cell_of = |block: BlockId| self.blocks[block as usize].registered.as_ref().and_then(|known| known.cell);
        let unread = |&block: &BlockId| cell_of(block).is_some_and(|cell| !read(cell));
        let block = checkpoints.held.values().copied().find(unread)?;
        self.drop_checkpoint(block);
        self.checkpoints.as_mut()?.free.pop()
    }

    /// Nothing was kept in it.
    pub fn return_cell(&mut self, cell: u32) {
        if let Some(checkpoints) = &mut self.checkpoints {
            checkpoints.free.push(cell);
        }
    }

    /// The cell holds the state after a registered block, which may have one already.
    pub fn keep_checkpoint(&mut self, block: BlockId, cell: u32) {
        let registered = self.blocks[block as usize].registered.as_mut();
        match (registered.filter(|registered| registered.cell.is_none()), &mut self.checkpoints) {
            (Some(registered), Some(checkpoints)) => {
                registered.cell = Some(cell);
                checkpoints.touch(cell, block);
            }
            _ => self.return_cell(cell),
        }
    }

    pub fn drop_checkpoint(&mut self, block: BlockId) {
        let registered = self.blocks[block as usize].registered.as_mut();
        if let (Some(cell), Some(checkpoints)) =
            (registered.and_then(|registered| registered.cell.take()), &mut self.checkpoints)
        {
            checkpoints.held.remove(&checkpoints.used[cell as usize]);
            checkpoints.free.push(cell);
        }
    }

    pub(super) fn check_checkpoints(&self) -> Result<(), String> {
        let Some(checkpoints) = &self.checkpoints else { return Ok(()) };
        let mut cells = checkpoints.free.clone();
        for (id, block) in self.blocks.iter().enumerate() {
            let Some(cell) = block.registered.as_ref().and_then(|registered| registered.cell) else { continue };
            if checkpoints.held.get(&checkpoints.used[cell as usize]) != Some(&(id as BlockId)) {
                return Err(format!("cell {cell} does not know that block {id} has it"));
            }
            cells.push(cell);
        }
        let count = cells.len();
        cells.sort_unstable();
        cells.dedup();
        if cells.len() != count || count > checkpoints.count || checkpoints.free.len() + checkpoints.held.len() != count
        {
            return Err(format!("a cell is held twice: {checkpoints:?}"));
        }
        Ok(())
    }

    /// How many cells are free or hold a checkpoint, of how many.
    #[cfg(test)]
    pub fn cells(&self) -> (usize, usize) {
        let checkpoints = self.checkpoints.as_ref();
        checkpoints.map_or((0, 0), |cells| (cells.free.len() + cells.held.len(), cells.count))
    }
}
