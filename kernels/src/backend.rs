//! The inference-level ops that model code is written over. Model code does not know tile sizes; kernels do not know
//! models.
//!
//! Shapes are row-major. `rows` is the number of tokens in the step (all sequences of the batch, flattened). Every op
//! of the CPU backend is batch-invariant: a row's result does not depend on the other rows of the batch, on how a
//! prompt was split into chunks, or on how much of its prefix came from the cache.

use std::sync::Arc;

pub use crate::blocks::BlockForm;
use crate::collective::{Collective, ControlLink};
use crate::error::{KernelError, Result};
pub use crate::expert_inputs::*;
pub use crate::host_matrix::*;
pub use crate::inputs::*;
pub use crate::kv_split::KvSplit;
pub use crate::ops::{Gelu, RowOps, WholeRow};
use crate::ops::{arg_type, declare, result_type, sequence_ops};
use crate::storage::DeviceStorage;
pub use crate::storage::{BY_OUTPUT, CacheForm, HostForm, Precision, ScaleForm, StoredForm, WeightRole};

/// From the last layer to logits: scale * (norm(x) times weight transposed).
pub struct OutputHead<'a, B: Backend> {
    pub norm: &'a B::Vector,
    /// None: a norm without mean; else a layer norm.
    pub norm_bias: Option<&'a B::Vector>,
    pub eps: f32,
    /// This rank's part of the vocabulary. None: the model has no logits, only hidden states.
    pub weight: Option<&'a B::Linear>,
    pub scale: f32,
}

impl<'a, B: Backend> OutputHead<'a, B> {
    /// The head of another backend with what is found for these weights.
    pub(crate) fn map<C: Backend>(
        &self,
        vector: impl Fn(&'a B::Vector) -> &'a C::Vector,
        linear: impl Fn(&'a B::Linear) -> &'a C::Linear,
    ) -> OutputHead<'a, C> {
        let OutputHead { norm, norm_bias, eps, weight, scale } = *self;
        OutputHead { norm: vector(norm), norm_bias: norm_bias.map(&vector), eps, weight: weight.map(linear), scale }
    }
}

/// Rotary embedding of `dims` columns at `offset` within each head of width `head_dim`.
#[derive(Debug, Clone)]
pub struct RopeSpec {
    pub head_dim: usize,
    pub offset: usize,
    pub dims: usize,
    /// Pairs are (2i, 2i+1) instead of (i, i + dims/2). The result keeps the half-split order, as in transformers'
    /// DeepSeek (q and k are permuted alike, so scores do not change).
    pub interleaved: bool,
    /// dims/2 inverse frequencies, with scaling (llama3, YaRN, ...) already applied.
    pub inv_freq: Vec<f64>,
    /// Factor of cos and sin (YaRN's attention factor); 1 otherwise.
    pub magnitude: f32,
    /// A further factor, by position.
    pub growth: Option<Growth>,
}

/// 1 + beta ln(1 + floor(position / length)), as in Llama 4: scores of queries beyond the trained length are sharper.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Growth {
    pub length: u32,
    pub beta: f32,
}

impl Growth {
    fn at(self, position: u32) -> f32 {
        1.0 + self.beta * (1.0 + (position / self.length.max(1)) as f32).ln()
    }
}

impl RopeSpec {
    /// Multiplies all of a row, whatever its heads are: rotates by nothing.
    pub fn growing(growth: Growth) -> RopeSpec {
        let (head_dim, inv_freq) = (2, vec![0.0]);
        let growth = Some(growth);
        RopeSpec { head_dim, offset: 0, dims: head_dim, interleaved: false, inv_freq, magnitude: 1.0, growth }
    }

    /// What cosines and sines of a position are multiplied with.
    pub(crate) fn factor(&self, position: u32) -> f32 {
        self.magnitude * self.growth.map_or(1.0, |growth| growth.at(position))
    }

    /// Appends the dims/2 cosines of a position's angles, then their sines.
    pub(crate) fn push_angles(&self, position: u32, to: &mut Vec<f32>) {
        // The angle is rounded to f32 as in transformers, where frequencies and positions are f32 tensors.
        let angle = |f: &f64| f64::from(*f as f32 * position as f32);
        let factor = self.factor(position);
        to.extend(self.inv_freq.iter().map(|f| angle(f).cos() as f32 * factor));
        to.extend(self.inv_freq.iter().map(|f| angle(f).sin() as f32 * factor));
    }

