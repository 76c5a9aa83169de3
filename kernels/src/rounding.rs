//! The CPU backend with the rounding of a CUDA device: activations become bf16 after every op, and FP8 before products
//! with FP8 weights. It shows what this rounding alone changes in a model, and is the oracle of `lockstep`. It does not
//! know kernels.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;

use half::bf16;

use crate::backend::*;
use crate::collective::{Collective, ControlLink};
use crate::cpu::{self, AdaptedRows, ClampedExpert, Cpu, CpuDevices, KvCache, Routes, Tensor};
use crate::error::{KernelError, Result};
use crate::ops::{arg_type, result_type, row_ops, sequence_ops};
use crate::reference;
use crate::storage::{CudaStorage, DeviceStorage};

/// Groups have one rank.
#[derive(Debug, Clone)]
pub struct RoundingDevices {
    pub cpu: CpuDevices,
}

/// One rank.
pub struct RoundingCpu {
    cpu: Cpu,
    /// Whether activations are bf16, as the embedding is.
    rounds: Cell<bool>,
}

/// The numbers that a weight [outs, ins] stands for.
#[derive(Debug)]
struct NumberMatrix {
    numbers: Vec<f32>,
    ins: usize,
    /// The left side of a product is quantized to FP8.
    fp8: bool,
    /// What the rounded products with these numbers are multiplied with, or nothing.
    of_outputs: Vec<f32>,
}

#[derive(Debug)]
pub struct RoundingLinear(LinearKind);

#[derive(Debug)]
enum LinearKind {
    /// `rounds`: results are activations. Those of f32 weights stay f32.
    Plain {
        weight: cpu::Linear,
        rounds: bool,
    },
    Fp8(NumberMatrix),
}

#[derive(Debug)]
struct RoundingExpert {
    gate: NumberMatrix,
    up: NumberMatrix,
    down: NumberMatrix,
}

#[derive(Debug)]
pub struct RoundingExperts {
    by_id: BTreeMap<u32, Arc<RoundingExpert>>,
    clamped: Option<Arc<ClampedGate<Vec<f32>>>>,
}

fn to_bf16(x: &mut [f32]) {
    x.iter_mut().for_each(|x| *x = bf16::from_f32(*x).to_f32());
}

impl NumberMatrix {
    fn new(weight: HostMatrix, precision: Precision) -> Result<NumberMatrix> {
        let fp8 = precision != Precision::F32 && matches!(weight.data, HostData::Fp8 { .. });
        let narrows = precision != Precision::F32 && matches!(weight.data, HostData::F32(_));
        let (weight, of_outputs) = if fp8 { weight.split_output_scales() } else { (weight, Vec::new()) };
        let HostMatrix { cols: ins, data, .. } = weight.into_form(HostForm::F32)?;
        let mut numbers = match data {
            HostData::F32(v) => v,
            HostData::Bf16(v) => v.into_iter().map(bf16::to_f32).collect(),
            _ => unreachable!("converted to f32"),
        };
        if narrows {
            to_bf16(&mut numbers);
        }
        Ok(NumberMatrix { numbers, ins, fp8, of_outputs })
    }

    fn multiply(&self, x: &[f32], bias: Option<&[f32]>) -> Vec<f32> {
        if self.fp8 {
            let codes = reference::quantize_fp8(x, self.ins);
            if self.of_outputs.is_empty() {
                return reference::linear(&codes, &self.numbers, self.ins, bias);
            }
            let mut out = reference::linear(&codes, &self.numbers, self.ins, None);
            to_bf16(&mut out);
            for row in out.chunks_exact_mut(self.of_outputs.len()) {
                row.iter_mut().zip(&self.of_outputs).for_each(|(x, scale)| *x *= scale);
                row.iter_mut().zip(bias.unwrap_or_default()).for_each(|(x, bias)| *x += bias);
            }
            return out;
        }
        reference::linear(x, &self.numbers, self.ins, bias)
    }
}

