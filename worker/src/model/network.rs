//! One rank's share of a model on its backend, and the forward pass. It does not know steps or sequences.

use std::sync::Arc;

use rein_control_plane::{Placement, RankPlacement};
use rein_kernels::collective::Collective;
use rein_kernels::{
    Backend, ExpertCounts, GqaSpec, MlaSpec, OutputHead, Precision, Result as KernelResult, RopeSpec, RouteSpec,
    StepInputs, StepOutputs, WeightRole,
};

use super::spec::{Attention, Spec};

mod load;

pub use load::{WeightSource, bytes_to_load};

/// Types of stored weights. Routers are always f32; embeddings and latent expansions are never int8.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Precisions {
    /// f32 or bf16; also the type of the KV cache.
    pub base: Precision,
    /// The type of the large products: `base` or int8.
    pub linear: Precision,
}

impl Precisions {
    pub fn of(self, role: WeightRole) -> Precision {
        match role {
            WeightRole::Embedding | WeightRole::LatentExpansion => self.base,
            WeightRole::Linear | WeightRole::Expert => self.linear,
            WeightRole::Router => Precision::F32,
        }
    }
}

pub struct Network<B: Backend> {
    backend: B,
    spec: Arc<Spec>,
    placement: Arc<Placement>,
    rank: usize,
    base: Precision,
    embed: B::Embedding,
    layers: Vec<Layer<B>>,
    /// One per layer, after `open_caches`.
    caches: Vec<B::Cache>,
    cache_size: CacheSize,
    norm: Norm<B>,
    /// None: the model only computes embeddings.
    head: Option<B::Linear>,
}

/// The size of a rank's KV caches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CacheSize {
    pub blocks: usize,
    /// Tokens of a block.
    pub block_size: usize,
}

/// What a rank needs to change to another expert layout.
pub struct LayoutSwap<B: Backend> {
    pub placement: Arc<Placement>,
    /// Per layer, the experts that the rank did not hold, and the new table. None: a layer without experts.
    pub fresh: Vec<Option<B::Experts>>,
}

/// What a layer adds to the residual stream: the sum over ranks, or this rank's part of it.
enum LayerResult<T> {
    None,
    Sum(T),
    Partial(T),
}

struct Norm<B: Backend> {
    weight: B::Vector,
    eps: f32,
}

struct Linear<B: Backend> {
    weight: B::Linear,
    bias: Option<B::Vector>,
}

struct Layer<B: Backend> {
    input_norm: Norm<B>,
    attention: AttentionWeights<B>,
    mlp_norm: Norm<B>,
    mlp: MlpWeights<B>,
}

enum AttentionWeights<B: Backend> {
    Gqa(Box<Gqa<B>>),
    Mla(Box<Mla<B>>),
}

struct Gqa<B: Backend> {
    q: Linear<B>,
    k: Linear<B>,
    v: Linear<B>,
    o: Linear<B>,
    qk_norm: Option<(Norm<B>, Norm<B>)>,
    spec: GqaSpec,
    rope: Arc<RopeSpec>,
}

struct Mla<B: Backend> {
    query: Query<B>,
    kv_a: Linear<B>,
    kv_norm: Norm<B>,
    kv_b: B::Expansion,
    o: Linear<B>,
    spec: MlaSpec,
    q_rope: Arc<RopeSpec>,
    k_rope: Arc<RopeSpec>,
}

enum Query<B: Backend> {
    Full(Linear<B>),
    LowRank { a: Linear<B>, norm: Norm<B>, b: Linear<B> },
}

struct Gated<B: Backend> {
    gate: Linear<B>,
    up: Linear<B>,
    down: Linear<B>,
}

enum MlpWeights<B: Backend> {
    Dense(Gated<B>),
    Moe(Box<Moe<B>>),
}

struct Moe<B: Backend> {
    router: Linear<B>,
    choice_bias: Option<B::Vector>,
    experts: B::Experts,
    route: RouteSpec,
    shared: Option<Gated<B>>,
}

impl Attention {
    /// Width of a position's two cache entries on a rank with this many KV heads.
    pub fn cache_widths(&self, kv_heads: usize) -> (usize, usize) {
        match self {
            Self::Gqa(a) => (kv_heads * a.head_dim, kv_heads * a.head_dim),
            Self::Mla(a) => (a.kv_rank, a.rope_dim),
        }
    }
}

