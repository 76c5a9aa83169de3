//! Products of activations with packed weights. A row's result is accumulated over the steps of a panel in order,
//! whatever the other rows are.

#[cfg(target_arch = "x86_64")]
mod registers;
mod tiles;

use std::cell::RefCell;
use std::ops::Range;

#[cfg(target_arch = "x86_64")]
use super::amx;
use super::buffer::Buffer;
use super::codes::{CODE_STEPS, FLOAT_CODES, WIDE_FACTORS};
use super::fp8::Fp8Form;
use super::pool::{SharedPtr, ThreadPool};
use super::simd::{Isa, Simd, simd_fn};
use super::weights::{ActivationForm, GROUP, GROUP_BYTES, GROUP_STEPS, PANEL, PanelForm, Panels};
use tiles::{code_kernel, fp8_kernel, group_kernel, halves_into, tile_kernel, wide_kernel, widen_fp8, widen_group};

/// Words of a column computed for all row tiles before continuing: 32 KiB of weights, which stay in the first-level
/// cache.
const CHUNK_STEPS: usize = 256;
/// With more tiles than this, weights are widened once for all of them.
const WIDEN_TILES: usize = 2;
/// From this tile height on, arithmetic takes so long that weights must be prefetched; below it, the hardware
/// prefetcher alone is faster (measured).
const FETCH_ROWS: usize = 5;
/// Fewer words of activations are packed by one thread.
const PARALLEL_WORDS: usize = 4 << 10;
/// Bytes of activations per row block: they stay in the second-level cache while panels stream by. Processors with tile
/// registers have one of 2 MiB, and wait for weights where a block has few rows.
const ROW_BLOCK_BYTES: usize = 384 << 10;
const WIDE_BLOCK_BYTES: usize = 1 << 20;

/// Rows of one kernel call: `rows` rows, packed from row `first` on, at `words[first * row_words]`, as `[word][row]`
/// or, for tile registers, as `[group][row][word]`.
#[derive(Debug, Clone, Copy)]
pub struct Tile {
    pub first: usize,
    pub rows: usize,
}

/// Activations in the order in which the kernel reads them.
pub struct Packed {
    /// 32-bit words.
    words: Buffer,
    /// Of integers: at `[first * groups]` those of a tile, as `[group][row]`.
    scales: Buffer,
    /// Of 8-bit integers: the sums of both halves of a group's inputs, as `[group][half][row]`.
    sums: Buffer,
    pub row_words: usize,
    groups: usize,
    form: ActivationForm,
    pub tiles: Vec<Tile>,
}

/// The words of a row of `ins` inputs.
fn row_words(isa: Isa, ins: usize, form: ActivationForm) -> usize {
    let padded = ins.next_multiple_of(GROUP);
    match form {
        ActivationForm::F32 => padded,
        ActivationForm::Bf16 if !isa.multiplies_pairs() => padded,
        ActivationForm::Bf16 | ActivationForm::Int16 => padded / 2,
        ActivationForm::Int8 => padded / 4,
    }
}

/// The rows of a tile at most.
pub fn tile_rows(isa: Isa, form: ActivationForm) -> usize {
    #[cfg(target_arch = "x86_64")]
    if isa == Isa::Amx && form != ActivationForm::F32 {
        return amx::TILE_ROWS;
    }
    isa.tile_rows()
}

/// Whether a tile of so many rows is multiplied in tile registers. Numbers always are, since these add them in an order
/// of their own; sums of integers have no order, and few rows take less time without.
fn in_registers(isa: Isa, form: ActivationForm, rows: usize) -> bool {
    isa == Isa::Amx
        && match form {
            ActivationForm::F32 => false,
            ActivationForm::Bf16 => true,
            ActivationForm::Int16 | ActivationForm::Int8 => rows > isa.tile_rows(),
        }
}

/// Writes rows of `Packed` from several threads.
#[derive(Clone, Copy)]
pub struct RowWriter {
    isa: Isa,
    words: SharedPtr<u32>,
    scales: SharedPtr<f32>,
    sums: SharedPtr<f32>,
    row_words: usize,
    groups: usize,
    form: ActivationForm,
}

