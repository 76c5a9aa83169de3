//! An executor that keeps, in each KV slot, the token whose entry was written there and a hash of its whole past. A
//! wrong block table, a write to a shared block or a stale entry then shows as a wrong history.

use std::collections::{BTreeSet, HashMap};

use rein_proto::internal::{Draw, Drawn, Row};
use rein_proto::splitmix::mix_both;

use super::*;
use crate::seq::penalizes;
use crate::tables::{BlockTables, Histories};

pub const VOCAB: u32 = 29;
/// More than any scheduler of these tests takes.
const CELL_SLOTS: usize = 16;

fn hash_all(tokens: &[u32]) -> u64 {
    tokens.iter().fold(7, |state, &token| mix_both(state, token.into()))
}

/// What the entries of `tokens` hold: with another LoRA adapter they are others.
fn entry(row: &Row, tokens: &[u32]) -> u64 {
    mix_both(hash_all(tokens), row.lora.map_or(0, |slot| u64::from(slot) + 1))
}

/// Tokens after which this model likes to repeat itself, so that some drafts are right.
const PERIOD: usize = 4;

/// The token that this model draws: a pure function of history, position, seed, mask and bans.
pub fn draw(history: &[u32], position: u32, seed: u64, mask: Option<&[u8]>, banned: &[u32]) -> Option<u32> {
    let state = mix_both(mix_both(hash_all(history), seed), u64::from(position) * 2 + u64::from(mask.is_some()));
    let repeated = history.len().checked_sub(PERIOD).filter(|_| state >> 32 & 7 > 0).map(|at| history[at]);
    let first = repeated.unwrap_or((state % u64::from(VOCAB)) as u32);
    (first..VOCAB).chain(0..first).find(|&token| {
        !banned.contains(&token) && mask.is_none_or(|mask| mask[token as usize / 8] >> (token % 8) & 1 == 1)
    })
}

pub fn score(history: &[u32], next: u32) -> f32 {
    -((mix_both(hash_all(history), next.into()) % 1000) as f32) / 100.0
}

/// What a slot was filled for: position, token, hash of all tokens up to it and of the adapter.
type Entry = Option<(usize, u32, u64)>;

/// A model that stores in its KV slots what a real one would fold into keys and values.
pub struct Ledger {
    block_size: usize,
    pub tables: BlockTables,
    kept: Histories,
    slots: Vec<Entry>,
    /// Per place of the host tier.
    host: HashMap<u32, (u64, Vec<Entry>)>,
    damaged: BTreeSet<u32>,
    stashed: HashMap<u32, Vec<u32>>,
    /// Per cell of a recurrent state, the adapter and the tokens that it stands for.
    cells: Vec<Option<(Option<u32>, Vec<u32>)>>,
    states: bool,
    /// Per row of the last step, the history it attended to.
    pub histories: Vec<Vec<u32>>,
}

impl Ledger {
    pub fn new(shape: &ExecutorShape) -> Self {
        Self {
            block_size: shape.block_size,
            tables: BlockTables::default(),
            kept: Histories::default(),
            slots: vec![None; shape.blocks * shape.block_size],
            host: HashMap::new(),
            damaged: BTreeSet::new(),
            stashed: HashMap::new(),
            cells: vec![None; shape.states.map_or(0, |states| states.cells(CELL_SLOTS))],
            states: shape.states.is_some(),
            histories: Vec::new(),
        }
    }

    fn slot(&self, row: &Row, position: usize) -> usize {
        self.tables.of(row.slot)[position / self.block_size] as usize * self.block_size + position % self.block_size
    }

    /// The tokens that attention at `end - 1` sees.
    fn attend(&self, row: &Row, end: usize) -> Vec<u32> {
        let mut past = Vec::with_capacity(end);
        for position in 0..end {
            let slot = self.slots[self.slot(row, position)];
            let (at, token, hashed) = slot.unwrap_or_else(|| panic!("row {row:?} reads an empty slot"));
            past.push(token);
            let own = (position, entry(row, &past));
            assert_eq!((at, hashed), own, "row {row:?} attends to another sequence's entries");
        }
        past
    }

