//! Which steps are computed before the first sequence comes, so that those of sequences find memory and recorded steps.
//! It does not compute them.

use super::draw_plan::{TASK_WORDS, result_words};
use super::step::{FIRST_STRIDE, MOST_ALTERNATIVES, StepLimits, StepShape, bucket};
use crate::backend::{DryStep, DryWants, StepBounds};

/// Words for the bias, the banned tokens and the like of a draw.
const LIST_WORDS: usize = 16 << 10;

/// Steps that need the most memory of each kind. How much depends on rows and tables, not on positions, so positions
/// are the first: attention has little to read.
pub(super) fn largest_steps(bounds: &StepBounds, blocks: usize) -> Vec<DryStep> {
    let StepBounds { rows, sequences, positions } = *bounds;
    let sequences = sequences.max(1);
    let step = |rows: usize, singles: usize, wants| {
        let prompts = rows.div_ceil(positions.max(1)).min(sequences);
        DryStep { prompts, len: rows / prompts.max(1), singles, blocks, wants }
    };
    let decode = step(0, sequences, DryWants::Draws);
    vec![
        step(rows.min(sequences * positions), 0, DryWants::Scores(MOST_ALTERNATIVES)),
        step(rows.saturating_sub(sequences - 1).clamp(1, positions), sequences - 1, DryWants::Draws),
        decode,
        DryStep { wants: DryWants::Stashes, ..decode },
        DryStep { wants: DryWants::DrawsOfStashes, ..decode },
        // The memory that the step before asked for is made when the next one begins.
        step(0, 1, DryWants::Draws),
    ]
}

/// Every shape of a decode step, twice: it is recorded the second time.
pub(super) fn recorded_steps(sequences: usize, blocks: usize) -> Vec<DryStep> {
    let mut shapes: Vec<usize> = (1..=sequences).filter_map(bucket).collect();
    shapes.dedup();
    let strides = std::iter::successors(Some(FIRST_STRIDE), |stride| (*stride < blocks).then_some(2 * stride));
    let strides: Vec<usize> = strides.collect();
    let step = |singles, blocks| DryStep { prompts: 0, len: 0, singles, blocks, wants: DryWants::Draws };
    let all = shapes.iter().flat_map(|&rows| strides.iter().map(move |&stride| step(rows, stride)));
    all.flat_map(|step| [step, step]).collect()
}

/// The shapes of the largest prompt and of the largest decode step.
pub(super) fn largest_shapes(bounds: &StepBounds, blocks: usize, limits: StepLimits) -> [StepShape; 2] {
    let StepBounds { rows, sequences, .. } = *bounds;
    let rows = rows.max(sequences);
    let filled = bucket(sequences).unwrap_or(sequences);
    let shape = |rows, sequences, blocks, wanted: usize, decode| StepShape {
        rows,
        sequences,
        table_stride: limits.table_words(blocks),
        wanted,
        results: result_words(Some(MOST_ALTERNATIVES)) * wanted,
        // A checkpoint at the end of each block at most.
        saves: rows + 2 * sequences,
        loras: true,
        decode,
    };
    let stride = blocks.next_power_of_two().max(FIRST_STRIDE);
    [shape(rows, sequences, blocks, rows + sequences, false), shape(filled, filled, stride, filled, true)]
}

/// Words of the draws and scores of the largest steps, with masks and with the tokens that penalties read.
pub(super) fn draw_words(bounds: &StepBounds, vocabulary: usize) -> usize {
    let StepBounds { rows, sequences, positions } = *bounds;
    let tasks = (rows + sequences) * (TASK_WORDS + 4);
    tasks + sequences * (vocabulary.div_ceil(32) + positions + LIST_WORDS)
}
