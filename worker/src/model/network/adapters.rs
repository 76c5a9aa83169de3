//! The places of low-rank adapters in a network. It does not know the forward pass.

use rein_kernels::{Backend, KernelError, Result as KernelResult};
use rein_proto::internal::LoraPart;

use super::super::low_rank::{LowRanks, TableIds, Target, Targets};
use super::super::mixer::{MixerSpec, Mla};
use super::super::spec::{Mlp, Spec};
use super::Network;

/// What the parts of an adapter go to.
fn targets(spec: &Spec, ids: &TableIds) -> Targets {
    let mut targets = Targets::new();
    let mut add = |module: &str, target| targets.entry(module.to_owned()).or_default().push(target);
    for spec in spec.linears() {
        if let Some(table) = ids.get(spec) {
            add(&spec.module, Target::Linear { table, spec: spec.clone() });
        }
    }
    for (layer, of_layer) in spec.layers.iter().enumerate() {
        if let MixerSpec::Mla(Mla { kv_b, nope_dim, v_dim, .. }) = &of_layer.mixer
            && let Some(table) = ids.latents(kv_b)
        {
            add(&kv_b.module, Target::Latent { table, nope: *nope_dim, value: *v_dim, spec: kv_b.clone() });
        }
        let Mlp::Moe(moe) = &of_layer.mlp else { continue };
        for (expert, gated) in moe.experts.iter().enumerate() {
            for (which, spec) in gated.linears().into_iter().enumerate() {
                add(&spec.module, Target::Expert { layer, expert, which, spec: spec.clone() });
            }
        }
    }
    targets
}

impl<B: Backend> Network<B> {
    /// Has places for so many low-rank adapters, which are empty.
    pub fn take_adapters(&mut self, slots: usize) -> KernelResult<()> {
        let (b, spec, heads) = (&self.backend, &self.spec, self.rank().heads.len());
        let ids = TableIds::of(spec.linears());
        let (targets, counts) = (targets(spec, &ids), spec.shape().experts);
        self.adapters = match slots {
            0 => None,
            slots => Some(LowRanks::new(b, &ids, targets, counts, heads, slots, self.precisions.base)?),
        };
        Ok(())
    }

    /// [`LowRanks::put`].
    pub fn put_adapter(&mut self, part: &LoraPart) -> KernelResult<()> {
        let Self { adapters, backend, placement, rank, .. } = self;
        let none = || KernelError::Shape { op: "LoRA", what: "the rank takes no adapters".into() };
        let adapters = adapters.as_mut().ok_or_else(none)?;
        adapters.put(backend, part, &placement.ranks[*rank], placement.ranks.len())
    }
}
