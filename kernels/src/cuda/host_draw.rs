//! Draws on the host from logits that the device computed. It does not know sequences.

use super::backend::{Cuda, shape};
use super::batch::DeviceBatch;
use super::graphs::{Kept, Mode, Results};
use super::tensor::{DeviceTensor, Element};
use crate::backend::{Backend, Drawn, Head, LogitsOf, Rows, SampledToken};
use crate::error::Result;
use crate::sample::{logprobs, sample};

/// Rows whose logits are in memory at once for scoring.
const SCORE_ROWS: usize = 32;

pub(super) fn draw(
    cuda: &mut Cuda,
    batch: &DeviceBatch,
    hidden: Option<&DeviceTensor>,
    head: &Head<'_, Cuda>,
) -> Result<Drawn> {
    let Rows { draws, stashes, scores, .. } = &batch.rows;
    let mut drawn = Drawn::default();
    for (i, scores) in scores.chunks(SCORE_ROWS).enumerate() {
        let logits = cuda.logits(batch, hidden, i * SCORE_ROWS, scores.len(), head)?;
        let logits = cuda.fetch(&logits)?;
        drawn.scores.extend(scores.iter().zip(&logits).map(|(score, l)| logprobs(l, score.token, score.top)));
    }
    let logits = last_logits(cuda, batch, hidden, head)?;
    let mut fresh = match logits {
        Some(logits) => cuda.fetch(&logits)?.into_iter(),
        None => Vec::new().into_iter(),
    };
    for draw in draws {
        let logits = match draw.from {
            LogitsOf::Row(_) => fresh.next(),
            LogitsOf::Slot(slot) => cuda.stash.get_mut(slot as usize).map(std::mem::take).filter(|l| !l.is_empty()),
        };
        let logits = logits.ok_or_else(|| shape("draw", format!("no logits for {:?}", draw.from)))?;
        let token = sample(&mut logits.clone(), &draw.sample);
        let logprob = |id| draw.logprobs.map(|top| logprobs(&logits, id, top));
        drawn.tokens.push(token.map(|id| SampledToken { id, logprob: logprob(id) }));
    }
    for (stash, logits) in stashes.iter().zip(fresh) {
        let slot = stash.slot as usize;
        if cuda.stash.len() <= slot {
            cuda.stash.resize(slot + 1, Vec::new());
        }
        cuda.stash[slot] = logits;
    }
    Ok(drawn)
}

/// The logits of draws and stashes. Ends the recording of the step, or repeats it.
fn last_logits(
    cuda: &mut Cuda,
    batch: &DeviceBatch,
    hidden: Option<&DeviceTensor>,
    head: &Head<'_, Cuda>,
) -> Result<Option<DeviceTensor>> {
    let (from, of) = (batch.rows.scores.len(), batch.shape);
    let Some(hidden) = hidden else { return Ok(None) };
    let mode = cuda.graphs.get_mut().mode();
    if mode == Mode::Repeating {
        let results = cuda.graphs.get_mut().repeat(&cuda.device, &of)?;
        return Ok(results.and_then(|results| results.logits).and_then(|logits| cuda.kept(logits)));
    }
    let logits = match of.wanted - from {
        0 => None,
        count => Some(cuda.logits(batch, Some(hidden), from, count, head)?),
    };
    let results = Results { hidden: kept(hidden), logits: logits.as_ref().map(kept) };
    let ended = cuda.check().and_then(|()| Ok(cuda.graphs.get_mut().end(&cuda.device, &of, results)?));
    ended.inspect_err(|_| cuda.graphs.get_mut().abandon(&cuda.device))?;
    Ok(logits)
}

fn kept(x: &DeviceTensor) -> Kept {
    Kept { start: x.block.start, rows: x.rows, cols: x.cols }
}

impl Cuda {
    /// The logits of wanted rows from..from + count of the batch.
    fn logits(
        &self,
        batch: &DeviceBatch,
        hidden: Option<&DeviceTensor>,
        from: usize,
        count: usize,
        head: &Head<'_, Cuda>,
    ) -> Result<DeviceTensor> {
        let hidden = hidden.ok_or_else(|| shape("draw", "a row of a step without rows".into()))?;
        let index = self.steps.parts(batch).wanted + 4 * from as u64;
        let gathered = self.gather_rows(hidden, index, count);
        let normed = self.rms_norm(&gathered, head.norm, head.eps);
        let mut logits = self.product(&normed, head.weight.plain(), None, Element::F32);
        if head.scale != 1.0 {
            self.scale(&mut logits, head.scale);
        }
        Ok(logits)
    }

    /// Rows on the host, after all work of the stream.
    fn fetch(&mut self, logits: &DeviceTensor) -> Result<Vec<Vec<f32>>> {
        let all = self.to_host(logits);
        self.check()?;
        self.steps.arrived();
        Ok(all.chunks(logits.cols).map(<[f32]>::to_vec).collect())
    }
}
