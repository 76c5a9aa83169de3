//! Test of a held sequence beside a free one: both get a token per forward pass.

use rein_proto::internal::Limits;

use super::*;
use crate::executor::Executor;
use crate::sim::{Sim, SimOptions};

#[test]
fn a_held_row_gets_a_token_in_every_forward() {
    let mut sim = Sim::new(SimOptions { vocab_size: 64, ..SimOptions::default() });
    let mut scheduler = Scheduler::new(&sim.shape(), EngineOptions::default());
    for seq in [1, 2] {
        let limits = Some(Limits { max_tokens: 40, ..Limits::default() });
        let prompt = vec![seq as u32; 5];
        let start = Start { prompt, limits, logprobs: -1, prompt_logprobs: -1, hold: seq == 2, ..Start::default() };
        scheduler.apply(SchedulerEvent::Start { seq, start: Box::new(start), lora: None }).expect("room");
    }
    let (mut forwards, mut generated) = (0, [0; 3]);
    let mut steer = Some(1);
    while generated != [0, 40, 40] {
        let step = scheduler.schedule(StepPlacement::default(), Duration::ZERO).expect("a step");
        let draws = step.rows.iter().filter(|row| row.tokens.is_empty()).count();
        assert!([0, step.rows.len()].contains(&draws), "a row waits for another's forward: {step:?}");
        forwards += usize::from(draws == 0);
        scheduler.commit(sim.execute(step).expect("executed"));
        // The router's Steer after a draw arrives while the next forward runs.
        if draws == 0
            && let Some(epoch) = steer.take()
        {
            let mask = Some(vec![255; 8].into());
            let steer = Steer { epoch, keep: epoch as u32 - 1, mask, hold: true, ..Steer::default() };
            scheduler.apply(SchedulerEvent::Steer { seq: 2, steer }).expect("taken");
        }
        for Output { seq, message, .. } in scheduler.take_outputs() {
            if let Some(from_engine::Kind::Tokens(tokens)) = message.kind {
                generated[seq as usize] += tokens.ids.len();
                if seq == 2 {
                    steer = Some(u64::from(tokens.position) + 2);
                }
            }
        }
    }
    assert_eq!(forwards, 40, "the held sequence's tokens need no more than the free one's");
}
