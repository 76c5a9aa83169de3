//! How many bytes a rank's weights take on its device, without norms, biases and other short vectors. It does not read
//! weights.

use rein_control_plane::RankPlacement;
use rein_kernels::{DeviceStorage, HostForm, StoredForm, WeightRole};
use serde::Serialize;

use super::linear::LinearSpec;
use super::load::Precisions;
use super::spec::{Gated, LayerSpec, Mlp, Spec};

pub struct Footprint<'a, D> {
    pub spec: &'a Spec,
    pub precisions: Precisions,
    pub devices: &'a D,
    /// How the checkpoint stores the weight of a module.
    pub stored: &'a dyn Fn(&str) -> StoredForm,
}

/// What a weight counts for, by its role, its module and its numbers.
pub type Measure<'a> = &'a dyn Fn(WeightRole, &str, usize) -> usize;

/// A rank's weights by what they are for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct WeightParts {
    pub embedding: usize,
    pub attention: usize,
    /// Dense MLPs and shared experts.
    pub mlp: usize,
    pub router: usize,
    pub experts: usize,
    pub head: usize,
}

impl WeightParts {
    pub fn total(&self) -> usize {
        let WeightParts { embedding, attention, mlp, router, experts, head } = self;
        embedding + attention + mlp + router + experts + head
    }
}

impl<D: DeviceStorage> Footprint<'_, D> {
    pub fn bytes(&self, role: WeightRole, module: &str, numbers: usize) -> usize {
        self.devices.weight_bytes(role, (self.stored)(module), self.precisions.of(role), numbers)
    }

    /// Memory of a table of positions, which every rank has whole.
    pub fn positions(&self) -> usize {
        let numbers = self.spec.max_positions * self.spec.hidden;
        if self.spec.positions.is_some() { numbers * size_of::<f32>() } else { 0 }
    }

    fn expert(&self, expert: &Gated) -> usize {
        expert.linears().map(|l| self.bytes(l.role, &l.module, l.out * l.inp)).iter().sum()
    }

    /// Approximate memory of this many more experts per layer.
    pub fn copies(&self, copies: usize) -> usize {
        let of_layer = |layer: &LayerSpec| match &layer.mlp {
            Mlp::Dense(_) | Mlp::Plain(_) => 0,
            Mlp::Moe(moe) => copies * moe.experts.first().map_or(0, |expert| self.expert(expert)),
        };
        self.spec.layers.iter().map(of_layer).sum()
    }

    /// Approximate memory of a rank's loaded weights.
    pub fn held(&self, rank: &RankPlacement, ranks: usize) -> usize {
        self.parts(rank, ranks, &|role, module, numbers| self.bytes(role, module, numbers)).total() + self.positions()
    }

    /// A rank's weights by what they are for. `measure` gets the role, the module and the numbers of each weight.
    pub fn parts(&self, rank: &RankPlacement, ranks: usize, measure: Measure) -> WeightParts {
        let part = |l: &LinearSpec| {
            let (rows, cols) = l.cut(rank, ranks);
            measure(l.role, &l.module, rows.len() * cols.len())
        };
        let gated = |gated: &Gated| gated.linears().map(part).iter().sum::<usize>();
        let shared = head_is_embedding(self.spec, self.precisions, self.devices, self.stored);
        let mut parts = WeightParts {
            embedding: part(&self.spec.embedding()),
            head: self.spec.head.as_ref().filter(|_| !shared).map_or(0, part),
            ..WeightParts::default()
        };
        for (layer, held) in self.spec.layers.iter().zip(&rank.experts) {
            parts.attention += layer.mixer.parts().linears().into_iter().map(part).sum::<usize>();
            match &layer.mlp {
                Mlp::Dense(dense) => parts.mlp += gated(dense),
                Mlp::Plain(plain) => parts.mlp += plain.linears().map(part).iter().sum::<usize>(),
                Mlp::Moe(moe) => {
                    parts.router += part(&moe.router);
                    if let Some(shared) = &moe.shared {
                        parts.router += shared.gate.as_ref().map_or(0, part);
                        parts.mlp += gated(&shared.mlp);
                    }
                    parts.experts += held.iter().map(|&e| gated(&moe.experts[e as usize])).sum::<usize>();
                }
            }
        }
        parts
    }
}

/// Whether the devices keep the embedding and the head as one matrix.
pub fn head_is_embedding(
    spec: &Spec,
    precisions: Precisions,
    devices: &impl DeviceStorage,
    stored: &dyn Fn(&str) -> StoredForm,
) -> bool {
    let kept = |role| {
        let form = devices.host_form(role, stored(&spec.embed), precisions.of(role));
        // What is kept as it is stored does not depend on the precision.
        (form, Some(precisions.of(role)).filter(|_| form != HostForm::Stored))
    };
    spec.tied && devices.shares_tied_head() && kept(WeightRole::Embedding) == kept(WeightRole::Linear)
}
