//! Executes a `Step` on one rank. Every rank runs the same products; the leader also draws and scores. It does not know
//! sequences beyond the step.

use std::collections::HashMap;

use rein_kernels::sample::{Logprob, SampleSpec, logprobs, sample};
use rein_kernels::{Backend, Result as KernelResult, Span};
use rein_proto::internal::{After, Draw, Row, RowResult, Sampling, Step, StepResult, TokenLogprob, TopLogprob};

use super::network::Network;

/// Rows whose logits are in memory at once for scoring: a long prompt must not need prompt * vocabulary floats.
const SCORE_ROWS: usize = 32;

pub struct Executing<B: Backend> {
    network: Network<B>,
    vocab: usize,
    /// Logits of held sequences; only on the leader.
    stash: HashMap<u64, Vec<f32>>,
}

/// A step's rows, flattened.
struct Batch {
    ids: Vec<u32>,
    positions: Vec<u32>,
    spans: Vec<Span>,
    /// For each row of the step, its first row in the tensors.
    first: Vec<usize>,
}

impl Batch {
    fn new(step: &Step) -> Self {
        let mut batch = Self { ids: Vec::new(), positions: Vec::new(), spans: Vec::new(), first: Vec::new() };
        for row in &step.rows {
            let first = batch.ids.len();
            batch.first.push(first);
            if row.tokens.is_empty() {
                continue;
            }
            batch.ids.extend_from_slice(&row.tokens);
            batch.positions.extend((row.start..).take(row.tokens.len()));
            batch.spans.push(Span {
                row: first,
                len: row.tokens.len(),
                start: row.start as usize,
                blocks: row.blocks.clone(),
            });
        }
        batch
    }
}

