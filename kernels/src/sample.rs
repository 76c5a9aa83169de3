//! Sampling. A draw is a pure function of the logits and the spec: it has no state and does not depend on the order of
//! calls.
//!
//! The order of processing is that of vLLM and transformers: penalties, logit bias, mask and bans, temperature, top-k,
//! top-p, min-p, draw. Ties go to the lowest id. NaN is never chosen.

mod weights;

use std::collections::HashMap;

use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{RngCore, SeedableRng};
use weights::{CELL, find, reaching, sum, weigh};

#[derive(Debug, Clone, Copy)]
pub struct SampleSpec<'a> {
    /// 0: always the most likely token.
    pub temperature: f32,
    /// Keep the most likely tokens whose probabilities reach this sum; 1 or more: all.
    pub top_p: f32,
    /// Keep this many tokens; 0: all.
    pub top_k: usize,
    /// Keep tokens that are at least this fraction as likely as the most likely one; 0: all.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of tokens in `prompt` or `generated`; 1: off.
    pub repetition_penalty: f32,
    /// Subtracted once for a token in `generated`.
    pub presence_penalty: f32,
    /// Subtracted for each occurrence in `generated`.
    pub frequency_penalty: f32,
    pub logit_bias: &'a [(u32, f32)],
    pub seed: u64,
    /// Index of the draw among the generated tokens.
    pub position: u32,
    /// One bit for each token, little endian within each byte; tokens beyond its end are not allowed.
    pub mask: Option<&'a [u8]>,
    pub banned: &'a [u32],
    pub prompt: &'a [u32],
    pub generated: &'a [u32],
}

