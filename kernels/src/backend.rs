//! The inference-level ops that model code is written over. Model code knows no tile size; kernels know no model.
//!
//! Shapes are row-major. `rows` is the number of tokens in the step (all sequences of the batch, flattened).
//! Every op of the CPU backend is batch-invariant: a row's result does not depend on which rows stand beside it,
//! on how a prompt was cut into chunks, or on how much of its prefix came from the cache.

use half::bf16;

use crate::collective::Collective;
use crate::error::Result;

/// A row-major host matrix as the checkpoint loader hands it over: already cut to this rank's shard, dequantized.
#[derive(Debug, Clone)]
pub struct HostMatrix {
    pub rows: usize,
    pub cols: usize,
    pub data: HostData,
}

#[derive(Debug, Clone)]
pub enum HostData {
    F32(Vec<f32>),
    Bf16(Vec<bf16>),
}

/// How a weight is kept and multiplied. Accumulation is always f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Precision {
    /// f32 weights, f32 activations.
    F32,
    /// bf16 weights; activations are rounded to bf16 at the entry of each product.
    Bf16,
    /// int8 weights with one f32 scale per group of inputs, quantized at load.
    Int8,
}

/// The rows of one sequence in a step, and where its KV entries live.
#[derive(Debug, Clone)]
pub struct Span {
    /// First row of this sequence in the step's tensors.
    pub row: usize,
    /// Number of rows.
    pub len: usize,
    /// Position of the first row in its sequence.
    pub start: usize,
    /// Block table, covering positions 0..start + len.
    pub blocks: Vec<u32>,
}

/// Rotary embedding of `dims` columns at `offset` within each head of width `head_dim`.
#[derive(Debug, Clone)]
pub struct RopeSpec {
    pub head_dim: usize,
    pub offset: usize,
    pub dims: usize,
    /// Pairs are (2i, 2i+1) instead of (i, i + dims/2). The result keeps the half-split order, as
    /// transformers' DeepSeek does (q and k are permuted alike, so scores do not change).
    pub interleaved: bool,
    /// Inverse frequencies, dims/2 of them, scaling (llama3, YaRN, ...) already applied.
    pub inv_freq: Vec<f64>,
    /// Multiplies cos and sin (YaRN's attention factor); 1 otherwise.
    pub magnitude: f32,
}

#[derive(Debug, Clone, Copy)]
pub struct GqaSpec {
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub scale: f32,
    /// Only the last `window` positions are seen, the query's own included.
    pub window: Option<usize>,
}

/// Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434). The cache holds per position the normed latent and the
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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scoring {
    Softmax,
    Sigmoid,
}

#[derive(Debug, Clone, Copy)]
pub struct RouteSpec {
    pub top_k: usize,
    pub scoring: Scoring,
    /// Group-limited routing (DeepSeek-V3): experts stand in `n_group` groups, of which the `topk_group` best by the sum
    /// of their two best biased scores are eligible. 1 and 1: off.
    pub n_group: usize,
    pub topk_group: usize,
    /// Divide the chosen weights by their sum.
    pub normalize: bool,
    pub scaling: f32,
}

/// For each row `top_k` experts (global ids) with their weights.
#[derive(Debug, Clone)]
pub struct Routes {
    pub top_k: usize,
    pub experts: Vec<u32>,
    pub weights: Vec<f32>,
}

/// One expert's three matrices: gate and up are [inter, hidden], down is [hidden, inter].
pub struct ExpertWeights {
    pub id: u32,
    pub gate: HostMatrix,
    pub up: HostMatrix,
    pub down: HostMatrix,
}

