//! Four groups under a multi-turn load, in simulated time: the router's choice over the worker's own scheduler and
//! prefix cache. Nothing reads a clock, so a seed gives the same figures everywhere.

// The test uses less of this module than the benchmark.
#![allow(dead_code)]

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, HashSet};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rein_proto::block_hash;
use rein_proto::internal::{EngineEvents, EngineLoad, Limits, Sampling, Start, Step, StepResult, from_engine};
use rein_router::fleet::route::index::EngineSlot;
use rein_router::fleet::route::{EngineState, RoutePolicy, Routing, key};
use rein_worker::EngineOptions;
use rein_worker::executor::Executor;
use rein_worker::scheduler::{Output, Scheduler, SchedulerEvent};
use rein_worker::sim::{Sim, SimOptions};

pub const GROUPS: usize = 4;
const BLOCK_SIZE: usize = 16;
const VOCAB: u32 = 32_000;
/// Duration of a step in microseconds: base, per prompt token, per row that draws.
const STEP_US: u64 = 15_000;
const PREFILL_US: u64 = 60;
const DECODE_US: u64 = 200;
/// How often a group sends its changes to the routers.
const EVENTS_US: u64 = 50_000;
const WINDOW_US: u64 = 10_000_000;
/// This fraction of the turns is a warm-up and is not counted.
const WARM_UP: usize = 4;

/// A multi-turn load.
#[derive(Debug, Clone)]
pub struct Load {
    pub name: &'static str,
    /// Number of turns of all sessions.
    pub turns: usize,
    /// Mean time between two new sessions.
    pub arrival_ms: f64,
    /// Mean time between an answer and the next turn of its session.
    pub think_ms: f64,
    /// Probability that a session continues.
    pub continue_probability: f64,
    /// Number of system prompts. Sessions choose one with a Zipf distribution of exponent 1.
    pub systems: usize,
    pub system_tokens: (u32, u32),
    pub message_tokens: (u32, u32),
    pub answer_tokens: (u32, u32),
    /// KV blocks of a group.
    pub blocks: usize,
    /// Number of routers, each with its own view of the caches.
    pub routers: usize,
    /// Requests name their session.
    pub names_session: bool,
}

/// Chats of about eight turns; a group's cache holds a fraction of the open conversations.
pub const CHAT: Load = Load {
    name: "chat",
    turns: 3_000,
    arrival_ms: 700.0,
    think_ms: 8_000.0,
    continue_probability: 0.87,
    systems: 20,
    system_tokens: (50, 400),
    message_tokens: (20, 200),
    answer_tokens: (20, 160),
    blocks: 3_000,
    routers: 1,
    names_session: false,
};

/// Agents: long tool declarations that many sessions share, and a tool result per message.
pub const AGENT: Load = Load {
    name: "agent",
    turns: 3_000,
    arrival_ms: 1_100.0,
    think_ms: 1_500.0,
    continue_probability: 0.9,
    systems: 12,
    system_tokens: (800, 2_000),
    message_tokens: (50, 400),
    answer_tokens: (20, 100),
    blocks: 4_000,
    ..CHAT
};

/// One question each under a shared system prompt: only the system prompts can be shared.
pub const SINGLE: Load = Load {
    name: "single",
    arrival_ms: 110.0,
    continue_probability: 0.0,
    systems: 40,
    system_tokens: (200, 1_000),
    blocks: 1_500,
    ..CHAT
};

#[derive(Debug, Default)]
pub struct Outcome {
    pub prompt_tokens: u64,
    pub cached_tokens: u64,
    /// Per group: open sequences over time, and time in steps (microseconds).
    pub open: [f64; GROUPS],
    pub busy: [f64; GROUPS],
    /// The largest share of open sequences that a group had in a window of ten seconds, relative to the mean.
    pub worst_window: f64,
    /// From a turn's arrival to its first token, in microseconds.
    pub first_token: Vec<u64>,
    window: [f64; GROUPS],
}

