//! Blocks of conversations whose tool runs. Only a router knows that such a prompt will come back, longer: until then
//! its unreferenced blocks go after all others that are cached, within a share of the cache.

use std::collections::HashSet;
use std::time::Duration;

use super::unused::UnusedBlocks;
use super::{Block, BlockId, BlockPool};
use crate::limits::HOLD_DIVISOR;

#[derive(Debug)]
pub(super) struct HeldBlocks {
    /// Unreferenced ones, the least recently used first.
    unused: UnusedBlocks,
    most: usize,
    /// No hold ends before.
    ends: Duration,
}

impl HeldBlocks {
    /// Of a cache of so many blocks.
    pub fn of(blocks: usize) -> Self {
        HeldBlocks { unused: UnusedBlocks::default(), most: blocks / HOLD_DIVISOR, ends: Duration::MAX }
    }

    pub fn len(&self) -> usize {
        self.unused.len()
    }

    pub fn oldest(&self) -> Option<BlockId> {
        self.unused.oldest()
    }

    pub fn iter<'a>(&self, blocks: &'a [Block]) -> impl Iterator<Item = BlockId> + 'a {
        self.unused.iter(blocks)
    }
}

impl BlockPool {
    /// Registered blocks with these hashes are held until this time.
    pub fn hold(&mut self, hashes: &HashSet<u64>, until: Duration) {
        for id in 0..self.blocks.len() as BlockId {
            let block = &self.blocks[id as usize];
            if !block.registered.as_ref().is_some_and(|registered| hashes.contains(&registered.content.hash)) {
                continue;
            }
            let until = block.hold.map_or(until, |before| before.max(until));
            let unused = block.refs == 0;
            if unused {
                self.reuse(id);
            }
            self.blocks[id as usize].hold = Some(until);
            self.held.ends = self.held.ends.min(until);
            if unused {
                self.unuse(id);
            }
        }
    }

    /// Blocks that are held, and that no sequence uses now.
    pub fn held_blocks(&self) -> usize {
        self.held.len()
    }

    /// Holds that have ended: their blocks are again as old as they are.
    pub fn end_holds(&mut self, now: Duration) {
        if now < self.held.ends {
            return;
        }
        let mut ended: Vec<BlockId> = Vec::new();
        self.held.ends = Duration::MAX;
        for (id, block) in self.blocks.iter_mut().enumerate() {
            match block.hold {
                Some(until) if until <= now => {
                    if block.refs > 0 || block.registered.is_none() {
                        block.hold = None;
                    } else {
                        ended.push(id as BlockId);
                    }
                }
                Some(until) => self.held.ends = self.held.ends.min(until),
                None => {}
            }
        }
        let order: Vec<BlockId> = self.held.iter(&self.blocks).collect();
        let ended: HashSet<BlockId> = ended.into_iter().collect();
        // They have waited for longer than what was cached since.
        for id in order.into_iter().rev().filter(|id| ended.contains(id)) {
            self.reuse(id);
            self.cached.push_oldest(id, &mut self.blocks);
        }
    }

    /// A registered block that is not referenced any more.
    pub(super) fn unuse(&mut self, block: BlockId) {
        if self.blocks[block as usize].hold.is_none() || self.held.most == 0 {
            self.blocks[block as usize].hold = None;
            return self.cached.push(block, &mut self.blocks);
        }
        if self.held.len() >= self.held.most
            && let Some(oldest) = self.held.oldest()
        {
            self.reuse(oldest);
            self.cached.push(oldest, &mut self.blocks);
        }
        self.held.unused.push(block, &mut self.blocks);
    }

    /// An unreferenced block is taken out of its list. Its hold ends.
    pub(super) fn reuse(&mut self, block: BlockId) {
        match self.blocks[block as usize].hold.take() {
            Some(_) => self.held.unused.remove(block, &mut self.blocks),
            None => self.cached.remove(block, &mut self.blocks),
        }
    }

    pub(super) fn check_held(&self) -> Result<(), String> {
        let held = |block: &BlockId| self.blocks[*block as usize].hold.is_some();
        match self.held.iter(&self.blocks).all(|block| held(&block)) && !self.cached.iter(&self.blocks).any(|b| held(&b))
        {
            true => Ok(()),
            false => Err("a block is held in the wrong list".into()),
        }
    }
}
