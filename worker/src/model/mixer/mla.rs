//! Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434).

use std::sync::Arc;

use rein_control_plane::RankPlacement;
use rein_kernels::{Backend, Devices, KvSplit, MlaSpec, Result as KernelResult, RopeSpec};

use super::{Mixer, MixerParts, StateSize, StateSpec, opened, sharing};
use crate::checkpoint::LoadError;
use crate::model::linear::{LinearSpec, Norm};
use crate::model::load::{LoadedLinear, LoadedNorm, Loader, Pass, Precisions, SameInput};
use crate::model::low_rank::TableId;

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
    /// With the role of a latent expansion.
    pub kv_b: LinearSpec,
    pub o: LinearSpec,
    pub nope_dim: usize,
    pub rope_dim: usize,
    pub v_dim: usize,
    pub kv_rank: usize,
    pub scale: f32,
    pub q_rope: Arc<RopeSpec>,
    pub k_rope: Arc<RopeSpec>,
    /// What queries are multiplied with, by position ([`RopeSpec::growing`]).
    pub growth: Option<Arc<RopeSpec>>,
}

/// The rotary key has no scale: FlashInfer's kernel takes one for a whole cache.
fn latent_sharing(kv_rank: usize) -> [usize; 2] {
    [sharing(kv_rank), 0]
}

impl MixerParts for Mla {
    fn linears(&self) -> Vec<&LinearSpec> {
        match &self.query {
            MlaQuery::Full(q) => vec![q, &self.kv_a, &self.kv_b, &self.o],
            MlaQuery::LowRank { a, b, .. } => vec![a, b, &self.kv_a, &self.kv_b, &self.o],
        }
    }

    fn norms(&self) -> Vec<&Norm> {
        match &self.query {
            MlaQuery::Full(_) => vec![&self.kv_norm],
            MlaQuery::LowRank { norm, .. } => vec![&self.kv_norm, norm],
        }
    }

    fn state(&self, _: &RankPlacement, _: usize) -> StateSpec {
        StateSpec::Paged { widths: [self.kv_rank, self.rope_dim], sharing: latent_sharing(self.kv_rank) }
    }

    fn products(&self) -> (usize, Option<usize>) {
        (2 * self.kv_rank + self.rope_dim, None)
    }
}

impl Mla {
    pub fn load<D: Devices>(&self, loader: &Loader<D>) -> Result<MlaMixer<D::Backend>, LoadError> {
        let spec = MlaSpec {
            heads: loader.rank().heads.len(),
            nope_dim: self.nope_dim,
            rope_dim: self.rope_dim,
            v_dim: self.v_dim,
            kv_rank: self.kv_rank,
            scale: self.scale,
        };
        let precision = loader.precision(self.kv_b.role);
        Ok(MlaMixer {
            inputs: match &self.query {
                // Queries are whole rows in attention.
                MlaQuery::Full(q) => SameInput::Apart([loader.linear(q)?, loader.linear(&self.kv_a)?]),
                MlaQuery::LowRank { a, .. } => loader.same_input([a, &self.kv_a])?,
            },
            query: match &self.query {
                MlaQuery::Full(_) => None,
                MlaQuery::LowRank { norm, b, .. } => Some((loader.norm(norm)?, loader.linear(b)?)),
            },
            kv_norm: loader.norm(&self.kv_norm)?,
            latents: loader.tables.latents(&self.kv_b),
            kv_b: loader.backend.mla_weight(loader.reader.read(&self.kv_b)?, &spec, precision)?,
            o: loader.linear(&self.o)?,
            spec,
            q_rope: self.q_rope.clone(),
            k_rope: self.k_rope.clone(),
            growth: self.growth.clone(),
            cache: None,
        })
    }
}

pub struct MlaMixer<B: Backend> {
    /// Of queries or of their latents, and of keys' latents.
    inputs: SameInput<B, 2>,
    /// From the queries' latents, if there are any.
    query: Option<(LoadedNorm<B>, LoadedLinear<B>)>,
    kv_norm: LoadedNorm<B>,
    kv_b: B::Expansion,
    /// Of the adapters of kv_b; None: it takes none.
    latents: Option<TableId>,
    o: LoadedLinear<B>,
    spec: MlaSpec,
    q_rope: Arc<RopeSpec>,
    k_rope: Arc<RopeSpec>,
    growth: Option<Arc<RopeSpec>>,
    cache: Option<B::Cache>,
}

impl<B: Backend> Mixer<B> for MlaMixer<B> {
    fn open(&mut self, b: &B, size: &StateSize, precisions: Precisions) -> KernelResult<()> {
        let MlaSpec { kv_rank, rope_dim, .. } = self.spec;
        let form = precisions.cache(latent_sharing(kv_rank));
        let mut cache = b.cache(size.blocks, size.block_size, [kv_rank, rope_dim], form)?;
        if let Some(split) = KvSplit::new(b.rank(), size.kv_ranks) {
            b.split_cache(&mut cache, split)?;
        }
        self.cache = Some(cache);
        Ok(())
    }

    fn close(&mut self) {
        self.cache = None;
    }

    fn cache(&mut self) -> Option<&mut B::Cache> {
        self.cache.as_mut()
    }

    fn forward(&mut self, pass: Pass<B>, x: &B::Tensor) -> KernelResult<B::Tensor> {
        let Pass { b, batch, .. } = pass;
        let [mut q, kv] = self.inputs.apply(pass, x);
        if let Some((norm, up)) = &self.query {
            q = up.apply(pass, &norm.apply(b, &q));
        }
        let mut k_rope = b.slice_cols(&kv, self.spec.kv_rank, self.spec.rope_dim);
        b.rope_both(batch, [(&mut q, &self.q_rope), (&mut k_rope, &self.k_rope)]);
        if let Some(growth) = &self.growth {
            b.rope(batch, &mut q, growth);
        }
        let latent = self.kv_norm.apply(b, &b.slice_cols(&kv, 0, self.spec.kv_rank));
        let cache = opened(&mut self.cache)?;
        let adapters = self.latents.and_then(|latents| pass.adapters?.of_latents(latents));
        let out = b.mla_attention(batch, &q, &latent, &k_rope, &self.kv_b, adapters, cache, &self.spec)?;
        Ok(self.o.apply(pass, &out))
    }
}
