//! Teacher forcing: the log probabilities of given tokens, to compare implementations. It does not know text.

use std::path::Path;

use rein_proto::internal::{After, Row, Step, TopLogprob};
use serde::Serialize;
use thiserror::Error;

use crate::checkpoint::LoadError;
use crate::executor::{Executor, ExecutorError, StepPlacement};
use crate::rank::{self, ModelOptions, RankGroup};

/// Alternatives per position.
const TOP: i32 = 5;
/// Tokens per forward pass.
const CHUNK: usize = 256;

/// The output of `rein score`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ScoreOutput {
    pub tokens: Vec<u32>,
    /// The natural logarithm of each token's probability given the tokens before it; null for the first.
    pub logprobs: Vec<Option<f32>>,
    /// For each token, the most likely tokens after it: `top[i]` and `logprobs[i + 1]` belong to the same distribution.
    pub top: Vec<Vec<Scored>>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Scored {
    pub id: u32,
    pub logprob: f32,
}

#[derive(Debug, Error)]
pub enum ScoreError {
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error(transparent)]
    Executor(#[from] ExecutorError),
    #[error("tokens: {0}")]
    Tokens(String),
}

/// Scores tokens with a checkpoint directory. The KV cache is sized for the tokens. Their number is limited by
/// `options.max_context`, or by the model's context.
pub fn score(dir: &Path, options: &ModelOptions, tokens: &[u32]) -> Result<ScoreOutput, ScoreError> {
    score_with_progress(dir, options, tokens, &mut |_, _| ())
}

/// As `score`; `progress` receives (bytes read, bytes to read) while the weights load.
pub fn score_with_progress(
    dir: &Path,
    options: &ModelOptions,
    tokens: &[u32],
    progress: &mut dyn FnMut(u64, u64),
) -> Result<ScoreOutput, ScoreError> {
    if tokens.is_empty() {
        return Err(ScoreError::Tokens("at least one token is required".into()));
    }
    let most = rank::max_context(dir, options)?;
    if tokens.len() > most {
        let limit = options.max_context.map_or("the model's max_position_embeddings", |_| "max_context");
        return Err(ScoreError::Tokens(format!("{} tokens; {limit} is {most}", tokens.len())));
    }
    let blocks = tokens.len().div_ceil(options.block_size.max(1));
    let options = ModelOptions { kv_blocks: Some(blocks), cuts_context: true, ..options.clone() };
    let mut group = RankGroup::load(dir, &options, progress)?;
    score_with(&mut group, tokens)
}

/// Scores tokens with a loaded executor.
pub fn score_with(executor: &mut dyn Executor, tokens: &[u32]) -> Result<ScoreOutput, ScoreError> {
    let shape = executor.shape();
    if tokens.len() > shape.max_context {
        return Err(ScoreError::Tokens(format!("{} tokens; the context is {}", tokens.len(), shape.max_context)));
    }
    if let Some((i, token)) = tokens.iter().enumerate().find(|&(_, &t)| t as usize >= shape.vocab_size) {
        let vocab = shape.vocab_size;
        return Err(ScoreError::Tokens(format!("tokens[{i}] must be below the vocabulary size {vocab}, got {token}")));
    }
    let mut output = ScoreOutput { tokens: tokens.to_vec(), logprobs: vec![None], top: Vec::new() };
    for (i, chunk) in tokens.chunks(CHUNK).enumerate() {
        let start = i * CHUNK;
        let end = start + chunk.len();
        let kept = start.div_ceil(shape.block_size) as u32;
        let row = shape.forward_only(Row {
            slot: 0,
            tokens: chunk.to_vec(),
            start: start as u32,
            kept_blocks: kept,
            blocks: (kept..end.div_ceil(shape.block_size) as u32).collect(),
            after: After::Nothing.into(),
            draws: Vec::new(),
            score: TOP,
            // The token after the last one is arbitrary: only its alternatives are used.
            next: Some(tokens.get(end).copied().unwrap_or(0)),
            ..Row::default()
        });
        let StepPlacement { epoch, layout } = executor.placed();
        let step = Step { epoch, layout, id: i as u64, rows: vec![row], ..Step::default() };
        for result in executor.execute(step)?.rows {
            for score in result.scores {
                output.logprobs.push(score.logprob);
                output
                    .top
                    .push(score.top.into_iter().map(|TopLogprob { id, logprob }| Scored { id, logprob }).collect());
            }
        }
    }
    output.logprobs.truncate(tokens.len());
    Ok(output)
}
