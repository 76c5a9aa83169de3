//! Paged KV blocks and the prefix cache.
//!
//! A block is free, referenced by block tables, or cached: full, unreferenced, and kept for a later sequence with the
//! same prefix until it is the least recently used one and room is needed. A full block is registered under its whole
//! past (the registered block before it, or the salt for the first block) and its own tokens. Keys are compared, not
//! only hashed, so that no collision can hand a sequence another one's prompt. Routers cannot see the keys, so each
//! registered block also has a content hash (`block_hash`), and while there is a listener, registrations and evictions
//! are recorded. This module does not know sequences.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use rein_proto::block_hash;

pub type BlockId = u32;

/// The past of a block.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Parent {
    /// No past; sequences share blocks only under equal salts.
    Root(Arc<str>),
    /// The content with this number. Numbers are never reused. The hash is that of its block.
    After { content: u64, hash: u64 },
}

/// A block with this content hash was registered or unregistered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockChange {
    pub hash: u64,
    pub stored: bool,
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Key {
    parent: Parent,
    tokens: Box<[u32]>,
}

#[derive(Debug)]
struct Registered {
    content: u64,
    hash: u64,
    key: Arc<Key>,
}

impl Registered {
    fn as_parent(&self) -> Parent {
        Parent::After { content: self.content, hash: self.hash }
    }
}

#[derive(Debug, Default)]
struct Block {
    refs: u32,
    registered: Option<Registered>,
    /// Its position among the cached blocks while it is unreferenced.
    stamp: u64,
}

#[derive(Debug)]
pub struct BlockPool {
    block_size: usize,
    caches: bool,
    blocks: Vec<Block>,
    free: Vec<BlockId>,
    index: HashMap<Arc<Key>, BlockId>,
    /// Registered and unreferenced blocks, oldest first.
    cached: BTreeMap<u64, BlockId>,
    next_content: u64,
    next_stamp: u64,
    /// Changes since the last `take_changes`. None: there is no listener.
    changes: Option<Vec<BlockChange>>,
}

impl BlockPool {
    /// `caches`: whether blocks are registered at all.
    pub fn new(count: usize, block_size: usize, caches: bool) -> Self {
        assert!(block_size > 0, "a KV block holds at least one token");
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        Self {
            block_size,
            caches,
            blocks: (0..count).map(|_| Block::default()).collect(),
            free: (0..count).rev().collect(),
            index: HashMap::new(),
            cached: BTreeMap::new(),
            next_content: 0,
            next_stamp: 0,
            changes: None,
        }
    }

    /// Starts or stops recording changes.
    pub fn listen(&mut self, on: bool) {
        self.changes = on.then(Vec::new);
    }

    pub fn listening(&self) -> bool {
        self.changes.is_some()
    }

