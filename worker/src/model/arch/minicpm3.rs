//! MiniCPM3: latent attention with small widths, a dense MLP, and factors of the embedding, of what each block adds,
//! and of the hidden states before the head.

use super::deepseek_v3::{LATENT, Latent, LatentDefaults};
use crate::checkpoint::{ConfigFields, LoadError};
use crate::model::blocks::{Base, ConfigDefaults};
use crate::model::spec::{Mlp, Spec};

const DEFAULTS: ConfigDefaults =
    ConfigDefaults { kv_heads: Some(40), head_dim: None, max_positions: 32_768, eps: 1e-5, theta: 1e4 };

pub fn build(config: &ConfigFields, prefix: &str) -> Result<Spec, LoadError> {
    let mut base = Base::read(config, prefix, &DEFAULTS)?;
    base.tied = config.bool("tie_word_embeddings")?.unwrap_or(true);
    if base.kv_heads != base.heads {
        let what = format!("{} must equal num_attention_heads, {}", base.kv_heads, base.heads);
        return Err(config.error("num_key_value_heads", what));
    }
    config.require("mlp_bias", false)?;
    let v_dim = Some(base.hidden / base.heads);
    let attention = Latent::read(&base, &LatentDefaults { interleave: false, v_dim, ..LATENT })?;
    let inter = config.size("intermediate_size")?;
    let factor = |key: &str, default: f64, none: f64| -> Result<f32, LoadError> {
        // Null means no factor.
        let absent = if config.mentions(key) { none } else { default };
        let factor = config.f64(key)?.unwrap_or(absent);
        match factor > 0.0 {
            true => Ok(factor as f32),
            false => Err(config.error(key, format!("must be greater than 0, got {factor}"))),
        }
    };
    let depth = (base.layers as f64).sqrt();
    let residual_multiplier = factor("scale_depth", 1.4, depth)? / depth as f32;
    let logits_scaling = base.hidden as f32 / factor("dim_model_base", 256.0, base.hidden as f64)?;
    let spec = base.spec("MiniCPM3ForCausalLM", |i| {
        let mlp = base.gated(&format!("{}mlp.", base.layer(i)), inter, false);
        Ok(base.decoder_layer(i, attention.layer(&base, i), Mlp::Dense(mlp)))
    })?;
    Ok(Spec { embedding_multiplier: factor("scale_emb", 12.0, 1.0)?, residual_multiplier, logits_scaling, ..spec })
}