impl RowWriter {
    /// Packs inputs of row r of a tile, from a group on.
    ///
    /// # Safety
    /// The tile must be one of those of `Packed`, which must be alive. No other thread may write these groups of the
    /// row, or read them.
    pub unsafe fn write(self, tile: Tile, r: usize, group: usize, inputs: &[f32]) {
        debug_assert!(r < tile.rows && group * GROUP + inputs.len() <= self.groups * GROUP);
        let group_words = self.row_words / self.groups.max(1);
        let registers = in_registers(self.isa, self.form, tile.rows);
        let at = if registers { r * group_words } else { r };
        // SAFETY: the tile has rows * row_words words and rows * groups scales (where there are any).
        unsafe {
            let words = self.words.get().add(tile.first * self.row_words + group * group_words * tile.rows + at);
            let first = tile.first * self.groups + group * tile.rows;
            let (scales, sums) =
                (self.scales.get().wrapping_add(first + r), self.sums.get().wrapping_add(2 * first + r));
            pack_row(self.isa, inputs, words, (scales, sums), (tile.rows, registers), self.form);
        }
    }
}

/// Splits `rows` into tiles of nearly equal height, at most `most`.
fn cut(most: usize, first: usize, rows: usize, tiles: &mut Vec<Tile>) {
    let count = rows.div_ceil(most);
    for i in 0..count {
        let (from, to) = (rows * i / count, rows * (i + 1) / count);
        tiles.push(Tile { first: first + from, rows: to - from });
    }
}

/// Tiles of at most `most` rows, for groups of rows that are multiplied with different weights; returns each group's
/// range of tiles.
pub fn cut_groups(most: usize, groups: impl Iterator<Item = usize>) -> (Vec<Tile>, Vec<Range<usize>>) {
    let (mut tiles, mut ranges, mut first) = (Vec::new(), Vec::new(), 0);
    for rows in groups {
        let from = tiles.len();
        cut(most, first, rows, &mut tiles);
        first += rows;
        ranges.push(from..tiles.len());
    }
    (tiles, ranges)
}

impl Packed {
    /// Memory for the rows of the tiles, to be written by a `RowWriter`.
    pub fn room(isa: Isa, tiles: Vec<Tile>, ins: usize, form: ActivationForm) -> Packed {
        let rows = tiles.last().map_or(0, |t| t.first + t.rows);
        let (row_words, groups) = (row_words(isa, ins, form), ins.div_ceil(GROUP));
        let scales = Buffer::stale(if form.has_scales() { rows * groups } else { 0 });
        let sums = Buffer::stale(if form == ActivationForm::Int8 { 2 * rows * groups } else { 0 });
        Packed { words: Buffer::stale(rows * row_words), scales, sums, row_words, groups, form, tiles }
    }

    pub fn writer(&mut self, isa: Isa) -> RowWriter {
        let Packed { row_words, groups, form, .. } = *self;
        let (words, scales) = (SharedPtr(self.words.as_mut_ptr().cast()), SharedPtr(self.scales.as_mut_ptr()));
        RowWriter { isa, words, scales, sums: SharedPtr(self.sums.as_mut_ptr()), row_words, groups, form }
    }

    /// Packs rows of `ins` numbers; packed row i starts at `x[source(i)]`.
    pub fn pack(
        pool: &ThreadPool,
        isa: Isa,
        tiles: Vec<Tile>,
        x: &[f32],
        ins: usize,
        form: ActivationForm,
        source: &(dyn Fn(usize) -> usize + Sync),
    ) -> Packed {
        let mut packed = Packed::room(isa, tiles, ins, form);
        let writer = packed.writer(isa);
        // Of few tiles each is packed in parts of its inputs.
        let parts =
            if packed.words.len() < PARALLEL_WORDS { 1 } else { (2 * pool.threads()).div_ceil(packed.tiles.len()) };
        let part = ins.div_ceil(parts * GROUP) * GROUP;
        let pack = |i: usize| {
            let (tile, from) = (packed.tiles[i / parts], i % parts * part);
            for r in (0..tile.rows).filter(|_| from < ins) {
                let inputs = &x[source(tile.first + r)..][from..ins.min(from + part)];
                // SAFETY: this call alone writes these groups of the tile, and reading begins after all have ended.
                unsafe { writer.write(tile, r, from / GROUP, inputs) };
            }
        };
        let items = packed.tiles.len() * parts;
        if packed.words.len() < PARALLEL_WORDS {
            (0..items).for_each(pack);
        } else {
            pool.run(items, &pack);
        }
        packed
    }
}

