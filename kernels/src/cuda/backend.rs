//! The CUDA backend: the ops as kernels on one stream. The residual stream is f32; other activations have the type of
//! the embedding. An op that fails leaves its error for `run` or `draw`, and later ops do nothing.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use super::CudaDevice;
use super::attention::DeviceCache;
use super::batch::{DeviceBatch, DeviceDrawn};
use super::delta::DeviceStates;
use super::draw::{DeviceHistories, StashedLogits, StepDraws, take_drawn};
use super::draw_plan::DrawPlan;
use super::dry::{draw_words, largest_shapes, largest_steps, recorded_steps};
use super::error::shape;
use super::experts::DeviceExperts;
use super::fast::KernelTier;
use super::graphs::{Kept, Mode, Results};
use super::lanes::LaneAttention;
use super::low_rank::DeviceLowRank;
use super::op_stream::OpStream;
use super::pinned_blocks::PinnedBlocks;
use super::ranks::{DeviceGroup, ExpertCounters, PeerRegistry, RankOps, StepIntent};
use super::routes::DeviceRoutes;
use super::step::{StepLimits, StepShape, take_apart};
use super::step_state::StepState;
use super::tensor::DeviceTensor;
use super::upload::{UploadRing, WeightWriter};
use super::weights::{DeviceEmbedding, DeviceExpansion, DeviceLinear, DeviceVector, Matrix, Prepared};
use crate::backend::*;
use crate::collective::{Collective, ControlLink};
use crate::error::Result;
use crate::ops::{arg_type, result_type, sequence_ops};

/// One rank on a CUDA device.
pub struct Cuda {
    pub(super) group: DeviceGroup,
    pub(super) ops: OpStream,
    pub(super) steps: StepState,
    /// Of weights that are being loaded.
    ring: RefCell<UploadRing>,
    stash: StashedLogits,
}

impl Cuda {
    pub(super) fn new(
        device: CudaDevice,
        kernels: KernelTier,
        link: Box<dyn Collective>,
        peers: Arc<PeerRegistry>,
        hang_time: Duration,
    ) -> Result<Cuda> {
        Ok(Cuda {
            ops: OpStream::new(device, kernels == KernelTier::Fast)?,
            group: DeviceGroup::new(link, peers, hang_time),
            steps: StepState::default(),
            ring: RefCell::default(),
            stash: StashedLogits::default(),
        })
    }

