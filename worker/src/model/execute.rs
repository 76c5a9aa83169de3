//! Executes a `Step` on one rank. Every rank runs the same products; the leader also draws and scores. Of sequences it
//! knows the block tables.

use std::sync::LazyLock;

use rein_kernels::sample::{Logprob, SampleSpec};
use rein_kernels::{
    self as kernels, AwaitedToken, Backend, KeptHistory, KernelError, LogitsOf, Result as KernelResult, Score, Span,
    Stash, StateCells, StateSave, StepInputs, StepOutputs,
};
use rein_proto::internal::{After, Draw, Drawn, Row, RowResult, Sampling, Step, StepResult, TokenLogprob, TopLogprob};

use super::host_tier::HostTier;
use super::network::Network;
use crate::executor::ExecutorShape;
use crate::seq::penalizes;
use crate::tables::{BlockTables, Histories, keeps_too_many};

pub struct Executing<B: Backend> {
    network: Network<B>,
    tables: BlockTables,
    /// Only on the leader, which samples.
    histories: Histories,
    tier: Option<HostTier<B>>,
}

/// A step for the backend.
struct StepPlan<'a> {
    rows: StepInputs<'a>,
    answers: Answers,
}

/// For whom a step's results are.
#[derive(Debug, Default)]
struct Answers {
    /// The slots of rows that get one.
    rows: Vec<u32>,
    /// For each draw, its place in `rows`.
    draws: Vec<usize>,
    /// For each score, the same and its token.
    scores: Vec<(usize, u32)>,
    /// For each hidden state, the same.
    states: Vec<usize>,
}

/// A step that was begun.
pub struct StepUnderWay<B: Backend> {
    id: u64,
    answers: Answers,
    lost_places: Vec<u32>,
    /// None: it has no rows.
    drawn: Option<B::Drawn>,
}

impl<'a> StepPlan<'a> {
    /// `inputs`: of each row. `tables`, `histories`: with the changes of this step.
    fn new(step: &'a Step, inputs: &'a [RowInputs], tables: &'a BlockTables, histories: &'a Histories) -> Self {
        let mut plan = StepPlan { rows: StepInputs::default(), answers: Answers::default() };
        for (row, inputs) in step.rows.iter().zip(inputs) {
            let (first, answer) = (plan.rows.ids.len(), plan.answers.rows.len());
            if matches!(row.after(), After::Draw | After::Embed) || row.score >= 0 {
                plan.answers.rows.push(row.slot);
            }
            if !row.tokens.is_empty() {
                if row.awaits_token {
                    plan.rows.awaits.push(AwaitedToken { row: first, slot: row.slot });
                }
                plan.rows.ids.extend_from_slice(&row.tokens);
                plan.rows.spans.push(Span {
                    row: first,
                    len: row.tokens.len(),
                    start: row.start as usize,
                    blocks: tables.of(row.slot),
                });
                if let Some(slot) = row.lora {
                    plan.rows.loras.resize(plan.rows.spans.len(), None);
                    plan.rows.loras[plan.rows.spans.len() - 1] = Some(slot);
                }
                if !inputs.saves.is_empty() {
                    plan.rows.cells.push(StateCells { from: row.state, saves: &inputs.saves });
                }
            }
            if row.score >= 0 {
                let follow = row.tokens.iter().skip(1).copied().chain(row.next.filter(|_| !row.tokens.is_empty()));
                for (k, token) in follow.enumerate() {
                    plan.rows.scores.push(Score { row: first + k, token, top: row.score as usize });
                    plan.answers.scores.push((answer, token));
                }
            }
            let last = row.tokens.len().checked_sub(1).map(|last| first + last);
            match (row.after(), last) {
                (After::Draw, _) => {
                    for (draw, later) in row.draws.iter().zip((0..row.draws.len()).rev()) {
                        let from = last.map_or(LogitsOf::Slot(row.slot), |last| LogitsOf::Row(last - later));
                        plan.rows.draws.push(draw_of(row, draw, later, &inputs.logit_bias, histories, from));
                        plan.answers.draws.push(answer);
                    }
                }
                (After::Stash, Some(last)) => {
                    plan.rows.stashes.push(Stash { row: last, slot: row.slot });
                }
                (After::Embed, Some(last)) => {
                    plan.rows.states.push(last);
                    plan.answers.states.push(answer);
                }
                _ => {}
            }
        }
        if !plan.rows.loras.is_empty() {
            plan.rows.loras.resize(plan.rows.spans.len(), None);
        }
        plan
    }
}

