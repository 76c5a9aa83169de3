//! The CPU backend: packed weights, SIMD kernels chosen at run time, a thread pool per rank.
// Kernels count lanes and rows by index on purpose.
#![allow(clippy::needless_range_loop)]

mod attention;
mod buffer;
mod combine;
mod dispatch;
mod gemm;
mod memory;
mod moe;
mod pool;
pub(crate) mod probe;
mod rope;
mod route;
mod simd;
#[cfg(test)]
mod tests;
mod weights;
#[cfg(target_arch = "x86_64")]
mod x86;

use std::sync::Arc;

use half::bf16;

use attention::{AttentionPlan, EntryField, QueryPart};
use buffer::Buffer;
use dispatch::Counts;
use gemm::{GemmJob, Packed};
use memory::Arena;
use pool::{SharedPtr, ThreadPool};
pub use simd::Isa;
use weights::{PackSource, Panels};

use crate::backend::*;
use crate::collective::Collective;
use crate::error::{KernelError, Result};

/// Elementwise work below this many numbers is not split over threads.
const PARALLEL_NUMBERS: usize = 32 << 10;

/// Activations, row-major.
#[derive(Debug, Clone)]
pub struct Tensor {
    rows: usize,
    cols: usize,
    data: Buffer,
}

impl Tensor {
    pub fn data(&self) -> &[f32] {
        &self.data
    }
}

/// A packed weight.
#[derive(Debug)]
pub struct Linear(Weight);

#[derive(Debug)]
enum Weight {
    Plain(Panels),
    /// Per head: q_nope to latent [kv_rank, nope], and latent to value [v, kv_rank].
    Absorbed {
        to_latent: Vec<Panels>,
        to_value: Vec<Panels>,
    },
}

#[derive(Debug)]
pub struct Embedding(HostMatrix);

pub use attention::KvCache;
pub use moe::Experts;
pub use route::Routes;

/// One rank on the CPU.
pub struct Cpu {
    isa: Isa,
    pool: ThreadPool,
    arena: Arena,
    rope: rope::AngleTables,
    collective: Box<dyn Collective>,
    counts: Option<Arc<Counts>>,
}

impl Cpu {
    /// `threads` participants per op, including the calling thread (at least 1).
    pub fn new(threads: usize, collective: Box<dyn Collective>) -> Cpu {
        Cpu::with_isa(threads, collective, Isa::detect())
    }

    /// With a given instruction set from `Isa::available()`; otherwise the detected one is used.
    pub fn with_isa(threads: usize, collective: Box<dyn Collective>, isa: Isa) -> Cpu {
        let isa = if Isa::available().contains(&isa) { isa } else { Isa::detect() };
        Cpu {
            isa,
            pool: ThreadPool::new(threads.max(1)),
            arena: Arena::default(),
            rope: rope::AngleTables::default(),
            collective,
            counts: None,
        }
    }

    pub fn isa(&self) -> Isa {
        self.isa
    }

    pub fn threads(&self) -> usize {
        self.pool.threads()
    }

    /// Runs `f(first row, part)` over parts of `data` made of whole rows.
    fn by_rows(&self, data: &mut [f32], cols: usize, f: &(dyn Fn(usize, &mut [f32]) + Sync)) {
        let rows = data.len().checked_div(cols).unwrap_or(0);
        if data.len() < PARALLEL_NUMBERS || self.pool.threads() == 1 {
            return f(0, data);
        }
        let per_item = rows.div_ceil(4 * self.pool.threads());
        let base = SharedPtr(data.as_mut_ptr());
        self.pool.run(rows.div_ceil(per_item), &|i| {
            let (from, to) = (i * per_item, rows.min((i + 1) * per_item));
            // SAFETY: rows from..to of data, which no other item has.
            let part = unsafe { std::slice::from_raw_parts_mut(base.get().add(from * cols), (to - from) * cols) };
            f(from, part);
        });
    }

    fn pack(&self, source: &PackSource, precision: Precision) -> Result<Panels> {
        Panels::pack(&self.pool, self.isa, &self.arena, source, precision)
    }
}

