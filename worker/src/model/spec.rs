//! A model as data: its weights with their names and sharding, and the numbers of each block. An architecture file
//! makes a `Spec` from config.json; loading and the forward pass know only the `Spec`.

use std::ops::Range;
use std::sync::Arc;

use rein_control_plane::placement::{ModelShape, RankPlacement, share};
use rein_kernels::{RopeSpec, RouteSpec};

/// The part of a weight [out, in] that a rank holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shard {
    Whole,
    /// The outputs of its attention heads, this many per head.
    OutHeads(usize),
    OutKvHeads(usize),
    /// The inputs of its attention heads; the ranks' results are summed.
    InHeads(usize),
    /// An even share of the outputs or inputs.
    Out,
    In,
}

/// A linear module: `{module}.weight` [out, inp] in any weight format and, with `bias`, `{module}.bias` [out].
#[derive(Debug, Clone)]
pub struct LinearSpec {
    pub module: String,
    pub out: usize,
    pub inp: usize,
    pub bias: bool,
    pub shard: Shard,
}

impl LinearSpec {
    pub fn new(module: impl Into<String>, [out, inp]: [usize; 2], bias: bool, shard: Shard) -> Self {
        Self { module: module.into(), out, inp, bias, shard }
    }

    /// Rows and columns of this rank.
    pub fn cut(&self, rank: &RankPlacement, ranks: usize) -> (Range<usize>, Range<usize>) {
        let of = |heads: &Range<usize>, width: usize| heads.start * width..heads.end * width;
        match self.shard {
            Shard::Whole => (0..self.out, 0..self.inp),
            Shard::OutHeads(width) => (of(&rank.heads, width), 0..self.inp),
            Shard::OutKvHeads(width) => (of(&rank.kv_heads, width), 0..self.inp),
            Shard::InHeads(width) => (0..self.out, of(&rank.heads, width)),
            Shard::Out => (share(self.out, ranks, rank.rank), 0..self.inp),
            Shard::In => (0..self.out, share(self.inp, ranks, rank.rank)),
        }
    }

    /// Whether the ranks' outputs are partial sums.
    pub fn is_partial(&self) -> bool {
        matches!(self.shard, Shard::InHeads(_) | Shard::In)
    }
}

/// An RMS norm's weight, by full tensor name.
#[derive(Debug, Clone)]
pub struct Norm {
    pub tensor: String,
    pub size: usize,
    pub eps: f32,
}

#[derive(Debug, Clone)]
pub struct Gqa {
    pub q: LinearSpec,
    pub k: LinearSpec,
    pub v: LinearSpec,
    pub o: LinearSpec,
    /// Norms of each query and key head, before the rotation.
    pub qk_norm: Option<(Norm, Norm)>,
    pub head_dim: usize,
    pub scale: f32,
    pub window: Option<usize>,
    pub rope: Arc<RopeSpec>,
}

#[derive(Debug, Clone)]
pub enum MlaQuery {
    Full(LinearSpec),
    LowRank { a: LinearSpec, norm: Norm, b: LinearSpec },
}

#[derive(Debug, Clone)]
pub struct Mla {
    pub query: MlaQuery,
    /// Its output is the latent, followed by the rotary part of the shared key.
    pub kv_a: LinearSpec,
    pub kv_norm: Norm,
    pub kv_b: LinearSpec,
    pub o: LinearSpec,
    pub nope_dim: usize,
    pub rope_dim: usize,
    pub v_dim: usize,
    pub kv_rank: usize,
    pub scale: f32,
    pub q_rope: Arc<RopeSpec>,
    pub k_rope: Arc<RopeSpec>,
}

#[derive(Debug, Clone)]
pub enum Attention {
    Gqa(Gqa),
    Mla(Mla),
}

/// down(silu(gate(x)) * up(x))
#[derive(Debug, Clone)]
pub struct Gated {
    pub gate: LinearSpec,
    pub up: LinearSpec,
    pub down: LinearSpec,
}

#[derive(Debug, Clone)]
pub struct Moe {
    pub router: LinearSpec,
    /// A tensor with one number per expert, added to the scores only for the choice.
    pub choice_bias: Option<String>,
    pub experts: Vec<Gated>,
    pub route: RouteSpec,
    pub shared: Option<Gated>,
}

#[derive(Debug, Clone)]
pub enum Mlp {
    Dense(Gated),
    Moe(Moe),
}

#[derive(Debug, Clone)]
pub struct LayerSpec {
    pub input_norm: Norm,
    pub attention: Attention,
    pub mlp_norm: Norm,
    pub mlp: Mlp,
}

