//! Random routers against the scheduler, replayed from a seed.
//!
//! The executor is a `Ledger`. Each sequence has an oracle that knows what it would get alone. `REIN_SEED=n` replays
//! one seed, `REIN_SEEDS=n` runs more of them.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rein_proto::block_hash;
use rein_proto::internal::{Limits, Sampling};

use super::super::cached::CacheMirror;
use super::ledger::{Ledger, VOCAB};
use super::oracle::{Oracle, State};
use super::*;
use crate::blocks::HostShape;
use crate::executor::DrawnTokens;
use crate::tables::drafts;

const SEEDS: u64 = 3000;

struct World {
    rng: StdRng,
    shape: ExecutorShape,
    scheduler: Scheduler,
    ledger: Ledger,
    listener: CacheMirror,
    oracles: BTreeMap<u64, Oracle>,
    paused: BTreeSet<u64>,
    callers: u64,
    now: Duration,
    next: u64,
    prefixes: Vec<Vec<u32>>,
    steps: Vec<Step>,
    /// Results of steps that were executed and not committed, at most two.
    results: VecDeque<StepResult>,
    drawn: DrawnTokens,
    planned_ahead: u64,
    /// Rows that began with a recurrent state of a checkpoint.
    from_checkpoints: u64,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let block_size = rng.random_range(1..6);
        let states = rng
            .random_bool(0.4)
            .then(|| StateShape { checkpoints: rng.random_range(0..12), every: block_size * rng.random_range(1..5) });
        // No recurrent state is kept there.
        let places = if states.is_none() && rng.random_bool(0.7) { rng.random_range(1..40) } else { 0 };
        let host = HostShape { places, outlives: rng.random_bool(0.5), ..HostShape::default() };
        // Tables of 64 positions and more have blocks of several ranks.
        let kv_ranks = if places == 0 && rng.random_bool(0.4) { 1 << rng.random_range(1..4) } else { 1 };
        let block_size = if kv_ranks > 1 { 1 << rng.random_range(3..7) } else { block_size };
        let shape = ExecutorShape {
            model: "ledger".into(),
            vocab_size: VOCAB as usize,
            max_context: if kv_ranks > 1 { rng.random_range(70..600) } else { rng.random_range(8..60) },
            blocks: match kv_ranks {
                1 => rng.random_range(4..40),
                ranks => ranks * 64 / block_size * rng.random_range(1..5),
            },
            block_size,
            kind: "sim",
            ranks: 1,
            hidden_size: 4,
            runs_ahead: true,
            step_cost: 6,
            states,
            lora_slots: 3,
            host,
            kv_ranks,
        };
        let options = EngineOptions {
            max_sequences: rng.random_range(1..9),
            max_queue: rng.random_range(1..12),
            token_budget: rng.random_range(1..40),
            park_grace: Duration::from_millis(50),
            prefix_cache: rng.random_bool(0.9),
            embeds: false,
            draft_tokens: if rng.random_bool(0.5) { rng.random_range(1..12) } else { 0 },
        };
        let prefixes =
            (0..3).map(|_| (0..rng.random_range(1..24)).map(|_| rng.random_range(0..VOCAB)).collect()).collect();
        Self {
            scheduler: Scheduler::new(&shape, options),
            ledger: Ledger::new(&shape),
            listener: CacheMirror::default(),
            oracles: BTreeMap::new(),
            paused: BTreeSet::new(),
            callers: rng.random_range(1..5),
            now: Duration::ZERO,
            next: 1,
            prefixes,
            steps: Vec::new(),
            results: VecDeque::new(),
            drawn: DrawnTokens::default(),
            planned_ahead: 0,
            from_checkpoints: 0,
            shape,
            rng,
        }
    }

    fn tokens(&mut self, max: usize) -> Vec<u32> {
        let len = self.rng.random_range(0..=max);
        (0..len).map(|_| self.rng.random_range(0..VOCAB)).collect()
    }

    fn start(&mut self) {
        let context = context_limit(&self.shape);
        let mut prompt = self.prefixes[self.rng.random_range(0..3)].clone();
        prompt.truncate(self.rng.random_range(1..=prompt.len()));
        prompt.extend(self.tokens(6));
        let hold = self.rng.random_bool(0.2);
        prompt.truncate(context - usize::from(!hold));
        if prompt.is_empty() {
            return;
        }
        let lora = self.rng.random_bool(0.3).then(|| self.rng.random_range(0..self.shape.lora_slots as u32));
        let max_tokens = self.rng.random_range(1..30u32);
        let mut resume = if self.rng.random_bool(0.2) { self.tokens(max_tokens as usize) } else { Vec::new() };
        resume.truncate(context - prompt.len());
        let start = Start {
            request_id: String::new(),
            prompt,
            resume,
            sampling: Some(Sampling {
                seed: self.rng.random_range(0..4),
                repetition_penalty: if self.rng.random_bool(0.5) { 1.1 } else { 1.0 },
                ..Sampling::default()
            }),
            limits: Some(Limits {
                max_tokens,
                min_tokens: self.rng.random_range(0..=max_tokens.min(4)),
                stop_token_ids: if self.rng.random_bool(0.5) { self.tokens(2) } else { Vec::new() },
                ignore_eos: self.rng.random_bool(0.2),
            }),
            hold,
            cache_salt: if self.rng.random_bool(0.2) { "tenant".into() } else { String::new() },
            logprobs: -1,
            prompt_logprobs: if self.rng.random_bool(0.15) { 0 } else { -1 },
            finish_is_proposal: self.rng.random_bool(0.4),
            caller: self.rng.random_range(0..self.callers),
            script: Vec::new(),
            lora_digest: lora.map_or(0, |slot| u64::from(slot) + 1),
            ..Start::default()
        };
        let id = self.next;
        self.next += 1;
        let event = SchedulerEvent::Start { seq: id, start: Box::new(start.clone()), lora };
        match self.scheduler.apply(event) {
            Ok(()) => drop(self.oracles.insert(id, Oracle::new(start, context))),
            Err(rejected) => assert!(matches!(rejected, Rejected::QueueFull { .. })),
        }
    }

    fn random_steer(&mut self, id: u64) {
        let oracle = &self.oracles[&id];
        let (generated, epoch) = (oracle.generated() as u32, oracle.epoch);
        let keep = generated - self.rng.random_range(0..=generated.min(6));
        let mut steer = Steer {
            epoch: epoch + self.rng.random_range(1..3),
            keep: if self.rng.random_bool(0.4) { generated } else { keep },
            append: if self.rng.random_bool(0.3) { self.tokens(7) } else { Vec::new() },
            mask: self.rng.random_bool(0.5).then(|| {
                let mask: [u8; 4] = self.rng.random();
                let narrow = [0, 1 << self.rng.random_range(0..8), 0, 0];
                Bytes::copy_from_slice(if self.rng.random_bool(0.2) { &narrow } else { &mask })
            }),
            hold: self.rng.random_bool(0.4),
            stop: self.rng.random_bool(0.03),
        };
        match self.rng.random_range(0..60) {
            0 => steer.epoch = epoch,
            1 => steer.keep = generated + 1,
            2 => steer.append.push(VOCAB),
            3 => steer.mask = Some(Bytes::from_static(&[255; 3])),
            _ => {}
        }
        self.steer(id, steer);
    }

    fn steer(&mut self, id: u64, steer: Steer) {
        self.oracles.get_mut(&id).expect("known").steer(&steer);
        self.apply(SchedulerEvent::Steer { seq: id, steer });
    }

    fn apply(&mut self, event: SchedulerEvent) {
        self.scheduler.apply(event).expect("only a Start is rejected");
        self.read();
    }

    fn read(&mut self) {
        for Output { seq, message, last } in self.scheduler.take_outputs() {
            let oracle = self.oracles.get_mut(&seq).expect("an output of a sequence that is gone");
            oracle.output(message.kind.expect("set"), last);
            if oracle.state == State::Done {
                self.oracles.remove(&seq);
                self.paused.remove(&seq);
            }
        }
        for (id, oracle) in &self.oracles {
            assert!(oracle.expect.is_none(), "sequence {id} was to finish: {oracle:?}");
        }
    }

    fn events(&mut self) {
        if self.rng.random_bool(0.1) {
            let salt = if self.rng.random_bool(0.2) { "tenant" } else { "" };
            let prefix = &self.prefixes[self.rng.random_range(0..3)];
            let hashes = block_hash::chain(salt, prefix, self.shape.block_size).collect();
            self.scheduler.hold(&hashes, Duration::from_millis(self.rng.random_range(0..400)), self.now);
        }
        if self.rng.random_bool(0.35) {
            self.start();
            self.read();
        }
        for id in self.oracles.keys().copied().collect::<Vec<_>>() {
            match self.rng.random_range(0..100) {
                0..12 => self.random_steer(id),
                12..14 => {
                    self.apply(SchedulerEvent::Cancel { seq: id });
                    self.oracles.remove(&id);
                    self.paused.remove(&id);
                }
                14..16 => {
                    self.paused.insert(id);
                    self.apply(SchedulerEvent::Pause { seq: id });
                }
                16..24 if self.paused.remove(&id) => self.apply(SchedulerEvent::Resume { seq: id }),
                _ => {}
            }
        }
    }

    /// One round. False: there was nothing to do.
    fn round(&mut self) -> bool {
        self.now += Duration::from_millis(self.rng.random_range(0..20));
        let ahead = !self.results.is_empty();
        let plans = !ahead || self.results.len() == 1 && self.rng.random_bool(0.6);
        if plans && self.plan() {
            self.planned_ahead += u64::from(ahead);
            // While it runs, routers may write.
            if self.results.len() == 1 && self.rng.random_bool(0.7) {
                return true;
            }
        }
        let Some(result) = self.results.pop_front() else { return false };
        self.scheduler.commit(result);
        self.scheduler.check().unwrap_or_else(|error| panic!("after commit: {error}"));
        self.listener.hear(&mut self.scheduler);
        self.read();
        true
    }

    /// Plans a step and executes it. False: there was nothing to do.
    fn plan(&mut self) -> bool {
        let scheduler = &self.scheduler;
        let working = |work: &dyn Fn(NextWork) -> bool| -> Vec<u64> {
            let works = |id: &u64| {
                let seq = &scheduler.seqs[id];
                work(seq.work()) && !seq.must_land(scheduler.context)
            };
            scheduler.running.iter().copied().filter(works).collect()
        };
        let (drawing, able) = (working(&|work| work == NextWork::Draw), working(&|work| work != NextWork::Parked));
        // The step that runs goes on with these.
        let under_way = scheduler.running.iter().copied().find(|id| !scheduler.seqs[id].ahead.is_none());
        let Some(mut step) = self.scheduler.schedule(StepPlacement::default(), self.now) else {
            assert!(drawing.is_empty() && (able.is_empty() || under_way.is_some()), "a sequence that can run does not");
            return false;
        };
        self.scheduler.check().unwrap_or_else(|error| panic!("after schedule: {error}"));
        let rows: Vec<u64> = self.scheduler.scheduled().collect();
        // Their blocks come from the host tier in this step.
        let loading = self.scheduler.running_steps.back().into_iter().flat_map(|step| &step.loads).map(|load| load.seq);
        let served: Vec<u64> = rows.iter().copied().chain(under_way).chain(loading).collect();
        if drawing.is_empty() {
            assert!(
                able.first().is_none_or(|oldest| served.iter().any(|row| row <= oldest)),
                "neither the oldest sequence that can run nor an older one is in the step"
            );
        } else {
            assert_eq!(rows, drawing, "draws from stashes must have their own step");
        }
        let budget: usize = step.rows.iter().map(|row| row.tokens.len()).sum();
        assert!(budget <= self.scheduler.options.token_budget, "{budget} tokens in a step");
        assert!(!(step.rows.is_empty() && step.loads.is_empty() && step.saves.is_empty()));
        assert!(step.rows.len() <= self.scheduler.options.max_sequences);
        if self.shape.host.places > 0 && self.rng.random_bool(0.2) {
            self.ledger.damage(self.rng.random_range(0..self.shape.host.places as u32));
        }
        self.drawn.fill_in(&mut step);
        let checkpoints = self.shape.states.map_or(0, |states| states.checkpoints as u32);
        let from = step.rows.iter().filter_map(|row| row.state);
        self.from_checkpoints += from.filter(|&cell| cell < checkpoints).count() as u64;
        let result = self.ledger.execute(&step);
        self.check_tables(&step, &rows);
        let mut draws = 0;
        for ((row, seq), history) in step.rows.iter().zip(&rows).zip(&self.ledger.histories) {
            let oracle = &self.oracles[seq];
            assert!(!self.paused.contains(seq) && oracle.state == State::Open, "a parked row was computed");
            // A token that is under way is known to the executor alone.
            let drafts = drafts(row).len();
            let known = &history[..history.len() - usize::from(row.awaits_token) - drafts];
            assert_eq!(oracle.tokens.get(..known.len()), Some(known), "not this sequence's history");
            assert_eq!(row.after() == After::Nothing, history.len() < oracle.tokens.len());
            draws += row.draws.len();
        }
        assert!(draws <= self.scheduler.options.max_sequences, "{draws} draws in a step");
        self.drawn = DrawnTokens::of(&result);
        self.results.push_back(result);
        self.steps.push(step);
        true
    }

    /// The executor has the whole table of each row, and keeps nothing of sequences that are gone.
    fn check_tables(&self, step: &Step, seqs: &[SeqId]) {
        assert!(step.rows.iter().all(|row| (row.slot as usize) < self.scheduler.options.max_sequences));
        for (row, seq) in step.rows.iter().zip(seqs).filter(|(row, _)| !row.tokens.is_empty()) {
            let covered = (row.start as usize + row.tokens.len()).div_ceil(self.shape.block_size);
            assert_eq!(self.ledger.tables.of(row.slot), &self.scheduler.seqs[seq].table[..covered], "{row:?}");
        }
        let taken = self.scheduler.seqs.values().filter_map(|seq| seq.slot);
        assert_eq!(self.ledger.tables.taken(), taken.collect());
    }

    /// All routers read again and release holds: everything must finish.
    fn wind_down(&mut self) {
        for id in self.oracles.keys().copied().collect::<Vec<_>>() {
            if self.paused.remove(&id) {
                self.apply(SchedulerEvent::Resume { seq: id });
            }
            let oracle = &self.oracles[&id];
            if oracle.state == State::Proposed {
                self.apply(SchedulerEvent::Cancel { seq: id });
                self.oracles.remove(&id);
            } else {
                let (epoch, keep) = (oracle.epoch + 1, oracle.generated() as u32);
                self.steer(id, Steer { epoch, keep, ..Steer::default() });
            }
        }
        let mut idle = 0;
        while self.oracles.values().any(|oracle| oracle.state == State::Open) {
            let ran = self.round();
            idle = if ran { 0 } else { idle + 1 };
            if !ran {
                let wake_at = self.scheduler.wake_at();
                self.now = wake_at.unwrap_or_else(|| panic!("no sequence can run: {:?}", self.scheduler));
            }
            assert!(idle < 10, "no progress: {:?}", self.scheduler);
        }
        for id in self.oracles.keys().copied().collect::<Vec<_>>() {
            self.apply(SchedulerEvent::Cancel { seq: id });
        }
        assert!(self.scheduler.is_empty());
        assert_eq!(self.scheduler.stats().used_blocks, 0);
        let (held, cells) = self.scheduler.blocks.cells();
        let under_way =
            self.scheduler.running_steps.iter().flat_map(|step| &step.rows).flat_map(|row| row.checkpoints());
        assert_eq!(held + under_way.count(), cells, "a cell was lost");
        assert_eq!(self.ledger.tables.taken(), self.scheduler.slots.left());
    }
}

