//! Attention over a latent cache whose positions are split over ranks (kernels/cuda/lanes.cu): queries go to all ranks,
//! and the results of each lane come back. A row's bits depend neither on other rows nor on the number of ranks.

use super::args::AttentionArgs;
use super::attention::{DeviceCache, Heads, attention_args};
use super::batch::PlacedBatch;
use super::form::Element;
use super::latent::{CHUNK, LATENT, LatentRows, MERGE_THREADS, QUERIES, WorkOf};
use super::piece_lists::{Lanes, LatentWork};
use super::plan::{LaunchPlan, PARTIAL_BYTES, int};
use super::ranks::{Offer, PartTable, RankOps};
use super::tensor::DeviceTensor;
use crate::backend::{KvSplit, MlaSpec};
use crate::kv_split::LANES;

const THREADS: u32 = 128;

/// lanes.cu
#[derive(Clone, Copy)]
#[repr(C)]
struct LaneGatherArgs {
    latents: u64,
    queries: u64,
    out: u64,
    heads: i32,
    latent: i32,
    rope: i32,
    nope: i32,
    q_stride: i32,
}

/// lanes.cu
#[derive(Clone, Copy)]
#[repr(C)]
struct LaneAttentionArgs {
    of: AttentionArgs,
    sums: u64,
    scales: u64,
    rows: i32,
    heads: i32,
    lanes: i32,
    lane_first: i32,
    lane_step: i32,
    lane_stride: i32,
}

/// lanes.cu
#[derive(Clone, Copy)]
#[repr(C)]
struct LaneMergeArgs {
    sequences: u64,
    positions: u64,
    tile_first: u64,
    tile_rows: u64,
    partial: u64,
    partial_scale: u64,
    sums: u64,
    scales: u64,
    rows: i32,
    all: i32,
    head_first: i32,
    heads: i32,
    lanes: i32,
    lane_first: i32,
    lane_step: i32,
    chunk: i32,
    chunks: i32,
}

/// lanes.cu
#[derive(Clone, Copy)]
#[repr(C)]
struct LaneJoinArgs {
    sums: u64,
    scales: u64,
    out: u64,
    first: i32,
    rows: i32,
    heads: i32,
    width: i32,
    ranks: i32,
}

/// What a rank found in its lanes, of all heads.
struct LaneResults {
    /// [ranks * lanes * rows, heads of a rank * kv_rank]
    sums: DeviceTensor,
    /// [ranks * lanes * rows, heads of a rank]
    scales: DeviceTensor,
}

/// Rows of the batch that are computed at once.
#[derive(Clone, Copy)]
struct RowRange {
    first: usize,
    count: usize,
}

/// One op over a split cache.
pub(super) struct LaneAttention<'a> {
    pub ranks: RankOps<'a>,
    pub batch: &'a PlacedBatch<'a>,
    pub cache: &'a DeviceCache,
    pub split: KvSplit,
    /// Of this rank; all ranks have as many heads.
    pub spec: MlaSpec,
}

