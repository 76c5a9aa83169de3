//! How kernels are launched: which one, over which grid. Plans are pure; what they launch is documented in each
//! kernel's file. The kernel and its threads never depend on the number of rows, so that neither do a row's bits.

use std::fmt;

use super::form::{Element, WeightForm};
use crate::backend::{DeltaSpec, ScaleForm};

/// Threads of kernels that work row by row, or number by number.
const ROW_THREADS: u32 = 256;
/// Threads of a block of `rope`, `cache_write` and `attention`.
const HEAD_THREADS: u32 = 128;
/// Numbers that a block of `rope` rotates.
const ROTATED: usize = 512;
/// Numbers of a row that share a scale in FP8, one thread for each.
pub(super) const FP8_GROUP: usize = 128;
/// Rows and columns of a tile of a product.
const TILE: usize = 64;
/// The same in `linear_mixed` for up to so many rows.
const FEW_MIXED_TILE: [usize; 2] = [16, 8];
const FEW_MIXED_ROWS: usize = 512;
/// At most so many rows of blocks work on places of routes, whose number the host does not know.
pub(super) const PLACE_BLOCKS: usize = 1024;
const DRAW_THREADS: u32 = 512;
/// At most so many tokens are drawn at the same time; each takes work memory.
const DRAW_BLOCKS: usize = 128;
/// Blocks that copy a row, and rows that are copied at the same time.
const STASH_GRID: [usize; 2] = [32, 8];
/// Attention in parts keeps parts of this many bytes at once; longer steps compute some rows after others.
pub(super) const PARTIAL_BYTES: usize = 256 << 20;

/// Arguments of kernels are ints; sizes come from config.json.
pub(super) fn int(size: usize) -> i32 {
    i32::try_from(size).unwrap_or_else(|_| panic!("{size} is too large for a kernel"))
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaunchPlan {
    pub kernel: &'static str,
    pub grid: [usize; 3],
    /// Of a block.
    pub threads: u32,
    /// Bytes of dynamic shared memory.
    pub shared: usize,
    /// Blocks along x that share memory; 1: none do.
    pub cluster: usize,
    /// All blocks run at the same time, because they wait for each other.
    pub together: bool,
    /// It waits for the kernels before it itself, so its blocks may take their places earlier.
    pub overlaps: bool,
}

impl fmt::Display for LaunchPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LaunchPlan { kernel, grid: [x, y, z], threads, shared, .. } = self;
        write!(f, "kernel {kernel} ({x} x {y} x {z} blocks of {threads} threads, {shared} bytes of shared memory)")
    }
}

/// Heads that a block of `rope` rotates.
pub(super) fn heads_of_block(dims: usize) -> usize {
    (ROTATED / dims.max(1)).max(1)
}

impl LaunchPlan {
    /// Of a kernel that begins with ENTRY (kernels/cuda/common.cuh).
    pub(super) fn new(kernel: &'static str, grid: [usize; 3], threads: u32) -> LaunchPlan {
        LaunchPlan { kernel, grid, threads, shared: 0, cluster: 1, together: false, overlaps: true }
    }

    /// Of a kernel that does not wait for those before it.
    pub(super) fn apart(kernel: &'static str, grid: [usize; 3], threads: u32) -> LaunchPlan {
        LaunchPlan { overlaps: false, ..LaunchPlan::new(kernel, grid, threads) }
    }

    /// A block for each row.
    pub(super) fn by_row(kernel: &'static str, rows: usize) -> LaunchPlan {
        LaunchPlan::new(kernel, [rows, 1, 1], ROW_THREADS)
    }

    /// A thread for each number of each row.
    pub(super) fn by_column(kernel: &'static str, rows: usize, cols: usize) -> LaunchPlan {
        LaunchPlan::new(kernel, [rows, cols.div_ceil(ROW_THREADS as usize), 1], ROW_THREADS)
    }

    /// A block for each group of columns of each row.
    pub(super) fn by_group(kernel: &'static str, rows: usize, groups: usize) -> LaunchPlan {
        LaunchPlan::new(kernel, [rows, groups, 1], ROW_THREADS)
    }

    /// A thread for each 8 numbers of each row.
    pub(super) fn by_columns(kernel: &'static str, rows: usize, cols: usize) -> LaunchPlan {
        LaunchPlan::new(kernel, [rows, cols.div_ceil(8 * ROW_THREADS as usize), 1], ROW_THREADS)
    }

    /// A warp for each number of each row.
    pub(super) fn by_warp(kernel: &'static str, rows: usize, cols: usize) -> LaunchPlan {
        LaunchPlan::new(kernel, [rows, cols.div_ceil(ROW_THREADS as usize / 32), 1], ROW_THREADS)
    }

    /// A thread for each of some numbers.
    pub(super) fn by_number(kernel: &'static str, numbers: usize) -> LaunchPlan {
        LaunchPlan::new(kernel, [numbers.div_ceil(ROW_THREADS as usize), 1, 1], ROW_THREADS)
    }

