//! The block table of each sequence. A step carries only changes of tables, so what executes steps keeps the tables. It
//! does not know which blocks are free.

use std::collections::HashMap;

use rein_proto::internal::Step;

#[derive(Debug, Default)]
pub struct BlockTables {
    of: HashMap<u64, Vec<u32>>,
}

impl BlockTables {
    /// Forgets the tables of the sequences that the step drops, then applies the changes of its rows.
    pub fn apply(&mut self, step: &Step) -> Result<(), String> {
        for seq in &step.dropped {
            self.of.remove(seq);
        }
        for row in step.rows.iter().filter(|row| !row.tokens.is_empty()) {
            let (table, kept) = (self.of.entry(row.seq).or_default(), row.kept_blocks as usize);
            if kept > table.len() {
                return Err(keeps_too_many(row.seq, kept, table.len()));
            }
            table.truncate(kept);
            table.extend_from_slice(&row.blocks);
        }
        Ok(())
    }

    /// Empty if nothing is known of the sequence.
    pub fn of(&self, seq: u64) -> &[u32] {
        self.of.get(&seq).map_or(&[], Vec::as_slice)
    }

    #[cfg(test)]
    pub fn sequences(&self) -> std::collections::BTreeSet<u64> {
        self.of.keys().copied().collect()
    }
}

/// The error of a row that builds on a table that is not there.
pub fn keeps_too_many(seq: u64, kept: usize, held: usize) -> String {
    format!("sequence {seq}: the row keeps {kept} blocks, but its table has {held}")
}
