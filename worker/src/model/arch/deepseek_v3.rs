//! DeepSeek-V3 and Kimi K2: latent attention, sigmoid routing with a choice bias over groups of experts, shared
//! experts.

use std::sync::Arc;

use rein_kernels::{RopeSpec, RouteSpec, Scoring, WeightRole};

use crate::checkpoint::{ConfigFields, LoadError};
use crate::model::blocks::{Base, ConfigDefaults, MAX_HEAD_DIM};
use crate::model::linear::{LinearSpec, Norm, Shard};
use crate::model::mixer::{MixerSpec, Mla, MlaQuery};
use crate::model::spec::{ChoiceBias, Mlp, Moe, Spec};

const DEFAULTS: ConfigDefaults =
    ConfigDefaults { kv_heads: None, head_dim: None, max_positions: 4096, eps: 1e-6, theta: 1e4 };

/// The two latent norms use their own epsilon instead of rms_norm_eps.
const LATENT_EPS: f32 = 1e-6;

/// Of the router, as in transformers' config class.
const ROUTER: RouterDefaults =
    RouterDefaults { scoring: Scoring::Sigmoid, top_k: 8, n_group: 8, topk_group: 4, scaling: 2.5 };
pub(super) const LATENT: LatentDefaults = LatentDefaults { interleave: true, grows: false, v_dim: None };

pub fn build(config: &ConfigFields, prefix: &str) -> Result<Spec, LoadError> {
    let base = Base::read(config, prefix, &DEFAULTS)?;
    latent_decoder(&base, "DeepseekV3ForCausalLM", (&LATENT, &ROUTER), sparse_from(&base, 3)?)
}

/// Which layers are mixtures of experts: every so many after the first ones.
pub(super) fn sparse_from(base: &Base, default_dense: usize) -> Result<Vec<bool>, LoadError> {
    let first = base.config.usize("first_k_dense_replace")?.unwrap_or(default_dense);
    let every = base.config.usize("moe_layer_freq")?.unwrap_or(1);
    match every {
        0 => Err(base.config.error("moe_layer_freq", "must be at least 1")),
        _ => Ok((0..base.layers).map(|i| i >= first && i.is_multiple_of(every)).collect()),
    }
}

/// `sparse`: for each layer, whether it is a mixture of experts.
pub(super) fn latent_decoder(
    base: &Base,
    architecture: &'static str,
    (latent, router): (&LatentDefaults, &RouterDefaults),
    sparse: Vec<bool>,
) -> Result<Spec, LoadError> {
    if base.kv_heads != base.heads {
        let what = format!("{} must equal num_attention_heads, {}", base.kv_heads, base.heads);
        return Err(base.config.error("num_key_value_heads", what));
    }
    let attention = Latent::read(base, latent)?;
    let mlps = DeepseekMlps::read(base, router, sparse)?;
    let window = base.uniform_window(None)?;
    debug_assert!(window.is_none());
    base.spec(architecture, |i| Ok(base.decoder_layer(i, attention.layer(base, i), mlps.layer(base, i))))
}

/// Values for missing keys.
pub(super) struct LatentDefaults {
    pub interleave: bool,
    /// Whether queries grow, and the config tells the rotated share of a head.
    pub grows: bool,
    /// None: it must be there.
    pub v_dim: Option<usize>,
}

/// Latent attention of all layers.
pub(super) struct Latent {
    q_rank: Option<usize>,
    kv_rank: usize,
    nope: usize,
    rope: usize,
    v: usize,
    bias: bool,
    scale: f32,
    q_rope: Arc<RopeSpec>,
    k_rope: Arc<RopeSpec>,
    growth: Option<Arc<RopeSpec>>,
}

impl Latent {
    pub fn read(base: &Base, defaults: &LatentDefaults) -> Result<Self, LoadError> {
        let config = base.config;
        let (nope, rope) = (config.size("qk_nope_head_dim")?, config.size("qk_rope_head_dim")?);
        if rope % 2 == 1 || rope > MAX_HEAD_DIM {
            return Err(
                config.error("qk_rope_head_dim", format!("must be even and at most {MAX_HEAD_DIM}, got {rope}"))
            );
        }
        // Derived values, present in newer configs.
        let head_dim = if defaults.grows { nope + rope } else { rope };
        config.require("head_dim", head_dim)?;
        config.require("qk_head_dim", nope + rope)?;
        let frequencies = match defaults.grows {
            true => base.growing_rope(rope, rope as f64 / (nope + rope) as f64)?,
            false => base.rope(rope)?,
        };
        let q_rope = RopeSpec {
            head_dim: nope + rope,
            offset: nope,
            dims: rope,
            interleaved: base.flag("rope_interleave", defaults.interleave)?,
            inv_freq: frequencies.inv_freq,
            magnitude: frequencies.magnitude,
            growth: None,
        };
        let k_rope = RopeSpec { head_dim: rope, offset: 0, ..q_rope.clone() };
        let mscale = frequencies.softmax_mscale;
        Ok(Self {
            q_rank: config.usize("q_lora_rank")?,
            kv_rank: config.size("kv_lora_rank")?,
            nope,
            rope,
            v: match defaults.v_dim {
                Some(dim) if config.usize("v_head_dim")?.is_none() => dim,
                _ => config.size("v_head_dim")?,
            },
            bias: base.flag("attention_bias", false)?,
            scale: (mscale * mscale / ((nope + rope) as f64).sqrt()) as f32,
            q_rope: Arc::new(q_rope),
            k_rope: Arc::new(k_rope),
            growth: frequencies.growth.map(RopeSpec::growing).map(Arc::new),
        })
    }

