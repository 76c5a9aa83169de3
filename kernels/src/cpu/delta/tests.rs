use super::*;
use crate::backend::{Backend, Span, StepInputs};
use crate::collective::threads;
use crate::cpu::simd::Isa;
use crate::random::Random;

const SPEC: DeltaSpec = DeltaSpec { key_heads: 2, value_heads: 4, key_dim: 8, value_dim: 20, taps: 4, eps: 1e-6 };
const ROWS: usize = 13;

struct Inputs {
    qkvz: Vec<f32>,
    ba: Vec<f32>,
    vectors: [Vec<f32>; 4],
}

fn inputs() -> Inputs {
    let mut random = Random::new(7);
    let mut numbers = |n: usize| random.numbers(n, 1.0);
    let of_heads = SPEC.value_heads;
    Inputs {
        qkvz: numbers(ROWS * SPEC.key_heads * SPEC.inputs()),
        ba: numbers(ROWS * 2 * SPEC.value_heads),
        vectors: [
            numbers(SPEC.key_heads * SPEC.taps * SPEC.channels()),
            numbers(of_heads),
            numbers(of_heads),
            numbers(SPEC.value_dim),
        ],
    }
}

/// Rows `from..to` of the sequence as one span.
fn run(cpu: &mut Cpu, states: &mut States, all: &Inputs, (from, to): (usize, usize), cells: StateCells) -> Vec<f32> {
    let part = |x: &[f32]| x[from * x.len() / ROWS..to * x.len() / ROWS].to_vec();
    let len = to - from;
    let spans = vec![Span { row: 0, len, start: from, blocks: &[] }];
    let batch = cpu.begin(StepInputs { ids: vec![0; len], spans, cells: vec![cells], ..StepInputs::default() });
    let batch = batch.expect("a batch");
    let qkvz = cpu.to_device(len, SPEC.key_heads * SPEC.inputs(), part(&all.qkvz));
    let ba = cpu.to_device(len, 2 * SPEC.value_heads, part(&all.ba));
    let [conv, log_decay, step_bias, norm] = &all.vectors;
    let vectors = DeltaVectors { conv, log_decay, step_bias, norm };
    cpu.delta_net(&batch, &qkvz, &ba, &vectors, states, &SPEC).data().to_vec()
}

/// The formulas in f64, one number after the other.
fn expected(all: &Inputs) -> Vec<f32> {
    let DeltaSpec { key_heads, value_heads, key_dim, value_dim, taps, eps } = SPEC;
    let [conv, log_decay, step_bias, norm] = &all.vectors;
    let (group, channels, inputs) = (SPEC.group(), SPEC.channels(), SPEC.inputs());
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    let mut out = vec![0.0; ROWS * value_heads * value_dim];
    for head in 0..value_heads {
        let mut state = vec![vec![0.0f64; value_dim]; key_dim];
        let of_key = head / group;
        for row in 0..ROWS {
            let input = |row: usize, c: usize| f64::from(all.qkvz[(row * key_heads + of_key) * inputs + c]);
            let mixed = |c: usize| {
                let sum: f64 = (0..taps.min(row + 1))
                    .map(|back| {
                        let weight = conv[(of_key * taps + taps - 1 - back) * channels + c];
                        f64::from(weight) * input(row - back, c)
                    })
                    .sum();
                sum * sigmoid(sum)
            };
            let unit = |first: usize, length: f64| {
                let x: Vec<f64> = (first..first + key_dim).map(mixed).collect();
                let size = (x.iter().map(|x| x * x).sum::<f64>() + 1e-6).sqrt();
                x.into_iter().map(|x| x / size * length).collect::<Vec<f64>>()
            };
            let (query, key) = (unit(0, (key_dim as f64).powf(-0.5)), unit(key_dim, 1.0));
            let gates = (row * key_heads + of_key) * 2 * group + head % group;
            let beta = sigmoid(f64::from(all.ba[gates]));
            let step = f64::from(all.ba[gates + group] + step_bias[head]);
            let decay = (-f64::from(log_decay[head]).exp() * step.exp().ln_1p()).exp();
            let mut result = vec![0.0; value_dim];
            for (c, result) in result.iter_mut().enumerate() {
                state.iter_mut().for_each(|state| state[c] *= decay);
                let seen: f64 = state.iter().zip(&key).map(|(state, key)| state[c] * key).sum();
                let change = (mixed(2 * key_dim + head % group * value_dim + c) - seen) * beta;
                state.iter_mut().zip(&key).for_each(|(state, key)| state[c] += key * change);
                *result = state.iter().zip(&query).map(|(state, query)| state[c] * query).sum();
            }
            let mean = result.iter().map(|x| x * x).sum::<f64>() / value_dim as f64;
            for (c, result) in result.iter().enumerate() {
                let gate = input(row, channels + head % group * value_dim + c);
                let normed = result / (mean + f64::from(eps)).sqrt() * f64::from(norm[c]);
                out[(row * value_heads + head) * value_dim + c] = (normed * gate * sigmoid(gate)) as f32;
            }
        }
    }
    out
}

#[test]
fn a_delta_net_follows_its_formulas() {
    let all = inputs();
    let want = expected(&all);
    for isa in Isa::available() {
        let mut cpu = Cpu::with_isa(2, Box::new(threads::alone()), isa);
        let mut states = cpu.states(1, SPEC.state_numbers()).expect("states");
        let got = run(&mut cpu, &mut states, &all, (0, ROWS), StateCells { from: None, saves: &[] });
        let far = got.iter().zip(&want).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(far < 1e-4, "{isa:?}: {far}");
    }
}

/// Every state that was saved continues with the same bits, however the rows came and whatever the cell held before.
#[test]
fn a_state_continues_with_the_same_bits() {
    let all = inputs();
    for isa in Isa::available() {
        let mut cpu = Cpu::with_isa(2, Box::new(threads::alone()), isa);
        let mut states = cpu.states(ROWS + 1, SPEC.state_numbers()).expect("states");
        let saves: Vec<StateSave> = (1..=ROWS).map(|rows| StateSave { rows, cell: rows as u32 }).collect();
        let whole = run(&mut cpu, &mut states, &all, (0, ROWS), StateCells { from: None, saves: &saves });
        let width = whole.len() / ROWS;
        for from in 1..ROWS {
            for to in from + 1..=ROWS {
                let save = [StateSave { rows: to - from, cell: 0 }];
                let cells = StateCells { from: Some(from as u32), saves: &save };
                let rest = run(&mut cpu, &mut states, &all, (from, to), cells);
                assert_eq!(rest, whole[from * width..to * width], "{isa:?}: rows {from}..{to}");
                if to < ROWS {
                    let cells = StateCells { from: Some(0), saves: &[StateSave { rows: ROWS - to, cell: 0 }] };
                    let last = run(&mut cpu, &mut states, &all, (to, ROWS), cells);
                    assert_eq!(last, whole[to * width..], "{isa:?}: rows {from}..{to}, then the rest in place");
                }
            }
        }
    }
}
