//! How many bytes a rank's weights take on its device, without vectors and scales. It does not read weights.

use rein_control_plane::RankPlacement;
use rein_kernels::{Devices, StoredForm, WeightRole};

use super::network::Precisions;
use super::spec::{Attention, Gated, LayerSpec, LinearSpec, Mlp, Spec};

pub struct Footprint<'a, D> {
    pub spec: &'a Spec,
    pub precisions: Precisions,
    pub devices: &'a D,
    /// How the checkpoint stores the weight of a module.
    pub stored: &'a dyn Fn(&str) -> StoredForm,
}

impl<D: Devices> Footprint<'_, D> {
    fn bytes(&self, role: WeightRole, module: &str, numbers: usize) -> usize {
        self.devices.weight_bytes(role, (self.stored)(module), self.precisions.of(role), numbers)
    }

    fn expert(&self, expert: &Gated) -> usize {
        expert.linears().map(|l| self.bytes(WeightRole::Expert, &l.module, l.out * l.inp)).iter().sum()
    }

    /// Approximate memory of this many more experts per layer.
    pub fn copies(&self, copies: usize) -> usize {
        let of_layer = |layer: &LayerSpec| match &layer.mlp {
            Mlp::Dense(_) => 0,
            Mlp::Moe(moe) => copies * moe.experts.first().map_or(0, |expert| self.expert(expert)),
        };
        self.spec.layers.iter().map(of_layer).sum()
    }

    /// Approximate memory of a rank's loaded weights.
    pub fn held(&self, rank: &RankPlacement, ranks: usize) -> usize {
        let part = |role, l: &LinearSpec| {
            let (rows, cols) = l.cut(rank, ranks);
            self.bytes(role, &l.module, rows.len() * cols.len())
        };
        let gated = |gated: &Gated| gated.linears().map(|l| part(WeightRole::Linear, l)).iter().sum::<usize>();
        let Spec { embed, vocab, hidden, head, layers, .. } = self.spec;
        let mut total = self.bytes(WeightRole::Embedding, embed, vocab * hidden) + part(WeightRole::Linear, head);
        for (layer, held) in layers.iter().zip(&rank.experts) {
            let role = |l: &LinearSpec| match &layer.attention {
                Attention::Mla(mla) if mla.kv_b.module == l.module => WeightRole::LatentExpansion,
                _ => WeightRole::Linear,
            };
            total += layer.attention.linears().into_iter().map(|l| part(role(l), l)).sum::<usize>();
            total += match &layer.mlp {
                Mlp::Dense(dense) => gated(dense),
                Mlp::Moe(moe) => {
                    let experts: usize = held.iter().map(|&e| self.expert(&moe.experts[e as usize])).sum();
                    part(WeightRole::Router, &moe.router) + experts + moe.shared.as_ref().map_or(0, gated)
                }
            };
        }
        total
    }
}