    /// Whether the angles of both are equal.
    pub(crate) fn same_angles(&self, other: &RopeSpec) -> bool {
        self.inv_freq == other.inv_freq && self.magnitude == other.magnitude && self.growth == other.growth
    }

    pub(crate) fn assert_frequencies(&self) {
        assert_eq!(self.inv_freq.len(), self.dims / 2, "rope: the number of frequencies must be dims / 2");
    }
}

#[derive(Debug, Clone, Copy)]
pub struct GqaSpec {
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub scale: f32,
    /// Only the last `window` positions are visible, including the query's own.
    pub window: Option<usize>,
}

/// Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434). Per position, the cache holds the normed latent and the
/// rotated shared key: `kv_rank + rope_dim` numbers, not expanded heads.
#[derive(Debug, Clone, Copy)]
pub struct MlaSpec {
    pub heads: usize,
    pub nope_dim: usize,
    pub rope_dim: usize,
    pub v_dim: usize,
    pub kv_rank: usize,
    pub scale: f32,
}

/// A gated delta net (arXiv:2412.06464) behind a short causal convolution, as in Qwen3-Next. A value head has a state
/// S [key_dim, value_dim] in f32; for each row S = g S + k (beta (v - (g S)^T k))^T, and its result is S^T q. Queries
/// and keys have unit length, and a key head serves `value_heads / key_heads` value heads.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DeltaSpec {
    pub key_heads: usize,
    pub value_heads: usize,
    pub key_dim: usize,
    pub value_dim: usize,
    /// Rows that the convolution sees, its own included.
    pub taps: usize,
    /// Of the norm of each value head's result.
    pub eps: f32,
}

impl DeltaSpec {
    /// Value heads of a key head.
    pub fn group(&self) -> usize {
        self.value_heads / self.key_heads
    }

    /// Channels of the convolution for each key head: its query, its key and its values.
    pub fn channels(&self) -> usize {
        2 * self.key_dim + self.group() * self.value_dim
    }

    /// Inputs of each key head: the channels, and a gate for each value.
    pub fn inputs(&self) -> usize {
        self.channels() + self.group() * self.value_dim
    }

    /// Numbers of a sequence's state: the inputs that the convolution still sees, and the state of each value head.
    pub fn state_numbers(&self) -> usize {
        let seen = self.taps.saturating_sub(1) * self.key_heads * self.channels();
        seen + self.value_heads * self.key_dim * self.value_dim
    }
}

/// The small weights of a gated delta net.
#[derive(Debug)]
pub struct DeltaVectors<'a, V> {
    /// [key_heads, channels, taps], the oldest row first.
    pub conv: &'a V,
    /// g = exp(-exp(log_decay) * softplus(a + step_bias)), each [value_heads].
    pub log_decay: &'a V,
    pub step_bias: &'a V,
    /// [value_dim]
    pub norm: &'a V,
}

