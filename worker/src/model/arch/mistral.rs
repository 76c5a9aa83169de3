//! Mistral's models: 7B and its dense successors, Llama with a sliding window over every layer (`mistral`); those since
//! December 2025, whose queries grow with their position (`ministral3`); and mixtures of experts with latent attention
//! (`mistral4`: Small 4, Large 3).

use rein_kernels::Scoring;

use super::deepseek_v3::{LATENT, LatentDefaults, RouterDefaults, latent_decoder, sparse_from};
use crate::checkpoint::{ConfigFields, LoadError};
use crate::model::blocks::{Base, ConfigDefaults, GqaStyle};
use crate::model::spec::{Mlp, Spec};

const DEFAULTS: ConfigDefaults =
    ConfigDefaults { kv_heads: Some(8), head_dim: None, max_positions: 131_072, eps: 1e-6, theta: 1e4 };
const MINISTRAL3: ConfigDefaults =
    ConfigDefaults { kv_heads: Some(8), head_dim: Some(128), max_positions: 262_144, eps: 1e-5, theta: 1e6 };
const MISTRAL4: ConfigDefaults =
    ConfigDefaults { kv_heads: None, head_dim: None, max_positions: 1_048_576, eps: 1e-6, theta: 1e4 };
const ROUTER: RouterDefaults =
    RouterDefaults { scoring: Scoring::Softmax, top_k: 4, n_group: 1, topk_group: 1, scaling: 1.0 };

pub fn build(config: &ConfigFields, prefix: &str) -> Result<Spec, LoadError> {
    let base = Base::read(config, prefix, &DEFAULTS)?;
    let style = GqaStyle::plain(&base)?;
    dense(&base, "MistralForCausalLM", &style, base.sliding_window(Some(4096))?)
}

pub fn build_ministral3(config: &ConfigFields, prefix: &str) -> Result<Spec, LoadError> {
    let base = Base::read(config, prefix, &MINISTRAL3)?;
    let style = GqaStyle::growing(&base)?;
    dense(&base, "Ministral3ForCausalLM", &style, base.sliding_window(None)?)
}

fn dense(base: &Base, architecture: &'static str, style: &GqaStyle, window: Option<usize>) -> Result<Spec, LoadError> {
    let inter = base.config.size("intermediate_size")?;
    for bias in ["attention_bias", "mlp_bias"] {
        base.config.require(bias, false)?;
    }
    let window = base.uniform_window(window)?;
    base.spec(architecture, |i| {
        let mlp = base.gated(&format!("{}mlp.", base.layer(i)), inter, false);
        Ok(base.decoder_layer(i, style.layer(base, i, window), Mlp::Dense(mlp)))
    })
}

pub fn build_mistral4(config: &ConfigFields, prefix: &str) -> Result<Spec, LoadError> {
    mixture(config, prefix, "Mistral4ForCausalLM")
}

/// DeepSeek-V3 but for the router's scores, which are a softmax without a bias, and for queries that grow.
pub fn build_large3(config: &ConfigFields, prefix: &str) -> Result<Spec, LoadError> {
    let mut spec = mixture(config, prefix, "MistralLarge3ForCausalLM")?;
    // Of its vision tower.
    let others = ["vision_encoder.", "vision_language_adapter.", "patch_merger.", "pre_mm_projector_norm."];
    spec.ignored.extend(others.map(str::to_owned));
    Ok(spec)
}

fn mixture(config: &ConfigFields, prefix: &str, architecture: &'static str) -> Result<Spec, LoadError> {
    let base = Base::read(config, prefix, &MISTRAL4)?;
    let latent = LatentDefaults { grows: true, ..LATENT };
    latent_decoder(&base, architecture, (&latent, &ROUTER), sparse_from(&base, 0)?)
}
