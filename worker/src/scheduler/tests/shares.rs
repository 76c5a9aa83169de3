//! What callers get of slots, blocks and prefill tokens while others take all they can.

use rein_proto::internal::{Limits, Sampling};

use super::*;
use crate::executor::Executor;
use crate::seq::CallerHash;
use crate::sim::{Sim, SimOptions};

const BLOCK: usize = 16;

fn scheduler(blocks: usize, options: EngineOptions) -> Scheduler {
    let shape =
        Sim::new(SimOptions { blocks, block_size: BLOCK, max_context: 10_000, ..SimOptions::default() }).shape();
    Scheduler::new(&shape, EngineOptions { prefix_cache: false, ..options })
}

fn start(scheduler: &mut Scheduler, seq: SeqId, caller: CallerHash, prompt: usize) -> Result<(), Rejected> {
    let limits = Some(Limits { max_tokens: 1000, ..Limits::default() });
    let sampling = Some(Sampling::default());
    let prompt = vec![1; prompt];
    let start = Start { caller, prompt, limits, sampling, logprobs: -1, prompt_logprobs: -1, ..Start::default() };
    scheduler.apply(SchedulerEvent::Start { seq, start: Box::new(start), lora: None })
}

/// Runs a step. The number of tokens of each sequence in it.
fn run(scheduler: &mut Scheduler) -> BTreeMap<SeqId, usize> {
    let step = scheduler.schedule(StepPlacement::default(), Duration::ZERO).expect("a step");
    scheduler.check().expect("consistent");
    let tokens = scheduler.scheduled().zip(step.rows.iter().map(|row| row.tokens.len())).collect();
    commit(scheduler, &step);
    tokens
}

#[test]
fn a_caller_without_a_slot_gets_one_of_those_that_have_several() {
    let mut engine = scheduler(1000, EngineOptions { max_sequences: 4, max_queue: 6, ..EngineOptions::default() });
    (0..10).for_each(|seq| start(&mut engine, seq, 1, 20).expect("room"));
    assert!(run(&mut engine).into_keys().eq(0..4));
    assert_eq!(start(&mut engine, 10, 1, 20).unwrap_err(), Rejected::QueueFull { waiting: 6 });
    // The queue is full, and the first sequence of another caller enters it. The last of the busiest gives its slot.
    start(&mut engine, 20, 2, 20).expect("the first");
    assert_eq!(start(&mut engine, 21, 2, 20).unwrap_err(), Rejected::QueueFull { waiting: 7 });
    assert!(run(&mut engine).into_keys().eq([0, 1, 2, 20]));
    start(&mut engine, 30, 3, 20).expect("the first");
    assert!(run(&mut engine).into_keys().eq([0, 1, 20, 30]));
    start(&mut engine, 40, 4, 20).expect("the first");
    assert!(run(&mut engine).into_keys().eq([0, 20, 30, 40]));
    // All hold one slot: the next caller waits.
    start(&mut engine, 50, 5, 20).expect("the first");
    assert!(run(&mut engine).into_keys().eq([0, 20, 30, 40]));
    // The next slot is for the caller without one, and then for what lost its slot.
    engine.apply(SchedulerEvent::Cancel { seq: 30 }).expect("known");
    assert!(run(&mut engine).into_keys().eq([0, 20, 40, 50]));
    engine.apply(SchedulerEvent::Cancel { seq: 50 }).expect("known");
    assert!(run(&mut engine).into_keys().eq([0, 1, 20, 40]));
}

#[test]
fn a_caller_without_blocks_gets_up_to_an_equal_part() {
    let mut engine = scheduler(100, EngineOptions { token_budget: 10_000, ..EngineOptions::default() });
    (0..5).for_each(|seq| start(&mut engine, seq, 1, 18 * BLOCK).expect("room"));
    assert!(run(&mut engine).into_keys().eq(0..5));
    // It needs more than half, and waits for blocks that become free. A smaller one takes none of them.
    start(&mut engine, 20, 3, 60 * BLOCK).expect("room");
    assert!(run(&mut engine).into_keys().eq(0..5));
    start(&mut engine, 30, 4, 2 * BLOCK).expect("room");
    let free = engine.blocks.available();
    assert!(run(&mut engine).into_keys().eq([0, 1, 2, 3, 30]));
    assert!(engine.blocks.available() > free);
    [20, 30].into_iter().for_each(|seq| engine.apply(SchedulerEvent::Cancel { seq }).expect("known"));
    start(&mut engine, 21, 2, 40 * BLOCK).expect("room");
    assert!(run(&mut engine).into_keys().eq([0, 1, 2, 21]));
    // What grows takes blocks of the caller with more slots, although its sequences arrived earlier.
    for _ in 0..20 * BLOCK {
        assert!(run(&mut engine).contains_key(&21));
    }
}

#[test]
fn long_prompts_of_one_caller_do_not_hold_up_the_prompt_of_another() {
    let options = EngineOptions { token_budget: 100, ..EngineOptions::default() };
    let mut engine = scheduler(10_000, options);
    (0..10).for_each(|seq| start(&mut engine, seq, 1, 5_000).expect("room"));
    assert_eq!(run(&mut engine), [(0, 100)].into());
    start(&mut engine, 20, 2, 120).expect("room");
    assert_eq!(run(&mut engine), [(0, 50), (20, 50)].into());
    assert_eq!(run(&mut engine), [(0, 50), (20, 50)].into());
    assert_eq!(run(&mut engine), [(0, 80), (20, 20)].into());
    // It decodes, and the rest is for the prompts of the other.
    assert_eq!(run(&mut engine), [(0, 99), (20, 1)].into());
    start(&mut engine, 30, 3, 200).expect("room");
    start(&mut engine, 31, 3, 200).expect("room");
    assert_eq!(run(&mut engine), [(0, 50), (20, 1), (30, 49)].into());
}
