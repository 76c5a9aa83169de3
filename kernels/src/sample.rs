//! Sampling. A draw is a pure function of the logits and the spec: no state, no order of calls.
//!
//! Processing, as vLLM and transformers order it: penalties, logit bias, mask and bans, temperature, top-k, top-p,
//! min-p, draw. Ties go to the lowest id. NaN is never chosen.

use std::collections::HashMap;

#[derive(Debug, Clone, Copy)]
pub struct SampleSpec<'a> {
    /// 0: the best token.
    pub temperature: f32,
    /// Keep the most likely tokens that together reach this; 1 or more: all.
    pub top_p: f32,
    /// Keep this many; 0: all.
    pub top_k: usize,
    /// Keep tokens at least this fraction as likely as the best; 0: all.
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

/// A uniform number in [0, 1), from a hash (splitmix64's finalizer) of what identifies the draw.
fn uniform(seed: u64, position: u32, masked: bool) -> f64 {
    let mix = |mut z: u64| {
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    let key = u64::from(position) << 1 | u64::from(masked);
    let bits = mix(mix(seed.wrapping_add(0x9e37_79b9_7f4a_7c15)).wrapping_add(key.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

/// Best first: larger logit, then lower id. No NaN among the candidates.
fn order(a: &(u32, f32), b: &(u32, f32)) -> std::cmp::Ordering {
    b.1.total_cmp(&a.1).then(a.0.cmp(&b.0))
}

/// Draws a token; `logits` are changed in the process. None: no token is left to choose from.
pub fn sample(logits: &mut [f32], spec: &SampleSpec) -> Option<u32> {
    process(logits, spec);
    let best = best(logits)?;
    if spec.temperature <= 0.0 {
        return Some(best);
    }
    let top = logits[best as usize];
    let temperature = f64::from(spec.temperature);
    // +inf meets +inf as 0, so infinitely likely tokens share the draw.
    let weight =
        |logit: f32| if logit == top { 1.0 } else { ((f64::from(logit) - f64::from(top)) / temperature).exp() };
    let usable = |logit: f32| !logit.is_nan() && logit > f32::NEG_INFINITY;
    let mut kept: Vec<(u32, f32)> =
        logits.iter().enumerate().filter(|(_, l)| usable(**l)).map(|(i, l)| (i as u32, *l)).collect();
    // -0 and 0 are one value, of which the lower id comes first.
    kept.iter_mut().for_each(|k| k.1 += 0.0);

    if spec.top_k > 0 && spec.top_k < kept.len() {
        kept.select_nth_unstable_by(spec.top_k - 1, order);
        kept.truncate(spec.top_k);
    }
    if spec.top_p < 1.0 {
        let total: f64 = kept.iter().map(|k| weight(k.1)).sum();
        keep_top_p(&mut kept, f64::from(spec.top_p.max(0.0)) * total, &weight);
    }
    if spec.min_p > 0.0 {
        let least = f64::from(spec.min_p.min(1.0));
        kept.retain(|k| weight(k.1) >= least);
    }
    // By id: the outcome must not hang on how the selections above left the order.
    kept.sort_unstable_by_key(|k| k.0);
    let total: f64 = kept.iter().map(|k| weight(k.1)).sum();
    let target = uniform(spec.seed, spec.position, spec.mask.is_some()) * total;
    let mut reached = 0.0;
    for &(id, logit) in &kept {
        reached += weight(logit);
        if reached > target {
            return Some(id);
        }
    }
    // Rounding left the target at the very end.
    kept.iter().rev().find(|k| weight(k.1) > 0.0).map(|k| k.0)
}

/// Keeps the best tokens until their weights reach `mass`, one at least.
fn keep_top_p(kept: &mut Vec<(u32, f32)>, mass: f64, weight: &dyn Fn(f32) -> f64) {
    let (mut sorted, mut reached) = (0, 0.0);
    let mut part = 64;
    while sorted < kept.len() {
        // Sort only as much of the head as it takes.
        let end = (sorted + part).min(kept.len());
        if end < kept.len() {
            kept[sorted..].select_nth_unstable_by(end - sorted - 1, order);
        }
        kept[sorted..end].sort_unstable_by(order);
        for i in sorted..end {
            reached += weight(kept[i].1);
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

/// The lowest id of the largest logit; NaN and -inf do not count.
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
    let log_sum = logits.iter().map(|&l| shifted(l).exp()).sum::<f64>().ln();
    let logprob = |l: f32| (shifted(l) - log_sum) as f32;
    let own = logits.get(chosen as usize).copied().map_or(f32::NEG_INFINITY, clean);
    let ahead = |(i, &l): (usize, &f32)| clean(l) > own || (clean(l) == own && (i as u32) < chosen);
    let rank = 1 + logits.iter().enumerate().filter(|&x| ahead(x)).count() as u32;
    let mut top = Vec::new();
    if top_n > 0 {
        // + 0.0 makes -0 and 0 one value.
        let mut all: Vec<(u32, f32)> = logits.iter().enumerate().map(|(i, &l)| (i as u32, clean(l) + 0.0)).collect();
        if top_n < all.len() {
            all.select_nth_unstable_by(top_n - 1, order);
            all.truncate(top_n);
        }
        all.sort_unstable_by(order);
        top = all.into_iter().map(|(id, l)| (id, logprob(l))).collect();
    }
    Logprob { logprob: logprob(own), rank, top }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draw(logits: &[f32], spec: &SampleSpec) -> Option<u32> {
        sample(&mut logits.to_vec(), spec)
    }

    /// Frequencies of tokens over many positions.
    fn frequencies(logits: &[f32], spec: &SampleSpec, draws: u32) -> Vec<f64> {
        let mut counts = vec![0u32; logits.len()];
        for position in 0..draws {
            counts[draw(logits, &SampleSpec { position, ..*spec }).unwrap() as usize] += 1;
        }
        counts.into_iter().map(|c| f64::from(c) / f64::from(draws)).collect()
    }

    fn softmax(logits: &[f32], temperature: f64) -> Vec<f64> {
        let e: Vec<f64> = logits.iter().map(|&l| (f64::from(l) / temperature).exp()).collect();
        let sum: f64 = e.iter().sum();
        e.iter().map(|e| e / sum).collect()
    }

    fn assert_close(got: &[f64], want: &[f64], draws: u32) {
        for (g, w) in got.iter().zip(want) {
            // Five standard deviations.
            let tolerance = 5.0 * (w * (1.0 - w) / f64::from(draws)).sqrt();
            assert!((g - w).abs() <= tolerance + 1e-12, "{got:?} {want:?}");
        }
    }

    #[test]
    fn frequencies_follow_the_softmax() {
        let logits = [1.0, 0.0, -1.0, 2.0, 0.5];
        for temperature in [0.5, 1.0, 2.0] {
            for seed in [0, 1, u64::MAX] {
                let spec = SampleSpec { temperature, seed, ..Default::default() };
                let got = frequencies(&logits, &spec, 20_000);
                assert_close(&got, &softmax(&logits, f64::from(temperature)), 20_000);
            }
        }
    }

    #[test]
    fn filters_keep_what_they_should() {
        // Probabilities 0.5, 0.25, 0.125, 0.125.
        let logits: Vec<f32> = [0.5f32, 0.25, 0.125, 0.125].iter().map(|p| p.ln()).collect();
        let all = SampleSpec::default();
        let check = |spec: SampleSpec, want: [f64; 4]| assert_close(&frequencies(&logits, &spec, 8000), &want, 8000);
        check(SampleSpec { top_k: 2, ..all }, [2.0 / 3.0, 1.0 / 3.0, 0.0, 0.0]);
        check(SampleSpec { top_k: 3, ..all }, [4.0 / 7.0, 2.0 / 7.0, 1.0 / 7.0, 0.0]);
        check(SampleSpec { top_k: 1, ..all }, [1.0, 0.0, 0.0, 0.0]);
        check(SampleSpec { top_k: 100, ..all }, [0.5, 0.25, 0.125, 0.125]);
        check(SampleSpec { top_p: 0.74, ..all }, [2.0 / 3.0, 1.0 / 3.0, 0.0, 0.0]);
        check(SampleSpec { top_p: 0.76, ..all }, [4.0 / 7.0, 2.0 / 7.0, 1.0 / 7.0, 0.0]);
        check(SampleSpec { top_p: 0.0, ..all }, [1.0, 0.0, 0.0, 0.0]);
        check(SampleSpec { min_p: 0.4, ..all }, [2.0 / 3.0, 1.0 / 3.0, 0.0, 0.0]);
        check(SampleSpec { min_p: 1.0, ..all }, [1.0, 0.0, 0.0, 0.0]);
        check(SampleSpec { top_k: 3, top_p: 0.6, ..all }, [2.0 / 3.0, 1.0 / 3.0, 0.0, 0.0]);
        check(SampleSpec { banned: &[0], ..all }, [0.0, 0.5, 0.25, 0.25]);
        check(SampleSpec { mask: Some(&[0b1010]), ..all }, [0.0, 2.0 / 3.0, 0.0, 1.0 / 3.0]);
        check(
            SampleSpec { logit_bias: &[(2, 2f32.ln()), (99, 5.0)], ..all },
            [4.0 / 9.0, 2.0 / 9.0, 2.0 / 9.0, 1.0 / 9.0],
        );
    }

    #[test]
    fn top_p_over_a_large_vocabulary_is_the_sorted_prefix() {
        let logits: Vec<f32> =
            (0..5000u32).map(|i| ((i.wrapping_mul(2_654_435_761) >> 8) % 1000) as f32 / 300.0).collect();
        let mut ids: Vec<(u32, f32)> = logits.iter().enumerate().map(|(i, &l)| (i as u32, l)).collect();
        ids.sort_by(order);
        let p = softmax(&logits, 1.0);
        let (mut mass, mut count) = (0.0, 0);
        while mass < 0.6 {
            mass += p[ids[count].0 as usize];
            count += 1;
        }
        let mut kept: Vec<(u32, f32)> = logits.iter().enumerate().map(|(i, &l)| (i as u32, l)).collect();
        let weight = |l: f32| f64::from(l).exp();
        let total: f64 = kept.iter().map(|k| weight(k.1)).sum();
        keep_top_p(&mut kept, 0.6 * total, &weight);
        assert_eq!(kept, ids[..count]);
    }

    #[test]
    fn penalties() {
        let logits = [2.0, -2.0, 1.0, 1.5];
        let greedy = SampleSpec { temperature: 0.0, ..Default::default() };
        let processed = |spec: &SampleSpec| {
            let mut l = logits;
            process(&mut l, spec);
            l
        };
        let spec = SampleSpec { repetition_penalty: 2.0, prompt: &[0, 1, 0, 7], generated: &[1], ..greedy };
        assert_eq!(processed(&spec), [1.0, -4.0, 1.0, 1.5]);
        assert_eq!(draw(&logits, &spec), Some(3));
        let spec = SampleSpec {
            presence_penalty: 0.5,
            frequency_penalty: 0.25,
            prompt: &[2],
            generated: &[0, 0, 3],
            ..greedy
        };
        assert_eq!(processed(&spec), [1.0, -2.0, 1.0, 0.75]);
        assert_eq!(draw(&logits, &spec), Some(0), "the tie goes to the lowest id");
    }

    #[test]
    fn odd_logits_never_win_and_never_panic() {
        let (nan, inf) = (f32::NAN, f32::INFINITY);
        for temperature in [0.0, 1.0, 1e-30, 1e30] {
            for (top_k, top_p, min_p) in [(0, 1.0, 0.0), (1, 0.5, 0.5), (2, 0.0, 0.0), (0, 0.9, 0.1)] {
                let spec = SampleSpec { temperature, top_k, top_p, min_p, ..Default::default() };
                assert_eq!(draw(&[], &spec), None);
                assert_eq!(draw(&[nan, nan], &spec), None);
                assert_eq!(draw(&[-inf, nan], &spec), None);
                assert_eq!(draw(&[nan, -3.0, -inf], &spec), Some(1));
                assert_eq!(draw(&[nan, 1e30, inf, 3.0], &spec), Some(2));
                assert_eq!(draw(&[1.0, 2.0], &SampleSpec { mask: Some(&[0]), ..spec }), None);
                assert_eq!(draw(&[1.0, 2.0], &SampleSpec { mask: Some(&[]), ..spec }), None);
                assert_eq!(draw(&[1.0, 2.0], &SampleSpec { banned: &[0, 1, 9], ..spec }), None);
                let token = draw(&[f32::MAX, f32::MIN, -0.0, 0.0], &spec);
                assert!(token == Some(0) || temperature == 1e30, "{token:?}");
            }
        }
        let both = frequencies(&[inf, 0.0, inf], &SampleSpec::default(), 1000);
        assert_close(&both, &[0.5, 0.0, 0.5], 1000);
    }

    #[test]
    fn the_draw_hangs_on_seed_position_and_masking_only() {
        let logits = [0.0; 64];
        let spec = SampleSpec { seed: 7, position: 3, ..Default::default() };
        assert_eq!(draw(&logits, &spec), draw(&logits, &spec));
        let all = [0xff; 8];
        let series = |spec: SampleSpec| {
            (0..40).map(|position| draw(&logits, &SampleSpec { position, ..spec }).unwrap()).collect::<Vec<_>>()
        };
        assert_ne!(series(spec), series(SampleSpec { seed: 8, ..spec }));
        assert_ne!(series(spec), series(SampleSpec { mask: Some(&all), ..spec }));
        assert!(series(spec).iter().any(|&t| t != series(spec)[0]));
    }

    #[test]
    fn logprobs_are_those_of_the_raw_logits() {
        let logits = [1.0, 3.0, 2.0, 3.0, f32::NAN];
        let p = softmax(&logits[..4], 1.0);
        let got = logprobs(&logits, 2, 3);
        assert!((f64::from(got.logprob) - p[2].ln()).abs() < 1e-6);
        assert_eq!(got.rank, 3);
        assert_eq!(got.top.iter().map(|t| t.0).collect::<Vec<_>>(), [1, 3, 2]);
        assert!((f64::from(got.top[0].1) - p[1].ln()).abs() < 1e-6);
        assert_eq!(logprobs(&logits, 3, 0).rank, 2);
        assert_eq!(logprobs(&logits, 3, 0).top, []);
        assert_eq!(logprobs(&logits, 4, 9).logprob, f32::NEG_INFINITY);
        assert_eq!(logprobs(&[f32::NAN], 0, 1).logprob, f32::NEG_INFINITY);
    }
}
