//! Paged KV blocks and the prefix cache.
//!
//! A block is free, referenced by block tables, or cached: full, unreferenced, and kept for a later sequence with the
//! same prefix until it is the least recently used one and room is needed. A full block is registered under its whole
//! past (the registered block before it, or the salt for the first block) and its own tokens. Keys are compared, not
//! only hashed, so that no collision can hand a sequence another one's prompt. Routers cannot see the keys, so each
//! registered block also has a content hash (`block_hash`), and while there is a listener, registrations and evictions
//! are recorded. This module does not know sequences.

mod checkpoints;
mod hold;
mod host;
mod unused;

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use checkpoints::Checkpoints;
use hold::HeldBlocks;
use host::HostPlaces;
pub use host::{HostShape, KeptBlock, PlaceId};
use rein_kernels::kv_split;
use rein_proto::block_hash;
use unused::{Linked, Links, UnusedBlocks};

use crate::cells::StateShape;

pub type BlockId = u32;

/// The past of a block.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Parent {
    /// No past; sequences share blocks only under equal salts.
    Root(Arc<str>),
    /// The content with this number. Numbers are never reused.
    After(u64),
}

/// Where a content is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BlockTier {
    /// In a KV block.
    Cache,
    /// In a place of the host tier.
    Host,
}

/// A content with this hash came to a tier, or left it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockChange {
    pub hash: u64,
    pub stored: bool,
    pub tier: BlockTier,
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Key {
    parent: Parent,
    tokens: Box<[u32]>,
}

/// What a full block holds, wherever it is.
#[derive(Debug, Clone)]
struct Content {
    number: u64,
    hash: u64,
    key: Arc<Key>,
}

impl Content {
    fn as_parent(&self) -> Parent {
        Parent::After(self.number)
    }
}

#[derive(Debug)]
struct Registered {
    content: Content,
    /// The cell with the recurrent state after this block.
    cell: Option<u32>,
}

/// The blocks of an executor, as in its shape.
#[derive(Debug, Clone, Copy)]
pub struct PoolShape {
    pub blocks: usize,
    pub block_size: usize,
    pub states: Option<StateShape>,
    pub kv_ranks: usize,
}

/// Numbers of blocks by class.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ByClass(Vec<usize>);

impl ByClass {
    pub fn plus(mut self, other: &ByClass) -> Self {
        self.0.iter_mut().zip(&other.0).for_each(|(a, b)| *a += b);
        self
    }

    pub fn plus_each(mut self, count: usize) -> Self {
        self.0.iter_mut().for_each(|a| *a += count);
        self
    }

    /// At least 0 of each.
    pub fn minus(mut self, other: &ByClass) -> Self {
        self.0.iter_mut().zip(&other.0).for_each(|(a, b)| *a = a.saturating_sub(*b));
        self
    }

    /// Of the class with the most.
    pub fn most(&self) -> usize {
        self.0.iter().copied().max().unwrap_or(0)
    }
}

/// A cached prefix: blocks, then places of the host tier.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Prefix {
    pub blocks: Vec<BlockId>,
    pub places: Vec<PlaceId>,
}

#[derive(Debug, Default)]
struct Block {
    refs: u32,
    registered: Option<Registered>,
    /// The block that was registered or found after it last. It may hold something else by now.
    next: Option<BlockId>,
    /// Its place among the cached blocks, or those that are held, while it is unreferenced.
    links: Links,
    /// Its conversation comes back before this time, says a router.
    hold: Option<Duration>,
}

impl Linked for Block {
    fn links(&self) -> Links {
        self.links
    }

    fn links_mut(&mut self) -> &mut Links {
        &mut self.links
    }
}

