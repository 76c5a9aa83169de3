//! Chooses the engine for a sequence: the one with the longest cached prefix of the prompt, if its load allows it.
//!
//! Engines report the contents of their prefix caches ([`follow`]), one [`index`] stores them for all engines, and
//! [`choose`] weighs the cached prefix against load. Except for [`follow`], this has no clock and no I/O.

mod block_map;
pub mod choose;
pub mod follow;
pub mod index;

#[cfg(test)]
mod tests;

use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rein_proto::block_hash;

use crate::limits;
use choose::{ScoredEngine, choose};
use index::BlockIndex;
pub use index::EngineSlot;

/// How an engine is chosen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum RoutePolicy {
    /// The longest cached prefix, if the engine's load allows it. Without one: the session's preferred engine. Without
    /// a session: as `PowerOfTwo`.
    #[default]
    CacheAware,
    /// The fewest open sequences relative to the engine's size.
    LeastLoad,
    /// The less loaded of two random engines.
    PowerOfTwo,
    /// Each engine in turn.
    RoundRobin,
    Random,
}

impl RoutePolicy {
    pub const ALL: [RoutePolicy; 5] =
        [Self::CacheAware, Self::LeastLoad, Self::PowerOfTwo, Self::RoundRobin, Self::Random];

    pub fn name(self) -> &'static str {
        match self {
            Self::CacheAware => "cache-aware",
            Self::LeastLoad => "least-load",
            Self::PowerOfTwo => "power-of-two",
            Self::RoundRobin => "round-robin",
            Self::Random => "random",
        }
    }
}

impl FromStr for RoutePolicy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|policy| policy.name() == text)
            .ok_or_else(|| format!("expected one of {}, got '{text}'", Self::ALL.map(RoutePolicy::name).join(", ")))
    }
}

/// The block hashes of a prompt, as engines compute them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PromptHashes {
    tokens: u32,
    /// The hashes of its full blocks, for each block size in use.
    chains: Vec<(u32, Vec<u64>)>,
}

impl PromptHashes {
    /// `tokens`: all tokens that the engine will get, which are the prompt and the tokens generated before.
    pub fn new(index: &BlockIndex, salt: &str, tokens: &[u32]) -> Self {
        // An engine always computes the last token, so a block that ends with it is not used from the cache.
        let before = &tokens[..tokens.len().saturating_sub(1)];
        let chain = |size: u32| {
            let blocks = block_hash::chain(salt, before, size as usize);
            (size, blocks.take(limits::ROUTE_BLOCKS).collect())
        };
        PromptHashes { tokens: tokens.len() as u32, chains: index.block_sizes().into_iter().map(chain).collect() }
    }
}

/// The hash of a name, of an engine, a session or an API key, which is the same in every router.
pub fn key(name: &str) -> u64 {
    block_hash::root(name)
}

/// An engine that could take a sequence.
#[derive(Clone, Copy)]
pub struct EngineState<'a> {
    /// The engine's [`key`].
    pub key: u64,
    pub index_slot: &'a EngineSlot,
    /// Sequences that this router has open on it.
    pub open: u32,
    /// Sequences that it computes at once.
    pub max_sequences: u32,
}

/// The routing of one model: a policy and an index, which all requests share.
#[derive(Debug)]
pub struct Routing {
    policy: RoutePolicy,
    index: Arc<BlockIndex>,
    turn: AtomicU64,
}

impl Routing {
    pub fn new(policy: RoutePolicy, index: usize) -> Self {
        Routing { policy, index: Arc::new(BlockIndex::new(index)), turn: AtomicU64::new(0) }
    }

    pub fn policy(&self) -> RoutePolicy {
        self.policy
    }

    pub fn index(&self) -> &Arc<BlockIndex> {
        &self.index
    }

    /// The hashes of a prompt. Empty if the policy does not use prompts.
    pub fn prompt(&self, salt: &str, tokens: &[u32]) -> PromptHashes {
        match self.policy {
            RoutePolicy::CacheAware => PromptHashes::new(&self.index, salt, tokens),
            _ => PromptHashes::default(),
        }
    }

    /// The index of the engine that gets the sequence. From now on, its prompt counts as cached there. `now` is the
    /// time since a moment that is the same for all calls. Where there is no choice, the prompt is not looked at.
    pub fn pick<'p>(
        &self,
        engines: &[EngineState<'_>],
        prompt: impl FnOnce() -> &'p PromptHashes,
        session: Option<u64>,
        now: Duration,
    ) -> Option<usize> {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        if engines.len() <= 1 {
            return (!engines.is_empty()).then_some(0);
        }
        let prompt = prompt();
        let matches = self.index.matches(prompt, now);
        let candidates: Vec<ScoredEngine> = engines
            .iter()
            .map(|engine| ScoredEngine {
                key: engine.key,
                open: engine.index_slot.load(engine.open),
                max_sequences: engine.max_sequences,
                full: engine.index_slot.is_full(),
                matched: matches.cached_tokens(engine.index_slot),
            })
            .collect();
        let chosen = choose(self.policy, &candidates, prompt.tokens, session, turn)?;
        self.index.anticipate(engines[chosen].index_slot, prompt, now);
        Some(chosen)
    }
}
