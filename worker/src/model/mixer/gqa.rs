//! Grouped-query attention (arXiv:2305.13245).

use std::ops::Range;
use std::sync::Arc;

use rein_control_plane::RankPlacement;
use rein_kernels::{Backend, Devices, GqaSpec, KvSplit, Result as KernelResult, RopeSpec, WholeRow};

use super::{Mixer, MixerParts, StateSize, StateSpec, opened, sharing};
use crate::checkpoint::LoadError;
use crate::model::linear::{LinearSpec, Norm};
use crate::model::load::{LoadedLinear, LoadedNorm, Loader, Pass, Precisions, SameInput};

#[derive(Debug, Clone)]
pub struct Gqa {
    pub q: LinearSpec,
    pub k: LinearSpec,
    pub v: LinearSpec,
    pub o: LinearSpec,
    /// The result of each head is multiplied with its sigmoid before `o` (Qwen3-Next).
    pub gate: Option<LinearSpec>,
    /// Norms of queries and keys, before the rotation: of each head, or of all heads together (MiniMax-M2).
    pub qk_norm: Option<(Norm, Norm)>,
    pub head_dim: usize,
    pub scale: f32,
    pub window: Option<usize>,
    /// A tensor with a number for each head: a score that takes a share of its softmax, without a value.
    pub sinks: Option<String>,
    /// None: they are not rotated.
    pub rope: Option<Arc<RopeSpec>>,
    /// What queries are multiplied with, by position ([`RopeSpec::growing`]).
    pub growth: Option<Arc<RopeSpec>>,
}

impl MixerParts for Gqa {
    fn linears(&self) -> Vec<&LinearSpec> {
        [&self.q, &self.k, &self.v, &self.o].into_iter().chain(&self.gate).collect()
    }

    fn norms(&self) -> Vec<&Norm> {
        self.qk_norm.iter().flat_map(|(q, k)| [q, k]).collect()
    }

    fn vectors(&self) -> Vec<(String, Vec<usize>)> {
        self.sinks.iter().map(|sinks| (sinks.clone(), vec![self.q.out / self.head_dim])).collect()
    }

    fn state(&self, rank: &RankPlacement, _: usize) -> StateSpec {
        let width = rank.kv_heads.len() * self.head_dim;
        StateSpec::Paged { widths: [width; 2], sharing: [sharing(self.head_dim); 2] }
    }

    fn products(&self) -> (usize, Option<usize>) {
        (2 * self.head_dim, self.window)
    }
}

impl Gqa {
    pub fn load<D: Devices>(&self, loader: &Loader<D>) -> Result<GqaMixer<D::Backend>, LoadError> {
        Ok(GqaMixer {
            qkv: loader.same_input([&self.q, &self.k, &self.v])?,
            o: loader.linear(&self.o)?,
            gate: self.gate.as_ref().map(|gate| loader.linear(gate)).transpose()?,
            qk_norm: self.qk_norm.as_ref().map(|(q, k)| self.load_norms(loader, q, k)).transpose()?,
            spec: GqaSpec {
                heads: loader.rank().heads.len(),
                kv_heads: loader.rank().kv_heads.len(),
                head_dim: self.head_dim,
                scale: self.scale,
                window: self.window,
            },
            sinks: match &self.sinks {
                Some(sinks) => Some(loader.vector(sinks, loader.rank().heads.clone())?),
                None => None,
            },
            rope: self.rope.clone(),
            growth: self.growth.clone(),
            cache: None,
            split: false,
        })
    }
}

