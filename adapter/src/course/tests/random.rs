//! Seeded courses over toy engines, with a router that refuses and steers.

use std::collections::HashSet;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rein_proto::splitmix::mix_both;

use super::*;

/// The logits of a toy model: a function of all tokens before.
fn logit(seed: u64, tokens: &[u32], id: u32) -> f64 {
    let state = tokens.iter().fold(seed, |state, &token| mix_both(state, u64::from(token)));
    (mix_both(state, u64::from(id)) >> 11) as f64 / (1u64 << 53) as f64 * 6.0
}

fn best(seed: u64, tokens: &[u32], ids: impl Iterator<Item = u32>) -> u32 {
    ids.max_by(|a, b| logit(seed, tokens, *a).total_cmp(&logit(seed, tokens, *b))).expect("an allowed token")
}

/// An engine that obeys what a request says, or ignores masks where `obeys` is false.
fn greedy(seed: u64, request: &DrawRequest, obeys: bool) -> Vec<u32> {
    let mut tokens = request.prompt.clone();
    for _ in 0..request.max_tokens {
        let allowed = |id: &u32| {
            let masked = request.allow.is_empty() || request.allow.contains(id);
            !obeys || masked && !request.exclude.contains(id)
        };
        let drawn = best(seed, &tokens, (0..VOCAB as u32).filter(allowed));
        tokens.push(drawn);
        if request.stop_token_ids.contains(&drawn) {
            break;
        }
    }
    tokens.split_off(request.prompt.len())
}

/// The tokens that a toy grammar allows at a position.
fn allowed(seed: u64, position: usize) -> Vec<u32> {
    let count = [1, 2, 3, 8, 25, 32, 38][mix_both(seed, position as u64) as usize % 7];
    let first = mix_both(seed, !(position as u64)) as usize % VOCAB;
    let mut ids: Vec<u32> = (0..count).map(|i| ((first + i * 7) % VOCAB) as u32).collect();
    ids.sort_unstable();
    ids.dedup();
    ids
}

/// Masked sampling from the start, without an adapter.
fn reference(seed: u64, grammar: u64, prompt: &[u32], max: usize) -> Vec<u32> {
    let mut tokens = prompt.to_vec();
    while tokens.len() - prompt.len() < max {
        let drawn = best(seed, &tokens, allowed(grammar, tokens.len() - prompt.len()).into_iter());
        tokens.push(drawn);
        if drawn == STOP {
            break;
        }
    }
    tokens.split_off(prompt.len())
}

/// A router that checks tokens against the toy grammar, as `grammar_session` does.
struct ToyRouter {
    grammar: u64,
    epoch: u64,
    accepted: Vec<u32>,
    /// Draws under a mask that are left.
    held: usize,
    refused: usize,
}

impl ToyRouter {
    fn masked(&mut self) -> Steer {
        self.epoch += 1;
        let allowed = allowed(self.grammar, self.accepted.len());
        let keep = self.accepted.len() as u32;
        Steer { mask: Some(mask(&allowed)), hold: self.held > 0, ..steer(self.epoch, keep) }
    }

    /// A steer, if the tokens need one.
    fn check(&mut self, (epoch, position, tokens): (u64, u32, Vec<u32>)) -> Option<Steer> {
        if epoch != self.epoch {
            return None;
        }
        assert_eq!(position as usize, self.accepted.len(), "tokens arrive in order");
        for id in tokens {
            if !allowed(self.grammar, self.accepted.len()).contains(&id) {
                self.refused += 1;
                if self.refused.is_multiple_of(3) {
                    self.held = 4;
                }
                return Some(self.masked());
            }
            self.accepted.push(id);
            if id == STOP {
                return None;
            }
        }
        if self.held == 0 {
            return None;
        }
        self.held -= 1;
        if self.held > 0 {
            return Some(self.masked());
        }
        self.epoch += 1;
        Some(steer(self.epoch, self.accepted.len() as u32))
    }
}

/// Runs a course to its end. Returns the accepted tokens, and the reason.
fn run(seed: u64, traits: EngineTraits, random: &mut StdRng) -> (Vec<u32>, FinishReason, CourseStats) {
    let grammar = mix_both(seed, 1);
    let mut router = ToyRouter { grammar, epoch: 0, accepted: Vec::new(), held: 0, refused: 0 };
    let mut course = Course::new(start(), shape(traits));
    let mut open: Option<(DrawRequest, Vec<u32>, usize)> = None;
    let (mut numbers, mut seeds, mut closed) = (0, HashSet::new(), Vec::new());
    for _ in 0..10_000 {
        while let Some(action) = course.next_action() {
            match action {
                CourseAction::Open(request) => {
                    assert!(open.is_none(), "one request at a time");
                    assert_eq!(request.number, numbers + 1);
                    assert!(seeds.insert((request.seed, request.prompt.clone())), "a seed was used twice");
                    numbers = request.number;
                    let obeys = random.random_range(0..5) > 0;
                    let drawn = greedy(seed, &request, obeys);
                    open = Some((request, drawn, 0));
                }
                CourseAction::Close { number, complete } => {
                    let (request, drawn, sent) = open.take().expect("an open request");
                    assert_eq!(request.number, number);
                    assert!(!complete || sent == drawn.len(), "the engine still draws");
                    closed.push(number);
                }
                CourseAction::Send(message) => match message.kind.expect("a kind") {
                    from_engine::Kind::Admitted(_) => {}
                    from_engine::Kind::Tokens(tokens) => {
                        if let Some(steer) = router.check((tokens.epoch, tokens.position, tokens.ids)) {
                            course.steer(steer);
                        }
                    }
                    from_engine::Kind::Finish(finish) if finish.epoch == router.epoch => {
                        return (router.accepted, finish.reason(), course.stats());
                    }
                    from_engine::Kind::Finish(_) => {}
                },
            }
        }
        // Late events of closed requests change nothing.
        if let Some(&late) = closed.last() {
            course.drawn(late, ids(&[random.random_range(0..VOCAB as u32)]));
            course.drawing_ended(late, DrawEnd::Lost("late".into()));
        }
        let Some((request, drawn, sent)) = &mut open else { continue };
        let number = request.number;
        let count = random.random_range(1..4).min(drawn.len() - *sent);
        let part = drawn[*sent..*sent + count].to_vec();
        *sent += count;
        let done = *sent == drawn.len();
        course.drawn(number, ids(&part));
        if done {
            course.drawing_ended(number, DrawEnd::Length);
        }
    }
    panic!("seed {seed}: the course does not end");
}

