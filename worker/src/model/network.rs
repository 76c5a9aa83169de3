//! One rank's share of a model on its backend: loading and the forward pass. It does not know steps or sequences.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crossbeam_channel::bounded;
use rein_control_plane::{Placement, RankPlacement};
use rein_kernels::collective::Collective;
use rein_kernels::{
    Backend, ExpertWeights, GqaSpec, HostMatrix, KernelError, MlaSpec, Precision, Result as KernelResult, RopeSpec,
    RouteSpec, Routes, Span,
};

use super::experts::{ExpertCounts, Holders};
use super::spec::{self, Attention, MlaQuery, Mlp, Spec};
use crate::checkpoint::{CheckpointWeights, Form, LoadError};

/// Experts that were read and wait for the backend.
const EXPERTS_AHEAD: usize = 1;

/// Types of stored weights. Routers are always f32; embeddings and latent expansions are never int8.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Precisions {
    /// f32 or bf16; also the type of the KV cache.
    pub base: Precision,
    /// The type of the large products: `base` or int8.
    pub linear: Precision,
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
    norm: Norm<B>,
    head: B::Linear,
    /// Counts the use of experts, on the rank that does so.
    counts: Option<Arc<ExpertCounts>>,
}

/// What a rank needs to change to another expert layout.
pub struct LayoutSwap<B: Backend> {
    pub placement: Arc<Placement>,
    /// Per layer, the experts that the rank did not hold. None: a layer without experts.
    pub fresh: Vec<Option<B::Experts>>,
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
    kv_b: B::Linear,
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
    holders: Holders,
    route: RouteSpec,
    shared: Option<Gated<B>>,
}

/// Approximate bytes of the checkpoint that this rank reads.
pub fn bytes_to_load(spec: &Spec, weights: &CheckpointWeights, rank: &RankPlacement, ranks: usize) -> u64 {
    let part = |l: &spec::LinearSpec| {
        let (rows, cols) = l.cut(rank, ranks);
        weights.cost(&l.module, rows.len() * cols.len())
    };
    let whole = |l: &spec::LinearSpec| weights.cost(&l.module, l.out * l.inp);
    let mut total = weights.cost(&spec.embed, spec.vocab * spec.hidden) + part(&spec.head);
    for (layer, held) in spec.layers.iter().zip(&rank.experts) {
        total += layer.attention.linears().into_iter().map(part).sum::<u64>();
        total += match &layer.mlp {
            Mlp::Dense(gated) => gated.linears().map(part).iter().sum::<u64>(),
            Mlp::Moe(moe) => {
                let experts = held.iter().flat_map(|&e| moe.experts[e as usize].linears().map(whole));
                let shared = moe.shared.iter().flat_map(|gated| gated.linears().map(part));
                whole(&moe.router) + experts.chain(shared).sum::<u64>()
            }
        };
    }
    total
}

fn size(precision: Precision) -> usize {
    match precision {
        Precision::F32 => 4,
        Precision::Bf16 => 2,
        Precision::Int8 => 1,
    }
}

fn bytes_of_expert(expert: &spec::Gated, precisions: Precisions) -> usize {
    expert.linears().map(|l| size(precisions.linear) * l.out * l.inp).iter().sum()
}

/// Approximate memory of this many more experts per layer.
pub fn bytes_of_copies(spec: &Spec, precisions: Precisions, copies: usize) -> usize {
    let of_layer = |layer: &spec::LayerSpec| match &layer.mlp {
        Mlp::Dense(_) => 0,
        Mlp::Moe(moe) => copies * moe.experts.first().map_or(0, |expert| bytes_of_expert(expert, precisions)),
    };
    spec.layers.iter().map(of_layer).sum()
}