impl<B: Backend> Executing<B> {
    pub fn new(network: Network<B>, tier: Option<HostTier<B>>) -> Self {
        Self { network, tables: BlockTables::default(), histories: Histories::default(), tier }
    }

    pub fn backend(&self) -> &B {
        self.network.backend()
    }

    pub fn network_mut(&mut self) -> &mut Network<B> {
        &mut self.network
    }

    pub fn into_network(self) -> Network<B> {
        self.network
    }

    /// Begins a step that has been checked. One more may begin before it is finished.
    pub fn begin(&mut self, step: &Step) -> KernelResult<StepUnderWay<B>> {
        let applied = self.tables.apply(step).and_then(|()| self.histories.apply(step));
        applied.map_err(|what| KernelError::Shape { op: "step", what })?;
        step.loras.iter().try_for_each(|part| self.network.put_adapter(part))?;
        let lost = match &mut self.tier {
            Some(tier) => tier.begin(&mut self.network, &step.saves, &step.loads)?,
            None => Vec::new(),
        };
        let (answers, drawn) = self.rows(step)?;
        let lost_places = match &self.tier {
            Some(tier) if !step.loads.is_empty() => tier.settle(&self.network, &lost)?,
            _ => Vec::new(),
        };
        Ok(StepUnderWay { id: step.id, answers, lost_places, drawn })
    }

    fn rows(&mut self, step: &Step) -> KernelResult<(Answers, Option<B::Drawn>)> {
        if step.rows.is_empty() {
            return Ok((Answers::default(), None));
        }
        let inputs: Vec<_> = step.rows.iter().map(RowInputs::of).collect();
        let StepPlan { rows, answers } = StepPlan::new(step, &inputs, &self.tables, &self.histories);
        Ok((answers, Some(self.network.step(rows)?)))
    }

    /// Waits for the result of the oldest step that was begun and not finished. Only on the leader.
    pub fn finish(&mut self, step: StepUnderWay<B>) -> KernelResult<StepResult> {
        let StepUnderWay { id, answers: Answers { rows, draws, scores, states }, lost_places, drawn } = step;
        let drawn = drawn.map_or_else(|| Ok(StepOutputs::default()), |drawn| self.network.outputs(drawn))?;
        let mut results: Vec<RowResult> =
            rows.into_iter().map(|slot| RowResult { slot, ..Default::default() }).collect();
        for ((i, token), score) in scores.into_iter().zip(drawn.scores) {
            results[i].scores.push(message(token, score));
        }
        for (i, state) in states.into_iter().zip(drawn.states) {
            results[i].state = state;
        }
        for (i, token) in draws.into_iter().zip(drawn.tokens) {
            let id = token.as_ref().map(|token| token.id);
            id.into_iter().for_each(|id| self.histories.learn(results[i].slot, id));
            let logprob = token.and_then(|token| Some(message(token.id, token.logprob?)));
            results[i].drawn.push(Drawn { token: id, logprob });
        }
        Ok(StepResult { id, rows: results, lost_places })
    }
}

fn message(id: u32, found: Logprob) -> TokenLogprob {
    let top = found.top.into_iter().map(|(id, logprob)| TopLogprob { id, logprob }).collect();
    TokenLogprob { id, logprob: Some(found.logprob), rank: found.rank, top }
}

/// Parts of a row in the form that the backend takes.
struct RowInputs {
    logit_bias: Vec<(u32, f32)>,
    saves: Vec<StateSave>,
}

impl RowInputs {
    fn of(row: &Row) -> Self {
        let sampling = row.draws.first().and_then(|draw| draw.sampling.as_ref());
        let logit_bias = sampling.into_iter().flat_map(|sampling| &sampling.logit_bias);
        let saves = row.saves.iter().map(|save| StateSave { rows: save.tokens as usize, cell: save.cell });
        Self { logit_bias: logit_bias.map(|b| (b.token, b.bias)).collect(), saves: saves.collect() }
    }
}

