//! The CUDA backend: the ops as kernels on one stream. The residual stream is f32; other activations have the type of
//! the embedding. An op that fails leaves its error for `run` or `draw`, and later ops do nothing.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::Duration;

use super::angles::DeviceAngles;
use super::arena::{ArenaBlock, DeviceArena};
use super::args::*;
use super::attention::DeviceCache;
use super::batch::{DeviceBatch, StepBuffers};
use super::draw::{DrawPlan, StashedLogits};
use super::experts::DeviceExperts;
use super::fast::KernelTier;
use super::graphs::{Graphs, Kept, Mode};
use super::memory::read;
use super::moe::DeviceRoutes;
use super::plan::LaunchPlan;
use super::ranks::{DataLinks, ExpertCounters, JOIN_TIME, MOST_BY_PEERS, PeerRegistry, VocabularyParts, WHOLE_SUM};
use super::step::{StepLimits, StepShape};
use super::tensor::{DeviceTensor, Element};
use super::upload::{UploadRing, WeightWriter};
use super::weights::{DeviceEmbedding, DeviceExpansion, DeviceLinear, DeviceVector, Matrix, Prepared};
use super::{CudaDevice, CudaError};
use crate::backend::*;
use crate::collective::{Collective, ControlLink};
use crate::error::{KernelError, Result};

/// One rank on a CUDA device.
pub struct Cuda {
    pub(super) link: Box<dyn Collective>,
    /// None: it is alone, or not connected yet.
    pub(super) data: Option<DataLinks>,
    pub(super) peers: Arc<PeerRegistry>,
    /// [`super::ranks::WHOLE_SUM`].
    pub(super) whole_sum: Cell<usize>,
    /// [`super::ranks::MOST_BY_PEERS`].
    pub(super) most_by_peers: Cell<usize>,
    /// [`super::ranks::JOIN_TIME`].
    pub(super) join_time: Duration,
    /// [`super::ranks::hang_time`].
    pub(super) hang_time: Duration,
    /// Of the logits, once they were drawn from.
    pub(super) vocabulary: Option<VocabularyParts>,
    pub(super) counters: Option<ExpertCounters>,
    /// Experts have moved to other memory since the last step.
    pub(super) experts_moved: Cell<bool>,
    pub(super) device: CudaDevice,
    /// A zero for each multiprocessor, for the fast kernels; None: the plain kernels compute.
    pub(super) fast: Option<super::DeviceBuffer>,
    pub(super) arena: DeviceArena,
    /// The first error of an op.
    error: RefCell<Option<CudaError>>,
    /// Of activations other than the residual stream.
    pub(super) activations: Cell<Element>,
    pub(super) limits: Cell<StepLimits>,
    pub(super) angles: RefCell<DeviceAngles>,
    pub(super) graphs: RefCell<Graphs>,
    /// Of weights that are being loaded.
    pub(super) ring: RefCell<UploadRing>,
    pub(super) steps: StepBuffers,
    pub(super) stash: StashedLogits,
}

pub(super) fn shape(op: &'static str, what: String) -> KernelError {
    KernelError::Shape { op, what }
}

/// Arguments of kernels are ints; sizes come from config.json.
pub(super) fn int(size: usize) -> i32 {
    i32::try_from(size).unwrap_or_else(|_| panic!("{size} is too large for a kernel"))
}

impl Cuda {
    pub(super) fn new(
        mut device: CudaDevice,
        kernels: KernelTier,
        link: Box<dyn Collective>,
        peers: Arc<PeerRegistry>,
        hang_time: Duration,
    ) -> Result<Cuda> {
        device.enter()?;
        let fast = if kernels == KernelTier::Fast && device.load_fast()? {
            let mut zeros = device.allocate(4 * device.properties.multiprocessors as usize)?;
            zeros.fill(&device, 0)?;
            Some(zeros)
        } else {
            None
        };
        Ok(Cuda {
            link,
            data: None,
            peers,
            whole_sum: Cell::new(WHOLE_SUM),
            most_by_peers: Cell::new(MOST_BY_PEERS),
            join_time: JOIN_TIME,
            hang_time,
            vocabulary: None,
            counters: None,
            experts_moved: Cell::new(false),
            steps: StepBuffers::default(),
            fast,
            device,
            arena: DeviceArena::default(),
            error: RefCell::default(),
            activations: Cell::new(Element::F32),
            limits: Cell::new(StepLimits { vocab: usize::MAX, blocks: usize::MAX, block_size: 1 }),
            angles: RefCell::default(),
            graphs: RefCell::default(),
            ring: RefCell::default(),
            stash: StashedLogits::default(),
        })
    }

