//! The choice itself: policy, what is known of the engines, and a turn that counts up. Equal arguments, equal choice.

use rein_proto::splitmix::mix;

use super::RoutePolicy;

/// An engine that could take a sequence.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Candidate {
    /// Its key, the same in every router and however many engines there are.
    pub engine: u64,
    /// Sequences open there.
    pub open: u32,
    /// Sequences that it computes at once.
    pub slots: u32,
    /// Sequences wait there for memory.
    pub full: bool,
    /// Tokens of the prompt that it has cached.
    pub matched: u32,
}

/// An engine takes a sequence for its cache only up to this part of the load that would be even ...
const BOUND: f64 = 1.25;
/// ... or up to this part of its slots, below which it does not matter who is busier.
const IDLE: f64 = 1.0 / 16.0;
/// What a load of one even share is worth, in prompts that need not be computed.
const LOAD_WORTH: f64 = 0.5;
/// An advantage of less than this part of the prompt is none.
const ADVANTAGE: f64 = 1.0 / 16.0;

/// The index of the engine for a sequence of `prompt` tokens; None if there is none.
pub fn choose(
    policy: RoutePolicy,
    candidates: &[Candidate],
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
                .min_by(|&a, &b| candidates[a].busy().total_cmp(&candidates[b].busy()))
        }
        RoutePolicy::PowerOfTwo => {
            let roomy: Vec<usize> = all().filter(|&i| !candidates[i].full).collect();
            Some(less_loaded(candidates, if roomy.is_empty() { all().collect() } else { roomy }, turn))
        }
        RoutePolicy::CacheAware => Some(cache_aware(candidates, prompt, session, turn)),
    }
}

impl Candidate {
    fn slots(&self) -> f64 {
        f64::from(self.slots.max(1))
    }

    fn busy(&self) -> f64 {
        f64::from(self.open) / self.slots()
    }
}

fn cache_aware(candidates: &[Candidate], prompt: u32, session: Option<u64>, turn: u64) -> usize {
    let any_roomy = candidates.iter().any(|candidate| !candidate.full);
    let considered = |candidate: &&Candidate| !(candidate.full && any_roomy);
    let open: f64 = candidates.iter().filter(considered).map(|candidate| f64::from(candidate.open)).sum();
    let slots: f64 = candidates.iter().filter(considered).map(Candidate::slots).sum();
    // What each would have if this sequence, too, were spread evenly.
    let share = |candidate: &Candidate| (open + 1.0) * candidate.slots() / slots;
    let bound = |candidate: &Candidate| (share(candidate) * BOUND).max(candidate.slots() * IDLE).ceil();
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
        // Of equals the first: `max_by` would take the last.
        return turns.copied().rev().max_by(|a, b| worth(a).total_cmp(&worth(b))).unwrap_or(0);
    }
    match session {
        Some(session) => home(candidates, &within, session),
        None => less_loaded(candidates, within, turn),
    }
}

/// The highest random weight: when an engine comes or goes, only the sessions it gets or had have another home.
fn home(candidates: &[Candidate], among: &[usize], session: u64) -> usize {
    among.iter().copied().max_by_key(|&i| mix(session ^ mix(candidates[i].engine))).unwrap_or(0)
}

/// Of two different ones drawn at random.
fn less_loaded(candidates: &[Candidate], among: Vec<usize>, turn: u64) -> usize {
    let Some(others) = among.len().checked_sub(1) else { return 0 };
    let draw = mix(turn);
    let first = below(draw, among.len());
    if others == 0 {
        return among[first];
    }
    let second = (first + 1 + below(mix(draw), others)) % among.len();
    let (first, second) = (among[first], among[second]);
    let key = |i: usize| (candidates[i].busy(), candidates[i].open);
    if key(second) < key(first) { second } else { first }
}

fn below(random: u64, count: usize) -> usize {
    (random % count.max(1) as u64) as usize
}
