//! The block table of each slot, and the history that its penalties read. A step carries only changes, so what executes
//! steps keeps them. It does not know which blocks are free.

use rein_kernels::AWAITED_TOKEN;
use rein_proto::internal::{Draw, Row, Step};

use crate::seq::penalizes;

/// A list for each slot.
#[derive(Debug, Default)]
struct SlotLists(Vec<Vec<u32>>);

impl SlotLists {
    /// Empties the lists of the slots that the step drops.
    fn forget(&mut self, step: &Step) {
        for &slot in &step.dropped {
            if let Some(list) = self.0.get_mut(slot as usize) {
                list.clear();
            }
        }
    }

    /// Keeps the first `kept` entries and adds `fresh`. Err: it has fewer, this many.
    fn change(&mut self, slot: u32, kept: usize, fresh: &[u32]) -> Result<&mut Vec<u32>, usize> {
        let slot = slot as usize;
        if slot >= self.0.len() {
            self.0.resize_with(slot + 1, Vec::new);
        }
        let list = &mut self.0[slot];
        if kept > list.len() {
            return Err(list.len());
        }
        list.truncate(kept);
        list.extend_from_slice(fresh);
        Ok(list)
    }

    fn of(&self, slot: u32) -> &[u32] {
        self.0.get(slot as usize).map_or(&[], Vec::as_slice)
    }
}

#[derive(Debug, Default)]
pub struct BlockTables(SlotLists);

impl BlockTables {
    /// Forgets the tables of the slots that the step drops, then applies the changes of its rows.
    pub fn apply(&mut self, step: &Step) -> Result<(), String> {
        self.0.forget(step);
        for row in step.rows.iter().filter(|row| !row.tokens.is_empty()) {
            let kept = row.kept_blocks as usize;
            let changed = self.0.change(row.slot, kept, &row.blocks);
            changed.map_err(|held| keeps_too_many(row.slot, kept, held))?;
        }
        Ok(())
    }

    /// Empty if the slot holds nothing.
    pub fn of(&self, slot: u32) -> &[u32] {
        self.0.of(slot)
    }

    #[cfg(test)]
    pub fn taken(&self) -> std::collections::BTreeSet<u32> {
        (0..self.0.0.len() as u32).filter(|slot| !self.of(*slot).is_empty()).collect()
    }
}

/// The tokens of each slot that draws with penalties.
#[derive(Debug, Default)]
pub struct Histories(SlotLists);

impl Histories {
    /// Forgets the histories of the slots that the step drops, then applies the changes of its draws.
    pub fn apply(&mut self, step: &Step) -> Result<(), String> {
        self.0.forget(step);
        let penalized = |draw: &&Draw| draw.sampling.as_ref().is_some_and(penalizes);
        for (row, draw) in step.rows.iter().filter_map(|row| Some((row, row.draws.first().filter(penalized)?))) {
            let (slot, kept) = (row.slot, draw.kept_history as usize);
            let changed = self.0.change(slot, kept, &draw.history);
            let history =
                changed.map_err(|held| format!("slot {slot}: the draw keeps {kept} tokens of a history of {held}"))?;
            history.extend_from_slice(drafts(row));
        }
        Ok(())
    }

    /// A token that a draw awaits is known now.
    pub fn learn(&mut self, slot: u32, token: u32) {
        if let Some(last) = self.0.0.get_mut(slot as usize).and_then(|history| history.last_mut())
            && *last == AWAITED_TOKEN
        {
            *last = token;
        }
    }

    /// Prompt and generated tokens, of which `prompt` are the prompt's, before the draw that `later` ones follow.
    pub fn of(&self, slot: u32, prompt: usize, later: usize) -> (&[u32], &[u32]) {
        let history = self.0.of(slot);
        let history = &history[..history.len().saturating_sub(later)];
        history.split_at(prompt.min(history.len()))
    }
}

/// The draft tokens of a row: those behind its first draw.
pub fn drafts(row: &Row) -> &[u32] {
    let later = row.draws.len().saturating_sub(1);
    &row.tokens[row.tokens.len().saturating_sub(later)..]
}

/// The error of a row that builds on a table that is not there.
pub fn keeps_too_many(slot: u32, kept: usize, held: usize) -> String {
    format!("slot {slot}: the row keeps {kept} blocks, but its table has {held}")
}