    pub(super) fn over_ranks(&self) -> RankOps<'_> {
        RankOps { ops: &self.ops, group: &self.group, graphs: &self.steps.graphs }
    }

    fn draws<'a>(
        &'a self,
        batch: &'a DeviceBatch,
        hidden: Option<&'a DeviceTensor>,
        head: &'a OutputHead<'a, Cuda>,
    ) -> StepDraws<'a, Cuda> {
        StepDraws {
            ranks: self.over_ranks(),
            batch: self.steps.placed(batch),
            hidden,
            head,
            stash: &self.stash,
            histories: self.steps.histories.as_ref(),
            drawn: self.steps.drawn.as_ref(),
        }
    }

    fn leave_group(&mut self) {
        self.group.leave(&self.ops.device, self.steps.graphs.get_mut());
    }

    /// Whether a step has to move or free memory that kernels use.
    fn wants_room(&mut self, shape: &StepShape, draws: &DrawPlan, last: usize) -> bool {
        self.steps.experts_moved.get()
            || !self.ring.get_mut().is_empty()
            || self.ops.arena.wants_room()
            || self.ops.angles.get_mut().wants_room(last)
            || self.steps.buffers.wants_room(shape, draws)
            || (self.rank() == 0 && !self.stash.has(draws.slots))
            || self.ops.device.context().has_retired()
    }

    /// Makes room for a step. Whether memory that its kernels use has moved.
    fn make_room(&mut self, shape: &StepShape, draws: &DrawPlan, last: usize) -> Result<bool> {
        self.ring.get_mut().finish()?;
        let device = &self.ops.device;
        let moved = [
            self.steps.experts_moved.take(),
            self.ops.arena.fit(device)?,
            self.ops.angles.get_mut().cover(device, last)?,
            self.steps.buffers.fit(device, shape, draws)?,
        ];
        Ok(moved.contains(&true))
    }

    /// All ranks begin a step of one shape: they make room at the same time, while no device works, and record or
    /// repeat the step together or not at all.
    fn begin_together(&mut self, shape: &StepShape, draws: &DrawPlan, last: usize) -> Result<()> {
        let moves = self.group.has_offers()? || self.wants_room(shape, draws, last);
        let graphs = self.steps.graphs.get_mut();
        let mode = graphs.mode_of(&self.ops.device, shape, self.ops.arena.is_empty());
        let agreed = self.group.agree(StepIntent { moves, mode })?;
        if agreed != Some(StepIntent { moves: false, mode }) {
            graphs.clear();
        }
        if agreed.is_some_and(|agreed| agreed.moves) {
            self.ops.device.wait()?;
            // From here on no rank reads another's memory.
            self.group.meet_on_hosts()?;
            self.group.forget_offers();
            self.make_room(shape, draws, last)?;
            let context = self.ops.device.context();
            context.free_retired(context.take_retired());
            // The driver may wait for the device when it frees memory, and ranks may share it.
            self.group.meet_on_hosts()?;
        }
        Ok(())
    }

    fn writer(&self) -> WeightWriter<'_> {
        WeightWriter { device: &self.ops.device, ring: &self.ring }
    }
}

/// An argument of an op as the stream takes it.
macro_rules! placed {
    ($cuda:ident batch $batch:ident) => {
        &$cuda.steps.placed($batch)
    };
    ($cuda:ident $kind:ident $arg:ident) => {
        $arg
    };
}