#[inline(always)]
unsafe fn pack_row_generic<S: Simd>(
    row: &[f32],
    words: *mut u32,
    (scales, sums): (*mut f32, *mut f32),
    (rows, registers): (usize, bool),
    form: ActivationForm,
) {
    // Words from one word of the row to the next.
    let stride = if registers { 1 } else { rows };
    for (group, chunk) in row.chunks(GROUP).enumerate() {
        let mut inputs = [0.0f32; GROUP];
        inputs[..chunk.len()].copy_from_slice(chunk);
        let mut out = [0u32; GROUP];
        let count = match form {
            ActivationForm::F32 => {
                out = inputs.map(f32::to_bits);
                GROUP
            }
            ActivationForm::Bf16 => {
                // SAFETY: inputs has 32 numbers, out 16 words and more.
                let pairs = unsafe {
                    let mut pairs = [0.0f32; 16];
                    S::store(pairs.as_mut_ptr(), S::load_pairs(inputs.as_ptr()));
                    pairs.map(f32::to_bits)
                };
                for (i, pair) in pairs.into_iter().enumerate() {
                    if S::MULTIPLIES_PAIRS {
                        out[i] = pair;
                    } else {
                        (out[2 * i], out[2 * i + 1]) = (pair << 16, pair & 0xffff_0000);
                    }
                }
                if S::MULTIPLIES_PAIRS { GROUP / 2 } else { GROUP }
            }
            ActivationForm::Int16 => {
                let (numbers, scale) = to_integers(&inputs, 32767.0);
                if registers {
                    for (i, four) in numbers.as_chunks::<4>().0.iter().enumerate() {
                        out[i] = u32::from_le_bytes(four.map(|x| (x >> 8) as u8));
                        out[GROUP / 4 + i] = u32::from_le_bytes(four.map(|x| x as u8));
                    }
                } else {
                    for (word, pair) in out.iter_mut().zip(numbers.as_chunks::<2>().0) {
                        *word = pair[0] as u32 & 0xffff | (pair[1] as u32) << 16;
                    }
                }
                // SAFETY: the caller has a scale at `rows` for each group.
                unsafe { *scales.add(group * rows) = scale };
                GROUP / 2
            }
            ActivationForm::Int8 => {
                let (numbers, scale) = to_integers(&inputs, 127.0);
                for (word, four) in out.iter_mut().zip(numbers.as_chunks::<4>().0) {
                    *word = u32::from_le_bytes(four.map(|x| x as u8));
                }
                // SAFETY: the caller has a scale and two sums at `rows` for each group.
                unsafe {
                    *scales.add(group * rows) = scale;
                    for (half, numbers) in numbers.as_chunks::<16>().0.iter().enumerate() {
                        *sums.add((2 * group + half) * rows) = numbers.iter().sum::<i32>() as f32 * scale;
                    }
                }
                GROUP / 4
            }
        };
        for (i, word) in out[..count].iter().enumerate() {
            // SAFETY: the caller has `count` words of each row for each group.
            unsafe { *words.add(group * count * rows + i * stride) = *word };
        }
    }
}

/// A group of inputs as integers, and what they are multiplied by. The largest magnitude becomes `largest`. With a
/// number that is not finite, the scale is NaN.
#[inline(always)]
fn to_integers(inputs: &[f32; GROUP], largest: f32) -> ([i32; GROUP], f32) {
    /// Smaller magnitudes become zero: their reciprocal overflows.
    const SMALLEST: f32 = 1e-30;
    /// The last bits of a small number plus this are the nearest integer.
    const ROUND: f32 = 12_582_912.0;
    // Magnitudes are ordered as their bits are, with infinity and NaN above all.
    let top = inputs.iter().fold(0, |top: i32, x| top.max((x.to_bits() & 0x7fff_ffff) as i32));
    if top < SMALLEST.to_bits() as i32 {
        return ([0; GROUP], 0.0);
    }
    if top >= f32::INFINITY.to_bits() as i32 {
        return ([0; GROUP], f32::NAN);
    }
    let top = f32::from_bits(top as u32);
    let inverse = largest / top;
    (inputs.map(|x| (x * inverse + ROUND).to_bits() as i32 - ROUND.to_bits() as i32), top / largest)
}

simd_fn!(
    /// Writes the words of one of `rows` rows at words, words + rows, ..., and the scales and sums of its groups
    /// likewise; with `registers` the words of a group lie together.
    fn pack_row(row: &[f32], words: *mut u32, factors: (*mut f32, *mut f32), place: (usize, bool), form: ActivationForm) = pack_row_generic
);

