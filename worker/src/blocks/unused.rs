//! Blocks or places that are not in use, in the order in which they became so: a list whose links are in them, so that
//! a prompt of many blocks costs little when it begins and ends.

use super::BlockId;

/// What is in such a list.
pub(super) trait Linked {
    fn links(&self) -> Links;
    fn links_mut(&mut self) -> &mut Links;
}

/// The neighbours in the list. Without meaning while it is not in the list.
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
    pub fn push(&mut self, block: BlockId, blocks: &mut [impl Linked]) {
        let older = self.newest.replace(block);
        *blocks[block as usize].links_mut() = Links { older, newer: None };
        *self.newer_of(older, blocks) = Some(block);
        self.len += 1;
    }

    /// Adds a block that is not in the list, as the oldest one.
    pub fn push_oldest(&mut self, block: BlockId, blocks: &mut [impl Linked]) {
        let newer = self.oldest.replace(block);
        *blocks[block as usize].links_mut() = Links { older: None, newer };
        *self.older_of(newer, blocks) = Some(block);
        self.len += 1;
    }

    /// Removes a block that is in the list.
    pub fn remove(&mut self, block: BlockId, blocks: &mut [impl Linked]) {
        let Links { older, newer } = blocks[block as usize].links();
        *self.newer_of(older, blocks) = newer;
        *self.older_of(newer, blocks) = older;
        self.len -= 1;
    }

    /// All blocks of the list, the oldest first.
    pub fn iter<'a>(&self, blocks: &'a [impl Linked]) -> impl Iterator<Item = BlockId> + 'a {
        std::iter::successors(self.oldest, |&block| blocks[block as usize].links().newer)
    }

    /// What points to the block after this one; `None` stands for the beginning of the list.
    fn newer_of<'a>(&'a mut self, block: Option<BlockId>, blocks: &'a mut [impl Linked]) -> &'a mut Option<BlockId> {
        match block {
            Some(block) => &mut blocks[block as usize].links_mut().newer,
            None => &mut self.oldest,
        }
    }

    /// What points to the block before this one; `None` stands for the end of the list.
    fn older_of<'a>(&'a mut self, block: Option<BlockId>, blocks: &'a mut [impl Linked]) -> &'a mut Option<BlockId> {
        match block {
            Some(block) => &mut blocks[block as usize].links_mut().older,
            None => &mut self.newest,
        }
    }
}
