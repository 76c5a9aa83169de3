//! The block table of each slot, and the history that its penalties read. A step carries only changes, so what executes
//! steps keeps them. It does not know which blocks are free.

use rein_proto::internal::{Draw, Step};

use crate::seq::penalizes;

#[derive(Debug, Default)]
pub struct BlockTables(Vec<Vec<u32>>);

impl BlockTables {
    /// Forgets the tables of the slots that the step drops, then applies the changes of its rows.
    pub fn apply(&mut self, step: &Step) -> Result<(), String> {
        for &slot in &step.dropped {
            if let Some(table) = self.0.get_mut(slot as usize) {
                table.clear();
            }
        }
        for row in step.rows.iter().filter(|row| !row.tokens.is_empty()) {
            let (slot, kept) = (row.slot as usize, row.kept_blocks as usize);
            if slot >= self.0.len() {
                self.0.resize_with(slot + 1, Vec::new);
            }
            let table = &mut self.0[slot];
            if kept > table.len() {
                return Err(keeps_too_many(row.slot, kept, table.len()));
            }
            table.truncate(kept);
            table.extend_from_slice(&row.blocks);
        }
        Ok(())
    }

    /// Empty if the slot holds nothing.
    pub fn of(&self, slot: u32) -> &[u32] {
        self.0.get(slot as usize).map_or(&[], Vec::as_slice)
    }

    #[cfg(test)]
    pub fn taken(&self) -> std::collections::BTreeSet<u32> {
        (0..self.0.len() as u32).filter(|slot| !self.of(*slot).is_empty()).collect()
    }
}

/// The tokens of each slot that draws with penalties.
#[derive(Debug, Default)]
pub struct Histories(Vec<Vec<u32>>);

impl Histories {
    /// Forgets the histories of the slots that the step drops, then applies the changes of its draws.
    pub fn apply(&mut self, step: &Step) -> Result<(), String> {
        for &slot in &step.dropped {
            if let Some(history) = self.0.get_mut(slot as usize) {
                history.clear();
            }
        }
        let penalized = |draw: &&Draw| draw.sampling.as_ref().is_some_and(penalizes);
        for (row, draw) in step.rows.iter().filter_map(|row| Some((row, row.draw.as_ref().filter(penalized)?))) {
            let (slot, kept) = (row.slot as usize, draw.kept_history as usize);
            if slot >= self.0.len() {
                self.0.resize_with(slot + 1, Vec::new);
            }
            let history = &mut self.0[slot];
            if kept > history.len() {
                let held = history.len();
                return Err(format!("slot {slot}: the draw keeps {kept} tokens of a history of {held}"));
            }
            history.truncate(kept);
            history.extend_from_slice(&draw.history);
        }
        Ok(())
    }

    /// Prompt and generated tokens, of which `prompt` are the prompt's.
    pub fn of(&self, slot: u32, prompt: usize) -> (&[u32], &[u32]) {
        let history = self.0.get(slot as usize).map_or(&[][..], Vec::as_slice);
        history.split_at(prompt.min(history.len()))
    }
}

/// The error of a row that builds on a table that is not there.
pub fn keeps_too_many(slot: u32, kept: usize, held: usize) -> String {
    format!("slot {slot}: the row keeps {kept} blocks, but its table has {held}")
}
