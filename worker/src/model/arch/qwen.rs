//! Qwen 2 and 2.5 (biases on q, k and v) and Qwen 3 (norms on each q and k head instead), dense.

use crate::checkpoint::{ConfigFields, LoadError};
use crate::model::blocks::{Base, ConfigDefaults, GqaStyle};
use crate::model::spec::{Mlp, Spec};

const QWEN2: ConfigDefaults =
    ConfigDefaults { kv_heads: Some(32), head_dim: None, max_positions: 32_768, eps: 1e-6, theta: 1e4 };
const QWEN3: ConfigDefaults = ConfigDefaults { head_dim: Some(128), ..QWEN2 };

pub fn build_qwen2(config: &ConfigFields, prefix: &str) -> Result<Spec, LoadError> {
    let base = Base::read(config, prefix, &QWEN2)?;
    // The only biases of these models; configs may state them under these names.
    config.require("attention_bias", true)?;
    config.require("qkv_bias", true)?;
    let style = GqaStyle { qkv_bias: true, ..GqaStyle::plain(&base)? };
    dense("Qwen2ForCausalLM", &base, &style)
}

pub fn build_qwen3(config: &ConfigFields, prefix: &str) -> Result<Spec, LoadError> {
    let base = Base::read(config, prefix, &QWEN3)?;
    let style = GqaStyle::qwen3(&base)?;
    dense("Qwen3ForCausalLM", &base, &style)
}

fn dense(architecture: &'static str, base: &Base, style: &GqaStyle) -> Result<Spec, LoadError> {
    let windows = base.qwen_windows(|i, max| i >= max)?;
    let inter = base.config.size("intermediate_size")?;
    base.config.require("mlp_bias", false)?;
    base.spec(architecture, |i| {
        let mlp = base.gated(&format!("{}mlp.", base.layer(i)), inter, false);
        Ok(base.decoder_layer(i, style.layer(base, i, windows[i]), Mlp::Dense(mlp)))
    })
}