    /// The value, or None after the first error.
    pub(super) fn keep<T>(&self, result: std::result::Result<T, CudaError>) -> Option<T> {
        result.map_err(|error| self.error.borrow_mut().get_or_insert(error).clone()).ok()
    }

    /// The first error of an op. It stays, because what later ops would have computed is missing.
    pub(super) fn check(&self) -> Result<()> {
        self.error.borrow().clone().map_or(Ok(()), |error| Err(error.into()))
    }

    /// Memory that the next kernel fills.
    pub(super) fn take(&self, bytes: usize) -> ArenaBlock {
        let taken = self.keep(self.arena.take(&self.device, bytes));
        taken.unwrap_or_else(|| self.arena.nothing())
    }

    pub(super) fn tensor(&self, rows: usize, cols: usize, element: Element) -> DeviceTensor {
        DeviceTensor::new(self.take(rows * cols * element.bytes()), rows, cols, element)
    }

    /// Puts a kernel into the stream, unless there is nothing to do or an op has failed.
    ///
    /// # Safety
    /// As `CudaDevice::launch`.
    pub(super) unsafe fn launch<A: Copy>(&self, plan: &LaunchPlan, args: &A) {
        if plan.grid.contains(&0) || self.error.borrow().is_some() {
            return;
        }
        // SAFETY: the caller's promise.
        self.keep(unsafe { self.device.launch(plan, args) });
    }

    /// `factor` times y is added to `keep` times x.
    fn add_to(&self, x: &DeviceTensor, keep: f32, y: Option<&DeviceTensor>, factor: f32) {
        assert!(x.element == Element::F32 && x.is_contiguous(), "add_scaled: x must be f32 and no view");
        let n = x.rows * x.cols;
        let args = AddScaledArgs { x: x.address, y: y.map_or(0, |y| y.address), n, keep, factor };
        let name = y.map_or(Element::F32, |y| y.element).of("add_scaled_f32", "add_scaled_bf16");
        // SAFETY: x and y have n numbers each.
        unsafe { self.launch(&LaunchPlan::by_number(name, n), &args) };
    }

    /// The norm of the rows of the residual stream, to which factor * y is added first.
    pub(super) fn norm_of_sum(
        &self,
        x: &DeviceTensor,
        y: Option<&DeviceTensor>,
        factor: f32,
        weight: &DeviceVector,
        eps: f32,
    ) -> DeviceTensor {
        assert!(x.element == Element::F32 && x.is_contiguous(), "add_norm: x must be f32 and no view");
        let out = self.tensor(x.rows, x.cols, self.activations.get());
        let (y, of_y) = y.map_or((0, out.element), |y| (y.address, y.element));
        let name = match (of_y, out.element) {
            (Element::F32, Element::F32) => "add_norm_f32",
            (Element::Bf16, Element::Bf16) => "add_norm_bf16",
            (Element::F32, Element::Bf16) => "add_norm_f32_bf16",
            (Element::Bf16, Element::F32) => panic!("add_norm: y must not be bf16 in a model of f32"),
        };
        let n = int(x.cols);
        let args = AddNormArgs { x: x.address, y, weight: weight.data.address(), out: out.address, n, factor, eps };
        // SAFETY: x, y and out have rows * n numbers, weight n.
        unsafe { self.launch(&LaunchPlan::by_row(name, x.rows), &args) };
        out
    }

    /// A matrix that a recorded step leaves.
    pub(super) fn kept(&self, kept: Kept) -> Option<DeviceTensor> {
        let Kept { start, rows, cols } = kept;
        let block = self.arena.take_at(start, rows * cols * Element::F32.bytes())?;
        Some(DeviceTensor::new(block, rows, cols, Element::F32))
    }

    /// The rows of x with these indices on the device, divided by `per_row`; rows without an index are not written.
    pub(super) fn gather_rows(&self, x: &DeviceTensor, index: u64, rows: usize, per_row: usize) -> DeviceTensor {
        let out = self.tensor(rows, x.cols, x.element);
        let (n, stride) = (int(x.cols), int(x.stride));
        let args = GatherArgs { x: x.address, index, out: out.address, n, stride, per_row: int(per_row) };
        let plan = LaunchPlan::by_columns(x.element.of("gather_f32", "gather_bf16"), rows, x.cols);
        // SAFETY: the caller's indices, divided by per_row, are rows of x; out has a row for each.
        unsafe { self.launch(&plan, &args) };
        out
    }