fn tensor(rows: usize, cols: usize, data: Vec<f32>) -> Tensor {
    assert_eq!(data.len(), rows * cols, "a tensor [{rows}, {cols}]");
    Tensor { rows, cols, data: data.into() }
}

/// Must be overwritten completely.
fn stale(rows: usize, cols: usize) -> Tensor {
    Tensor { rows, cols, data: Buffer::stale(rows * cols) }
}

fn zeros(rows: usize, cols: usize) -> Tensor {
    Tensor { rows, cols, data: Buffer::zeroed(rows * cols) }
}

fn shape(op: &'static str, what: String) -> KernelError {
    KernelError::Shape { op, what }
}

impl Cpu {
    fn through_experts(&self, x: &Tensor, routes: &Routes, picks: Option<&[u32]>, experts: &Experts) -> Tensor {
        assert_eq!(routes.experts.len(), x.rows * routes.top_k, "moe: routes for each row");
        assert!(experts.shape().is_none_or(|(_, hidden)| hidden == x.cols), "moe: inputs");
        let mut out = zeros(picks.map_or(x.rows, <[u32]>::len), x.cols);
        moe::experts(&self.pool, self.isa, &x.data, routes, picks, experts, &mut out.data);
        out
    }

    /// All routes to the experts of this rank. A row's contributions are added in the order in which the experts are
    /// held.
    fn moe_experts(&self, x: &Tensor, routes: &Routes, experts: &Experts) -> Tensor {
        self.through_experts(x, routes, None, experts)
    }

    /// Some of the routes, given by index: one row per route.
    fn moe_parts(&self, x: &Tensor, routes: &Routes, picks: &[u32], experts: &Experts) -> Tensor {
        self.through_experts(x, routes, Some(picks), experts)
    }

    /// Adds the results of `moe_parts` over the ranks that computed them, and the partial sums `shared`. `dispatch` has
    /// the rank of each route. A row's parts are added in the order of their experts.
    fn moe_combine(
        &self,
        parts: &Tensor,
        routes: &Routes,
        dispatch: &[u32],
        shared: Option<&Tensor>,
    ) -> Result<Tensor> {
        combine::combine(&*self.collective, parts, routes, dispatch, shared)
    }
}

impl Backend for Cpu {
    type Tensor = Tensor;
    type Vector = Vec<f32>;
    type Linear = Linear;
    type Embedding = Embedding;
    type Experts = Experts;
    type Routes = Routes;
    type Cache = KvCache;

    fn vector(&self, values: Vec<f32>) -> Result<Vec<f32>> {
        Ok(values)
    }

    fn linear_weight(&self, weight: HostMatrix, precision: Precision) -> Result<Linear> {
        Ok(Linear(Weight::Plain(self.pack(&PackSource::whole(&weight), precision)?)))
    }

    /// Stored unchanged for f32, otherwise as bf16.
    fn embedding(&self, mut table: HostMatrix, precision: Precision) -> Result<Embedding> {
        let len = match &table.data {
            HostData::F32(v) => v.len(),
            HostData::Bf16(v) => v.len(),
        };
        if len != table.rows * table.cols {
            return Err(shape("embedding", format!("[{}, {}] does not hold {len} numbers", table.rows, table.cols)));
        }
        if let (HostData::F32(v), Precision::Bf16 | Precision::Int8) = (&table.data, precision) {
            table.data = HostData::Bf16(v.iter().map(|&x| bf16::from_f32(x)).collect());
        }
        Ok(Embedding(table))
    }

    fn experts(
        &self,
        table: ExpertTable,
        weights: &mut dyn Iterator<Item = Result<ExpertWeights>>,
        precision: Precision,
    ) -> Result<Experts> {
        let mut experts = Experts::new(table, precision);
        for weights in weights {
            let ExpertWeights { id, gate, up, down } = weights?;
            let (inter, hidden) = experts.shape().unwrap_or((gate.rows, gate.cols));
            let fits = |m: &HostMatrix, rows, cols| m.rows == rows && m.cols == cols;
            if !(fits(&gate, inter, hidden) && fits(&up, inter, hidden) && fits(&down, hidden, inter)) {
                let what = format!("expert {id}: gate and up must be [{inter}, {hidden}], down [{hidden}, {inter}]");
                return Err(shape("experts", what));
            }
            let (gate, up) = (PackSource::whole(&gate), PackSource::whole(&up));
            let [gate, up] = Panels::pack_side_by_side(&self.pool, self.isa, &self.arena, [&gate, &up], precision)?;
            experts.push(id, [gate, up, self.pack(&PackSource::whole(&down), precision)?])?;
        }
        Ok(experts)
    }

