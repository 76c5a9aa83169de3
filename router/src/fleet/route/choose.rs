//! The choice of an engine: a pure function of the policy, the state of the engines, and a turn that counts up.

use rein_proto::splitmix::mix;

use super::RoutePolicy;

/// An engine that could take a sequence.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScoredEngine {
    /// Its key, which is the same in every router.
    pub key: u64,
    /// Open sequences of all routers.
    pub open: u32,
    /// Sequences that it computes at once.
    pub max_sequences: u32,
    /// Sequences wait there for KV blocks.
    pub full: bool,
    /// Tokens of the prompt that it has cached.
    pub matched: u32,
}

/// An engine may get a sequence because of its cache while its load is below this multiple of an even share, ...
const BOUND: f64 = 1.25;
/// ... or below this part of its slots, where differences in load do not matter.
const IDLE: f64 = 1.0 / 16.0;
/// Weight of load: one even share of it counts as much as this part of the prompt in the cache.
const LOAD_WORTH: f64 = 0.5;
/// Cached prefixes matter only if the longest exceeds the shortest by this part of the prompt.
const ADVANTAGE: f64 = 1.0 / 16.0;

/// The index of the engine for a sequence of `prompt` tokens; None if there is none.
pub fn choose(
    policy: RoutePolicy,
    candidates: &[ScoredEngine],
    prompt: u32,
    session: Option<u64>,
    turn: u64,
) -> Option<usize> {
    let all = || 0..candidates.len();
    let last = candidates.len().checked_sub(1)?;
    if last == 0 {
        return Some(0);
    }
    match policy {
        RoutePolicy::RoundRobin => Some((turn % candidates.len() as u64) as usize),
        RoutePolicy::Random => Some(below(mix(turn), candidates.len())),
        RoutePolicy::LeastLoad => {
            let start = (turn % candidates.len() as u64) as usize;
            (start..candidates.len())
                .chain(0..start)
                .min_by(|&a, &b| candidates[a].load().total_cmp(&candidates[b].load()))
        }
        RoutePolicy::PowerOfTwo => {
            let not_full: Vec<usize> = all().filter(|&i| !candidates[i].full).collect();
            Some(less_loaded(candidates, if not_full.is_empty() { all().collect() } else { not_full }, turn))
        }
        RoutePolicy::CacheAware => Some(cache_aware(candidates, prompt, session, turn)),
    }
}

impl ScoredEngine {
    fn slots(&self) -> f64 {
        f64::from(self.max_sequences.max(1))
    }

    fn load(&self) -> f64 {
        f64::from(self.open) / self.slots()
    }
}

fn cache_aware(candidates: &[ScoredEngine], prompt: u32, session: Option<u64>, turn: u64) -> usize {
    let any_not_full = candidates.iter().any(|candidate| !candidate.full);
    let considered = |candidate: &&ScoredEngine| !(candidate.full && any_not_full);
    let open: f64 = candidates.iter().filter(considered).map(|candidate| f64::from(candidate.open)).sum();
    let slots: f64 = candidates.iter().filter(considered).map(ScoredEngine::slots).sum();
    // Open sequences of each engine if all, including this one, were spread evenly.
    let share = |candidate: &ScoredEngine| (open + 1.0) * candidate.slots() / slots;
    let bound = |candidate: &ScoredEngine| (share(candidate) * BOUND).max(candidate.slots() * IDLE).ceil();
    let within: Vec<usize> = (0..candidates.len())
        .filter(|&i| considered(&&candidates[i]) && f64::from(candidates[i].open) < bound(&candidates[i]))
        .collect();
    let matched = || within.iter().map(|&i| candidates[i].matched);
    let best = matched().max().unwrap_or(0);
    let advantage = best - matched().min().unwrap_or(0);
    if advantage > 0 && f64::from(advantage) >= f64::from(prompt) * ADVANTAGE {
        let worth = |&i: &usize| {
            let candidate = &candidates[i];
            let even = share(candidate).max(candidate.slots() * IDLE);
            f64::from(candidate.matched) / f64::from(prompt.max(1)) - LOAD_WORTH * f64::from(candidate.open) / even
        };
        let start = below(turn, within.len());
        let turns = within[start..].iter().chain(&within[..start]);
        // Reversed, because `max_by` returns the last of several maxima.
        return turns.copied().rev().max_by(|a, b| worth(a).total_cmp(&worth(b))).unwrap_or(0);
    }
    match session {
        Some(session) => preferred(candidates, &within, session),
        None => less_loaded(candidates, within, turn),
    }
}

/// Rendezvous hashing: when an engine joins or leaves, only its own sessions move.
fn preferred(candidates: &[ScoredEngine], among: &[usize], session: u64) -> usize {
    among.iter().copied().max_by_key(|&i| mix(session ^ mix(candidates[i].key))).unwrap_or(0)
}

/// The less loaded of two random engines.
fn less_loaded(candidates: &[ScoredEngine], among: Vec<usize>, turn: u64) -> usize {
    let Some(others) = among.len().checked_sub(1) else { return 0 };
    let draw = mix(turn);
    let first = below(draw, among.len());
    if others == 0 {
        return among[first];
    }
    let second = (first + 1 + below(mix(draw), others)) % among.len();
    let (first, second) = (among[first], among[second]);
    let key = |i: usize| (candidates[i].load(), candidates[i].open);
    if key(second) < key(first) { second } else { first }
}

fn below(random: u64, count: usize) -> usize {
    (random % count.max(1) as u64) as usize
}