#[derive(Debug)]
pub struct BlockPool {
    block_size: usize,
    caches: bool,
    /// Kinds of blocks, of which a table has `run` in turn: those of each rank where the cache is split over ranks.
    classes: usize,
    run: usize,
    blocks: Vec<Block>,
    /// By class.
    free: Vec<Vec<BlockId>>,
    index: HashMap<Arc<Key>, BlockId>,
    /// Registered and unreferenced blocks of each class, the least recently used first.
    cached: Vec<UnusedBlocks>,
    /// Those of them that go last.
    held: HeldBlocks,
    /// None: there is no host tier.
    host: Option<HostPlaces>,
    next_content: u64,
    /// None: the model has no recurrent layers.
    checkpoints: Option<Checkpoints>,
    /// Changes since the last `take_changes`. None: there is no listener.
    changes: Option<Vec<BlockChange>>,
}

impl BlockPool {
    /// The blocks of an executor. `caches`: whether blocks are registered at all.
    pub fn of(shape: PoolShape, host: &HostShape, caches: bool) -> Self {
        let mut pool = Self::in_classes(shape, caches);
        if let Some((host, next)) = HostPlaces::new(host, shape.block_size, shape.kv_ranks.max(1)).filter(|_| caches) {
            (pool.host, pool.next_content) = (Some(host), next);
        }
        pool
    }

    #[cfg(test)]
    pub fn new(blocks: usize, block_size: usize, caches: bool, states: Option<StateShape>) -> Self {
        Self::of(PoolShape { blocks, block_size, states, kv_ranks: 1 }, &HostShape::default(), caches)
    }