    /// The recurrent state of each row is that of its own past, and no row takes a cell from another.
    fn recur(&mut self, step: &Step) {
        let mut written = BTreeSet::new();
        let before = self.cells.clone();
        for (row, history) in step.rows.iter().zip(&self.histories).filter(|(row, _)| !row.tokens.is_empty()) {
            let start = row.start as usize;
            match row.state {
                None => assert_eq!(start, 0, "row {row:?} begins without a state"),
                Some(cell) => {
                    let own = (row.lora, history[..start].to_vec());
                    assert_eq!(before[cell as usize], Some(own), "row {row:?} begins with the state of others");
                    let taken =
                        |other: &&Row| other.slot != row.slot && other.saves.iter().any(|save| save.cell == cell);
                    assert_eq!(step.rows.iter().find(taken), None, "its state is overwritten");
                }
            }
            for save in &row.saves {
                assert!(written.insert(save.cell), "cell {} is written twice", save.cell);
                self.cells[save.cell as usize] = Some((row.lora, history[..start + save.tokens as usize].to_vec()));
            }
            assert_eq!(row.saves.last().map(|save| save.tokens as usize), Some(row.tokens.len()));
        }
    }

    /// The places that are damaged.
    fn copy_blocks(&mut self, step: &Step) -> Vec<u32> {
        let of = |block: u32| block as usize * self.block_size..(block as usize + 1) * self.block_size;
        for save in &step.saves {
            assert!(self.slots[of(save.block)].iter().all(Option::is_some), "an empty block is kept");
            self.host.insert(save.place, (save.content, self.slots[of(save.block)].to_vec()));
            self.damaged.remove(&save.place);
        }
        let mut lost = Vec::new();
        for load in &step.loads {
            let (content, slots) = &self.host[&load.place];
            assert_eq!(*content, load.content, "a place holds something else");
            match self.damaged.contains(&load.place) {
                true => lost.push(load.place),
                false => self.slots[of(load.block)].copy_from_slice(slots),
            }
        }
        lost
    }

    /// A place holds nothing of use any more.
    pub fn damage(&mut self, place: u32) {
        self.damaged.insert(place);
    }

    pub fn execute(&mut self, step: &Step) -> StepResult {
        self.histories.clear();
        for slot in &step.dropped {
            assert!(!self.tables.of(*slot).is_empty(), "dropped a slot that holds nothing");
            self.stashed.remove(slot);
        }
        let lost_places = self.copy_blocks(step);
        self.tables.apply(step).expect("tables that are there");
        self.kept.apply(step).expect("histories that are there");
        let mut rows = Vec::new();
        for row in &step.rows {
            let (start, mut scores) = (row.start as usize, Vec::new());
            let stashed = self.stashed.remove(&row.slot);
            let mut history = match row.tokens.is_empty() {
                false => self.attend(row, start),
                true => stashed.expect("draws from a stash that is not there"),
            };
            let covered = self.tables.of(row.slot).len();
            assert!(row.tokens.is_empty() || covered == (start + row.tokens.len()).div_ceil(self.block_size));
            for (index, &token) in row.tokens.iter().enumerate() {
                history.push(token);
                let slot = self.slot(row, start + index);
                self.slots[slot] = Some((start + index, token, entry(row, &history)));
                if row.score >= 0
                    && let Some(next) = row.tokens.get(index + 1).copied().or(row.next)
                {
                    scores.push(TokenLogprob { id: next, logprob: Some(score(&history, next)), rank: 0, top: vec![] });
                }
            }
            if row.after() == After::Stash {
                self.stashed.insert(row.slot, history.clone());
            }
            let mut result = RowResult { slot: row.slot, scores, ..RowResult::default() };
            for (i, Draw { position, mask, banned, sampling, prompt_length, .. }) in row.draws.iter().enumerate() {
                let later = row.draws.len() - 1 - i;
                let history = &history[..history.len() - later];
                if sampling.as_ref().is_some_and(penalizes) {
                    let (prompt, generated) = self.kept.of(row.slot, *prompt_length as usize, later);
                    assert_eq!(generated.len(), *position as usize, "generated tokens that penalties read");
                    assert_eq!([prompt, generated].concat(), history, "the history that penalties read");
                }
                let seed = sampling.as_ref().map_or(0, |sampling| sampling.seed);
                let token = draw(history, *position, seed, mask.as_deref(), banned);
                result.drawn.push(Drawn { token, logprob: None });
            }
            if !row.draws.is_empty() || row.score >= 0 {
                rows.push(result);
            }
            self.histories.push(history);
        }
        if self.states {
            self.recur(step);
        }
        StepResult { id: step.id, rows, lost_places }
    }
}
