//! Conversations whose tool runs. Only a router knows that an answer which ends in tool calls comes back as the
//! beginning of a longer prompt, so it asks the engine to hold the blocks: at first for a fixed time, then for as long
//! as the tools of this conversation take.

#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Registry;
use rein_proto::block_hash;
use tokio::time::Instant;

use crate::limits;

/// The prompt of a turn in the blocks of one engine.
#[derive(Debug, Clone)]
pub struct TurnPrompt {
    /// Tokens of a block.
    pub block_size: u32,
    /// The hashes of its full blocks.
    pub hashes: Vec<u64>,
}

impl TurnPrompt {
    /// `salt`: as of [`block_hash::salt_of`].
    pub fn new(salt: &str, tokens: &[u32], block_size: u32) -> Self {
        let blocks = block_hash::chain(salt, tokens, block_size.max(1) as usize);
        TurnPrompt { block_size, hashes: blocks.take(limits::ROUTE_BLOCKS).collect() }
    }
}

#[derive(Debug)]
pub struct ToolHolds {
    /// For a conversation whose tools are not known. None: nothing is held.
    first: Option<Duration>,
    turns: Mutex<Turns>,
    held: Counter,
    returned: Counter,
    late: Counter,
}

#[derive(Debug, Default)]
struct Turns {
    /// By the last full block of the prompt.
    turns: BoundedMap<Turn>,
    /// How long the tools of each session took last.
    gaps: BoundedMap<VecDeque<Duration>>,
    /// Block sizes of engines.
    sizes: Vec<u32>,
}

#[derive(Debug, Clone, Copy)]
struct Turn {
    session: u64,
    /// Its answer ended then, and is held until the second time. None: it came back.
    waits: Option<(Instant, Instant)>,
}

/// Holds the entries that were added last.
#[derive(Debug)]
struct BoundedMap<V> {
    entries: HashMap<u64, V>,
    order: VecDeque<u64>,
}

impl<V> Default for BoundedMap<V> {
    fn default() -> Self {
        BoundedMap { entries: HashMap::new(), order: VecDeque::new() }
    }
}

impl<V> BoundedMap<V> {
    fn insert(&mut self, key: u64, value: V) {
        if self.entries.insert(key, value).is_none() {
            self.order.push_back(key);
        }
        while self.order.len() > limits::TOOL_TURNS
            && let Some(oldest) = self.order.pop_front()
        {
            self.entries.remove(&oldest);
        }
    }
}

impl Turns {
    /// The last turn that this prompt continues, and its key.
    fn before(&self, prompt: &TurnPrompt) -> Option<(u64, Turn)> {
        prompt.hashes.iter().rev().find_map(|hash| Some((*hash, *self.turns.entries.get(hash)?)))
    }

    /// Twice the median of the last times, so that a tool may take a bit longer than usual.
    fn hold_of(&self, session: u64) -> Option<Duration> {
        let mut gaps: Vec<Duration> = self.gaps.entries.get(&session)?.iter().copied().collect();
        gaps.sort_unstable();
        let median = *gaps.get(gaps.len() / 2)?;
        let (least, most) = limits::TOOL_HOLD;
        Some((2 * median).clamp(least, most))
    }
}

impl ToolHolds {
    pub fn new(first: Duration) -> Self {
        let (held, returned, late) = (Counter::default(), Counter::default(), Counter::default());
        ToolHolds { first: (!first.is_zero()).then_some(first), turns: Mutex::default(), held, returned, late }
    }

    pub fn register(&self, registry: &mut Registry) {
        for (name, help, counter) in [
            ("rein_tool_turns_held", "Answers with tool calls whose KV blocks engines were asked to hold", &self.held),
            ("rein_tool_turns_returned", "Of these, those whose conversation came back in time", &self.returned),
            ("rein_tool_turns_late", "Of these, those whose conversation came back later", &self.late),
        ] {
            registry.register(name, help, counter.clone());
        }
    }

    /// A prompt arrives: the conversation that it continues has come back.
    pub fn arrived(&self, salt: &str, tokens: &[u32], now: Instant) {
        let sizes = match self.lock() {
            turns if turns.turns.entries.is_empty() => return,
            turns => turns.sizes.clone(),
        };
        for size in sizes {
            let prompt = TurnPrompt::new(salt, tokens, size);
            let mut turns = self.lock();
            let Some((key, Turn { session, waits: Some((since, until)) })) = turns.before(&prompt) else { continue };
            turns.turns.insert(key, Turn { session, waits: None });
            let mut gaps = turns.gaps.entries.get(&session).cloned().unwrap_or_default();
            gaps.push_back(now.duration_since(since));
            if gaps.len() > limits::TOOL_GAPS {
                gaps.pop_front();
            }
            turns.gaps.insert(session, gaps);
            if now <= until {
                self.returned.inc()
            } else {
                self.late.inc()
            };
            return;
        }
    }

    /// The answer to this prompt ended in tool calls. How long its blocks are to be held; None: not at all.
    pub fn ended(&self, prompt: &TurnPrompt, session: Option<u64>, now: Instant) -> Option<Duration> {
        let first = self.first?;
        let key = *prompt.hashes.last()?;
        let mut turns = self.lock();
        if !turns.sizes.contains(&prompt.block_size) && turns.sizes.len() < limits::ROUTE_BLOCK_SIZES {
            turns.sizes.push(prompt.block_size);
        }
        let session = session.or_else(|| Some(turns.before(prompt)?.1.session)).unwrap_or(key);
        let time = turns.hold_of(session).unwrap_or(first);
        turns.turns.insert(key, Turn { session, waits: Some((now, now + time)) });
        self.held.inc();
        Some(time)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Turns> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
