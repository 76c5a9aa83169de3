//! Sequences over a scheduler and an executor, as the engine runs them, with a script in place of each router. What a
//! script does depends on its own sequence only, so the sequence must get the same tokens alone and among others.

use std::collections::BTreeMap;
use std::error::Error;
use std::time::Duration;

use bytes::Bytes;
use rein_proto::internal::{EngineStats, FinishReason, Start, Steer, from_engine};
use rein_worker::EngineOptions;
use rein_worker::executor::Executor;
use rein_worker::scheduler::{Output, Scheduler, SchedulerEvent};

/// A router's part in one sequence.
#[derive(Debug, Clone)]
pub struct Script {
    pub start: Start,
    /// In order of `after`.
    pub acts: Vec<Act>,
}

#[derive(Debug, Clone)]
pub struct Act {
    /// Number of `Tokens` messages after which the router acts.
    pub after: usize,
    /// Rounds that it takes to answer. Only a sequence that holds may be answered late.
    pub delay: usize,
    pub action: Action,
}

#[derive(Debug, Clone)]
pub enum Action {
    Steer {
        /// Generated tokens that are taken back, at most.
        rewind: usize,
        append: Vec<u32>,
        mask: Option<Bytes>,
        hold: bool,
    },
    /// The client is gone.
    Cancel,
}

/// What a sequence got.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PlayedStream {
    /// Each drawn token with the bits of its logprob, including those that were taken back.
    pub drawn: Vec<(u32, Option<u32>)>,
    /// Why it ended; None: cancelled.
    pub end: Option<FinishReason>,
    /// Draws that did not obey their mask.
    pub beyond_mask: usize,
}

struct Playing {
    acts: Vec<Act>,
    waited: usize,
    stream: PlayedStream,
    generated: usize,
    epoch: u64,
    mask: Option<Bytes>,
    done: bool,
}

/// Runs the scripts to their ends, all at once. The streams are in the order of the scripts.
pub fn play(
    executor: &mut dyn Executor,
    options: &EngineOptions,
    scripts: &[Script],
) -> Result<(Vec<PlayedStream>, EngineStats), Box<dyn Error>> {
    let mut scheduler = Scheduler::new(&executor.shape(), options.clone());
    let mut playing = BTreeMap::new();
    for (seq, script) in (1u64..).zip(scripts) {
        let start = Box::new(script.start.clone());
        let generated = start.resume.len();
        scheduler.apply(SchedulerEvent::Start { seq, start, lora: None })?;
        let acts = script.acts.clone();
        let stream = PlayedStream::default();
        playing.insert(seq, Playing { acts, waited: 0, stream, generated, epoch: 0, mask: None, done: false });
    }
    let mut now = Duration::ZERO;
    while playing.values().any(|one| !one.done) {
        let mut acted = false;
        for (&seq, one) in &mut playing {
            if let Some(event) = one.act(seq) {
                scheduler.apply(event)?;
                acted = true;
            }
        }
        receive_outputs(&mut scheduler, &mut playing)?;
        now += Duration::from_millis(1);
        let waits = playing.values().any(|one| !one.done && one.is_due());
        match scheduler.schedule(executor.placed(), now) {
            Some(step) => {
                let result = executor.execute(step)?;
                scheduler.commit(result);
                receive_outputs(&mut scheduler, &mut playing)?;
            }
            None if acted || waits => {}
            None => match scheduler.wake_at() {
                Some(at) => now = at,
                None if playing.values().all(|one| one.done) => {}
                None => return Err("no sequence can run".into()),
            },
        }
    }
    let stats = scheduler.stats();
    Ok((playing.into_values().map(|one| one.stream).collect(), stats))
}

fn receive_outputs(scheduler: &mut Scheduler, playing: &mut BTreeMap<u64, Playing>) -> Result<(), Box<dyn Error>> {
    for Output { seq, message, last } in scheduler.take_outputs() {
        let one = playing.get_mut(&seq).ok_or("an output of an unknown sequence")?;
        match message.kind {
            Some(from_engine::Kind::Tokens(tokens)) => one.receive(&tokens),
            Some(from_engine::Kind::Finish(finish)) => {
                if finish.reason() == FinishReason::Error {
                    return Err(format!("sequence {seq}: {}", finish.error).into());
                }
                one.stream.end = Some(finish.reason());
            }
            _ => {}
        }
        one.done |= last;
    }
    Ok(())
}

impl Playing {
    /// Whether its next act waits only for its delay.
    fn is_due(&self) -> bool {
        self.acts.first().is_some_and(|act| act.after <= self.stream.drawn.len())
    }

    fn act(&mut self, seq: u64) -> Option<SchedulerEvent> {
        if self.done || !self.is_due() {
            return None;
        }
        if self.waited < self.acts[0].delay {
            self.waited += 1;
            return None;
        }
        self.waited = 0;
        match self.acts.remove(0).action {
            Action::Steer { rewind, append, mask, hold } => {
                let keep = self.generated.saturating_sub(rewind);
                self.epoch += 1;
                self.generated = keep + append.len();
                self.mask = mask.clone();
                let steer = Steer { epoch: self.epoch, keep: keep as u32, append, mask, hold, stop: false };
                Some(SchedulerEvent::Steer { seq, steer })
            }
            Action::Cancel => {
                self.done = true;
                Some(SchedulerEvent::Cancel { seq })
            }
        }
    }

    fn receive(&mut self, tokens: &rein_proto::internal::Tokens) {
        for (i, &id) in tokens.ids.iter().enumerate() {
            let logprob = tokens.logprobs.get(i).and_then(|logprob| logprob.logprob);
            self.stream.drawn.push((id, logprob.map(f32::to_bits)));
            self.generated += 1;
            let allowed = self.mask.take().is_none_or(|mask| mask[id as usize / 8] >> (id % 8) & 1 == 1);
            self.stream.beyond_mask += usize::from(!allowed);
        }
    }
}
