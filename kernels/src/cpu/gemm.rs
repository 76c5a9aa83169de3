//! Products of activations with packed weights. A row's result is accumulated over the steps of a panel in order,
//! whatever the other rows are.

use std::cell::RefCell;
use std::ops::Range;

use half::bf16;

use super::buffer::Buffer;
use super::pool::{SharedPtr, ThreadPool};
use super::simd::{Isa, Simd, simd_fn};
use super::weights::{GROUP_BYTES, GROUP_STEPS, PANEL, Panels, steps_of};
use crate::backend::Precision;

/// Steps computed for all row tiles before continuing: 32 KiB of weights, which stay in the first-level cache.
const CHUNK_STEPS: usize = 256;
/// From this tile height on, arithmetic takes so long that weights must be prefetched; below it, the hardware
/// prefetcher alone is faster (measured).
const FETCH_ROWS: usize = 5;
/// Bytes of activations per row block: they stay in the second-level cache while panels stream by.
const ROW_BLOCK_BYTES: usize = 384 << 10;

/// Rows of one kernel call: `rows` rows, packed from row `first` on, at `words[first * steps]`, as `[step][row]`.
#[derive(Debug, Clone, Copy)]
pub struct Tile {
    pub first: usize,
    pub rows: usize,
}

/// Activations in the order in which the kernel reads them.
pub struct Packed {
    /// 32-bit words, which are f32 or pairs of bf16.
    pub words: Buffer,
    pub steps: usize,
    pub tiles: Vec<Tile>,
}

/// Splits `rows` into tiles of nearly equal height.
fn cut(isa: Isa, first: usize, rows: usize, tiles: &mut Vec<Tile>) {
    let count = rows.div_ceil(isa.tile_rows());
    for i in 0..count {
        let (from, to) = (rows * i / count, rows * (i + 1) / count);
        tiles.push(Tile { first: first + from, rows: to - from });
    }
}

/// Tiles for groups of rows that are multiplied with different weights; returns each group's range of tiles.
pub fn cut_groups(isa: Isa, groups: impl Iterator<Item = usize>) -> (Vec<Tile>, Vec<Range<usize>>) {
    let (mut tiles, mut ranges, mut first) = (Vec::new(), Vec::new(), 0);
    for rows in groups {
        let from = tiles.len();
        cut(isa, first, rows, &mut tiles);
        first += rows;
        ranges.push(from..tiles.len());
    }
    (tiles, ranges)
}

impl Packed {
    /// Memory for the rows of the tiles, to be written by `pack_row`.
    pub fn room(tiles: Vec<Tile>, ins: usize, precision: Precision) -> Packed {
        let rows = tiles.last().map_or(0, |t| t.first + t.rows);
        let steps = steps_of(ins, precision);
        Packed { words: Buffer::stale(rows * steps), steps, tiles }
    }

    /// Packs rows of `ins` numbers; packed row i starts at `x[source(i)]`.
    pub fn pack(
        pool: &ThreadPool,
        isa: Isa,
        tiles: Vec<Tile>,
        x: &[f32],
        ins: usize,
        precision: Precision,
        source: &(dyn Fn(usize) -> usize + Sync),
    ) -> Packed {
        let mut packed = Packed::room(tiles, ins, precision);
        let (steps, base) = (packed.steps, SharedPtr(packed.words.as_mut_ptr().cast::<u32>()));
        let pack = |t: usize| {
            let tile = packed.tiles[t];
            for r in 0..tile.rows {
                let row = &x[source(tile.first + r)..][..ins];
                // SAFETY: tile t owns words [first * steps, (first + rows) * steps); row r writes every rows-th of
                // them from r on, steps of them.
                unsafe {
                    let dst = base.get().add(tile.first * steps + r);
                    pack_row(isa, row, dst, tile.rows, precision);
                }
            }
        };
        if packed.words.len() < 32 << 10 {
            (0..packed.tiles.len()).for_each(pack);
        } else {
            pool.run(packed.tiles.len(), &pack);
        }
        packed
    }
}

#[inline(always)]
unsafe fn pack_row_generic<S: Simd>(row: &[f32], dst: *mut u32, stride: usize, precision: Precision) {
    let mut words = [0.0f32; 32];
    let mut tail = [0.0f32; 32];
    for (group, chunk) in row.chunks(32).enumerate() {
        let chunk = if chunk.len() == 32 {
            chunk
        } else {
            tail[..chunk.len()].copy_from_slice(chunk);
            &tail
        };
        let (per_group, words) = if precision == Precision::F32 {
            (32, chunk)
        } else {
            // SAFETY: the chunk has 32 elements, words has 16 and more.
            unsafe { S::store(words.as_mut_ptr(), S::load_pairs(chunk.as_ptr())) };
            (16, &words[..16])
        };
        for (i, word) in words.iter().enumerate() {
            // SAFETY: the caller has steps_of(row.len()) words at `stride`, which are per_group for each group.
            unsafe { *dst.add((group * per_group + i) * stride) = word.to_bits() };
        }
    }
}

