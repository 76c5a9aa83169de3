//! Loads one rank's weights, and says how many bytes that takes. It does not know the forward pass.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crossbeam_channel::bounded;
use rein_control_plane::{Placement, RankPlacement};
use rein_kernels::{
    Backend, ExpertTable, ExpertWeights, GqaSpec, HostMatrix, KernelError, MlaSpec, Precision, Result as KernelResult,
};

use super::super::experts::table;
use super::super::spec::{self, Attention, MlaQuery, Mlp, Spec};
use super::{
    AttentionWeights, Gated, Gqa, Layer, LayoutSwap, Linear, Mla, MlpWeights, Moe, Network, Norm, Precisions, Query,
};
use crate::checkpoint::{CheckpointWeights, Form, LoadError};

/// Experts that were read and wait for the backend.
const EXPERTS_AHEAD: usize = 1;

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

    fn experts(
        &self,
        table: ExpertTable,
        moe: &spec::Moe,
        ids: &[u32],
        stop: &AtomicBool,
    ) -> Result<B::Experts, LoadError> {
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
            self.backend.experts(table, &mut receive.into_iter(), precision)
        })?)
    }

    fn moe(&self, moe: &spec::Moe, held: &[u32], table: ExpertTable) -> Result<Moe<B>, LoadError> {
        let experts = self.experts(table, moe, held, &AtomicBool::new(false))?;
        Ok(Moe {
            router: self.linear_in(&moe.router, Precision::F32)?,
            choice_bias: match &moe.choice_bias {
                Some(name) => Some(self.vector(name, 0..moe.experts.len())?),
                None => None,
            },
            experts,
            route: moe.route,
            shared: match &moe.shared {
                Some(gated) => Some(self.gated(gated)?),
                None => None,
            },
        })
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
                    Mlp::Moe(moe) => MlpWeights::Moe(Box::new(loader.moe(moe, held, table(placement, i, moe)?)?)),
                },
            });
        }
        let norm = loader.norm(&spec.norm)?;
        let head = loader.linear(&spec.head)?.weight;
        let placement = placement.clone();
        Ok(Self { backend, spec, placement, rank, base, embed, layers, caches: Vec::new(), norm, head })
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
        for (i, ((layer, held), before)) in spec.layers.iter().zip(&own.experts).zip(&before.experts).enumerate() {
            fresh.push(match &layer.mlp {
                Mlp::Dense(_) => None,
                Mlp::Moe(moe) => {
                    let new: Vec<u32> = held.iter().filter(|id| !before.contains(id)).copied().collect();
                    Some(loader.experts(table(placement, i, moe)?, moe, &new, stop)?)
                }
            });
        }
        Ok(LayoutSwap { placement: placement.clone(), fresh })
    }
}