    /// silu(gate) * up; where `routes` is none (address 0: nowhere) rows are not written.
    pub(super) fn silu_mul_rows(&self, gate: &DeviceTensor, up: &DeviceTensor, routes: u64) -> DeviceTensor {
        assert_eq!(
            (gate.rows, gate.cols, gate.stride),
            (up.rows, up.cols, up.stride),
            "silu_mul: gate and up must have the same shape and stride"
        );
        assert_eq!(gate.element, up.element, "silu_mul: gate and up must hold the same kind of numbers");
        let out = self.tensor(gate.rows, gate.cols, gate.element);
        let (n, stride) = (int(gate.cols), int(gate.stride));
        let args = SiluMulArgs { gate: gate.address, up: up.address, out: out.address, routes, n, stride };
        let plan = LaunchPlan::by_columns(gate.element.of("silu_mul_f32", "silu_mul_bf16"), gate.rows, gate.cols);
        // SAFETY: gate and up are matrices of this shape, and out has as many numbers.
        unsafe { self.launch(&plan, &args) };
        out
    }

    /// Makes room for a step. Whether memory that its kernels use has moved.
    pub(super) fn make_room(&mut self, shape: &StepShape, draws: &DrawPlan, last: usize) -> Result<bool> {
        self.ring.get_mut().finish()?;
        let moved = [
            self.experts_moved.take(),
            self.arena.fit(&self.device)?,
            self.angles.get_mut().cover(&self.device, last)?,
            self.steps.fit(&self.device, shape, draws)?,
        ];
        Ok(moved.contains(&true))
    }

    fn writer(&self) -> WeightWriter<'_> {
        WeightWriter { device: &self.device, ring: &self.ring }
    }

    pub(super) fn upload<T: super::memory::Plain>(&self, values: &[T]) -> Result<super::DeviceBuffer> {
        let data = self.device.allocate(size_of_val(values))?;
        data.write(&self.device, 0, values)?;
        Ok(data)
    }
}

impl Backend for Cuda {
    type Tensor = DeviceTensor;
    type Batch<'a> = DeviceBatch<'a>;
    type Vector = DeviceVector;
    type Linear = DeviceLinear;
    type Expansion = DeviceExpansion;
    type Embedding = DeviceEmbedding;
    type Experts = DeviceExperts;
    type Routes = DeviceRoutes;
    type Cache = DeviceCache;
    /// There are none.
    type States = std::convert::Infallible;

    fn vector(&self, values: Vec<f32>) -> Result<DeviceVector> {
        self.check()?;
        Ok(DeviceVector { len: values.len(), data: self.upload(&values)? })
    }

    fn linear_weight(&self, weight: HostMatrix, precision: Precision) -> Result<DeviceLinear> {
        self.check()?;
        Ok(DeviceLinear(Matrix::new(self.writer(), &Prepared::new(weight, precision)?)?))
    }

    fn embedding(&self, part: HostMatrix, first: usize, precision: Precision) -> Result<DeviceEmbedding> {
        self.check()?;
        let embedding = DeviceEmbedding::new(self.writer(), &Prepared::new(part, precision)?, first)?;
        self.activations.set(embedding.element);
        // Of several ranks, each knows its own part.
        let vocab = if self.ranks() > 1 { usize::MAX } else { embedding.rows };
        self.limits.update(|limits| StepLimits { vocab, ..limits });
        Ok(embedding)
    }

    fn experts(
        &self,
        table: ExpertTable,
        weights: &mut dyn Iterator<Item = Result<ExpertWeights>>,
        precision: Precision,
    ) -> Result<DeviceExperts> {
        self.check()?;
        DeviceExperts::load(self.writer(), table, weights, precision, self.ranks())
    }

    fn regroup(&self, held: &DeviceExperts, fresh: &DeviceExperts, ids: &[u32]) -> Result<DeviceExperts> {
        self.check()?;
        self.device.enter()?;
        let experts = held.regroup(&self.device, fresh, ids)?;
        if !experts.same_slots(held) {
            self.experts_moved.set(true);
        }
        Ok(experts)
    }

