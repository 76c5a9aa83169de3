//! A device whose every op is repeated on the CPU, from the inputs that the device had. The largest difference of each
//! op shows that the device's ops are right within a model, however much rounding adds up to from end to end. This
//! module does not know models.

#[macro_use]
mod compare;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::backend::*;
use crate::collective::{Collective, ControlLink};
use crate::cpu::{self, CpuDevices, KvCache, Routes, Tensor};
use crate::diff::{WorstNumber, worst_number};
use crate::error::{KernelError, Result};
use crate::ops::{arg_type, result_type, row_ops, sequence_ops};
use crate::rounding::{RoundingCpu, RoundingExperts, RoundingLinear};
use crate::sample::Logprob;
use crate::storage::DeviceStorage;

/// The call of an op that is farthest from the CPU's, and the first of them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OpDifference {
    pub worst: WorstNumber,
    /// Number of calls of any op before it.
    pub before: usize,
}

#[derive(Debug, Default)]
struct Compared {
    calls: usize,
    ops: BTreeMap<&'static str, OpDifference>,
}

/// What was compared. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct LockstepReport(Arc<Mutex<Compared>>);

impl LockstepReport {
    fn lock(&self) -> MutexGuard<'_, Compared> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn ops(&self) -> BTreeMap<&'static str, OpDifference> {
        self.lock().ops.clone()
    }

    /// Of all ops.
    pub fn calls(&self) -> usize {
        self.lock().calls
    }

    /// The op that is farthest from the CPU's; of equal ones the first, which may be what makes the later ones NaN.
    pub fn worst(&self) -> Option<(&'static str, OpDifference)> {
        let found = self.lock();
        let order =
            |a: &OpDifference, b: &OpDifference| a.worst.apart.total_cmp(&b.worst.apart).then(b.before.cmp(&a.before));
        found.ops.iter().max_by(|a, b| order(a.1, b.1)).map(|(op, found)| (*op, *found))
    }

    fn add(&self, op: &'static str, got: &[f32], want: &[f32]) {
        let mut found = self.lock();
        let new = OpDifference { worst: worst_number(got, want), before: found.calls };
        found.calls += 1;
        let known = found.ops.entry(op).or_insert(new);
        if new.worst.apart > known.worst.apart {
            *known = new;
        }
    }
}

/// Groups have one rank.
#[derive(Clone)]
pub struct LockstepDevices<D> {
    devices: D,
    cpu: CpuDevices,
    report: LockstepReport,
}

impl<D> LockstepDevices<D> {
    /// `threads` of the CPU.
    pub fn new(devices: D, threads: usize, report: LockstepReport) -> Self {
        LockstepDevices { devices, cpu: CpuDevices { threads }, report }
    }
}

/// What the device has, and the same on the CPU.
pub struct Both<A, B> {
    device: A,
    oracle: B,
}

/// One rank.
pub struct Lockstep<B: Backend> {
    device: B,
    oracle: RoundingCpu,
    /// Of the step. A device may compute more, which nothing reads.
    rows: Cell<usize>,
    report: LockstepReport,
}

impl<B: Backend> Lockstep<B> {
    fn new(device: B, cpu: &CpuDevices, report: LockstepReport) -> Result<Self> {
        Ok(Lockstep { device, oracle: RoundingCpu::beside(cpu)?, rows: Cell::new(0), report })
    }

    /// The step's rows of a device's tensor.
    fn read(&self, x: &B::Tensor) -> Tensor {
        let (rows, cols) = (self.rows.get(), self.device.cols(x));
        let mut values = self.device.to_host(x);
        values.truncate(rows * cols);
        self.oracle.to_device(rows, cols, values)
    }

    fn check(&self, op: &'static str, got: &B::Tensor, want: &Tensor) {
        self.report.add(op, self.read(got).data(), want.data());
    }
}

/// Logprobs by rank: which token has one may differ where two are nearly equal.
fn logprobs(drawn: &StepOutputs) -> Vec<f32> {
    let of = |logprob: &Logprob| logprob.top.iter().map(|(_, logprob)| *logprob).collect::<Vec<_>>();
    let of_tokens = drawn.tokens.iter().flatten().flat_map(|token| &token.logprob).flat_map(of);
    let of_scores = drawn.scores.iter().flat_map(|score| std::iter::once(score.logprob).chain(of(score)));
    of_tokens.chain(of_scores).collect()
}

impl<B: Backend> RowOps for Lockstep<B> {
    type Tensor = B::Tensor;
    type Vector = Both<B::Vector, Vec<f32>>;
    row_ops!(compare);
}

