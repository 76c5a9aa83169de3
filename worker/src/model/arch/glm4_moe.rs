//! GLM-4.5 to 4.7: DeepSeek-V3's experts after grouped-query attention that rotates half of each head. The small one,
//! GLM-4.7-Flash, has DeepSeek-V3's attention, too.

use rein_kernels::Scoring;

use super::deepseek_v3::{DeepseekMlps, LATENT, RouterDefaults, latent_decoder};
use crate::checkpoint::{ConfigFields, LoadError};
use crate::model::blocks::{Base, ConfigDefaults, GqaStyle, NormSpan};
use crate::model::spec::Spec;

const DEFAULTS: ConfigDefaults =
    ConfigDefaults { kv_heads: Some(8), head_dim: None, max_positions: 131_072, eps: 1e-5, theta: 1e4 };
const LITE_DEFAULTS: ConfigDefaults =
    ConfigDefaults { kv_heads: Some(20), head_dim: None, max_positions: 202_752, eps: 1e-5, theta: 1e4 };
/// Layers that are dense if the config does not say.
const DENSE: usize = 1;

fn router(scaling: f64) -> RouterDefaults {
    RouterDefaults { scoring: Scoring::Sigmoid, top_k: 8, n_group: 1, topk_group: 1, scaling }
}

pub fn build(config: &ConfigFields, prefix: &str) -> Result<Spec, LoadError> {
    let base = Base::read(config, prefix, &DEFAULTS)?;
    let head_dim = base.head_dim()?;
    let style = GqaStyle {
        qkv_bias: base.flag("attention_bias", false)?,
        qk_norm: if base.flag("use_qk_norm", false)? { NormSpan::Head } else { NormSpan::Nothing },
        ..GqaStyle::rotated(base.partial_rotation(head_dim, 0.5)?)
    };
    let router = router(1.0);
    let mlps = DeepseekMlps::read(&base, &router, base.sparse_layers(DENSE)?)?;
    base.spec("Glm4MoeForCausalLM", |i| Ok(base.decoder_layer(i, style.layer(&base, i, None), mlps.layer(&base, i))))
}

pub fn build_lite(config: &ConfigFields, prefix: &str) -> Result<Spec, LoadError> {
    let base = Base::read(config, prefix, &LITE_DEFAULTS)?;
    let router = router(1.8);
    latent_decoder(&base, "Glm4MoeLiteForCausalLM", (&LATENT, &router), base.sparse_layers(DENSE)?)
}
