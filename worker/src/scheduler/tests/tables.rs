//! What steps say of block tables: how much, and after a step that was not executed.

use prost::Message;
use rein_proto::internal::{Limits, Row, Sampling};

use super::*;
use crate::executor::Executor;
use crate::sim::{Sim, SimOptions};

fn shape(blocks: usize, max_context: usize) -> ExecutorShape {
    Sim::new(SimOptions { blocks, max_context, ..SimOptions::default() }).shape()
}

fn start(scheduler: &mut Scheduler, seq: SeqId, prompt: Vec<u32>) {
    let limits = Some(Limits { max_tokens: 1000, ..Limits::default() });
    let sampling =
        Some(Sampling { temperature: 0.7, top_p: 0.95, repetition_penalty: 1.0, seed: seq, ..Sampling::default() });
    let start = Start { prompt, limits, sampling, logprobs: -1, prompt_logprobs: -1, ..Start::default() };
    scheduler.apply(SchedulerEvent::Start { seq, start: Box::new(start), lora: None }).expect("room");
}

/// `cargo test -p rein-worker --lib bytes_of_a_step -- --nocapture` prints the sizes.
#[test]
fn bytes_of_a_step_do_not_grow_with_the_context() {
    const ROWS: usize = 64;
    const PROMPT: usize = 4096;
    let mut scheduler = Scheduler::new(&shape(ROWS * 400, 8192), EngineOptions::default());
    (0..ROWS as u64).for_each(|seq| start(&mut scheduler, seq, vec![seq as u32; PROMPT]));
    let (mut sizes, mut whole_sizes) = (Vec::new(), Vec::new());
    while sizes.len() < 64 {
        let step = scheduler.schedule(StepPlacement::default(), Duration::ZERO).expect("a step");
        if step.rows.len() == ROWS && step.rows.iter().all(|row| row.tokens.len() == 1) {
            let whole = |row: &Row| {
                let seq = scheduler.seqs.values().find(|seq| seq.slot == Some(row.slot)).expect("it has a slot");
                let table = &seq.table;
                Row { kept_blocks: 0, blocks: table[..(row.start as usize + 1).div_ceil(16)].to_vec(), ..row.clone() }
            };
            sizes.push(step.encoded_len());
            whole_sizes.push(Step { rows: step.rows.iter().map(whole).collect(), ..step.clone() }.encoded_len());
        }
        commit(&mut scheduler, &step);
        scheduler.take_outputs();
    }
    let mean = |sizes: &[usize]| sizes.iter().sum::<usize>() / sizes.len();
    let (changes, whole) = (mean(&sizes), mean(&whole_sizes));
    println!("{ROWS} rows of {PROMPT} tokens: {changes} bytes a step, {whole} with whole block tables");
    assert!(10 * changes < whole, "{changes} and {whole} bytes");
}

#[test]
fn a_step_that_was_not_executed_leaves_no_table_behind() {
    let mut scheduler = Scheduler::new(&shape(64, 200), EngineOptions::default());
    let mut tables = crate::tables::BlockTables::default();
    (1..=3).for_each(|seq| start(&mut scheduler, seq, vec![seq as u32; 40]));
    let step = scheduler.schedule(StepPlacement::default(), Duration::ZERO).expect("a step");
    tables.apply(&step).expect("new tables");
    commit(&mut scheduler, &step);

    // This step would have dropped sequence 1, in slot 0. It ends 2 and 3.
    scheduler.apply(SchedulerEvent::Cancel { seq: 1 }).expect("known");
    let lost = scheduler.schedule(StepPlacement::default(), Duration::ZERO).expect("a step");
    assert_eq!((&lost.dropped[..], lost.rows.len()), (&[0][..], 2));
    scheduler.fail("rejected", true);
    start(&mut scheduler, 4, vec![4; 20]);
    let next = scheduler.schedule(StepPlacement::default(), Duration::ZERO).expect("a step");
    assert_eq!(
        (next.dropped.clone(), next.rows[0].slot),
        (vec![0, 1, 2], 0),
        "a slot is taken again in the step that drops it"
    );
    tables.apply(&next).expect("a new table");
    assert_eq!(tables.taken(), [0].into());
    commit(&mut scheduler, &next);
    assert!(
        scheduler.schedule(StepPlacement::default(), Duration::ZERO).expect("a step").dropped.is_empty(),
        "dropped once"
    );
}

#[test]
fn a_row_cannot_build_on_a_table_that_is_not_there() {
    let mut tables = crate::tables::BlockTables::default();
    let row = |kept_blocks, blocks: &[u32]| Row {
        slot: 1,
        tokens: vec![1],
        kept_blocks,
        blocks: blocks.to_vec(),
        ..Row::default()
    };
    let step = |rows| Step { rows, ..Step::default() };
    tables.apply(&step(vec![row(0, &[5, 6, 7])])).expect("new");
    tables.apply(&step(vec![row(2, &[8, 9])])).expect("a change");
    assert_eq!(tables.of(1), [5, 6, 8, 9]);
    tables.apply(&step(vec![Row { tokens: vec![], ..row(0, &[]) }])).expect("a draw from a stash");
    assert_eq!(tables.of(1), [5, 6, 8, 9]);
    let error = tables.apply(&step(vec![row(5, &[1])])).expect_err("too many");
    assert_eq!(error, "slot 1: the row keeps 5 blocks, but its table has 4");
    let dropping = Step { dropped: vec![1, 99], ..step(vec![row(1, &[])]) };
    assert!(tables.apply(&dropping).is_err(), "forgotten before the row");
}
