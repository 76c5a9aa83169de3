//! Loads one rank's weights. It does not know the forward pass.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crossbeam_channel::bounded;
use rein_control_plane::{Placement, RankPlacement};
use rein_kernels::{
    Backend, Devices, ExpertTable, ExpertWeights, GqaSpec, HostMatrix, KernelError, MlaSpec, Precision,
    Result as KernelResult, WeightRole,
};

use super::super::experts;
use super::super::spec::{self, Attention, MlaQuery, Mlp, Spec};
use super::{
    AttentionWeights, CacheSize, Gated, Gqa, Layer, LayoutSwap, Linear, Mla, MlpWeights, Moe, Network, Norm,
    Precisions, Query,
};
use crate::checkpoint::{CheckpointWeights, LoadError};

/// Experts that were read and wait for the backend.
const EXPERTS_AHEAD: usize = 1;

/// Approximate bytes of the checkpoint that this rank reads.
pub fn bytes_to_load(spec: &Spec, weights: &CheckpointWeights, rank: &RankPlacement, ranks: usize) -> u64 {
    let part = |l: &spec::LinearSpec| {
        let (rows, cols) = l.cut(rank, ranks);
        weights.cost(&l.module, rows.len() * cols.len())
    };
    let whole = |l: &spec::LinearSpec| weights.cost(&l.module, l.out * l.inp);
    let mut total = part(&spec.embedding()) + spec.head.as_ref().map_or(0, part);
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

/// Where weights come from, and in which form they go to the devices.
pub struct WeightSource<'a, D> {
    pub spec: &'a Arc<Spec>,
    pub weights: &'a CheckpointWeights,
    pub precisions: Precisions,
    pub devices: &'a D,
}

impl<D> Clone for WeightSource<'_, D> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<D> Copy for WeightSource<'_, D> {}

/// Reads a rank's parts of weights.
struct Reader<'a, D> {
    source: WeightSource<'a, D>,
    rank: &'a RankPlacement,
    ranks: usize,
    /// Receives the bytes of each part that was read.
    progress: &'a (dyn Fn(u64) + Sync),
}

impl<D: Devices> Reader<'_, D> {
    /// This rank's part, or the whole weight of an expert.
    fn read(&self, role: WeightRole, l: &spec::LinearSpec) -> Result<HostMatrix, LoadError> {
        let WeightSource { weights, precisions, devices, .. } = self.source;
        let (rows, cols) = match role {
            WeightRole::Expert => (0..l.out, 0..l.inp),
            _ => l.cut(self.rank, self.ranks),
        };
        let form = |stored| devices.host_form(role, stored, precisions.of(role));
        let cost = weights.cost(&l.module, rows.len() * cols.len());
        let matrix = weights.matrix(&l.module, [l.out, l.inp], rows, cols, form)?;
        (self.progress)(cost);
        Ok(matrix)
    }

    fn expert(&self, moe: &spec::Moe, id: u32) -> KernelResult<ExpertWeights> {
        let expert = &moe.experts[id as usize];
        let read = |l: &spec::LinearSpec| {
            self.read(WeightRole::Expert, l).map_err(|e| KernelError::Shape { op: "experts", what: e.to_string() })
        };
        Ok(ExpertWeights { id, gate: read(&expert.gate)?, up: read(&expert.up)?, down: read(&expert.down)? })
    }
}

struct Loader<'a, D: Devices> {
    backend: &'a D::Backend,
    reader: Reader<'a, D>,
}

