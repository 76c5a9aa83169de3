//! Attention over the latent cache by FlashInfer's kernel. Which positions a piece of work covers depends on the row
//! alone, so that its bits do not depend on other rows.

use std::sync::Arc;

use super::DeviceBuffer;
use super::arena::ArenaBlock;
use super::batch::PlacedBatch;
use super::fast::{FastDivisor, LatentArgs};
use super::form::Element;
use super::op_stream::OpStream;
use super::piece_lists::{Lanes, LatentWork, PieceList, PiecesOf};
use super::plan::{LaunchPlan, PARTIAL_BYTES, int};
use super::tensor::DeviceTensor;

pub(super) const LATENT: usize = 512;
const ROPE: usize = 64;
/// Latent columns whose codes share a scale.
pub(super) const LATENT_SHARING: usize = 128;
/// Queries of a tile: rows times heads.
pub(super) const QUERIES: usize = 64;
/// Positions of a piece of work.
pub(super) const CHUNK: usize = 512;
/// `latent_attention_shared` of flashinfer.cu.
pub(super) const SHARED: usize = 222_048;
/// `latent_attention_fp8_shared`.
pub(super) const FP8_SHARED: usize = 230_208;
const THREADS: u32 = 256;
pub(super) const MERGE_THREADS: u32 = 128;

/// latent.cu
#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct LatentWorkArgs {
    sequences: u64,
    positions: u64,
    /// first_row, first_block, partial_at, row_count, kv_len, first_query, from, to, tile_first, tile_rows, work
    arrays: [u64; 11],
    first: i32,
    rows: i32,
    heads: i32,
    table_stride: i32,
    tile: i32,
    chunk: i32,
    chunks: i32,
    blocks: i32,
    lanes: i32,
    lane_first: i32,
    lane_step: i32,
    lane_stride: i32,
}

/// latent.cu
#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct LatentMergeArgs {
    sequences: u64,
    positions: u64,
    tile_first: u64,
    tile_rows: u64,
    partial: u64,
    partial_scale: u64,
    out: u64,
    first: i32,
    heads: i32,
    chunk: i32,
    chunks: i32,
    out_stride: i32,
}

/// Queries and the cache, as addresses and distances in numbers.
#[derive(Debug, Clone, Copy)]
pub(super) struct WorkOf {
    pub heads: usize,
    pub block_size: usize,
    pub scale: f32,
    pub latent: u64,
    pub rope: u64,
    /// Of codes.
    pub scales: Option<u64>,
    /// [rows, heads, 512]; the distances of rows and heads follow.
    pub q_latent: u64,
    pub q_latent_strides: [usize; 2],
    pub q_rope: u64,
    pub q_rope_strides: [usize; 2],
}

/// Rows of a batch whose pieces are computed together, of the rank's lanes or of all positions.
#[derive(Debug, Clone, Copy)]
pub(super) struct LatentRows {
    /// Addresses of the batch's, from which `first` counts.
    pub sequences: u64,
    pub positions: u64,
    pub tables: u64,
    pub table_stride: usize,
    pub first: usize,
    pub rows: usize,
    pub lanes: Option<Lanes>,
}

/// The pieces of rows, computed.
pub(super) struct LatentPieces {
    pub partial: ArenaBlock,
    pub partial_scale: ArenaBlock,
    pub list: Arc<PieceList>,
}

impl LatentWork {
    /// Of a step with block tables of `positions` positions, in each of `lanes`. None: the kernel takes no such heads
    /// or widths.
    pub fn new(rows: usize, heads: usize, widths: [usize; 2], positions: usize, lanes: usize) -> Option<LatentWork> {
        if widths != [LATENT, ROPE] || heads == 0 || !QUERIES.is_multiple_of(heads) {
            return None;
        }
        let (tile, chunks) = (QUERIES / heads, positions.div_ceil(CHUNK).max(1));
        let most = PARTIAL_BYTES / (lanes * chunks * heads * LATENT * Element::Bf16.bytes());
        // A tile has rows of one part only, wherever it begins.
        Some(LatentWork { rows: rows.min(most.max(1)), chunks, tile })
    }
}

impl OpStream {
    /// [rows, heads * 512]: the mean of the latents that each query sees.
    pub fn fast_latent(&self, batch: &PlacedBatch, work: LatentWork, of: WorkOf) -> DeviceTensor {
        let rows = batch.shape.rows;
        let out = self.tensor(rows, of.heads * LATENT, Element::Bf16);
        for first in (0..rows).step_by(work.rows) {
            self.latent_rows(batch, work, of, [first, work.rows.min(rows - first)], &out);
        }
        out
    }