/// Approximate memory of this rank's loaded weights, without vectors and int8 scales.
pub fn bytes_to_hold(spec: &Spec, precisions: Precisions, rank: &RankPlacement, ranks: usize) -> usize {
    let (base, linear) = (size(precisions.base), size(precisions.linear));
    let elements = |l: &spec::LinearSpec| {
        let (rows, cols) = l.cut(rank, ranks);
        rows.len() * cols.len()
    };
    let gated = |gated: &spec::Gated| linear * gated.linears().map(elements).iter().sum::<usize>();
    let mut total = base * spec.vocab * spec.hidden + linear * elements(&spec.head);
    for (layer, held) in spec.layers.iter().zip(&rank.experts) {
        let attention: usize = layer.attention.linears().into_iter().map(|l| linear * elements(l)).sum();
        total += match &layer.attention {
            Attention::Gqa(_) => attention,
            Attention::Mla(a) => attention - linear * elements(&a.kv_b) + base * elements(&a.kv_b),
        };
        total += match &layer.mlp {
            Mlp::Dense(dense) => gated(dense),
            Mlp::Moe(moe) => {
                let experts: usize = held.iter().map(|&e| bytes_of_expert(&moe.experts[e as usize], precisions)).sum();
                size(Precision::F32) * elements(&moe.router) + experts + moe.shared.as_ref().map_or(0, gated)
            }
        };
    }
    total
}

/// Reads this rank's parts of weights.
#[derive(Clone, Copy)]
struct Reader<'a> {
    weights: &'a CheckpointWeights,
    rank: &'a RankPlacement,
    ranks: usize,
    /// Receives the bytes of each part that was read.
    progress: &'a (dyn Fn(u64) + Sync),
}

impl Reader<'_> {
    fn read(&self, l: &spec::LinearSpec, whole: bool, precision: Precision) -> Result<HostMatrix, LoadError> {
        let (rows, cols) = if whole { (0..l.out, 0..l.inp) } else { l.cut(self.rank, self.ranks) };
        let form = match precision {
            Precision::F32 => Form::F32,
            Precision::Bf16 => Form::Bf16,
            Precision::Int8 => Form::Widest,
        };
        let cost = self.weights.cost(&l.module, rows.len() * cols.len());
        let matrix = self.weights.matrix(&l.module, [l.out, l.inp], rows, cols, form)?;
        (self.progress)(cost);
        Ok(matrix)
    }

    fn expert(&self, moe: &spec::Moe, id: u32, precision: Precision) -> KernelResult<ExpertWeights> {
        let expert = &moe.experts[id as usize];
        let read = |l: &spec::LinearSpec| {
            self.read(l, true, precision).map_err(|e| KernelError::Shape { op: "experts", what: e.to_string() })
        };
        Ok(ExpertWeights { id, gate: read(&expert.gate)?, up: read(&expert.up)?, down: read(&expert.down)? })
    }
}

struct Loader<'a, B> {
    backend: &'a B,
    reader: Reader<'a>,
    precisions: Precisions,
}