impl<B: Backend> Network<B> {
    /// Changes to the experts of another layout. On an error nothing changes.
    pub fn relayout(&mut self, swap: LayoutSwap<B>) -> KernelResult<()> {
        let LayoutSwap { placement, fresh } = swap;
        let own = &placement.ranks[self.rank];
        let mut next = Vec::new();
        for (i, (layer, fresh)) in self.layers.iter().zip(&fresh).enumerate() {
            if let (MlpWeights::Moe(moe), Some(fresh)) = (&layer.mlp, fresh) {
                next.push((i, self.backend.regroup(&moe.experts, fresh, &own.experts[i])?));
            }
        }
        for (i, experts) in next {
            if let MlpWeights::Moe(moe) = &mut self.layers[i].mlp {
                moe.experts = experts;
            }
        }
        self.placement = placement;
        Ok(())
    }

    /// [`Backend::expert_counts`].
    pub fn expert_counts(&mut self) -> ExpertCounts {
        self.backend.expert_counts(&self.spec.shape().experts)
    }

    /// Creates an empty KV cache, and room for the logits of `stashes` sequences. A cache that was kept serves if it is
    /// large enough.
    pub fn open_caches(&mut self, blocks: usize, block_size: usize, stashes: usize) -> KernelResult<()> {
        self.backend.open_stash(stashes)?;
        if self.cache_size.blocks >= blocks && self.cache_size.block_size == block_size {
            return Ok(());
        }
        self.close_caches();
        let kv_heads = self.rank().kv_heads.len();
        for layer in &self.spec.layers {
            let (width_k, width_v) = layer.attention.cache_widths(kv_heads);
            self.caches.push(self.backend.cache(blocks, block_size, width_k, width_v, self.base)?);
        }
        self.cache_size = CacheSize { blocks, block_size };
        Ok(())
    }

    /// Frees the KV cache.
    pub fn close_caches(&mut self) {
        self.caches.clear();
        self.cache_size = CacheSize::default();
    }

    /// No blocks without a cache.
    pub fn cache_size(&self) -> CacheSize {
        self.cache_size
    }

    /// Leaves the group; the weights stay, and the KV cache if the rank keeps it.
    pub fn leave(&mut self, alone: Box<dyn Collective>, keeps_caches: bool) {
        if !keeps_caches {
            self.close_caches();
        }
        self.backend.relink(alone);
    }

    /// Joins another group with the same weights.
    pub fn join(&mut self, collective: Box<dyn Collective>) {
        self.backend.relink(collective);
    }

    /// [`Backend::connect`].
    pub fn connect(&mut self, here: usize) -> KernelResult<()> {
        self.backend.connect(here)
    }

    pub fn rank(&self) -> &RankPlacement {
        &self.placement.ranks[self.rank]
    }

    pub fn placement(&self) -> &Arc<Placement> {
        &self.placement
    }

    pub fn backend(&self) -> &B {
        &self.backend
    }

    /// Runs new tokens through all layers, writes their KV entries, and draws.
    pub fn step(&mut self, rows: StepInputs) -> KernelResult<StepOutputs> {
        let computes = !rows.ids.is_empty();
        let batch = self.backend.begin(rows)?;
        let hidden = if computes { Some(self.hidden(&batch)?) } else { None };
        let head = OutputHead {
            norm: &self.norm.weight,
            eps: self.norm.eps,
            weight: self.head.as_ref(),
            scale: 1.0 / self.spec.logits_scaling,
        };
        self.backend.draw(&batch, hidden.as_ref(), &head)
    }