/// One device with its place among the ranks. `Tensor` is an activation matrix in f32.
pub trait Backend: Send + 'static {
    type Tensor: Send;
    type Vector: Send + Sync;
    type Linear: Send + Sync;
    type Embedding: Send + Sync;
    type Experts: Send + Sync;
    type Cache: Send;

    // Set-up.
    fn vector(&self, values: Vec<f32>) -> Result<Self::Vector>;
    /// A weight [out, in].
    fn linear_weight(&self, weight: HostMatrix, precision: Precision) -> Result<Self::Linear>;
    /// A lookup table [vocab, hidden].
    fn embedding(&self, table: HostMatrix, precision: Precision) -> Result<Self::Embedding>;
    /// The experts that live on this rank, taken one by one so that only one is held twice.
    fn experts(
        &self,
        weights: &mut dyn Iterator<Item = Result<ExpertWeights>>,
        precision: Precision,
    ) -> Result<Self::Experts>;
    /// The experts `ids`, of those that are held or else of `fresh` (also by another backend of this kind and device).
    fn regroup(&self, held: &Self::Experts, fresh: &Self::Experts, ids: &[u32]) -> Result<Self::Experts>;
    /// Paged KV of one layer: `width_k` and `width_v` f32 or bf16 numbers per position (MLA: latent and rotary key).
    fn cache(
        &self,
        blocks: usize,
        block_size: usize,
        width_k: usize,
        width_v: usize,
        precision: Precision,
    ) -> Result<Self::Cache>;
    fn to_device(&self, rows: usize, cols: usize, values: Vec<f32>) -> Self::Tensor;
    fn to_host(&self, x: &Self::Tensor) -> Vec<f32>;

    // Shape.
    fn rows(&self, x: &Self::Tensor) -> usize;
    fn cols(&self, x: &Self::Tensor) -> usize;
    fn gather_rows(&self, x: &Self::Tensor, rows: &[usize]) -> Self::Tensor;
    /// Columns from..from + len of every row.
    fn slice_cols(&self, x: &Self::Tensor, from: usize, len: usize) -> Self::Tensor;

    // Elementwise.
    fn embed(&self, table: &Self::Embedding, ids: &[u32]) -> Self::Tensor;
    /// x += factor * y
    fn add_scaled(&self, x: &mut Self::Tensor, y: &Self::Tensor, factor: f32);
    fn scale(&self, x: &mut Self::Tensor, factor: f32);
    /// silu(gate) * up
    fn silu_mul(&self, gate: &Self::Tensor, up: &Self::Tensor) -> Self::Tensor;

    // Norms: `weight.len()` columns at a time, so that a q/k norm is the same op with weight [head_dim].
    fn rms_norm(&self, x: &Self::Tensor, weight: &Self::Vector, eps: f32) -> Self::Tensor;

    // Products.
    /// x [rows, in] times weight [out, in] transposed, plus bias [out].
    fn linear(&self, x: &Self::Tensor, weight: &Self::Linear, bias: Option<&Self::Vector>) -> Self::Tensor;

    // Attention.
    /// Rotates every head of x in place; `positions` has one entry per row.
    fn rope(&self, x: &mut Self::Tensor, spec: &RopeSpec, positions: &[u32]);
    /// Writes k and v into the cache, then attends causally. q [rows, heads * head_dim] -> the same shape.
    fn gqa_attention(
        &self,
        q: &Self::Tensor,
        k: &Self::Tensor,
        v: &Self::Tensor,
        cache: &mut Self::Cache,
        spans: &[Span],
        spec: &GqaSpec,
    ) -> Self::Tensor;
    /// q [rows, heads * (nope + rope)], rotated; latent [rows, kv_rank], normed; k_rope [rows, rope], rotated;
    /// kv_b [heads * (nope + v), kv_rank] as made by `mla_weight`. Result [rows, heads * v].
    #[allow(clippy::too_many_arguments)]
    fn mla_attention(
        &self,
        q: &Self::Tensor,
        latent: &Self::Tensor,
        k_rope: &Self::Tensor,
        kv_b: &Self::Linear,
        cache: &mut Self::Cache,
        spans: &[Span],
        spec: &MlaSpec,
    ) -> Self::Tensor;
    /// kv_b_proj in the layout `mla_attention` wants.
    fn mla_weight(&self, kv_b: HostMatrix, spec: &MlaSpec, precision: Precision) -> Result<Self::Linear>;

    // Mixture of experts.
    /// Scores [rows, experts] (before softmax or sigmoid). `bias` takes part in the choice, not in the weights.
    fn moe_route(&self, scores: &Self::Tensor, bias: Option<&Self::Vector>, spec: &RouteSpec) -> Routes;
    /// Sum over each row's routes of weight * down(silu(gate(x)) * up(x)), over the experts of this rank only.
    fn moe_experts(&self, x: &Self::Tensor, routes: &Routes, experts: &Self::Experts) -> Self::Tensor;
    /// The same for some of the routes, by their place, one by one: a row for each.
    fn moe_parts(&self, x: &Self::Tensor, routes: &Routes, picks: &[u32], experts: &Self::Experts) -> Self::Tensor;
    /// Adds up over ranks what `moe_parts` gave on each for the routes that it computes, and their partial sums `shared`
    /// [rows, hidden] (given by all ranks or by none). `dispatch` has the rank of each route. A row's parts are added in
    /// the order of their experts, so that the sum does not depend on who computed which, and all ranks hold the same bits.
    fn moe_combine(
        &self,
        parts: &Self::Tensor,
        routes: &Routes,
        dispatch: &[u32],
        shared: Option<&Self::Tensor>,
    ) -> Result<Self::Tensor>;

    // Ranks.
    /// From now on the ranks are linked by these.
    fn relink(&mut self, collective: Box<dyn Collective>);
    fn collective(&self) -> &dyn Collective;
    fn rank(&self) -> usize;
    fn ranks(&self) -> usize;
    /// Sum over ranks, in rank order on every rank, so that all hold the same bits.
    fn all_reduce(&self, x: &mut Self::Tensor) -> Result<()>;
    /// The ranks' columns side by side, in rank order.
    fn all_gather_cols(&self, x: &Self::Tensor) -> Result<Self::Tensor>;
}