    fn regroup(&self, held: &Experts, fresh: &Experts, ids: &[u32]) -> Result<Experts> {
        held.regroup(fresh, ids)
    }

    /// F32 is stored as f32, the others as bf16.
    fn cache(
        &self,
        blocks: usize,
        block_size: usize,
        width_k: usize,
        width_v: usize,
        precision: Precision,
    ) -> Result<KvCache> {
        KvCache::new(&self.arena, blocks, block_size, (width_k, width_v), precision != Precision::F32)
    }

    fn to_device(&self, rows: usize, cols: usize, values: Vec<f32>) -> Tensor {
        tensor(rows, cols, values)
    }

    fn to_host(&self, x: &Tensor) -> Vec<f32> {
        x.data.to_vec()
    }

    fn rows(&self, x: &Tensor) -> usize {
        x.rows
    }

    fn cols(&self, x: &Tensor) -> usize {
        x.cols
    }

    fn gather_rows(&self, x: &Tensor, rows: &[usize]) -> Tensor {
        let mut out = stale(rows.len(), x.cols);
        for (i, &r) in rows.iter().enumerate() {
            out.data[i * x.cols..][..x.cols].copy_from_slice(&x.data[r * x.cols..][..x.cols]);
        }
        out
    }

    fn slice_cols(&self, x: &Tensor, from: usize, len: usize) -> Tensor {
        assert!(from + len <= x.cols, "columns {from}..{} of {}", from + len, x.cols);
        let mut out = stale(x.rows, len);
        for r in 0..x.rows {
            out.data[r * len..][..len].copy_from_slice(&x.data[r * x.cols + from..][..len]);
        }
        out
    }

    fn embed(&self, table: &Embedding, ids: &[u32]) -> Tensor {
        let HostMatrix { rows, cols, data } = &table.0;
        let mut out = Vec::with_capacity(ids.len() * cols);
        for &id in ids {
            assert!((id as usize) < *rows, "token {id} of a vocabulary of {rows}");
            let at = id as usize * cols;
            match data {
                HostData::F32(v) => out.extend_from_slice(&v[at..at + cols]),
                HostData::Bf16(v) => out.extend(v[at..at + cols].iter().map(|x| x.to_f32())),
            }
        }
        tensor(ids.len(), *cols, out)
    }

    fn add_scaled(&self, x: &mut Tensor, y: &Tensor, factor: f32) {
        assert_eq!((x.rows, x.cols), (y.rows, y.cols), "add_scaled");
        let cols = x.cols;
        self.by_rows(&mut x.data, cols, &|from, part| {
            part.iter_mut().zip(&y.data[from * cols..]).for_each(|(x, y)| *x += factor * y);
        });
    }

    fn scale(&self, x: &mut Tensor, factor: f32) {
        let cols = x.cols;
        self.by_rows(&mut x.data, cols, &|_, part| part.iter_mut().for_each(|x| *x *= factor));
    }

    fn silu_mul(&self, gate: &Tensor, up: &Tensor) -> Tensor {
        assert_eq!((gate.rows, gate.cols), (up.rows, up.cols), "silu_mul");
        let (mut out, isa) = (gate.clone(), self.isa);
        let cols = out.cols;
        self.by_rows(&mut out.data, cols, &|from, part| {
            // SAFETY: the set was detected.
            unsafe { moe::silu_mul(isa, part, &up.data[from * cols..]) }
        });
        out
    }

    fn rms_norm(&self, x: &Tensor, weight: &Vec<f32>, eps: f32) -> Tensor {
        assert!(
            !weight.is_empty() && x.cols.is_multiple_of(weight.len()),
            "rms_norm of {} by {}",
            x.cols,
            weight.len()
        );
        let (mut out, isa) = (x.clone(), self.isa);
        let cols = out.cols;
        self.by_rows(&mut out.data, cols, &|_, part| {
            for group in part.chunks_exact_mut(weight.len()) {
                // SAFETY: the set was detected.
                unsafe { rope::rms_norm(isa, group, weight, eps) }
            }
        });
        out
    }