impl Default for SampleSpec<'_> {
    fn default() -> Self {
        SampleSpec {
            temperature: 1.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: &[],
            seed: 0,
            position: 0,
            mask: None,
            banned: &[],
            prompt: &[],
            generated: &[],
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct Logprob {
    pub logprob: f32,
    /// 1 for the most likely token.
    pub rank: u32,
    /// The most likely tokens, best first.
    pub top: Vec<(u32, f32)>,
}

/// The increment of splitmix64's state per number.
const STRIDE: u64 = 0x9e37_79b9_7f4a_7c15;

/// A uniform number in [0, 1) for a draw: a number of the splitmix64 stream that the seed selects.
fn uniform(seed: u64, position: u32, masked: bool) -> f64 {
    let mix = |state: u64| SplitMix64::seed_from_u64(state).next_u64();
    let draw = u64::from(position) << 1 | u64::from(masked);
    let bits = mix(mix(seed).wrapping_add(draw.wrapping_sub(1).wrapping_mul(STRIDE)));
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

/// A token with its logit, which is no NaN, as one number. The order is best first: larger logit, then lower id.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate(u64);

impl Candidate {
    /// -0 counts as 0.
    fn new(id: usize, logit: f32) -> Self {
        let bits = (logit + 0.0).to_bits();
        // As unsigned numbers, these are in the order of the logits. No branch: signs are random.
        let ascending = bits ^ ((bits as i32 >> 31) as u32 | 1 << 31);
        Candidate(u64::from(!ascending) << 32 | id as u64)
    }

    fn id(self) -> u32 {
        self.0 as u32
    }

    fn logit(self) -> f32 {
        let ascending = !((self.0 >> 32) as u32);
        f32::from_bits(ascending ^ (!(ascending as i32 >> 31) as u32 | 1 << 31))
    }
}

/// Draws a token; `logits` are modified. None: no token is allowed.
pub fn sample(logits: &mut [f32], spec: &SampleSpec) -> Option<u32> {
    process(logits, spec);
    let best = best(logits)?;
    if spec.temperature <= 0.0 {
        return Some(best);
    }
    let mut weights = vec![0.0; logits.len()];
    weigh(logits, logits[best as usize], f64::from(spec.temperature), &mut weights);
    if spec.top_k > 0 || spec.top_p < 1.0 || spec.min_p > 0.0 {
        let kept = select(logits, &weights, spec, floor(&weights, spec));
        let of_kept: Vec<f64> = kept.iter().map(|kept| weights[kept.id() as usize]).collect();
        let found = find(&of_kept, uniform(spec.seed, spec.position, spec.mask.is_some()))?;
        return Some(kept[found].id());
    }
    find(&weights, uniform(spec.seed, spec.position, spec.mask.is_some())).map(|id| id as u32)
}

/// No token with a smaller weight is kept: most of a vocabulary need not be compared.
fn floor(weights: &[f64], spec: &SampleSpec) -> f64 {
    let of_first = match spec.top_k {
        0 if spec.top_p < 1.0 => reaching(weights, |weight| weight, f64::from(spec.top_p.max(0.0)) * sum(weights)),
        0 => 0.0,
        k => reaching(weights, |_| 1.0, k as f64),
    };
    of_first.max(f64::from(spec.min_p.clamp(0.0, 1.0)))
}

/// The tokens that top-k, top-p and min-p keep, by id, so that the result does not depend on how they were selected.
fn select(logits: &[f32], weights: &[f64], spec: &SampleSpec, floor: f64) -> Vec<Candidate> {
    let weight = |kept: &Candidate| weights[kept.id() as usize];
    let usable = logits.iter().zip(weights).enumerate();
    let usable = usable.filter(|(_, (logit, weight))| **weight >= floor && **logit > f32::NEG_INFINITY);
    let mut kept: Vec<Candidate> = usable.map(|(id, (&logit, _))| Candidate::new(id, logit)).collect();
    if spec.top_k > 0 && spec.top_k < kept.len() {
        kept.select_nth_unstable(spec.top_k - 1);
        kept.truncate(spec.top_k);
    }
    if spec.top_p < 1.0 {
        let total = if spec.top_k > 0 { kept.iter().map(weight).sum() } else { sum(weights) };
        keep_top_p(&mut kept, f64::from(spec.top_p.max(0.0)) * total, weight);
    }
    if spec.min_p > 0.0 {
        let least = f64::from(spec.min_p.min(1.0));
        kept.retain(|k| weight(k) >= least);
    }
    kept.sort_unstable_by_key(|candidate| candidate.id());
    kept
}

/// Keeps the best tokens until their weights reach `mass`; at least one.
fn keep_top_p(kept: &mut Vec<Candidate>, mass: f64, weight: impl Fn(&Candidate) -> f64) {
    let (mut sorted, mut reached) = (0, 0.0);
    let mut part = 64;
    while sorted < kept.len() {
        // Sorts only as much of the head as needed.
        let end = (sorted + part).min(kept.len());
        if end < kept.len() {
            kept[sorted..].select_nth_unstable(end - sorted - 1);
        }
        kept[sorted..end].sort_unstable();
        for i in sorted..end {
            reached += weight(&kept[i]);
            if reached >= mass {
                kept.truncate(i + 1);
                return;
            }
        }
        sorted = end;
        part *= 4;
    }
}

/// Penalties, bias, mask and bans.
fn process(logits: &mut [f32], spec: &SampleSpec) {
    let len = logits.len();
    let inside = |id: &&u32| (**id as usize) < len;
    if spec.repetition_penalty != 1.0 {
        let mut seen: Vec<u32> = spec.prompt.iter().chain(spec.generated).filter(inside).copied().collect();
        seen.sort_unstable();
        seen.dedup();
        for id in seen {
            let logit = &mut logits[id as usize];
            *logit = if *logit > 0.0 { *logit / spec.repetition_penalty } else { *logit * spec.repetition_penalty };
        }
    }
    if spec.presence_penalty != 0.0 || spec.frequency_penalty != 0.0 {
        let mut counts: HashMap<u32, u32> = HashMap::new();
        spec.generated.iter().filter(inside).for_each(|&id| *counts.entry(id).or_default() += 1);
        for (id, count) in counts {
            logits[id as usize] -= spec.presence_penalty + spec.frequency_penalty * count as f32;
        }
    }
    for &(id, bias) in spec.logit_bias {
        if let Some(logit) = logits.get_mut(id as usize) {
            *logit += bias;
        }
    }
    if let Some(mask) = spec.mask {
        for (i, chunk) in logits.chunks_mut(8).enumerate() {
            let bits = mask.get(i).copied().unwrap_or(0);
            if bits == 0xff {
                continue;
            }
            for (j, logit) in chunk.iter_mut().enumerate() {
                if bits >> j & 1 == 0 {
                    *logit = f32::NEG_INFINITY;
                }
            }
        }
    }
    for id in spec.banned.iter().filter(inside) {
        logits[*id as usize] = f32::NEG_INFINITY;
    }
}

/// The lowest id of the largest logit; NaN and -inf are ignored.
fn best(logits: &[f32]) -> Option<u32> {
    let mut best = None;
    let mut largest = f32::NEG_INFINITY;
    for (i, &logit) in logits.iter().enumerate() {
        if logit > largest {
            (best, largest) = (Some(i as u32), logit);
        }
    }
    best
}

/// Natural log of the softmax of the raw logits, for `chosen` and the `top_n` most likely tokens.
pub fn logprobs(logits: &[f32], chosen: u32, top_n: usize) -> Logprob {
    let clean = |l: f32| if l.is_nan() { f32::NEG_INFINITY } else { l };
    let max = logits.iter().copied().map(clean).fold(f32::NEG_INFINITY, f32::max);
    if max == f32::NEG_INFINITY {
        return Logprob { logprob: f32::NEG_INFINITY, rank: 1, top: Vec::new() };
    }
    let shifted = |l: f32| if clean(l) == max { 0.0 } else { f64::from(clean(l)) - f64::from(max) };
    let mut weights = [0.0; CELL];
    let sums = logits.chunks(CELL).map(|logits| {
        let weights = &mut weights[..logits.len()];
        weigh(logits, max, 1.0, weights);
        sum(weights)
    });
    let log_sum = sums.sum::<f64>().ln();
    let logprob = |l: f32| (shifted(l) - log_sum) as f32;
    let own = logits.get(chosen as usize).copied().map_or(f32::NEG_INFINITY, clean);
    let ahead = |(i, &l): (usize, &f32)| clean(l) > own || (clean(l) == own && (i as u32) < chosen);
    let rank = 1 + logits.iter().enumerate().filter(|&x| ahead(x)).count() as u32;
    let mut top = Vec::new();
    if top_n > 0 {
        let mut all: Vec<Candidate> = logits.iter().enumerate().map(|(i, &l)| Candidate::new(i, clean(l))).collect();
        if top_n < all.len() {
            all.select_nth_unstable(top_n - 1);
            all.truncate(top_n);
        }
        all.sort_unstable();
        top = all.into_iter().map(|candidate| (candidate.id(), logprob(candidate.logit()))).collect();
    }
    Logprob { logprob: logprob(own), rank, top }
}

#[cfg(test)]
mod tests;