impl<'a, V> DeltaVectors<'a, V> {
    pub(crate) fn map<W>(&self, f: impl Fn(&'a V) -> &'a W) -> DeltaVectors<'a, W> {
        let DeltaVectors { conv, log_decay, step_bias, norm } = self;
        DeltaVectors { conv: f(conv), log_decay: f(log_decay), step_bias: f(step_bias), norm: f(norm) }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scoring {
    Softmax,
    Sigmoid,
}

#[derive(Debug, Clone, Copy)]
pub struct RouteSpec {
    pub top_k: usize,
    pub scoring: Scoring,
    /// Group-limited routing (DeepSeek-V3): experts are in `n_group` groups, of which the `topk_group` best by the sum
    /// of their two best biased scores are eligible. 1 and 1: off.
    pub n_group: usize,
    pub topk_group: usize,
    /// Divide the chosen weights by their sum.
    pub normalize: bool,
    pub scaling: f32,
}

/// The devices of this process, on which its ranks compute. A device has an index, and one rank computes on it.
pub trait Devices: DeviceStorage + Clone + Send + Sync + 'static {
    type Backend: Backend;
    /// The name of the kind: "cpu".
    const KIND: &'static str;
    /// Whether a rank keeps its KV caches while it has no group. Memory of the host is given back, for others may need
    /// it.
    const KEEPS_CACHES: bool = false;
    /// Whether its backends ask for dry steps.
    const PREPARES: bool = false;
    /// What a step costs beyond its rows, in rows: reading the weights takes as long as computing so many.
    const STEP_COST: usize;

    /// The backend on device `index`; `ranks` ranks of this process compute at the same time.
    fn open(&self, index: usize, ranks: usize, link: Box<dyn Collective>) -> Result<Self::Backend>;
    /// A backend on device `index` that only loads weights, beside the one that computes.
    fn open_beside(&self, index: usize) -> Result<Self::Backend>;
    /// How many there are. None: as many as ranks.
    fn count(&self) -> Option<usize> {
        None
    }
    /// Bytes that are free for the ranks of this process together.
    fn free_memory(&self) -> Result<usize>;
    /// Bytes that are free for KV caches on device `index`, once activations have their memory there.
    fn free_after_dry_run(&self, _index: usize) -> Result<usize> {
        self.free_memory()
    }
}

/// One device of one rank. Only `outputs`, `to_host` and the collective ops may wait for the device.
pub trait Backend: RowOps + Sized + Send + 'static {
    /// The inputs of a step on the device.
    type Batch<'a>;
    /// What `draw` leaves for `outputs`.
    type Drawn: Send;
    type Linear: Send + Sync;
    /// The weight that expands latents to keys and values, as `mla_attention` multiplies it.
    type Expansion: Send + Sync;
    type Embedding: Send + Sync;
    /// This rank's experts of one layer, and where the others are.
    type Experts: Send + Sync;
    /// For each row, `top_k` experts with their weights.
    type Routes;
    type Cache: Send;
    /// The recurrent states of one layer, by cell.
    type States: Send;
    /// Low-rank adapters of one module by slot, or of one matrix of a layer's experts.
    type LowRank: Send + Sync;
    /// Bytes of the host that the device copies from and to.
    type HostMemory: Send + std::ops::DerefMut<Target = [u8]>;
    /// Whether a step can begin with tokens of the step before that were not read yet ([`StepInputs::awaits`]).
    const KEEPS_DRAWN: bool = false;
    /// Whether products of one x with several weights are faster as one product with all their rows.
    const JOINS_WEIGHTS: bool = false;