impl Gqa {
    fn load_norms<D: Devices>(&self, loader: &Loader<D>, q: &Norm, k: &Norm) -> Result<QkNorm<D::Backend>, LoadError> {
        let (dim, rank) = (self.head_dim, loader.rank());
        if (q.size, k.size) == (dim, dim) {
            return Ok(QkNorm::OfHeads(loader.norm(q)?, loader.norm(k)?));
        }
        let of = |norm: &Norm, heads: &Range<usize>| {
            let weight = loader.vector(&norm.tensor, heads.start * dim..heads.end * dim)?;
            Ok::<_, LoadError>(LoadedNorm { weight, bias: None, eps: norm.eps })
        };
        // Of ranks that have the same key head, the one with its first query head counts it.
        let group = q.size / k.size;
        let counts = |heads: usize| heads.div_ceil(group).clamp(rank.kv_heads.start, rank.kv_heads.end);
        let counted = counts(rank.heads.start)..counts(rank.heads.end);
        let first = rank.kv_heads.start;
        Ok(QkNorm::Joint {
            q: of(q, &rank.heads)?,
            k: of(k, &rank.kv_heads)?,
            widths: [q.size, k.size],
            counted: (counted.start - first) * dim..(counted.end - first) * dim,
        })
    }
}

enum QkNorm<B: Backend> {
    OfHeads(LoadedNorm<B>, LoadedNorm<B>),
    /// Over the heads of all ranks.
    Joint {
        q: LoadedNorm<B>,
        k: LoadedNorm<B>,
        widths: [usize; 2],
        /// The columns of the keys that this rank adds to the sum.
        counted: Range<usize>,
    },
}

impl<B: Backend> QkNorm<B> {
    fn apply(&self, b: &B, q: &B::Tensor, k: &B::Tensor) -> KernelResult<(B::Tensor, B::Tensor)> {
        match self {
            QkNorm::OfHeads(q_norm, k_norm) => Ok((q_norm.apply(b, q), k_norm.apply(b, k))),
            QkNorm::Joint { q: q_norm, k: k_norm, widths, counted } => {
                let mut sums = b.square_sums(q, k, counted.clone());
                b.all_reduce(&mut sums)?;
                let of = |column: usize, eps| WholeRow { column, width: widths[column], eps };
                let q = b.norm_of_part(q, &q_norm.weight, &sums, of(0, q_norm.eps));
                Ok((q, b.norm_of_part(k, &k_norm.weight, &sums, of(1, k_norm.eps))))
            }
        }
    }
}

pub struct GqaMixer<B: Backend> {
    qkv: SameInput<B, 3>,
    o: LoadedLinear<B>,
    gate: Option<LoadedLinear<B>>,
    qk_norm: Option<QkNorm<B>>,
    spec: GqaSpec,
    sinks: Option<B::Vector>,
    rope: Option<Arc<RopeSpec>>,
    growth: Option<Arc<RopeSpec>>,
    cache: Option<B::Cache>,
    /// Of its positions over the ranks that have the same KV head.
    split: bool,
}

impl<B: Backend> Mixer<B> for GqaMixer<B> {
    fn open(&mut self, b: &B, size: &StateSize, precisions: Precisions) -> KernelResult<()> {
        let GqaSpec { kv_heads, head_dim, .. } = self.spec;
        let form = precisions.cache([sharing(head_dim); 2]);
        let mut cache = b.cache(size.blocks, size.block_size, [kv_heads * head_dim; 2], form)?;
        let split = KvSplit::new(b.rank(), size.kv_ranks);
        if let Some(split) = split {
            b.split_cache(&mut cache, split)?;
        }
        (self.cache, self.split) = (Some(cache), split.is_some());
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
        let [mut q, mut k, v] = self.qkv.apply(pass, x);
        if let Some(norm) = &self.qk_norm {
            (q, k) = norm.apply(b, &q, &k)?;
        }
        if let Some(rope) = &self.rope {
            b.rope_both(batch, [(&mut q, rope), (&mut k, rope)]);
        }
        if let Some(growth) = &self.growth {
            b.rope(batch, &mut q, growth);
        }
        let (sinks, cache) = (self.sinks.as_ref(), opened(&mut self.cache)?);
        let mut out = match self.split {
            false => b.gqa_attention(batch, &q, &k, &v, sinks, cache, &self.spec),
            true => b.split_gqa_attention(batch, &q, &k, &v, sinks, cache, &self.spec)?,
        };
        if let Some(gate) = &self.gate {
            b.sigmoid_mul(&mut out, &gate.apply(pass, x));
        }
        Ok(self.o.apply(pass, &out))
    }
}
