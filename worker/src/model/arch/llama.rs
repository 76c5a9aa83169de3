//! Llama 1 to 3, Seed-OSS and InternLM3: grouped-query attention, gated MLP, optional biases.

use crate::checkpoint::{ConfigFields, LoadError};
use crate::model::blocks::{Base, ConfigDefaults, GqaStyle, LLAMA_DEFAULTS};
use crate::model::spec::{Mlp, Spec};

const SEED_DEFAULTS: ConfigDefaults =
    ConfigDefaults { kv_heads: Some(8), head_dim: Some(128), max_positions: 524_288, eps: 1e-6, theta: 1e4 };

const INTERNLM3_DEFAULTS: ConfigDefaults =
    ConfigDefaults { kv_heads: Some(2), head_dim: Some(128), max_positions: 32_768, eps: 1e-5, theta: 1e4 };

pub fn build(config: &ConfigFields, prefix: &str) -> Result<Spec, LoadError> {
    let base = Base::read(config, prefix, &LLAMA_DEFAULTS)?;
    let bias = base.flag("attention_bias", false)?;
    let mlp_bias = base.flag("mlp_bias", false)?;
    decoder(&base, "LlamaForCausalLM", [bias, bias, mlp_bias])
}

/// Seed-OSS: the result of attention has a bias of its own.
pub fn build_seed_oss(config: &ConfigFields, prefix: &str) -> Result<Spec, LoadError> {
    let base = Base::read(config, prefix, &SEED_DEFAULTS)?;
    // Of training.
    config.f64("residual_dropout")?;
    let mlp_bias = base.flag("mlp_bias", false)?;
    let biases = [base.flag("attention_bias", true)?, base.flag("attention_out_bias", false)?, mlp_bias];
    decoder(&base, "SeedOssForCausalLM", biases)
}

/// InternLM3, which names its biases otherwise; transformers 5 has Llama's names.
pub fn build_internlm3(config: &ConfigFields, prefix: &str) -> Result<Spec, LoadError> {
    let base = Base::read(config, prefix, &INTERNLM3_DEFAULTS)?;
    let qkv_bias = base.flag("qkv_bias", base.flag("attention_bias", false)?)?;
    let bias = base.flag("bias", base.flag("mlp_bias", false)?)?;
    decoder(&base, "InternLM3ForCausalLM", [qkv_bias, bias, bias])
}

/// With biases of queries, keys and values, of attention's result, and of the MLP.
fn decoder(base: &Base, architecture: &'static str, biases: [bool; 3]) -> Result<Spec, LoadError> {
    let [qkv_bias, o_bias, mlp_bias] = biases;
    let style = GqaStyle { qkv_bias, o_bias, ..GqaStyle::plain(base)? };
    let inter = base.config.size("intermediate_size")?;
    let window = base.uniform_window(None)?;
    base.spec(architecture, |i| {
        let mlp = base.gated(&format!("{}mlp.", base.layer(i)), inter, mlp_bias);
        Ok(base.decoder_layer(i, style.layer(base, i, window), Mlp::Dense(mlp)))
    })
}