    fn add_norm(&self, x: &mut Tensor, y: &Tensor, factor: f32, weight: &Vec<f32>, eps: f32) -> Tensor {
        assert_eq!((x.rows, x.cols), (y.rows, y.cols), "add_norm");
        let (cols, width, isa) = (x.cols, weight.len(), self.isa);
        assert!(width > 0 && cols.is_multiple_of(width), "add_norm of {cols} by {width}");
        let mut out = stale(x.rows, cols);
        let base = SharedPtr(out.data.as_mut_ptr());
        self.by_rows(&mut x.data, cols, &|from, part| {
            // SAFETY: the same rows of out, which has the shape of x; no other item has them.
            let out = unsafe { std::slice::from_raw_parts_mut(base.get().add(from * cols), part.len()) };
            let y = y.data[from * cols..].chunks_exact(width);
            for ((x, y), out) in part.chunks_exact_mut(width).zip(y).zip(out.chunks_exact_mut(width)) {
                x.iter_mut().zip(y).for_each(|(x, y)| *x += factor * y);
                out.copy_from_slice(x);
                // SAFETY: the set was detected.
                unsafe { rope::rms_norm(isa, out, weight, eps) }
            }
        });
        out
    }

    fn linear(&self, x: &Tensor, weight: &Linear, bias: Option<&Vec<f32>>) -> Tensor {
        let Weight::Plain(weight) = &weight.0 else { panic!("linear called with a weight made by mla_weight") };
        assert_eq!(x.cols, weight.ins, "linear: inputs");
        assert!(bias.is_none_or(|b| b.len() == weight.outs), "linear: the bias needs {} numbers", weight.outs);
        let mut out = stale(x.rows, weight.outs);
        if x.rows == 0 {
            return out;
        }
        let (tiles, groups) = gemm::cut_groups(self.isa, std::iter::once(x.rows));
        let packed = Packed::pack(&self.pool, self.isa, tiles, &x.data, x.cols, weight.precision, &|i| i * x.cols);
        let job = GemmJob {
            weight,
            tiles: groups[0].clone(),
            out: SharedPtr(out.data.as_mut_ptr()),
            stride: weight.outs,
            bias: bias.map(Vec::as_slice),
        };
        // SAFETY: out has outs numbers for each row.
        unsafe { gemm::multiply(&self.pool, self.isa, &packed, &[job]) };
        out
    }

    fn rope(&self, x: &mut Tensor, spec: &RopeSpec, positions: &[u32]) {
        assert_eq!(positions.len(), x.rows, "rope: one position for each row");
        assert!(x.cols.is_multiple_of(spec.head_dim) && spec.offset + spec.dims <= spec.head_dim, "rope: {spec:?}");
        let table = &*self.rope.get(spec, positions);
        let cols = x.cols;
        self.by_rows(&mut x.data, cols, &|from, part| {
            for (r, row) in part.chunks_exact_mut(cols).enumerate() {
                rope::rotate_row(row, spec, table.row(from + r));
            }
        });
    }

    fn gqa_attention(
        &self,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        cache: &mut KvCache,
        spans: &[Span],
        spec: &GqaSpec,
    ) -> Tensor {
        let GqaSpec { heads, kv_heads, head_dim, scale, window } = *spec;
        assert!(kv_heads > 0 && heads % kv_heads == 0 && q.cols == heads * head_dim, "gqa_attention: {spec:?}");
        assert_eq!((k.cols, v.cols), (cache.width_k, cache.width_v), "gqa_attention: cache widths");
        assert_eq!((k.cols, v.cols), (kv_heads * head_dim, kv_heads * head_dim), "gqa_attention: k and v");
        cache.write(spans, &k.data, &v.data);
        let part = QueryPart { q: &q.data, row_stride: q.cols, head_stride: head_dim, offset: 0, width: head_dim };
        let field = |in_v| move |g: usize| EntryField { in_v, offset: g * head_dim, width: head_dim };
        let plan = AttentionPlan {
            parts: &[part],
            kv_heads,
            group: heads / kv_heads,
            keys: &|g| vec![field(false)(g)],
            value: &field(true),
            scale,
            window,
        };
        let mut out = zeros(q.rows, q.cols);
        attention::attend(&self.pool, self.isa, cache, spans, &plan, &mut out.data);
        out
    }