impl<B: Backend> Executing<B> {
    pub fn new(network: Network<B>, vocab: usize) -> Self {
        Self { network, vocab, stash: HashMap::new() }
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

    /// Executes a step that has been checked. Ranks other than the leader return nothing.
    pub fn step(&mut self, step: &Step) -> KernelResult<Option<StepResult>> {
        for seq in &step.dropped {
            self.stash.remove(seq);
        }
        let leader = self.network.backend().rank() == 0;
        let batch = Batch::new(step);
        let mut last = HashMap::new();
        let mut scores: HashMap<usize, Vec<TokenLogprob>> = HashMap::new();
        if !batch.ids.is_empty() {
            let hidden = self.network.hidden(&batch.ids, &batch.positions, &batch.spans)?;
            scores = self.score(step, &batch, &hidden, leader)?;
            last = self.last_logits(step, &batch, &hidden, leader)?;
        }
        if !leader {
            return Ok(None);
        }
        let mut result = StepResult { id: step.id, rows: Vec::new() };
        for (i, row) in step.rows.iter().enumerate() {
            let mut out =
                RowResult { seq: row.seq, scores: scores.remove(&i).unwrap_or_default(), ..Default::default() };
            match (row.after(), &row.draw) {
                (After::Draw, Some(draw)) => {
                    let logits = if row.tokens.is_empty() { self.stash.remove(&row.seq) } else { last.remove(&i) };
                    draw_into(&mut out, logits.unwrap_or_default(), draw);
                }
                (After::Stash, _) => {
                    if let Some(logits) = last.remove(&i) {
                        self.stash.insert(row.seq, logits);
                    }
                }
                _ => {}
            }
            if row.after() == After::Draw || row.score >= 0 {
                result.rows.push(out);
            }
        }
        Ok(Some(result))
    }

    /// Logits of the last token of each row that draws or is held, by row of the step.
    fn last_logits(
        &self,
        step: &Step,
        batch: &Batch,
        hidden: &B::Tensor,
        leader: bool,
    ) -> KernelResult<HashMap<usize, Vec<f32>>> {
        let wanted: Vec<usize> = (0..step.rows.len())
            .filter(|&i| !step.rows[i].tokens.is_empty() && step.rows[i].after() != After::Nothing)
            .collect();
        if wanted.is_empty() {
            return Ok(HashMap::new());
        }
        let rows: Vec<usize> = wanted.iter().map(|&i| batch.first[i] + step.rows[i].tokens.len() - 1).collect();
        let logits = self.network.logits(hidden, &rows)?;
        if !leader {
            return Ok(HashMap::new());
        }
        Ok(wanted.into_iter().zip(logits.chunks_exact(self.vocab).map(<[f32]>::to_vec)).collect())
    }

    /// Teacher forcing: by row of the step, the logprobs of `tokens[1..]` and `next`.
    fn score(
        &self,
        step: &Step,
        batch: &Batch,
        hidden: &B::Tensor,
        leader: bool,
    ) -> KernelResult<HashMap<usize, Vec<TokenLogprob>>> {
        // (row of the step, row in the tensors, following token)
        let mut targets = Vec::new();
        for (i, row) in step.rows.iter().enumerate().filter(|(_, row)| row.score >= 0) {
            let follow = row.tokens.iter().skip(1).copied().chain(row.next.filter(|_| !row.tokens.is_empty()));
            targets.extend(follow.enumerate().map(|(k, token)| (i, batch.first[i] + k, token)));
        }
        let mut scores: HashMap<usize, Vec<TokenLogprob>> = HashMap::new();
        for chunk in targets.chunks(SCORE_ROWS) {
            let rows: Vec<usize> = chunk.iter().map(|&(_, row, _)| row).collect();
            let logits = self.network.logits(hidden, &rows)?;
            if !leader {
                continue;
            }
            for (&(i, _, token), logits) in chunk.iter().zip(logits.chunks_exact(self.vocab)) {
                let top = step.rows[i].score as usize;
                scores.entry(i).or_default().push(message(token, logprobs(logits, token, top)));
            }
        }
        Ok(scores)
    }
}

fn message(id: u32, found: Logprob) -> TokenLogprob {
    let top = found.top.into_iter().map(|(id, logprob)| TopLogprob { id, logprob }).collect();
    TokenLogprob { id, logprob: Some(found.logprob), rank: found.rank, top }
}

/// Logprobs are the model's, before penalties, masks and temperature.
fn draw_into(out: &mut RowResult, mut logits: Vec<f32>, draw: &Draw) {
    let sampling = draw.sampling.as_ref().cloned().unwrap_or_else(greedy);
    let bias: Vec<(u32, f32)> = sampling.logit_bias.iter().map(|b| (b.token, b.bias)).collect();
    let spec = SampleSpec {
        temperature: sampling.temperature,
        top_p: sampling.top_p,
        top_k: sampling.top_k as usize,
        min_p: sampling.min_p,
        repetition_penalty: sampling.repetition_penalty,
        presence_penalty: sampling.presence_penalty,
        frequency_penalty: sampling.frequency_penalty,
        logit_bias: &bias,
        seed: sampling.seed,
        position: draw.position,
        mask: draw.mask.as_deref(),
        banned: &draw.banned,
        prompt: &draw.prompt,
        generated: &draw.generated,
    };
    let plain = (draw.logprobs >= 0).then(|| logits.clone());
    match sample(&mut logits, &spec) {
        Some(token) => {
            out.token = Some(token);
            out.logprob = plain.map(|plain| message(token, logprobs(&plain, token, draw.logprobs as usize)));
        }
        None => out.empty_mask = true,
    }
}

fn greedy() -> Sampling {
    Sampling { top_p: 1.0, repetition_penalty: 1.0, ..Default::default() }
}

/// Checks whether a row can be executed.
pub fn check_row(row: &Row, vocab: usize, max_context: usize, blocks: usize, block_size: usize) -> Result<(), String> {
    let seq = row.seq;
    if let Some(token) = row.tokens.iter().chain(&row.next).find(|&&t| t as usize >= vocab) {
        return Err(format!("sequence {seq}: token {token} is not below the vocabulary size {vocab}"));
    }
    let end = row.start as usize + row.tokens.len();
    if end > max_context {
        return Err(format!("sequence {seq}: position {end} is beyond the context of {max_context}"));
    }
    if row.tokens.is_empty() && row.after() != After::Draw {
        return Err(format!("sequence {seq}: a row without tokens must draw"));
    }
    if row.after() == After::Draw && row.draw.is_none() {
        return Err(format!("sequence {seq}: a row that draws must have draw parameters"));
    }
    if !row.tokens.is_empty() && row.blocks.len() * block_size < end {
        return Err(format!("sequence {seq}: {} blocks do not cover {end} positions", row.blocks.len()));
    }
    match row.blocks.iter().find(|&&block| block as usize >= blocks) {
        Some(block) => Err(format!("sequence {seq}: no block {block}; the cache has {blocks} blocks")),
        None => Ok(()),
    }
}
