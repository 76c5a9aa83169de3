//! Draws, scores, stashes and hidden states. Logits are sums of few small numbers, which are the same in any order, so
//! that a device must draw exactly what the CPU draws.

use super::{Pair, Random, Row};
use crate::backend::*;
use crate::error::Result;
use crate::sample::{Logprob, SampleSpec};

const WIDTH: usize = 8;
const ROWS: usize = 24;
/// Between logprobs, whose sums differ in their order.
const LOGPROBS: f32 = 1e-5;

/// Every parameter alone, and some together.
fn specs() -> Vec<SampleSpec<'static>> {
    let all = SampleSpec::default();
    let penalties = SampleSpec {
        repetition_penalty: 1.3,
        presence_penalty: 0.5,
        frequency_penalty: 0.25,
        prompt: &[0, 1, 2, 2, 900],
        generated: &[1, 3, 3, 4, 4, 4, 1_000_000],
        ..all
    };
    vec![
        SampleSpec { temperature: 0.0, ..all },
        all,
        SampleSpec { temperature: 0.3, ..all },
        SampleSpec { temperature: 2.0, ..all },
        SampleSpec { top_k: 1, ..all },
        SampleSpec { top_k: 7, ..all },
        SampleSpec { top_k: 1 << 30, ..all },
        SampleSpec { top_p: 0.0, ..all },
        SampleSpec { top_p: 0.3, ..all },
        SampleSpec { top_p: 0.95, temperature: 2.0, ..all },
        SampleSpec { min_p: 0.05, temperature: 3.0, ..all },
        SampleSpec { top_k: 40, top_p: 0.9, min_p: 0.02, temperature: 1.5, ..all },
        penalties,
        SampleSpec { temperature: 0.0, ..penalties },
        SampleSpec { logit_bias: &[(2, 9.5), (4, -100.0), (2, 0.5), (70_000, 1.0)], ..all },
        SampleSpec { banned: &[0, 3, 4, 9, 1_000_000], top_k: 3, ..all },
        SampleSpec { mask: Some(&[0b1001_0110]), ..all },
        SampleSpec { mask: Some(&[0xff; 40]), top_p: 0.8, ..all },
        SampleSpec { mask: Some(&[]), ..all },
    ]
}

/// A weight whose products with signs are exact: multiples of 1/8 below 4, also in bf16.
fn weight(random: &mut Random, vocab: usize) -> HostMatrix {
    let numbers = (0..vocab * WIDTH).map(|_| (random.below(63) as f32 - 31.0) / 8.0).collect();
    HostMatrix { rows: vocab, cols: WIDTH, data: HostData::F32(numbers) }
}

/// Two backends' parts of one step.
struct Heads<B: Backend> {
    norm: B::Vector,
    weight: B::Linear,
}

impl<B: Backend> Heads<B> {
    fn new(backend: &B, weight: HostMatrix, precision: Precision) -> Result<Self> {
        Ok(Heads { norm: backend.vector(vec![1.0; WIDTH])?, weight: backend.linear_weight(weight, precision)? })
    }

    fn draw(&self, backend: &mut B, step: StepInputs, hidden: &[f32]) -> Result<StepOutputs> {
        let head = OutputHead { norm: &self.norm, norm_bias: None, eps: 0.0, weight: Some(&self.weight), scale: 0.5 };
        let rows = step.ids.len();
        let batch = backend.begin(step)?;
        let hidden = (rows > 0).then(|| backend.to_device(rows, WIDTH, hidden[..rows * WIDTH].to_vec()));
        let drawn = backend.draw(&batch, hidden.as_ref(), &head)?;
        backend.outputs(drawn)
    }
}

/// What was compared, and the first thing that differs.
#[derive(Default)]
struct Comparison {
    draws: usize,
    scores: usize,
    largest: f32,
    wrong: usize,
    first: Option<String>,
}

impl Comparison {
    fn logprob(&mut self, got: &Logprob, want: &Logprob) -> bool {
        let ids = |l: &Logprob| (l.rank, l.top.iter().map(|t| t.0).collect::<Vec<_>>());
        let numbers = |l: &Logprob| std::iter::once(l.logprob).chain(l.top.iter().map(|t| t.1)).collect::<Vec<_>>();
        for (got, want) in numbers(got).into_iter().zip(numbers(want)) {
            let apart = if got == want { 0.0 } else { (got - want).abs() };
            self.largest = if apart > self.largest || apart.is_nan() { apart } else { self.largest };
        }
        ids(got) == ids(want)
    }

    fn add(&mut self, what: &str, got: &StepOutputs, want: &StepOutputs) {
        self.draws += want.tokens.len();
        self.scores += want.scores.len();
        let sizes = |drawn: &StepOutputs| (drawn.tokens.len(), drawn.scores.len());
        let mut wrong = Vec::new();
        if sizes(got) != sizes(want) {
            wrong.push(format!("{:?} draws and scores, expected {:?}", sizes(got), sizes(want)));
        }
        for (i, (got, want)) in got.tokens.iter().zip(&want.tokens).enumerate() {
            let same = match (got, want) {
                (None, None) => true,
                (Some(got), Some(want)) if got.id == want.id => match (&got.logprob, &want.logprob) {
                    (None, None) => true,
                    (Some(got), Some(want)) => self.logprob(got, want),
                    _ => false,
                },
                _ => false,
            };
            if !same {
                wrong.push(format!("draw {i} is {got:?}, expected {want:?}"));
            }
        }
        if got.states != want.states {
            wrong.push(format!("hidden states are {:?}, expected {:?}", got.states, want.states));
        }
        for (i, (got, want)) in got.scores.iter().zip(&want.scores).enumerate() {
            if !self.logprob(got, want) {
                wrong.push(format!("score {i} is {got:?}, expected {want:?}"));
            }
        }
        self.wrong += wrong.len();
        if let (None, Some(wrong)) = (&self.first, wrong.first()) {
            self.first = Some(format!("{what}: {wrong}"));
        }
    }