    fn cache(
        &self,
        blocks: usize,
        block_size: usize,
        width_k: usize,
        width_v: usize,
        precision: Precision,
    ) -> Result<DeviceCache> {
        self.check()?;
        let cache = DeviceCache::new(&self.device, [blocks, block_size], [width_k, width_v], precision)?;
        self.limits.update(|limits| StepLimits { blocks, block_size, ..limits });
        self.graphs.borrow_mut().clear();
        Ok(cache)
    }

    fn states(&self, _: usize, _: usize) -> Result<Self::States> {
        Err(KernelError::Device("recurrent layers are computed on CPUs only".into()))
    }

    /// As f32.
    fn to_device(&self, rows: usize, cols: usize, values: Vec<f32>) -> DeviceTensor {
        assert_eq!(values.len(), rows * cols, "a tensor [{rows}, {cols}]");
        let tensor = self.tensor(rows, cols, Element::F32);
        // SAFETY: the tensor has room for all values.
        self.keep(unsafe { super::memory::write(&self.device, tensor.address, &values) });
        tensor
    }

    fn to_host(&self, x: &DeviceTensor) -> Vec<f32> {
        if x.rows == 0 || self.error.borrow().is_some() {
            return vec![0.0; x.rows * x.cols];
        }
        // A view ends with its last row.
        let count = (x.rows - 1) * x.stride + x.cols;
        // SAFETY: the view has that many numbers from its address on.
        let all = self.keep(unsafe {
            match x.element {
                Element::F32 => read::<f32>(&self.device, x.address, count),
                Element::Bf16 => {
                    read::<half::bf16>(&self.device, x.address, count).map(|v| v.iter().map(|x| x.to_f32()).collect())
                }
            }
        });
        let all = all.unwrap_or_else(|| vec![0.0; count]);
        all.chunks(x.stride.max(1)).flat_map(|row| &row[..x.cols]).copied().collect()
    }

