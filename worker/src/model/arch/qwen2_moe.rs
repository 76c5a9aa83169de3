//! Qwen1.5-MoE and Qwen2's mixture of experts: Qwen 2's attention, softmax routing, a gated shared expert, dense layers
//! where the config says so.

use super::qwen3_moe::{ExpertDefaults, QwenExperts};
use super::qwen3_next::with_shared;
use crate::checkpoint::{ConfigFields, LoadError};
use crate::model::blocks::{Base, ConfigDefaults, GqaStyle};
use crate::model::spec::Spec;

const DEFAULTS: ConfigDefaults =
    ConfigDefaults { kv_heads: Some(16), head_dim: None, max_positions: 32_768, eps: 1e-6, theta: 1e4 };

pub fn build(config: &ConfigFields, prefix: &str) -> Result<Spec, LoadError> {
    let base = Base::read(config, prefix, &DEFAULTS)?;
    let qkv_bias = base.flag("qkv_bias", true)?;
    config.require("attention_bias", qkv_bias)?;
    config.require("mlp_bias", false)?;
    let style = GqaStyle { qkv_bias, ..GqaStyle::plain(&base)? };
    // Unlike in Qwen 2, `max_window_layers` ends the windows, and only every second layer has one, as in transformers.
    let windows = base.qwen_windows(|i, max| i < max && i.is_multiple_of(2))?;
    let count = config.usize("num_experts")?.unwrap_or(60);
    let experts =
        QwenExperts::read(&base, count, &ExpertDefaults { top_k: 4, normalize: false, inter: 1408, dense: 5632 })?;
    let shared_inter = config.usize("shared_expert_intermediate_size")?.unwrap_or(5632);
    base.spec("Qwen2MoeForCausalLM", |i| {
        let mlp = with_shared(&base, i, shared_inter, experts.layer(&base, i));
        Ok(base.decoder_layer(i, style.layer(&base, i, windows[i]), mlp))
    })
}