    /// The result of the last layer, [rows, hidden], before the final norm.
    fn hidden(&mut self, batch: &B::Batch<'_>) -> KernelResult<B::Tensor> {
        let Self { backend, spec, embed, layers, caches, .. } = self;
        let residual = spec.residual_multiplier;
        backend.run(batch, |b| {
            let mut x = b.embed(embed, batch);
            b.all_reduce(&mut x)?;
            if spec.embedding_multiplier != 1.0 {
                b.scale(&mut x, spec.embedding_multiplier);
            }
            // The result of the layer before, which is not in x yet.
            let mut before = LayerResult::None;
            for (layer, cache) in layers.iter().zip(caches) {
                let normed = match before {
                    LayerResult::None => layer.input_norm.apply(b, &x),
                    LayerResult::Sum(out) => layer.input_norm.add(b, &mut x, &out, residual),
                    LayerResult::Partial(out) => layer.input_norm.add_sum(b, &mut x, out, residual)?,
                };
                let out = match &layer.attention {
                    AttentionWeights::Gqa(a) => a.forward(b, batch, &normed, cache),
                    AttentionWeights::Mla(a) => a.forward(b, batch, &normed, cache),
                };
                let normed = layer.mlp_norm.add_sum(b, &mut x, out, residual)?;
                before = match &layer.mlp {
                    MlpWeights::Dense(gated) => LayerResult::Partial(gated.forward(b, &normed)),
                    MlpWeights::Moe(moe) => LayerResult::Sum(moe.forward(b, batch, &normed)?),
                };
            }
            match before {
                LayerResult::None => {}
                LayerResult::Sum(out) => b.add_scaled(&mut x, &out, residual),
                LayerResult::Partial(mut out) => {
                    b.all_reduce(&mut out)?;
                    b.add_scaled(&mut x, &out, residual);
                }
            }
            Ok(x)
        })
    }
}

impl<B: Backend> Norm<B> {
    fn apply(&self, b: &B, x: &B::Tensor) -> B::Tensor {
        b.rms_norm(x, &self.weight, self.eps)
    }

    /// Adds factor * y to x first.
    fn add(&self, b: &B, x: &mut B::Tensor, y: &B::Tensor, factor: f32) -> B::Tensor {
        b.add_norm(x, y, factor, &self.weight, self.eps)
    }

    /// Adds factor * the sum over ranks of y to x first.
    fn add_sum(&self, b: &B, x: &mut B::Tensor, y: B::Tensor, factor: f32) -> KernelResult<B::Tensor> {
        b.sum_norm(x, y, factor, &self.weight, self.eps)
    }
}

impl<B: Backend> Linear<B> {
    fn apply(&self, b: &B, x: &B::Tensor) -> B::Tensor {
        b.linear(x, &self.weight, self.bias.as_ref())
    }
}

impl<B: Backend> Gated<B> {
    fn forward(&self, b: &B, x: &B::Tensor) -> B::Tensor {
        self.down.apply(b, &b.silu_mul(&self.gate.apply(b, x), &self.up.apply(b, x)))
    }
}

impl<B: Backend> Moe<B> {
    fn forward(&self, b: &B, batch: &B::Batch<'_>, x: &B::Tensor) -> KernelResult<B::Tensor> {
        let routes = b.moe_route(&self.router.apply(b, x), self.choice_bias.as_ref(), &self.route);
        let shared = self.shared.as_ref().map(|shared| shared.forward(b, x));
        b.moe(batch, x, &routes, &self.experts, shared.as_ref())
    }
}

impl<B: Backend> Gqa<B> {
    fn forward(&self, b: &B, batch: &B::Batch<'_>, x: &B::Tensor, cache: &mut B::Cache) -> B::Tensor {
        let (mut q, mut k, v) = (self.q.apply(b, x), self.k.apply(b, x), self.v.apply(b, x));
        if let Some((q_norm, k_norm)) = &self.qk_norm {
            (q, k) = (q_norm.apply(b, &q), k_norm.apply(b, &k));
        }
        b.rope(batch, &mut q, &self.rope);
        b.rope(batch, &mut k, &self.rope);
        self.o.apply(b, &b.gqa_attention(batch, &q, &k, &v, cache, &self.spec))
    }
}

impl<B: Backend> Mla<B> {
    fn forward(&self, b: &B, batch: &B::Batch<'_>, x: &B::Tensor, cache: &mut B::Cache) -> B::Tensor {
        let mut q = match &self.query {
            Query::Full(q) => q.apply(b, x),
            Query::LowRank { a, norm, b: up } => up.apply(b, &norm.apply(b, &a.apply(b, x))),
        };
        b.rope(batch, &mut q, &self.q_rope);
        let kv = self.kv_a.apply(b, x);
        let latent = self.kv_norm.apply(b, &b.slice_cols(&kv, 0, self.spec.kv_rank));
        let mut k_rope = b.slice_cols(&kv, self.spec.kv_rank, self.spec.rope_dim);
        b.rope(batch, &mut k_rope, &self.k_rope);
        self.o.apply(b, &b.mla_attention(batch, &q, &latent, &k_rope, &self.kv_b, cache, &self.spec))
    }
}