    // Set-up.
    fn vector(&self, values: Vec<f32>) -> Result<Self::Vector>;
    /// A weight [out, in].
    fn linear_weight(&self, weight: HostMatrix, precision: Precision) -> Result<Self::Linear>;
    /// Memory that weights for this backend are best read into.
    fn host_pool(&self) -> Arc<HostPool> {
        HostPool::plain()
    }
    /// This rank's rows of a lookup table [vocab, hidden], from row `first` on.
    fn embedding(&self, part: HostMatrix, first: usize, precision: Precision) -> Result<Self::Embedding>;
    /// The head that is the same matrix, without a copy. None: it is loaded again.
    fn tied_head(&self, embedding: &Self::Embedding) -> Option<Self::Linear> {
        let _ = embedding;
        None
    }
    /// The experts of this rank, taken one by one so that only one is in memory twice. The iterator's size hint
    /// says how many come.
    fn experts(
        &self,
        table: ExpertTable,
        weights: &mut dyn Iterator<Item = Result<ExpertWeights>>,
        precision: Precision,
    ) -> Result<Self::Experts>;
    /// From now on the experts have this gate, which `regroup` keeps.
    fn clamp_experts(&self, experts: &mut Self::Experts, gate: ClampedGate<Self::Vector>);
    /// The experts `ids`, from `held` or else from `fresh` (which another backend of this kind and device may have
    /// made), with the table of `fresh`.
    fn regroup(&self, held: &Self::Experts, fresh: &Self::Experts, ids: &[u32]) -> Result<Self::Experts>;
    /// Paged KV of one layer: two entries of `widths` numbers for each position (MLA: latent and rotary key).
    fn cache(&self, blocks: usize, block_size: usize, widths: [usize; 2], form: CacheForm) -> Result<Self::Cache>;
    /// From now on the cache has a rank's part of the positions, and blocks are numbered over the ranks that share
    /// them. Attention over it exchanges queries and results with these ranks.
    fn split_cache(&self, cache: &mut Self::Cache, split: KvSplit) -> Result<()> {
        let (_, KvSplit { ranks, .. }) = (cache, split);
        let what = format!("this backend does not split a KV cache over {ranks} ranks");
        Err(KernelError::Shape { op: "split_cache", what })
    }
    /// Bytes of one block of a cache.
    fn block_bytes(&self, cache: &Self::Cache) -> usize;
    fn host_memory(&self, bytes: usize) -> Result<Self::HostMemory>;
    /// Copies a block of a cache to the host, where it is after `settle`.
    fn save_block(&self, cache: &Self::Cache, block: u32, to: &mut Self::HostMemory, offset: usize) -> Result<()>;
    /// Copies a block from the host, which ends before `settle` does; all work before it must have ended. Ops that do
    /// not use the block may run meanwhile.
    fn load_block(&self, cache: &mut Self::Cache, block: u32, from: &Self::HostMemory, offset: usize) -> Result<()>;
    /// Waits for all work, and for the copies of this memory.
    fn settle(&self, memory: &Self::HostMemory) -> Result<()>;
    /// Room for `cells` recurrent states of `numbers` f32 each.
    fn states(&self, cells: usize, numbers: usize) -> Result<Self::States>;
    /// Places for adapters, which are empty.
    fn low_rank(&self, places: usize) -> Result<Self::LowRank>;
    /// Puts an adapter into a place, or empties it. Between two steps.
    fn set_low_rank(
        &self,
        table: &mut Self::LowRank,
        place: usize,
        pair: Option<LowRankPair>,
        precision: Precision,
    ) -> Result<()>;
    /// Steps stash to slots below `slots` only: a device can allocate all of them now.
    fn open_stash(&mut self, _slots: usize) -> Result<()> {
        Ok(())
    }
    fn to_device(&self, rows: usize, cols: usize, values: Vec<f32>) -> Self::Tensor;
    fn to_host(&self, x: &Self::Tensor) -> Vec<f32>;

