//! An executor without weights: step times from a cost model, tokens from a script or a seed.
//!
//! A seeded token is a hash of the seed and all tokens before it. Like a real model's token, it does not depend on the
//! batch, on prompt chunks, on the prefix cache or on preemption. To know the earlier tokens, the simulator keeps a
//! hash of the prefix per KV slot, as a model keeps keys and values. It does not know the scheduler.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use rein_proto::internal::{After, Draw, Drawn, Row, RowResult, Step, StepResult, TokenLogprob, TopLogprob};
use rein_proto::splitmix::mix_both;

use crate::blocks::HostShape;
use crate::executor::{DrawnTokens, Executor, ExecutorError, ExecutorShape};
use crate::tables::BlockTables;

/// Numbers of an embedding.
const EMBEDDING_SIZE: usize = 64;

#[derive(Debug, Clone)]
pub struct SimOptions {
    /// The model's name for clients.
    pub model: String,
    pub vocab_size: usize,
    pub max_context: usize,
    pub blocks: usize,
    pub block_size: usize,
    /// Places of a host tier.
    pub host_places: usize,
    /// Duration of a step that computes tokens, before the cost of the tokens. If all costs are zero, steps do not
    /// wait.
    pub step_base_us: u64,
    pub per_prefill_token_us: u64,
    pub per_decode_row_us: u64,
    pub seed: u64,
}

impl Default for SimOptions {
    fn default() -> Self {
        Self {
            model: "sim".into(),
            vocab_size: 32_000,
            max_context: 8192,
            blocks: 4096,
            block_size: 16,
            host_places: 0,
            step_base_us: 0,
            per_prefill_token_us: 0,
            per_decode_row_us: 0,
            seed: 0,
        }
    }
}

#[derive(Debug)]
pub struct Sim {
    options: SimOptions,
    /// Per KV slot, the hash of all tokens up to and including its own.
    slots: Vec<u64>,
    /// What the places of the host tier hold.
    host: HashMap<u32, (u64, Vec<u64>)>,
    stashed: HashMap<u32, u64>,
    /// The results of steps that were submitted, and when they are there.
    running: VecDeque<(StepResult, Instant)>,
    drawn: DrawnTokens,
    tables: BlockTables,
}

impl Sim {
    pub fn new(options: SimOptions) -> Self {
        Self {
            slots: vec![0; options.blocks * options.block_size],
            host: HashMap::new(),
            stashed: HashMap::new(),
            running: VecDeque::new(),
            drawn: DrawnTokens::default(),
            tables: BlockTables::default(),
            options,
        }
    }

    fn cost(&self, step: &Step) -> Duration {
        // A step that only draws reads no weights.
        let forward = step.rows.iter().any(|row| !row.tokens.is_empty());
        let mut us = if forward { self.options.step_base_us } else { 0 };
        for row in &step.rows {
            us += match row.tokens.len() {
                0 => 0,
                1 => self.options.per_decode_row_us,
                tokens => self.options.per_prefill_token_us * tokens as u64,
            };
        }
        Duration::from_micros(us)
    }

    fn slot(&self, row: &Row, position: usize) -> Result<usize, ExecutorError> {
        let size = self.options.block_size;
        match self.tables.of(row.slot).get(position / size) {
            Some(&block) if (block as usize) < self.options.blocks => Ok(block as usize * size + position % size),
            _ => Err(ExecutorError::Step(format!("slot {}: no block for position {position}", row.slot))),
        }
    }

    /// The places that do not hold what is to be loaded.
    fn copy_blocks(&mut self, step: &Step) -> Vec<u32> {
        let size = self.options.block_size;
        let of = |block: u32| block as usize * size..(block as usize + 1) * size;
        for save in &step.saves {
            self.host.insert(save.place, (save.content, self.slots[of(save.block)].to_vec()));
        }
        let mut lost = Vec::new();
        for load in &step.loads {
            match self.host.get(&load.place).filter(|(content, _)| *content == load.content) {
                Some((_, slots)) => self.slots[of(load.block)].copy_from_slice(slots),
                None => lost.push(load.place),
            }
        }
        lost
    }

    /// The hash of all tokens up to each of the row's.
    fn forward(&mut self, row: &Row, scores: &mut Vec<TokenLogprob>) -> Result<Vec<u64>, ExecutorError> {
        let mut state = match (row.start as usize).checked_sub(1) {
            None => mix_both(self.options.seed, u64::MAX),
            Some(before) => self.slots[self.slot(row, before)?],
        };
        let mut states = Vec::with_capacity(row.tokens.len());
        for (index, &token) in row.tokens.iter().enumerate() {
            state = mix_both(state, u64::from(token));
            states.push(state);
            let slot = self.slot(row, row.start as usize + index)?;
            self.slots[slot] = state;
            if row.score >= 0
                && let Some(next) = row.tokens.get(index + 1).copied().or(row.next)
            {
                scores.push(self.logprob(next, row.score));
            }
        }
        Ok(states)
    }

