//! Logits, the draws, stashes and scores from them, and hidden states. It does not know sequences.

use std::ops::Range;

use super::batch::PlacedBatch;
use super::draw_plan::{AwaitedWords, DrawPass};
use super::error::shape;
use super::form::Element;
use super::op_stream::OpStream;
use super::plan::{LaunchPlan, int};
use super::ranks::{Offer, RankOps};
use super::tensor::DeviceTensor;
use super::weights::{DeviceLinear, DeviceVector, Matrix};
use super::{CudaDevice, DeviceBuffer};
use crate::backend::{Backend, Draw, KeptHistory, LogitsOf, OutputHead, Stash};
use crate::error::Result;

/// Threads of the kernels that move tokens.
const TOKEN_THREADS: u32 = 256;

/// draw.cu
#[derive(Clone, Copy)]
#[repr(C)]
struct DrawArgs {
    block: u64,
    logits: u64,
    slots: u64,
    work: u64,
    out: u64,
    histories: u64,
    drawn: u64,
    tokens: u64,
    vocab: i32,
    history_stride: i32,
}

/// draw.cu
#[derive(Clone, Copy)]
#[repr(C)]
struct KeepDrawnArgs {
    block: u64,
    parts: u64,
    drawn: u64,
}

/// draw.cu
#[derive(Clone, Copy)]
#[repr(C)]
struct TakeDrawnArgs {
    ids: u64,
    block: u64,
    drawn: u64,
    pairs: i32,
    count_ids: i32,
    count_words: i32,
}

/// Logits of rows that later steps draw from.
#[derive(Debug, Default)]
pub(super) struct StashedLogits {
    /// [slots, vocab]
    data: Option<DeviceBuffer>,
    vocab: usize,
    /// Which slots hold logits.
    filled: Vec<bool>,
}

impl StashedLogits {
    /// Whether there is room for this many slots.
    pub fn has(&self, slots: usize) -> bool {
        slots <= self.filled.len()
    }

    pub fn fit(&mut self, device: &CudaDevice, slots: usize, vocab: usize) -> Result<()> {
        if vocab != self.vocab {
            // Of another model.
            *self = StashedLogits { vocab, ..StashedLogits::default() };
        }
        if self.has(slots) {
            return Ok(());
        }
        let slots = slots.next_power_of_two();
        let grown = device.allocate(4 * slots * vocab)?;
        if let Some(data) = &self.data {
            grown.copy(device, 0, data, 0, data.bytes())?;
        }
        self.data = Some(grown);
        self.filled.resize(slots, false);
        Ok(())
    }

    /// Empties the slots of these draws, which must be filled.
    pub fn take(&mut self, draws: &[Draw]) -> Result<()> {
        let slots = || draws.iter().filter(|draw| matches!(draw.from, LogitsOf::Slot(_)));
        let of = |draw: &Draw| if let LogitsOf::Slot(slot) = draw.from { slot as usize } else { usize::MAX };
        if let Some(draw) = slots().find(|draw| !self.filled.get(of(draw)).copied().unwrap_or(false)) {
            return Err(shape("draw", format!("no logits for {:?}", draw.from)));
        }
        slots().for_each(|draw| self.filled[of(draw)] = false);
        Ok(())
    }

    pub fn fill(&mut self, stashes: &[Stash]) {
        stashes.iter().for_each(|stash| self.filled[stash.slot as usize] = true);
    }

    pub fn clear(&mut self) {
        self.filled.fill(false);
    }
}

/// The tokens of each slot that draws with penalties. The draws themselves write what is new.
pub(super) struct DeviceHistories {
    /// [slots, positions]
    data: DeviceBuffer,
    slots: usize,
    positions: usize,
}

impl DeviceHistories {
    pub fn new(device: &CudaDevice, slots: usize, positions: usize) -> Result<DeviceHistories> {
        Ok(DeviceHistories { data: device.allocate(4 * slots * positions)?, slots, positions })
    }

