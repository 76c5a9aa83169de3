//! The inputs of a step as the device gets them: one block of 32-bit words. It does not know models or devices.

use super::draw_plan::result_words;
use crate::backend::{Draw, KvSplit, LogitsOf, Span, StepInputs};
use crate::error::{KernelError, Result};
use crate::kv_split::{LANES, TILE};

/// Marks rows of no sequence, and places that are not written.
pub(super) const NONE: u32 = u32::MAX;
/// Larger decode steps are not recorded.
const LARGEST_BUCKET: usize = 512;
/// Results that decode steps have room for, for each row: its logprob with as many alternatives as clients may ask for.
pub(super) const MOST_ALTERNATIVES: usize = 20;
/// Places to which a row of a decode step may leave its state: a checkpoint, and the state after it.
const DECODE_SAVES: usize = 2;
/// The least stride of block tables.
pub(super) const FIRST_STRIDE: usize = 8;

/// The number of rows that a decode step is filled up to; None: it is not.
pub(super) fn bucket(rows: usize) -> Option<usize> {
    let bucket = if rows <= 16 { rows.next_power_of_two() } else { rows.next_multiple_of(16) };
    (rows > 0 && bucket <= LARGEST_BUCKET).then_some(bucket)
}

/// What the kernels of a step depend on. Steps of one shape launch the same kernels with the same arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct StepShape {
    /// With those that fill up the bucket.
    pub rows: usize,
    pub sequences: usize,
    /// Blocks of a sequence in the tables: those of this rank.
    pub table_stride: usize,
    /// Rows whose logits or hidden states are wanted; a row may be there twice.
    pub wanted: usize,
    /// Words for the results of draws and scores.
    pub results: usize,
    /// Room for places to which recurrent states go; 0: the model has none.
    pub saves: usize,
    /// Some sequence has a low-rank adapter.
    pub loras: bool,
    /// Every sequence has one row: such steps repeat, and are recorded.
    pub decode: bool,
}

/// The rows that are wanted: of scores, draws and stashes for their logits, then of hidden states.
fn wanted<'a>(rows: &'a StepInputs) -> impl Iterator<Item = usize> + 'a {
    let of_draw = |draw: &Draw| match draw.from {
        LogitsOf::Row(row) => Some(row),
        LogitsOf::Slot(_) => None,
    };
    let scores = rows.scores.iter().map(|score| score.row);
    let of_logits = scores.chain(rows.draws.iter().filter_map(of_draw));
    of_logits.chain(rows.stashes.iter().map(|stash| stash.row)).chain(rows.states.iter().copied())
}

/// If every row draws, a span of several rows becomes as many of one row: the kernels of decode steps compute them, and
/// such a step is recorded. Rows see what other rows of the step leave in the KV cache, but not in a recurrent state.
pub(super) fn take_apart(rows: &mut StepInputs) {
    let drawn = rows.draws.iter().filter(|draw| matches!(draw.from, LogitsOf::Row(_))).count();
    if drawn < rows.ids.len() || !rows.cells.is_empty() || rows.spans.len() == rows.ids.len() {
        return;
    }
    if !rows.loras.is_empty() {
        let of_rows = rows.spans.iter().zip(&rows.loras).flat_map(|(span, lora)| std::iter::repeat_n(*lora, span.len));
        rows.loras = of_rows.collect();
    }
    let apart = rows.spans.iter().flat_map(|&Span { row, len, start, blocks }| {
        (0..len).map(move |i| Span { row: row + i, len: 1, start: start + i, blocks })
    });
    rows.spans = apart.collect();
}

impl StepShape {
    pub fn of(rows: &StepInputs, limits: StepLimits) -> StepShape {
        let longest = rows.spans.iter().map(|span| span.blocks.len()).max().unwrap_or(0);
        let wanted = wanted(rows).count();
        let decode = rows.spans.len() == rows.ids.len()
            && rows.spans.iter().all(|span| span.len == 1)
            && rows.scores.is_empty()
            && rows.states.is_empty()
            && (1..=rows.ids.len()).contains(&wanted)
            && rows.draws.len() <= rows.ids.len()
            && rows.draws.iter().all(|draw| draw.logprobs.is_none_or(|top| top <= MOST_ALTERNATIVES));
        let saves = rows.cells.iter().map(|cells| cells.saves.len()).sum::<usize>();
        let decode = decode && rows.cells.iter().all(|cells| cells.saves.len() <= DECODE_SAVES);
        let loras = rows.loras.iter().any(Option::is_some);
        let drawn = rows.draws.iter().map(|draw| result_words(draw.logprobs)).sum::<usize>();
        let scored = rows.scores.iter().map(|score| result_words(Some(score.top))).sum::<usize>();
        match bucket(rows.ids.len()).filter(|_| decode) {
            // Few strides, so that a growing sequence rarely changes the shape.
            Some(bucket) => StepShape {
                rows: bucket,
                sequences: bucket,
                table_stride: limits.table_words(longest.next_power_of_two().max(FIRST_STRIDE)),
                wanted: bucket,
                results: result_words(Some(MOST_ALTERNATIVES)) * bucket,
                saves: if saves > 0 { DECODE_SAVES * bucket } else { 0 },
                loras,
                decode: true,
            },
            None => StepShape {
                rows: rows.ids.len(),
                sequences: rows.spans.len(),
                table_stride: limits.table_words(longest),
                wanted,
                results: drawn + scored,
                saves,
                loras,
                decode: false,
            },
        }
    }