/// `later`: draws of the row behind this one.
fn draw_of<'a>(
    row: &Row,
    draw: &'a Draw,
    later: usize,
    logit_bias: &'a [(u32, f32)],
    histories: &'a Histories,
    from: LogitsOf,
) -> kernels::Draw<'a> {
    static GREEDY: LazyLock<Sampling> =
        LazyLock::new(|| Sampling { top_p: 1.0, repetition_penalty: 1.0, ..Default::default() });
    let sampling = draw.sampling.as_ref().unwrap_or(&GREEDY);
    let slot = row.slot;
    let (prompt, generated) = histories.of(slot, draw.prompt_length as usize, later);
    let sample = SampleSpec {
        temperature: sampling.temperature,
        top_p: sampling.top_p,
        top_k: sampling.top_k as usize,
        min_p: sampling.min_p,
        repetition_penalty: sampling.repetition_penalty,
        presence_penalty: sampling.presence_penalty,
        frequency_penalty: sampling.frequency_penalty,
        logit_bias,
        seed: sampling.seed,
        position: draw.position,
        mask: draw.mask.as_deref(),
        banned: &draw.banned,
        prompt,
        generated,
    };
    let history = penalizes(sampling).then_some(KeptHistory { slot, kept: draw.kept_history as usize });
    let logprobs = usize::try_from(draw.logprobs).ok();
    kernels::Draw { from, slot: (later == 0).then_some(slot), sample, history, logprobs }
}

/// Checks whether a row can be executed, when the ranks hold `held` blocks of its slot's table and have `slots` slots.
pub fn check_row(row: &Row, held: usize, slots: usize, shape: &ExecutorShape) -> Result<(), String> {
    let ExecutorShape { vocab_size: vocab, max_context, blocks, block_size, .. } = *shape;
    let (slot, kept) = (row.slot, row.kept_blocks as usize);
    if let Some(token) = row.tokens.iter().chain(&row.next).find(|&&t| t as usize >= vocab) {
        return Err(format!("slot {slot}: token {token} is not below the vocabulary size {vocab}"));
    }
    let end = row.start as usize + row.tokens.len();
    if end > max_context {
        return Err(format!("slot {slot}: position {end} is beyond the context of {max_context}"));
    }
    if row.tokens.is_empty() && row.after() != After::Draw {
        return Err(format!("slot {slot}: a row without tokens must draw"));
    }
    let most = if row.after() == After::Draw { row.tokens.len().max(1) } else { 0 };
    if row.draws.len() > most || row.draws.is_empty() && most > 0 {
        return Err(format!("slot {slot}: a row with {} draws, which can have 1 to {most}", row.draws.len()));
    }
    if kept > held {
        return Err(keeps_too_many(slot, kept, held));
    }
    if let Some(lora) = row.lora.filter(|&lora| lora as usize >= shape.lora_slots) {
        return Err(format!("slot {slot}: no LoRA slot {lora}; there are {}", shape.lora_slots));
    }
    check_states(row, slots, shape)?;
    let covered = kept + row.blocks.len();
    if !row.tokens.is_empty() && covered * block_size < end {
        return Err(format!("slot {slot}: {covered} blocks do not cover {end} positions"));
    }
    match row.blocks.iter().find(|&&block| block as usize >= blocks) {
        Some(block) => Err(format!("slot {slot}: no block {block}; the cache has {blocks} blocks")),
        None => Ok(()),
    }
}

/// With recurrent layers, a row with tokens begins with a state, unless it is its sequence's first, and leaves one.
fn check_states(row: &Row, slots: usize, shape: &ExecutorShape) -> Result<(), String> {
    let bad = |what: String| Err(format!("slot {}: {what}", row.slot));
    let (Some(states), false) = (shape.states, row.tokens.is_empty()) else {
        return match row.saves.is_empty() && row.state.is_none() {
            true => Ok(()),
            false => bad("the row has recurrent states, but no layer that computes them".into()),
        };
    };
    let cells = states.cells(slots);
    if let Some(cell) = row.saves.iter().map(|save| save.cell).chain(row.state).find(|&cell| cell as usize >= cells) {
        return bad(format!("no cell {cell}; there are {cells}"));
    }
    if row.state.is_none() != (row.start == 0) {
        return bad(format!("position {} with state {:?}", row.start, row.state));
    }
    let ends = row.saves.iter().map(|save| save.tokens as usize);
    match ends.is_sorted() && row.saves.last().is_some_and(|save| save.tokens as usize == row.tokens.len()) {
        true => Ok(()),
        false => bad(format!("states after {:?} of {} tokens", row.saves, row.tokens.len())),
    }
}

#[cfg(test)]
mod tests;