impl<B: Backend> Backend for Lockstep<B> {
    const JOINS_WEIGHTS: bool = B::JOINS_WEIGHTS;

    type Batch<'a> = Both<B::Batch<'a>, cpu::Batch<'a>>;
    type Linear = Both<B::Linear, RoundingLinear>;
    type Expansion = Both<B::Expansion, cpu::Expansion>;
    type Embedding = Both<B::Embedding, cpu::Embedding>;
    type Experts = Both<B::Experts, RoundingExperts>;
    type Routes = Both<B::Routes, Routes>;
    type Cache = Both<B::Cache, KvCache>;
    type States = Both<B::States, cpu::States>;
    type LowRank = Both<B::LowRank, cpu::LowRank>;
    type HostMemory = B::HostMemory;
    type Drawn = StepOutputs;

    fn vector(&self, values: Vec<f32>) -> Result<Self::Vector> {
        Ok(Both { device: self.device.vector(values.clone())?, oracle: self.oracle.vector(values)? })
    }

    fn linear_weight(&self, weight: HostMatrix, precision: Precision) -> Result<Self::Linear> {
        Ok(Both {
            device: self.device.linear_weight(weight.clone(), precision)?,
            oracle: self.oracle.linear_weight(weight, precision)?,
        })
    }

    fn embedding(&self, part: HostMatrix, first: usize, precision: Precision) -> Result<Self::Embedding> {
        Ok(Both {
            device: self.device.embedding(part.clone(), first, precision)?,
            oracle: self.oracle.embedding(part, first, precision)?,
        })
    }

    fn experts(
        &self,
        table: ExpertTable,
        weights: &mut dyn Iterator<Item = Result<ExpertWeights>>,
        precision: Precision,
    ) -> Result<Self::Experts> {
        let mut kept = Vec::new();
        let mut shared = weights.map(|weights| {
            let weights = weights?;
            let ExpertWeights { id, gate, up, down } = &weights;
            let (id, gate, up, down) = (*id, gate.clone(), up.clone(), down.clone());
            kept.push(Ok(ExpertWeights { id, gate, up, down }));
            Ok(weights)
        });
        let device = self.device.experts(table.clone(), &mut shared, precision)?;
        drop(shared);
        Ok(Both { device, oracle: self.oracle.experts(table, &mut kept.into_iter(), precision)? })
    }

    fn clamp_experts(&self, experts: &mut Self::Experts, gate: ClampedGate<Self::Vector>) {
        let ClampedGate { gate, up, down, alpha, limit } = gate;
        let (of_device, of_oracle) = (
            ClampedGate { gate: gate.device, up: up.device, down: down.device, alpha, limit },
            ClampedGate { gate: gate.oracle, up: up.oracle, down: down.oracle, alpha, limit },
        );
        self.device.clamp_experts(&mut experts.device, of_device);
        self.oracle.clamp_experts(&mut experts.oracle, of_oracle);
    }

    fn regroup(&self, held: &Self::Experts, fresh: &Self::Experts, ids: &[u32]) -> Result<Self::Experts> {
        Ok(Both {
            device: self.device.regroup(&held.device, &fresh.device, ids)?,
            oracle: self.oracle.regroup(&held.oracle, &fresh.oracle, ids)?,
        })
    }

    fn cache(&self, blocks: usize, block_size: usize, widths: [usize; 2], form: CacheForm) -> Result<Self::Cache> {
        Ok(Both {
            device: self.device.cache(blocks, block_size, widths, form)?,
            oracle: self.oracle.cache(blocks, block_size, widths, form)?,
        })
    }

    fn split_cache(&self, cache: &mut Self::Cache, split: KvSplit) -> Result<()> {
        self.device.split_cache(&mut cache.device, split)?;
        self.oracle.split_cache(&mut cache.oracle, split)
    }

    /// Those of the device, then those of the oracle.
    fn block_bytes(&self, cache: &Self::Cache) -> usize {
        self.device.block_bytes(&cache.device) + self.oracle.block_bytes(&cache.oracle)
    }

    fn host_memory(&self, bytes: usize) -> Result<Self::HostMemory> {
        self.device.host_memory(bytes)
    }

    fn save_block(&self, cache: &Self::Cache, block: u32, to: &mut Self::HostMemory, offset: usize) -> Result<()> {
        self.device.save_block(&cache.device, block, to, offset)?;
        let own = offset + self.device.block_bytes(&cache.device);
        cache.oracle.save(block, &mut to[own..own + cache.oracle.block_bytes()]);
        Ok(())
    }

