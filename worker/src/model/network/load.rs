//! Loads a rank's share of a model. It does not know the forward pass.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use rein_control_plane::{Placement, RankPlacement};
use rein_kernels::{
    Backend, ClampedGate, Devices, ExpertTable, ExpertWeights, HostPool, KernelError, Result as KernelResult, RowOps,
    WeightRole,
};

use super::super::experts;
use super::super::footprint::head_is_embedding;
use super::super::linear::{LinearSpec, Norm};
use super::super::load::{Loader, Precisions, WeightReader};
use super::super::low_rank::TableIds;
use super::super::readers::{in_order, readers};
use super::super::spec::{self, GateUpBias, Mlp, Spec};
use super::{Gated, Layer, LayoutSwap, MlpWeights, Moe, Network, PlainMlp, StateSize};
use crate::checkpoint::{CheckpointWeights, LoadError};

/// Approximate bytes of the checkpoint that this rank reads.
pub fn bytes_to_load(spec: &Spec, weights: &CheckpointWeights, rank: &RankPlacement, ranks: usize) -> u64 {
    let part = |l: &LinearSpec| {
        let (rows, cols) = l.cut(rank, ranks);
        weights.cost(&l.module, rows.len() * cols.len())
    };
    let mut total = part(&spec.embedding()) + spec.head.as_ref().map_or(0, part);
    for (layer, held) in spec.layers.iter().zip(&rank.experts) {
        total += layer.mixer.parts().linears().into_iter().map(part).sum::<u64>();
        total += match &layer.mlp {
            Mlp::Dense(gated) => gated.linears().map(part).iter().sum::<u64>(),
            Mlp::Plain(plain) => plain.linears().map(part).iter().sum::<u64>(),
            Mlp::Moe(moe) => {
                let experts = held.iter().flat_map(|&e| moe.experts[e as usize].linears());
                let shared = moe.shared.iter().flat_map(|shared| shared.mlp.linears().into_iter().chain(&shared.gate));
                part(&moe.router) + experts.chain(shared).map(part).sum::<u64>()
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

impl<'a, D> WeightSource<'a, D> {
    fn reader(
        self,
        rank: &'a RankPlacement,
        ranks: usize,
        pool: Arc<HostPool>,
        progress: &'a (dyn Fn(u64) + Sync),
    ) -> WeightReader<'a, D> {
        let Self { weights, precisions, devices, .. } = self;
        WeightReader { weights, precisions, devices, rank, ranks, pool, progress }
    }
}

fn expert<D: Devices>(reader: &WeightReader<D>, moe: &spec::Moe, id: u32) -> KernelResult<ExpertWeights> {
    let expert = &moe.experts[id as usize];
    let read = |l: &LinearSpec| reader.read(l).map_err(|e| KernelError::Shape { op: "experts", what: e.to_string() });
    Ok(ExpertWeights { id, gate: read(&expert.gate)?, up: read(&expert.up)?, down: read(&expert.down)? })
}

impl<D: Devices> Loader<'_, D> {
    fn gated(&self, gated: &spec::Gated) -> Result<Gated<D::Backend>, LoadError> {
        let gate_up = self.same_input([&gated.gate, &gated.up])?;
        Ok(Gated { activation: gated.activation, gate_up, down: self.linear(&gated.down)? })
    }

    fn experts(
        &self,
        table: ExpertTable,
        moe: &spec::Moe,
        ids: &[u32],
        stop: &AtomicBool,
    ) -> Result<<D::Backend as Backend>::Experts, LoadError> {
        // The backend converts or copies an expert while the next ones are read.
        let (reader, precision) = (&self.reader, self.precision(WeightRole::Expert));
        let read = |id| expert(reader, moe, id);
        let take = |experts: &mut dyn Iterator<Item = _>| self.backend.experts(table, experts, precision);
        Ok(in_order(ids, readers(self.ranks()), stop, read, take)?)
    }

    /// Every rank has those of all experts.
    fn clamped(
        &self,
        spec: &spec::ClampedExperts,
        [experts, hidden]: [usize; 2],
    ) -> Result<ClampedGate<<D::Backend as RowOps>::Vector>, LoadError> {
        let spec::ClampedExperts { gate_up, down, inter, alpha, limit } = spec;
        let [gate, up] = match gate_up {
            GateUpBias::InTurn(name) => {
                let both = self.numbers(name, 0..2 * inter * experts)?;
                [0, 1].map(|from| both.iter().skip(from).step_by(2).copied().collect())
            }
            GateUpBias::Apart([gate, up]) => {
                [self.numbers(gate, 0..inter * experts)?, self.numbers(up, 0..inter * experts)?]
            }
        };
        Ok(ClampedGate {
            gate: self.backend.vector(gate)?,
            up: self.backend.vector(up)?,
            down: self.vector(down, 0..hidden * experts)?,
            alpha: *alpha,
            limit: *limit,
        })
    }

    fn moe(&self, moe: &spec::Moe, held: &[u32], table: ExpertTable) -> Result<Moe<D::Backend>, LoadError> {
        let mut experts = self.experts(table, moe, held, &AtomicBool::new(false))?;
        if let Some(clamped) = &moe.clamped {
            self.backend.clamp_experts(&mut experts, self.clamped(clamped, [moe.experts.len(), moe.router.inp])?);
        }
        Ok(Moe {
            router: self.linear(&moe.router)?,
            choice_bias: match &moe.choice_bias {
                Some(bias) => Some(self.vector(&bias.tensor, 0..moe.experts.len())?),
                None => None,
            },
            experts,
            route: moe.route,
            shared: match &moe.shared {
                Some(shared) => {
                    Some((self.gated(&shared.mlp)?, shared.gate.as_ref().map(|gate| self.linear(gate)).transpose()?))
                }
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
        let tables = &TableIds::of(source.spec.linears());
        let reader = source.reader(own, backend.ranks(), backend.host_pool(), progress);
        let loader = Loader { backend: &backend, tables, reader };
        let norm = |norm: &Option<Norm>| norm.as_ref().map(|norm| loader.norm(norm)).transpose();
        let (spec, precisions) = (source.spec.clone(), source.precisions);
        let table = spec.embedding();
        let first = table.cut(own, backend.ranks()).0.start;
        let embed = backend.embedding(loader.reader.read(&table)?, first, loader.precision(table.role))?;
        let numbers = spec.max_positions * spec.hidden;
        let positions = spec.positions.as_ref().map(|name| loader.vector(name, 0..numbers)).transpose()?;
        let mut layers = Vec::with_capacity(spec.layers.len());
        for (i, (layer, held)) in spec.layers.iter().zip(&own.experts).enumerate() {
            layers.push(Layer {
                input_norm: norm(&layer.input_norm)?,
                mixer: layer.mixer.load(&loader)?,
                mixer_result_norm: norm(&layer.mixer_result_norm)?,
                mlp_result_norm: norm(&layer.mlp_result_norm)?,
                mlp_norm: norm(&layer.mlp_norm)?,
                mlp: match &layer.mlp {
                    Mlp::Dense(gated) => MlpWeights::Dense(loader.gated(gated)?),
                    Mlp::Plain(spec::PlainMlp { gelu, up, down }) => {
                        MlpWeights::Plain(PlainMlp { gelu: *gelu, up: loader.linear(up)?, down: loader.linear(down)? })
                    }
                    Mlp::Moe(moe) => {
                        MlpWeights::Moe(Box::new(loader.moe(moe, held, experts::table(placement, i, moe)?)?))
                    }
                },
            });
        }
        let norm = loader.norm(&spec.norm)?;
        let stored = |module: &str| source.weights.stored_form(module);
        let shared = head_is_embedding(&spec, source.precisions, source.devices, &stored);
        let head = match &spec.head {
            Some(head) => Some(match shared.then(|| backend.tied_head(&embed)).flatten() {
                Some(shared) => shared,
                None => loader.linear(head)?.weight,
            }),
            None => None,
        };
        let placement = placement.clone();
        let state_size = StateSize::default();
        let adapters = None;
        Ok(Self {
            backend,
            spec,
            placement,
            rank,
            precisions,
            embed,
            positions,
            layers,
            state_size,
            norm,
            head,
            adapters,
        })
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
        let tables = &TableIds::default();
        let reader = source.reader(own, placement.ranks.len(), backend.host_pool(), &|_| ());
        let loader: Loader<D> = Loader { backend, tables, reader };
        let mut fresh = Vec::with_capacity(spec.layers.len());
        for (i, ((layer, held), before)) in spec.layers.iter().zip(&own.experts).zip(&before.experts).enumerate() {
            fresh.push(match &layer.mlp {
                Mlp::Dense(_) | Mlp::Plain(_) => None,
                Mlp::Moe(moe) => {
                    let new: Vec<u32> = held.iter().filter(|id| !before.contains(id)).copied().collect();
                    Some(loader.experts(experts::table(placement, i, moe)?, moe, &new, stop)?)
                }
            });
        }
        Ok(LayoutSwap { placement: placement.clone(), fresh })
    }
}