/// Calls a kernel instantiated for the tile's height.
macro_rules! by_rows {
    ($S:ty, $rows:expr, $flag:tt, $kernel:ident($($arg:expr),*)) => {
        by_rows!(@ $S, $rows, $flag, $kernel($($arg),*), 1 2 3 4 5 6 7 8 9 10 11 12)
    };
    (@ $S:ty, $rows:expr, $flag:tt, $kernel:ident $args:tt, $($n:literal)*) => {
        match $rows {
            $($n if $n <= <$S>::TILE_ROWS => by_rows!(# $kernel::<$S, $n, $flag> $args),)*
            _ => unreachable!("a tile has 1..=TILE_ROWS rows"),
        }
    };
    (# $kernel:ident::<$S:ty, $n:literal, $flag:tt> ($($arg:expr),*)) => {
        $kernel::<$S, $n, $flag>($($arg),*)
    };
}

#[repr(align(64))]
struct Widened {
    words: [f32; CHUNK_STEPS * PANEL],
    factors: [f32; CHUNK_STEPS / GROUP_STEPS * WIDE_FACTORS],
}

/// Whether a product of these sizes reads and writes what there is. `split`: words of activations for each step of the
/// weight.
fn fits(w: &Panels, a: &Packed, tiles: &[Tile], acc: &[f32], split: usize) -> bool {
    let Some((first, last)) = tiles.first().zip(tiles.last()) else { return true };
    let rows = last.first + last.rows;
    w.takes() == a.form
        && acc.len() >= (rows - first.first) * PANEL
        && a.row_words == w.steps() * split
        && a.words.len() >= rows * a.row_words
        && (!a.form.has_scales() || a.scales.len() >= rows * a.groups)
        && (a.form != ActivationForm::Int8 || a.sums.len() >= 2 * rows * a.groups)
}

#[inline(always)]
unsafe fn panel_generic<S: Simd>(w: &Panels, p: usize, a: &Packed, tiles: Range<usize>, acc: &mut [f32]) {
    let (takes, all_steps) = (w.takes(), w.steps());
    let tiles = &a.tiles[tiles];
    let Some(first_row) = tiles.first().map(|t| t.first) else { return };
    let split = if takes == ActivationForm::Bf16 && !S::MULTIPLIES_PAIRS { 2 } else { 1 };
    assert!(fits(w, a, tiles, acc, split));
    let panel = w.panel(p);
    if let PanelForm::Fp8(form) = w.form {
        // SAFETY: the panel has as many steps in this form; the sizes are asserted above.
        return unsafe { fp8_panel::<S>((form, panel), all_steps, a, (tiles, first_row), acc) };
    }
    // Steps of a group, of integers.
    let of_group = if takes == ActivationForm::Int8 { CODE_STEPS } else { GROUP_STEPS };
    let chunk = CHUNK_STEPS / split / GROUP_STEPS * of_group;
    let mut from = 0;
    let mut widened = std::mem::MaybeUninit::<Widened>::uninit();
    // SAFETY: only the addresses of fields are taken.
    let (widened, factors) = unsafe {
        let widened = widened.as_mut_ptr();
        ((&raw mut (*widened).words).cast::<f32>(), (&raw mut (*widened).factors).cast::<f32>())
    };
    let widen = tiles.len() > WIDEN_TILES;
    while from < all_steps {
        let steps = chunk.min(all_steps - from);
        let group = from / of_group;
        if widen && split == 2 {
            // SAFETY: the panel has steps * 32 words from step `from` on, the scratch room for twice as many.
            unsafe { halves_into::<S>(panel.cast::<f32>().add(from * PANEL), steps, widened) };
        }
        for g in 0..if takes.has_scales() { steps / of_group } else { 0 } {
            // SAFETY: the panel has this group; the scratch has room for those of CHUNK_STEPS.
            unsafe {
                let (to, factors) = (widened.add(g * GROUP_STEPS * PANEL), factors.add(g * WIDE_FACTORS));
                let at = panel.wrapping_add((group + g) * GROUP_BYTES);
                match w.form {
                    PanelForm::Codes(codes) if takes == ActivationForm::Int8 => {
                        codes.widen_factors::<S>(panel, group + g, factors);
                    }
                    PanelForm::Codes(_) if widen => widen_group::<S, true>(at, to, factors),
                    PanelForm::Int8 if widen => widen_group::<S, false>(at, to, factors),
                    _ => {}
                }
            }
        }
        let (widened, factors) = (widened.cast_const(), factors.cast_const());
        for (t, tile) in tiles.iter().enumerate() {
            // The next chunk is needed after the last tile.
            let ahead = if t + 1 == tiles.len() { CHUNK_STEPS * PANEL } else { 0 };
            let first = from == 0;
            // SAFETY: a tile's words are rows * row_words from first * row_words on, in [word][row] order, its scales
            // and sums likewise; the panel has all_steps steps; acc has PANEL numbers for each row of the tiles
            // (asserted above).
            unsafe {
                let x = a.words.as_ptr().add(tile.first * a.row_words + from * split * tile.rows).cast::<u32>();
                let acc = acc.as_mut_ptr().add((tile.first - first_row) * PANEL);
                let w_steps = panel.cast::<f32>().wrapping_add(from * PANEL);
                let at = tile.first * a.groups + group * tile.rows;
                let (scales, sums) = (a.scales.as_ptr().wrapping_add(at), a.sums.as_ptr().wrapping_add(2 * at));
                let (rows, n) = (tile.rows, steps / of_group);
                match (takes, w.form) {
                    (ActivationForm::F32, _) => {
                        by_rows!(S, rows, false, tile_kernel(x, w_steps, steps, ahead, acc, first))
                    }
                    (ActivationForm::Bf16, _) if widen && split == 2 => {
                        by_rows!(S, rows, false, tile_kernel(x, widened, 2 * steps, 0, acc, first))
                    }
                    (ActivationForm::Bf16, _) => {
                        by_rows!(S, rows, true, tile_kernel(x, w_steps, steps, ahead, acc, first))
                    }
                    (ActivationForm::Int8, PanelForm::Codes(codes)) => {
                        let (x, groups) = ((x, (scales, sums)), (codes.places(panel, group), factors));
                        match codes.high() {
                            0 => by_rows!(S, rows, 0, code_kernel(x, groups, n, acc, first)),
                            1 => by_rows!(S, rows, 1, code_kernel(x, groups, n, acc, first)),
                            2 => by_rows!(S, rows, 2, code_kernel(x, groups, n, acc, first)),
                            _ => by_rows!(S, rows, FLOAT_CODES, code_kernel(x, groups, n, acc, first)),
                        }
                    }
                    _ if widen => by_rows!(S, rows, 0, wide_kernel((x, scales), (widened, factors), n, acc, first)),
                    (_, form) => {
                        let groups = panel.add(group * GROUP_BYTES);
                        match form {
                            PanelForm::Int8 => {
                                by_rows!(S, rows, false, group_kernel((x, scales), groups, n, acc, first))
                            }
                            _ => by_rows!(S, rows, true, group_kernel((x, scales), groups, n, acc, first)),
                        }
                    }
                }
            }
        }
        from += steps;
    }
}

/// As `panel_generic`, for FP8 weights on sets that multiply pairs.
///
/// # Safety
/// As asserted there.
#[inline(always)]
unsafe fn fp8_panel<S: Simd>(
    (form, panel): (Fp8Form, *const u8),
    steps: usize,
    a: &Packed,
    (tiles, first_row): (&[Tile], usize),
    acc: &mut [f32],
) {
    let groups = steps / GROUP_STEPS;
    let mut widened = std::mem::MaybeUninit::<Widened>::uninit();
    // SAFETY: only the address of a field is taken.
    let widened = unsafe { (&raw mut (*widened.as_mut_ptr()).words).cast::<f32>() };
    let widen = tiles.len() > WIDEN_TILES;
    let mut from = 0;
    while from < groups {
        let count = form.same_scale(from).min(groups - from).min(CHUNK_STEPS / GROUP_STEPS);
        let [scales, codes] = form.place(from);
        let n = count * GROUP_STEPS;
        // SAFETY: the panel has these groups; the scratch has CHUNK_STEPS; tiles as in `panel_generic`.
        unsafe {
            let (scales, codes) = (panel.add(scales).cast::<f32>(), panel.add(codes));
            if widen {
                widen_fp8::<S>(codes, n, widened);
            }
            for tile in tiles {
                let x = a.words.as_ptr().add(tile.first * a.row_words + from * GROUP_STEPS * tile.rows).cast::<u32>();
                let acc = acc.as_mut_ptr().add((tile.first - first_row) * PANEL);
                let (w, first) = ((codes, widened.cast_const()), from == 0);
                match widen {
                    true => by_rows!(S, tile.rows, true, fp8_kernel(x, w, scales, n, acc, first)),
                    false => by_rows!(S, tile.rows, false, fp8_kernel(x, w, scales, n, acc, first)),
                }
            }
        }
        from += count;
    }
}

simd_fn!(fn multiply_by_set(w: &Panels, p: usize, a: &Packed, tiles: Range<usize>, acc: &mut [f32]) = panel_generic);

/// Rows of `tiles`, which are those of one group, times panel p into acc [rows][32].
///
/// # Safety
/// `isa` comes from `Isa::detect`.
pub unsafe fn multiply_panel(isa: Isa, w: &Panels, p: usize, a: &Packed, tiles: Range<usize>, acc: &mut [f32]) {
    // SAFETY: the caller's promise.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        if a.tiles[tiles.clone()].iter().any(|tile| in_registers(isa, a.form, tile.rows)) {
            return registers::multiply_panel(w, p, a, tiles, acc);
        }
        multiply_by_set(isa, w, p, a, tiles, acc);
    }
}

