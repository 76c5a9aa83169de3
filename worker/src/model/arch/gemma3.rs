//! Gemma 3, text only (arXiv:2503.19786): norms around one, also of what attention and MLP add, GELU, and windows in
//! five of six layers, which have another rotary base.

use std::sync::Arc;

use rein_kernels::RopeSpec;

use super::windows;
use crate::checkpoint::{ConfigFields, LoadError};
use crate::model::blocks::{Base, ConfigDefaults, GqaStyle, NormSpan, whole_head_rope};
use crate::model::linear::Norm;
use crate::model::mixer::MixerSpec;
use crate::model::spec::{Activation, Gated, LayerSpec, Mlp, Spec};

const DEFAULTS: ConfigDefaults =
    ConfigDefaults { kv_heads: Some(4), head_dim: Some(256), max_positions: 131_072, eps: 1e-6, theta: 1e6 };
const LOCAL_THETA: f64 = 1e4;
/// Every sixth layer sees all tokens.
const PATTERN: usize = 6;

pub fn build(config: &ConfigFields, prefix: &str) -> Result<Spec, LoadError> {
    let mut base = Base::read(config, prefix, &DEFAULTS)?;
    base.tied = config.bool("tie_word_embeddings")?.unwrap_or(true);
    config.require("hidden_activation", "gelu_pytorch_tanh")?;
    config.require("attention_bias", false)?;
    config.require("use_bidirectional_attention", false)?;
    for softcap in ["attn_logit_softcapping", "final_logit_softcapping"] {
        if config.f64(softcap)?.is_some() {
            return Err(config.error(softcap, "is not supported for this architecture"));
        }
    }
    let dim = base.head_dim()?;
    let scalar = config.f64("query_pre_attn_scalar")?.unwrap_or(256.0);
    if scalar <= 0.0 {
        return Err(config.error("query_pre_attn_scalar", format!("must be greater than 0, got {scalar}")));
    }
    let local = config.f64("rope_local_base_freq")?.unwrap_or(LOCAL_THETA);
    let rotations = windows::frequencies(&base, dim, local)?;
    let [local, global] = rotations.map(|frequencies| Arc::new(whole_head_rope(dim, frequencies)));
    let style = |rope: &Arc<RopeSpec>| GqaStyle {
        growth: None,
        head_dim: dim,
        qkv_bias: false,
        o_bias: false,
        qk_norm: NormSpan::Head,
        scale: Some(scalar.powf(-0.5) as f32),
        rope: rope.clone(),
    };
    let (local, global) = (style(&local), style(&global));
    let pattern = match config.usize("sliding_window_pattern")?.or(config.usize("_sliding_window_pattern")?) {
        Some(0) => return Err(config.error("sliding_window_pattern", "must be at least 1")),
        stated => stated.unwrap_or(PATTERN),
    };
    let slides = windows::sliding_layers(&base, pattern)?;
    let window = base.sliding_window(Some(4096))?.filter(|&window| window > 0);
    let inter = config.size("intermediate_size")?;
    let around_one = |norm: Norm| Norm { from_one: true, ..norm };
    let spec = base.spec("Gemma3ForCausalLM", |i| {
        let at = base.layer(i);
        let norm = |name: &str| around_one(base.norm(format!("{at}{name}"), base.hidden));
        let mut gqa = match slides[i] {
            true => local.gqa(&base, i, window),
            false => global.gqa(&base, i, None),
        };
        gqa.qk_norm = gqa.qk_norm.map(|(q, k)| (around_one(q), around_one(k)));
        let mlp = Gated { activation: Activation::Gelu, ..base.gated(&format!("{at}mlp."), inter, false) };
        Ok(LayerSpec {
            input_norm: Some(norm("input_layernorm")),
            mixer: MixerSpec::Gqa(gqa),
            mixer_result_norm: Some(norm("post_attention_layernorm")),
            mlp_norm: Some(norm("pre_feedforward_layernorm")),
            mlp: Mlp::Dense(mlp),
            mlp_result_norm: Some(norm("post_feedforward_layernorm")),
        })
    })?;
    Ok(Spec { embedding_multiplier: (spec.hidden as f64).sqrt() as f32, norm: around_one(spec.norm.clone()), ..spec })
}
