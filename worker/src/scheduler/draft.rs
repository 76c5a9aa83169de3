//! Adds draft tokens to steps that only decode, so that a step may draw several tokens of a sequence.

use rein_proto::internal::After;

use super::Scheduler;
use super::planned::Planned;
use crate::seq::StepCost;

impl Scheduler {
    /// `budget`: tokens that the step may still have. Rows of sequences that are steered, or of which something is
    /// under way, get none. A step draws at most as many tokens as sequences may run, for which devices have room.
    pub(super) fn draft(&mut self, budget: usize) {
        let decodes = |row: &Planned| row.after == After::Draw && row.count == 1;
        if self.options.draft_tokens == 0 || !self.planned.iter().all(decodes) {
            return;
        }
        let draws = self.options.max_sequences - self.planned.len();
        let mut left = self.options.draft_tokens.min(budget).min(draws);
        let sequences = self.planned.len();
        let mut rows = sequences;
        for (at, row) in self.planned.iter_mut().enumerate() {
            let share = left.div_ceil(sequences - at);
            let Some(seq) = self.seqs.get_mut(&row.seq) else { continue };
            if !seq.ahead.is_none() || seq.is_steered() {
                continue;
            }
            // The last draw is behind the last draft.
            let room = seq.max_tokens().saturating_sub(seq.generated() + 1);
            let room = room.min(self.context.saturating_sub(seq.tokens.len() + 1));
            let drafts = seq.lookup.drafts(StepCost { fixed: self.step_cost, rows, sequences });
            let mut count = drafts.len().min(share).min(room);
            let size = self.blocks.block_size();
            while seq.table.len() * size < row.start + row.count + count {
                match self.blocks.allocate(seq.table.len()) {
                    Some(block) => seq.table.push(block),
                    None => count = seq.table.len() * size - row.start - row.count,
                }
            }
            row.drafts.extend_from_slice(&drafts[..count]);
            left -= count;
            rows += count;
        }
    }
}