impl<D: Devices> Loader<'_, D> {
    fn precision(&self, role: WeightRole) -> Precision {
        self.reader.source.precisions.of(role)
    }

    fn linear_as(&self, role: WeightRole, l: &spec::LinearSpec) -> Result<Linear<D::Backend>, LoadError> {
        let weight = self.backend.linear_weight(self.reader.read(role, l)?, self.precision(role))?;
        // The ranks' partial sums are added, so only one rank adds the bias.
        let bias = if l.bias && (!l.is_partial() || self.reader.rank.rank == 0) {
            let (rows, _) = l.cut(self.reader.rank, self.reader.ranks);
            Some(self.vector(&format!("{}.bias", l.module), rows)?)
        } else {
            None
        };
        Ok(Linear { weight, bias })
    }

    fn linear(&self, l: &spec::LinearSpec) -> Result<Linear<D::Backend>, LoadError> {
        self.linear_as(WeightRole::Linear, l)
    }

    fn vector(
        &self,
        tensor: &str,
        range: std::ops::Range<usize>,
    ) -> Result<<D::Backend as Backend>::Vector, LoadError> {
        Ok(self.backend.vector(self.reader.source.weights.vector(tensor, range)?)?)
    }

    fn norm(&self, norm: &spec::Norm) -> Result<Norm<D::Backend>, LoadError> {
        Ok(Norm { weight: self.vector(&norm.tensor, 0..norm.size)?, eps: norm.eps })
    }

    fn gated(&self, gated: &spec::Gated) -> Result<Gated<D::Backend>, LoadError> {
        Ok(Gated { gate: self.linear(&gated.gate)?, up: self.linear(&gated.up)?, down: self.linear(&gated.down)? })
    }

    fn attention(&self, attention: &Attention) -> Result<AttentionWeights<D::Backend>, LoadError> {
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
                AttentionWeights::Mla(Box::new(Mla {
                    query: match &a.query {
                        MlaQuery::Full(q) => Query::Full(self.linear(q)?),
                        MlaQuery::LowRank { a, norm, b } => {
                            Query::LowRank { a: self.linear(a)?, norm: self.norm(norm)?, b: self.linear(b)? }
                        }
                    },
                    kv_a: self.linear(&a.kv_a)?,
                    kv_norm: self.norm(&a.kv_norm)?,
                    kv_b: self.backend.mla_weight(
                        self.reader.read(WeightRole::LatentExpansion, &a.kv_b)?,
                        &spec,
                        self.precision(WeightRole::LatentExpansion),
                    )?,
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
    ) -> Result<<D::Backend as Backend>::Experts, LoadError> {
        let reader = &self.reader;
        // Reading the next expert overlaps with the backend's conversion of this one.
        Ok(std::thread::scope(|scope| {
            let (send, receive) = bounded(EXPERTS_AHEAD);
            scope.spawn(move || {
                for &id in ids {
                    if stop.load(Ordering::Relaxed) || send.send(reader.expert(moe, id)).is_err() {
                        return;
                    }
                }
            });
            self.backend.experts(table, &mut receive.into_iter().take(ids.len()), self.precision(WeightRole::Expert))
        })?)
    }

    fn moe(&self, moe: &spec::Moe, held: &[u32], table: ExpertTable) -> Result<Moe<D::Backend>, LoadError> {
        let experts = self.experts(table, moe, held, &AtomicBool::new(false))?;
        Ok(Moe {
            router: self.linear_as(WeightRole::Router, &moe.router)?,
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
    pub fn load<D: Devices<Backend = B>>(
        backend: B,
        source: WeightSource<D>,
        (placement, rank): (&Arc<Placement>, usize),
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<Self, LoadError> {
        let own = &placement.ranks[rank];
        let reader = Reader { source, rank: own, ranks: backend.ranks(), progress };
        let loader = Loader { backend: &backend, reader };
        let (spec, base) = (source.spec.clone(), source.precisions.base);
        let (table, role) = (spec.embedding(), WeightRole::Embedding);
        let first = table.cut(own, backend.ranks()).0.start;
        let embed = backend.embedding(loader.reader.read(role, &table)?, first, loader.precision(role))?;
        let mut layers = Vec::with_capacity(spec.layers.len());
        for (i, (layer, held)) in spec.layers.iter().zip(&own.experts).enumerate() {
            layers.push(Layer {
                input_norm: loader.norm(&layer.input_norm)?,
                attention: loader.attention(&layer.attention)?,
                mlp_norm: loader.norm(&layer.mlp_norm)?,
                mlp: match &layer.mlp {
                    Mlp::Dense(gated) => MlpWeights::Dense(loader.gated(gated)?),
                    Mlp::Moe(moe) => {
                        MlpWeights::Moe(Box::new(loader.moe(moe, held, experts::table(placement, i, moe)?)?))
                    }
                },
            });
        }
        let norm = loader.norm(&spec.norm)?;
        let head = match &spec.head {
            Some(head) => Some(loader.linear(head)?.weight),
            None => None,
        };
        let placement = placement.clone();
        let (caches, cache_size) = (Vec::new(), CacheSize::default());
        Ok(Self { backend, spec, placement, rank, base, embed, layers, caches, cache_size, norm, head })
    }

    /// Loads the experts that `rank` of `placement` holds and `before` did not. It runs on its own backend, beside one
    /// that computes, until `stop`; then the result is incomplete and must not be used.
    pub fn fetch<D: Devices<Backend = B>>(
        backend: &B,
        source: WeightSource<D>,
        (placement, rank): (&Arc<Placement>, usize),
        before: &RankPlacement,
        stop: &AtomicBool,
    ) -> Result<LayoutSwap<B>, LoadError> {
        let (own, spec) = (&placement.ranks[rank], source.spec);
        let reader = Reader { source, rank: own, ranks: placement.ranks.len(), progress: &|_| () };
        let loader = Loader { backend, reader };
        let mut fresh = Vec::with_capacity(spec.layers.len());
        for (i, ((layer, held), before)) in spec.layers.iter().zip(&own.experts).zip(&before.experts).enumerate() {
            fresh.push(match &layer.mlp {
                Mlp::Dense(_) => None,
                Mlp::Moe(moe) => {
                    let new: Vec<u32> = held.iter().filter(|id| !before.contains(id)).copied().collect();
                    Some(loader.experts(experts::table(placement, i, moe)?, moe, &new, stop)?)
                }
            });
        }
        Ok(LayoutSwap { placement: placement.clone(), fresh })
    }
}
