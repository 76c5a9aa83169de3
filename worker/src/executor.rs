//! What executes a step: the model over its ranks, or the simulator.

use rein_proto::internal::{Step, StepResult};

/// What the scheduler must know about an executor. Fixed for its life.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecutorShape {
    /// Name shown to clients.
    pub model: String,
    /// Token ids are 0..vocab_size; masks have one bit for each.
    pub vocab_size: usize,
    /// Longest prompt + generated, in tokens.
    pub max_context: usize,
    /// KV blocks. Block ids are 0..blocks.
    pub blocks: usize,
    /// Tokens per KV block.
    pub block_size: usize,
    /// "cpu" or "sim".
    pub kind: &'static str,
    /// Tensor parallel ranks.
    pub ranks: usize,
}

/// Executes steps one after the other. It decides nothing: which rows run, and where their KV entries lie, is in the step.
///
/// For each row, in order of the step:
/// - `step.dropped` comes first: stashed logits of these sequences are forgotten (unknown ids are no error).
/// - `tokens` at positions `start..` are computed and their KV entries written to the blocks of the table; only blocks
///   that hold these positions are written. All earlier positions are read.
/// - `AFTER_STASH` keeps the logits of the last token until a row of this sequence draws from them or they are dropped.
/// - `AFTER_DRAW` samples from the logits of the last token or, when `tokens` is empty, from the stash, which that uses up.
///
/// The result has one entry per row that drew or scored, in the order of the step. A draw is a pure function of the
/// logits and `Draw`; `empty_mask` says that bans and mask left no token.
pub trait Executor: Send {
    fn shape(&self) -> ExecutorShape;
    /// Of the placement it executes for. The engine stamps steps with it.
    fn epoch(&self) -> u64 {
        1
    }
    fn execute(&mut self, step: &Step) -> Result<StepResult, ExecutorError>;
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExecutorError {
    /// This step failed; the sequences in it end, and later steps of others may succeed.
    #[error("the step failed: {0}")]
    Step(String),
    /// The executor cannot execute another step.
    #[error("the executor is lost: {0}")]
    Lost(String),
}