    fn mla_attention(
        &self,
        q: &Tensor,
        latent: &Tensor,
        k_rope: &Tensor,
        kv_b: &Linear,
        cache: &mut KvCache,
        spans: &[Span],
        spec: &MlaSpec,
    ) -> Tensor {
        let Weight::Absorbed { to_latent, to_value } = &kv_b.0 else {
            panic!("mla_attention needs a weight made by mla_weight");
        };
        let MlaSpec { heads, nope_dim, rope_dim, v_dim, kv_rank, scale } = *spec;
        let (rows, q_dim) = (q.rows, nope_dim + rope_dim);
        assert_eq!((q.cols, to_latent.len()), (heads * q_dim, heads), "mla_attention: heads");
        assert_eq!((latent.cols, k_rope.cols), (kv_rank, rope_dim), "mla_attention: latent and rotary key");
        assert_eq!((cache.width_k, cache.width_v), (kv_rank, rope_dim), "mla_attention: cache widths");
        let mut out = stale(rows, heads * v_dim);
        if rows == 0 {
            return out;
        }
        cache.write(spans, &latent.data, &k_rope.data);

        // Products of each head with its own weight; packed row h * rows + r is row r of head h.
        let by_head =
            |weights: &[Panels], x: &[f32], ins: usize, at: &(dyn Fn(usize, usize) -> usize + Sync), y: &mut [f32]| {
                let (tiles, groups) = gemm::cut_groups(self.isa, std::iter::repeat_n(rows, heads));
                let precision = weights[0].precision;
                let packed = Packed::pack(&self.pool, self.isa, tiles, x, ins, precision, &|i| at(i % rows, i / rows));
                let base = SharedPtr(y.as_mut_ptr());
                let outs = weights[0].outs;
                let jobs: Vec<GemmJob> = weights
                    .iter()
                    .zip(groups)
                    .enumerate()
                    .map(|(h, (weight, tiles))| {
                        let out = SharedPtr(base.get().wrapping_add(h * outs));
                        GemmJob { weight, tiles, out, stride: heads * outs, bias: None }
                    })
                    .collect();
                assert_eq!(y.len(), rows * heads * outs, "mla_attention: product");
                // SAFETY: y has heads * outs numbers for each row, of which head h's job writes its own outs.
                unsafe { gemm::multiply(&self.pool, self.isa, &packed, &jobs) };
            };
        let mut query = stale(rows, heads * kv_rank);
        by_head(to_latent, &q.data, nope_dim, &|r, h| (r * heads + h) * q_dim, &mut query.data);

        let parts = [
            QueryPart { q: &query.data, row_stride: heads * kv_rank, head_stride: kv_rank, offset: 0, width: kv_rank },
            QueryPart { q: &q.data, row_stride: heads * q_dim, head_stride: q_dim, offset: nope_dim, width: rope_dim },
        ];
        let plan = AttentionPlan {
            parts: &parts,
            kv_heads: 1,
            group: heads,
            keys: &|_| {
                vec![
                    EntryField { in_v: false, offset: 0, width: kv_rank },
                    EntryField { in_v: true, offset: 0, width: rope_dim },
                ]
            },
            value: &|_| EntryField { in_v: false, offset: 0, width: kv_rank },
            scale,
            window: None,
        };
        let mut mixed = zeros(rows, heads * kv_rank);
        attention::attend(&self.pool, self.isa, cache, spans, &plan, &mut mixed.data);
        by_head(to_value, &mixed.data, kv_rank, &|r, h| (r * heads + h) * kv_rank, &mut out.data);
        out
    }