thread_local! {
    static ACC: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// Scratch of the calling thread.
pub fn with_acc<R>(len: usize, f: impl FnOnce(&mut [f32]) -> R) -> R {
    ACC.with_borrow_mut(|acc| {
        if acc.len() < len {
            acc.resize(len, 0.0);
        }
        f(&mut acc[..len])
    })
}

/// Cuts a range of tiles into blocks whose activations fit the second-level cache.
pub fn row_blocks(isa: Isa, a: &Packed, tiles: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let bytes = if isa == Isa::Amx { WIDE_BLOCK_BYTES } else { ROW_BLOCK_BYTES };
    let rows = a.tiles[tiles.clone()].iter().map(|tile| tile.rows).max().unwrap_or(1);
    let per_block = (bytes / (a.row_words * rows * 4).max(1)).max(1);
    tiles.clone().step_by(per_block).map(move |from| from..tiles.end.min(from + per_block))
}

/// One product of a group of packed rows; the group's row i goes to `out + i * stride`, `w.outs` numbers.
pub struct GemmJob<'a> {
    pub weight: &'a Panels,
    pub tiles: Range<usize>,
    pub out: SharedPtr<f32>,
    pub stride: usize,
    pub bias: Option<&'a [f32]>,
}

/// Runs the jobs over one set of packed activations.
///
/// # Safety
/// The rows that the jobs write must be valid and disjoint, and not be read until this returns.
pub unsafe fn multiply(pool: &ThreadPool, isa: Isa, a: &Packed, jobs: &[GemmJob]) {
    let mut items = Vec::new();
    for (j, job) in jobs.iter().enumerate() {
        let per_item = job.weight.panels_per_item(pool.threads());
        for block in row_blocks(isa, a, job.tiles.clone()) {
            for p in (0..job.weight.panels()).step_by(per_item) {
                items.push((j, block.clone(), p..job.weight.panels().min(p + per_item)));
            }
        }
    }
    let run = |i: usize| {
        let (j, block, panels) = &items[i];
        let job = &jobs[*j];
        let first = a.tiles[block.start].first;
        let last = a.tiles[block.end - 1];
        let rows = last.first + last.rows - first;
        let offset = first - a.tiles[job.tiles.start].first;
        with_acc(rows * PANEL, |acc| {
            for p in panels.clone() {
                // SAFETY: `isa` was detected; the sizes are asserted inside.
                unsafe { multiply_panel(isa, job.weight, p, a, block.clone(), acc) };
                let columns = PANEL.min(job.weight.outs - p * PANEL);
                let bias = job.bias.map(|b| &b[p * PANEL..][..columns]);
                for r in 0..rows {
                    // SAFETY: row offset + r of the job, columns of panel p: written by this item only.
                    let out = unsafe {
                        let start = job.out.get().add((offset + r) * job.stride + p * PANEL);
                        std::slice::from_raw_parts_mut(start, columns)
                    };
                    let acc = &acc[r * PANEL..][..columns];
                    match bias {
                        None => out.copy_from_slice(acc),
                        Some(bias) => out.iter_mut().zip(acc).zip(bias).for_each(|((o, a), b)| *o = a + b),
                    }
                }
            }
        });
    };
    pool.run(items.len(), &run);
}

#[cfg(test)]
mod tests;
