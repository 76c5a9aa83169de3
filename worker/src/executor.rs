//! The interface to what executes steps: the model over its ranks, or the simulator. It does not know sequences beyond
//! the rows of a step.

use std::sync::Arc;

use rein_kernels::collective::AbortWatch;
use rein_proto::internal::{Draw, Row, StateSave, Step, StepResult};

use crate::blocks::HostShape;
use crate::cells::StateShape;
use crate::lora::LoraSource;
use crate::seq::penalizes;

/// Properties of an executor that the scheduler needs. Constant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecutorShape {
    /// The model's name for clients.
    pub model: String,
    /// Token ids are 0..vocab_size; masks have one bit for each.
    pub vocab_size: usize,
    /// Limit of prompt and generated tokens together.
    pub max_context: usize,
    /// KV blocks. Block ids are 0..blocks.
    pub blocks: usize,
    /// Tokens per KV block.
    pub block_size: usize,
    /// "cpu", "cuda" or "sim".
    pub kind: &'static str,
    /// Tensor parallel ranks.
    pub ranks: usize,
    /// Numbers of a hidden state.
    pub hidden_size: usize,
    /// Whether the next step is prepared while one runs. It costs a row for each sequence that ends, which is worth it
    /// where the device would wait for the host.
    pub runs_ahead: bool,
    /// What a step costs beyond its rows, in rows: drafts are worth as much.
    pub step_cost: usize,
    /// None: the model has no recurrent layers.
    pub states: Option<StateShape>,
    /// LoRA adapters at the same time.
    pub lora_slots: usize,
    /// Where KV blocks can be kept outside of the cache.
    pub host: HostShape,
    /// Ranks over which the positions of the KV cache are split; 1: they are not. Block b is on rank b % `kv_ranks`,
    /// and tables have blocks of each rank in turn.
    pub kv_ranks: usize,
}

impl ExecutorShape {
    /// The row of a caller that never goes back within a slot: its recurrent state stays in one cell. It may begin from
    /// that of another slot.
    pub fn forward_only(&self, mut row: Row) -> Row {
        if let Some(states) = self.states.filter(|_| !row.tokens.is_empty()) {
            let cell = states.recent(row.slot);
            row.state = row.state.or((row.start > 0).then_some(cell));
            row.saves = vec![StateSave { tokens: row.tokens.len() as u32, cell }];
        }
        row
    }
}

/// Executes steps one after the other. It decides nothing: the step says which rows run and where their KV entries are.
///
/// For each row, in the order of the step:
/// - Before all rows, the parts of LoRA adapters in `step.loras` are applied in their order.
/// - Before all rows, the blocks of `step.saves` are copied to their places in the host tier, in their order, then
///   those of `step.loads` from theirs. A place that does not hold the content of a load, whole, is in `lost_places` of
///   the result.
/// - First, block tables and stashed logits of the slots in `step.dropped` are forgotten. Empty slots are no error.
/// - `kept_blocks` and `blocks` change the slot's table, which the executor keeps.
/// - `tokens` at positions `start..` are computed and their KV entries written to the blocks of the table. Only blocks
///   that hold these positions are written. All earlier positions are read. Stashed logits of the slot are forgotten.
/// - Recurrent layers begin with the state in the cell `state`, and leave it in the cells of `saves`. Cells are read
///   before any is written.
/// - `AFTER_STASH` keeps the logits of the last token until a row of this slot draws from them or replaces them, or
///   they are dropped.
/// - `AFTER_DRAW` samples from the logits of the last tokens, one for each draw. If `tokens` is empty, it uses up the
///   stash instead.
/// - `AFTER_EMBED` returns the hidden state of the last token.
///
/// The result has one entry per row that drew, scored or embedded, in the order of the step. A draw is a pure function
/// of the logits and `Draw`, with the tokens before it in its row; without a token, bans and mask left none.
pub trait Executor: Send {
    fn shape(&self) -> ExecutorShape;
    /// Where the next step is executed. The scheduler puts it into the step.
    fn placed(&self) -> StepPlacement {
        StepPlacement::default()
    }
    /// Tells other threads that it is lost, also while it executes a step that may not end. None: only `execute` says
    /// so.
    fn end_watch(&self) -> Option<AbortWatch> {
        None
    }
    /// Reads LoRA adapters for it. None: it takes none.
    fn lora_source(&self) -> Option<Arc<dyn LoraSource>> {
        None
    }
    /// Begins a step, after those that were submitted before. All but one of them must have been waited for.
    fn submit(&mut self, step: Step) -> Result<(), ExecutorError>;
    /// Waits for the result of the oldest step that was not waited for.
    fn wait(&mut self) -> Result<StepResult, ExecutorError>;

    fn execute(&mut self, step: Step) -> Result<StepResult, ExecutorError> {
        self.submit(step)?;
        self.wait()
    }
}

/// The tokens that a step drew, by slot, for the rows of the next step that await them.
#[derive(Debug, Default)]
pub struct DrawnTokens(Vec<Option<u32>>);

impl DrawnTokens {
    pub fn of(result: &StepResult) -> Self {
        let slots = result.rows.iter().map(|row| row.slot as usize + 1).max().unwrap_or(0);
        let mut tokens = vec![None; slots];
        result.rows.iter().for_each(|row| tokens[row.slot as usize] = row.token());
        Self(tokens)
    }

    /// A row whose token was not drawn keeps what it has: its sequence has ended.
    pub fn fill_in(&self, step: &mut Step) {
        for row in step.rows.iter_mut().filter(|row| row.awaits_token) {
            let Some(&Some(token)) = self.0.get(row.slot as usize) else { continue };
            row.tokens.fill(token);
            add_to_history(row, token);
        }
    }
}

/// A token that a row computes is also one that its penalties read.
pub fn add_to_history(row: &mut Row, token: u32) {
    let penalized = |draw: &&mut Draw| draw.sampling.as_ref().is_some_and(penalizes);
    if let Some(draw) = row.draws.first_mut().filter(penalized) {
        draw.history.push(token);
    }
}

/// The epoch of the placement and the expert layout within it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepPlacement {
    pub epoch: u64,
    pub layout: u64,
}

impl Default for StepPlacement {
    fn default() -> Self {
        StepPlacement { epoch: 1, layout: 0 }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExecutorError {
    /// This step failed: its sequences end. Later steps may succeed.
    #[error("the step failed: {0}")]
    Step(String),
    /// The executor can no longer execute.
    #[error("the executor is lost: {0}")]
    Lost(String),
}
