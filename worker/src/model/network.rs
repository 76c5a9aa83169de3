//! One rank's share of a model on its backend, and the forward pass. It does not know steps or sequences.

use std::sync::Arc;

use rein_control_plane::{Placement, RankPlacement};
use rein_kernels::collective::Collective;
use rein_kernels::{
    Backend, DryRun, DryWants, ExpertCounts, Gelu, OutputHead, Result as KernelResult, RouteSpec, StepBounds,
    StepInputs, StepOutputs,
};

use super::load::{LoadedLinear, LoadedNorm, Pass, Precisions, SameInput};
use super::low_rank::LowRanks;
use super::mixer::{Mixer, StateSize};
use super::spec::{Activation, Spec};

mod adapters;
mod load;

pub use load::{WeightSource, bytes_to_load};

pub struct Network<B: Backend> {
    backend: B,
    spec: Arc<Spec>,
    placement: Arc<Placement>,
    rank: usize,
    precisions: Precisions,
    embed: B::Embedding,
    positions: Option<B::Vector>,
    layers: Vec<Layer<B>>,
    /// Of the layers' states, after `open`.
    state_size: StateSize,
    norm: LoadedNorm<B>,
    /// None: the model only computes embeddings.
    head: Option<B::Linear>,
    /// None: the rank takes no adapters.
    adapters: Option<LowRanks<B>>,
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

impl<T> LayerResult<T> {
    /// The sum over ranks.
    fn summed<B: Backend<Tensor = T>>(self, b: &B) -> KernelResult<Option<T>> {
        Ok(match self {
            LayerResult::None => None,
            LayerResult::Sum(out) => Some(out),
            LayerResult::Partial(mut out) => {
                b.all_reduce(&mut out)?;
                Some(out)
            }
        })
    }

    /// After the norm of what a block adds, if it has one.
    fn normed<B: Backend<Tensor = T>>(self, b: &B, norm: &Option<LoadedNorm<B>>) -> KernelResult<Self> {
        let Some(norm) = norm else { return Ok(self) };
        Ok(self.summed(b)?.map_or(LayerResult::None, |out| LayerResult::Sum(norm.apply(b, &out))))
    }

    /// Adds factor * it to x, and returns x after the norm of the block that follows. None: that one has no norm.
    fn add_to<B: Backend<Tensor = T>>(
        self,
        b: &B,
        x: &mut T,
        factor: f32,
        norm: &Option<LoadedNorm<B>>,
    ) -> KernelResult<Option<T>> {
        let Some(norm) = norm else {
            if let Some(out) = self.summed(b)? {
                b.add_scaled(x, &out, factor);
            }
            return Ok(None);
        };
        Ok(Some(match self {
            LayerResult::None => norm.apply(b, x),
            LayerResult::Sum(out) => norm.add(b, x, &out, factor),
            LayerResult::Partial(out) => norm.add_sum(b, x, out, factor)?,
        }))
    }
}

struct Layer<B: Backend> {
    input_norm: Option<LoadedNorm<B>>,
    mixer: Box<dyn Mixer<B>>,
    mixer_result_norm: Option<LoadedNorm<B>>,
    mlp_norm: Option<LoadedNorm<B>>,
    mlp: MlpWeights<B>,
    mlp_result_norm: Option<LoadedNorm<B>>,
}

struct Gated<B: Backend> {
    activation: Activation,
    gate_up: SameInput<B, 2>,
    down: LoadedLinear<B>,
}

struct PlainMlp<B: Backend> {
    gelu: Gelu,
    up: LoadedLinear<B>,
    down: LoadedLinear<B>,
}

enum MlpWeights<B: Backend> {
    Dense(Gated<B>),
    Plain(PlainMlp<B>),
    Moe(Box<Moe<B>>),
}

struct Moe<B: Backend> {
    router: LoadedLinear<B>,
    choice_bias: Option<B::Vector>,
    experts: B::Experts,
    route: RouteSpec,
    /// With the gate of its result.
    shared: Option<(Gated<B>, Option<LoadedLinear<B>>)>,
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

    /// Makes room for the states of sequences, and for the logits of `stashes` of them. Room that was kept serves if it
    /// is large enough.
    pub fn open(&mut self, size: StateSize, stashes: usize) -> KernelResult<()> {
        self.backend.open_stash(stashes)?;
        let held = self.state_size;
        if held.blocks >= size.blocks
            && held.block_size == size.block_size
            && held.kv_ranks == size.kv_ranks
            && held.cells >= size.cells
        {
            return Ok(());
        }
        self.close();
        for layer in &mut self.layers {
            layer.mixer.open(&self.backend, &size, self.precisions)?;
        }
        self.state_size = size;
        Ok(())
    }

    /// Frees it.
    pub fn close(&mut self) {
        self.layers.iter_mut().for_each(|layer| layer.mixer.close());
        self.state_size = StateSize::default();
    }

    /// Of the room that was made.
    pub fn state_size(&self) -> StateSize {
        self.state_size
    }

    /// Bytes of a KV block of all layers on this rank.
    pub fn block_bytes(&mut self) -> usize {
        let (b, layers) = (&self.backend, &mut self.layers);
        layers.iter_mut().filter_map(|layer| layer.mixer.cache()).map(|cache| b.block_bytes(cache)).sum()
    }

    /// Copies a KV block of all layers to the host, layer by layer from `offset` on: [`Backend::save_block`].
    pub fn save_block(&mut self, block: u32, to: &mut B::HostMemory, mut offset: usize) -> KernelResult<()> {
        for cache in self.layers.iter_mut().filter_map(|layer| layer.mixer.cache()) {
            self.backend.save_block(cache, block, to, offset)?;
            offset += self.backend.block_bytes(cache);
        }
        Ok(())
    }

