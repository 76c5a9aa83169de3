//! Decides which tokens each step computes, for which sequences, in which KV blocks.
//!
//! A pure function of its state, the events applied to it and the time `now`: no clock, no I/O, no threads. The same
//! events give the same steps. A round is `schedule`, execution, then `commit` or `fail`; events are applied between
//! rounds. A step may be planned while the one before runs: then that counts as done, and its tokens are known to the
//! executor first; events come after the commit of the older one. Steps are executed in order, so a block that is
//! released while a step writes it may be given away.
//!
//! Invariants: blocks that others may read are never written; a sequence that waits for its router takes part in no
//! step; the oldest sequence that can run is in every step that computes tokens, whatever must be preempted for it.

mod admit;
mod cached;
mod check;
mod commit;
mod draft;
mod planned;
mod slots;
mod states;
#[cfg(test)]
mod tests;
mod waiting;

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::time::Duration;

use rein_proto::internal::{After, EngineStats, Finish, FinishReason, FromEngine, Start, Steer, Step, from_engine};

use crate::blocks::{BlockPool, PoolShape};
use crate::cells::StateShape;
use crate::error::Rejected;
use crate::executor::{ExecutorShape, StepPlacement};
use crate::limits;
use crate::seq::{NextWork, Seq, SeqId, StepCost};
use planned::{Planned, PlannedLoad, PlannedStep};
use slots::SequenceSlots;
use waiting::Waiting;

#[derive(Debug, Clone)]
pub struct EngineOptions {
    /// Sequences computed at once.
    pub max_sequences: usize,
    /// Sequences that may wait beyond those computed at once.
    pub max_queue: usize,
    /// Tokens computed in one step, at least `max_sequences`.
    pub token_budget: usize,
    /// How long a sequence may wait for its router before others may take its slot and blocks.
    pub park_grace: Duration,
    /// Shares the KV blocks of equal prefixes.
    pub prefix_cache: bool,
    /// Computes embeddings and generates nothing.
    pub embeds: bool,
    /// Draft tokens of a step, found by prompt lookup. 0: none.
    pub draft_tokens: usize,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            max_sequences: limits::MAX_SEQUENCES,
            max_queue: limits::MAX_QUEUE,
            token_budget: limits::TOKEN_BUDGET,
            park_grace: limits::PARK_GRACE,
            prefix_cache: true,
            embeds: false,
            draft_tokens: 0,
        }
    }
}

#[derive(Debug)]
pub enum SchedulerEvent {
    Start {
        seq: SeqId,
        start: Box<Start>,
        /// The slot of its LoRA adapter.
        lora: Option<u32>,
    },
    Steer {
        seq: SeqId,
        steer: Steer,
    },
    /// The router is gone.
    Cancel {
        seq: SeqId,
    },
    /// The router broke the protocol.
    Fail {
        seq: SeqId,
        error: String,
    },
    /// The router does not read its messages.
    Pause {
        seq: SeqId,
    },
    Resume {
        seq: SeqId,
    },
}

/// A message for a sequence's router.
#[derive(Debug, Clone, PartialEq)]
pub struct Output {
    pub seq: SeqId,
    pub message: FromEngine,
    /// The sequence has ended; no message follows.
    pub last: bool,
}

#[derive(Debug)]
pub struct Scheduler {
    options: EngineOptions,
    vocab_size: usize,
    /// As in [`ExecutorShape`].
    step_cost: usize,
    /// Limit of prompt and generated tokens: the model's limit, or what all blocks together hold.
    context: usize,
    blocks: BlockPool,
    /// None: the model has no recurrent layers.
    states: Option<StateShape>,
    seqs: BTreeMap<SeqId, Seq>,
    /// Sequences with a slot.
    running: BTreeSet<SeqId>,
    /// Sequences without a slot.
    waiting: Waiting,
    /// The step that is being planned.
    planned: Vec<Planned>,
    planned_loads: Vec<PlannedLoad>,
    /// Steps that were made and not committed, oldest first.
    running_steps: VecDeque<PlannedStep>,
    slots: SequenceSlots,
    outputs: Vec<Output>,
    wake_at: Option<Duration>,
    stats: EngineStats,
}

