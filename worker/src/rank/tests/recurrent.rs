//! A model with recurrent layers under the scheduler: steering, preemption, shared prefixes and resumed sequences
//! change no bit of what a sequence draws.

use std::collections::BTreeMap;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rein_proto::internal::{Limits, Start, Steer, from_engine::Kind};

use super::*;
use crate::scheduler::{EngineOptions, Output, Scheduler, SchedulerEvent};

const BLOCK_SIZE: usize = 4;
const MOST_TOKENS: u32 = 24;

fn options(kv_blocks: usize) -> ModelOptions {
    ModelOptions { kv_blocks: Some(kv_blocks), block_size: BLOCK_SIZE, max_sequences: 4, ..f32_options() }
}

/// What a sequence is known to have.
struct Known {
    tokens: Vec<u32>,
    prompt: usize,
    epoch: u64,
}

struct World {
    group: RankGroup,
    scheduler: Scheduler,
    /// Computes every draw again from the first token on.
    alone: RankGroup,
    known: BTreeMap<u64, Known>,
    /// Of finished sequences.
    answers: Vec<(Vec<u32>, usize)>,
    rng: StdRng,
    draws: usize,
}

impl World {
    fn new(name: &str, seed: u64) -> Self {
        let dir = fixture(name).dir;
        let group = load(&dir, &options(28));
        let draft_tokens = if seed % 2 == 1 { 3 } else { 0 };
        let engine = EngineOptions { max_sequences: 4, token_budget: 11, draft_tokens, ..EngineOptions::default() };
        World {
            scheduler: Scheduler::new(&group.shape(), engine),
            group,
            alone: load(&dir, &options(64)),
            known: BTreeMap::new(),
            answers: Vec::new(),
            rng: StdRng::seed_from_u64(seed),
            draws: 0,
        }
    }

    /// A prompt that shares its beginning with others, or goes on after a whole answer; some are resumed.
    fn start(&mut self, seq: u64) {
        let fresh =
            |rng: &mut StdRng, most| (0..rng.random_range(1..most)).map(|i| i * 7 % 200 + 3).collect::<Vec<u32>>();
        let (mut prompt, mut resume) = (fresh(&mut self.rng, 30), Vec::new());
        if let Some((tokens, prompt_len)) = self.answers.last().filter(|_| self.rng.random_bool(0.6)) {
            prompt = tokens.clone();
            match self.rng.random_bool(0.4) {
                true => resume = prompt.split_off(*prompt_len),
                false => prompt.extend(fresh(&mut self.rng, 5)),
            }
            prompt.truncate(60);
        }
        resume.truncate(8);
        self.known.insert(seq, Known { tokens: [&prompt[..], &resume].concat(), prompt: prompt.len(), epoch: 0 });
        let start = Start {
            prompt,
            resume,
            sampling: Some(sampling()),
            limits: Some(Limits { max_tokens: MOST_TOKENS, ..Limits::default() }),
            hold: self.rng.random_bool(0.3),
            logprobs: 1,
            prompt_logprobs: -1,
            ..Start::default()
        };
        self.scheduler.apply(SchedulerEvent::Start { seq, start: Box::new(start), lora: None }).expect("room");
    }

    fn steer(&mut self, seq: u64, last: bool) {
        let known = self.known.get_mut(&seq).expect("it runs");
        let generated = known.tokens.len() - known.prompt;
        let most = if self.rng.random_bool(0.7) { 2 } else { 9 };
        let back = self.rng.random_range(0..=generated.min(most));
        let keep = if last { generated } else { generated - back };
        let append = if self.rng.random_bool(0.5) && !last { vec![17, 9, 33] } else { Vec::new() };
        known.epoch += 1;
        known.tokens.truncate(known.prompt + keep);
        let room = MOST_TOKENS as usize - keep;
        known.tokens.extend(append.iter().take(room));
        let hold = self.rng.random_bool(0.4) && !last;
        let steer = Steer { epoch: known.epoch, keep: keep as u32, append, hold, ..Steer::default() };
        self.scheduler.apply(SchedulerEvent::Steer { seq, steer }).expect("taken");
    }

    fn step(&mut self) -> bool {
        let Some(step) = self.scheduler.schedule(self.group.placed(), Duration::from_secs(1)) else { return false };
        let result = self.group.execute(step).expect("executes");
        self.scheduler.commit(result);
        self.scheduler.check().expect("consistent");
        true
    }

    fn read(&mut self) {
        for Output { seq, message, last } in self.scheduler.take_outputs() {
            match message.kind {
                Some(Kind::Tokens(tokens)) => {
                    let known = self.known.get_mut(&seq).expect("known");
                    assert_eq!(tokens.ids.len(), tokens.logprobs.len());
                    for (token, got) in tokens.ids.into_iter().zip(tokens.logprobs) {
                        let blocks: Vec<u32> = (0..known.tokens.len().div_ceil(BLOCK_SIZE) as u32).collect();
                        let mut row = row(0, &known.tokens, 0, &blocks, After::Draw);
                        row.draws[0].logprobs = 1;
                        let drawn = run(&mut self.alone, vec![row]);
                        assert_eq!(
                            Some(&got),
                            drawn[0].logprob(),
                            "sequence {seq} after {} tokens",
                            known.tokens.len()
                        );
                        known.tokens.push(token);
                        self.draws += 1;
                    }
                }
                Some(Kind::Finish(finish)) => assert_eq!(finish.error, ""),
                _ => {}
            }
            if last {
                let Known { tokens, prompt, .. } = self.known.remove(&seq).expect("known");
                self.answers.push((tokens, prompt));
            }
        }
    }
}

#[test]
fn a_recurrent_model_draws_the_same_bits_whatever_happens() {
    for (name, seed) in [("qwen3_next", 1), ("qwen3_next", 2), ("qwen3_next_variants", 3)] {
        let mut world = World::new(name, seed);
        for seq in 1..60 {
            world.start(seq);
            for _ in 0..world.rng.random_range(0..12) {
                let ran = world.step();
                world.read();
                let running: Vec<u64> = world.known.keys().copied().collect();
                for seq in running {
                    if world.known.contains_key(&seq) && (!ran || world.rng.random_bool(0.1)) {
                        world.steer(seq, false);
                        world.read();
                    }
                }
            }
        }
        while !world.scheduler.is_empty() {
            if !world.step() {
                let running: Vec<u64> = world.known.keys().copied().collect();
                running.into_iter().for_each(|seq| world.steer(seq, true));
            }
            world.read();
        }
        let stats = world.scheduler.stats();
        println!("{name}: {} draws, {stats:?}", world.draws);
        let reached = [world.draws as u64, stats.cached_tokens, stats.preemptions, stats.rewound_tokens];
        assert!(reached.iter().all(|&count| count > 5), "{stats:?}");
        assert!(seed == 2 || stats.accepted_tokens > 0 && stats.draft_tokens > stats.accepted_tokens, "{stats:?}");
    }
}