    /// A warp for each group of numbers of a row that share a scale in FP8.
    pub(super) fn by_fp8_group(kernel: &'static str, rows: usize, cols: usize) -> LaunchPlan {
        let warps = ROW_THREADS as usize / 32;
        LaunchPlan::new(kernel, [rows, cols.div_ceil(warps * FP8_GROUP), 1], ROW_THREADS)
    }

    /// `count` products of rows of numbers `x` with weights [outs, any] of a form.
    pub(super) fn product(form: WeightForm, x: Element, out: Element, [rows, outs, count]: [usize; 3]) -> LaunchPlan {
        let mut tile = [TILE; 2];
        let (kernel, threads) = match (form, x, out) {
            (WeightForm::F32, Element::F32, Element::F32) => ("linear_f32", 256),
            (WeightForm::F32, Element::Bf16, Element::F32) => {
                if rows <= FEW_MIXED_ROWS {
                    tile = FEW_MIXED_TILE;
                }
                ("linear_mixed", 256)
            }
            (WeightForm::Bf16, Element::Bf16, out) => (out.of("linear_bf16_f32", "linear_bf16"), 128),
            (WeightForm::Fp8 { .. }, _, out) => (out.of("linear_fp8_f32", "linear_fp8"), 128),
            (WeightForm::Int4 { scales: ScaleForm::F32, .. }, Element::Bf16, out) => {
                (out.of("linear_int4_f32", "linear_int4"), 128)
            }
            (WeightForm::Int4 { scales: ScaleForm::Bf16, .. }, Element::Bf16, out) => {
                (out.of("linear_int4_bf16_scales_f32", "linear_int4_bf16_scales"), 128)
            }
            (WeightForm::Mxfp4, Element::Bf16, out) => (out.of("linear_mxfp4_f32", "linear_mxfp4"), 128),
            (form, x, out) => panic!("no product of {x:?} and {form:?} as {out:?}"),
        };
        LaunchPlan::new(kernel, [outs.div_ceil(tile[1]), rows.div_ceil(tile[0]), count], threads)
    }

    /// Rotates the heads of each row, which so many blocks have.
    pub(super) fn rope(element: Element, rows: usize, blocks: usize) -> LaunchPlan {
        LaunchPlan::new(element.of("rope_f32", "rope_bf16"), [rows, blocks, 1], HEAD_THREADS)
    }

    /// Writes the rows' entries.
    pub(super) fn cache_write(element: Element, rows: usize) -> LaunchPlan {
        LaunchPlan::new(element.of("cache_write_f32", "cache_write_bf16"), [rows, 2, 1], HEAD_THREADS)
    }

    /// Stores the rows' entries as codes, in groups that share a scale.
    pub(super) fn cache_fp8(element: Element, rows: usize, groups: usize) -> LaunchPlan {
        LaunchPlan::new(element.of("cache_fp8_f32", "cache_fp8_bf16"), [rows, groups, 1], HEAD_THREADS)
    }

    /// Queries have `width` numbers; the cache has codes, or numbers of their type.
    pub(super) fn attention(element: Element, codes: bool, rows: usize, heads: usize, width: usize) -> LaunchPlan {
        let kernel = match codes {
            false => element.of("attention_f32", "attention_bf16"),
            true => element.of("attention_fp8_f32", "attention_fp8_bf16"),
        };
        LaunchPlan { shared: 4 * width, ..LaunchPlan::new(kernel, [rows, heads, 1], HEAD_THREADS) }
    }

    pub(super) fn route(rows: usize, experts: usize, groups: usize) -> LaunchPlan {
        let shared = 4 * (2 * experts + groups) + experts.max(groups);
        LaunchPlan { shared, ..LaunchPlan::new("route_f32", [rows, 1, 1], 32) }
    }

    /// The convolution, then the heads; the second shares a query, a key and a result.
    pub(super) fn delta_net(element: Element, sequences: usize, spec: &DeltaSpec) -> [LaunchPlan; 2] {
        let heads = |kernel, heads| LaunchPlan::new(kernel, [sequences, heads, 1], HEAD_THREADS);
        let net = heads(element.of("delta_net_f32", "delta_net_bf16"), spec.value_heads);
        let shared = 4 * (2 * spec.key_dim + spec.value_dim);
        [heads(element.of("delta_mix_f32", "delta_mix_bf16"), spec.key_heads), LaunchPlan { shared, ..net }]
    }

    /// Draws tokens. What each block needs is the kernel's work memory.
    pub(super) fn draw(tasks: usize) -> LaunchPlan {
        LaunchPlan::new("draw_tokens", [tasks.min(DRAW_BLOCKS), 1, 1], DRAW_THREADS)
    }

    pub(super) fn stash(stashes: usize, vocab: usize) -> LaunchPlan {
        let columns = vocab.div_ceil(ROW_THREADS as usize).min(STASH_GRID[0]);
        LaunchPlan::new("stash_logits", [columns, stashes.min(STASH_GRID[1]), 1], ROW_THREADS)
    }
}

#[cfg(test)]
mod tests;
