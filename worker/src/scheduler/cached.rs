//! The changes of the prefix cache that the scheduler reports. It does not know who listens.

use super::Scheduler;
use crate::blocks::{BlockChange, BlockTier};

impl Scheduler {
    /// Starts to record changes of cached blocks. Returns the content hashes of those cached now, and where; some may
    /// occur twice.
    pub fn listen(&mut self) -> Vec<(u64, BlockTier)> {
        self.blocks.listen(true);
        self.blocks.hashes().collect()
    }

    /// Stops recording.
    pub fn unlisten(&mut self) {
        self.blocks.listen(false);
    }

    pub fn listening(&self) -> bool {
        self.blocks.listening()
    }

    /// The changes since the last call, in order. A block may be stored twice; then it is removed twice.
    pub fn take_block_changes(&mut self) -> Vec<BlockChange> {
        self.blocks.take_changes()
    }
}

/// A copy of the cache's contents built from the recorded changes, compared with the cache.
#[cfg(test)]
#[derive(Default)]
pub(super) struct CacheMirror {
    held: std::collections::BTreeMap<(u64, bool), usize>,
}

#[cfg(test)]
impl CacheMirror {
    pub fn hear(&mut self, scheduler: &mut Scheduler) {
        use rein_proto::block_hash;

        let key = |hash, tier| (hash, tier == BlockTier::Host);
        if !scheduler.listening() {
            assert!(scheduler.take_block_changes().is_empty(), "changes were recorded without a listener");
            scheduler.listen().into_iter().for_each(|(hash, tier)| *self.held.entry(key(hash, tier)).or_default() += 1);
        }
        for BlockChange { hash, stored, tier } in scheduler.take_block_changes() {
            let count = self.held.entry(key(hash, tier)).or_default();
            *count = if stored { *count + 1 } else { count.checked_sub(1).expect("removed before it was stored") };
        }
        self.held.retain(|_, count| *count > 0);
        let mut hashes: Vec<_> = scheduler.blocks.hashes().map(|(hash, tier)| key(hash, tier)).collect();
        hashes.sort_unstable();
        let held = self.held.iter().flat_map(|(&hash, &count)| std::iter::repeat_n(hash, count));
        assert!(held.eq(hashes), "the recorded changes differ from the cache");
        for (id, seq) in &scheduler.seqs {
            let chain = block_hash::chain(&seq.salt, &seq.tokens, scheduler.blocks.block_size());
            for (index, (&block, want)) in seq.table[..seq.registered].iter().zip(chain).enumerate() {
                let hash = scheduler.blocks.hash(block);
                assert_eq!(hash, Some(want), "sequence {id}: block {index} has not the hash that a router computes");
            }
        }
    }
}
