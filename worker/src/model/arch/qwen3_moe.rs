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
    let experts = match config.usize("num_experts")? {
        Some(n) => n,
        None => config.usize("num_local_experts")?.unwrap_or(128),
    };
    let route = RouteSpec {
        top_k: config.usize("num_experts_per_tok")?.unwrap_or(8),
        scoring: Scoring::Softmax,
        n_group: 1,
        topk_group: 1,
        normalize: base.flag("norm_topk_prob", false)?,
        scaling: 1.0,
    };
    let expert_inter = config.usize("moe_intermediate_size")?.unwrap_or(768);
    let dense_inter = config.usize("intermediate_size")?.unwrap_or(6144);
    let step = config.usize("decoder_sparse_step")?.unwrap_or(1);
    if step == 0 {
        return Err(config.error("decoder_sparse_step", "must be at least 1"));
    }
    let dense_layers = config.usizes("mlp_only_layers")?.unwrap_or_default();
    config.require("mlp_bias", false)?;
    config.require("shared_expert_intermediate_size", 0)?;
    // If the window is on, it applies to every layer, as in transformers.
    config.usize("max_window_layers")?;
    let on = base.flag("use_sliding_window", false)?;
    let window = base.uniform_window(base.sliding_window(Some(4096))?.filter(|_| on))?;
    base.spec("Qwen3MoeForCausalLM", |i| {
        let at = format!("{}mlp.", base.layer(i));
        let mlp = if experts == 0 || dense_layers.contains(&i) || !(i + 1).is_multiple_of(step) {
            Mlp::Dense(base.gated(&at, dense_inter, false))
        } else {
            let names = ["gate_proj", "up_proj", "down_proj"];
            Mlp::Moe(base.moe(format!("{at}gate"), &format!("{at}experts."), names, experts, expert_inter, route)?)
        };
        Ok(base.decoder_layer(i, style.layer(&base, i, window), mlp))
    })
}