#[test]
fn greedy_answers_with_refusals_equal_masked_sampling_from_the_start() {
    let (mut stops, mut total) = (0, CourseStats::default());
    for seed in 0..400 {
        let traits = match seed % 4 {
            0 => traits(),
            1 => EngineTraits { chunk: Some(3), bias_limit: usize::MAX, ..traits() },
            2 => EngineTraits { allow_limit: 1, bias_limit: VOCAB, exclude_first: 2, ..traits() },
            _ => EngineTraits { allow_limit: 30, bias_limit: VOCAB, ..traits() },
        };
        // Some draws ignore the mask, but rarely eight in a row.
        let mut random = StdRng::seed_from_u64(seed);
        let (tokens, reason, stats) = run(seed, traits, &mut random);
        let want = reference(seed, mix_both(seed, 1), &[1, 2, 3], 20);
        // Where few biases fit, a draw can need more; then the sequence ends with an error after correct tokens.
        match reason {
            FinishReason::Error if seed % 4 == 0 => assert_eq!(tokens, want[..tokens.len()], "seed {seed}"),
            _ => assert_eq!(tokens, want, "seed {seed}, {reason:?}"),
        }
        stops += usize::from(reason == FinishReason::Stop);
        total.redraws += stats.redraws;
        total.undrawn += stats.undrawn;
        total.rewound += stats.rewound;
    }
    assert!(stops > 40, "{stops}");
    assert!(total.redraws > 400 && total.undrawn > 400 && total.rewound > 400, "{total:?}");
}

/// Chi-square test over 6,000 draws: a mask that one request cannot say, or that the engine ignores every second time,
/// gives masked sampling, too.
#[test]
fn drawing_without_replacement_is_masked_sampling() {
    let allowed: Vec<u32> = (3..13).collect();
    let weight = |id: u32| f64::from(id % 5 + 1) * if id > 20 { 3.0 } else { 1.0 };
    for ignored in [false, true] {
        let allow_limit = if ignored { 12 } else { 2 };
        let traits = EngineTraits { allow_limit, bias_limit: 29, exclude_first: 0, ..traits() };
        let mut counts = [0u32; VOCAB];
        let mut random = StdRng::seed_from_u64(5);
        let (mut draws, mut redraws) = (0, 0);
        for round in 0..6_000 {
            let mut course = Course::new(start(), shape(traits.clone()));
            course.steer(Steer { mask: Some(mask(&allowed)), ..steer(1, 0) });
            loop {
                let seen = seen(&mut course);
                if let Some((_, _, tokens)) = seen.tokens.first() {
                    counts[tokens[0] as usize] += 1;
                    redraws += course.stats().redraws;
                    break;
                }
                let Some(request) = seen.opened.last() else { panic!("round {round}: {seen:?}") };
                draws += 1;
                let obeys = !ignored || draws % 2 == 0;
                let may = |id: &u32| {
                    !request.exclude.contains(id) && (request.allow.is_empty() || !obeys || request.allow.contains(id))
                };
                let may: Vec<u32> = (0..VOCAB as u32).filter(may).collect();
                let mut left = random.random::<f64>() * may.iter().map(|id| weight(*id)).sum::<f64>();
                let at = may.iter().position(|id| {
                    left -= weight(*id);
                    left < 0.0
                });
                course.drawn(request.number, ids(&[may[at.unwrap_or(may.len() - 1)]]));
            }
        }
        let whole: f64 = allowed.iter().map(|id| weight(*id)).sum();
        let chi: f64 = allowed
            .iter()
            .map(|&id| {
                let expected = 6_000.0 * weight(id) / whole;
                (f64::from(counts[id as usize]) - expected).powi(2) / expected
            })
            .sum();
        // With 9 degrees of freedom, chi-square is above 27.9 with a probability of 0.001.
        assert!(chi < 27.9, "{chi} from {counts:?}");
        assert_eq!(counts.iter().sum::<u32>(), 6_000);
        assert!(redraws > 1_000, "{redraws}");
    }
}
