//! Logits, and what is drawn, stashed and scored from them, and hidden states, on rank 0. Rows are drawn in parallel;
//! each is a pure function of its logits and parameters. This module does not know sequences.

use super::buffer::Buffer;
use super::{Cpu, Tensor, shape, stale};
use crate::backend::{Backend, Draw, LogitsOf, OutputHead, RowOps, SampledToken, StepInputs, StepOutputs};
use crate::error::Result;
use crate::sample::{logprobs, sample};

/// Rows whose logits are in memory at once for scoring: a long prompt must not need prompt * vocabulary floats.
const SCORE_ROWS: usize = 32;

pub fn draw(cpu: &mut Cpu, rows: &StepInputs, hidden: Option<&Tensor>, head: &OutputHead<Cpu>) -> Result<StepOutputs> {
    let StepInputs { draws, stashes, scores, .. } = rows;
    let mut drawn = StepOutputs::default();
    for scores in scores.chunks(SCORE_ROWS) {
        let of: Vec<usize> = scores.iter().map(|score| score.row).collect();
        if let Some(logits) = cpu.logits(hidden, &of, head)? {
            let found = |i: usize| logprobs(logits.row(i), scores[i].token, scores[i].top);
            drawn.scores.extend(cpu.pool.map(scores.len(), &found));
        }
    }
    let row_of = |draw: &Draw| match draw.from {
        LogitsOf::Row(row) => Some(row),
        LogitsOf::Slot(_) => None,
    };
    let fresh: Vec<usize> = draws.iter().filter_map(row_of).chain(stashes.iter().map(|stash| stash.row)).collect();
    let logits = cpu.logits(hidden, &fresh, head)?;
    if cpu.rank() != 0 {
        return Ok(drawn);
    }
    if !rows.states.is_empty() {
        // Every rank has the whole hidden states.
        let normed = cpu.normed(hidden, &rows.states, head)?;
        drawn.states = (0..normed.rows).map(|row| normed.row(row).to_vec()).collect();
    }
    let mut of_fresh = logits.iter().flat_map(|logits| (0..logits.rows).map(|row| logits.row(row)));
    let mut sources = Vec::with_capacity(draws.len());
    for draw in draws {
        let logits = match draw.from {
            LogitsOf::Row(_) => of_fresh.next(),
            LogitsOf::Slot(slot) => cpu.stash.get(slot as usize).map(|stashed| &**stashed).filter(|l| !l.is_empty()),
        };
        sources.push(logits.ok_or_else(|| shape("draw", format!("no logits for {:?}", draw.from)))?);
    }
    drawn.tokens = cpu.pool.map(draws.len(), &|i| draw_token(sources[i], &draws[i]));
    for draw in draws {
        if let LogitsOf::Slot(slot) = draw.from {
            cpu.stash[slot as usize] = Buffer::stale(0);
        }
    }
    for (stash, logits) in stashes.iter().zip(of_fresh) {
        let slot = stash.slot as usize;
        if cpu.stash.len() <= slot {
            cpu.stash.resize_with(slot + 1, || Buffer::stale(0));
        }
        cpu.stash[slot] = Buffer::copy(logits);
    }
    Ok(drawn)
}

/// Logprobs are the model's, before penalties, masks and temperature.
fn draw_token(logits: &[f32], draw: &Draw) -> Option<SampledToken> {
    let id = sample(&mut Buffer::copy(logits), &draw.sample)?;
    Some(SampledToken { id, logprob: draw.logprobs.map(|top| logprobs(logits, id, top)) })
}

impl Cpu {
    /// Logits of some rows of `hidden`, on rank 0. None on other ranks and for no rows.
    fn logits(&self, hidden: Option<&Tensor>, rows: &[usize], head: &OutputHead<Cpu>) -> Result<Option<Tensor>> {
        if rows.is_empty() {
            return Ok(None);
        }
        let weight = head.weight.ok_or_else(|| shape("draw", "the model has no head for logits".into()))?;
        let mut logits = self.gather_cols(self.linear(&self.normed(hidden, rows, head)?, weight, None))?;
        if head.scale != 1.0 {
            logits.iter_mut().for_each(|logits| self.scale(logits, head.scale));
        }
        Ok(logits)
    }

    /// Some rows of `hidden`, after the final norm.
    fn normed(&self, hidden: Option<&Tensor>, rows: &[usize], head: &OutputHead<Cpu>) -> Result<Tensor> {
        let hidden = hidden
            .ok_or_else(|| shape("draw", "the rows to draw are not empty, but the step computed no rows".into()))?;
        let rows = self.gather_rows(hidden, rows);
        Ok(match head.norm_bias {
            None => self.rms_norm(&rows, head.norm, head.eps),
            Some(bias) => self.layer_norm(&rows, head.norm, bias, head.eps),
        })
    }

    pub(super) fn gather_rows(&self, x: &Tensor, rows: &[usize]) -> Tensor {
        let mut out = stale(rows.len(), x.cols);
        for (i, &r) in rows.iter().enumerate() {
            out.data[i * x.cols..][..x.cols].copy_from_slice(&x.data[r * x.cols..][..x.cols]);
        }
        out
    }

    /// The ranks' columns in rank order, on rank 0.
    pub(super) fn gather_cols(&self, x: Tensor) -> Result<Option<Tensor>> {
        if self.collective.size() == 1 {
            return Ok(Some(x));
        }
        let parts = self.collective.gather(0, &x.data)?;
        if parts.is_empty() {
            return Ok(None);
        }
        let widths: Vec<usize> = parts.iter().map(|p| p.len().checked_div(x.rows).unwrap_or(0)).collect();
        if parts.iter().zip(&widths).any(|(p, w)| p.len() != x.rows * w) {
            return Err(shape("gather_cols", "ranks differ in their number of rows".into()));
        }
        let mut out = stale(x.rows, widths.iter().sum());
        for (r, mut row) in out.data.chunks_exact_mut(out.cols.max(1)).enumerate() {
            for (part, width) in parts.iter().zip(&widths) {
                let (own, rest) = row.split_at_mut(*width);
                own.copy_from_slice(&part[r * width..][..*width]);
                row = rest;
            }
        }
        Ok(Some(out))
    }
}

#[cfg(test)]
mod tests;