/// The ops of a list are the stream's methods of these names.
macro_rules! forward {
    ($($(#[$doc:meta])* fn $op:ident($($kind:ident $arg:ident $(: $type:ty)?),*) $(-> $result:ident)?;)*) => {
        $(
            fn $op(&self, $($arg: arg_type!($kind $($type)?)),*) $(-> result_type!($result))? {
                self.ops.$op($(placed!(self $kind $arg)),*)
            }
        )*
    };
}

impl Backend for Cuda {
    type Batch<'a> = DeviceBatch<'a>;
    type Linear = DeviceLinear;
    type Expansion = DeviceExpansion;
    type Embedding = DeviceEmbedding;
    type Experts = DeviceExperts;
    type Routes = DeviceRoutes;
    type Cache = DeviceCache;
    type States = DeviceStates;
    type LowRank = DeviceLowRank;
    type HostMemory = PinnedBlocks;
    type Drawn = DeviceDrawn;
    const KEEPS_DRAWN: bool = true;
    const JOINS_WEIGHTS: bool = true;

    fn vector(&self, values: Vec<f32>) -> Result<DeviceVector> {
        self.ops.check()?;
        Ok(DeviceVector { len: values.len(), data: self.ops.upload(&values)? })
    }

    fn host_pool(&self) -> Arc<HostPool> {
        self.ring.borrow_mut().pool(&self.ops.device)
    }

    fn linear_weight(&self, weight: HostMatrix, precision: Precision) -> Result<DeviceLinear> {
        self.ops.check()?;
        let weight = Prepared::new(weight.with_one_scale(), precision)?;
        self.ops.has_codes.set(self.ops.has_codes.get() || weight.form.is_fp8());
        Ok(DeviceLinear(Matrix::new(self.writer(), weight)?))
    }

    fn embedding(&self, part: HostMatrix, first: usize, precision: Precision) -> Result<DeviceEmbedding> {
        self.ops.check()?;
        let embedding = DeviceEmbedding::new(self.writer(), Prepared::new(part, precision)?, first)?;
        self.ops.activations.set(embedding.element);
        // Of several ranks, each knows its own part.
        let vocab = if self.ranks() > 1 { usize::MAX } else { embedding.rows };
        self.steps.limits.update(|limits| StepLimits { vocab, ..limits });
        self.steps.tokens.set(embedding.rows * self.ranks());
        Ok(embedding)
    }

    fn experts(
        &self,
        table: ExpertTable,
        weights: &mut dyn Iterator<Item = Result<ExpertWeights>>,
        precision: Precision,
    ) -> Result<DeviceExperts> {
        self.ops.check()?;
        DeviceExperts::load(self.writer(), table, weights, precision, self.ranks())
    }

    fn clamp_experts(&self, experts: &mut DeviceExperts, gate: ClampedGate<DeviceVector>) {
        experts.clamp(gate);
    }

    fn regroup(&self, held: &DeviceExperts, fresh: &DeviceExperts, ids: &[u32]) -> Result<DeviceExperts> {
        self.ops.check()?;
        self.ops.device.enter()?;
        let experts = held.regroup(&self.ops.device, fresh, ids)?;
        if !experts.same_slots(held) {
            self.steps.experts_moved.set(true);
        }
        Ok(experts)
    }

    fn cache(&self, blocks: usize, block_size: usize, widths: [usize; 2], form: CacheForm) -> Result<DeviceCache> {
        self.ops.check()?;
        let cache = DeviceCache::new(&self.ops.device, [blocks, block_size], widths, form, self.ops.activations.get())?;
        self.steps.limits.update(|limits| StepLimits { blocks, block_size, split: None, ..limits });
        self.steps.graphs.borrow_mut().clear();
        Ok(cache)
    }

    fn split_cache(&self, cache: &mut DeviceCache, split: KvSplit) -> Result<()> {
        let StepLimits { blocks, block_size, .. } = self.steps.limits.get();
        if split.ranks != self.ranks() || !KvSplit::fits(split.ranks, block_size) {
            let what = format!("{split:?} of {} ranks with blocks of {block_size}", self.ranks());
            return Err(shape("split_cache", what));
        }
        cache.split = Some(split);
        let blocks = blocks * split.ranks;
        self.steps.limits.update(|limits| StepLimits { blocks, split: Some(split), ..limits });
        Ok(())
    }

    fn block_bytes(&self, cache: &DeviceCache) -> usize {
        cache.block_parts(0).iter().map(|(_, bytes)| bytes).sum()
    }

    fn host_memory(&self, bytes: usize) -> Result<PinnedBlocks> {
        self.ops.check()?;
        Ok(PinnedBlocks::new(&self.ops.device, bytes)?)
    }

    fn save_block(&self, cache: &DeviceCache, block: u32, to: &mut PinnedBlocks, offset: usize) -> Result<()> {
        self.ops.device.enter()?;
        // SAFETY: the parts lie in the cache.
        unsafe { to.receive(&self.ops.device, offset, &cache.block_parts(block)) }
    }

    fn load_block(&self, cache: &mut DeviceCache, block: u32, from: &PinnedBlocks, offset: usize) -> Result<()> {
        self.ops.device.enter()?;
        // SAFETY: the parts lie in the cache, and no op uses them before `settle`.
        unsafe { from.send(offset, &cache.block_parts(block)) }
    }

    fn settle(&self, memory: &PinnedBlocks) -> Result<()> {
        self.ops.device.enter()?;
        self.ops.device.wait()?;
        Ok(memory.wait()?)
    }

    fn states(&self, cells: usize, numbers: usize) -> Result<DeviceStates> {
        self.ops.check()?;
        let states = DeviceStates::new(&self.ops.device, cells, numbers)?;
        self.steps.limits.update(|limits| StepLimits { cells, ..limits });
        self.steps.graphs.borrow_mut().clear();
        Ok(states)
    }

    fn low_rank(&self, places: usize) -> Result<DeviceLowRank> {
        self.ops.check()?;
        DeviceLowRank::new(self.writer(), places)
    }

    /// Steps launch other kernels then.
    fn set_low_rank(
        &self,
        table: &mut DeviceLowRank,
        place: usize,
        pair: Option<LowRankPair>,
        precision: Precision,
    ) -> Result<()> {
        self.ops.device.enter()?;
        if table.set(self.writer(), place, pair, precision)? {
            self.steps.graphs.borrow_mut().clear();
        }
        Ok(())
    }

    fn open_stash(&mut self, slots: usize) -> Result<()> {
        if slots > self.steps.limits.get().slots {
            self.ops.device.enter()?;
            self.steps.drawn = Some(self.ops.device.allocate(4 * slots)?);
            self.steps.limits.update(|limits| StepLimits { slots, ..limits });
            self.steps.graphs.get_mut().clear();
        }
        Ok(())
    }

    /// As f32.
    fn to_device(&self, rows: usize, cols: usize, values: Vec<f32>) -> DeviceTensor {
        self.ops.to_device(rows, cols, &values)
    }

    fn to_host(&self, x: &DeviceTensor) -> Vec<f32> {
        self.ops.to_host(x)
    }

    fn dry_steps(&mut self, bounds: &StepBounds, run: DryRun) -> Result<Vec<DryStep>> {
        self.ops.device.enter()?;
        let blocks = bounds.positions.div_ceil(self.steps.limits.get().block_size);
        if run == DryRun::Recording {
            return Ok(recorded_steps(bounds.sequences, blocks));
        }
        self.ops.angles.get_mut().cover(&self.ops.device, bounds.positions.saturating_sub(1))?;
        let [shape, decode] = largest_shapes(bounds, blocks, self.steps.limits.get());
        let words = shape.parts().end.max(decode.parts().end) + draw_words(bounds, self.steps.tokens.get());
        if self.rank() == 0 {
            let StepBounds { sequences, positions, .. } = *bounds;
            self.steps.histories = Some(DeviceHistories::new(&self.ops.device, sequences, positions)?);
        }
        self.steps.buffers.reserve(&self.ops.device, words, shape.results.max(decode.results))?;
        Ok(largest_steps(bounds, blocks))
    }

    fn begin<'a>(&mut self, mut rows: StepInputs<'a>) -> Result<DeviceBatch<'a>> {
        take_apart(&mut rows);
        self.ops.end_step();
        self.ops.device.enter()?;
        self.ops.check()?;
        // The last step may have failed midway.
        self.steps.graphs.get_mut().abandon(&self.ops.device);
        let keeps = self.steps.histories.as_ref();
        keeps.map_or(Ok(()), |histories| histories.check(&rows.draws))?;
        let shape = StepShape::of(&rows, self.steps.limits.get());
        let draws = DrawPlan::new(&rows, keeps.is_some());
        let last = rows.spans.iter().map(|span| span.start + span.len).max().unwrap_or(1).saturating_sub(1);
        if self.ranks() > 1 {
            self.begin_together(&shape, &draws, last)?;
        } else if self.wants_room(&shape, &draws, last) {
            self.ops.device.wait()?;
            if self.make_room(&shape, &draws, last)? {
                self.steps.graphs.get_mut().forget();
            }
        }
        if self.ranks() == 1 && !self.stash.has(draws.slots) {
            // The stash will move, which a step cannot record.
            self.steps.graphs.get_mut().clear();
        }
        let batch = self.steps.buffers.upload(&self.ops.device, rows, shape, draws, self.steps.limits.get())?;
        if let Some(drawn) = &self.steps.drawn {
            take_drawn(&self.ops, &self.steps.placed(&batch), drawn);
        }
        Ok(batch)
    }

    /// `f` is recorded the second time, together with what `draw` does, and repeated from then on.
    fn run(&mut self, batch: &DeviceBatch<'_>, f: impl FnOnce(&Self) -> Result<DeviceTensor>) -> Result<DeviceTensor> {
        let graphs = self.steps.graphs.get_mut();
        if graphs.begin(&self.ops.device, &batch.shape, self.ops.arena.is_empty())? == Mode::Repeating {
            let results = graphs.results(&batch.shape);
            let hidden = results.and_then(|results| results.hidden.take(&self.ops.arena));
            return hidden.ok_or_else(|| shape("run", "the memory of a recorded step is in use".into()));
        }
        let out = f(self).and_then(|out| self.ops.check().map(|()| out));
        out.inspect_err(|_| self.steps.graphs.borrow_mut().abandon(&self.ops.device))
    }

    fn draw(
        &mut self,
        batch: &DeviceBatch<'_>,
        hidden: Option<&DeviceTensor>,
        head: &OutputHead<'_, Self>,
    ) -> Result<DeviceDrawn> {
        let (plan, leads) = (&batch.draws, self.rank() == 0);
        if let Some(weight) = head.weight {
            let vocab = self.group.vocabulary(&self.ops, weight.0.outs)?;
            if leads {
                self.stash.fit(&self.ops.device, plan.slots, vocab)?;
            }
        }
        if leads {
            self.stash.take(&batch.rows.draws)?;
        }
        let out = if self.steps.graphs.get_mut().mode() == Mode::Repeating {
            let results = self.steps.graphs.get_mut().repeat(&self.ops.device, &batch.shape)?;
            results.and_then(|results| results.drawn).and_then(|drawn| drawn.take(&self.ops.arena))
        } else {
            let out = self.draws(batch, hidden, head).launch()?;
            if self.ranks() > 1 {
                // The next step may use all memory of the ops.
                self.over_ranks().exchange(&[]);
                self.group.forget_offers();
            }
            let drawn = out.as_ref().map(Kept::of);
            let results = hidden.map(|hidden| Results { hidden: Kept::of(hidden), drawn });
            let (device, graphs) = (&self.ops.device, self.steps.graphs.get_mut());
            let ended = self.ops.check().and_then(|()| match results {
                Some(results) => Ok(graphs.end(device, &batch.shape, results)?),
                None => Ok(()),
            });
            ended.inspect_err(|_| graphs.abandon(device))?;
            out
        };
        let (mut states, mut results) = (Vec::new(), None);
        if leads {
            self.stash.fill(&batch.rows.stashes);
            if !batch.rows.states.is_empty() {
                states = self.draws(batch, hidden, head).states()?;
            }
            if plan.out_words() > 0 {
                let taken = || shape("draw", "the memory of a recorded step is in use".into());
                results = Some(out.as_ref().ok_or_else(taken)?.address);
            }
        }
        // SAFETY: the results have at least that many words.
        let drawn = unsafe { self.steps.buffers.leave(&self.ops.device, batch, results, states) }?;
        self.group.check().map(|()| drawn)
    }

    fn outputs(&mut self, drawn: DeviceDrawn) -> Result<StepOutputs> {
        self.ops.device.enter()?;
        let drawn = drawn.read()?;
        // After the results: they may be of a group that has ended.
        self.group.check().map(|()| drawn)
    }

    fn rows(&self, x: &DeviceTensor) -> usize {
        x.rows
    }

    fn cols(&self, x: &DeviceTensor) -> usize {
        x.cols
    }

    sequence_ops!(forward);

    fn linear(&self, x: &DeviceTensor, weight: &DeviceLinear, bias: Option<&DeviceVector>) -> DeviceTensor {
        self.ops.product(x, &weight.0, bias, x.element)
    }

    fn rope_both(&self, batch: &DeviceBatch<'_>, [q, k]: [(&mut DeviceTensor, &RopeSpec); 2]) {
        self.ops.rope_both(&self.steps.placed(batch), [(q.0, q.1), (k.0, k.1)]);
    }

    fn silu_mul_linear(&self, gate: &DeviceTensor, up: &DeviceTensor, weight: &DeviceLinear) -> DeviceTensor {
        self.ops.product_of_gated(gate, up, &weight.0)
    }

    fn mla_attention(
        &self,
        batch: &DeviceBatch<'_>,
        q: &DeviceTensor,
        latent: &DeviceTensor,
        k_rope: &DeviceTensor,
        kv_b: &DeviceExpansion,
        adapters: Option<[&DeviceLowRank; 2]>,
        cache: &mut DeviceCache,
        spec: &MlaSpec,
    ) -> Result<DeviceTensor> {
        let batch = &self.steps.placed(batch);
        let mix = |query: &DeviceTensor| match cache.split {
            None => self.ops.mix_latents(batch, q, query, cache, spec),
            Some(split) => LaneAttention { ranks: self.over_ranks(), batch, cache, split, spec: *spec }.mix(q, query),
        };
        Ok(self.ops.attend_latent(batch, q, [latent, k_rope], kv_b, adapters, cache, spec, mix))
    }

    fn mla_weight(&self, kv_b: HostMatrix, spec: &MlaSpec, precision: Precision) -> Result<DeviceExpansion> {
        self.ops.check()?;
        DeviceExpansion::new(self.writer(), kv_b, spec, precision)
    }

    fn moe_route(&self, scores: &DeviceTensor, bias: Option<&DeviceVector>, spec: &RouteSpec) -> DeviceRoutes {
        self.ops.route(scores, bias, spec)
    }

    fn moe(
        &self,
        batch: &DeviceBatch<'_>,
        x: &DeviceTensor,
        routes: &DeviceRoutes,
        experts: &DeviceExperts,
        adapters: Option<ExpertAdapters<'_, DeviceLowRank>>,
        shared: Option<&DeviceTensor>,
    ) -> Result<DeviceTensor> {
        self.over_ranks().through_experts(&self.steps.placed(batch), x, routes, experts, adapters, shared)
    }

    /// A rank that is alone counts nothing.
    fn expert_counts(&mut self, layers: &[usize]) -> ExpertCounts {
        let counters = (self.ranks() > 1).then(|| ExpertCounters::new(&self.ops.device, layers));
        // The next step says what has failed.
        self.group.counters = counters.and_then(|made| self.ops.keep(made));
        self.steps.graphs.get_mut().clear();
        let none: Vec<Vec<u64>> = layers.iter().map(|&experts| vec![0; experts]).collect();
        self.group
            .counters
            .as_ref()
            .map_or_else(|| -> ExpertCounts { Arc::new(move || none.clone()) }, ExpertCounters::reader)
    }

    fn relink(&mut self, link: Box<dyn Collective>) {
        self.leave_group();
        self.ops.device.context().retire_memory(false);
        self.group.relink(link);
        self.stash.clear();
        self.steps.graphs.get_mut().clear();
        self.ops.forget_error_of_group();
    }

    fn connect(&mut self, here: usize) -> Result<()> {
        self.leave_group();
        let exchanges = Arc::clone(self.steps.graphs.get_mut().exchanges());
        self.group.connect(&self.ops.device, exchanges, here)
    }

    fn control(&self) -> &dyn ControlLink {
        &*self.group.link
    }

    /// The sum is f32.
    fn all_reduce(&self, x: &mut DeviceTensor) -> Result<()> {
        if self.ranks() > 1 {
            *x = self.over_ranks().sum_over_ranks(x);
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
        Ok(self.over_ranks().norm_of_rank_sum(x, &y, factor, weight, eps))
    }
}

impl Drop for Cuda {
    fn drop(&mut self) {
        self.leave_group();
    }
}

#[cfg(test)]
mod tests;
