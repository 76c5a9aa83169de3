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
fn draws_are_the_same_in_every_release() {
    // A sequence that resumes on another engine depends on these numbers.
    let bits = |seed, position, masked| (uniform(seed, position, masked) * (1u64 << 53) as f64) as u64;
    assert_eq!(bits(0, 0, false), 2_537_880_150_861_722);
    assert_eq!(bits(0, 0, true), 5_876_733_520_225_071);
    assert_eq!(bits(7, 1, false), 5_852_016_415_240_665);
    assert_eq!(bits(u64::MAX, u32::MAX, true), 4_076_994_534_695_537);
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
    check(SampleSpec { logit_bias: &[(2, 2f32.ln()), (99, 5.0)], ..all }, [4.0 / 9.0, 2.0 / 9.0, 2.0 / 9.0, 1.0 / 9.0]);
}

#[test]
fn top_p_over_a_large_vocabulary_is_the_sorted_prefix() {
    let logits: Vec<f32> = (0..5000u32).map(|i| ((i.wrapping_mul(2_654_435_761) >> 8) % 1000) as f32 / 300.0).collect();
    let mut ids: Vec<(u32, f32)> = logits.iter().enumerate().map(|(i, &l)| (i as u32, l)).collect();
    ids.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    let p = softmax(&logits, 1.0);
    let (mut mass, mut count) = (0.0, 0);
    while mass < 0.6 {
        mass += p[ids[count].0 as usize];
        count += 1;
    }
    let mut kept: Vec<Candidate> = logits.iter().enumerate().map(|(i, &l)| Candidate::new(i, l)).collect();
    let weights: Vec<f64> = logits.iter().map(|&l| f64::from(l).exp()).collect();
    keep_top_p(&mut kept, 0.6 * weights.iter().sum::<f64>(), |kept| weights[kept.id() as usize]);
    assert!(kept.iter().map(|k| (k.id(), k.logit())).eq(ids[..count].iter().copied()));
}

#[test]
fn penalties_lower_the_logits_of_seen_tokens() {
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
    let spec =
        SampleSpec { presence_penalty: 0.5, frequency_penalty: 0.25, prompt: &[2], generated: &[0, 0, 3], ..greedy };
    assert_eq!(processed(&spec), [1.0, -2.0, 1.0, 0.75]);
    assert_eq!(draw(&logits, &spec), Some(0), "the tie goes to the lowest id");
}

#[test]
fn nan_and_infinite_logits_never_win_and_never_panic() {
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
fn the_draw_depends_only_on_seed_position_and_masking() {
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

#[test]
fn candidates_are_ordered_best_first_and_keep_their_logits() {
    let logits =
        [f32::INFINITY, f32::MAX, 1.5, f32::MIN_POSITIVE, 1e-45, 0.0, -1e-45, -1.5, f32::MIN, f32::NEG_INFINITY];
    let candidates: Vec<Candidate> =
        logits.iter().flat_map(|&l| [(9, l), (70_000, l)]).map(|(i, l)| Candidate::new(i, l)).collect();
    assert!(candidates.is_sorted());
    for (candidate, logit) in candidates.iter().step_by(2).zip(logits) {
        assert_eq!((candidate.id(), candidate.logit().to_bits()), (9, logit.to_bits()));
    }
    assert!(Candidate::new(4, -0.0) == Candidate::new(4, 0.0));
}

#[test]
fn tokens_below_the_floor_are_none_that_would_be_kept() {
    let mut random = crate::random::Random::new(5);
    for round in 0..300 {
        let vocab = [1, 5, 64, 1000, 5000][round % 5];
        let spread = [0.01, 1.0, 4.0, 40.0][round % 4];
        let logits = random.numbers(vocab, spread);
        let top = best(&logits).expect("a best one");
        let mut weights = vec![0.0; vocab];
        weigh(&logits, logits[top as usize], 0.9, &mut weights);
        let spec = SampleSpec {
            top_k: [0, 0, 1, 7, 900, 9000][round % 6],
            top_p: [1.0, 0.95, 0.5, 0.0, 0.999_999][round / 2 % 5],
            min_p: [0.0, 0.0, 0.1, 1.0][round / 3 % 4],
            ..Default::default()
        };
        let of = |floor| select(&logits, &weights, &spec, floor);
        let (all, fewer) = (of(0.0), of(floor(&weights, &spec)));
        assert!(all.iter().map(|k| k.id()).eq(fewer.iter().map(|k| k.id())), "{round} {spec:?}");
    }
}