    /// Where the parts begin in the block, in words, and its length.
    pub fn parts(&self) -> StepParts<usize> {
        let rows = self.rows;
        let wanted = 4 * rows + self.sequences * self.table_stride;
        let cells = wanted + self.wanted;
        let of_sequences = if self.saves > 0 { 3 * (self.sequences + 1) } else { 0 };
        let loras = cells + of_sequences + 2 * self.saves;
        let end = loras + if self.loras { rows } else { 0 };
        StepParts {
            ids: 0,
            positions: rows,
            sequences: 2 * rows,
            places: 3 * rows,
            tables: 4 * rows,
            wanted,
            cells,
            loras,
            end,
        }
    }
}

/// The parts of a step's block: one word for each row in `ids`, `positions`, `sequences` and `places`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StepParts<T> {
    pub ids: T,
    pub positions: T,
    /// The sequence of each row.
    pub sequences: T,
    /// Where each row's entry is in a cache.
    pub places: T,
    /// The blocks of each sequence.
    pub tables: T,
    /// The rows whose logits or hidden states are wanted.
    pub wanted: T,
    /// Of recurrent states, as delta.cu takes them.
    pub cells: T,
    /// The slot of each row's low-rank adapter, if any has one.
    pub loras: T,
    /// The end of these parts. The parameters of the step's draws follow.
    pub end: T,
}

impl StepParts<usize> {
    /// The addresses of the parts of a block at `base`.
    pub fn at(&self, base: u64) -> StepParts<u64> {
        let at = |word: usize| base + 4 * word as u64;
        StepParts {
            ids: at(self.ids),
            positions: at(self.positions),
            sequences: at(self.sequences),
            places: at(self.places),
            tables: at(self.tables),
            wanted: at(self.wanted),
            cells: at(self.cells),
            loras: at(self.loras),
            end: at(self.end),
        }
    }
}

/// What the ids and blocks of a step must be below, and the size of a block.
#[derive(Debug, Clone, Copy)]
pub(super) struct StepLimits {
    pub vocab: usize,
    pub blocks: usize,
    pub block_size: usize,
    /// Blocks are those of all ranks.
    pub split: Option<KvSplit>,
    /// Of recurrent states.
    pub cells: usize,
    /// That keep drawn tokens.
    pub slots: usize,
}

impl StepLimits {
    /// Blocks of a tile, where the cache is split.
    fn of_tile(&self) -> usize {
        (TILE / self.block_size).max(1)
    }

    /// Blocks of a lane of a sequence of `blocks` blocks.
    fn of_lane(&self, blocks: usize) -> usize {
        blocks.div_ceil(self.of_tile()).div_ceil(LANES) * self.of_tile()
    }

    /// Words of a table of `blocks` blocks.
    pub fn table_words(&self, blocks: usize) -> usize {
        self.split.map_or(blocks, |split| LANES / split.ranks * self.of_lane(blocks))
    }

    /// Writes the table of a sequence: of a split cache the blocks of this rank, one lane after the other (lanes.cu).
    fn write_table(&self, blocks: &[u32], table: &mut [u32]) {
        let Some(KvSplit { rank, ranks }) = self.split else {
            table[..blocks.len()].copy_from_slice(blocks);
            return;
        };
        let (of_tile, stride) = (self.of_tile(), table.len() / (LANES / ranks));
        for (i, block) in blocks.iter().enumerate() {
            let (tile, within) = (i / of_tile, i % of_tile);
            let lane = tile % LANES;
            if lane % ranks == rank {
                table[lane / ranks * stride + tile / LANES * of_tile + within] = block / ranks as u32;
            }
        }
    }

    /// Where a position's entry is in this rank's cache. None: another rank has it.
    fn place(&self, blocks: &[u32], position: usize) -> Option<u32> {
        let block = blocks[position / self.block_size] as usize;
        let block = match self.split {
            None => block,
            Some(split) if split.owns(position) => block / split.ranks,
            Some(_) => return None,
        };
        Some((block * self.block_size + position % self.block_size) as u32)
    }
}