impl<B: Backend> Loader<'_, B> {
    fn linear_in(&self, l: &spec::LinearSpec, precision: Precision) -> Result<Linear<B>, LoadError> {
        let weight = self.backend.linear_weight(self.reader.read(l, false, precision)?, precision)?;
        // The ranks' partial sums are added, so only one rank adds the bias.
        let bias = if l.bias && (!l.is_partial() || self.reader.rank.rank == 0) {
            let (rows, _) = l.cut(self.reader.rank, self.reader.ranks);
            Some(self.vector(&format!("{}.bias", l.module), rows)?)
        } else {
            None
        };
        Ok(Linear { weight, bias })
    }

    fn linear(&self, l: &spec::LinearSpec) -> Result<Linear<B>, LoadError> {
        self.linear_in(l, self.precisions.linear)
    }

    fn vector(&self, tensor: &str, range: std::ops::Range<usize>) -> Result<B::Vector, LoadError> {
        Ok(self.backend.vector(self.reader.weights.vector(tensor, range)?)?)
    }

    fn norm(&self, norm: &spec::Norm) -> Result<Norm<B>, LoadError> {
        Ok(Norm { weight: self.vector(&norm.tensor, 0..norm.size)?, eps: norm.eps })
    }

    fn gated(&self, gated: &spec::Gated) -> Result<Gated<B>, LoadError> {
        Ok(Gated { gate: self.linear(&gated.gate)?, up: self.linear(&gated.up)?, down: self.linear(&gated.down)? })
    }

    fn attention(&self, attention: &Attention) -> Result<AttentionWeights<B>, LoadError> {
        Ok(match attention {
            Attention::Gqa(a) => AttentionWeights::Gqa(Box::new(Gqa {
                q: self.linear(&a.q)?,
                k: self.linear(&a.k)?,
                v: self.linear(&a.v)?,
                o: self.linear(&a.o)?,
                qk_norm: match &a.qk_norm {
                    Some((q, k)) => Some((self.norm(q)?, self.norm(k)?)),
                    None => None,
                },
                spec: GqaSpec {
                    heads: self.reader.rank.heads.len(),
                    kv_heads: self.reader.rank.kv_heads.len(),
                    head_dim: a.head_dim,
                    scale: a.scale,
                    window: a.window,
                },
                rope: a.rope.clone(),
            })),
            Attention::Mla(a) => {
                let spec = MlaSpec {
                    heads: self.reader.rank.heads.len(),
                    nope_dim: a.nope_dim,
                    rope_dim: a.rope_dim,
                    v_dim: a.v_dim,
                    kv_rank: a.kv_rank,
                    scale: a.scale,
                };
                let base = self.precisions.base;
                AttentionWeights::Mla(Box::new(Mla {
                    query: match &a.query {
                        MlaQuery::Full(q) => Query::Full(self.linear(q)?),
                        MlaQuery::LowRank { a, norm, b } => {
                            Query::LowRank { a: self.linear(a)?, norm: self.norm(norm)?, b: self.linear(b)? }
                        }
                    },
                    kv_a: self.linear(&a.kv_a)?,
                    kv_norm: self.norm(&a.kv_norm)?,
                    kv_b: self.backend.mla_weight(self.reader.read(&a.kv_b, false, base)?, &spec, base)?,
                    o: self.linear(&a.o)?,
                    spec,
                    q_rope: a.q_rope.clone(),
                    k_rope: a.k_rope.clone(),
                }))
            }
        })
    }

    fn experts(&self, moe: &spec::Moe, ids: &[u32], stop: &AtomicBool) -> Result<B::Experts, LoadError> {
        let precision = self.precisions.linear;
        let reader = self.reader;
        // Reading the next expert overlaps with the backend's conversion of this one.
        Ok(std::thread::scope(|scope| {
            let (send, receive) = bounded(EXPERTS_AHEAD);
            scope.spawn(move || {
                for &id in ids {
                    if stop.load(Ordering::Relaxed) || send.send(reader.expert(moe, id, precision)).is_err() {
                        return;
                    }
                }
            });
            self.backend.experts(&mut receive.into_iter(), precision)
        })?)
    }

    fn moe(&self, moe: &spec::Moe, held: &[u32], holders: Holders) -> Result<Moe<B>, LoadError> {
        let experts = self.experts(moe, held, &AtomicBool::new(false))?;
        Ok(Moe {
            router: self.linear_in(&moe.router, Precision::F32)?,
            choice_bias: match &moe.choice_bias {
                Some(name) => Some(self.vector(name, 0..moe.experts.len())?),
                None => None,
            },
            experts,
            holders,
            route: moe.route,
            shared: match &moe.shared {
                Some(gated) => Some(self.gated(gated)?),
                None => None,
            },
        })
    }
}