/// Prints how to replay a failure.
struct Report(u64);

impl Drop for Report {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("replay this with REIN_SEED={}", self.0);
        }
    }
}

fn play(seed: u64) -> (Vec<Step>, EngineStats, [u64; 2]) {
    let _report = Report(seed);
    let mut world = World::new(seed);
    for _ in 0..80 {
        world.events();
        world.round();
    }
    world.wind_down();
    (world.steps, world.scheduler.stats(), [world.planned_ahead, world.from_checkpoints])
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn every_sequence_gets_the_tokens_it_would_get_alone() {
    let one = number("REIN_SEED");
    let seeds = one.map_or(0..number("REIN_SEEDS").unwrap_or(SEEDS), |seed| seed..seed + 1);
    let (mut total, mut ahead, mut restored) = (EngineStats::default(), 0, 0);
    for seed in seeds {
        let (_, stats, [planned_ahead, from_checkpoints]) = play(seed);
        ahead += planned_ahead;
        restored += from_checkpoints;
        total.steps += stats.steps;
        total.generated_tokens += stats.generated_tokens;
        total.cached_tokens += stats.cached_tokens;
        total.preemptions += stats.preemptions;
        total.rewound_tokens += stats.rewound_tokens;
        total.held_steps += stats.held_steps;
        total.restored_tokens += stats.restored_tokens;
        total.damaged_blocks += stats.damaged_blocks;
        total.draft_tokens += stats.draft_tokens;
        total.accepted_tokens += stats.accepted_tokens;
    }
    println!("{total:?}, {ahead} steps ahead, {restored} rows from checkpoints");
    let drafted = [total.accepted_tokens, total.draft_tokens - total.accepted_tokens];
    let reached = [ahead, restored, total.preemptions, total.cached_tokens, total.rewound_tokens, total.held_steps];
    let reached = [&reached[..], &drafted].concat();
    let host = [total.restored_tokens, total.damaged_blocks];
    assert!(one.is_some() || host.iter().all(|&count| count > 100), "the seeds do not reach the host tier: {total:?}");
    assert!(one.is_some() || reached.iter().all(|&count| count > 1000), "the seeds do not reach every case: {total:?}");
}

#[test]
fn prompt_tokens_that_move_to_a_fresh_block_are_scored_once() {
    let shape = ExecutorShape {
        model: "ledger".into(),
        vocab_size: VOCAB as usize,
        max_context: 60,
        blocks: 20,
        block_size: 4,
        kind: "sim",
        ranks: 1,
        hidden_size: 4,
        runs_ahead: true,
        step_cost: 6,
        states: None,
        lora_slots: 0,
        host: HostShape::default(),
        kv_ranks: 1,
    };
    let options = EngineOptions { max_sequences: 2, token_budget: 5, ..EngineOptions::default() };
    let mut scheduler = Scheduler::new(&shape, options);
    let mut ledger = Ledger::new(&shape);
    let limits = Some(Limits { max_tokens: 20, ..Limits::default() });
    let other = Start { prompt: (1..9).collect(), limits, hold: true, prompt_logprobs: -1, ..Start::default() };
    let sampling = Some(Sampling::default());
    let scored = Start { resume: vec![9; 9], sampling, hold: false, prompt_logprobs: 0, ..other.clone() };
    let mut oracle = Oracle::new(scored.clone(), 60);
    scheduler.apply(SchedulerEvent::Start { seq: 1, start: Box::new(other), lora: None }).expect("room");
    scheduler.apply(SchedulerEvent::Start { seq: 2, start: Box::new(scored), lora: None }).expect("room");
    while scheduler.seqs[&2].computed < 8 {
        let step = scheduler.schedule(StepPlacement::default(), Duration::ZERO).expect("a step");
        scheduler.commit(ledger.execute(&step));
    }
    // Now the prompt's blocks are shared, and its last token must be computed again.
    let steer = Steer { epoch: 1, ..Steer::default() };
    oracle.steer(&steer);
    scheduler.apply(SchedulerEvent::Steer { seq: 2, steer }).expect("taken");
    scheduler.take_outputs();
    while !oracle.admitted {
        let step = scheduler.schedule(StepPlacement::default(), Duration::ZERO).expect("a step");
        assert_eq!(step.rows[0].tokens, [5, 6, 7, 8], "the shared block is not written");
        scheduler.commit(ledger.execute(&step));
        for Output { message, last, .. } in scheduler.take_outputs() {
            oracle.output(message.kind.expect("set"), last);
        }
    }
}

#[test]
fn equal_events_give_equal_steps() {
    for seed in 0..100 {
        assert_eq!(play(seed).0, play(seed).0, "seed {seed}");
    }
}
