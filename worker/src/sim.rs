//! An executor without weights: step times from a cost model, tokens from a script or a seed.
//!
//! Seeded tokens are a hash of the seed and all tokens before them, so that, like a real model's, they do not depend on
//! what else is in the batch, on chunks, on the prefix cache or on preemption. To know the tokens before, the simulator
//! keeps per KV slot a hash of the prefix that ends there, as a model keeps keys and values.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use rein_proto::internal::{After, Draw, Row, RowResult, Step, StepResult, TokenLogprob, TopLogprob};

use crate::executor::{Executor, ExecutorError, ExecutorShape};

#[derive(Debug, Clone)]
pub struct SimOptions {
    /// Name shown to clients.
    pub model: String,
    pub vocab_size: usize,
    pub max_context: usize,
    pub blocks: usize,
    pub block_size: usize,
    /// A step that computes tokens takes this long, plus what they cost. All zero: no waiting.
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
    /// Per KV slot the hash of the tokens up to and with it.
    slots: Vec<u64>,
    stashed: HashMap<u64, u64>,
}

impl Sim {
    pub fn new(options: SimOptions) -> Self {
        Self { slots: vec![0; options.blocks * options.block_size], stashed: HashMap::new(), options }
    }

    fn cost(&self, step: &Step) -> Duration {
        // Drawing alone reads no weights.
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
        match row.blocks.get(position / size) {
            Some(&block) if (block as usize) < self.options.blocks => Ok(block as usize * size + position % size),
            _ => Err(ExecutorError::Step(format!("sequence {}: no block for position {position}", row.seq))),
        }
    }

    /// Hash of the tokens up to and with the row's last.
    fn forward(&mut self, row: &Row, scores: &mut Vec<TokenLogprob>) -> Result<u64, ExecutorError> {
        let mut state = match (row.start as usize).checked_sub(1) {
            None => mix(self.options.seed, u64::MAX),
            Some(before) => self.slots[self.slot(row, before)?],
        };
        for (index, &token) in row.tokens.iter().enumerate() {
            state = mix(state, u64::from(token));
            let slot = self.slot(row, row.start as usize + index)?;
            self.slots[slot] = state;
            if row.score >= 0
                && let Some(next) = row.tokens.get(index + 1).copied().or(row.next)
            {
                scores.push(self.logprob(next, row.score));
            }
        }
        Ok(state)
    }

    /// A flat distribution.
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
            false => mix(mix(state, sampling.seed), u64::from(draw.mask.is_some())),
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
        }
    }

    fn execute(&mut self, step: &Step) -> Result<StepResult, ExecutorError> {
        let until = Instant::now() + self.cost(step);
        for seq in &step.dropped {
            self.stashed.remove(seq);
        }
        let mut rows = Vec::new();
        for row in &step.rows {
            let mut scores = Vec::new();
            let state = match row.tokens.is_empty() {
                false => self.forward(row, &mut scores)?,
                true => self.stashed.remove(&row.seq).ok_or_else(|| {
                    ExecutorError::Step(format!("sequence {} draws from a stash that is not there", row.seq))
                })?,
            };
            if row.after() == After::Stash {
                self.stashed.insert(row.seq, state);
            }
            let mut result = RowResult { seq: row.seq, scores, ..RowResult::default() };
            if let Some(draw) = &row.draw {
                result.token = self.sample(state, draw);
                result.empty_mask = result.token.is_none();
                result.logprob =
                    result.token.filter(|_| draw.logprobs >= 0).map(|token| self.logprob(token, draw.logprobs));
            }
            if row.draw.is_some() || row.score >= 0 {
                rows.push(result);
            }
        }
        wait_until(until);
        Ok(StepResult { id: step.id, rows })
    }
}

// The device's time is what is simulated here; there is no event to wait for.
#[allow(clippy::disallowed_methods)]
fn wait_until(until: Instant) {
    let left = until.saturating_duration_since(Instant::now());
    if !left.is_zero() {
        std::thread::sleep(left);
    }
}

