//! Mistral 7B and its dense successors: Llama with a sliding window over every layer.

use crate::checkpoint::{ConfigFields, LoadError};
use crate::model::blocks::{Base, ConfigDefaults, GqaStyle};
use crate::model::spec::{Mlp, Spec};

const DEFAULTS: ConfigDefaults =
    ConfigDefaults { kv_heads: Some(8), head_dim: None, max_positions: 131_072, eps: 1e-6, theta: 1e4 };

pub fn build(config: &ConfigFields, prefix: &str) -> Result<Spec, LoadError> {
    let base = Base::read(config, prefix, &DEFAULTS)?;
    let style = GqaStyle::plain(&base)?;
    let inter = config.size("intermediate_size")?;
    for bias in ["attention_bias", "mlp_bias"] {
        config.require(bias, false)?;
    }
    let window = base.uniform_window(base.sliding_window(Some(4096))?)?;
    base.spec("MistralForCausalLM", |i| {
        let mlp = base.gated(&format!("{}mlp.", base.layer(i)), inter, false);
        Ok(base.decoder_layer(i, style.layer(&base, i, window), Mlp::Dense(mlp)))
    })
}
