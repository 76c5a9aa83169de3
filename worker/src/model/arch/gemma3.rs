//! Gemma 3, text only (arXiv:2503.19786): norms around one, also of what attention and MLP add, GELU, and windows in
//! five of six layers, which have another rotary base.

use std::sync::Arc;

use rein_kernels::RopeSpec;

use crate::checkpoint::{ConfigFields, LoadError};
use crate::model::blocks::{Base, ConfigDefaults, GqaStyle, NormSpan, whole_head_rope};
use crate::model::linear::Norm;
use crate::model::mixer::MixerSpec;
use crate::model::rope::{self, Frequencies};
use crate::model::spec::{Activation, Gated, LayerSpec, Mlp, Spec};

const DEFAULTS: ConfigDefaults =
    ConfigDefaults { kv_heads: Some(4), head_dim: Some(256), max_positions: 131_072, eps: 1e-6, theta: 1e6 };
const LOCAL_THETA: f64 = 1e4;
/// Every sixth layer sees all tokens.
const PATTERN: usize = 6;
const SLIDING: &str = "sliding_attention";

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
    let [local, global] = frequencies(&base, dim)?.map(|frequencies| Arc::new(whole_head_rope(dim, frequencies)));
    let style = |rope: &Arc<RopeSpec>| GqaStyle {
        head_dim: dim,
        qkv_bias: false,
        o_bias: false,
        qk_norm: NormSpan::Head,
        scale: Some(scalar.powf(-0.5) as f32),
        rope: rope.clone(),
    };
    let (local, global) = (style(&local), style(&global));
    let slides = sliding_layers(&base)?;
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
            input_norm: norm("input_layernorm"),
            mixer: MixerSpec::Gqa(gqa),
            mixer_result_norm: Some(norm("post_attention_layernorm")),
            mlp_norm: norm("pre_feedforward_layernorm"),
            mlp: Mlp::Dense(mlp),
            mlp_result_norm: Some(norm("post_feedforward_layernorm")),
        })
    })?;
    Ok(Spec { embedding_multiplier: (spec.hidden as f64).sqrt() as f32, norm: around_one(spec.norm.clone()), ..spec })
}

/// Of layers with a window, and of the others: by two bases in published configs, by kind of layer in transformers 5.
fn frequencies(base: &Base, dim: usize) -> Result<[Frequencies; 2], LoadError> {
    let config = base.config;
    let local = config.f64("rope_local_base_freq")?.unwrap_or(LOCAL_THETA);
    if let Some(kinds) = config.object("rope_parameters")?
        && let (Some(sliding), Some(full)) = (kinds.object(SLIDING)?, kinds.object("full_attention")?)
    {
        kinds.finish()?;
        let theta = config.f64("rope_theta")?.unwrap_or(base.theta);
        return Ok([
            rope::of_parameters(config, sliding, dim, base.max_positions, local)?,
            rope::of_parameters(config, full, dim, base.max_positions, theta)?,
        ]);
    }
    Ok([rope::plain(dim, rope::check_theta(config, local)?), base.rope(dim)?])
}

fn sliding_layers(base: &Base) -> Result<Vec<bool>, LoadError> {
    let config = base.config;
    let pattern = match config.usize("sliding_window_pattern")?.or(config.usize("_sliding_window_pattern")?) {
        Some(0) => return Err(config.error("sliding_window_pattern", "must be at least 1")),
        stated => stated.unwrap_or(PATTERN),
    };
    let Some(types) = config.strs("layer_types")? else {
        return Ok((0..base.layers).map(|i| !(i + 1).is_multiple_of(pattern)).collect());
    };
    if types.len() != base.layers {
        let what = format!("must name {} layers, got {}", base.layers, types.len());
        return Err(config.error("layer_types", what));
    }
    let slides = types.into_iter().map(|kind| match kind {
        SLIDING => Ok(true),
        "full_attention" => Ok(false),
        other => {
            let what = format!("must be {SLIDING:?} or \"full_attention\", got {other:?}");
            Err(config.error("layer_types", what))
        }
    });
    slides.collect()
}
