//! A model as data: its weights with their names and sharding, and the numbers of each block. An architecture file
//! makes a `Spec` from config.json; loading and the forward pass know only the `Spec`.

use rein_control_plane::placement::ModelShape;
use rein_kernels::{Gelu, RouteSpec, WeightRole};

use super::linear::{LinearSpec, Norm, Shard};
use super::mixer::MixerSpec;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    Silu,
    /// The form with tanh.
    Gelu,
}

/// down(activation(gate(x)) * up(x)); of experts it is silu.
#[derive(Debug, Clone)]
pub struct Gated {
    pub activation: Activation,
    pub gate: LinearSpec,
    pub up: LinearSpec,
    pub down: LinearSpec,
}

/// down(gelu(up(x)))
#[derive(Debug, Clone)]
pub struct PlainMlp {
    pub gelu: Gelu,
    pub up: LinearSpec,
    pub down: LinearSpec,
}

#[derive(Debug, Clone)]
pub struct Moe {
    pub router: LinearSpec,
    pub choice_bias: Option<ChoiceBias>,
    pub experts: Vec<Gated>,
    /// None: silu(gate) * up, without biases.
    pub clamped: Option<ClampedExperts>,
    pub route: RouteSpec,
    pub shared: Option<Box<SharedExpert>>,
}

/// A tensor with one number per expert, which is added to the scores only for the choice.
#[derive(Debug, Clone)]
pub struct ChoiceBias {
    pub tensor: String,
    /// As it is stored.
    pub shape: Vec<usize>,
}

/// Biases and limits of the experts ([`rein_kernels::ClampedGate`]).
#[derive(Debug, Clone)]
pub struct ClampedExperts {
    pub gate_up: GateUpBias,
    /// [experts, hidden]
    pub down: String,
    pub inter: usize,
    pub alpha: f32,
    pub limit: f32,
}

/// The tensors of the biases of gates and ups.
#[derive(Debug, Clone)]
pub enum GateUpBias {
    /// [experts, 2 * inter], gates and ups in turn.
    InTurn(String),
    /// [experts, inter] each.
    Apart([String; 2]),
}

/// An expert of all rows.
#[derive(Debug, Clone)]
pub struct SharedExpert {
    pub mlp: Gated,
    /// [1, hidden]: its result is multiplied with the sigmoid of this one's.
    pub gate: Option<LinearSpec>,
}

#[derive(Debug, Clone)]
pub enum Mlp {
    Dense(Gated),
    Plain(PlainMlp),
    Moe(Moe),
}

#[derive(Debug, Clone)]
pub struct LayerSpec {
    /// None: the mixer reads the residual stream as it is.
    pub input_norm: Option<Norm>,
    pub mixer: MixerSpec,
    /// Of what the mixer adds to the residual stream.
    pub mixer_result_norm: Option<Norm>,
    /// None: so does the MLP.
    pub mlp_norm: Option<Norm>,
    pub mlp: Mlp,
    /// Of what the MLP adds.
    pub mlp_result_norm: Option<Norm>,
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
    /// A tensor [max_positions, hidden], which is added by position.
    pub positions: Option<String>,
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
            Mlp::Dense(_) | Mlp::Plain(_) => 0,
            Mlp::Moe(moe) => moe.experts.len(),
        };
        ModelShape {
            attention_heads: self.heads,
            kv_heads: self.kv_heads,
            experts: self.layers.iter().map(experts).collect(),
        }
    }

    /// Ranks of `ranks` that can share the positions of a sequence: with latent attention all, else those that have the
    /// same KV head.
    pub fn kv_ranks(&self, ranks: usize) -> usize {
        match self.layers.iter().any(|layer| matches!(layer.mixer, MixerSpec::Mla(_))) {
            true => ranks,
            false => (ranks / self.kv_heads.max(1)).max(1),
        }
    }

    /// The embedding as a module: the ranks share its rows.
    pub fn embedding(&self) -> LinearSpec {
        LinearSpec::new(&self.embed, [self.vocab, self.hidden], false, Shard::Out).with_role(WeightRole::Embedding)
    }

    /// All linear modules except embedding and head.
    pub fn linears(&self) -> impl Iterator<Item = &LinearSpec> {
        self.layers.iter().flat_map(|layer| {
            let mut all = layer.mixer.parts().linears();
            match &layer.mlp {
                Mlp::Dense(gated) => all.extend(gated.linears()),
                Mlp::Plain(plain) => all.extend(plain.linears()),
                Mlp::Moe(moe) => {
                    all.push(&moe.router);
                    let shared = moe.shared.as_deref();
                    all.extend(shared.and_then(|shared| shared.gate.as_ref()));
                    all.extend(moe.experts.iter().chain(shared.map(|shared| &shared.mlp)).flat_map(Gated::linears));
                }
            }
            all
        })
    }

    /// LinearSpec modules that the checkpoint must have, with [out, inp].
    pub fn modules(&self) -> Vec<(String, [usize; 2])> {
        let mut modules: Vec<_> = self.linears().map(|l| (l.module.clone(), l.stored_shape())).collect();
        modules.push((self.embed.clone(), [self.vocab, self.hidden]));
        if let Some(head) = self.head.as_ref().filter(|_| !self.tied) {
            modules.push((head.module.clone(), [self.vocab, self.hidden]));
        }
        modules
    }

    /// Plain tensors that the checkpoint must have, with their shapes.
    pub fn tensors(&self) -> Vec<(String, Vec<usize>)> {
        let of_layer = |layer: &'_ LayerSpec| {
            let norms = [&layer.input_norm, &layer.mixer_result_norm, &layer.mlp_norm, &layer.mlp_result_norm];
            norms.into_iter().flatten().flat_map(Norm::stored).collect::<Vec<_>>()
        };
        let norms = self.layers.iter().flat_map(of_layer).chain(self.norm.stored());
        let mut tensors: Vec<_> = norms.collect();
        tensors.extend(self.layers.iter().flat_map(|layer| layer.mixer.tensors()));
        tensors.extend(self.positions.iter().map(|name| (name.clone(), vec![self.max_positions, self.hidden])));
        let biased = self.linears().filter(|l| l.bias);
        tensors.extend(biased.map(|l| (format!("{}.bias", l.module), vec![l.stored_shape()[0]])));
        for layer in &self.layers {
            if let Mlp::Moe(moe) = &layer.mlp {
                tensors.extend(moe.choice_bias.iter().map(|bias| (bias.tensor.clone(), bias.shape.clone())));
                let count = moe.experts.len();
                tensors.extend(moe.clamped.iter().flat_map(|clamped| {
                    let down = (clamped.down.clone(), vec![count, self.hidden]);
                    let apart = |name: &String| (name.clone(), vec![count, clamped.inter]);
                    match &clamped.gate_up {
                        GateUpBias::InTurn(name) => vec![(name.clone(), vec![count, 2 * clamped.inter]), down],
                        GateUpBias::Apart([gate, up]) => vec![apart(gate), apart(up), down],
                    }
                }));
            }
        }
        tensors
    }
}

impl PlainMlp {
    pub fn linears(&self) -> [&LinearSpec; 2] {
        [&self.up, &self.down]
    }
}

impl Gated {
    /// Every rank that has an expert has all of it.
    pub fn into_expert(self) -> Self {
        let whole = |l: LinearSpec| LinearSpec { role: WeightRole::Expert, shard: Shard::Whole, ..l };
        Self { gate: whole(self.gate), up: whole(self.up), down: whole(self.down), ..self }
    }

    pub fn linears(&self) -> [&LinearSpec; 3] {
        [&self.gate, &self.up, &self.down]
    }
}