fn holders(placement: &Placement, layer: usize, moe: &spec::Moe) -> KernelResult<Holders> {
    let holders = Holders::new(placement, layer, moe.experts.len());
    match holders.missing() {
        None => Ok(holders),
        Some(id) => {
            Err(KernelError::Shape { op: "placement", what: format!("layer {layer}: no rank holds expert {id}") })
        }
    }
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
    /// Loads the weights. `open_caches` must follow before a forward pass.
    pub fn load(
        backend: B,
        spec: Arc<Spec>,
        weights: &CheckpointWeights,
        (placement, rank): (&Arc<Placement>, usize),
        precisions: Precisions,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<Self, LoadError> {
        let own = &placement.ranks[rank];
        let reader = Reader { weights, rank: own, ranks: backend.ranks(), progress };
        let loader = Loader { backend: &backend, reader, precisions };
        let base = precisions.base;
        let whole = |module: &str| spec::LinearSpec::new(module, [spec.vocab, spec.hidden], false, spec::Shard::Whole);
        let embed = backend.embedding(reader.read(&whole(&spec.embed), true, base)?, base)?;
        let mut layers = Vec::with_capacity(spec.layers.len());
        for (i, (layer, held)) in spec.layers.iter().zip(&own.experts).enumerate() {
            layers.push(Layer {
                input_norm: loader.norm(&layer.input_norm)?,
                attention: loader.attention(&layer.attention)?,
                mlp_norm: loader.norm(&layer.mlp_norm)?,
                mlp: match &layer.mlp {
                    Mlp::Dense(gated) => MlpWeights::Dense(loader.gated(gated)?),
                    Mlp::Moe(moe) => MlpWeights::Moe(Box::new(loader.moe(moe, held, holders(placement, i, moe)?)?)),
                },
            });
        }
        let norm = loader.norm(&spec.norm)?;
        let head = loader.linear(&spec.head)?.weight;
        let placement = placement.clone();
        Ok(Self { backend, spec, placement, rank, base, embed, layers, caches: Vec::new(), norm, head, counts: None })
    }

    /// Loads the experts that `rank` of `placement` holds and `before` did not. It runs on its own backend, beside one
    /// that computes, until `stop`; then the result is incomplete and must not be used.
    pub fn fetch(
        backend: &B,
        spec: &Spec,
        weights: &CheckpointWeights,
        (placement, rank): (&Arc<Placement>, usize),
        before: &RankPlacement,
        precisions: Precisions,
        stop: &AtomicBool,
    ) -> Result<LayoutSwap<B>, LoadError> {
        let own = &placement.ranks[rank];
        let reader = Reader { weights, rank: own, ranks: placement.ranks.len(), progress: &|_| () };
        let loader = Loader { backend, reader, precisions };
        let mut fresh = Vec::with_capacity(spec.layers.len());
        for ((layer, held), before) in spec.layers.iter().zip(&own.experts).zip(&before.experts) {
            fresh.push(match &layer.mlp {
                Mlp::Dense(_) => None,
                Mlp::Moe(moe) => {
                    let new: Vec<u32> = held.iter().filter(|id| !before.contains(id)).copied().collect();
                    Some(loader.experts(moe, &new, stop)?)
                }
            });
        }
        Ok(LayoutSwap { placement: placement.clone(), fresh })
    }

    /// Changes to the experts of another layout. On an error nothing changes.
    pub fn relayout(&mut self, swap: LayoutSwap<B>) -> KernelResult<()> {
        let LayoutSwap { placement, fresh } = swap;
        let own = &placement.ranks[self.rank];
        let mut next = Vec::new();
        for (i, (layer, fresh)) in self.layers.iter().zip(&fresh).enumerate() {
            let (MlpWeights::Moe(moe), Some(fresh), Mlp::Moe(spec)) = (&layer.mlp, fresh, &self.spec.layers[i].mlp)
            else {
                continue;
            };
            let experts = self.backend.regroup(&moe.experts, fresh, &own.experts[i])?;
            next.push((i, experts, holders(&placement, i, spec)?));
        }
        for (i, experts, holders) in next {
            if let MlpWeights::Moe(moe) = &mut self.layers[i].mlp {
                (moe.experts, moe.holders) = (experts, holders);
            }
        }
        self.placement = placement;
        Ok(())
    }

    pub fn count_experts(&mut self, counts: Option<Arc<ExpertCounts>>) {
        self.counts = counts;
    }

    /// Creates an empty KV cache.
    pub fn open_caches(&mut self, blocks: usize, block_size: usize) -> KernelResult<()> {
        self.caches.clear();
        let kv_heads = self.rank().kv_heads.len();
        for layer in &self.spec.layers {
            let (width_k, width_v) = layer.attention.cache_widths(kv_heads);
            self.caches.push(self.backend.cache(blocks, block_size, width_k, width_v, self.base)?);
        }
        Ok(())
    }

    /// Keeps only the weights; the rank leaves its group.
    pub fn leave(&mut self, alone: Box<dyn Collective>) {
        self.caches.clear();
        self.backend.relink(alone);
    }

    /// Joins another group with the same weights.
    pub fn join(&mut self, collective: Box<dyn Collective>) {
        self.backend.relink(collective);
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

    /// Runs new tokens through all layers and writes their KV entries. The result, [rows, hidden], is not normed yet.
    pub fn hidden(&mut self, ids: &[u32], positions: &[u32], spans: &[Span]) -> KernelResult<B::Tensor> {
        let b = &self.backend;
        let mut x = b.embed(&self.embed, ids);
        if self.spec.embedding_multiplier != 1.0 {
            b.scale(&mut x, self.spec.embedding_multiplier);
        }
        for (i, (layer, cache)) in self.layers.iter().zip(&mut self.caches).enumerate() {
            let normed = layer.input_norm.apply(b, &x);
            let mut out = match &layer.attention {
                AttentionWeights::Gqa(a) => a.forward(b, &normed, positions, spans, cache),
                AttentionWeights::Mla(a) => a.forward(b, &normed, positions, spans, cache),
            };
            b.all_reduce(&mut out)?;
            b.add_scaled(&mut x, &out, self.spec.residual_multiplier);

            let normed = layer.mlp_norm.apply(b, &x);
            let out = match &layer.mlp {
                MlpWeights::Dense(gated) => {
                    let mut out = gated.forward(b, &normed);
                    b.all_reduce(&mut out)?;
                    out
                }
                MlpWeights::Moe(moe) => moe.forward(b, &normed, |routes| {
                    self.counts.iter().for_each(|counts| counts.add(i, routes));
                })?,
            };
            b.add_scaled(&mut x, &out, self.spec.residual_multiplier);
        }
        Ok(x)
    }

    /// Logits [rows.len() * vocab] of some rows of `hidden`'s result, on the host of every rank.
    pub fn logits(&self, hidden: &B::Tensor, rows: &[usize]) -> KernelResult<Vec<f32>> {
        let b = &self.backend;
        let normed = self.norm.apply(b, &b.gather_rows(hidden, rows));
        let mut logits = b.all_gather_cols(&b.linear(&normed, &self.head, None))?;
        if self.spec.logits_scaling != 1.0 {
            b.scale(&mut logits, 1.0 / self.spec.logits_scaling);
        }
        Ok(b.to_host(&logits))
    }
}

impl<B: Backend> Norm<B> {
    fn apply(&self, b: &B, x: &B::Tensor) -> B::Tensor {
        b.rms_norm(x, &self.weight, self.eps)
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
    fn forward(&self, b: &B, x: &B::Tensor, count: impl Fn(&Routes)) -> KernelResult<B::Tensor> {
        let routes = b.moe_route(&self.router.apply(b, x), self.choice_bias.as_ref(), &self.route);
        let shared = self.shared.as_ref().map(|shared| shared.forward(b, x));
        if b.ranks() > 1 {
            count(&routes);
            let dispatch = self.holders.dispatch(&routes);
            let mine = dispatch.iter().enumerate().filter(|&(_, &rank)| rank as usize == b.rank());
            let picks: Vec<u32> = mine.map(|(route, _)| route as u32).collect();
            let parts = b.moe_parts(x, &routes, &picks, &self.experts);
            return b.moe_combine(&parts, &routes, &dispatch, shared.as_ref());
        }
        let mut out = b.moe_experts(x, &routes, &self.experts);
        if let Some(shared) = shared {
            b.add_scaled(&mut out, &shared, 1.0);
        }
        Ok(out)
    }
}

impl<B: Backend> Gqa<B> {
    fn forward(&self, b: &B, x: &B::Tensor, positions: &[u32], spans: &[Span], cache: &mut B::Cache) -> B::Tensor {
        let (mut q, mut k, v) = (self.q.apply(b, x), self.k.apply(b, x), self.v.apply(b, x));
        if let Some((q_norm, k_norm)) = &self.qk_norm {
            (q, k) = (q_norm.apply(b, &q), k_norm.apply(b, &k));
        }
        b.rope(&mut q, &self.rope, positions);
        b.rope(&mut k, &self.rope, positions);
        self.o.apply(b, &b.gqa_attention(&q, &k, &v, cache, spans, &self.spec))
    }
}

impl<B: Backend> Mla<B> {
    fn forward(&self, b: &B, x: &B::Tensor, positions: &[u32], spans: &[Span], cache: &mut B::Cache) -> B::Tensor {
        let mut q = match &self.query {
            Query::Full(q) => q.apply(b, x),
            Query::LowRank { a, norm, b: up } => up.apply(b, &norm.apply(b, &a.apply(b, x))),
        };
        b.rope(&mut q, &self.q_rope, positions);
        let kv = self.kv_a.apply(b, x);
        let latent = self.kv_norm.apply(b, &b.slice_cols(&kv, 0, self.spec.kv_rank));
        let mut k_rope = b.slice_cols(&kv, self.spec.kv_rank, self.spec.rope_dim);
        b.rope(&mut k_rope, &self.k_rope, positions);
        self.o.apply(b, &b.mla_attention(&q, &latent, &k_rope, &self.kv_b, cache, spans, &self.spec))
    }
}
