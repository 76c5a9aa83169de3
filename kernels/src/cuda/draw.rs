//! Logits, the draws, stashes and scores from them, and hidden states. It does not know sequences.

mod plan;

use std::ops::Range;

use super::args::DrawArgs;
use super::backend::{Cuda, int, shape};
use super::batch::DeviceBatch;
use super::graphs::{Kept, Mode, Results};
use super::plan::LaunchPlan;
use super::tensor::{DeviceTensor, Element};
use super::weights::Matrix;
use super::{CudaDevice, DeviceBuffer};
use crate::backend::{Backend, Draw, LogitsOf, OutputHead, Stash, StepOutputs};
use crate::error::Result;
use plan::DrawPass;
pub(super) use plan::{DrawPlan, result_words};

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

    fn fit(&mut self, device: &CudaDevice, slots: usize, vocab: usize) -> Result<()> {
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
    fn take(&mut self, draws: &[Draw]) -> Result<()> {
        let slots = || draws.iter().filter(|draw| matches!(draw.from, LogitsOf::Slot(_)));
        let of = |draw: &Draw| if let LogitsOf::Slot(slot) = draw.from { slot as usize } else { usize::MAX };
        if let Some(draw) = slots().find(|draw| !self.filled.get(of(draw)).copied().unwrap_or(false)) {
            return Err(shape("draw", format!("no logits for {:?}", draw.from)));
        }
        slots().for_each(|draw| self.filled[of(draw)] = false);
        Ok(())
    }

    fn fill(&mut self, stashes: &[Stash]) {
        stashes.iter().for_each(|stash| self.filled[stash.slot as usize] = true);
    }

    pub fn clear(&mut self) {
        self.filled.fill(false);
    }
}

pub(super) fn draw(
    cuda: &mut Cuda,
    batch: &DeviceBatch,
    hidden: Option<&DeviceTensor>,
    head: &OutputHead<'_, Cuda>,
) -> Result<StepOutputs> {
    let plan = &batch.draws;
    let leads = cuda.rank() == 0;
    if let Some(weight) = head.weight {
        let vocab = cuda.vocabulary(weight.0.outs)?;
        if leads {
            cuda.stash.fit(&cuda.device, plan.slots, vocab)?;
        }
    }
    if leads {
        cuda.stash.take(&batch.rows.draws)?;
    }
    let out = if cuda.graphs.get_mut().mode() == Mode::Repeating {
        let results = cuda.graphs.get_mut().repeat(&cuda.device, &batch.shape)?;
        results.and_then(|results| results.drawn).and_then(|drawn| cuda.kept(drawn))
    } else {
        let out = cuda.launch_draws(batch, hidden, head)?;
        let results = hidden.map(|hidden| Results { hidden: kept(hidden), drawn: out.as_ref().map(kept) });
        let ended = cuda.check().and_then(|()| match results {
            Some(results) => Ok(cuda.graphs.get_mut().end(&cuda.device, &batch.shape, results)?),
            None => Ok(()),
        });
        ended.inspect_err(|_| cuda.graphs.get_mut().abandon(&cuda.device))?;
        out
    };
    if !leads {
        return cuda.check_group().map(|()| StepOutputs::default());
    }
    cuda.stash.fill(&batch.rows.stashes);
    let states = cuda.states(batch, hidden, head)?;
    if plan.out_words == 0 {
        return Ok(StepOutputs { states, ..StepOutputs::default() });
    }
    let out = out.ok_or_else(|| shape("draw", "the memory of a recorded step is in use".into()))?;
    // SAFETY: the results have at least that many words.
    let drawn = plan.read(unsafe { cuda.steps.receive(&cuda.device, batch, out.address) }?);
    // After the results: they may be of a group that has ended.
    cuda.check_group()?;
    Ok(StepOutputs { states, ..drawn })
}

fn kept(x: &DeviceTensor) -> Kept {
    Kept { start: x.block.start, rows: x.rows, cols: x.cols }
}