    fn load_block(&self, cache: &mut Self::Cache, block: u32, from: &Self::HostMemory, offset: usize) -> Result<()> {
        self.device.load_block(&mut cache.device, block, from, offset)?;
        let own = offset + self.device.block_bytes(&cache.device);
        cache.oracle.load(block, &from[own..own + cache.oracle.block_bytes()]);
        Ok(())
    }

    fn settle(&self, memory: &Self::HostMemory) -> Result<()> {
        self.device.settle(memory)
    }

    fn states(&self, cells: usize, numbers: usize) -> Result<Self::States> {
        Ok(Both { device: self.device.states(cells, numbers)?, oracle: self.oracle.states(cells, numbers)? })
    }

    fn low_rank(&self, places: usize) -> Result<Self::LowRank> {
        Ok(Both { device: self.device.low_rank(places)?, oracle: self.oracle.low_rank(places)? })
    }

    fn set_low_rank(
        &self,
        table: &mut Self::LowRank,
        place: usize,
        pair: Option<LowRankPair>,
        precision: Precision,
    ) -> Result<()> {
        self.device.set_low_rank(&mut table.device, place, pair.clone(), precision)?;
        self.oracle.set_low_rank(&mut table.oracle, place, pair, precision)
    }

    fn open_stash(&mut self, slots: usize) -> Result<()> {
        self.device.open_stash(slots)
    }

    fn to_device(&self, rows: usize, cols: usize, values: Vec<f32>) -> B::Tensor {
        self.device.to_device(rows, cols, values)
    }

    fn to_host(&self, x: &B::Tensor) -> Vec<f32> {
        self.device.to_host(x)
    }

    fn dry_steps(&mut self, bounds: &StepBounds, run: DryRun) -> Result<Vec<DryStep>> {
        self.device.dry_steps(bounds, run)
    }