/// The largest value relative to the mean.
fn peak(values: &[f64; GROUPS]) -> f64 {
    let mean = values.iter().sum::<f64>() / GROUPS as f64;
    values.iter().copied().fold(0.0, f64::max) / mean
}

impl Outcome {
    pub fn hit_rate(&self) -> f64 {
        self.cached_tokens as f64 / self.prompt_tokens as f64
    }

    pub fn open_peak(&self) -> f64 {
        peak(&self.open)
    }

    pub fn busy_peak(&self) -> f64 {
        peak(&self.busy)
    }

    /// Milliseconds.
    pub fn first_token_ms(&mut self, quantile: f64) -> u64 {
        self.first_token.sort_unstable();
        let at = (self.first_token.len() as f64 * quantile) as usize;
        self.first_token.get(at).map_or(0, |us| us / 1000)
    }
}

struct Group {
    scheduler: Scheduler,
    sim: Sim,
    running: Option<(Step, u64)>,
    starts: Vec<(u64, Start)>,
    open: usize,
    /// Copies of each cached block, blocks that routers know, and blocks that may have changed since the last message.
    held: HashMap<u64, u32>,
    published: HashSet<u64>,
    touched: HashSet<u64>,
}

struct Session {
    tokens: Vec<u32>,
    name: String,
}

struct Turn {
    session: usize,
    group: usize,
    router: usize,
    arrived: u64,
    answer: Vec<u32>,
    counted: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Happens {
    StepDone(usize),
    Events,
    Arrival,
    NextTurn(usize),
}

struct Router {
    routing: Routing,
    slots: Vec<EngineSlot>,
    open: [u32; GROUPS],
}

struct Fleet<'a> {
    load: &'a Load,
    rng: StdRng,
    now: u64,
    agenda: BinaryHeap<Reverse<(u64, u64, Happens)>>,
    noted: u64,
    groups: Vec<Group>,
    routers: Vec<Router>,
    systems: Vec<Vec<u32>>,
    sessions: Vec<Session>,
    turns: BTreeMap<u64, Turn>,
    begun: usize,
    outcome: Outcome,
}

pub fn run(policy: RoutePolicy, load: &Load, seed: u64) -> Outcome {
    let mut fleet = Fleet::new(policy, load, seed);
    fleet.note(0, Happens::Arrival);
    fleet.note(0, Happens::Events);
    while let Some(Reverse((at, _, happens))) = fleet.agenda.pop() {
        fleet.pass(at);
        match happens {
            Happens::Arrival => fleet.arrival(),
            Happens::NextTurn(session) => fleet.message(session),
            Happens::StepDone(group) => fleet.step_done(group),
            Happens::Events => {
                (0..GROUPS).for_each(|group| fleet.publish(group));
                if fleet.begun < load.turns || !fleet.turns.is_empty() {
                    fleet.note(EVENTS_US, Happens::Events);
                }
            }
        }
    }
    assert!(fleet.turns.is_empty(), "a turn was not answered");
    fleet.outcome
}