/// Writes the block of a step; `words` has the length that the shape says.
pub(super) fn pack(rows: &StepInputs, shape: &StepShape, limits: StepLimits, words: &mut [u32]) -> Result<()> {
    let wrong = |what: String| Err(KernelError::Shape { op: "begin", what });
    let parts = shape.parts();
    assert_eq!(words.len(), parts.end, "begin: the block must have as many words as the step's shape says");
    if let Some(id) = rows.ids.iter().find(|&&id| id as usize >= limits.vocab) {
        return wrong(format!("token {id} must be below the vocabulary's {}", limits.vocab));
    }
    let (of_rows, rest) = words.split_at_mut(parts.tables);
    let (tables, rest) = rest.split_at_mut(parts.wanted - parts.tables);
    let (index, rest) = rest.split_at_mut(parts.cells - parts.wanted);
    let (cells, loras) = rest.split_at_mut(parts.loras - parts.cells);
    loras.fill(NONE);
    of_rows.fill(NONE);
    of_rows[parts.positions..parts.sequences].fill(0);
    tables.fill(0);
    index.fill(0);
    for (to, row) in index.iter_mut().zip(wanted(rows)) {
        if row >= rows.ids.len() {
            return wrong(format!("logits of row {row} of {}", rows.ids.len()));
        }
        *to = row as u32;
    }
    of_rows[..rows.ids.len()].copy_from_slice(&rows.ids);
    if let Some(slot) = rows.draws.iter().filter_map(|draw| draw.slot).find(|&slot| slot as usize >= limits.slots) {
        return wrong(format!("slot {slot} of {} for a token", limits.slots));
    }
    for awaited in &rows.awaits {
        if awaited.row >= rows.ids.len() || awaited.slot as usize >= limits.slots {
            return wrong(format!("{awaited:?} of {} rows and {} slots", rows.ids.len(), limits.slots));
        }
    }
    if shape.saves > 0 {
        pack_cells(rows, shape, limits, cells)?;
    }
    for (sequence, span) in rows.spans.iter().enumerate() {
        let end = span.start + span.len;
        if span.row + span.len > rows.ids.len() {
            return wrong(format!("rows {}..{} of {}", span.row, span.row + span.len, rows.ids.len()));
        }
        if span.blocks.len() * limits.block_size < end {
            let what = format!("{} blocks of {} do not cover {end} positions", span.blocks.len(), limits.block_size);
            return wrong(what);
        }
        if let Some(block) = span.blocks.iter().find(|&&block| block as usize >= limits.blocks) {
            return wrong(format!("block {block} of a cache of {} blocks", limits.blocks));
        }
        limits.write_table(span.blocks, &mut tables[sequence * shape.table_stride..][..shape.table_stride]);
        for i in 0..span.len {
            let (row, position) = (span.row + i, span.start + i);
            if let Some(Some(slot)) = rows.loras.get(sequence) {
                loras[row] = *slot;
            }
            of_rows[parts.positions + row] = position as u32;
            of_rows[parts.sequences + row] = sequence as u32;
            of_rows[parts.places + row] = limits.place(span.blocks, position).unwrap_or(NONE);
        }
    }
    Ok(())
}

/// [3, sequences + 1]: the first row of each sequence, the cell that it begins from and its first save; then the saves.
fn pack_cells(rows: &StepInputs, shape: &StepShape, limits: StepLimits, words: &mut [u32]) -> Result<()> {
    let wrong = |what: String| Err(KernelError::Shape { op: "begin", what });
    if rows.cells.len() != rows.spans.len() {
        return wrong(format!("cells of {} spans for {}", rows.cells.len(), rows.spans.len()));
    }
    let (of_sequences, saves) = words.split_at_mut(3 * (shape.sequences + 1));
    saves.fill(0);
    let mut of_sequences = of_sequences.chunks_exact_mut(shape.sequences + 1);
    let mut next = || of_sequences.next().unwrap_or_default();
    let (first_rows, from, first_saves) = (next(), next(), next());
    first_rows.fill(rows.ids.len() as u32);
    from.fill(NONE);
    let mut count = 0;
    for (i, (span, cells)) in rows.spans.iter().zip(&rows.cells).enumerate() {
        let all = cells.saves.iter().map(|save| save.cell).chain(cells.from);
        if let Some(cell) = all.into_iter().find(|&cell| cell as usize >= limits.cells) {
            return wrong(format!("cell {cell} of {}", limits.cells));
        }
        let sorted = cells.saves.is_sorted_by_key(|save| save.rows);
        let (first, last) = (cells.saves.first().map(|save| save.rows), cells.saves.last().map(|save| save.rows));
        if !sorted || first == Some(0) || last != Some(span.len) {
            return wrong(format!("states after {:?} of {} rows", cells.saves, span.len));
        }
        (first_rows[i], first_saves[i]) = (span.row as u32, count as u32);
        from[i] = cells.from.unwrap_or(NONE);
        for save in cells.saves {
            saves[2 * count..][..2].copy_from_slice(&[save.rows as u32, save.cell]);
            count += 1;
        }
    }
    first_saves[rows.spans.len()..].fill(count as u32);
    Ok(())
}

#[cfg(test)]
mod tests;