/// Limit of prompt and generated tokens that an executor of this shape can serve.
pub fn context_limit(shape: &ExecutorShape) -> usize {
    shape.max_context.min(shape.blocks * shape.block_size)
}

impl Scheduler {
    pub fn new(shape: &ExecutorShape, mut options: EngineOptions) -> Self {
        options.max_sequences = options.max_sequences.max(1);
        options.token_budget = options.token_budget.max(options.max_sequences);
        let ExecutorShape { blocks, block_size, states, kv_ranks, .. } = *shape;
        let pool = PoolShape { blocks, block_size, states, kv_ranks };
        Self {
            blocks: BlockPool::of(pool, &shape.host, options.prefix_cache),
            states: shape.states,
            options,
            vocab_size: shape.vocab_size,
            step_cost: shape.step_cost,
            context: context_limit(shape),
            seqs: BTreeMap::new(),
            running: BTreeSet::new(),
            waiting: Waiting::default(),
            planned: Vec::new(),
            planned_loads: Vec::new(),
            running_steps: VecDeque::new(),
            slots: SequenceSlots::default(),
            outputs: Vec::new(),
            wake_at: None,
            stats: EngineStats::default(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.seqs.is_empty()
    }

    /// Messages since the last call, in order.
    pub fn take_outputs(&mut self) -> Vec<Output> {
        std::mem::take(&mut self.outputs)
    }

    /// If nothing is scheduled and no event comes, the time at which `schedule` would do something new.
    pub fn wake_at(&self) -> Option<Duration> {
        self.wake_at
    }

    pub fn stats(&self) -> EngineStats {
        let (host_blocks, host_places) = self.blocks.host_places();
        EngineStats {
            host_blocks: host_blocks as u32,
            host_places: host_places as u32,
            held_blocks: self.blocks.held_blocks() as u32,
            running: self.running.len() as u32,
            waiting: self.waiting.len() as u32,
            used_blocks: self.blocks.used() as u32,
            total_blocks: self.blocks.total() as u32,
            ..self.stats
        }
    }

    /// Only a Start can be rejected. Events for sequences that have ended are ignored.
    pub fn apply(&mut self, event: SchedulerEvent) -> Result<(), Rejected> {
        debug_assert!(self.running_steps.len() <= 1, "events are applied after a commit");
        match event {
            SchedulerEvent::Start { seq, start, lora } => return self.start(seq, *start, lora),
            SchedulerEvent::Steer { seq, steer } => self.steer(seq, steer),
            SchedulerEvent::Cancel { seq } => {
                if self.remove(seq) {
                    self.stats.cancelled += 1;
                }
            }
            SchedulerEvent::Fail { seq, error } => self.finish(seq, FinishReason::Error, error),
            SchedulerEvent::Pause { seq } => self.set_paused(seq, true),
            SchedulerEvent::Resume { seq } => self.set_paused(seq, false),
        }
        Ok(())
    }

    fn start(&mut self, id: SeqId, start: Start, lora: Option<u32>) -> Result<(), Rejected> {
        // SequenceSlots are assigned at the next step, so a burst between two steps finds all sequences in `waiting`.
        let waiting = self.seqs.len().saturating_sub(self.options.max_sequences);
        if waiting >= self.options.max_queue && self.waiting.knows(start.caller) {
            return Err(Rejected::QueueFull { waiting });
        }
        // Nothing is drawn before a Steer, which ends a held sequence that fills the context.
        let draws = !start.hold && !start.embed;
        let seq = Seq::new(start, lora);
        let (len, full) = (seq.tokens.len(), seq.generated() >= seq.max_tokens());
        self.waiting.enter(seq.caller, id);
        self.seqs.insert(id, seq);
        if len > self.context {
            let context = self.context;
            self.finish(id, FinishReason::Error, format!("prompt: {len} tokens; the limit is {context} tokens"));
        } else if full || (len == self.context && draws) {
            self.finish(id, FinishReason::Length, String::new());
        }
        Ok(())
    }

    fn steer(&mut self, id: SeqId, steer: Steer) {
        let Some(seq) = self.seqs.get_mut(&id) else { return };
        if let Err(error) = seq.check(&steer, self.vocab_size) {
            return self.finish(id, FinishReason::Error, error.to_string());
        }
        self.stats.steers += 1;
        let stop = steer.stop;
        let before = seq.tokens.len();
        let rewound = seq.steer(steer, self.context, &mut self.blocks);
        // The next row has tokens, and replaces the stash.
        seq.stashed &= rewound == 0 && seq.tokens.len() == before;
        self.stats.rewound_tokens += rewound as u64;
        if stop {
            self.finish(id, FinishReason::Steered, String::new());
        } else if seq.generated() >= seq.max_tokens() || seq.tokens.len() >= self.context {
            self.finish(id, FinishReason::Length, String::new());
        }
    }

    fn set_paused(&mut self, id: SeqId, paused: bool) {
        if let Some(seq) = self.seqs.get_mut(&id) {
            seq.paused = paused;
        }
    }

    /// A conversation with blocks of these hashes comes back within this time, says its router.
    pub fn hold(&mut self, hashes: &HashSet<u64>, time: Duration, now: Duration) {
        self.blocks.hold(hashes, now.saturating_add(time.min(limits::MAX_HOLD)));
    }

    /// The next step. None: nothing to do before an event or `wake_at`. Its rows either compute tokens, or all of them
    /// draw from stashes; it may have none, and only copy blocks.
    pub fn schedule(&mut self, placed: StepPlacement, now: Duration) -> Option<Step> {
        debug_assert!(self.planned.is_empty(), "the step before was made");
        self.blocks.end_holds(now);
        // Draws from stashes take a step of their own, which computes nothing. The drawn tokens are computed with the
        // others in the next step, so a held row loses no step, and its router finds the next mask while that step
        // runs.
        let running: Vec<SeqId> = self.running.iter().copied().collect();
        for &id in &running {
            let draws = |seq: &&mut Seq| seq.work() == NextWork::Draw && !seq.must_land(self.context);
            if let Some(seq) = self.seqs.get_mut(&id).filter(draws) {
                seq.parked_since = None;
                self.plan(id, 0);
            }
        }
        if !self.planned.is_empty() {
            return self.step(placed);
        }
        let mut budget = self.options.token_budget;
        let mut preempted = false;
        let mut prefill = Vec::new();
        for id in running {
            if !self.running.contains(&id) {
                // Preempted for an earlier row.
                continue;
            }
            let Some(seq) = self.seqs.get_mut(&id) else { continue };
            if seq.must_land(self.context) {
                continue;
            }
            if seq.work() == NextWork::Parked {
                if seq.ahead.is_none() {
                    seq.parked_since.get_or_insert(now);
                }
                continue;
            }
            seq.parked_since = None;
            if seq.computed == seq.tokens.len() && !seq.stashed && seq.ahead.is_none() {
                // The logits after the last token are gone, so that token is computed again.
                seq.rewind(seq.computed - 1, &mut self.blocks);
            }
            match seq.work() {
                NextWork::Parked | NextWork::Draw => {}
                NextWork::Compute(1) => preempted |= self.plan_tokens(id, 1, &mut budget),
                NextWork::Compute(_) => prefill.push(id),
            }
        }
        for (id, count) in self.prefill_shares(&prefill, budget) {
            preempted |= self.plan_tokens(id, count, &mut budget);
        }
        self.wake_at = None;
        if !preempted {
            self.admit(&mut budget, now);
        }
        self.draft(budget);
        self.step(placed)
    }

    /// The sequences of the newest step.
    pub fn scheduled(&self) -> impl Iterator<Item = SeqId> {
        self.running_steps.back().into_iter().flat_map(|step| &step.rows).map(|planned| planned.seq)
    }

    /// Whether to plan the next step while one runs. Not where a router decides about the next token, and would come
    /// too late for the step after that; nor where drafts may follow that token; nor beside a prompt, whose next part
    /// would come before a sequence that arrives meanwhile.
    pub fn may_run_ahead(&self) -> bool {
        let sequences = self.running.len();
        let cost = StepCost { fixed: self.step_cost, rows: sequences, sequences };
        let waits = |id: &SeqId| {
            let seq = &self.seqs[id];
            (seq.is_steered() || !seq.lookup.drafts(cost).is_empty()) && !seq.paused
        };
        let decodes = |row: &Planned| row.after == After::Draw && row.count <= 1 && row.drafts.is_empty();
        self.running_steps.len() == 1
            && self.running_steps.iter().flat_map(|step| &step.rows).all(decodes)
            && !self.running.iter().any(waits)
    }

    /// Plans up to `count` tokens of a running sequence, with blocks for them. True if other sequences were preempted.
    fn plan_tokens(&mut self, id: SeqId, count: usize, budget: &mut usize) -> bool {
        let mut preempted = false;
        let seq = self.running.get(&id).and(self.seqs.get_mut(&id));
        let Some(seq) = seq.filter(|seq| seq.ahead.loads == 0) else { return false };
        if seq.ahead.is_none() {
            seq.restore(&mut self.blocks);
        }
        let count = cut(seq, count.min(*budget));
        if count == 0 {
            return false;
        }
        let want = (seq.computed_ahead() + count).div_ceil(self.blocks.block_size());
        loop {
            let Some(seq) = self.seqs.get_mut(&id) else { return preempted };
            if seq.table.len() >= want {
                break;
            }
            if let Some(block) = self.blocks.allocate(seq.table.len()) {
                seq.table.push(block);
            } else if let Some(victim) = self.victim(id) {
                self.planned.retain(|row| row.seq != victim);
                self.preempt(victim);
                preempted = true;
            } else {
                // Older sequences hold the other blocks; they continue and will free some.
                return preempted;
            }
        }
        *budget -= count;
        self.plan(id, count);
        preempted
    }

    fn plan(&mut self, id: SeqId, count: usize) {
        if let Some(seq) = self.seqs.get(&id) {
            self.planned.push(Planned::new(id, seq, count));
        }
    }

    /// The sequence that must give its blocks to `id`: the last to arrive of those that wait for their router, or of a
    /// caller that has more slots, or of those that arrived after `id`. But the oldest that can run keeps its blocks,
    /// and only for it a caller with fewer slots loses one.
    fn victim(&self, id: SeqId) -> Option<SeqId> {
        let oldest = self.oldest();
        let slots = |id: SeqId| self.waiting.running(self.seqs[&id].caller);
        let holders = || {
            let others = self.running.iter().rev().copied().filter(|&other| other != id && Some(other) != oldest);
            others.filter(|other| !self.seqs[other].table.is_empty())
        };
        let parked = holders().find(|other| !self.can_run(*other));
        let more = || holders().find(|&other| slots(other) > slots(id));
        let later = || holders().find(|&other| other > id && slots(other) == slots(id));
        let any = || holders().find(|_| Some(id) == oldest);
        parked.or_else(more).or_else(later).or_else(any)
    }

    /// The oldest sequence with a slot that can run.
    fn oldest(&self) -> Option<SeqId> {
        self.running.iter().copied().find(|id| self.can_run(*id))
    }

    /// Whether it does not wait for its router.
    fn can_run(&self, id: SeqId) -> bool {
        let seq = &self.seqs[&id];
        seq.work() != NextWork::Parked || !seq.ahead.is_none()
    }

    fn preempt(&mut self, id: SeqId) {
        let Some(seq) = self.seqs.get_mut(&id) else { return };
        seq.release(&mut self.blocks);
        self.slots.leave(seq);
        seq.preempted = true;
        seq.parked_since = None;
        if !seq.admitted {
            seq.scores.clear();
        }
        self.running.remove(&id);
        self.waiting.preempt(seq.caller, id);
        self.stats.preemptions += 1;
    }

    fn step(&mut self, placed: StepPlacement) -> Option<Step> {
        if self.planned.is_empty() && self.planned_loads.is_empty() && !self.blocks.wants_saves() {
            return None;
        }
        self.stats.steps += 1;
        let mut planned = std::mem::take(&mut self.planned);
        for row in &mut planned {
            if let Some(seq) = self.seqs.get_mut(&row.seq) {
                row.slot = self.slots.of(seq);
            }
        }
        self.place_states(&mut planned);
        let (seqs, size) = (&mut self.seqs, self.blocks.block_size());
        let rows = planned.iter().filter_map(|planned| {
            let seq = seqs.get_mut(&planned.seq)?;
            let row = planned.row(seq, size);
            seq.ahead.count += planned.count;
            seq.ahead.draws += usize::from(planned.after == After::Draw);
            seq.ahead.drafts += planned.drafts.len();
            seq.stashed = planned.after == After::Stash;
            Some(row)
        });
        let rows = rows.collect();
        let (saves, loads) = self.blocks.take_copies();
        self.running_steps.push_back(PlannedStep {
            rows: planned,
            loads: std::mem::take(&mut self.planned_loads),
            saves: saves.iter().map(|save| (save.place, save.content)).collect(),
        });
        let StepPlacement { epoch, layout } = placed;
        let (id, dropped) = (self.stats.steps, self.slots.drops());
        Some(Step { epoch, id, rows, dropped, layout, saves, loads, ..Step::default() })
    }

    /// A step failed, the newest or the oldest: its sequences end, the others continue.
    pub fn fail(&mut self, error: &str, newest: bool) {
        let failed = if newest { self.running_steps.pop_back() } else { self.running_steps.pop_front() };
        let PlannedStep { rows, loads, saves } = failed.unwrap_or_default();
        for planned in rows {
            self.return_cells(&planned);
            self.finish(planned.seq, FinishReason::Error, error.to_owned());
        }
        for PlannedLoad { seq, places, .. } in loads {
            places.into_iter().for_each(|place| self.blocks.let_go(place, false));
            self.finish(seq, FinishReason::Error, error.to_owned());
        }
        self.blocks.not_saved(&saves);
        self.slots.not_dropped(newest);
    }

    /// Ends every sequence.
    pub fn fail_all(&mut self, error: &str) {
        for PlannedStep { rows, loads, saves } in std::mem::take(&mut self.running_steps) {
            rows.iter().for_each(|planned| self.return_cells(planned));
            loads.into_iter().flat_map(|load| load.places).for_each(|place| self.blocks.let_go(place, false));
            self.blocks.not_saved(&saves);
        }
        for id in self.seqs.keys().copied().collect::<Vec<_>>() {
            self.finish(id, FinishReason::Lost, error.to_owned());
        }
    }

    /// Reports the end of the sequence. Unless that is only a proposal, the sequence is removed.
    fn finish(&mut self, id: SeqId, reason: FinishReason, error: String) {
        let Some(seq) = self.seqs.get_mut(&id) else { return };
        let last = !(seq.proposes && matches!(reason, FinishReason::Stop | FinishReason::Length));
        seq.proposed = !last;
        seq.end();
        let finish = Finish { epoch: seq.epoch, reason: reason.into(), generated: seq.generated() as u32, error };
        let message = FromEngine { kind: Some(from_engine::Kind::Finish(finish)) };
        self.outputs.push(Output { seq: id, message, last });
        if last {
            self.remove(id);
        }
    }

    fn remove(&mut self, id: SeqId) -> bool {
        let Some(mut seq) = self.seqs.remove(&id) else { return false };
        seq.release(&mut self.blocks);
        self.slots.leave(&mut seq);
        match self.running.remove(&id) {
            true => self.waiting.end(seq.caller),
            false => self.waiting.leave(seq.caller, id),
        }
        true
    }
}

/// A scored row ends at the end of the prompt, because scores belong to prompt tokens only.
fn cut(seq: &Seq, count: usize) -> usize {
    let missing = seq.len_ahead() - seq.computed_ahead();
    let count = count.min(missing);
    match seq.scoring() && seq.computed < seq.prompt_len {
        true => count.min(seq.prompt_len - seq.computed),
        false => count,
    }
}