impl<'a> Fleet<'a> {
    fn new(policy: RoutePolicy, load: &'a Load, seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let group = |_| {
            let sim = Sim::new(SimOptions {
                vocab_size: VOCAB as usize,
                // The longest sessions have 15,000 tokens or more.
                max_context: load.blocks * BLOCK_SIZE,
                blocks: load.blocks,
                block_size: BLOCK_SIZE,
                ..SimOptions::default()
            });
            let mut scheduler = Scheduler::new(&sim.shape(), EngineOptions::default());
            scheduler.listen();
            Group {
                scheduler,
                sim,
                running: None,
                starts: Vec::new(),
                open: 0,
                held: HashMap::new(),
                published: HashSet::new(),
                touched: HashSet::new(),
            }
        };
        let router = |_| {
            let routing = Routing::new(policy, 512 << 20);
            let slots = (0..GROUPS).map(|_| routing.index().add_engine()).collect();
            Router { routing, slots, open: [0; GROUPS] }
        };
        let systems = (0..load.systems).map(|_| tokens(&mut rng, load.system_tokens)).collect();
        Self {
            load,
            now: 0,
            agenda: BinaryHeap::new(),
            noted: 0,
            groups: (0..GROUPS).map(group).collect(),
            routers: (0..load.routers).map(router).collect(),
            systems,
            sessions: Vec::new(),
            turns: BTreeMap::new(),
            begun: 0,
            outcome: Outcome::default(),
            rng,
        }
    }

    fn note(&mut self, after: u64, happens: Happens) {
        self.noted += 1;
        self.agenda.push(Reverse((self.now + after, self.noted, happens)));
    }

    fn counts(&self) -> bool {
        self.begun > self.load.turns / WARM_UP && self.begun < self.load.turns
    }

    fn pass(&mut self, until: u64) {
        if self.counts() {
            let Outcome { open, window, worst_window, .. } = &mut self.outcome;
            for ((sum, window), group) in open.iter_mut().zip(window.iter_mut()).zip(&self.groups) {
                *sum += group.open as f64 * (until - self.now) as f64;
                *window += group.open as f64 * (until - self.now) as f64;
            }
            if self.now / WINDOW_US < until / WINDOW_US {
                *worst_window = worst_window.max(peak(window));
                *window = [0.0; GROUPS];
            }
        }
        self.now = until;
    }

    /// An exponentially distributed pause.
    fn pause(&mut self, mean_ms: f64) -> u64 {
        (-(1.0 - self.rng.random::<f64>()).ln() * mean_ms * 1000.0) as u64
    }

    fn arrival(&mut self) {
        let ranks: Vec<usize> = (1..=self.systems.len()).collect();
        let system = *ranks.choose_weighted(&mut self.rng, |&rank| 1.0 / rank as f64).expect("a system prompt");
        let name = format!("session-{}", self.sessions.len());
        self.sessions.push(Session { tokens: self.systems[system - 1].clone(), name });
        self.message(self.sessions.len() - 1);
        if self.begun < self.load.turns {
            let pause = self.pause(self.load.arrival_ms);
            self.note(pause, Happens::Arrival);
        }
    }

    fn message(&mut self, at: usize) {
        if self.begun >= self.load.turns {
            return;
        }
        let message = tokens(&mut self.rng, self.load.message_tokens);
        let max_tokens = self.rng.random_range(self.load.answer_tokens.0..=self.load.answer_tokens.1);
        let session = &mut self.sessions[at];
        session.tokens.extend(message);
        let router = self.rng.random_range(0..self.routers.len());
        let Router { routing, slots, open } = &mut self.routers[router];
        let prompt = routing.prompt("", &session.tokens);
        let target = |(group, index_slot)| EngineState {
            key: key(&format!("group-{group}")),
            index_slot,
            open: open[group],
            max_sequences: EngineOptions::default().max_sequences as u32,
        };
        let targets: Vec<EngineState<'_>> = slots.iter().enumerate().map(target).collect();
        let named = self.load.names_session.then(|| session_of(&session.name)).flatten();
        let group = routing.pick(&targets, || &prompt, named, Duration::from_micros(self.now)).expect("a group");
        open[group] += 1;
        let start = Start {
            prompt: session.tokens.clone(),
            sampling: Some(Sampling { repetition_penalty: 1.0, ..Sampling::default() }),
            limits: Some(Limits { max_tokens, ignore_eos: true, ..Limits::default() }),
            logprobs: -1,
            prompt_logprobs: -1,
            ..Start::default()
        };
        self.begun += 1;
        let id = self.begun as u64;
        let counted = self.counts();
        let turn = Turn { session: at, group, router, arrived: self.now, answer: Vec::new(), counted };
        self.turns.insert(id, turn);
        self.groups[group].starts.push((id, start));
        self.groups[group].open += 1;
        self.go(group);
    }

    /// Between two steps a group handles what has arrived, and begins the next step.
    fn go(&mut self, at: usize) {
        let group = &mut self.groups[at];
        if group.running.is_some() {
            return;
        }
        for (seq, start) in group.starts.drain(..) {
            group
                .scheduler
                .apply(SchedulerEvent::Start { seq, start: Box::new(start), lora: None })
                .expect("room in the queue");
        }
        let Some(step) = group.scheduler.schedule(group.sim.placed(), Duration::from_micros(self.now)) else {
            assert!(group.scheduler.take_outputs().is_empty(), "a turn was refused");
            return;
        };
        let cost = STEP_US
            + step
                .rows
                .iter()
                .map(|row| if row.tokens.len() > 1 { row.tokens.len() as u64 * PREFILL_US } else { DECODE_US })
                .sum::<u64>();
        group.running = Some((step, cost));
        self.note(cost, Happens::StepDone(at));
    }

    fn step_done(&mut self, at: usize) {
        let counts = self.counts();
        let group = &mut self.groups[at];
        let (step, cost) = group.running.take().expect("a step");
        let result: StepResult = group.sim.execute(step).expect("executed");
        group.scheduler.commit(result);
        if counts {
            self.outcome.busy[at] += cost as f64;
        }
        for change in group.scheduler.take_block_changes() {
            let count = group.held.entry(change.hash).or_default();
            *count = if change.stored { *count + 1 } else { *count - 1 };
            group.touched.insert(change.hash);
        }
        for Output { seq, message, last } in group.scheduler.take_outputs() {
            self.output(seq, message.kind.expect("set"), last);
        }
        self.go(at);
    }

    fn output(&mut self, seq: u64, kind: from_engine::Kind, last: bool) {
        let turn = self.turns.get_mut(&seq).expect("an open turn");
        match kind {
            from_engine::Kind::Admitted(admitted) if turn.counted => {
                self.outcome.prompt_tokens += u64::from(admitted.prompt_tokens);
                self.outcome.cached_tokens += u64::from(admitted.cached_tokens);
                self.outcome.first_token.push(self.now - turn.arrived);
            }
            from_engine::Kind::Tokens(tokens) => turn.answer.extend(tokens.ids),
            _ => {}
        }
        if last {
            let turn = self.turns.remove(&seq).expect("an open turn");
            self.groups[turn.group].open -= 1;
            self.routers[turn.router].open[turn.group] -= 1;
            self.sessions[turn.session].tokens.extend(turn.answer);
            if self.rng.random_bool(self.load.continue_probability) {
                let pause = self.pause(self.load.think_ms);
                self.note(pause, Happens::NextTurn(turn.session));
            }
        }
    }

    /// Sends a group's changes to all routers.
    fn publish(&mut self, at: usize) {
        let group = &mut self.groups[at];
        let (mut stored, mut removed) = (Vec::new(), Vec::new());
        for hash in group.touched.drain() {
            let held = group.held.get(&hash).is_some_and(|count| *count > 0);
            if !held {
                group.held.remove(&hash);
            }
            if held && group.published.insert(hash) {
                stored.push(hash);
            } else if !held && group.published.remove(&hash) {
                removed.push(hash);
            }
        }
        // The order of a set differs between runs.
        stored.sort_unstable();
        removed.sort_unstable();
        let stats = group.scheduler.stats();
        let events = EngineEvents {
            hash_version: block_hash::VERSION,
            block_size: BLOCK_SIZE as u32,
            reset: false,
            complete: true,
            stored,
            removed,
            load: Some(EngineLoad {
                running: stats.running,
                waiting: stats.waiting,
                used_blocks: stats.used_blocks,
                total_blocks: stats.total_blocks,
            }),
            ..EngineEvents::default()
        };
        for router in &self.routers {
            assert!(router.slots[at].apply(&events, router.open[at]), "one version of hashes");
        }
    }
}

fn session_of(name: &str) -> Option<u64> {
    Some(key(name))
}

fn tokens(rng: &mut StdRng, (least, most): (u32, u32)) -> Vec<u32> {
    let count = rng.random_range(least..=most);
    (0..count).map(|_| rng.random_range(0..VOCAB)).collect()
}