    fn row(self) -> Row {
        let Comparison { draws, scores, largest, wrong, first } = self;
        let logprobs = format!("largest difference of logprobs {largest:.1e}, allowed {LOGPROBS:.0e}");
        let (value, passed) = match first {
            Some(first) => (format!("{wrong} of {} draws and scores differ; {first}", draws + scores), false),
            None => (format!("{draws} draws and {scores} scores agree; {logprobs}"), largest <= LOGPROBS),
        };
        Row { passed, ..Row::passed(String::new(), value) }
    }
}

impl<B: Backend> Pair<B> {
    pub(super) fn draws(&mut self) -> Result<Row> {
        let vocabularies: &[usize] = if self.small { &[5, 1000] } else { &[5, 1000, 129_280] };
        let mut comparison = Comparison::default();
        for &vocab in vocabularies {
            let matrix = weight(&mut self.random, vocab);
            self.draw_from(matrix, &format!("vocabulary of {vocab}"), &mut comparison)?;
        }
        // Infinite logits of either sign, and NaN.
        let mut matrix = weight(&mut self.random, 50);
        if let HostData::F32(numbers) = &mut matrix.data {
            for (token, column, number) in [(5, 0, f32::INFINITY), (7, 1, f32::NEG_INFINITY), (9, 2, f32::NAN)] {
                numbers[token * WIDTH + column] = number;
            }
            numbers[11 * WIDTH..][..2].fill(f32::INFINITY);
        }
        self.draw_from(matrix, "infinite logits", &mut comparison)?;
        Ok(comparison.row())
    }

    fn draw_from(&mut self, weight: HostMatrix, what: &str, comparison: &mut Comparison) -> Result<()> {
        let on_device = Heads::new(&self.device, weight.clone(), self.precision)?;
        let on_cpu = Heads::new(&self.cpu, weight, self.precision)?;
        // With signs alone, the norm divides by 1.
        let signs: Vec<f32> = (0..ROWS * WIDTH).map(|_| if self.random.below(2) == 0 { 1.0 } else { -1.0 }).collect();
        for position in 0..if self.small { 3 } else { 40 } {
            let draw = |(i, spec): (usize, SampleSpec<'static>)| Draw {
                history: None,
                slot: None,
                from: LogitsOf::Row((i + position) % ROWS),
                sample: SampleSpec { position: position as u32, seed: i as u64 * 77, ..spec },
                logprobs: [None, Some(0), Some(5)][(i + position) % 3],
            };
            let step = StepInputs {
                ids: vec![0; ROWS],
                draws: specs().into_iter().enumerate().map(draw).collect(),
                ..StepInputs::default()
            };
            let got = on_device.draw(&mut self.device, step.clone(), &signs)?;
            let want = on_cpu.draw(&mut self.cpu, step, &signs)?;
            comparison.add(what, &got, &want);
        }
        // Draws, stashes and scores of one step; then draws from the slots, of which one is filled again at once.
        let sample = SampleSpec { seed: 3, ..SampleSpec::default() };
        let from_row = |row| Draw { from: LogitsOf::Row(row), slot: None, sample, history: None, logprobs: Some(3) };
        let from_slot =
            |slot| Draw { from: LogitsOf::Slot(slot), slot: None, sample, history: None, logprobs: Some(2) };
        let score = |i: usize| Score { row: i % ROWS, token: i as u32, top: i % 4 };
        let ids = vec![0; ROWS];
        let steps = [
            StepInputs {
                ids: ids.clone(),
                draws: vec![from_row(2), from_row(ROWS - 1)],
                stashes: vec![Stash { row: 4, slot: 3 }, Stash { row: 2, slot: 0 }, Stash { row: 9, slot: 1 }],
                scores: (0..2 * ROWS).map(score).collect(),
                states: vec![ROWS - 1, 0, 4],
                ..StepInputs::default()
            },
            StepInputs {
                ids: ids.clone(),
                draws: vec![from_slot(3), from_row(5), from_slot(0)],
                stashes: vec![Stash { row: 7, slot: 3 }],
                ..StepInputs::default()
            },
            StepInputs { draws: vec![from_slot(1), from_slot(3)], ..StepInputs::default() },
            StepInputs { ids, states: vec![5], ..StepInputs::default() },
        ];
        for step in steps {
            let got = on_device.draw(&mut self.device, step.clone(), &signs)?;
            let want = on_cpu.draw(&mut self.cpu, step, &signs)?;
            comparison.add(what, &got, &want);
        }
        Ok(())
    }
}
