//! Which engine gets a sequence: the one that has most of its prompt cached, within what its load allows.
//!
//! Engines tell what their prefix caches hold ([`follow`]), one [`index`] for all of them keeps it, and [`choose`]
//! weighs what it finds for a prompt against load. Everything but [`follow`] is a pure function of its arguments and of
//! what the index was told; time comes in as an argument.

pub mod choose;
pub mod follow;
pub mod index;
mod layer;

#[cfg(test)]
mod tests;

use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rein_proto::block_hash;

use crate::limits;
use choose::{Candidate, choose};
use index::BlockIndex;
pub use index::EngineSlot;

/// How an engine is chosen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum RoutePolicy {
    /// The longest cached prefix within the bound of load; then the session's home; then power of two choices.
    #[default]
    CacheAware,
    /// The fewest open sequences for its size.
    LeastLoad,
    /// The less loaded of two drawn at random.
    PowerOfTwo,
    /// One after the other.
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
        Self::ALL.into_iter().find(|policy| policy.name() == text).ok_or_else(|| {
            format!("'{text}' is no routing policy; there are {}", Self::ALL.map(RoutePolicy::name).join(", "))
        })
    }
}

/// A prompt as the engines' caches know it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PromptHashes {
    tokens: u32,
    /// Per block size in use the hashes of its full blocks.
    chains: Vec<(u32, Vec<u64>)>,
}

impl PromptHashes {
    /// `tokens` are all that the engine will be given: the prompt, and what a sequence that moves has generated so far.
    pub fn new(index: &BlockIndex, salt: &str, tokens: &[u32]) -> Self {
        // An engine computes the last token in any case.
        let before = &tokens[..tokens.len().saturating_sub(1)];
        let chain = |size: u32| {
            let blocks = block_hash::chain(salt, before, size as usize);
            (size, blocks.take(limits::ROUTE_BLOCKS).collect())
        };
        PromptHashes { tokens: tokens.len() as u32, chains: index.block_sizes().into_iter().map(chain).collect() }
    }
}

/// The number of an engine by its name, the same in every router.
pub fn key(name: &str) -> u64 {
    block_hash::root(name)
}

/// An engine that could take a sequence.
#[derive(Clone, Copy)]
pub struct Target<'a> {
    /// [`key`] of its name.
    pub engine: u64,
    pub seat: &'a EngineSlot,
    /// Sequences that this router has open there.
    pub open: u32,
    /// Sequences that it computes at once.
    pub slots: u32,
}

/// The routing of one model: policy and index. One for all requests.
#[derive(Debug)]
pub struct Routing {
    policy: RoutePolicy,
    index: Arc<BlockIndex>,
    turn: AtomicU64,
}

impl Routing {
    pub fn new(policy: RoutePolicy) -> Self {
        Routing { policy, index: Arc::new(BlockIndex::new(limits::ROUTE_INDEX_BYTES)), turn: AtomicU64::new(0) }
    }

    pub fn policy(&self) -> RoutePolicy {
        self.policy
    }

    pub fn index(&self) -> &Arc<BlockIndex> {
        &self.index
    }

    /// Nothing where the policy does not look at prompts.
    pub fn prompt(&self, salt: &str, tokens: &[u32]) -> PromptHashes {
        match self.policy {
            RoutePolicy::CacheAware => PromptHashes::new(&self.index, salt, tokens),
            _ => PromptHashes::default(),
        }
    }

    /// Which of these engines gets a sequence. Its prompt counts as cached there from now on. `now` is time since any
    /// moment, the same for all calls.
    pub fn pick(
        &self,
        engines: &[Target<'_>],
        prompt: &PromptHashes,
        session: Option<u64>,
        now: Duration,
    ) -> Option<usize> {
        let matches = self.index.matches(prompt, now);
        let candidates: Vec<Candidate> = engines
            .iter()
            .map(|engine| Candidate {
                engine: engine.engine,
                open: engine.seat.load(engine.open),
                slots: engine.slots,
                full: engine.seat.is_full(),
                matched: matches.of(engine.seat),
            })
            .collect();
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let chosen = choose(self.policy, &candidates, prompt.tokens, session, turn)?;
        self.index.anticipate(engines[chosen].seat, prompt, now);
        Some(chosen)
    }
}
