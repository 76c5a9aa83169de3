//! Attention of grouped heads on tensor cores (kernels/cuda/flash.cu). How a row is computed changes none of its bits.

use std::ops::Range;

use super::batch::PlacedBatch;
use super::form::Element;
use super::op_stream::OpStream;
use super::plan::{LaunchPlan, PARTIAL_BYTES, int};
use super::tensor::DeviceTensor;
use crate::backend::GqaSpec;

/// Queries of a block that joins all chunks, and of one that has a chunk of a row.
const QUERIES: usize = 128;
const SPLIT_QUERIES: usize = 64;
/// Positions of a chunk.
const CHUNK: usize = 256;
/// Rows of keys and values in shared memory: two tiles of 64 positions each.
const KEY_VALUE_ROWS: usize = 256;
/// Widths of heads, filled up with zeros.
const WIDTHS: [usize; 2] = [64, 128];
/// Numbers of a head are copied by so many.
const COPIED: usize = 8;
/// Numbers beside the values of a chunk: its largest score and its sum of weights, and the alignment.
const CHUNK_NUMBERS: usize = 4;
const THREADS: u32 = 256;
const SPLIT_THREADS: u32 = 128;

/// flash.cu
#[derive(Clone, Copy)]
#[repr(C)]
struct FlashArgs {
    q: u64,
    k: u64,
    v: u64,
    out: u64,
    partial: u64,
    sequences: u64,
    positions: u64,
    tables: u64,
    entry: usize,
    first: i32,
    rows: i32,
    q_stride: i32,
    head_dim: i32,
    group: i32,
    tile_rows: i32,
    table_stride: i32,
    block_size: i32,
    window: i32,
    chunks: i32,
    partial_stride: i32,
    scale: f32,
    scales: u64,
    scales_of_place: i32,
    sharing: i32,
    value_first: i32,
    sinks: u64,
}

/// Keys and values of one layer, [places, kv_heads * head_dim] each, in blocks.
#[derive(Clone, Copy)]
pub(super) struct CachedHeads {
    pub k: u64,
    pub v: u64,
    pub block_size: usize,
    /// Of codes.
    pub scaling: Option<HeadScales>,
}

/// The scales of codes.
#[derive(Clone, Copy, Default)]
pub(super) struct HeadScales {
    pub scales: u64,
    pub of_place: usize,
    /// Numbers that share one.
    pub sharing: usize,
    /// Where those of a value begin.
    pub value_first: usize,
}

/// Which kernels take heads of a spec. None: none does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FlashPlan {
    /// With the zeros that fill it up.
    width: usize,
    group: usize,
}

impl FlashPlan {
    /// Rows of queries begin `stride` numbers apart.
    pub fn new(spec: &GqaSpec, element: Element, stride: usize) -> Option<FlashPlan> {
        let GqaSpec { heads, kv_heads, head_dim, .. } = *spec;
        let (width, group) = (WIDTHS.into_iter().find(|&width| head_dim <= width)?, heads / kv_heads);
        let copies = [head_dim, stride].iter().all(|numbers| numbers.is_multiple_of(COPIED));
        (element == Element::Bf16 && copies && group <= SPLIT_QUERIES).then_some(FlashPlan { width, group })
    }

    /// Rows of a block.
    fn tile_rows(self) -> usize {
        QUERIES / self.group
    }

    /// Numbers of a chunk of a query.
    fn partial_stride(self) -> usize {
        self.width + CHUNK_NUMBERS
    }

    fn shared(self, queries: usize) -> usize {
        (queries + KEY_VALUE_ROWS) * self.width * Element::Bf16.bytes()
    }

    fn whole(self, codes: bool, rows: usize, kv_heads: usize) -> LaunchPlan {
        let kernel = match (codes, self.width == WIDTHS[0]) {
            (false, true) => "flash_bf16_64",
            (false, false) => "flash_bf16_128",
            (true, true) => "flash_fp8_64",
            (true, false) => "flash_fp8_128",
        };
        let grid = [rows.div_ceil(self.tile_rows()), kv_heads, 1];
        LaunchPlan { shared: self.shared(QUERIES), ..LaunchPlan::new(kernel, grid, THREADS) }
    }

