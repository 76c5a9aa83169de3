//! The CPU backend: packed weights, SIMD kernels chosen at run time, a thread pool per rank.
// Kernels count lanes and rows by index on purpose.
#![allow(clippy::needless_range_loop)]

#[cfg(target_arch = "x86_64")]
mod amx;
mod attention;
mod buffer;
mod codes;
mod combine;
mod delta;
mod devices;
mod dispatch;
mod draw;
mod fp8;
mod free;

pub use free::bytes as free_memory;
mod gemm;
mod gqa;
mod kv_cache;
mod lanes;
mod low_rank;
mod memory;
mod mla;
mod moe;
mod norms;
mod pool;
pub(crate) mod probe;
mod rope;
mod route;
mod rows;
mod simd;
mod tensor;
#[cfg(test)]
mod tests;
mod weights;

use std::sync::Arc;

use buffer::Buffer;
use codes::StoredCodes;
use dispatch::Counts;
use fp8::Fp8Rows;
use gemm::{GemmJob, Packed};
use memory::Arena;
use pool::{SharedPtr, ThreadPool};
use rope::AngleTables;
pub use simd::Isa;
pub use tensor::Tensor;
use tensor::{stale, tensor, zeros};
use weights::{PackSource, Panels};

use crate::backend::*;
use crate::collective::{Collective, ControlLink};
use crate::error::{KernelError, Result};
use crate::ops::{arg_type, result_type, sequence_ops};

/// Elementwise work below this many numbers is not split over threads.
const PARALLEL_NUMBERS: usize = 32 << 10;

/// The inputs of a step.
pub struct Batch<'a> {
    rows: StepInputs<'a>,
    angles: AngleTables,
}

impl Batch<'_> {
    fn len(&self) -> usize {
        self.rows.ids.len()
    }

    fn positions(&self) -> &[u32] {
        self.angles.positions()
    }
}

/// A packed weight.
#[derive(Debug)]
pub struct Linear(Panels);

/// Per head: q_nope to latent [kv_rank, nope], and latent to value [v, kv_rank].
#[derive(Debug)]
pub struct Expansion {
    to_latent: Vec<Panels>,
    to_value: Vec<Panels>,
}

/// Rows of a lookup table, from `first` on: packed as the head is, which may be the same matrix.
#[derive(Debug)]
pub struct Embedding {
    first: usize,
    table: Panels,
}

pub use delta::States;
pub use devices::CpuDevices;
pub use kv_cache::KvCache;
pub(crate) use low_rank::AdaptedRows;
pub use low_rank::LowRank;
pub(crate) use moe::ClampedExpert;
pub use moe::Experts;
pub use route::Routes;

/// One rank on the CPU.
pub struct Cpu {
    isa: Isa,
    pool: ThreadPool,
    arena: Arena,
    collective: Box<dyn Collective>,
    counts: Option<Arc<Counts>>,
    /// By slot, stashed logits; only on rank 0.
    stash: Vec<Buffer>,
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
            collective,
            counts: None,
            stash: Vec::new(),
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

