//! Where the recurrent states of a sequence are. A recurrent state cannot be truncated: a sequence that goes back
//! begins again at a position of which a state was kept, and computes the tokens after it again.

use super::Seq;
use crate::blocks::{BlockId, BlockPool};
use crate::limits::RECENT_STATES;

#[derive(Debug, Default)]
pub struct SequenceStates {
    /// The positions of the states in the slot's own cells, once what is under way is done.
    recent: [Option<usize>; RECENT_STATES],
    /// The block with its newest checkpoint, if that goes when there is a newer one.
    passing: Option<BlockId>,
}

/// Where the state before a position is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StateAt {
    /// Position 0 has none.
    Begin,
    /// This one of the slot's own cells.
    Recent(usize),
    /// The checkpoint of a block.
    After(BlockId),
}

impl SequenceStates {
    pub fn forget_after(&mut self, position: usize) {
        for recent in &mut self.recent {
            *recent = recent.filter(|&recent| recent <= position);
        }
    }

    /// The next step leaves the state at `end` in one of the slot's own cells: not in the one that it reads, and rather
    /// in that of the oldest.
    pub fn leave(&mut self, start: usize, end: usize) -> usize {
        let others = (0..RECENT_STATES).filter(|&at| self.recent[at] != Some(start));
        let at = others.min_by_key(|&at| self.recent[at]).unwrap_or(0);
        self.recent[at] = Some(end);
        at
    }
}

impl Seq {
    /// None: that state was not kept.
    pub fn state_at(&self, position: usize, blocks: &BlockPool) -> Option<StateAt> {
        if position == 0 {
            return Some(StateAt::Begin);
        }
        if let Some(at) = self.states.recent.iter().position(|recent| *recent == Some(position)) {
            return Some(StateAt::Recent(at));
        }
        let (index, rest) = ((position / blocks.block_size()).checked_sub(1)?, position % blocks.block_size());
        let block = *self.table[..self.registered].get(index).filter(|_| rest == 0)?;
        blocks.cell(block).map(|_| StateAt::After(block))
    }

    /// The last position up to this one at which the sequence can go on.
    pub fn restore_point(&self, position: usize, blocks: &BlockPool) -> usize {
        if !blocks.has_states() {
            return position;
        }
        let size = blocks.block_size();
        let recent = self.states.recent.iter().flatten().copied().filter(|&recent| recent <= position).max();
        let full = self.registered.min(position / size);
        let block = (0..full).rev().find(|&index| blocks.cell(self.table[index]).is_some());
        recent.max(block.map(|index| (index + 1) * size)).unwrap_or(0)
    }

    /// Goes back if the state that the next row needs was not kept.
    pub fn restore(&mut self, blocks: &mut BlockPool) {
        let point = self.restore_point(self.computed, blocks);
        if point < self.computed {
            self.rewind(point, blocks);
        }
    }

    /// The positions within a row at which checkpoints are made: its last end of a block, and those that are kept.
    pub fn checkpoints(&self, start: usize, end: usize, blocks: &BlockPool) -> Vec<usize> {
        let size = blocks.block_size();
        if !blocks.caches() {
            return Vec::new();
        }
        let (first, last) = (start / size + 1, end / size);
        let wanted = |&position: &usize| position == last * size || blocks.keeps_checkpoint(position);
        (first..=last).map(|index| index * size).filter(wanted).collect()
    }

    /// The cell holds the state at this position, whose block was registered just now, or should have been.
    pub fn keep_checkpoint(&mut self, position: usize, cell: u32, blocks: &mut BlockPool) {
        let size = blocks.block_size();
        let Some(&block) = self.table[..self.registered].get(position / size - 1) else {
            return blocks.return_cell(cell);
        };
        blocks.keep_checkpoint(block, cell);
        if let Some(before) = self.states.passing.take().filter(|&before| before != block) {
            let index = self.table[..self.registered].iter().rposition(|&held| held == before);
            if index.is_some() && blocks.sole(before) {
                blocks.drop_checkpoint(before);
            }
        }
        // The end of the prompt is where the next request of a conversation may begin.
        let stays =
            blocks.keeps_checkpoint(position) || position + size > self.prompt_len && position <= self.prompt_len;
        self.states.passing = (!stays).then_some(block);
    }
}