    fn split(self, codes: bool, rows: usize, kv_heads: usize, chunks: usize) -> LaunchPlan {
        let kernel = match (codes, self.width == WIDTHS[0]) {
            (false, true) => "flash_split_bf16_64",
            (false, false) => "flash_split_bf16_128",
            (true, true) => "flash_split_fp8_64",
            (true, false) => "flash_split_fp8_128",
        };
        LaunchPlan {
            shared: self.shared(SPLIT_QUERIES),
            ..LaunchPlan::new(kernel, [rows, kv_heads, chunks], SPLIT_THREADS)
        }
    }
}

impl OpStream {
    /// [rows, heads * head_dim]. `sinks`: for each head a score without a value; 0: there are none.
    pub fn flash(
        &self,
        batch: &PlacedBatch,
        q: &DeviceTensor,
        cache: CachedHeads,
        sinks: u64,
        spec: &GqaSpec,
        plan: FlashPlan,
    ) -> DeviceTensor {
        let GqaSpec { heads, kv_heads, head_dim, scale, window } = *spec;
        let out = self.tensor(batch.shape.rows, heads * head_dim, Element::Bf16);
        let chunks = (batch.shape.table_stride * cache.block_size).div_ceil(CHUNK).max(1);
        let of_row = heads * chunks * plan.partial_stride() * size_of::<f32>();
        let (codes, scaling) = (cache.scaling.is_some(), cache.scaling.unwrap_or_default());
        let parts = &batch.parts;
        let lengths = batch.rows.spans.iter().map(|span| span.len);
        let runs = if batch.shape.decode { vec![(0..batch.shape.rows, true)] } else { runs(lengths) };
        for (rows, split) in runs {
            let at_once = if split { (PARTIAL_BYTES / of_row).clamp(1, rows.len()) } else { rows.len() };
            let partial = (split && chunks > 1).then(|| self.take(at_once * of_row));
            for first in rows.clone().step_by(at_once) {
                let count = at_once.min(rows.end - first);
                let args = FlashArgs {
                    q: q.address,
                    k: cache.k,
                    v: cache.v,
                    out: out.address,
                    partial: partial.as_ref().map_or(0, |partial| partial.address),
                    sequences: parts.sequences,
                    positions: parts.positions,
                    tables: parts.tables,
                    entry: kv_heads * head_dim,
                    first: int(first),
                    rows: int(count),
                    q_stride: int(q.stride),
                    head_dim: int(head_dim),
                    group: int(plan.group),
                    tile_rows: if split { 1 } else { int(plan.tile_rows()) },
                    table_stride: int(batch.shape.table_stride),
                    block_size: int(cache.block_size),
                    window: int(window.unwrap_or(0)),
                    chunks: int(chunks),
                    partial_stride: int(plan.partial_stride()),
                    scale,
                    scales: scaling.scales,
                    scales_of_place: int(scaling.of_place),
                    sharing: int(scaling.sharing.max(1)),
                    value_first: int(scaling.value_first),
                    sinks,
                };
                let launch = match split {
                    true => plan.split(codes, count, kv_heads, chunks),
                    false => plan.whole(codes, count, kv_heads),
                };
                // SAFETY: `begin` has compared blocks and positions with the cache; queries and out have a row for each
                // of the batch; partial has room for all chunks of these rows, and is not used if a row has one at
                // most.
                unsafe { self.launch(&launch, &args) };
                if split && chunks > 1 {
                    // SAFETY: as above.
                    unsafe { self.launch(&LaunchPlan::new("flash_merge", [count, heads, 1], SPLIT_THREADS), &args) };
                }
            }
        }
        out
    }
}

/// The rows of sequences with these numbers of rows, in runs that are computed alike: those of sequences with one row,
/// which have a block for each chunk (there would be few blocks otherwise), and the others.
fn runs(lengths: impl Iterator<Item = usize>) -> Vec<(Range<usize>, bool)> {
    let mut runs: Vec<(Range<usize>, bool)> = Vec::new();
    let mut end = 0;
    for length in lengths {
        let (rows, split) = (end..end + length, length == 1);
        end = rows.end;
        match runs.last_mut() {
            Some((run, of_run)) if *of_run == split => run.end = end,
            _ => runs.push((rows, split)),
        }
    }
    runs
}

#[cfg(test)]
mod tests;