    /// Must be called after each round while recording: changes accumulate.
    pub fn take_changes(&mut self) -> Vec<BlockChange> {
        self.changes.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// The content hashes of all registered blocks. A hash occurs twice if a block stayed when its parent was
    /// unregistered, and the same content was computed again after a new parent.
    pub fn hashes(&self) -> impl Iterator<Item = u64> {
        self.blocks.iter().filter_map(|block| Some(block.registered.as_ref()?.hash))
    }

    pub fn block_size(&self) -> usize {
        self.block_size
    }

    pub fn caches(&self) -> bool {
        self.caches
    }

    pub fn total(&self) -> usize {
        self.blocks.len()
    }

    /// Number of blocks that `allocate` can still return.
    pub fn available(&self) -> usize {
        self.free.len() + self.cached.len()
    }

    /// Referenced blocks.
    pub fn used(&self) -> usize {
        self.total() - self.available()
    }

    /// The longest registered prefix of `tokens`, in whole blocks. Does not reference them.
    pub fn lookup(&self, salt: &Arc<str>, tokens: &[u32]) -> Vec<BlockId> {
        let mut parent = Parent::Root(salt.clone());
        let mut found = Vec::new();
        for chunk in tokens.chunks_exact(self.block_size) {
            let key = Key { parent, tokens: chunk.into() };
            let Some(&block) = self.index.get(&key) else { break };
            let Some(registered) = &self.blocks[block as usize].registered else { break };
            found.push(block);
            parent = registered.as_parent();
        }
        found
    }

    /// The number of these blocks that are unreferenced: referencing them reduces the available blocks.
    pub fn unreferenced(&self, blocks: &[BlockId]) -> usize {
        blocks.iter().filter(|&&block| self.blocks[block as usize].refs == 0).count()
    }

    /// A block for one sequence, with undefined contents.
    pub fn allocate(&mut self) -> Option<BlockId> {
        let block = match self.free.pop() {
            Some(block) => block,
            None => {
                let (_, block) = self.cached.pop_first()?;
                self.forget(block);
                block
            }
        };
        self.blocks[block as usize].refs = 1;
        Some(block)
    }

    pub fn retain(&mut self, block: BlockId) {
        let state = &mut self.blocks[block as usize];
        if state.refs == 0 {
            self.cached.remove(&state.stamp);
        }
        state.refs += 1;
    }

    /// Releases one reference. Tables must be released from their end, so that a block is evicted before its parent.
    pub fn release(&mut self, block: BlockId) {
        let state = &mut self.blocks[block as usize];
        debug_assert!(state.refs > 0, "block {block} is released twice");
        state.refs -= 1;
        if state.refs > 0 {
            return;
        }
        if state.registered.is_some() {
            state.stamp = self.next_stamp;
            self.next_stamp += 1;
            self.cached.insert(state.stamp, block);
        } else {
            self.free.push(block);
        }
    }

    /// Registers a full, computed block. If the same content is registered already, the reference moves to that block.
    pub fn register(&mut self, block: BlockId, parent: Parent, tokens: &[u32]) -> BlockId {
        debug_assert_eq!(tokens.len(), self.block_size);
        let before = match &parent {
            Parent::Root(salt) => block_hash::root(salt),
            Parent::After { hash, .. } => *hash,
        };
        let key = Arc::new(Key { parent, tokens: tokens.into() });
        if let Some(&twin) = self.index.get(&key) {
            if twin != block {
                self.retain(twin);
                self.release(block);
            }
            return twin;
        }
        self.index.insert(key.clone(), block);
        let hash = block_hash::after(before, tokens);
        self.blocks[block as usize].registered = Some(Registered { content: self.next_content, hash, key });
        self.next_content += 1;
        self.record(hash, true);
        block
    }

    /// The parent for what follows this block, if it is registered.
    pub fn content(&self, block: BlockId) -> Option<Parent> {
        self.blocks[block as usize].registered.as_ref().map(Registered::as_parent)
    }

    /// Makes a registered block writable again. False: others read it, and the caller needs a fresh block.
    pub fn reclaim(&mut self, block: BlockId) -> bool {
        let exclusive = self.blocks[block as usize].refs == 1;
        if exclusive {
            self.forget(block);
        }
        exclusive
    }

    fn forget(&mut self, block: BlockId) {
        if let Some(Registered { hash, key, .. }) = self.blocks[block as usize].registered.take() {
            self.index.remove(&key);
            self.record(hash, false);
        }
    }

    fn record(&mut self, hash: u64, stored: bool) {
        if let Some(changes) = &mut self.changes {
            changes.push(BlockChange { hash, stored });
        }
    }

    /// Whether only one sequence uses this block: one reference, not registered.
    pub fn writable(&self, block: BlockId) -> bool {
        let state = &self.blocks[block as usize];
        state.refs == 1 && state.registered.is_none()
    }

    /// Checks the bookkeeping against the block tables of all sequences, each with its number of registered blocks and
    /// its tokens.
    pub fn check<'a>(&self, tables: impl Iterator<Item = (&'a [BlockId], usize, &'a [u32])>) -> Result<(), String> {
        let mut refs = vec![0u32; self.total()];
        for (table, registered, tokens) in tables {
            for (index, &block) in table.iter().enumerate() {
                let Some(count) = refs.get_mut(block as usize) else { return Err(format!("no block {block}")) };
                *count += 1;
                match (&self.blocks[block as usize].registered, index < registered) {
                    (Some(Registered { key, .. }), true) => {
                        let from = index * self.block_size;
                        if tokens.get(from..from + self.block_size) != Some(&key.tokens[..]) {
                            return Err(format!("block {block} holds other tokens than its sequence at {from}"));
                        }
                    }
                    (None, false) => {}
                    (entry, claim) => {
                        return Err(format!(
                            "block {block}: registered {}, its sequence says {claim}",
                            entry.is_some()
                        ));
                    }
                }
            }
        }
        let mut unreferenced = 0;
        for (id, state) in self.blocks.iter().enumerate() {
            if state.refs != refs[id] {
                return Err(format!("block {id} counts {} references, tables hold {}", state.refs, refs[id]));
            }
            if state.refs > 1 && state.registered.is_none() {
                return Err(format!("block {id} is shared but not registered"));
            }
            if let Some(Registered { key, .. }) = &state.registered
                && self.index.get(key) != Some(&(id as BlockId))
            {
                return Err(format!("block {id} is registered but cannot be found"));
            }
            unreferenced += usize::from(state.refs == 0);
        }
        if self.free.iter().any(|&b| self.blocks[b as usize].refs > 0 || self.blocks[b as usize].registered.is_some()) {
            return Err("a free block is referenced or registered".into());
        }
        for (stamp, &block) in &self.cached {
            let state = &self.blocks[block as usize];
            if state.refs > 0 || state.registered.is_none() || state.stamp != *stamp {
                return Err(format!("block {block} is cached but referenced, not registered or misplaced"));
            }
        }
        let mut all: Vec<BlockId> = self.free.iter().chain(self.cached.values()).copied().collect();
        all.sort_unstable();
        all.dedup();
        if all.len() != unreferenced || self.available() != unreferenced {
            return Err(format!(
                "{} free and {} cached blocks, {unreferenced} unreferenced of {}",
                self.free.len(),
                self.cached.len(),
                self.total()
            ));
        }
        if self.index.len() != self.blocks.iter().filter(|state| state.registered.is_some()).count() {
            return Err("the index holds a block that is not registered".into());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