impl LaneAttention<'_> {
    fn lanes(&self) -> Lanes {
        let count = LANES / self.split.ranks;
        let stride = self.batch.shape.table_stride / count;
        Lanes { count, first: self.split.rank, step: self.split.ranks, stride }
    }

    fn heads_of_all(&self) -> usize {
        self.spec.heads * self.split.ranks
    }

    /// For the heads that the fast kernel takes at once. None: the plain kernel computes.
    fn work(&self, rows: usize) -> Option<LatentWork> {
        let MlaSpec { rope_dim, kv_rank, .. } = self.spec;
        let (heads, lanes) = (self.heads_of_all(), self.lanes());
        let at_once = if heads.is_multiple_of(QUERIES) { QUERIES } else { heads };
        let positions = lanes.stride * self.batch.block_size;
        let work = LatentWork::new(rows, at_once, [kv_rank, rope_dim], positions, lanes.count);
        work.filter(|_| self.ranks.ops.takes_fast(self.cache))
    }

    /// Of what a rank found.
    fn element(&self, work: Option<LatentWork>) -> Element {
        if work.is_some() { Element::Bf16 } else { Element::F32 }
    }

    /// [rows, heads * kv_rank]: the mean of the latents that each query sees. `query` [rows, heads * kv_rank] are
    /// absorbed ones, `q` [rows, heads * (nope + rope)] the others.
    pub fn mix(&self, q: &DeviceTensor, query: &DeviceTensor) -> DeviceTensor {
        let MlaSpec { heads, rope_dim, kv_rank, .. } = self.spec;
        assert!(q.is_contiguous() && query.is_contiguous(), "mla_attention: queries must be no views");
        let rows = self.batch.shape.rows;
        let work = self.work(rows);
        let of_queries = self.heads_of_all() * (kv_rank + rope_dim) * q.element.bytes();
        let of_results = self.lanes().count * self.heads_of_all() * kv_rank * self.element(work).bytes();
        let most = (PARTIAL_BYTES / of_queries.max(of_results)).max(1);
        let most = work.map_or(most, |work| most.min(work.rows));
        let out = self.ranks.ops.tensor(rows, heads * kv_rank, self.cache.element());
        for first in (0..rows).step_by(most.max(1)) {
            let range = RowRange { first, count: most.min(rows - first) };
            let queries = self.gather(q, query, range);
            let found = self.attend(&queries, range, work);
            self.join(&found, range, &out);
        }
        out
    }

    /// [rows, heads of all ranks * (kv_rank + rope)]
    fn gather(&self, q: &DeviceTensor, query: &DeviceTensor, RowRange { first, count }: RowRange) -> DeviceTensor {
        let MlaSpec { heads, nope_dim, rope_dim, kv_rank, .. } = self.spec;
        let bytes = |x: &DeviceTensor| {
            let row = x.cols * x.element.bytes();
            first * row..(first + count) * row
        };
        let (of_query, of_q) = (bytes(query), bytes(q));
        let table =
            self.ranks.exchange(&[Offer::of(query, &|_, _| of_query.clone()), Offer::of(q, &|_, _| of_q.clone())]);
        let all = self.heads_of_all();
        let out = self.ranks.ops.tensor(count, all * (kv_rank + rope_dim), q.element);
        let args = LaneGatherArgs {
            latents: table.of(0),
            queries: table.of(1),
            out: out.address,
            heads: int(heads),
            latent: int(kv_rank),
            rope: int(rope_dim),
            nope: int(nope_dim),
            q_stride: int(q.cols),
        };
        let kernel = q.element.of("lane_gather_f32", "lane_gather_bf16");
        // SAFETY: each rank offers these rows of its heads.
        unsafe { self.ranks.ops.launch(&LaunchPlan::new(kernel, [count, all, 1], THREADS), &args) };
        out
    }

    fn attend(&self, queries: &DeviceTensor, range: RowRange, work: Option<LatentWork>) -> LaneResults {
        let MlaSpec { heads, kv_rank, .. } = self.spec;
        let results = self.split.ranks * self.lanes().count * range.count;
        let found = LaneResults {
            sums: self.ranks.ops.tensor(results, heads * kv_rank, self.element(work)),
            scales: self.ranks.ops.tensor(results, heads, Element::F32),
        };
        match work {
            Some(work) => {
                let at_once = QUERIES / work.tile;
                for head in (0..self.heads_of_all()).step_by(at_once) {
                    self.attend_fast(queries, range, LatentWork { rows: range.count, ..work }, head, &found);
                }
            }
            None => self.attend_plain(queries, range, &found),
        }
        found
    }

    /// Addresses of the sequences and positions of rows from `first` on.
    fn of_rows(&self, first: usize) -> [u64; 2] {
        let parts = &self.batch.parts;
        [parts.sequences, parts.positions].map(|at| at + 4 * first as u64)
    }

    /// The absorbed queries and the rotated ones from head `head` on, and the distances of rows and heads.
    fn queries_at(&self, queries: &DeviceTensor, head: usize) -> ([u64; 2], [usize; 2]) {
        let MlaSpec { rope_dim, kv_rank, .. } = self.spec;
        let width = kv_rank + rope_dim;
        let at = |number: usize| queries.address + (number * queries.element.bytes()) as u64;
        ([at(head * width), at(head * width + kv_rank)], [queries.cols, width])
    }

    /// Of the heads that the kernel takes at once, from `head` on.
    fn attend_fast(
        &self,
        queries: &DeviceTensor,
        RowRange { first, count }: RowRange,
        work: LatentWork,
        head: usize,
        found: &LaneResults,
    ) {
        let (lanes, heads) = (self.lanes(), QUERIES / work.tile);
        let [sequences, positions] = self.of_rows(first);
        let rows = LatentRows {
            sequences,
            positions,
            tables: self.batch.parts.tables,
            table_stride: self.batch.shape.table_stride,
            first: 0,
            rows: count,
            lanes: Some(lanes),
        };
        let ([q_latent, q_rope], strides) = self.queries_at(queries, head);
        let of = WorkOf {
            heads,
            q_latent,
            q_latent_strides: strides,
            q_rope,
            q_rope_strides: strides,
            ..self.cache.work(self.spec.scale)
        };
        let pieces = self.ranks.ops.latent_pieces(rows, work, of, 0);
        let args = LaneMergeArgs {
            sequences,
            positions,
            tile_first: pieces.list.tile_first(),
            tile_rows: pieces.list.tile_rows(),
            partial: pieces.partial.address,
            partial_scale: pieces.partial_scale.address,
            sums: found.sums.address,
            scales: found.scales.address,
            rows: int(count),
            all: int(heads),
            head_first: int(head),
            heads: int(self.spec.heads),
            lanes: int(lanes.count),
            lane_first: int(lanes.first),
            lane_step: int(lanes.step),
            chunk: int(CHUNK),
            chunks: int(work.chunks),
        };
        debug_assert_eq!(self.spec.kv_rank, LATENT);
        let plan = LaunchPlan::new("lane_merge", [count, heads, lanes.count], MERGE_THREADS);
        // SAFETY: `partial` has the pieces of these rows and heads, and `found` has a place for each of their lanes.
        unsafe { self.ranks.ops.launch(&plan, &args) };
    }

    fn attend_plain(&self, queries: &DeviceTensor, RowRange { first, count }: RowRange, found: &LaneResults) {
        let MlaSpec { heads, scale, .. } = self.spec;
        let (lanes, all) = (self.lanes(), self.heads_of_all());
        let [sequences, positions] = self.of_rows(first);
        let (addresses, strides) = self.queries_at(queries, 0);
        let parts = self.cache.latent_parts(addresses, [strides; 2]);
        let of = attention_args(self.batch, parts, parts[0], Heads::of_latents(all, scale), self.cache);
        let args = LaneAttentionArgs {
            of: AttentionArgs { sequences, positions, ..of },
            sums: found.sums.address,
            scales: found.scales.address,
            rows: int(count),
            heads: int(heads),
            lanes: int(lanes.count),
            lane_first: int(lanes.first),
            lane_step: int(lanes.step),
            lane_stride: int(lanes.stride),
        };
        let kernel = match self.cache.has_codes() {
            false => self.cache.element().of("lane_attention_f32", "lane_attention_bf16"),
            true => self.cache.element().of("lane_attention_fp8_f32", "lane_attention_fp8_bf16"),
        };
        let shared = 4 * parts.iter().map(|part| part.width).sum::<usize>();
        let plan = LaunchPlan { shared, ..LaunchPlan::new(kernel, [count, all, lanes.count], THREADS) };
        // SAFETY: `begin` has compared blocks and positions with the cache. `queries` has a row for each row of the
        // range, and `found` has a place for each of its lanes.
        unsafe { self.ranks.ops.launch(&plan, &args) };
    }

    /// The lanes of all ranks, for this rank's heads.
    fn join(&self, found: &LaneResults, RowRange { first, count }: RowRange, out: &DeviceTensor) {
        let MlaSpec { heads, kv_rank, .. } = self.spec;
        let part = |x: &DeviceTensor| x.rows / self.split.ranks * x.cols * x.element.bytes();
        let [sums, scales] = [&found.sums, &found.scales].map(part);
        let table: PartTable = self.ranks.exchange(&[
            Offer::of(&found.sums, &|reader, _| reader * sums..(reader + 1) * sums),
            Offer::of(&found.scales, &|reader, _| reader * scales..(reader + 1) * scales),
        ]);
        let args = LaneJoinArgs {
            sums: table.of(0),
            scales: table.of(1),
            out: out.address,
            first: int(first),
            rows: int(count),
            heads: int(heads),
            width: int(kv_rank),
            ranks: int(self.split.ranks),
        };
        let kernel = match (found.sums.element, out.element) {
            (Element::Bf16, _) => "lane_join_bf16",
            (Element::F32, Element::F32) => "lane_join_f32",
            (Element::F32, Element::Bf16) => "lane_join_f32_bf16",
        };
        // SAFETY: each rank offers what it found for this rank's heads, and `out` has these rows.
        unsafe { self.ranks.ops.launch(&LaunchPlan::new(kernel, [count, heads, 1], THREADS), &args) };
    }
}