    /// From a flat distribution.
    fn logprob(&self, token: u32, alternatives: i32) -> TokenLogprob {
        let logprob = -(self.options.vocab_size as f32).ln();
        let count = (alternatives.max(0) as usize).min(self.options.vocab_size);
        let top = (0..count as u32).map(|id| TopLogprob { id, logprob }).collect();
        TokenLogprob { id: token, logprob: Some(logprob), rank: 1, top }
    }

    fn sample(&self, state: u64, draw: &Draw) -> Option<u32> {
        let vocab = self.options.vocab_size as u32;
        let allowed = |token: u32| {
            token < vocab
                && !draw.banned.contains(&token)
                && draw.mask.as_ref().is_none_or(|mask| mask[token as usize / 8] >> (token % 8) & 1 == 1)
        };
        if let Some(token) = draw.scripted.filter(|&token| allowed(token)) {
            return Some(token);
        }
        let sampling = draw.sampling.clone().unwrap_or_default();
        if let Some(bias) = sampling.logit_bias.iter().find(|bias| bias.bias >= 100.0 && allowed(bias.token)) {
            return Some(bias.token);
        }
        let excluded = |token| sampling.logit_bias.iter().any(|bias| bias.token == token && bias.bias <= -100.0);
        let random = match sampling.temperature == 0.0 {
            true => state,
            false => mix_both(mix_both(state, sampling.seed), u64::from(draw.mask.is_some())),
        };
        let first = (random % u64::from(vocab)) as u32;
        (first..vocab).chain(0..first).find(|&token| allowed(token) && !excluded(token))
    }
}

impl Executor for Sim {
    fn shape(&self) -> ExecutorShape {
        let options = &self.options;
        ExecutorShape {
            model: options.model.clone(),
            vocab_size: options.vocab_size,
            max_context: options.max_context,
            blocks: options.blocks,
            block_size: options.block_size,
            kind: "sim",
            ranks: 1,
            hidden_size: EMBEDDING_SIZE,
            runs_ahead: true,
            step_cost: (options.step_base_us / options.per_prefill_token_us.max(1)) as usize,
            states: None,
            lora_slots: 0,
            host: HostShape { places: options.host_places, ..HostShape::default() },
            kv_ranks: 1,
        }
    }

    fn submit(&mut self, mut step: Step) -> Result<(), ExecutorError> {
        let begins = self.running.back().map_or_else(Instant::now, |(_, until)| Instant::now().max(*until));
        let until = begins + self.cost(&step);
        self.drawn.fill_in(&mut step);
        for slot in &step.dropped {
            self.stashed.remove(slot);
        }
        self.tables.apply(&step).map_err(ExecutorError::Step)?;
        let lost_places = self.copy_blocks(&step);
        let mut rows = Vec::new();
        for row in &step.rows {
            let mut scores = Vec::new();
            let stashed = self.stashed.remove(&row.slot);
            let states = match row.tokens.is_empty() {
                false => self.forward(row, &mut scores)?,
                true => vec![stashed.ok_or_else(|| {
                    ExecutorError::Step(format!("slot {} draws from a stash that does not exist", row.slot))
                })?],
            };
            let state = states.last().copied().unwrap_or_default();
            if row.after() == After::Stash {
                self.stashed.insert(row.slot, state);
            }
            let mut result = RowResult { slot: row.slot, scores, ..RowResult::default() };
            let first = states.len().saturating_sub(row.draws.len());
            result.drawn = states[first..]
                .iter()
                .zip(&row.draws)
                .map(|(state, draw)| {
                    let token = self.sample(*state, draw);
                    let logprob = token.filter(|_| draw.logprobs >= 0).map(|token| self.logprob(token, draw.logprobs));
                    Drawn { token, logprob }
                })
                .collect();
            if row.after() == After::Embed {
                result.state = embedding(state);
            }
            if !row.draws.is_empty() || row.score >= 0 || row.after() == After::Embed {
                rows.push(result);
            }
        }
        let result = StepResult { id: step.id, rows, lost_places };
        self.drawn = DrawnTokens::of(&result);
        self.running.push_back((result, until));
        Ok(())
    }

    fn wait(&mut self) -> Result<StepResult, ExecutorError> {
        let (result, until) =
            self.running.pop_front().ok_or_else(|| ExecutorError::Step("no step was submitted".into()))?;
        wait_until(until);
        Ok(result)
    }
}

/// Numbers from -1 to 1 that depend on all tokens.
fn embedding(state: u64) -> Vec<f32> {
    let number = |i| mix_both(state, i) as i64 as f32 / i64::MAX as f32;
    (0..EMBEDDING_SIZE as u64).map(number).collect()
}

// The wait simulates the device's time; there is no event to wait for.
#[allow(clippy::disallowed_methods)]
fn wait_until(until: Instant) {
    let left = until.saturating_duration_since(Instant::now());
    if !left.is_zero() {
        std::thread::sleep(left);
    }
}

#[cfg(test)]
mod tests;
