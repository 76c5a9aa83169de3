use super::*;
use crate::backend::{Draw, Score};

fn row(row: usize) -> Draw<'static> {
    Draw { from: LogitsOf::Row(row), sample: SampleSpec::default(), history: None, slot: None, logprobs: None }
}

fn step(rows: usize) -> StepInputs<'static> {
    StepInputs { ids: vec![0; rows], ..StepInputs::default() }
}

fn words(plan: &DrawPlan) -> Vec<u32> {
    let mut words = vec![7; plan.len()];
    plan.write(&mut words);
    words
}

/// The list whose place is at word `at` of a task.
fn list<'a>(words: &'a [u32], pass: &DrawPass, task: usize, at: usize) -> &'a [u32] {
    let task = pass.block + 2 + task * TASK_WORDS;
    let (from, length) = (words[task + at] as usize, words[task + at + 1] as usize);
    &words[pass.block + from..][..length]
}

#[test]
fn a_pass_names_rows_in_the_order_of_its_logits() {
    let draws = vec![row(4), Draw { from: LogitsOf::Slot(7), ..row(0) }, Draw { logprobs: Some(2), ..row(1) }];
    let stashes = vec![Stash { row: 3, slot: 9 }];
    let plan = DrawPlan::new(&StepInputs { draws, stashes, ..step(5) }, false);
    assert_eq!(plan.passes, [DrawPass { rows: 3, block: 0, tasks: 3, stashes: 1 }]);
    assert_eq!(plan.words[..2], [3, 1]);
    let task = |i: usize| &plan.words[2 + i * TASK_WORDS..][..5];
    assert_eq!([task(0), task(1), task(2)], [[0, NONE, NONE, NONE, 0], [0, 7, NONE, NONE, 1], [1, NONE, NONE, 2, 2]]);
    assert_eq!(plan.words[2 + 3 * TASK_WORDS..], [2, 9]);
    assert_eq!((plan.out_words(), plan.slots), (1 + 1 + 8, 10));
}

#[test]
fn scores_take_few_rows_at_once() {
    let scores = (0..70).map(|row| Score { row, token: row as u32, top: 1 }).collect();
    let plan = DrawPlan::new(&StepInputs { scores, draws: vec![row(69)], ..step(70) }, false);
    let rows: Vec<usize> = plan.passes.iter().map(|pass| pass.rows).collect();
    assert_eq!(rows, [SCORE_ROWS, SCORE_ROWS, 6, 1]);
    assert!(plan.passes.iter().all(|pass| pass.tasks == pass.rows));
    assert_eq!(plan.out_words(), 70 * 6 + 1);
    let second = plan.passes[1];
    assert_eq!(plan.words[second.block + 2..][..5], [0, NONE, 32, 1, 32 * 6]);
}

#[test]
fn lists_travel_if_something_reads_them() {
    let all = SampleSpec {
        prompt: &[1, 2],
        generated: &[3],
        banned: &[4, 5],
        logit_bias: &[(6, 0.5)],
        mask: Some(&[1, 2, 3, 4, 0xff]),
        seed: 0x1_0000_0002,
        ..SampleSpec::default()
    };
    let samples = [
        all,
        SampleSpec { presence_penalty: 1.0, ..all },
        SampleSpec { repetition_penalty: 2.0, mask: None, ..all },
        SampleSpec { mask: Some(&[]), ..SampleSpec::default() },
    ];
    let draws = samples.map(|sample| Draw { sample, ..row(0) }).to_vec();
    let plan = DrawPlan::new(&StepInputs { draws, ..step(1) }, false);
    let pass = plan.passes[0];
    let words = words(&plan);
    let lists = |task, at| list(&words, &pass, task, at);
    assert_eq!([15, 17].map(|at| lists(0, at)), [&[] as &[u32], &[]]);
    assert_eq!([15, 17].map(|at| lists(1, at)), [&[] as &[u32], &[3]]);
    assert_eq!([15, 17].map(|at| lists(2, at)), [&[1, 2][..], &[3]]);
    assert_eq!((lists(0, 19), lists(0, 21)), (&[6, 0.5f32.to_bits()][..], &[4, 5][..]));
    let mask = |task: usize| &words[pass.block + 2 + task * TASK_WORDS + MASK_AT..][..2];
    assert_eq!(mask(0)[1], 5);
    assert_eq!(words[pass.block + mask(0)[0] as usize..][..2], [0x0403_0201, 0xff]);
    assert_eq!(mask(2), [0, 0]);
    assert!(mask(3)[0] > 0 && mask(3)[1] == 0, "an empty mask is not the same as none");
    assert_eq!(words[pass.block + 2 + 5..][..2], [2, 1]);
}

#[test]
fn results_are_read_in_the_order_of_the_step() {
    let draws = vec![row(0), row(1), Draw { logprobs: Some(1), ..row(0) }, Draw { logprobs: Some(0), ..row(0) }];
    let scores = vec![Score { row: 1, token: 5, top: 2 }];
    let plan = DrawPlan::new(&StepInputs { draws, scores, ..step(2) }, false);
    let f = f32::to_bits;
    let mut words = vec![5, f(-0.5), 3, 1, 8, f(-0.25), 0, 0];
    words.extend([11, NONE, 12, f(-1.0), 1, 1, 12, f(-1.0), NONE, 0, 0, 0]);
    assert_eq!(words.len(), plan.out_words());
    let drawn = plan.results().read(words.into_iter());
    assert_eq!(drawn.scores, [Logprob { logprob: -0.5, rank: 3, top: vec![(8, -0.25)] }]);
    let tokens: Vec<_> = drawn.tokens.iter().map(|token| token.as_ref().map(|t| (t.id, t.logprob.clone()))).collect();
    let third = Logprob { logprob: -1.0, rank: 1, top: vec![(12, -1.0)] };
    assert_eq!(tokens, [Some((11, None)), None, Some((12, Some(third))), None]);
}