    fn in_classes(shape: PoolShape, caches: bool) -> Self {
        let PoolShape { blocks: count, block_size, states, kv_ranks } = shape;
        assert!(block_size > 0, "a KV block holds at least one token");
        let (count, classes) = (u32::try_from(count).unwrap_or(u32::MAX), kv_ranks.max(1));
        let of_class = |class: usize| (0..count).filter(move |&block| block as usize % classes == class);
        Self {
            block_size,
            caches,
            classes,
            run: (kv_split::TILE / block_size).max(1),
            blocks: (0..count).map(|_| Block::default()).collect(),
            free: (0..classes).map(|class| of_class(class).rev().collect()).collect(),
            index: HashMap::new(),
            cached: (0..classes).map(|_| UnusedBlocks::default()).collect(),
            held: HeldBlocks::of(count as usize, classes),
            host: None,
            next_content: 0,
            checkpoints: states.map(Checkpoints::new),
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

    /// The content hashes of all registered blocks and filled places. A hash occurs twice in a tier if a block stayed
    /// when its parent was unregistered, and the same content was computed again after a new parent.
    pub fn hashes(&self) -> impl Iterator<Item = (u64, BlockTier)> {
        let cached = self.blocks.iter().filter_map(|block| Some(block.registered.as_ref()?.content.hash));
        let host = self.host.iter().flat_map(|host| host.hashes());
        cached.map(|hash| (hash, BlockTier::Cache)).chain(host.map(|hash| (hash, BlockTier::Host)))
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
        (0..self.classes).map(|class| self.available_of(class)).sum()
    }

    fn available_of(&self, class: usize) -> usize {
        self.free[class].len() + self.cached[class].len() + self.held.len_of(class)
    }

    /// By class, the blocks at these places of a table.
    pub fn count_places(&self, places: Range<usize>) -> ByClass {
        let mut counts = ByClass(vec![0; self.classes]);
        places.for_each(|place| counts.0[self.class_at(place)] += 1);
        counts
    }

    /// By class, those of these blocks that are unreferenced: referencing them reduces the available blocks.
    pub fn unreferenced(&self, blocks: &[BlockId]) -> ByClass {
        self.count_blocks(blocks.iter().filter(|&&block| self.blocks[block as usize].refs == 0))
    }

    /// By class.
    pub fn count_blocks<'a>(&self, blocks: impl Iterator<Item = &'a BlockId>) -> ByClass {
        let mut counts = ByClass(vec![0; self.classes]);
        blocks.for_each(|&block| counts.0[self.class_of(block)] += 1);
        counts
    }

    /// Whether so many can be allocated.
    pub fn has(&self, counts: &ByClass) -> bool {
        counts.0.iter().enumerate().all(|(class, &count)| count <= self.available_of(class))
    }

    pub fn classes(&self) -> usize {
        self.classes
    }

    fn class_at(&self, place: usize) -> usize {
        place / self.run % self.classes
    }

    fn class_of(&self, block: BlockId) -> usize {
        block as usize % self.classes
    }

    /// Referenced blocks.
    pub fn used(&self) -> usize {
        self.total() - self.available()
    }

    /// The longest registered prefix of `tokens`, in whole blocks, after which a sequence can go on, and what follows
    /// it in the host tier. Does not reference them.
    pub fn lookup(&mut self, salt: &Arc<str>, tokens: &[u32]) -> Prefix {
        let mut parent = Parent::Root(salt.clone());
        let mut found = Prefix::default();
        for chunk in tokens.chunks_exact(self.block_size) {
            let before = found.blocks.last().copied().filter(|_| found.places.is_empty());
            // Most sequences continue as the last one did, which spares the index.
            let next = before.and_then(|before| self.blocks[before as usize].next);
            let next = next.filter(|&next| self.holds(next, &parent, chunk));
            let key = match next {
                Some(_) => None,
                None => Some(Key { parent, tokens: chunk.into() }),
            };
            let block = next.or_else(|| self.index.get(key.as_ref()?).copied()).filter(|_| found.places.is_empty());
            let content = match block {
                Some(block) => {
                    if next.is_none() {
                        self.follow(before, block);
                    }
                    found.blocks.push(block);
                    self.blocks[block as usize].registered.as_ref().map(|registered| &registered.content)
                }
                None => key.as_ref().zip(self.host.as_ref()).and_then(|(key, host)| host.find(key)).map(
                    |(place, content)| {
                        found.places.push(place);
                        content
                    },
                ),
            };
            let Some(content) = content else { break };
            parent = content.as_parent();
        }
        while self.checkpoints.is_some() && found.blocks.last().is_some_and(|&block| self.cell(block).is_none()) {
            found.blocks.pop();
        }
        found
    }

    fn holds(&self, block: BlockId, parent: &Parent, tokens: &[u32]) -> bool {
        let key = self.blocks[block as usize].registered.as_ref().map(|registered| &*registered.content.key);
        key.is_some_and(|key| key.parent == *parent && *key.tokens == *tokens)
    }

    fn follow(&mut self, before: Option<BlockId>, block: BlockId) {
        if let Some(before) = before {
            self.blocks[before as usize].next = Some(block);
        }
    }

    /// A block for this place of one sequence's table, with undefined contents.
    pub fn allocate(&mut self, place: usize) -> Option<BlockId> {
        let class = self.class_at(place);
        let block = match self.free[class].pop() {
            Some(block) => block,
            None => {
                let block = self.cached[class].oldest().or(self.held.oldest(class))?;
                self.reuse(block);
                self.demote(block);
                self.forget(block);
                block
            }
        };
        self.blocks[block as usize].refs = 1;
        Some(block)
    }

    pub fn retain(&mut self, block: BlockId) {
        if self.blocks[block as usize].refs == 0 {
            self.reuse(block);
        }
        self.blocks[block as usize].refs += 1;
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
            self.touch_place(block);
            self.unuse(block);
        } else {
            let class = self.class_of(block);
            self.free[class].push(block);
        }
    }

