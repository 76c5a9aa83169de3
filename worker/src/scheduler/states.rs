//! Chooses the cells of the recurrent states that a step reads and leaves.

use rein_proto::internal::StateSave;

use super::Scheduler;
use super::planned::Planned;
use crate::seq::StateAt;

impl Scheduler {
    /// The sequences have slots. All that the step reads is known before a cell is taken for what it writes.
    pub(super) fn place_states(&mut self, planned: &mut [Planned]) {
        let Some(shape) = self.states else { return };
        let mut read = Vec::new();
        for row in planned.iter_mut().filter(|row| row.count > 0) {
            let Some(seq) = self.seqs.get(&row.seq) else { continue };
            row.state = match seq.state_at(row.start, &self.blocks) {
                Some(StateAt::Recent(at)) => Some(shape.recent(row.slot) + at as u32),
                Some(StateAt::After(block)) => {
                    self.blocks.touch_checkpoint(block);
                    self.blocks.cell(block)
                }
                Some(StateAt::Begin) => None,
                None => {
                    debug_assert!(false, "sequence {} begins at {} without a state", row.seq, row.start);
                    None
                }
            };
            read.extend(row.state);
        }
        for row in planned.iter_mut().filter(|row| row.count > 0) {
            let Some(seq) = self.seqs.get_mut(&row.seq) else { continue };
            let (end, drafted) = (row.start + row.count, row.end());
            for position in seq.checkpoints(row.start, end, &self.blocks) {
                let Some(cell) = self.blocks.take_cell(|cell| read.contains(&cell)) else { break };
                row.saves.push(StateSave { tokens: (position - row.start) as u32, cell });
            }
            row.checkpoints = row.saves.len();
            // Drafts may come to nothing, so the state before them is kept too.
            for end in [end].into_iter().chain((drafted > end).then_some(drafted)) {
                let cell = shape.recent(row.slot) + seq.states.leave(row.start, end) as u32;
                row.saves.push(StateSave { tokens: (end - row.start) as u32, cell });
            }
        }
    }

    /// The checkpoints of a row that is void.
    pub(super) fn return_cells(&mut self, planned: &Planned) {
        planned.checkpoints().for_each(|(_, cell)| self.blocks.return_cell(cell));
    }
}