    fn product(&self, x: &Tensor, weight: &Panels, bias: Option<&Vec<f32>>) -> Tensor {
        assert_eq!(x.cols, weight.ins, "linear: inputs");
        assert!(bias.is_none_or(|b| b.len() == weight.outs), "linear: the bias needs {} numbers", weight.outs);
        let mut out = stale(x.rows, weight.outs);
        if x.rows == 0 {
            return out;
        }
        let (tiles, groups) = gemm::cut_groups(gemm::tile_rows(self.isa, weight.takes()), std::iter::once(x.rows));
        let packed = Packed::pack(&self.pool, self.isa, tiles, &x.data, x.cols, weight.takes(), &|i| i * x.cols);
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

    fn embed(&self, table: &Embedding, batch: &Batch) -> Tensor {
        let ids = &batch.rows.ids;
        let Embedding { first, table } = table;
        let mut out = stale(ids.len(), table.ins);
        let cols = table.ins.max(1);
        self.by_rows(&mut out.data, cols, &|from, part| {
            for (&id, out) in ids[from..].iter().zip(part.chunks_exact_mut(cols)) {
                match (id as usize).checked_sub(*first).filter(|&row| row < table.outs) {
                    Some(row) => table.output(row, out),
                    None => out.fill(-0.0),
                }
            }
        });
        out
    }

    fn pack(&self, source: &PackSource, precision: Precision) -> Result<Panels> {
        Panels::pack(&self.pool, self.isa, &self.arena, source, precision)
    }
}

/// What cannot be multiplied as it is stored becomes numbers: int4 whose scales do not fit in 16 bits, cut groups, FP8
/// where the set has no products of bf16.
fn packable(isa: Isa, weight: HostMatrix) -> Result<HostMatrix> {
    let shape = [weight.rows, weight.cols];
    let stays = match &weight.data {
        HostData::Int4 { packed, scales, group } => {
            StoredCodes::int4(packed, scales, None, *group, weight.cols).is_some()
        }
        HostData::Int4Zeros { packed, scales, zeros, group } => {
            StoredCodes::int4(packed, scales, Some(zeros), *group, weight.cols).is_some()
        }
        HostData::Fp8 { codes, scales, block } => {
            isa.multiplies_pairs() && Fp8Rows::of(codes, scales, *block, shape).is_some()
        }
        _ => true,
    };
    if stays { Ok(weight) } else { weight.into_form(HostForm::F32) }
}

fn shape(op: &'static str, what: String) -> KernelError {
    KernelError::Shape { op, what }
}

/// The ops of a list are the methods of these names.
macro_rules! forward {
    ($($(#[$doc:meta])* fn $op:ident($($kind:ident $arg:ident $(: $type:ty)?),*) $(-> $result:ident)?;)*) => {
        $(
            fn $op(&self, $($arg: arg_type!($kind $($type)?)),*) $(-> result_type!($result))? {
                Cpu::$op(self, $($arg),*)
            }
        )*
    };
}

impl Backend for Cpu {
    type Batch<'a> = Batch<'a>;
    type Linear = Linear;
    type Expansion = Expansion;
    type Embedding = Embedding;
    type Experts = Experts;
    type Routes = Routes;
    type Cache = KvCache;
    type States = States;
    type LowRank = LowRank;
    type HostMemory = Vec<u8>;
    type Drawn = StepOutputs;

    fn vector(&self, values: Vec<f32>) -> Result<Vec<f32>> {
        Ok(values)
    }

    fn linear_weight(&self, weight: HostMatrix, precision: Precision) -> Result<Linear> {
        let weight = packable(self.isa, weight)?;
        Ok(Linear(self.pack(&PackSource::whole(&weight)?, precision)?))
    }

    fn embedding(&self, part: HostMatrix, first: usize, precision: Precision) -> Result<Embedding> {
        let precision = if precision == Precision::F32 { precision } else { Precision::Bf16 };
        Ok(Embedding { first, table: self.pack(&PackSource::whole(&part)?, precision)? })
    }

    fn tied_head(&self, embedding: &Embedding) -> Option<Linear> {
        Some(Linear(embedding.table.clone()))
    }

    fn experts(
        &self,
        table: ExpertTable,
        weights: &mut dyn Iterator<Item = Result<ExpertWeights>>,
        precision: Precision,
    ) -> Result<Experts> {
        let mut experts = Experts::new(table);
        for weights in weights {
            let ExpertWeights { id, gate, up, down } = weights?;
            let (inter, hidden) = experts.shape().unwrap_or((gate.rows, gate.cols));
            let fits = |m: &HostMatrix, rows, cols| m.rows == rows && m.cols == cols;
            if !(fits(&gate, inter, hidden) && fits(&up, inter, hidden) && fits(&down, hidden, inter)) {
                let what = format!("expert {id}: gate and up must be [{inter}, {hidden}], down [{hidden}, {inter}]");
                return Err(shape("experts", what));
            }
            let [gate, up, down] = [gate, up, down].map(|weight| packable(self.isa, weight));
            let (gate, up, down) = (gate?, up?, down?);
            let (gate, up) = (PackSource::whole(&gate)?, PackSource::whole(&up)?);
            let [gate, up] = match gate.data.packs_like(up.data, precision) {
                true => Panels::pack_side_by_side(&self.pool, self.isa, &self.arena, [&gate, &up], precision)?,
                false => [self.pack(&gate, precision)?, self.pack(&up, precision)?],
            };
            experts.push(id, [gate, up, self.pack(&PackSource::whole(&down)?, precision)?])?;
        }
        Ok(experts)
    }

    fn clamp_experts(&self, experts: &mut Experts, gate: ClampedGate<Vec<f32>>) {
        experts.clamp(gate);
    }

    fn regroup(&self, held: &Experts, fresh: &Experts, ids: &[u32]) -> Result<Experts> {
        held.regroup(fresh, ids)
    }

    /// F32 is stored as f32, the others as bf16.
    fn cache(&self, blocks: usize, block_size: usize, widths: [usize; 2], form: CacheForm) -> Result<KvCache> {
        KvCache::new(&self.arena, blocks, block_size, widths, form)
    }

    fn split_cache(&self, cache: &mut KvCache, split: KvSplit) -> Result<()> {
        cache.split = Some(split);
        Ok(())
    }

    fn block_bytes(&self, cache: &KvCache) -> usize {
        cache.block_bytes()
    }

    fn host_memory(&self, bytes: usize) -> Result<Vec<u8>> {
        Ok(vec![0; bytes])
    }

    fn save_block(&self, cache: &KvCache, block: u32, to: &mut Vec<u8>, offset: usize) -> Result<()> {
        cache.save(block, &mut to[offset..offset + cache.block_bytes()]);
        Ok(())
    }

    fn load_block(&self, cache: &mut KvCache, block: u32, from: &Vec<u8>, offset: usize) -> Result<()> {
        cache.load(block, &from[offset..offset + cache.block_bytes()]);
        Ok(())
    }

    fn settle(&self, _: &Vec<u8>) -> Result<()> {
        Ok(())
    }

    fn states(&self, cells: usize, numbers: usize) -> Result<States> {
        States::new(&self.arena, cells, numbers)
    }

    fn low_rank(&self, places: usize) -> Result<LowRank> {
        Ok(LowRank::new(places))
    }

    fn set_low_rank(
        &self,
        table: &mut LowRank,
        place: usize,
        pair: Option<LowRankPair>,
        precision: Precision,
    ) -> Result<()> {
        self.set_pair(table, place, pair, precision)
    }

    fn to_device(&self, rows: usize, cols: usize, values: Vec<f32>) -> Tensor {
        tensor(rows, cols, values)
    }

    fn to_host(&self, x: &Tensor) -> Vec<f32> {
        x.data.to_vec()
    }

    fn begin<'a>(&mut self, rows: StepInputs<'a>) -> Result<Batch<'a>> {
        let mut positions = vec![0; rows.ids.len()];
        for span in &rows.spans {
            let Some(part) = positions.get_mut(span.row..span.row + span.len) else {
                let what = format!("rows {}..{} of {}", span.row, span.row + span.len, rows.ids.len());
                return Err(shape("begin", what));
            };
            part.iter_mut().zip(span.start as u32..).for_each(|(to, position)| *to = position);
        }
        Ok(Batch { rows, angles: AngleTables::new(positions) })
    }

    fn run(&mut self, _: &Batch, f: impl FnOnce(&Cpu) -> Result<Tensor>) -> Result<Tensor> {
        f(self)
    }

    fn outputs(&mut self, drawn: StepOutputs) -> Result<StepOutputs> {
        Ok(drawn)
    }

    fn draw(&mut self, batch: &Batch, hidden: Option<&Tensor>, head: &OutputHead<Cpu>) -> Result<StepOutputs> {
        draw::draw(self, &batch.rows, hidden, head)
    }

    fn rows(&self, x: &Tensor) -> usize {
        x.rows
    }

    fn cols(&self, x: &Tensor) -> usize {
        x.cols
    }

    sequence_ops!(forward);

    fn linear(&self, x: &Tensor, Linear(weight): &Linear, bias: Option<&Vec<f32>>) -> Tensor {
        self.product(x, weight, bias)
    }

    fn split_gqa_attention(
        &self,
        batch: &Batch,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        sinks: Option<&Vec<f32>>,
        cache: &mut KvCache,
        spec: &GqaSpec,
    ) -> Result<Tensor> {
        self.attend_split_groups(batch, q, [k, v], sinks, cache, spec)
    }

    fn mla_attention(
        &self,
        batch: &Batch,
        q: &Tensor,
        latent: &Tensor,
        k_rope: &Tensor,
        kv_b: &Expansion,
        adapters: Option<[&LowRank; 2]>,
        cache: &mut KvCache,
        spec: &MlaSpec,
    ) -> Result<Tensor> {
        self.attend_latent(batch, q, [latent, k_rope], kv_b, adapters, cache, spec, |_| ())
    }

    fn mla_weight(&self, kv_b: HostMatrix, spec: &MlaSpec, precision: Precision) -> Result<Expansion> {
        self.absorb(kv_b, spec, precision)
    }

    fn moe_route(&self, scores: &Tensor, bias: Option<&Vec<f32>>, spec: &RouteSpec) -> Routes {
        route::route(&self.pool, &scores.data, scores.cols, bias.map(Vec::as_slice), spec)
    }

    /// A single rank adds a row's parts in the order in which it holds the experts, several ranks in the order of their
    /// ids.
    fn moe(
        &self,
        batch: &Batch,
        x: &Tensor,
        routes: &Routes,
        experts: &Experts,
        adapters: Option<ExpertAdapters<LowRank>>,
        shared: Option<&Tensor>,
    ) -> Result<Tensor> {
        let adapted = AdaptedRows::of(batch, adapters);
        if self.ranks() == 1 {
            let mut out = self.moe_experts(x, routes, experts, adapted.as_ref());
            shared.iter().for_each(|shared| self.add_scaled(&mut out, shared, 1.0));
            return Ok(out);
        }
        self.moe_over_ranks(batch, x, routes, experts, adapted.as_ref(), shared)
    }

    fn expert_counts(&mut self, layers: &[usize]) -> ExpertCounts {
        let counts = Arc::new(Counts::new(layers));
        self.counts = Some(counts.clone());
        Arc::new(move || counts.read())
    }

    fn relink(&mut self, collective: Box<dyn Collective>) {
        self.collective = collective;
        self.counts = None;
        self.stash.clear();
    }

    fn control(&self) -> &dyn ControlLink {
        &*self.collective
    }

    fn all_reduce(&self, x: &mut Tensor) -> Result<()> {
        self.collective.all_reduce(&mut x.data)
    }
}