    fn begin<'a>(&mut self, rows: StepInputs<'a>) -> Result<DeviceBatch<'a>> {
        self.device.enter()?;
        self.check()?;
        // The last step may have failed midway.
        self.graphs.get_mut().abandon(&self.device);
        let (shape, draws) = (StepShape::of(&rows), DrawPlan::new(&rows));
        let last = rows.spans.iter().map(|span| span.start + span.len).max().unwrap_or(1).saturating_sub(1);
        if self.ranks() > 1 {
            self.begin_together(&shape, &draws, last)?;
        } else if self.make_room(&shape, &draws, last)? {
            self.graphs.get_mut().forget();
        }
        if self.ranks() == 1 && !self.stash.has(draws.slots) {
            // The stash will move, which a step cannot record.
            self.graphs.get_mut().clear();
        }
        self.steps.upload(&self.device, rows, shape, draws, self.limits.get())
    }

    /// `f` is recorded the second time, together with what `draw` does, and repeated from then on.
    fn run(&mut self, batch: &DeviceBatch<'_>, f: impl FnOnce(&Self) -> Result<DeviceTensor>) -> Result<DeviceTensor> {
        let graphs = self.graphs.get_mut();
        if graphs.begin(&self.device, &batch.shape, self.arena.is_empty())? == Mode::Repeating {
            let results = graphs.results(&batch.shape);
            let hidden = results.and_then(|results| self.kept(results.hidden));
            return hidden.ok_or_else(|| shape("run", "the memory of a recorded step is in use".into()));
        }
        let out = f(self).and_then(|out| self.check().map(|()| out));
        out.inspect_err(|_| self.graphs.borrow_mut().abandon(&self.device))
    }

    fn draw(
        &mut self,
        batch: &DeviceBatch<'_>,
        hidden: Option<&DeviceTensor>,
        head: &OutputHead<'_, Self>,
    ) -> Result<StepOutputs> {
        super::draw::draw(self, batch, hidden, head)
    }

    fn rows(&self, x: &DeviceTensor) -> usize {
        x.rows
    }

    fn cols(&self, x: &DeviceTensor) -> usize {
        x.cols
    }

    fn slice_cols(&self, x: &DeviceTensor, from: usize, len: usize) -> DeviceTensor {
        x.columns(from, len)
    }

    fn embed(&self, table: &DeviceEmbedding, batch: &DeviceBatch<'_>) -> DeviceTensor {
        let (rows, hidden) = (batch.shape.rows, table.cols);
        let out = self.tensor(rows, hidden, Element::F32);
        let ids = self.steps.parts(batch).ids;
        let args = EmbedArgs {
            table: table.table.address(),
            ids,
            out: out.address,
            hidden: int(hidden),
            first: int(table.first) as u32,
            count: int(table.rows) as u32,
        };
        // SAFETY: the table has `count` rows; out has `hidden` numbers for each row of the batch.
        unsafe { self.launch(&LaunchPlan::by_row(table.element.of("embed_f32", "embed_bf16"), rows), &args) };
        out
    }

    fn add_scaled(&self, x: &mut DeviceTensor, y: &DeviceTensor, factor: f32) {
        assert_eq!((x.rows, x.cols), (y.rows, y.cols), "add_scaled: x and y must have the same shape");
        assert!(y.is_contiguous(), "add_scaled: y must be no view");
        self.add_to(x, 1.0, Some(y), factor);
    }

    fn scale(&self, x: &mut DeviceTensor, factor: f32) {
        self.add_to(x, factor, None, 0.0);
    }

    fn silu_mul(&self, gate: &DeviceTensor, up: &DeviceTensor) -> DeviceTensor {
        self.silu_mul_rows(gate, up, 0)
    }

    fn sigmoid_mul(&self, _: &mut DeviceTensor, _: &DeviceTensor) {
        let what = "it is computed on CPUs only".to_owned();
        self.keep::<()>(Err(CudaError::Kernel { kernel: "sigmoid_mul".into(), what }));
    }

    fn rms_norm(&self, x: &DeviceTensor, weight: &DeviceVector, eps: f32) -> DeviceTensor {
        let n = weight.len;
        assert!(
            n > 0 && x.cols.is_multiple_of(n),
            "rms_norm: {} columns must be a multiple of the weight's {n}",
            x.cols
        );
        if x.element != self.activations.get() {
            assert_eq!(x.cols, n, "rms_norm: a residual stream must have as many columns as the weight");
            return self.norm_of_sum(x, None, 0.0, weight, eps);
        }
        let out = self.tensor(x.rows, x.cols, x.element);
        let args = GroupNormArgs {
            x: x.address,
            weight: weight.data.address(),
            out: out.address,
            n: int(n),
            stride: int(x.stride),
            eps,
        };
        let name = x.element.of("group_norm_f32", "group_norm_bf16");
        // SAFETY: x and out have cols numbers in each row, weight n.
        unsafe { self.launch(&LaunchPlan::by_group(name, x.rows, x.cols / n), &args) };
        out
    }

    fn add_norm(
        &self,
        x: &mut DeviceTensor,
        y: &DeviceTensor,
        factor: f32,
        weight: &DeviceVector,
        eps: f32,
    ) -> DeviceTensor {
        assert_eq!((x.rows, x.cols), (y.rows, y.cols), "add_norm: x and y must have the same shape");
        assert_eq!(x.cols, weight.len, "add_norm: x must have as many columns as the weight");
        assert!(y.is_contiguous(), "add_norm: y must be no view");
        self.norm_of_sum(x, Some(y), factor, weight, eps)
    }

    fn linear(&self, x: &DeviceTensor, weight: &DeviceLinear, bias: Option<&DeviceVector>) -> DeviceTensor {
        self.product(x, &weight.0, bias, x.element)
    }

    fn rope(&self, batch: &DeviceBatch<'_>, x: &mut DeviceTensor, spec: &RopeSpec) {
        assert_eq!(batch.shape.rows, x.rows, "rope: one position for each row");
        assert!(x.cols.is_multiple_of(spec.head_dim) && spec.offset + spec.dims <= spec.head_dim, "rope: {spec:?}");
        let Some(angles) = self.keep(self.angles.borrow_mut().get(&self.device, spec)) else { return };
        let parts = self.steps.parts(batch);
        let args = RopeWriteArgs {
            q: x.address,
            angles,
            positions: parts.positions,
            places: parts.places,
            dims: int(spec.dims),
            interleaved: spec.interleaved.into(),
            q_heads: int(x.cols / spec.head_dim),
            q_dim: int(spec.head_dim),
            q_offset: int(spec.offset),
            q_stride: int(x.stride),
            ..RopeWriteArgs::default()
        };
        // SAFETY: the tables cover all positions; with one block per row, only q is rotated.
        unsafe { self.launch(&LaunchPlan::rope(x.element, x.rows, false), &args) };
    }

    fn gqa_attention(
        &self,
        batch: &DeviceBatch<'_>,
        q: &DeviceTensor,
        k: &DeviceTensor,
        v: &DeviceTensor,
        cache: &mut DeviceCache,
        spec: &GqaSpec,
    ) -> DeviceTensor {
        self.attend_gqa(batch, q, [k, v], cache, spec)
    }

    fn mla_attention(
        &self,
        batch: &DeviceBatch<'_>,
        q: &DeviceTensor,
        latent: &DeviceTensor,
        k_rope: &DeviceTensor,
        kv_b: &DeviceExpansion,
        cache: &mut DeviceCache,
        spec: &MlaSpec,
    ) -> DeviceTensor {
        self.attend_latent(batch, q, [latent, k_rope], kv_b, cache, spec)
    }

    fn mla_weight(&self, kv_b: HostMatrix, spec: &MlaSpec, precision: Precision) -> Result<DeviceExpansion> {
        self.check()?;
        DeviceExpansion::new(self.writer(), kv_b, spec, precision)
    }

    fn delta_net(
        &self,
        _: &DeviceBatch<'_>,
        _: &DeviceTensor,
        _: &DeviceTensor,
        _: &DeltaVectors<'_, DeviceVector>,
        states: &mut Self::States,
        _: &DeltaSpec,
    ) -> DeviceTensor {
        match *states {}
    }

    fn moe_route(&self, scores: &DeviceTensor, bias: Option<&DeviceVector>, spec: &RouteSpec) -> DeviceRoutes {
        self.route(scores, bias, spec)
    }

    fn moe(
        &self,
        batch: &DeviceBatch<'_>,
        x: &DeviceTensor,
        routes: &DeviceRoutes,
        experts: &DeviceExperts,
        shared: Option<&DeviceTensor>,
    ) -> Result<DeviceTensor> {
        self.through_experts(batch, x, routes, experts, shared)
    }

    /// A rank that is alone counts nothing.
    fn expert_counts(&mut self, layers: &[usize]) -> ExpertCounts {
        let counters = (self.ranks() > 1).then(|| ExpertCounters::new(&self.device, layers));
        self.counters = counters.and_then(|made| match made {
            Ok(counters) => Some(counters),
            Err(error) => {
                // The next step says so.
                self.error.get_mut().get_or_insert(error);
                None
            }
        });
        self.graphs.get_mut().clear();
        let none: Vec<Vec<u64>> = layers.iter().map(|&experts| vec![0; experts]).collect();
        self.counters
            .as_ref()
            .map_or_else(|| -> ExpertCounts { Arc::new(move || none.clone()) }, ExpertCounters::reader)
    }

    fn relink(&mut self, link: Box<dyn Collective>) {
        self.leave_group();
        self.device.context().retire_memory(false);
        self.link = link;
        self.vocabulary = None;
        self.counters = None;
        self.stash.clear();
        self.graphs.get_mut().clear();
        // Any other error is of the device, which computes no more.
        let passes = |error: &CudaError| {
            matches!(error, CudaError::OutOfMemory { .. } | CudaError::GroupEnded(_) | CudaError::Nccl(_))
        };
        self.error.get_mut().take_if(|error| passes(error));
    }

    fn connect(&mut self, here: usize) -> Result<()> {
        self.connect_ranks(here)
    }

    fn control(&self) -> &dyn ControlLink {
        &*self.link
    }

    /// The sum is f32.
    fn all_reduce(&self, x: &mut DeviceTensor) -> Result<()> {
        if self.ranks() > 1 {
            *x = self.sum_over_ranks(x);
        }
        Ok(())
    }

    fn sum_norm(
        &self,
        x: &mut DeviceTensor,
        y: DeviceTensor,
        factor: f32,
        weight: &DeviceVector,
        eps: f32,
    ) -> Result<DeviceTensor> {
        if self.ranks() == 1 {
            return Ok(self.add_norm(x, &y, factor, weight, eps));
        }
        Ok(self.norm_of_rank_sum(x, &y, factor, weight, eps))
    }
}

impl Drop for Cuda {
    fn drop(&mut self) {
        self.leave_group();
    }
}

#[cfg(test)]
mod tests;
