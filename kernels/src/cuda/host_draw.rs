//! Draws on the host from logits that the device computed. It does not know sequences.

use super::backend::{Cuda, shape};
use super::tensor::{DeviceTensor, Element};
use crate::backend::{Backend, Draw, Drawn, Head, LogitsOf, Rows, SampledToken};
use crate::error::Result;
use crate::sample::{logprobs, sample};

/// Rows whose logits are in memory at once for scoring.
const SCORE_ROWS: usize = 32;

pub(super) fn draw(
    cuda: &mut Cuda,
    rows: &Rows,
    hidden: Option<&DeviceTensor>,
    head: &Head<'_, Cuda>,
) -> Result<Drawn> {
    let Rows { draws, stashes, scores, .. } = rows;
    let mut drawn = Drawn::default();
    for scores in scores.chunks(SCORE_ROWS) {
        let of: Vec<u32> = scores.iter().map(|score| score.row as u32).collect();
        let logits = logits(cuda, hidden, &of, head)?;
        drawn.scores.extend(scores.iter().zip(&logits).map(|(score, l)| logprobs(l, score.token, score.top)));
    }
    let row_of = |draw: &Draw| match draw.from {
        LogitsOf::Row(row) => Some(row as u32),
        LogitsOf::Slot(_) => None,
    };
    let fresh: Vec<u32> = draws.iter().filter_map(row_of).chain(stashes.iter().map(|s| s.row as u32)).collect();
    let mut fresh = logits(cuda, hidden, &fresh, head)?.into_iter();
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

/// Logits of some rows of `hidden`, on the host.
fn logits(
    cuda: &mut Cuda,
    hidden: Option<&DeviceTensor>,
    rows: &[u32],
    head: &Head<'_, Cuda>,
) -> Result<Vec<Vec<f32>>> {
    if rows.is_empty() {
        return Ok(Vec::new());
    }
    let hidden = hidden.ok_or_else(|| shape("draw", "a row of a step without rows".into()))?;
    let index = cuda.upload(rows)?;
    let gathered = cuda.gather_rows(hidden, index.address(), rows.len());
    let normed = cuda.rms_norm(&gathered, head.norm, head.eps);
    let mut logits = cuda.product(&normed, head.weight.plain(), None, Element::F32);
    if head.scale != 1.0 {
        cuda.scale(&mut logits, head.scale);
    }
    let all = cuda.to_host(&logits);
    cuda.check()?;
    cuda.steps.arrived();
    Ok(all.chunks(logits.cols).map(<[f32]>::to_vec).collect())
}