/// One round of splitmix64 over both.
fn mix(state: u64, value: u64) -> u64 {
    let mut z = (state ^ value.wrapping_mul(0xD6E8_FEB8_6659_FD93)).wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(seq: u64, tokens: &[u32], start: u32, draw: Option<Draw>) -> Row {
        let after = if draw.is_some() { After::Draw } else { After::Stash };
        let blocks = vec![seq as u32 * 2, seq as u32 * 2 + 1];
        Row { seq, tokens: tokens.to_vec(), start, blocks, after: after.into(), draw, score: -1, next: None }
    }

    fn step(rows: Vec<Row>) -> Step {
        Step { rows, ..Step::default() }
    }

    fn draw() -> Option<Draw> {
        Some(Draw { logprobs: -1, ..Draw::default() })
    }

    #[test]
    fn tokens_depend_on_the_past_and_on_nothing_else() {
        let mut sim = Sim::new(SimOptions::default());
        let mut token = |rows| sim.execute(&step(rows)).expect("executed").rows.pop().and_then(|row| row.token);
        let whole = token(vec![row(0, &[1, 2, 3], 0, draw())]);
        assert!(whole.is_some());
        // In two chunks, beside another sequence.
        let other = token(vec![row(1, &[1, 2], 0, None), row(2, &[9], 0, draw())]);
        assert_eq!(token(vec![row(2, &[9], 0, draw())]), other);
        assert_eq!(token(vec![row(1, &[3], 2, draw())]), whole);
        assert_ne!(token(vec![row(1, &[4], 2, draw())]), whole);
        assert_eq!(token(vec![row(1, &[3], 2, None)]), None);
        assert_eq!(token(vec![row(1, &[], 3, draw())]), whole);
        let error = sim.execute(&step(vec![row(1, &[], 3, draw())])).expect_err("the stash is used up");
        assert!(error.to_string().contains("stash"), "{error}");
    }

    #[test]
    fn a_step_takes_what_its_rows_cost() {
        let costs =
            SimOptions { step_base_us: 100, per_prefill_token_us: 10, per_decode_row_us: 1, ..Default::default() };
        let sim = Sim::new(costs.clone());
        let rows = vec![row(0, &[1; 20], 0, None), row(1, &[1], 5, draw()), row(2, &[], 5, draw())];
        assert_eq!(sim.cost(&step(rows)), Duration::from_micros(100 + 200 + 1));
        assert_eq!(sim.cost(&step(vec![row(2, &[], 5, draw())])), Duration::ZERO, "what was computed before");
        let mut slow = Sim::new(SimOptions { step_base_us: 3000, ..costs });
        let begin = Instant::now();
        slow.execute(&step(vec![row(0, &[1], 0, draw())])).expect("executed");
        assert!(begin.elapsed() >= Duration::from_millis(3));
    }

    #[test]
    fn scripts_bans_masks_and_biases_are_honoured() {
        let sim = Sim::new(SimOptions { vocab_size: 16, ..SimOptions::default() });
        let sample = |draw: Draw| sim.sample(5, &draw);
        assert_eq!(sample(Draw { scripted: Some(3), ..Draw::default() }), Some(3));
        let mask = Some(vec![0b0001_0000, 0].into());
        assert_eq!(sample(Draw { scripted: Some(3), mask: mask.clone(), ..Draw::default() }), Some(4));
        assert_eq!(sample(Draw { mask, banned: vec![4], ..Draw::default() }), None);
        let bias = vec![rein_proto::internal::LogitBias { token: 9, bias: 100.0 }];
        let sampling = Some(rein_proto::internal::Sampling { logit_bias: bias, ..Default::default() });
        assert_eq!(sample(Draw { sampling, ..Draw::default() }), Some(9));
    }
}