    pub fn layer(&self, base: &Base, i: usize) -> MixerSpec {
        let at = format!("{}self_attn.", base.layer(i));
        let (h, heads, q_dim) = (base.hidden, base.heads, self.nope + self.rope);
        let whole = |name: &str, shape, bias| LinearSpec::new(format!("{at}{name}"), shape, bias, Shard::Whole);
        let heads_out = |name: &str, width: usize, inp| {
            LinearSpec::new(format!("{at}{name}"), [heads * width, inp], false, Shard::OutHeads(width))
        };
        let norm = |name: &str, size| Norm { eps: LATENT_EPS, ..base.norm(format!("{at}{name}"), size) };
        let query = match self.q_rank {
            None => MlaQuery::Full(heads_out("q_proj", q_dim, h)),
            Some(rank) => MlaQuery::LowRank {
                a: whole("q_a_proj", [rank, h], self.bias),
                norm: norm("q_a_layernorm", rank),
                b: heads_out("q_b_proj", q_dim, rank),
            },
        };
        MixerSpec::Mla(Mla {
            query,
            kv_a: whole("kv_a_proj_with_mqa", [self.kv_rank + self.rope, h], self.bias),
            kv_norm: norm("kv_a_layernorm", self.kv_rank),
            kv_b: heads_out("kv_b_proj", self.nope + self.v, self.kv_rank).with_role(WeightRole::LatentExpansion),
            o: LinearSpec::new(format!("{at}o_proj"), [h, heads * self.v], self.bias, Shard::InHeads(self.v)),
            nope_dim: self.nope,
            rope_dim: self.rope,
            v_dim: self.v,
            kv_rank: self.kv_rank,
            scale: self.scale,
            q_rope: self.q_rope.clone(),
            k_rope: self.k_rope.clone(),
            growth: self.growth.clone(),
        })
    }
}

/// Values for missing keys.
pub(super) struct RouterDefaults {
    /// Of all models: with sigmoid scores a bias takes part in the choice.
    pub scoring: Scoring,
    pub top_k: usize,
    pub n_group: usize,
    pub topk_group: usize,
    pub scaling: f64,
}

/// The layers' feed-forward networks: dense, or experts with shared ones.
pub(super) struct DeepseekMlps {
    count: usize,
    inter: usize,
    dense_inter: usize,
    shared: usize,
    route: RouteSpec,
    sparse: Vec<bool>,
}

impl DeepseekMlps {
    pub fn read(base: &Base, defaults: &RouterDefaults, sparse: Vec<bool>) -> Result<Self, LoadError> {
        let config = base.config;
        match defaults.scoring {
            Scoring::Sigmoid => {
                config.require("scoring_func", "sigmoid")?;
                config.require("topk_method", "noaux_tc")?;
            }
            Scoring::Softmax => config.require("scoring_func", "softmax")?,
        }
        let count = match config.usize("n_routed_experts")? {
            Some(n) => n,
            None if config.get("num_local_experts").is_some() => config.size("num_local_experts")?,
            None => config.size("n_routed_experts")?,
        };
        config.require("num_local_experts", count)?;
        let route = base.route("num_experts_per_tok", defaults.top_k, count, defaults.scoring)?;
        let groups = |key: &str, default: usize| -> Result<usize, LoadError> {
            Ok(config.usize(key)?.unwrap_or(if config.mentions(key) { 1 } else { default }))
        };
        let (n_group, topk_group) = (groups("n_group", defaults.n_group)?, groups("topk_group", defaults.topk_group)?);
        if n_group == 0 || !count.is_multiple_of(n_group) || (n_group > 1 && count / n_group < 2) {
            let what = format!("{n_group} groups cannot split {count} experts evenly with at least two experts each");
            return Err(config.error("n_group", what));
        }
        if topk_group == 0 || topk_group > n_group {
            return Err(config.error("topk_group", format!("must be from 1 to {n_group} (n_group), got {topk_group}")));
        }
        if route.top_k > count / n_group * topk_group {
            let what = format!(
                "must be at most the number of experts in the {topk_group} eligible groups, got {}",
                route.top_k
            );
            return Err(config.error("num_experts_per_tok", what));
        }
        let shared = match config.usize("n_shared_experts")? {
            Some(n) => n,
            None if config.mentions("n_shared_experts") => 0,
            None => 1,
        };
        Ok(Self {
            count,
            inter: config.size("moe_intermediate_size")?,
            dense_inter: config.size("intermediate_size")?,
            shared,
            sparse,
            route: RouteSpec {
                n_group,
                topk_group,
                normalize: base.flag("norm_topk_prob", true)?,
                scaling: base.number("routed_scaling_factor", defaults.scaling)?,
                ..route
            },
        })
    }

    pub fn layer(&self, base: &Base, i: usize) -> Mlp {
        let at = format!("{}mlp.", base.layer(i));
        if !self.sparse[i] {
            return Mlp::Dense(base.gated(&at, self.dense_inter, false));
        }
        let expert = |e| base.gated(&format!("{at}experts.{e}."), self.inter, false);
        let moe = base.moe(format!("{at}gate"), self.count, self.route, expert);
        let shared = base.shared_expert(&format!("{at}shared_experts."), self.shared * self.inter);
        Mlp::Moe(Moe {
            choice_bias: (self.route.scoring == Scoring::Sigmoid)
                .then(|| ChoiceBias { tensor: format!("{at}gate.e_score_correction_bias"), shape: vec![self.count] }),
            shared,
            ..moe
        })
    }
}
