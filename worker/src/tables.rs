//! The block table of each slot. A step carries only changes of tables, so what executes steps keeps the tables. It
//! does not know which blocks are free.

use rein_proto::internal::Step;

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

/// The error of a row that builds on a table that is not there.
pub fn keeps_too_many(slot: u32, kept: usize, held: usize) -> String {
    format!("slot {slot}: the row keeps {kept} blocks, but its table has {held}")
}
