//! The cached blocks, in the order in which they became unreferenced: a list whose links are in the blocks, so that a
//! prompt of many blocks costs little when it begins and ends.

use super::{Block, BlockId};

/// The neighbours of a block in the list. Without meaning while it is not in the list.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Links {
    older: Option<BlockId>,
    newer: Option<BlockId>,
}

#[derive(Debug, Default)]
pub(super) struct UnusedBlocks {
    oldest: Option<BlockId>,
    newest: Option<BlockId>,
    len: usize,
}

impl UnusedBlocks {
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn oldest(&self) -> Option<BlockId> {
        self.oldest
    }

    /// Adds a block that is not in the list, as the newest one.
    pub fn push(&mut self, block: BlockId, blocks: &mut [Block]) {
        let older = self.newest.replace(block);
        blocks[block as usize].links = Links { older, newer: None };
        *self.newer_of(older, blocks) = Some(block);
        self.len += 1;
    }

    /// Removes a block that is in the list.
    pub fn remove(&mut self, block: BlockId, blocks: &mut [Block]) {
        let Links { older, newer } = blocks[block as usize].links;
        *self.newer_of(older, blocks) = newer;
        *self.older_of(newer, blocks) = older;
        self.len -= 1;
    }

    /// All blocks of the list, the oldest first.
    pub fn iter<'a>(&self, blocks: &'a [Block]) -> impl Iterator<Item = BlockId> + 'a {
        std::iter::successors(self.oldest, |&block| blocks[block as usize].links.newer)
    }

    /// What points to the block after this one; `None` stands for the beginning of the list.
    fn newer_of<'a>(&'a mut self, block: Option<BlockId>, blocks: &'a mut [Block]) -> &'a mut Option<BlockId> {
        match block {
            Some(block) => &mut blocks[block as usize].links.newer,
            None => &mut self.oldest,
        }
    }

    /// What points to the block before this one; `None` stands for the end of the list.
    fn older_of<'a>(&'a mut self, block: Option<BlockId>, blocks: &'a mut [Block]) -> &'a mut Option<BlockId> {
        match block {
            Some(block) => &mut blocks[block as usize].links.older,
            None => &mut self.newest,
        }
    }
}