    fn mla_weight(&self, kv_b: HostMatrix, spec: &MlaSpec, precision: Precision) -> Result<Linear> {
        let MlaSpec { heads, nope_dim, v_dim, kv_rank, .. } = *spec;
        if (kv_b.rows, kv_b.cols) != (heads * (nope_dim + v_dim), kv_rank) {
            let what =
                format!("kv_b must be [{}, {kv_rank}], got [{}, {}]", heads * (nope_dim + v_dim), kv_b.rows, kv_b.cols);
            return Err(shape("mla_weight", what));
        }
        let (mut to_latent, mut to_value) = (Vec::new(), Vec::new());
        for head in 0..heads {
            let offset = head * (nope_dim + v_dim) * kv_rank;
            let keys = PackSource {
                data: &kv_b.data,
                offset,
                row_stride: 1,
                col_stride: kv_rank,
                rows: kv_rank,
                cols: nope_dim,
            };
            let values = PackSource {
                data: &kv_b.data,
                offset: offset + nope_dim * kv_rank,
                row_stride: kv_rank,
                col_stride: 1,
                rows: v_dim,
                cols: kv_rank,
            };
            to_latent.push(self.pack(&keys, precision)?);
            to_value.push(self.pack(&values, precision)?);
        }
        Ok(Linear(Weight::Absorbed { to_latent, to_value }))
    }

    fn moe_route(&self, scores: &Tensor, bias: Option<&Vec<f32>>, spec: &RouteSpec) -> Routes {
        route::route(&self.pool, &scores.data, scores.cols, bias.map(Vec::as_slice), spec)
    }

    /// A single rank adds a row's parts in the order in which it holds the experts, several ranks in the order of their
    /// ids.
    fn moe(&self, x: &Tensor, routes: &Routes, experts: &Experts, shared: Option<&Tensor>) -> Result<Tensor> {
        let (rank, ranks) = (self.rank(), self.ranks());
        if ranks == 1 {
            let mut out = self.moe_experts(x, routes, experts);
            shared.iter().for_each(|shared| self.add_scaled(&mut out, shared, 1.0));
            return Ok(out);
        }
        let ExpertTable { layer, holders } = experts.table();
        self.counts.iter().for_each(|counts| counts.add(*layer, routes));
        let dispatch = dispatch::dispatch(holders, ranks, routes)?;
        let mine = dispatch.iter().enumerate().filter(|&(_, &to)| to as usize == rank);
        let picks: Vec<u32> = mine.map(|(route, _)| route as u32).collect();
        let parts = self.moe_parts(x, routes, &picks, experts);
        self.moe_combine(&parts, routes, &dispatch, shared)
    }

    fn expert_counts(&mut self, layers: &[usize]) -> ExpertCounts {
        let counts = Arc::new(Counts::new(layers));
        self.counts = Some(counts.clone());
        Arc::new(move || counts.read())
    }

    fn relink(&mut self, collective: Box<dyn Collective>) {
        self.collective = collective;
        self.counts = None;
    }

    fn collective(&self) -> &dyn Collective {
        &*self.collective
    }

    fn rank(&self) -> usize {
        self.collective.rank()
    }

    fn ranks(&self) -> usize {
        self.collective.size()
    }

    fn all_reduce(&self, x: &mut Tensor) -> Result<()> {
        self.collective.all_reduce(&mut x.data)
    }

    fn all_gather_cols(&self, x: &Tensor) -> Result<Tensor> {
        if self.collective.size() == 1 {
            return Ok(x.clone());
        }
        let parts = self.collective.all_gather(&x.data)?;
        let widths: Vec<usize> = parts.iter().map(|p| p.len().checked_div(x.rows).unwrap_or(0)).collect();
        if parts.iter().zip(&widths).any(|(p, w)| p.len() != x.rows * w) {
            return Err(shape("all_gather_cols", "ranks differ in their number of rows".into()));
        }
        let mut out = stale(x.rows, widths.iter().sum());
        for (r, mut row) in out.data.chunks_exact_mut(out.cols.max(1)).enumerate() {
            for (part, width) in parts.iter().zip(&widths) {
                let (own, rest) = row.split_at_mut(*width);
                own.copy_from_slice(&part[r * width..][..*width]);
                row = rest;
            }
        }
        Ok(out)
    }
}
