//! OLMo 2 (arXiv:2501.00656) and OLMo 3: attention and MLP read the residual stream as it is, and what they add is
//! normed; norms of queries and keys are over all heads. In OLMo 3, three of four layers have a window. OLMoE
//! (arXiv:2409.02060) has these norms of queries and keys in a usual layer, and experts.

use rein_kernels::{RouteSpec, Scoring};
use serde_json::Value;

use super::windows;
use crate::checkpoint::{ConfigFields, LoadError};
use crate::model::blocks::{Base, ConfigDefaults, GqaStyle, NormSpan, whole_head_rope};
use crate::model::mixer::MixerSpec;
use crate::model::rope::Frequencies;
use crate::model::spec::{LayerSpec, Mlp, Spec};

const OLMO2: ConfigDefaults =
    ConfigDefaults { kv_heads: None, head_dim: None, max_positions: 2048, eps: 1e-5, theta: 1e4 };
const OLMOE: ConfigDefaults = ConfigDefaults { max_positions: 4096, ..OLMO2 };
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

pub fn build_olmoe(config: &ConfigFields, prefix: &str) -> Result<Spec, LoadError> {
    let base = Base::read(config, prefix, &OLMOE)?;
    config.require("clip_qkv", Value::Null)?;
    let style = style(&base, base.rope(base.head_dim()?)?)?;
    let inter = config.size("intermediate_size")?;
    let count = config.usize("num_experts")?.or(config.usize("num_local_experts")?).unwrap_or(64);
    let normalize = base.flag("norm_topk_prob", false)?;
    let route = RouteSpec { normalize, ..base.route("num_experts_per_tok", 8, count, Scoring::Softmax)? };
    base.spec("OlmoeForCausalLM", |i| {
        let at = format!("{}mlp.", base.layer(i));
        let expert = |e| base.gated(&format!("{at}experts.{e}."), inter, false);
        let moe = base.moe(format!("{at}gate"), count, route, expert);
        Ok(base.decoder_layer(i, style.layer(&base, i, None), Mlp::Moe(moe)))
    })
}

fn style(base: &Base, rotation: Frequencies) -> Result<GqaStyle, LoadError> {
    let bias = base.flag("attention_bias", false)?;
    let style = GqaStyle::rotated(whole_head_rope(base.head_dim()?, rotation));
    Ok(GqaStyle { qkv_bias: bias, o_bias: bias, qk_norm: NormSpan::AllHeads, ..style })
}

/// `rotations`: of layers with a window, and of the others.
fn build(
    base: &Base,
    name: &'static str,
    rotations: [Frequencies; 2],
    windows: &[Option<usize>],
) -> Result<Spec, LoadError> {
    let inter = base.config.size("intermediate_size")?;
    let [local, global] = rotations.map(|rotation| style(base, rotation));
    let (local, global) = (local?, global?);
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
