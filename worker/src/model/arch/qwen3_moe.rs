//! Qwen 3 mixtures of experts: Qwen 3's attention, softmax routing, dense layers where the config says so.

use rein_kernels::{RouteSpec, Scoring};

use crate::checkpoint::{ConfigFields, LoadError};
use crate::model::blocks::{Base, ConfigDefaults, GqaStyle};
use crate::model::spec::{Mlp, Spec};

const DEFAULTS: ConfigDefaults =
    ConfigDefaults { kv_heads: Some(4), head_dim: None, max_positions: 32_768, eps: 1e-6, theta: 1e4 };

pub fn build(config: &ConfigFields, prefix: &str) -> Result<Spec, LoadError> {
    let base = Base::read(config, prefix, &DEFAULTS)?;
    let style = GqaStyle::qwen3(&base)?;
    let count = match config.usize("num_experts")? {
        Some(n) => n,
        None => config.usize("num_local_experts")?.unwrap_or(128),
    };
    let experts =
        QwenExperts::read(&base, count, &ExpertDefaults { top_k: 8, normalize: false, inter: 768, dense: 6144 })?;
    config.require("mlp_bias", false)?;
    config.require("shared_expert_intermediate_size", 0)?;
    // If the window is on, it applies to every layer, as in transformers.
    config.usize("max_window_layers")?;
    let on = base.flag("use_sliding_window", false)?;
    let window = base.uniform_window(base.sliding_window(Some(4096))?.filter(|_| on))?;
    base.spec("Qwen3MoeForCausalLM", |i| {
        Ok(base.decoder_layer(i, style.layer(&base, i, window), experts.layer(&base, i)))
    })
}

pub(super) struct ExpertDefaults {
    pub top_k: usize,
    pub normalize: bool,
    pub inter: usize,
    pub dense: usize,
}

/// The layers' feed-forward networks: every `step`-th is a mixture of experts, unless it is named.
pub(super) struct QwenExperts {
    count: usize,
    inter: usize,
    dense_inter: usize,
    step: usize,
    dense_layers: Vec<usize>,
    /// None: there are no experts.
    route: Option<RouteSpec>,
}

impl QwenExperts {
    pub fn read(base: &Base, count: usize, defaults: &ExpertDefaults) -> Result<Self, LoadError> {
        let config = base.config;
        let step = config.usize("decoder_sparse_step")?.unwrap_or(1);
        if step == 0 {
            return Err(config.error("decoder_sparse_step", "must be at least 1"));
        }
        let normalize = base.flag("norm_topk_prob", defaults.normalize)?;
        let route = || -> Result<RouteSpec, LoadError> {
            let route = base.route("num_experts_per_tok", defaults.top_k, count, Scoring::Softmax)?;
            Ok(RouteSpec { normalize, ..route })
        };
        Ok(Self {
            count,
            inter: config.usize("moe_intermediate_size")?.unwrap_or(defaults.inter),
            dense_inter: config.usize("intermediate_size")?.unwrap_or(defaults.dense),
            step,
            dense_layers: config.usizes("mlp_only_layers")?.unwrap_or_default(),
            route: (count > 0).then(route).transpose()?,
        })
    }

    pub fn layer(&self, base: &Base, i: usize) -> Mlp {
        let at = format!("{}mlp.", base.layer(i));
        let sparse = !self.dense_layers.contains(&i) && (i + 1).is_multiple_of(self.step);
        let Some(route) = self.route.filter(|_| sparse) else {
            return Mlp::Dense(base.gated(&at, self.dense_inter, false));
        };
        let expert = |e| base.gated(&format!("{at}experts.{e}."), self.inter, false);
        Mlp::Moe(base.moe(format!("{at}gate"), self.count, route, expert))
    }
}