impl Cuda {
    /// Puts all that the batch draws, stashes and scores into the stream. The results, as words; None: nothing.
    fn launch_draws(
        &self,
        batch: &DeviceBatch,
        hidden: Option<&DeviceTensor>,
        head: &OutputHead<'_, Cuda>,
    ) -> Result<Option<DeviceTensor>> {
        if batch.draws.passes.is_empty() {
            return Ok(None);
        }
        let weight = head.weight.ok_or_else(|| shape("draw", "the model has no head for logits".into()))?;
        let weight = &weight.0;
        let (leads, vocab) = (self.rank() == 0, self.known_vocabulary(weight.outs));
        let out = self.tensor(1, batch.shape.results, Element::F32);
        let mut from = 0;
        for pass in &batch.draws.passes {
            // A decode step has logits for all rows of its bucket.
            let rows = if batch.shape.decode { batch.shape.wanted } else { pass.rows };
            let logits = match rows {
                0 => None,
                rows => self.logits(batch, hidden, from..from + rows, head, weight)?,
            };
            if leads {
                self.launch_pass(batch, pass, logits.as_ref(), vocab, &out);
            }
            from += rows;
        }
        Ok(Some(out))
    }

    fn launch_pass(
        &self,
        batch: &DeviceBatch,
        pass: &DrawPass,
        logits: Option<&DeviceTensor>,
        vocab: usize,
        out: &DeviceTensor,
    ) {
        // What is recorded must do for any step of its shape.
        let decode = batch.shape.decode.then_some(batch.shape.rows);
        let draw = LaunchPlan::draw(decode.unwrap_or(pass.tasks));
        let stash = LaunchPlan::stash(decode.unwrap_or(pass.stashes), vocab);
        let work = self.take(draw.grid[0] * 2 * vocab * 4);
        let args = DrawArgs {
            block: self.steps.parts(batch).end + 4 * pass.block as u64,
            logits: logits.map_or(0, |logits| logits.address),
            slots: self.stash.data.as_ref().map_or(0, DeviceBuffer::address),
            work: work.address,
            out: out.address,
            vocab: int(vocab),
        };
        // SAFETY: the block follows the step's other inputs; its rows are below those of the logits, its slots below
        // those of the stash, and the results have the words that it was given.
        unsafe {
            self.launch(&draw, &args);
            self.launch(&stash, &args);
        }
    }

    /// The hidden states of these wanted rows of the batch, after the final norm.
    fn normed(
        &self,
        batch: &DeviceBatch,
        hidden: Option<&DeviceTensor>,
        wanted: Range<usize>,
        head: &OutputHead<'_, Cuda>,
    ) -> Result<DeviceTensor> {
        let hidden =
            hidden.ok_or_else(|| shape("draw", "a step without rows has no hidden states to draw from".into()))?;
        let index = self.steps.parts(batch).wanted + 4 * wanted.start as u64;
        Ok(self.rms_norm(&self.gather_rows(hidden, index, wanted.len(), 1), head.norm, head.eps))
    }

    /// The hidden states that the batch wants. Steps with them are never recorded, and all ranks have them.
    fn states(
        &mut self,
        batch: &DeviceBatch,
        hidden: Option<&DeviceTensor>,
        head: &OutputHead<'_, Cuda>,
    ) -> Result<Vec<Vec<f32>>> {
        let count = batch.rows.states.len();
        if count == 0 {
            return Ok(Vec::new());
        }
        let normed = self.normed(batch, hidden, batch.shape.wanted - count..batch.shape.wanted, head)?;
        let states = self.to_host(&normed).chunks(normed.cols.max(1)).map(<[f32]>::to_vec).collect();
        self.check()?;
        self.steps.arrived();
        self.check_group()?;
        Ok(states)
    }

    /// The logits of these wanted rows of the batch, on rank 0.
    fn logits(
        &self,
        batch: &DeviceBatch,
        hidden: Option<&DeviceTensor>,
        wanted: Range<usize>,
        head: &OutputHead<'_, Cuda>,
        weight: &Matrix,
    ) -> Result<Option<DeviceTensor>> {
        let normed = self.normed(batch, hidden, wanted, head)?;
        let mut logits = self.gather_logits(self.product(&normed, weight, None, Element::F32));
        if head.scale != 1.0 {
            logits.iter_mut().for_each(|logits| self.scale(logits, head.scale));
        }
        Ok(logits)
    }
}