    fn begin<'a>(&mut self, rows: StepInputs<'a>) -> Result<Self::Batch<'a>> {
        self.rows.set(rows.ids.len());
        Ok(Both { device: self.device.begin(rows.clone())?, oracle: self.oracle.begin(rows)? })
    }

    /// Never recorded: the inputs of every op are read.
    fn run(&mut self, _: &Self::Batch<'_>, f: impl FnOnce(&Self) -> Result<B::Tensor>) -> Result<B::Tensor> {
        f(self)
    }

    fn draw(
        &mut self,
        batch: &Self::Batch<'_>,
        hidden: Option<&B::Tensor>,
        head: &OutputHead<'_, Self>,
    ) -> Result<StepOutputs> {
        let of_oracle = hidden.map(|hidden| self.read(hidden));
        let of_device = head.map(|vector| &vector.device, |weight| &weight.device);
        let got = self.device.draw(&batch.device, hidden, &of_device)?;
        let got = self.device.outputs(got)?;
        let head = head.map(|vector| &vector.oracle, |weight| &weight.oracle);
        let want = self.oracle.draw(&batch.oracle, of_oracle.as_ref(), &head)?;
        let want = self.oracle.outputs(want)?;
        let (numbers, wanted) = (logprobs(&got), logprobs(&want));
        if !(numbers.is_empty() && wanted.is_empty()) {
            self.report.add("draw", &numbers, &wanted);
        }
        for (got, want) in got.states.iter().zip(&want.states) {
            self.report.add("state", got, want);
        }
        Ok(got)
    }

    fn outputs(&mut self, drawn: StepOutputs) -> Result<StepOutputs> {
        Ok(drawn)
    }

    fn rows(&self, x: &B::Tensor) -> usize {
        self.device.rows(x)
    }

    fn cols(&self, x: &B::Tensor) -> usize {
        self.device.cols(x)
    }

    sequence_ops!(compare);

    fn linear(&self, x: &B::Tensor, weight: &Self::Linear, bias: Option<&Self::Vector>) -> B::Tensor {
        let out = self.device.linear(x, &weight.device, bias.map(|bias| &bias.device));
        let want = self.oracle.linear(&self.read(x), &weight.oracle, bias.map(|bias| &bias.oracle));
        self.check("linear", &out, &want);
        out
    }

    fn mla_attention(
        &self,
        batch: &Self::Batch<'_>,
        q: &B::Tensor,
        latent: &B::Tensor,
        k_rope: &B::Tensor,
        kv_b: &Self::Expansion,
        adapters: Option<[&Self::LowRank; 2]>,
        cache: &mut Self::Cache,
        spec: &MlaSpec,
    ) -> Result<B::Tensor> {
        let on_device = adapters.map(|tables| tables.map(|table| &table.device));
        let (batch_of_device, cache_of_device) = (&batch.device, &mut cache.device);
        let out = self.device.mla_attention(
            batch_of_device,
            q,
            latent,
            k_rope,
            &kv_b.device,
            on_device,
            cache_of_device,
            spec,
        )?;
        let adapters = adapters.map(|tables| tables.map(|table| &table.oracle));
        let [q, latent, k_rope] = [q, latent, k_rope].map(|x| self.read(x));
        let cache = &mut cache.oracle;
        let want =
            self.oracle.mla_attention(&batch.oracle, &q, &latent, &k_rope, &kv_b.oracle, adapters, cache, spec)?;
        self.check("mla_attention", &out, &want);
        Ok(out)
    }

    fn mla_weight(&self, kv_b: HostMatrix, spec: &MlaSpec, precision: Precision) -> Result<Self::Expansion> {
        Ok(Both {
            device: self.device.mla_weight(kv_b.clone(), spec, precision)?,
            oracle: self.oracle.mla_weight(kv_b, spec, precision)?,
        })
    }

    fn moe_route(&self, scores: &B::Tensor, bias: Option<&Self::Vector>, spec: &RouteSpec) -> Self::Routes {
        Both {
            device: self.device.moe_route(scores, bias.map(|bias| &bias.device), spec),
            oracle: self.oracle.moe_route(&self.read(scores), bias.map(|bias| &bias.oracle), spec),
        }
    }

    fn moe(
        &self,
        batch: &Self::Batch<'_>,
        x: &B::Tensor,
        routes: &Self::Routes,
        experts: &Self::Experts,
        adapters: Option<ExpertAdapters<'_, Self::LowRank>>,
        shared: Option<&B::Tensor>,
    ) -> Result<B::Tensor> {
        let out = {
            let adapters = adapters.map(|adapters| adapters.map(|table| &table.device));
            self.device.moe(&batch.device, x, &routes.device, &experts.device, adapters, shared)?
        };
        let shared = shared.map(|shared| self.read(shared));
        let x = self.read(x);
        let adapters = adapters.map(|adapters| adapters.map(|table| &table.oracle));
        let want = self.oracle.moe(&batch.oracle, &x, &routes.oracle, &experts.oracle, adapters, shared.as_ref())?;
        self.check("moe_route, moe", &out, &want);
        Ok(out)
    }

    fn expert_counts(&mut self, layers: &[usize]) -> ExpertCounts {
        self.device.expert_counts(layers)
    }

    fn relink(&mut self, link: Box<dyn Collective>) {
        self.device.relink(link);
        self.oracle.relink(Box::new(crate::collective::threads::alone()));
    }

    fn control(&self) -> &dyn ControlLink {
        self.device.control()
    }

    fn all_reduce(&self, x: &mut B::Tensor) -> Result<()> {
        self.device.all_reduce(x)
    }
}

impl<D: Devices> Devices for LockstepDevices<D> {
    type Backend = Lockstep<D::Backend>;
    const KIND: &'static str = D::KIND;
    const STEP_COST: usize = D::STEP_COST;
    const PREPARES: bool = D::PREPARES;

    fn open(&self, index: usize, ranks: usize, link: Box<dyn Collective>) -> Result<Self::Backend> {
        if link.size() > 1 {
            let what = format!("a group must have one rank to be compared op by op, got {}", link.size());
            return Err(KernelError::Device(what));
        }
        Lockstep::new(self.devices.open(index, ranks, link)?, &self.cpu, self.report.clone())
    }

    fn open_beside(&self, index: usize) -> Result<Self::Backend> {
        Lockstep::new(self.devices.open_beside(index)?, &self.cpu, self.report.clone())
    }

    fn free_memory(&self) -> Result<usize> {
        self.devices.free_memory()
    }

    fn free_after_dry_run(&self, index: usize) -> Result<usize> {
        self.devices.free_after_dry_run(index)
    }
}

impl<D: DeviceStorage> DeviceStorage for LockstepDevices<D> {
    fn host_form(&self, role: WeightRole, stored: StoredForm, precision: Precision) -> HostForm {
        self.devices.host_form(role, stored, precision)
    }

    fn weight_bytes(&self, role: WeightRole, stored: StoredForm, precision: Precision, numbers: usize) -> usize {
        self.devices.weight_bytes(role, stored, precision, numbers)
    }
}

#[cfg(test)]
mod tests;
