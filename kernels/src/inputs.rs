//! What a step brings to a backend and what it gives: rows, draws and states, as plain data.

use crate::sample::{Logprob, SampleSpec};

/// The rows of one sequence in a step, and where its KV entries are.
#[derive(Debug, Clone, Copy)]
pub struct Span<'a> {
    /// First row of this sequence in the step's tensors.
    pub row: usize,
    /// Number of rows.
    pub len: usize,
    /// Position of the first row in its sequence.
    pub start: usize,
    /// Block table, covering positions 0..start + len.
    pub blocks: &'a [u32],
}

/// Where a span's recurrent state is read and left: cells of [`Backend::states`]. A cell that one span of a step reads
/// is written by no other.
#[derive(Debug, Clone, Copy)]
pub struct StateCells<'a> {
    /// The state before the span's first row. None: all zero, at position 0.
    pub from: Option<u32>,
    /// In the order of their rows; the last is the state after the span.
    pub saves: &'a [StateSave],
}

/// The state after this many rows of a span goes to a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateSave {
    pub rows: usize,
    pub cell: u32,
}

/// The inputs of a step.
#[derive(Debug, Clone, Default)]
pub struct StepInputs<'a> {
    /// Token ids of all rows.
    pub ids: Vec<u32>,
    /// Rows whose ids are what the step before drew for slots; only with
    /// [`Backend::KEEPS_DRAWN`](crate::Backend::KEEPS_DRAWN).
    pub awaits: Vec<AwaitedToken>,
    /// The sequences of these rows.
    pub spans: Vec<Span<'a>>,
    /// For each span, where its recurrent state is; empty if the model has none.
    pub cells: Vec<StateCells<'a>>,
    /// For each span, the slot of its low-rank adapter; empty if none has one.
    pub loras: Vec<Option<u32>>,
    pub draws: Vec<Draw<'a>>,
    pub stashes: Vec<Stash>,
    pub scores: Vec<Score>,
    /// Rows whose hidden states are wanted.
    pub states: Vec<usize>,
}

/// In the histories of penalties, stands for the token that the step before drew for the draw's slot; only with
/// [`Backend::KEEPS_DRAWN`](crate::Backend::KEEPS_DRAWN).
pub const AWAITED_TOKEN: u32 = u32::MAX;

/// A row whose token the device knows, and the host does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AwaitedToken {
    pub row: usize,
    pub slot: u32,
}

/// The largest steps that a server gives to a backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepBounds {
    pub rows: usize,
    /// Also the number of slots.
    pub sequences: usize,
    /// Of a sequence.
    pub positions: usize,
}

/// What dry steps are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DryRun {
    /// The memory of activations, before the KV cache is sized; the cache has one block.
    Memory,
    /// What can be recorded, with the KV cache.
    Recording,
}

/// A step that is computed before any sequence comes. Its tokens and blocks are all 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DryStep {
    /// So many sequences of `len` rows, from position 0 on,
    pub prompts: usize,
    pub len: usize,
    /// and so many of one row.
    pub singles: usize,
    /// Of each block table.
    pub blocks: usize,
    pub wants: DryWants,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DryWants {
    /// A draw of each sequence.
    Draws,
    /// A score of each row, with this many alternatives.
    Scores(usize),
    /// The logits of each sequence, in the slot with its number.
    Stashes,
    /// Draws from these slots; no rows.
    DrawsOfStashes,
    /// The hidden state of each sequence's last row.
    States,
}

impl DryStep {
    /// Where its sequences leave their recurrent states: those of prompts, and those of one row.
    pub fn saves(&self) -> [StateSave; 2] {
        [self.len, 1].map(|rows| StateSave { rows, cell: 0 })
    }

    /// `zeros`: at least as many as `blocks`. `saves`: as above, if the model has recurrent layers.
    pub fn inputs<'a>(&self, zeros: &'a [u32], saves: Option<&'a [StateSave; 2]>) -> StepInputs<'a> {
        let DryStep { prompts, len, singles, blocks, wants } = *self;
        let sequences = prompts + singles;
        let mut inputs = StepInputs::default();
        if wants != DryWants::DrawsOfStashes {
            let blocks = &zeros[..blocks];
            let lengths = std::iter::repeat_n(len, prompts).chain(std::iter::repeat_n(1, singles));
            for (i, len) in lengths.enumerate() {
                if let Some([of_prompt, of_single]) = saves {
                    let save = std::slice::from_ref(if i < prompts { of_prompt } else { of_single });
                    inputs.cells.push(StateCells { from: None, saves: save });
                }
                inputs.spans.push(Span { row: inputs.ids.len(), len, start: 0, blocks });
                inputs.ids.resize(inputs.ids.len() + len, 0);
            }
        }
        let ends: Vec<usize> = inputs.spans.iter().map(|span| span.row + span.len - 1).collect();
        let last = |sequence: usize| ends[sequence];
        let draw = |from| Draw { from, slot: None, sample: SampleSpec::default(), history: None, logprobs: None };
        match wants {
            DryWants::Draws => inputs.draws = (0..sequences).map(|i| draw(LogitsOf::Row(last(i)))).collect(),
            DryWants::DrawsOfStashes => inputs.draws = (0..sequences as u32).map(|i| draw(LogitsOf::Slot(i))).collect(),
            DryWants::Stashes => {
                inputs.stashes = (0..sequences).map(|i| Stash { row: last(i), slot: i as u32 }).collect();
            }
            DryWants::States => inputs.states = (0..sequences).map(last).collect(),
            DryWants::Scores(top) => {
                inputs.scores = (0..inputs.ids.len()).map(|row| Score { row, token: 0, top }).collect();
            }
        }
        inputs
    }
}

/// Samples a token.
#[derive(Debug, Clone)]
pub struct Draw<'a> {
    pub from: LogitsOf,
    /// The token is kept for a row of the next step that awaits it in this slot.
    pub slot: Option<u32>,
    pub sample: SampleSpec<'a>,
    /// Where the tokens that penalties read may be kept. None: none reads them, or not more than once.
    pub history: Option<KeptHistory>,
    /// Also the token's logprob, with this many alternatives.
    pub logprobs: Option<usize>,
}

/// The prompt and the generated tokens of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeptHistory {
    pub slot: u32,
    /// So many of them, the first, are those of the slot's draw before.
    pub kept: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogitsOf {
    /// A row of this step.
    Row(usize),
    /// A slot that an earlier step stashed to. The draw empties it.
    Slot(u32),
}

/// Keeps a row's logits in a slot for a later step. All draws of a step happen before its stashes.
#[derive(Debug, Clone, Copy)]
pub struct Stash {
    pub row: usize,
    pub slot: u32,
}

/// The logprob of `token` after a row, with `top` alternatives.
#[derive(Debug, Clone, Copy)]
pub struct Score {
    pub row: usize,
    pub token: u32,
    pub top: usize,
}

/// The results of a step, in the order of its draws, scores and states. Empty on all ranks except rank 0.
#[derive(Debug, Clone, Default)]
pub struct StepOutputs {
    /// None: mask and bans left no token.
    pub tokens: Vec<Option<SampledToken>>,
    pub scores: Vec<Logprob>,
    /// Results of the last layer, after the final norm.
    pub states: Vec<Vec<f32>>,
}

#[derive(Debug, Clone)]
pub struct SampledToken {
    pub id: u32,
    pub logprob: Option<Logprob>,
}
