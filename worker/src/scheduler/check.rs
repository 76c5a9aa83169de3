//! Checks the scheduler's invariants, for tests and debug builds. It changes nothing.

use super::Scheduler;

impl Scheduler {
    /// Checks block tables, reference counts and caches; between rounds and before a step is executed.
    pub fn check(&self) -> Result<(), String> {
        let size = self.blocks.block_size();
        for (id, seq) in &self.seqs {
            let waits = self.waiting.contains(seq.caller, *id);
            if self.running.contains(id) == waits {
                return Err(format!("sequence {id} must be either running or waiting"));
            }
            if seq.computed > seq.table.len() * size || seq.registered * size > seq.computed {
                return Err(format!("sequence {id}: {} blocks do not hold {}", seq.table.len(), seq.computed));
            }
            if waits && !seq.table.is_empty() {
                return Err(format!("sequence {id} waits and holds blocks"));
            }
        }
        for planned in self.running_steps.iter().flat_map(|step| &step.rows) {
            let Some(seq) = self.seqs.get(&planned.seq).filter(|seq| seq.ahead.rows_of == planned.rows_of) else {
                continue;
            };
            let end = planned.end().div_ceil(size);
            let written = if planned.count == 0 { &[][..] } else { &seq.table[planned.start / size..end] };
            if let Some(block) = written.iter().find(|&&block| !self.blocks.writable(block)) {
                return Err(format!("sequence {} would write block {block}, which others may read", planned.seq));
            }
        }
        self.blocks.check(self.seqs.values().map(|seq| (&seq.table[..], seq.registered, &seq.tokens[..])))
    }
}
