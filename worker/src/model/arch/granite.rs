//! Granite 3: Llama with four multipliers.

use crate::checkpoint::{ConfigFields, LoadError};
use crate::model::blocks::{Base, GqaStyle, LLAMA_DEFAULTS};
use crate::model::spec::{Mlp, Spec};

pub fn build(config: &ConfigFields, prefix: &str) -> Result<Spec, LoadError> {
    let base = Base::read(config, prefix, &LLAMA_DEFAULTS)?;
    let bias = base.flag("attention_bias", false)?;
    let style = GqaStyle {
        qkv_bias: bias,
        o_bias: bias,
        scale: Some(base.number("attention_multiplier", 1.0)?),
        ..GqaStyle::plain(&base)?
    };
    let mlp_bias = base.flag("mlp_bias", false)?;
    let inter = config.size("intermediate_size")?;
    let window = base.uniform_window(None)?;
    let spec = base.spec("GraniteForCausalLM", |i| {
        let mlp = base.gated(&format!("{}mlp.", base.layer(i)), inter, mlp_bias);
        Ok(base.decoder_layer(i, style.layer(&base, i, window), Mlp::Dense(mlp)))
    })?;
    let logits_scaling = base.number("logits_scaling", 1.0)?;
    if logits_scaling == 0.0 {
        return Err(config.error("logits_scaling", "must not be 0"));
    }
    Ok(Spec {
        embedding_multiplier: base.number("embedding_multiplier", 1.0)?,
        residual_multiplier: base.number("residual_multiplier", 1.0)?,
        logits_scaling,
        ..spec
    })
}
