//! Llama 1 to 3: grouped-query attention, gated MLP, optional biases.

use crate::checkpoint::{ConfigFields, LoadError};
use crate::model::blocks::{Base, GqaStyle, LLAMA_DEFAULTS};
use crate::model::spec::{Mlp, Spec};

pub fn build(config: &ConfigFields, prefix: &str) -> Result<Spec, LoadError> {
    let base = Base::read(config, prefix, &LLAMA_DEFAULTS)?;
    let bias = base.flag("attention_bias", false)?;
    let style = GqaStyle { qkv_bias: bias, o_bias: bias, ..GqaStyle::plain(&base)? };
    let mlp_bias = base.flag("mlp_bias", false)?;
    let inter = config.size("intermediate_size")?;
    let window = base.uniform_window(None)?;
    base.spec("LlamaForCausalLM", |i| {
        let mlp = base.gated(&format!("{}mlp.", base.layer(i)), inter, mlp_bias);
        Ok(base.decoder_layer(i, style.layer(&base, i, window), Mlp::Dense(mlp)))
    })
}