    /// That the histories of these draws are within it.
    pub fn check(&self, draws: &[Draw]) -> Result<()> {
        let beyond = |draw: &&Draw| {
            let length = draw.sample.prompt.len() + draw.sample.generated.len();
            let of = |history: KeptHistory| history.slot as usize >= self.slots || length > self.positions;
            draw.history.is_some_and(of)
        };
        match draws.iter().find(beyond) {
            None => Ok(()),
            Some(draw) => {
                let what = format!("{:?}: there are {} slots of {} tokens", draw.history, self.slots, self.positions);
                Err(shape("draw", what))
            }
        }
    }
}

/// Brings the tokens that a step awaits from `drawn`.
pub(super) fn take_drawn(ops: &OpStream, batch: &PlacedBatch, drawn: &DeviceBuffer) {
    let AwaitedWords { at, ids, words } = batch.draws.awaited;
    if ids + words == 0 {
        return;
    }
    let args = TakeDrawnArgs {
        ids: batch.parts.ids,
        block: batch.parts.end,
        drawn: drawn.address(),
        pairs: int(at),
        count_ids: int(ids),
        count_words: int(words),
    };
    // SAFETY: rows and slots were checked, and the words are those of the plan.
    unsafe { ops.launch(&LaunchPlan::new("take_drawn", [1, 1, 1], TOKEN_THREADS), &args) };
}

/// The draws of one step.
pub(super) struct StepDraws<'a, B: Backend> {
    pub ranks: RankOps<'a>,
    pub batch: PlacedBatch<'a>,
    pub hidden: Option<&'a DeviceTensor>,
    pub head: &'a OutputHead<'a, B>,
    pub stash: &'a StashedLogits,
    pub histories: Option<&'a DeviceHistories>,
    /// Where the tokens of slots stay.
    pub drawn: Option<&'a DeviceBuffer>,
}