simd_fn!(
    /// Writes the steps of one row at dst, dst + stride, ...
    pub fn pack_row(row: &[f32], dst: *mut u32, stride: usize, precision: Precision) = pack_row_generic
);

/// `rows` rows times one panel over `steps` steps: acc [rows][32] is overwritten if `first`, otherwise added to.
/// Meanwhile the weights `ahead` numbers further on are prefetched.
#[inline(always)]
unsafe fn tile_kernel<S: Simd, const ROWS: usize, const PAIRS: bool>(
    a: *const u32,
    w: *const f32,
    steps: usize,
    ahead: usize,
    acc: *mut f32,
    first: bool,
) {
    // SAFETY: the caller gives steps * ROWS words at a, steps * 32 at w and ROWS * 32 at acc.
    unsafe {
        let mut c = [[S::splat(0.0); 2]; ROWS];
        if !first {
            for (r, c) in c.iter_mut().enumerate() {
                *c = [S::load(acc.add(r * PANEL)), S::load(acc.add(r * PANEL + 16))];
            }
        }
        let (mut a, mut w) = (a.cast::<f32>(), w);
        for _ in 0..steps {
            let w0 = S::load(w);
            let w1 = S::load(w.add(16));
            if ROWS >= FETCH_ROWS {
                S::prefetch(w.wrapping_add(ahead).cast());
                S::prefetch(w.wrapping_add(ahead + 16).cast());
            }
            for (r, c) in c.iter_mut().enumerate() {
                let x = S::splat(*a.add(r));
                if PAIRS {
                    c[0] = S::dot_pair(c[0], x, w0);
                    c[1] = S::dot_pair(c[1], x, w1);
                } else {
                    c[0] = S::fma(x, w0, c[0]);
                    c[1] = S::fma(x, w1, c[1]);
                }
            }
            a = a.add(ROWS);
            w = w.add(PANEL);
        }
        for (r, c) in c.iter().enumerate() {
            S::store(acc.add(r * PANEL), c[0]);
            S::store(acc.add(r * PANEL + 16), c[1]);
        }
    }
}

/// As `tile_kernel`, for int8 groups: each group's sum is scaled, then added. With `WIDENED`, the steps come from w as
/// bf16 pairs, otherwise from the panel itself.
#[inline(always)]
unsafe fn group_kernel<S: Simd, const ROWS: usize, const WIDENED: bool>(
    a: *const u32,
    w: *const f32,
    panel: *const u8,
    groups: usize,
    acc: *mut f32,
    first: bool,
) {
    // SAFETY: the caller gives groups * 16 steps at a (and at w) as for tile_kernel, and groups * GROUP_BYTES at panel.
    unsafe {
        if first {
            for i in 0..2 * ROWS {
                S::store(acc.add(16 * i), S::splat(0.0));
            }
        }
        let (mut a, mut w) = (a.cast::<f32>(), w);
        for g in 0..groups {
            let group = panel.add(g * GROUP_BYTES);
            let mut c = [[S::splat(0.0); 2]; ROWS];
            for s in 0..GROUP_STEPS {
                let [w0, w1] = if WIDENED {
                    [S::load(w), S::load(w.add(16))]
                } else {
                    S::widen_int8(group.add(PANEL * 2 + s * 64))
                };
                for (r, c) in c.iter_mut().enumerate() {
                    let x = S::splat(*a.add(r));
                    c[0] = S::dot_pair(c[0], x, w0);
                    c[1] = S::dot_pair(c[1], x, w1);
                }
                a = a.add(ROWS);
                if WIDENED {
                    w = w.add(PANEL);
                }
            }
            let scales = group.cast::<bf16>();
            let s0 = S::load_bf16(scales);
            let s1 = S::load_bf16(scales.add(16));
            for (r, c) in c.iter().enumerate() {
                let (p0, p1) = (acc.add(r * PANEL), acc.add(r * PANEL + 16));
                S::store(p0, S::fma(c[0], s0, S::load(p0)));
                S::store(p1, S::fma(c[1], s1, S::load(p1)));
            }
        }
    }
}

