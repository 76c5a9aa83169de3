//! OLMo 2 (arXiv:2501.00656) and OLMo 3: attention and MLP read the residual stream as it is, and what they add is
//! normed; norms of queries and keys are over all heads. In OLMo 3, three of four layers have a window.

use std::sync::Arc;

use super::windows;
use crate::checkpoint::{ConfigFields, LoadError};
use crate::model::blocks::{Base, ConfigDefaults, GqaStyle, NormSpan, whole_head_rope};
use crate::model::mixer::MixerSpec;
use crate::model::rope::Frequencies;
use crate::model::spec::{LayerSpec, Mlp, Spec};

const OLMO2: ConfigDefaults =
    ConfigDefaults { kv_heads: None, head_dim: None, max_positions: 2048, eps: 1e-5, theta: 1e4 };
const OLMO3: ConfigDefaults = ConfigDefaults { theta: 5e5, ..OLMO2 };
/// Every fourth layer sees all tokens.
const PATTERN: usize = 4;

pub fn build_olmo2(config: &ConfigFields, prefix: &str) -> Result<Spec, LoadError> {
    let base = Base::read(config, prefix, &OLMO2)?;
    let rotation = base.rope(base.head_dim()?)?;
    build(&base, "Olmo2ForCausalLM", [rotation.clone(), rotation], &vec![None; base.layers])
}

pub fn build_olmo3(config: &ConfigFields, prefix: &str) -> Result<Spec, LoadError> {
    let base = Base::read(config, prefix, &OLMO3)?;
    let local = config.f64("rope_theta")?.unwrap_or(base.theta);
    let rotations = windows::frequencies(&base, base.head_dim()?, local)?;
    let window = base.sliding_window(Some(4096))?.filter(|&window| window > 0);
    let slides = windows::sliding_layers(&base, PATTERN)?;
    let windows: Vec<_> = slides.into_iter().map(|slides| window.filter(|_| slides)).collect();
    build(&base, "Olmo3ForCausalLM", rotations, &windows)
}

/// `rotations`: of layers with a window, and of the others.
fn build(
    base: &Base,
    name: &'static str,
    rotations: [Frequencies; 2],
    windows: &[Option<usize>],
) -> Result<Spec, LoadError> {
    let (dim, bias) = (base.head_dim()?, base.flag("attention_bias", false)?);
    let inter = base.config.size("intermediate_size")?;
    let [local, global] = rotations.map(|rotation| {
        let style = GqaStyle::rotated(whole_head_rope(dim, rotation));
        Arc::new(GqaStyle { qkv_bias: bias, o_bias: bias, qk_norm: NormSpan::AllHeads, ..style })
    });
    base.spec(name, |i| {
        let at = base.layer(i);
        let norm = |name: &str| Some(base.norm(format!("{at}{name}"), base.hidden));
        let style = if windows[i].is_some() { &local } else { &global };
        Ok(LayerSpec {
            input_norm: None,
            mixer: MixerSpec::Gqa(style.gqa(base, i, windows[i])),
            mixer_result_norm: norm("post_attention_layernorm"),
            mlp_norm: None,
            mlp: Mlp::Dense(base.gated(&format!("{at}mlp."), inter, false)),
            mlp_result_norm: norm("post_feedforward_layernorm"),
        })
    })
}