impl RoundingExpert {
    fn new(weights: ExpertWeights, precision: Precision) -> Result<RoundingExpert> {
        let matrix = |weight| NumberMatrix::new(weight, precision);
        Ok(RoundingExpert { gate: matrix(weights.gate)?, up: matrix(weights.up)?, down: matrix(weights.down)? })
    }
}

impl RoundingCpu {
    fn new(cpu: Cpu) -> RoundingCpu {
        RoundingCpu { cpu, rounds: Cell::new(false) }
    }

    /// An oracle for a device: alone in its group.
    pub(crate) fn beside(devices: &CpuDevices) -> Result<RoundingCpu> {
        Ok(RoundingCpu::new(Cpu::new(devices.threads.max(1), Box::new(crate::collective::threads::alone()))))
    }

    fn activations(&self, mut x: Vec<f32>) -> Vec<f32> {
        if self.rounds.get() {
            to_bf16(&mut x);
        }
        x
    }

    fn activation_of(&self, x: Tensor) -> Tensor {
        match self.rounds.get() {
            true => self.cpu.to_device(self.cpu.rows(&x), self.cpu.cols(&x), self.activations(x.data().to_vec())),
            false => x,
        }
    }

    /// The sum over each row's routes; each product on the way is an activation.
    fn sum_of_routes(
        &self,
        x: &Tensor,
        routes: &Routes,
        experts: &RoundingExperts,
        adapted: Option<AdaptedRows>,
    ) -> Result<Tensor> {
        let (rows, hidden, top_k) = (self.cpu.rows(x), self.cpu.cols(x), routes.top_k);
        let mut out = vec![0.0; rows * hidden];
        for (id, expert) in &experts.by_id {
            let mine: Vec<usize> = (0..rows * top_k).filter(|&route| routes.experts[route] == *id).collect();
            let input: Vec<f32> =
                mine.iter().flat_map(|route| &x.data()[route / top_k * hidden..][..hidden]).copied().collect();
            let rows_of: Vec<usize> = mine.iter().map(|route| route / top_k).collect();
            let product = |matrix: &NumberMatrix, which: usize, input: &[f32]| {
                let mut out = self.activations(matrix.multiply(input, None));
                if let Some(adapted) = &adapted {
                    adapted.add(&self.cpu, which, (*id, &rows_of), input, &mut out);
                    out = self.activations(out);
                }
                out
            };
            let (gate, up) = (product(&expert.gate, 0, &input), product(&expert.up, 1, &input));
            let clamped = experts.clamped.as_ref().map(|all| ClampedExpert::of(all, *id, [expert.down.ins, hidden]));
            let middle = self.activations(match clamped {
                None => reference::silu_mul(&gate, &up),
                Some(clamped) => {
                    let mut middle = gate;
                    clamped.middle_rows(&mut middle, &up);
                    middle
                }
            });
            let mut part = product(&expert.down, 2, &middle);
            if let Some(clamped) = clamped {
                clamped.add_down(&mut part);
                part = self.activations(part);
            }
            for (&route, part) in mine.iter().zip(part.chunks_exact(hidden.max(1))) {
                let row = &mut out[route / top_k * hidden..][..hidden];
                row.iter_mut().zip(part).for_each(|(to, part)| *to += routes.weights[route] * part);
            }
        }
        match routes.experts.iter().find(|id| !experts.by_id.contains_key(id)) {
            Some(id) => Err(KernelError::Shape { op: "moe", what: format!("expert {id} is not held") }),
            None => Ok(self.cpu.to_device(rows, hidden, out)),
        }
    }
}

macro_rules! keep {
    (stream $x:ident) => {
        &mut *$x
    };
    (rounded $x:ident) => {
        &mut *$x
    };
    ($kind:ident $x:ident) => {
        $x
    };
}

macro_rules! round_arg {
    ($cpu:ident rounded $x:ident) => {
        *$x = $cpu.activation_of($x.clone())
    };
    ($cpu:ident $kind:ident $x:ident) => {};
}