    fn latent_rows(
        &self,
        batch: &PlacedBatch,
        work: LatentWork,
        of: WorkOf,
        [first, rows]: [usize; 2],
        out: &DeviceTensor,
    ) {
        let parts = &batch.parts;
        let of_rows = LatentRows {
            sequences: parts.sequences,
            positions: parts.positions,
            tables: parts.tables,
            table_stride: batch.shape.table_stride,
            first,
            rows,
            lanes: None,
        };
        let pieces = self.latent_pieces(of_rows, work, of, out.address);
        let args = LatentMergeArgs {
            sequences: parts.sequences,
            positions: parts.positions,
            tile_first: pieces.list.tile_first(),
            tile_rows: pieces.list.tile_rows(),
            partial: pieces.partial.address,
            partial_scale: pieces.partial_scale.address,
            out: out.address,
            first: int(first),
            heads: int(of.heads),
            chunk: int(CHUNK),
            chunks: int(work.chunks),
            out_stride: int(of.heads * LATENT),
        };
        let plan = LaunchPlan::new("latent_merge", [rows, of.heads, 1], MERGE_THREADS);
        // SAFETY: queries, cache and out are those of the batch; partial has room for all pieces.
        unsafe { self.launch(&plan, &args) };
    }

    /// The pieces of these rows, which are the same in all layers of a step: the list of an earlier layer, if there is
    /// one.
    fn latent_list(&self, at: LatentRows, heads: usize, work: LatentWork) -> Arc<PieceList> {
        let LatentRows { sequences, first, rows, lanes, .. } = at;
        let of = PiecesOf { sequences, first, rows, heads, work, lanes };
        self.step_pieces.get(of, || self.make_pieces(at, heads, work))
    }

    fn make_pieces(&self, at: LatentRows, heads: usize, work: LatentWork) -> [ArenaBlock; 11] {
        let LatentRows { sequences, rows, lanes, .. } = at;
        let blocks = self.device.properties.multiprocessors as usize;
        let lanes = lanes.unwrap_or(Lanes { count: 0, first: 0, step: 0, stride: 0 });
        let places = rows * work.chunks * lanes.count.max(1);
        // Each row may be a tile of its own.
        let arrays: [ArenaBlock; 11] = std::array::from_fn(|i| match i {
            8 | 9 => self.take(4 * rows),
            10 => self.take(4 * (blocks + 1)),
            _ => self.take(4 * places),
        });
        let args = LatentWorkArgs {
            sequences,
            positions: at.positions,
            arrays: arrays.each_ref().map(|block| block.address),
            first: int(at.first),
            rows: int(rows),
            heads: int(heads),
            table_stride: int(at.table_stride),
            tile: int(work.tile),
            chunk: int(CHUNK),
            chunks: int(work.chunks),
            blocks: int(blocks),
            lanes: int(lanes.count),
            lane_first: int(lanes.first),
            lane_step: int(lanes.step),
            lane_stride: int(lanes.stride),
        };
        // SAFETY: each array has a number for each piece that these rows can have, or for each row.
        unsafe { self.launch(&LaunchPlan::new("latent_work", [1, 1, 1], THREADS), &args) };
        arrays
    }

    /// `out`: where the only piece of a row goes, unless there are lanes.
    pub(super) fn latent_pieces(&self, at: LatentRows, work: LatentWork, of: WorkOf, out: u64) -> LatentPieces {
        let (heads, blocks) = (of.heads, self.device.properties.multiprocessors as usize);
        let places = at.rows * work.chunks * at.lanes.map_or(1, |lanes| lanes.count);
        let list = self.latent_list(at, heads, work);
        let [first_row, first_block, partial_at, row_count, positions, first_query, from, to, _, _, end] =
            list.arrays.each_ref().map(|block| block.address);
        let partial = self.take(places * heads * LATENT * Element::Bf16.bytes());
        let pieces = LatentPieces { partial, partial_scale: self.take(4 * places * heads), list };
        let Some(zeros) = self.fast.as_ref().map(DeviceBuffer::address) else { return pieces };
        let args = LatentArgs {
            q_latent: of.q_latent,
            q_rope: of.q_rope,
            latent: of.latent,
            rope: of.rope,
            partial: pieces.partial.address,
            partial_scale: pieces.partial_scale.address,
            out,
            first_row,
            first_block,
            partial_at,
            merge: [zeros; 5],
            tables: at.tables,
            row_count,
            positions,
            first_query,
            from,
            to,
            work: end,
            block_size: FastDivisor::new(of.block_size as u32),
            heads: FastDivisor::new(heads as u32),
            q_latent_stride: of.q_latent_strides[0] as u32,
            q_latent_head_stride: of.q_latent_strides[1] as u32,
            q_rope_stride: of.q_rope_strides[0] as u32,
            q_rope_head_stride: of.q_rope_strides[1] as u32,
            latent_block_stride: (of.block_size * LATENT) as u32,
            latent_stride: LATENT as u32,
            rope_block_stride: (of.block_size * ROPE) as u32,
            rope_stride: ROPE as u32,
            out_stride: (heads * LATENT) as u32,
            out_head_stride: LATENT as u32,
            scale: of.scale,
            latent_scale: 1.0,
            rope_scale: 1.0,
            scales: of.scales.unwrap_or(0),
            ..LatentArgs::default()
        };
        let (kernel, shared) = match of.scales {
            None => ("latent_attention", SHARED),
            Some(_) => ("latent_attention_fp8", FP8_SHARED),
        };
        let plan = LaunchPlan { shared, together: true, ..LaunchPlan::apart(kernel, [1, blocks, 1], THREADS) };
        // SAFETY: queries, cache and out are those of the batch, which `begin` has compared with each other; partial
        // has room for all pieces.
        unsafe { self.launch(&plan, &args) };
        pieces
    }
}
