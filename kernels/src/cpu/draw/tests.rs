use super::super::Linear;
use super::*;
use crate::backend::{HostData, HostMatrix, Precision, Score, Stash};
use crate::collective::{Threads, threads::group};
use crate::sample::SampleSpec;

const HIDDEN: usize = 32;
const VOCAB: usize = 100;
const ROWS: usize = 70;

fn numbers(n: usize, seed: u64) -> Vec<f32> {
    let mut state = seed;
    let next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 40) as f32 / (1u64 << 24) as f32 - 0.5
    };
    std::iter::repeat_with(next).take(n).collect()
}

/// This rank's part of the vocabulary.
fn weight(cpu: &Cpu) -> Linear {
    let part = VOCAB / cpu.ranks();
    let all = numbers(VOCAB * HIDDEN, 1);
    let data = HostData::F32(all[cpu.rank() * part * HIDDEN..][..part * HIDDEN].to_vec());
    cpu.linear_weight(HostMatrix { rows: part, cols: HIDDEN, data }, Precision::F32).unwrap()
}

/// The first row, 33 other draws, 35 scores and a stash; then a draw from the stash.
fn draw_twice(link: Threads, threads: usize) -> [StepOutputs; 2] {
    let mut cpu = Cpu::new(threads, Box::new(link));
    let (norm, weight) = (vec![1.5; HIDDEN], weight(&cpu));
    let head = OutputHead { norm: &norm, norm_bias: None, eps: 1e-6, weight: Some(&weight), scale: 3.0 };
    let hidden = cpu.to_device(ROWS, HIDDEN, numbers(ROWS * HIDDEN, 2));
    let sample = SampleSpec { seed: 5, temperature: 0.8, ..SampleSpec::default() };
    let draw = |row| Draw {
        from: LogitsOf::Row(row),
        sample,
        history: None,
        slot: None,
        logprobs: row.is_multiple_of(2).then_some(2),
    };
    let rows = StepInputs {
        ids: vec![0; ROWS],
        draws: (0..34).map(draw).collect(),
        stashes: vec![Stash { row: 69, slot: 3 }],
        scores: (34..69).map(|row| Score { row, token: row as u32, top: 1 }).collect(),
        states: vec![69, 2],
        ..StepInputs::default()
    };
    let batch = cpu.begin(rows).unwrap();
    let first = cpu.draw(&batch, Some(&hidden), &head).unwrap();
    let held = Draw { from: LogitsOf::Slot(3), sample, history: None, slot: None, logprobs: Some(0) };
    let batch = cpu.begin(StepInputs { draws: vec![held], ..StepInputs::default() }).unwrap();
    let second = cpu.draw(&batch, None, &head).unwrap();
    // The slot is empty now.
    assert!(cpu.draw(&batch, None, &head).is_err() || cpu.rank() != 0);
    [first, second]
}

#[test]
fn every_row_is_drawn_as_if_alone() {
    let cpu = Cpu::new(1, Box::new(group(1).remove(0)));
    let hidden = cpu.to_device(ROWS, HIDDEN, numbers(ROWS * HIDDEN, 2));
    let logits = |row: usize| -> Vec<f32> {
        let normed = cpu.rms_norm(&cpu.gather_rows(&hidden, &[row]), &vec![1.5; HIDDEN], 1e-6);
        cpu.to_host(&cpu.linear(&normed, &weight(&cpu), None)).iter().map(|logit| logit * 3.0).collect()
    };
    let sample_row = |row: usize| {
        let spec = SampleSpec { seed: 5, temperature: 0.8, ..SampleSpec::default() };
        sample(&mut logits(row), &spec).unwrap()
    };
    let check = |[first, second]: [StepOutputs; 2]| {
        assert_eq!((first.tokens.len(), first.scores.len()), (34, 35));
        let state = |row| cpu.to_host(&cpu.rms_norm(&cpu.gather_rows(&hidden, &[row]), &vec![1.5; HIDDEN], 1e-6));
        assert_eq!(first.states, [state(69), state(2)]);
        for (row, token) in first.tokens.into_iter().enumerate() {
            let (token, id) = (token.unwrap(), sample_row(row));
            let logprob = row.is_multiple_of(2).then(|| logprobs(&logits(row), id, 2));
            assert_eq!((token.id, token.logprob), (id, logprob), "row {row}");
        }
        for (row, score) in (34..69).zip(first.scores) {
            assert_eq!(score, logprobs(&logits(row), row as u32, 1), "row {row}");
        }
        let token = second.tokens[0].clone().unwrap();
        assert_eq!((token.id, token.logprob), (sample_row(69), Some(logprobs(&logits(69), token.id, 0))));
    };
    for threads in [1, 3] {
        check(draw_twice(group(1).remove(0), threads));
    }
    let on_ranks: Vec<[StepOutputs; 2]> = std::thread::scope(|scope| {
        let ranks: Vec<_> = group(2).into_iter().map(|link| scope.spawn(|| draw_twice(link, 1))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    let [leader, follower] = on_ranks.try_into().unwrap();
    check(leader);
    assert!(follower.iter().all(|drawn| drawn.tokens.is_empty() && drawn.scores.is_empty() && drawn.states.is_empty()));
}