macro_rules! round_result {
    ($cpu:ident activation $x:ident) => {
        $cpu.activation_of($x)
    };
    ($cpu:ident exact $x:ident) => {
        $x
    };
}

macro_rules! round {
    ($($(#[$doc:meta])* fn $op:ident($($kind:ident $arg:ident $(: $type:ty)?),*) $(-> $result:ident)?;)*) => {
        $(
            #[allow(clippy::too_many_arguments)]
            fn $op(&self, $($arg: arg_type!($kind $($type)?)),*) $(-> result_type!($result))? {
                $(let result: result_type!($result) =)? self.cpu.$op($(keep!($kind $arg)),*);
                $(round_arg!(self $kind $arg);)*
                $(round_result!(self $result result))?
            }
        )*
    };
}

impl RowOps for RoundingCpu {
    type Tensor = Tensor;
    type Vector = Vec<f32>;
    row_ops!(round);
}

impl Backend for RoundingCpu {
    type Batch<'a> = cpu::Batch<'a>;
    type Linear = RoundingLinear;
    type Expansion = cpu::Expansion;
    type Embedding = cpu::Embedding;
    type Experts = RoundingExperts;
    type Routes = Routes;
    type Cache = KvCache;
    type States = cpu::States;
    type LowRank = cpu::LowRank;
    type HostMemory = Vec<u8>;
    type Drawn = StepOutputs;

    fn vector(&self, values: Vec<f32>) -> Result<Vec<f32>> {
        self.cpu.vector(values)
    }

    /// The numbers of int4 weights are not rounded to bf16, as on a device.
    fn linear_weight(&self, weight: HostMatrix, precision: Precision) -> Result<RoundingLinear> {
        let rounds = precision != Precision::F32;
        let (weight, precision) = match weight.data {
            HostData::Fp8 { .. } if rounds => {
                let weight = NumberMatrix::new(weight.with_one_scale(), precision)?;
                return Ok(RoundingLinear(LinearKind::Fp8(weight)));
            }
            HostData::F32(_) | HostData::Bf16(_) => (weight, precision),
            _ => (weight.into_form(HostForm::F32)?, Precision::F32),
        };
        Ok(RoundingLinear(LinearKind::Plain { weight: self.cpu.linear_weight(weight, precision)?, rounds }))
    }

    fn embedding(&self, part: HostMatrix, first: usize, precision: Precision) -> Result<cpu::Embedding> {
        self.rounds.set(precision != Precision::F32);
        self.cpu.embedding(part, first, precision)
    }

    fn experts(
        &self,
        _: ExpertTable,
        weights: &mut dyn Iterator<Item = Result<ExpertWeights>>,
        precision: Precision,
    ) -> Result<RoundingExperts> {
        let mut experts = BTreeMap::new();
        for weights in weights {
            let weights = weights?;
            experts.insert(weights.id, Arc::new(RoundingExpert::new(weights, precision)?));
        }
        Ok(RoundingExperts { by_id: experts, clamped: None })
    }

    fn clamp_experts(&self, experts: &mut RoundingExperts, gate: ClampedGate<Vec<f32>>) {
        experts.clamped = Some(Arc::new(gate));
    }

    fn regroup(&self, held: &RoundingExperts, fresh: &RoundingExperts, ids: &[u32]) -> Result<RoundingExperts> {
        let find = |id: &u32| {
            let expert = held.by_id.get(id).or_else(|| fresh.by_id.get(id)).cloned();
            let missing = || KernelError::Shape { op: "regroup", what: format!("expert {id} is not held") };
            Ok((*id, expert.ok_or_else(missing)?))
        };
        Ok(RoundingExperts { by_id: ids.iter().map(find).collect::<Result<_>>()?, clamped: held.clamped.clone() })
    }

    fn cache(&self, blocks: usize, block_size: usize, widths: [usize; 2], form: CacheForm) -> Result<KvCache> {
        self.cpu.cache(blocks, block_size, widths, form)
    }

    fn split_cache(&self, cache: &mut KvCache, split: KvSplit) -> Result<()> {
        self.cpu.split_cache(cache, split)
    }

    fn block_bytes(&self, cache: &KvCache) -> usize {
        self.cpu.block_bytes(cache)
    }

    fn host_memory(&self, bytes: usize) -> Result<Vec<u8>> {
        self.cpu.host_memory(bytes)
    }

    fn save_block(&self, cache: &KvCache, block: u32, to: &mut Vec<u8>, offset: usize) -> Result<()> {
        self.cpu.save_block(cache, block, to, offset)
    }

    fn load_block(&self, cache: &mut KvCache, block: u32, from: &Vec<u8>, offset: usize) -> Result<()> {
        self.cpu.load_block(cache, block, from, offset)
    }

    fn settle(&self, memory: &Vec<u8>) -> Result<()> {
        self.cpu.settle(memory)
    }

    fn states(&self, cells: usize, numbers: usize) -> Result<cpu::States> {
        self.cpu.states(cells, numbers)
    }

    fn low_rank(&self, places: usize) -> Result<cpu::LowRank> {
        self.cpu.low_rank(places)
    }

    /// Rounded as on a device, where their products are f32.
    fn set_low_rank(
        &self,
        table: &mut cpu::LowRank,
        place: usize,
        pair: Option<LowRankPair>,
        precision: Precision,
    ) -> Result<()> {
        let rounded = |matrix: HostMatrix| -> Result<HostMatrix> {
            let NumberMatrix { numbers, ins, .. } = NumberMatrix::new(matrix, precision)?;
            Ok(HostMatrix { rows: numbers.len() / ins.max(1), cols: ins, data: HostData::F32(numbers) })
        };
        let pair = match pair {
            Some(LowRankPair { down, up }) => Some(LowRankPair { down: rounded(down)?, up: rounded(up)? }),
            None => None,
        };
        self.cpu.set_low_rank(table, place, pair, Precision::F32)
    }

    fn to_device(&self, rows: usize, cols: usize, values: Vec<f32>) -> Tensor {
        self.cpu.to_device(rows, cols, values)
    }

    fn to_host(&self, x: &Tensor) -> Vec<f32> {
        self.cpu.to_host(x)
    }

    fn begin<'a>(&mut self, rows: StepInputs<'a>) -> Result<cpu::Batch<'a>> {
        self.cpu.begin(rows)
    }

    fn run(&mut self, _: &cpu::Batch<'_>, f: impl FnOnce(&Self) -> Result<Tensor>) -> Result<Tensor> {
        f(self)
    }

    /// The CPU rounds the norm to bf16 itself where the head's product does.
    fn draw(
        &mut self,
        batch: &cpu::Batch<'_>,
        hidden: Option<&Tensor>,
        head: &OutputHead<'_, Self>,
    ) -> Result<StepOutputs> {
        let OutputHead { norm, norm_bias, eps, weight, scale } = *head;
        let weight = match weight.map(|weight| &weight.0) {
            None => None,
            Some(LinearKind::Plain { weight, .. }) => Some(weight),
            Some(LinearKind::Fp8(_)) => {
                return Err(KernelError::Shape { op: "draw", what: "the head must not be FP8".into() });
            }
        };
        let mut drawn = self.cpu.draw(batch, hidden, &OutputHead { norm, norm_bias, eps, weight, scale })?;
        drawn.states = drawn.states.into_iter().map(|state| self.activations(state)).collect();
        Ok(drawn)
    }

    fn outputs(&mut self, drawn: StepOutputs) -> Result<StepOutputs> {
        Ok(drawn)
    }

    fn rows(&self, x: &Tensor) -> usize {
        self.cpu.rows(x)
    }

    fn cols(&self, x: &Tensor) -> usize {
        self.cpu.cols(x)
    }

    sequence_ops!(round);

    fn linear(&self, x: &Tensor, weight: &RoundingLinear, bias: Option<&Vec<f32>>) -> Tensor {
        match &weight.0 {
            LinearKind::Plain { weight, rounds: true } => self.activation_of(self.cpu.linear(x, weight, bias)),
            LinearKind::Plain { weight, rounds: false } => self.cpu.linear(x, weight, bias),
            LinearKind::Fp8(matrix) => {
                let out = self.activations(matrix.multiply(x.data(), bias.map(Vec::as_slice)));
                self.cpu.to_device(self.cpu.rows(x), matrix.numbers.len() / matrix.ins.max(1), out)
            }
        }
    }

    fn mla_attention(
        &self,
        batch: &cpu::Batch<'_>,
        q: &Tensor,
        latent: &Tensor,
        k_rope: &Tensor,
        kv_b: &cpu::Expansion,
        adapters: Option<[&cpu::LowRank; 2]>,
        cache: &mut KvCache,
        spec: &MlaSpec,
    ) -> Result<Tensor> {
        let stored = |x: &mut [f32]| {
            if self.rounds.get() {
                to_bf16(x);
            }
        };
        let out = self.cpu.attend_latent(batch, q, [latent, k_rope], kv_b, adapters, cache, spec, stored)?;
        Ok(self.activation_of(out))
    }

    fn mla_weight(&self, kv_b: HostMatrix, spec: &MlaSpec, precision: Precision) -> Result<cpu::Expansion> {
        self.cpu.mla_weight(kv_b, spec, precision)
    }

    fn moe_route(&self, scores: &Tensor, bias: Option<&Vec<f32>>, spec: &RouteSpec) -> Routes {
        self.cpu.moe_route(scores, bias, spec)
    }

    /// The result is f32.
    fn moe(
        &self,
        batch: &cpu::Batch<'_>,
        x: &Tensor,
        routes: &Routes,
        experts: &RoundingExperts,
        adapters: Option<ExpertAdapters<'_, cpu::LowRank>>,
        shared: Option<&Tensor>,
    ) -> Result<Tensor> {
        let mut out = self.sum_of_routes(x, routes, experts, AdaptedRows::of(batch, adapters))?;
        shared.iter().for_each(|shared| self.cpu.add_scaled(&mut out, shared, 1.0));
        Ok(out)
    }

    fn expert_counts(&mut self, layers: &[usize]) -> ExpertCounts {
        self.cpu.expert_counts(layers)
    }

    fn relink(&mut self, link: Box<dyn Collective>) {
        self.cpu.relink(link);
    }

    fn control(&self) -> &dyn ControlLink {
        self.cpu.control()
    }

    fn all_reduce(&self, x: &mut Tensor) -> Result<()> {
        self.cpu.all_reduce(x)
    }
}