    /// Registers a full, computed block: the first of a sequence with this salt, or the one that follows `before`. If
    /// the same content is registered already, the reference moves to that block. `None`: `before` is not registered.
    pub fn register(
        &mut self,
        block: BlockId,
        before: Option<BlockId>,
        salt: &Arc<str>,
        tokens: &[u32],
    ) -> Option<BlockId> {
        debug_assert_eq!(tokens.len(), self.block_size);
        let (parent, hash) = match before {
            None => (Parent::Root(salt.clone()), block_hash::root(salt)),
            Some(before) => {
                let registered = self.blocks[before as usize].registered.as_ref()?;
                (registered.content.as_parent(), registered.content.hash)
            }
        };
        let key = Arc::new(Key { parent, tokens: tokens.into() });
        if let Some(&twin) = self.index.get(&key) {
            if twin != block {
                self.retain(twin);
                self.release(block);
            }
            return Some(twin);
        }
        self.index.insert(key.clone(), block);
        self.follow(before, block);
        // In the host tier it has a number, which what follows it there knows.
        let known = self.host.as_ref().and_then(|host| host.find(&key)).map(|(_, content)| content.clone());
        let content = known.unwrap_or_else(|| {
            self.next_content += 1;
            Content { number: self.next_content - 1, hash: block_hash::after(hash, tokens), key }
        });
        let hash = content.hash;
        self.blocks[block as usize].registered = Some(Registered { content, cell: None });
        self.record(hash, true, BlockTier::Cache);
        self.copy_full(block);
        Some(block)
    }

    /// The content hash of a registered block.
    #[cfg(test)]
    pub fn hash(&self, block: BlockId) -> Option<u64> {
        self.blocks[block as usize].registered.as_ref().map(|registered| registered.content.hash)
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
        self.drop_checkpoint(block);
        self.drop_hold(block);
        if let Some(Registered { content: Content { hash, key, .. }, .. }) =
            self.blocks[block as usize].registered.take()
        {
            self.index.remove(&key);
            self.record(hash, false, BlockTier::Cache);
        }
    }

    fn record(&mut self, hash: u64, stored: bool, tier: BlockTier) {
        if let Some(changes) = &mut self.changes {
            changes.push(BlockChange { hash, stored, tier });
        }
    }

    /// Whether releasing one reference makes the block available.
    pub fn sole(&self, block: BlockId) -> bool {
        self.blocks[block as usize].refs == 1
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
                if self.class_of(block) != self.class_at(index) {
                    return Err(format!("block {block} is at place {index}, which is another rank's"));
                }
                let Some(count) = refs.get_mut(block as usize) else { return Err(format!("no block {block}")) };
                *count += 1;
                match (&self.blocks[block as usize].registered, index < registered) {
                    (Some(Registered { content, .. }), true) => {
                        let from = index * self.block_size;
                        if tokens.get(from..from + self.block_size) != Some(&content.key.tokens[..]) {
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
            if let Some(Registered { content, .. }) = &state.registered
                && self.index.get(&content.key) != Some(&(id as BlockId))
            {
                return Err(format!("block {id} is registered but cannot be found"));
            }
            unreferenced += usize::from(state.refs == 0);
        }
        let free = || self.free.iter().flatten().copied();
        if free().any(|b| self.blocks[b as usize].refs > 0 || self.blocks[b as usize].registered.is_some()) {
            return Err("a free block is referenced or registered".into());
        }
        let cached = || self.cached.iter().flat_map(|of_class| of_class.iter(&self.blocks));
        let unused = || cached().chain(self.held.iter(&self.blocks));
        for block in unused() {
            let state = &self.blocks[block as usize];
            if state.refs > 0 || state.registered.is_none() {
                return Err(format!("block {block} is cached but referenced or not registered"));
            }
        }
        self.check_held()?;
        let mut all: Vec<BlockId> = free().chain(unused()).collect();
        all.sort_unstable();
        all.dedup();
        if all.len() != unreferenced || self.available() != unreferenced {
            return Err(format!(
                "{} free and {} cached blocks, {unreferenced} unreferenced of {}",
                free().count(),
                unused().count(),
                self.total()
            ));
        }
        if self.index.len() != self.blocks.iter().filter(|state| state.registered.is_some()).count() {
            return Err("the index holds a block that is not registered".into());
        }
        self.check_host()?;
        self.check_checkpoints()
    }
}

#[cfg(test)]
mod tests;