    // Steps.
    /// Makes room for steps within these bounds, and says which ones to compute before the first sequence comes, so
    /// that later steps within the bounds neither allocate nor record anything. All ranks compute the same.
    fn dry_steps(&mut self, _bounds: &StepBounds, _run: DryRun) -> Result<Vec<DryStep>> {
        Ok(Vec::new())
    }
    /// Uploads the inputs of a step, once for all its ops.
    fn begin<'a>(&mut self, rows: StepInputs<'a>) -> Result<Self::Batch<'a>>;
    /// Runs `f`, the layers of a model. A device may record the ops of `f` and repeat them for later batches of the
    /// same size instead of calling it. `draw` must follow, and may be what puts the work on the device.
    fn run(&mut self, batch: &Self::Batch<'_>, f: impl FnOnce(&Self) -> Result<Self::Tensor>) -> Result<Self::Tensor>;
    /// Draws, stashes, scores and finds hidden states as the batch says, from the result `hidden` of its rows; None if
    /// it has no rows. All ranks call it, and rank 0 gets the results from `outputs`.
    fn draw(
        &mut self,
        batch: &Self::Batch<'_>,
        hidden: Option<&Self::Tensor>,
        head: &OutputHead<'_, Self>,
    ) -> Result<Self::Drawn>;
    /// Waits for what a step drew. One more step may begin before.
    fn outputs(&mut self, drawn: Self::Drawn) -> Result<StepOutputs>;

    // Shape.
    fn rows(&self, x: &Self::Tensor) -> usize;
    fn cols(&self, x: &Self::Tensor) -> usize;

    // Layers.
    sequence_ops!(declare);

    /// `rope` of queries and keys.
    fn rope_both(&self, batch: &Self::Batch<'_>, of: [(&mut Self::Tensor, &RopeSpec); 2]) {
        of.into_iter().for_each(|(x, spec)| self.rope(batch, x, spec));
    }
    /// x [rows, in] times weight [out, in] transposed, plus bias [out].
    fn linear(&self, x: &Self::Tensor, weight: &Self::Linear, bias: Option<&Self::Vector>) -> Self::Tensor;
    /// `linear` of `silu_mul`, with its bits. A backend that quantizes x does it with the numbers still at hand.
    fn silu_mul_linear(&self, gate: &Self::Tensor, up: &Self::Tensor, weight: &Self::Linear) -> Self::Tensor {
        self.linear(&self.silu_mul(gate, up), weight, None)
    }
    /// `gqa_attention` over a cache that is split over the ranks which share a KV head.
    #[allow(clippy::too_many_arguments)]
    fn split_gqa_attention(
        &self,
        _batch: &Self::Batch<'_>,
        _q: &Self::Tensor,
        _k: &Self::Tensor,
        _v: &Self::Tensor,
        _sinks: Option<&Self::Vector>,
        _cache: &mut Self::Cache,
        _spec: &GqaSpec,
    ) -> Result<Self::Tensor> {
        Err(KernelError::Shape { op: "split_gqa_attention", what: "this backend does not split a KV cache".into() })
    }
    /// q [rows, heads * (nope + rope)], rotated; latent [rows, kv_rank], normed; k_rope [rows, rope], rotated;
    /// kv_b [heads * (nope + v), kv_rank]. Result [rows, heads * v]. `adapters` change kv_b: of each head its products
    /// from q to a latent, and from a latent to a value; the place of slot s and head h is s * heads + h.
    #[allow(clippy::too_many_arguments)]
    fn mla_attention(
        &self,
        batch: &Self::Batch<'_>,
        q: &Self::Tensor,
        latent: &Self::Tensor,
        k_rope: &Self::Tensor,
        kv_b: &Self::Expansion,
        adapters: Option<[&Self::LowRank; 2]>,
        cache: &mut Self::Cache,
        spec: &MlaSpec,
    ) -> Result<Self::Tensor>;
    /// kv_b_proj in the layout that `mla_attention` needs.
    fn mla_weight(&self, kv_b: HostMatrix, spec: &MlaSpec, precision: Precision) -> Result<Self::Expansion>;

    // Mixture of experts.
    /// Scores [rows, experts] (before softmax or sigmoid). `bias` affects the choice, not the weights.
    fn moe_route(&self, scores: &Self::Tensor, bias: Option<&Self::Vector>, spec: &RouteSpec) -> Self::Routes;
    /// Sum over each row's routes of weight * down(silu(gate(x)) * up(x)), over the experts of all ranks, plus the
    /// ranks' partial sums `shared` [rows, hidden] (given by all ranks or by none). [`ExpertTable::holder`] says which
    /// rank computes what. A row's parts are added in an order that does not depend on it, and all ranks get the same
    /// bits. `adapters` change the matrices of experts as `add_low_rank` does.
    fn moe(
        &self,
        batch: &Self::Batch<'_>,
        x: &Self::Tensor,
        routes: &Self::Routes,
        experts: &Self::Experts,
        adapters: Option<ExpertAdapters<'_, Self::LowRank>>,
        shared: Option<&Self::Tensor>,
    ) -> Result<Self::Tensor>;
    /// From now on, `moe` counts the rows of each expert, starting at zero and until `relink`. `layers` has the number
    /// of experts of each layer, 0 for a layer without. A group of one rank counts nothing.
    fn expert_counts(&mut self, layers: &[usize]) -> ExpertCounts;

    // Ranks.
    /// Links this rank with the ranks of another group. What a step left behind is gone.
    fn relink(&mut self, link: Box<dyn Collective>);
    /// Opens this device's ways to those of the other ranks, of which `here` are in this process. All ranks call it
    /// once for each link, before a step.
    fn connect(&mut self, _here: usize) -> Result<()> {
        Ok(())
    }
    fn control(&self) -> &dyn ControlLink;
    fn rank(&self) -> usize {
        self.control().rank()
    }
    fn ranks(&self) -> usize {
        self.control().size()
    }
    /// Sum over ranks, in rank order on every rank, so that all get the same bits.
    fn all_reduce(&self, x: &mut Self::Tensor) -> Result<()>;
    /// x += factor * the sum over ranks of y; returns the norm of the new x.
    fn sum_norm(
        &self,
        x: &mut Self::Tensor,
        mut y: Self::Tensor,
        factor: f32,
        weight: &Self::Vector,
        eps: f32,
    ) -> Result<Self::Tensor> {
        self.all_reduce(&mut y)?;
        Ok(self.add_norm(x, &y, factor, weight, eps))
    }
}
