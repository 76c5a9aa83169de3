//! Blocks of conversations whose tool runs. Only a router knows that such a prompt will come back, longer: until then
//! its unreferenced blocks go after all others that are cached, within a share of the cache.

use std::collections::HashSet;
use std::time::Duration;

use super::unused::UnusedBlocks;
use super::{Block, BlockId, BlockPool};
use crate::limits::HOLD_DIVISOR;

#[derive(Debug)]
pub(super) struct HeldBlocks {
    /// Those of each class that are unreferenced, the least recently used first.
    unused: Vec<UnusedBlocks>,
    /// How many there are with those that are referenced, and at most.
    count: usize,
    most: usize,
    /// No hold ends before.
    ends: Duration,
}

impl HeldBlocks {
    /// Of a cache of so many blocks.
    pub fn of(blocks: usize, classes: usize) -> Self {
        let unused = (0..classes).map(|_| UnusedBlocks::default()).collect();
        HeldBlocks { unused, count: 0, most: blocks / HOLD_DIVISOR, ends: Duration::MAX }
    }

    pub fn len_of(&self, class: usize) -> usize {
        self.unused[class].len()
    }

    pub fn oldest(&self, class: usize) -> Option<BlockId> {
        self.unused[class].oldest()
    }

    pub fn iter(&self, blocks: &[Block]) -> impl Iterator<Item = BlockId> {
        self.unused.iter().flat_map(|of_class| of_class.iter(blocks))
    }
}

impl BlockPool {
    /// Registered blocks with these hashes are held until this time; none of them if they exceed the share, for a
    /// prefix without its beginning is of no use, and those that are held already come back first.
    pub fn hold(&mut self, hashes: &HashSet<u64>, until: Duration) {
        let wanted = |block: &Block| block.registered.as_ref().is_some_and(|of| hashes.contains(&of.content.hash));
        let found: Vec<BlockId> =
            (0..).zip(&self.blocks).filter(|(_, block)| wanted(block)).map(|(id, _)| id).collect();
        let fresh = found.iter().filter(|&&id| self.blocks[id as usize].hold.is_none()).count();
        if self.held.count + fresh > self.held.most {
            return;
        }
        for id in found {
            let Block { hold, refs, .. } = &mut self.blocks[id as usize];
            match hold {
                Some(before) => *before = until.max(*before),
                None if *refs > 0 => {
                    *hold = Some(until);
                    self.held.count += 1;
                }
                None => {
                    let class = self.class_of(id);
                    self.cached[class].remove(id, &mut self.blocks);
                    self.blocks[id as usize].hold = Some(until);
                    self.held.count += 1;
                    self.held.unused[class].push(id, &mut self.blocks);
                }
            }
        }
        self.held.ends = self.held.ends.min(until);
    }

    /// Blocks that are held, and that no sequence uses now.
    pub fn held_blocks(&self) -> usize {
        (0..self.classes).map(|class| self.held.len_of(class)).sum()
    }

    /// Holds that have ended: their blocks are the next to go.
    pub fn end_holds(&mut self, now: Duration) {
        if now < self.held.ends {
            return;
        }
        self.held.ends = Duration::MAX;
        let mut ended = Vec::new();
        for (id, block) in (0..).zip(&mut self.blocks) {
            match block.hold {
                Some(until) if until <= now && block.refs > 0 => {
                    block.hold = None;
                    self.held.count -= 1;
                }
                Some(until) if until <= now => ended.push(id),
                Some(until) => self.held.ends = self.held.ends.min(until),
                None => {}
            }
        }
        let ended: HashSet<BlockId> = ended.into_iter().collect();
        let order: Vec<BlockId> = self.held.iter(&self.blocks).filter(|id| ended.contains(id)).collect();
        // They have waited for longer than what was cached since.
        for id in order.into_iter().rev() {
            self.reuse(id);
            let class = self.class_of(id);
            self.cached[class].push_oldest(id, &mut self.blocks);
        }
    }

    /// A registered block that is not referenced any more.
    pub(super) fn unuse(&mut self, block: BlockId) {
        let class = self.class_of(block);
        match self.blocks[block as usize].hold {
            Some(_) => self.held.unused[class].push(block, &mut self.blocks),
            None => self.cached[class].push(block, &mut self.blocks),
        }
    }

    /// An unreferenced block is taken out of its list. Its hold ends.
    pub(super) fn reuse(&mut self, block: BlockId) {
        let class = self.class_of(block);
        match self.blocks[block as usize].hold {
            Some(_) => {
                self.held.unused[class].remove(block, &mut self.blocks);
                self.drop_hold(block);
            }
            None => self.cached[class].remove(block, &mut self.blocks),
        }
    }

    pub(super) fn drop_hold(&mut self, block: BlockId) {
        self.held.count -= usize::from(self.blocks[block as usize].hold.take().is_some());
    }

    pub(super) fn check_held(&self) -> Result<(), String> {
        let held = |block: &BlockId| self.blocks[*block as usize].hold.is_some();
        let count = self.blocks.iter().filter(|block| block.hold.is_some()).count();
        if count != self.held.count {
            return Err(format!("{count} blocks are held, counted are {}", self.held.count));
        }
        match self.held.iter(&self.blocks).all(|block| held(&block))
            && !self.cached.iter().flat_map(|of_class| of_class.iter(&self.blocks)).any(|b| held(&b))
        {
            true => Ok(()),
            false => Err("a block is held in the wrong list".into()),
        }
    }
}