/// Calls a kernel instantiated for the tile's height.
macro_rules! by_rows {
    ($S:ty, $rows:expr, $flag:literal, $kernel:ident($($arg:expr),*)) => {
        by_rows!(@ $S, $rows, $flag, $kernel($($arg),*), 1 2 3 4 5 6 7 8 9 10 11 12)
    };
    (@ $S:ty, $rows:expr, $flag:literal, $kernel:ident $args:tt, $($n:literal)*) => {
        match $rows {
            $($n if $n <= <$S>::TILE_ROWS => by_rows!(# $kernel::<$S, $n, $flag> $args),)*
            _ => unreachable!("a tile has 1..=TILE_ROWS rows"),
        }
    };
    (# $kernel:ident::<$S:ty, $n:literal, $flag:literal> ($($arg:expr),*)) => {
        $kernel::<$S, $n, $flag>($($arg),*)
    };
}

#[repr(align(64))]
struct Widened {
    words: [f32; CHUNK_STEPS * PANEL],
}

#[inline(always)]
unsafe fn panel_generic<S: Simd>(w: &Panels, p: usize, a: &Packed, tiles: Range<usize>, acc: &mut [f32]) {
    debug_assert_eq!(a.steps, w.steps());
    let tiles = &a.tiles[tiles];
    let Some(first_row) = tiles.first().map(|t| t.first) else { return };
    let last = tiles[tiles.len() - 1];
    assert!(
        acc.len() >= (last.first + last.rows - first_row) * PANEL
            && a.words.len() >= (last.first + last.rows) * a.steps
    );
    let panel = w.panel(p);
    let mut from = 0;
    let mut widened = std::mem::MaybeUninit::<Widened>::uninit();
    // SAFETY: only the address of a field is taken.
    let widened = unsafe { (&raw mut (*widened.as_mut_ptr()).words).cast::<f32>() };
    while from < w.steps() {
        let steps = CHUNK_STEPS.min(w.steps() - from);
        let group = from / GROUP_STEPS;
        // Widened once for all tiles, unless there are few.
        let widen = w.precision == Precision::Int8 && tiles.len() > 2;
        if widen {
            for g in 0..steps / GROUP_STEPS {
                for s in 0..GROUP_STEPS {
                    // SAFETY: the panel has steps / GROUP_STEPS groups of GROUP_BYTES; the scratch has CHUNK_STEPS.
                    unsafe {
                        let [low, high] = S::widen_int8(panel.add((group + g) * GROUP_BYTES + PANEL * 2 + s * 64));
                        let to = widened.add((g * GROUP_STEPS + s) * PANEL);
                        S::store(to, low);
                        S::store(to.add(16), high);
                    }
                }
            }
        }
        for (t, tile) in tiles.iter().enumerate() {
            // The next chunk is needed after the last tile.
            let ahead = if t + 1 == tiles.len() { CHUNK_STEPS * PANEL } else { 0 };
            // SAFETY: a tile's words are rows * steps from first * steps on, in [step][row] order; the panel has
            // w.steps() steps; acc has PANEL numbers for each row of the tiles (asserted above).
            unsafe {
                let x = a.words.as_ptr().add(tile.first * a.steps + from * tile.rows).cast::<u32>();
                let acc = acc.as_mut_ptr().add((tile.first - first_row) * PANEL);
                match w.precision {
                    Precision::F32 => {
                        let w = panel.cast::<f32>().add(from * PANEL);
                        by_rows!(S, tile.rows, false, tile_kernel(x, w, steps, ahead, acc, from == 0))
                    }
                    Precision::Bf16 => {
                        let w = panel.cast::<f32>().add(from * PANEL);
                        by_rows!(S, tile.rows, true, tile_kernel(x, w, steps, ahead, acc, from == 0))
                    }
                    Precision::Int8 => {
                        let groups = panel.add(group * GROUP_BYTES);
                        let (w, n) = (widened.cast_const(), steps / GROUP_STEPS);
                        if widen {
                            by_rows!(S, tile.rows, true, group_kernel(x, w, groups, n, acc, from == 0))
                        } else {
                            by_rows!(S, tile.rows, false, group_kernel(x, w, groups, n, acc, from == 0))
                        }
                    }
                }
            }
        }
        from += steps;
    }
}

simd_fn!(
    /// Rows of `tiles` times panel p into acc [rows][32].
    pub fn multiply_panel(w: &Panels, p: usize, a: &Packed, tiles: Range<usize>, acc: &mut [f32]) = panel_generic
);

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
pub fn row_blocks(steps: usize, tile_rows: usize, tiles: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let per_block = (ROW_BLOCK_BYTES / (steps * tile_rows * 4).max(1)).max(1);
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
        for block in row_blocks(a.steps, isa.tile_rows(), job.tiles.clone()) {
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