impl<B: Backend<Vector = DeviceVector, Linear = DeviceLinear>> StepDraws<'_, B> {
    /// Puts all that the batch draws, stashes and scores into the stream. The results, as words; None: nothing.
    pub fn launch(&self) -> Result<Option<DeviceTensor>> {
        let (batch, ops) = (&self.batch, self.ranks.ops);
        if batch.draws.passes.is_empty() {
            return Ok(None);
        }
        let weight = self.head.weight.ok_or_else(|| shape("draw", "the model has no head for logits".into()))?;
        let weight = &weight.0;
        let (leads, vocab) = (self.ranks.group.rank() == 0, self.ranks.group.known_vocabulary(weight.outs));
        let out = ops.tensor(1, batch.shape.results, Element::F32);
        let tasks = if batch.shape.decode { batch.shape.rows } else { batch.rows.draws.len() };
        // Other ranks get the tokens of rank 0.
        let tokens = (self.ranks.group.ranks() > 1 && tasks > 0).then(|| ops.tensor(1, tasks, Element::F32));
        let mut from = 0;
        let last = batch.draws.passes.len() - 1;
        for (i, pass) in batch.draws.passes.iter().enumerate() {
            // A decode step has logits for all rows of its bucket.
            let rows = if batch.shape.decode { batch.shape.wanted } else { pass.rows };
            let logits = match rows {
                0 => None,
                rows => self.logits(from..from + rows, weight)?,
            };
            if leads {
                self.launch_pass(pass, logits.as_ref(), vocab, &out, tokens.as_ref().filter(|_| i == last));
            }
            from += rows;
        }
        if let Some(tokens) = &tokens {
            self.keep(tokens);
        }
        Ok(Some(out))
    }

    /// All ranks keep what rank 0 has drawn.
    fn keep(&self, tokens: &DeviceTensor) {
        let bytes = 4 * tokens.cols;
        let reads = |reader: usize, owner: usize| 0..if owner == 0 && reader != 0 { bytes } else { 0 };
        let parts = self.ranks.exchange(&[Offer::of(tokens, &reads)]);
        if let (Some(pass), Some(drawn)) = (self.batch.draws.passes.last(), self.drawn)
            && self.ranks.group.rank() != 0
        {
            let block = self.batch.parts.end + 4 * pass.block as u64;
            let args = KeepDrawnArgs { block, parts: parts.of(0), drawn: drawn.address() };
            // SAFETY: the block follows the step's other inputs; its slots were checked, and the tokens of rank 0 stay
            // until the next exchange.
            unsafe { self.ranks.ops.launch(&LaunchPlan::new("keep_drawn", [1, 1, 1], TOKEN_THREADS), &args) };
        }
    }

    /// `tokens`: of each task, for the other ranks.
    fn launch_pass(
        &self,
        pass: &DrawPass,
        logits: Option<&DeviceTensor>,
        vocab: usize,
        out: &DeviceTensor,
        tokens: Option<&DeviceTensor>,
    ) {
        let (batch, ops) = (&self.batch, self.ranks.ops);
        // What is recorded must do for any step of its shape.
        let decode = batch.shape.decode.then_some(batch.shape.rows);
        let draw = LaunchPlan::draw(decode.unwrap_or(pass.tasks));
        let stash = LaunchPlan::stash(decode.unwrap_or(pass.stashes), vocab);
        let work = ops.take(draw.grid[0] * 2 * vocab * 4);
        let args = DrawArgs {
            block: batch.parts.end + 4 * pass.block as u64,
            logits: logits.map_or(0, |logits| logits.address),
            slots: self.stash.data.as_ref().map_or(0, DeviceBuffer::address),
            work: work.address,
            out: out.address,
            histories: self.histories.map_or(0, |histories| histories.data.address()),
            drawn: self.drawn.map_or(0, DeviceBuffer::address),
            tokens: tokens.map_or(0, |tokens| tokens.address),
            vocab: int(vocab),
            history_stride: self.histories.map_or(0, |histories| int(histories.positions)),
        };
        // SAFETY: the block follows the step's other inputs; its rows are below those of the logits, its slots below
        // those of the stash, and the results have the words that it was given.
        unsafe {
            ops.launch(&draw, &args);
            ops.launch(&stash, &args);
        }
    }

    /// The hidden states of these wanted rows of the batch, after the final norm.
    fn normed(&self, wanted: Range<usize>) -> Result<DeviceTensor> {
        let hidden =
            self.hidden.ok_or_else(|| shape("draw", "a step without rows has no hidden states to draw from".into()))?;
        let (ops, index) = (self.ranks.ops, self.batch.parts.wanted + 4 * wanted.start as u64);
        let (rows, head) = (ops.gather_rows(hidden, index, wanted.len()), self.head);
        Ok(match head.norm_bias {
            None => ops.rms_norm(&rows, head.norm, head.eps),
            Some(bias) => ops.layer_norm(&rows, head.norm, bias, head.eps),
        })
    }

    /// The hidden states that the batch wants, at least one. Steps with them are never recorded, and all ranks have
    /// them.
    pub fn states(&self) -> Result<Vec<Vec<f32>>> {
        let (wanted, count) = (self.batch.shape.wanted, self.batch.rows.states.len());
        let normed = self.normed(wanted - count..wanted)?;
        let states = self.ranks.ops.to_host(&normed).chunks(normed.cols.max(1)).map(<[f32]>::to_vec).collect();
        self.ranks.ops.check().map(|()| states)
    }

    /// The logits of these wanted rows of the batch, on rank 0.
    fn logits(&self, wanted: Range<usize>, weight: &Matrix) -> Result<Option<DeviceTensor>> {
        let ops = self.ranks.ops;
        let normed = self.normed(wanted)?;
        let logits = self.ranks.gather_logits(ops.product(&normed, weight, None, Element::F32));
        if let Some(logits) = logits.as_ref().filter(|_| self.head.scale != 1.0) {
            ops.add_to(logits, self.head.scale, None, 0.0);
        }
        Ok(logits)
    }
}