impl Devices for RoundingDevices {
    type Backend = RoundingCpu;
    const KIND: &'static str = CpuDevices::KIND;
    const STEP_COST: usize = CpuDevices::STEP_COST;

    fn open(&self, index: usize, ranks: usize, link: Box<dyn Collective>) -> Result<RoundingCpu> {
        if link.size() > 1 {
            return Err(KernelError::Device(format!(
                "a group must have one rank to round as a GPU, got {}",
                link.size()
            )));
        }
        Ok(RoundingCpu::new(self.cpu.open(index, ranks, link)?))
    }

    fn open_beside(&self, index: usize) -> Result<RoundingCpu> {
        Ok(RoundingCpu::new(self.cpu.open_beside(index)?))
    }

    fn free_memory(&self) -> Result<usize> {
        self.cpu.free_memory()
    }
}

impl DeviceStorage for RoundingDevices {
    fn host_form(&self, role: WeightRole, stored: StoredForm, precision: Precision) -> HostForm {
        CudaStorage.host_form(role, stored, precision)
    }

    fn weight_bytes(&self, role: WeightRole, stored: StoredForm, precision: Precision, numbers: usize) -> usize {
        CudaStorage.weight_bytes(role, stored, precision, numbers)
    }
}

#[cfg(test)]
mod tests;