#[derive(Debug, Clone)]
pub struct Spec {
    pub architecture: &'static str,
    pub vocab: usize,
    pub hidden: usize,
    pub max_positions: usize,
    pub heads: usize,
    pub kv_heads: usize,
    /// The module whose `.weight` is [vocab, hidden].
    pub embed: String,
    pub embedding_multiplier: f32,
    pub layers: Vec<LayerSpec>,
    /// Factor of each block's output before it is added to the residual stream.
    pub residual_multiplier: f32,
    pub norm: Norm,
    /// None: the model only computes embeddings.
    pub head: Option<LinearSpec>,
    /// The head uses the embedding's matrix.
    pub tied: bool,
    /// Divisor of the logits.
    pub logits_scaling: f32,
    /// Prefixes of tensors that are known and not needed: layers that only predict further tokens, a vision tower.
    pub ignored: Vec<String>,
}

impl Spec {
    pub fn shape(&self) -> ModelShape {
        let experts = |layer: &LayerSpec| match &layer.mlp {
            Mlp::Dense(_) => 0,
            Mlp::Moe(moe) => moe.experts.len(),
        };
        ModelShape {
            attention_heads: self.heads,
            kv_heads: self.kv_heads,
            experts: self.layers.iter().map(experts).collect(),
        }
    }

    /// The embedding as a module: the ranks share its rows.
    pub fn embedding(&self) -> LinearSpec {
        LinearSpec::new(&self.embed, [self.vocab, self.hidden], false, Shard::Out)
    }

    /// All linear modules except embedding and head.
    pub fn linears(&self) -> impl Iterator<Item = &LinearSpec> {
        self.layers.iter().flat_map(|layer| {
            let mut all = layer.attention.linears();
            match &layer.mlp {
                Mlp::Dense(gated) => all.extend(gated.linears()),
                Mlp::Moe(moe) => {
                    all.push(&moe.router);
                    all.extend(moe.experts.iter().chain(&moe.shared).flat_map(Gated::linears));
                }
            }
            all
        })
    }

    pub fn norms(&self) -> impl Iterator<Item = &Norm> {
        std::iter::once(&self.norm).chain(self.layers.iter().flat_map(LayerSpec::norms))
    }

    /// LinearSpec modules that the checkpoint must have, with [out, inp].
    pub fn modules(&self) -> Vec<(String, [usize; 2])> {
        let mut modules: Vec<_> = self.linears().map(|l| (l.module.clone(), [l.out, l.inp])).collect();
        modules.push((self.embed.clone(), [self.vocab, self.hidden]));
        if let Some(head) = self.head.as_ref().filter(|_| !self.tied) {
            modules.push((head.module.clone(), [self.vocab, self.hidden]));
        }
        modules
    }

    /// Plain tensors that the checkpoint must have, with their shapes.
    pub fn tensors(&self) -> Vec<(String, Vec<usize>)> {
        let mut tensors: Vec<_> = self.norms().map(|n| (n.tensor.clone(), vec![n.size])).collect();
        tensors.extend(self.linears().filter(|l| l.bias).map(|l| (format!("{}.bias", l.module), vec![l.out])));
        for layer in &self.layers {
            if let Mlp::Moe(Moe { choice_bias: Some(name), experts, .. }) = &layer.mlp {
                tensors.push((name.clone(), vec![experts.len()]));
            }
        }
        tensors
    }
}

impl Attention {
    pub fn linears(&self) -> Vec<&LinearSpec> {
        match self {
            Self::Gqa(a) => vec![&a.q, &a.k, &a.v, &a.o],
            Self::Mla(a) => match &a.query {
                MlaQuery::Full(q) => vec![q, &a.kv_a, &a.kv_b, &a.o],
                MlaQuery::LowRank { a: down, b: up, .. } => vec![down, up, &a.kv_a, &a.kv_b, &a.o],
            },
        }
    }
}

impl Gated {
    pub fn linears(&self) -> [&LinearSpec; 3] {
        [&self.gate, &self.up, &self.down]
    }
}

impl LayerSpec {
    fn norms(&self) -> Vec<&Norm> {
        let mut all = vec![&self.input_norm, &self.mlp_norm];
        match &self.attention {
            Attention::Gqa(a) => all.extend(a.qk_norm.iter().flat_map(|(q, k)| [q, k])),
            Attention::Mla(a) => {
                all.push(&a.kv_norm);
                if let MlaQuery::LowRank { norm, .. } = &a.query {
                    all.push(norm);
                }
            }
        }
        all
    }
}
