//! Llama 1 to 3 and Seed-OSS: grouped-query attention, gated MLP, optional biases.

use crate::checkpoint::{ConfigFields, LoadError};
use crate::model::blocks::{Base, ConfigDefaults, GqaStyle, LLAMA_DEFAULTS};
use crate::model::spec::{Mlp, Spec};

const SEED_DEFAULTS: ConfigDefaults =
    ConfigDefaults { kv_heads: Some(8), head_dim: Some(128), max_positions: 524_288, eps: 1e-6, theta: 1e4 };

pub fn build(config: &ConfigFields, prefix: &str) -> Result<Spec, LoadError> {
    let base = Base::read(config, prefix, &LLAMA_DEFAULTS)?;
    let bias = base.flag("attention_bias", false)?;
    decoder(&base, "LlamaForCausalLM", [bias, bias])
}

/// Seed-OSS: the result of attention has a bias of its own.
pub fn build_seed_oss(config: &ConfigFields, prefix: &str) -> Result<Spec, LoadError> {
    let base = Base::read(config, prefix, &SEED_DEFAULTS)?;
    // Of training.
    config.f64("residual_dropout")?;
    let biases = [base.flag("attention_bias", true)?, base.flag("attention_out_bias", false)?];
    decoder(&base, "SeedOssForCausalLM", biases)
}

fn decoder(base: &Base, architecture: &'static str, [qkv_bias, o_bias]: [bool; 2]) -> Result<Spec, LoadError> {
    let style = GqaStyle { qkv_bias, o_bias, ..GqaStyle::plain(base)? };
    let mlp_bias = base.flag("mlp_bias", false)?;
    let inter = base.config.size("intermediate_size")?;
    let window = base.uniform_window(None)?;
    base.spec(architecture, |i| {
        let mlp = base.gated(&format!("{}mlp.", base.layer(i)), inter, mlp_bias);
        Ok(base.decoder_layer(i, style.layer(base, i, window), Mlp::Dense(mlp)))
    })
}