    /// Copies it back: [`Backend::load_block`].
    pub fn load_block(&mut self, block: u32, from: &B::HostMemory, mut offset: usize) -> KernelResult<()> {
        for cache in self.layers.iter_mut().filter_map(|layer| layer.mixer.cache()) {
            self.backend.load_block(cache, block, from, offset)?;
            offset += self.backend.block_bytes(cache);
        }
        Ok(())
    }

    /// Leaves the group; the weights stay, and the room for sequences if the rank keeps it.
    pub fn leave(&mut self, alone: Box<dyn Collective>, keeps_caches: bool) {
        if !keeps_caches {
            self.close();
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

    /// Computes the steps for which the backend asks before sequences come.
    pub fn prepare(&mut self, bounds: &StepBounds, run: DryRun) -> KernelResult<()> {
        let mut steps = self.backend.dry_steps(bounds, run)?;
        if self.head.is_none() {
            steps.retain(|step| step.wants != DryWants::DrawsOfStashes);
            steps.iter_mut().for_each(|step| step.wants = DryWants::States);
        }
        let zeros = vec![0; steps.iter().map(|step| step.blocks).max().unwrap_or(0)];
        let recurs = self.spec.layers.iter().any(|layer| layer.mixer.parts().own_heads().is_some());
        steps.iter().try_for_each(|step| {
            let saves = step.saves();
            let drawn = self.step(step.inputs(&zeros, recurs.then_some(&saves)))?;
            self.backend.outputs(drawn).map(drop)
        })
    }

    /// [`Backend::outputs`].
    pub fn outputs(&mut self, drawn: B::Drawn) -> KernelResult<StepOutputs> {
        self.backend.outputs(drawn)
    }

    /// Runs new tokens through all layers, writes their KV entries, and draws.
    pub fn step(&mut self, rows: StepInputs) -> KernelResult<B::Drawn> {
        let computes = !rows.ids.is_empty();
        let batch = self.backend.begin(rows)?;
        let hidden = if computes { Some(self.hidden(&batch)?) } else { None };
        let head = OutputHead {
            norm: &self.norm.weight,
            norm_bias: self.norm.bias.as_ref(),
            eps: self.norm.eps,
            weight: self.head.as_ref(),
            scale: 1.0 / self.spec.logits_scaling,
        };
        self.backend.draw(&batch, hidden.as_ref(), &head)
    }

    /// The result of the last layer, [rows, hidden], before the final norm.
    fn hidden(&mut self, batch: &B::Batch<'_>) -> KernelResult<B::Tensor> {
        let Self { backend, spec, embed, positions, layers, adapters, .. } = self;
        let residual = spec.residual_multiplier;
        backend.run(batch, |b| {
            let pass = Pass { b, batch, adapters: adapters.as_ref() };
            let mut x = b.embed(embed, batch);
            b.all_reduce(&mut x)?;
            if spec.embedding_multiplier != 1.0 {
                b.scale(&mut x, spec.embedding_multiplier);
            }
            if let Some(positions) = positions {
                b.add_positions(batch, &mut x, positions);
            }
            // The result of the layer before, which is not in x yet.
            let mut before = LayerResult::None;
            for (i, layer) in layers.iter_mut().enumerate() {
                let normed = before.add_to(b, &mut x, residual, &layer.input_norm)?;
                let normed = normed.unwrap_or_else(|| b.activation(&x));
                let out = layer.mixer.forward(pass, &normed)?;
                let out = LayerResult::Partial(out).normed(b, &layer.mixer_result_norm)?;
                let normed = out.add_to(b, &mut x, residual, &layer.mlp_norm)?;
                let normed = normed.unwrap_or_else(|| b.activation(&x));
                let out = match &layer.mlp {
                    MlpWeights::Dense(gated) => LayerResult::Partial(gated.forward(pass, &normed)),
                    MlpWeights::Plain(plain) => LayerResult::Partial(plain.forward(pass, &normed)),
                    MlpWeights::Moe(moe) => LayerResult::Sum(moe.forward(pass, i, &normed)?),
                };
                before = out.normed(b, &layer.mlp_result_norm)?;
            }
            before.add_to(b, &mut x, residual, &None)?;
            Ok(x)
        })
    }
}

impl<B: Backend> Gated<B> {
    fn forward(&self, pass: Pass<B>, x: &B::Tensor) -> B::Tensor {
        let b = pass.b;
        let [gate, up] = self.gate_up.apply(pass, x);
        match self.activation {
            Activation::Silu => self.down.apply_gated(pass, &gate, &up),
            Activation::Gelu => self.down.apply(pass, &b.gelu_mul(&gate, &up)),
        }
    }
}

impl<B: Backend> PlainMlp<B> {
    fn forward(&self, pass: Pass<B>, x: &B::Tensor) -> B::Tensor {
        self.down.apply(pass, &pass.b.gelu(&self.up.apply(pass, x), self.gelu))
    }
}

impl<B: Backend> Moe<B> {
    fn forward(&self, pass: Pass<B>, layer: usize, x: &B::Tensor) -> KernelResult<B::Tensor> {
        let Pass { b, batch, adapters } = pass;
        let routes = b.moe_route(&self.router.apply(pass, x), self.choice_bias.as_ref(), &self.route);
        let shared = self.shared.as_ref().map(|(shared, gate)| {
            let mut out = shared.forward(pass, x);
            if let Some(gate) = gate {
                b.sigmoid_mul(&mut out, &gate.apply(pass, x));
            }
            out
        });
        let adapters = adapters.and_then(|adapters| adapters.of_experts(layer));
        b.moe(batch, x, &routes, &self.experts, adapters, shared.as_ref())
    }
}
