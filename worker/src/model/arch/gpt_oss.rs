//! gpt-oss (arXiv:2508.10925): windows in every second layer, a sink beside the scores of each head, biases throughout,
//! and experts whose gates are clamped. Their matrices are stacked, with gates and ups in turn; in GGUF files they are
//! apart.

use rein_kernels::Scoring;

use super::windows;
use crate::checkpoint::{ConfigFields, LoadError};
use crate::model::blocks::{Base, ConfigDefaults, GqaStyle};
use crate::model::linear::{LinearSpec, Shard};
use crate::model::mixer::MixerSpec;
use crate::model::spec::{ClampedExperts, GateUpBias, Gated, Mlp, Moe, Spec};

const DEFAULTS: ConfigDefaults =
    ConfigDefaults { kv_heads: Some(8), head_dim: Some(64), max_positions: 131_072, eps: 1e-5, theta: 150_000.0 };
/// Every second layer sees all tokens.
const PATTERN: usize = 2;

pub fn build(config: &ConfigFields, prefix: &str) -> Result<Spec, LoadError> {
    let base = Base::read(config, prefix, &DEFAULTS)?;
    let bias = base.flag("attention_bias", true)?;
    let style = GqaStyle { qkv_bias: bias, o_bias: bias, ..GqaStyle::plain(&base)? };
    let window = base.sliding_window(Some(128))?.filter(|&window| window > 0);
    let slides = windows::sliding_layers(&base, PATTERN)?;
    let inter = config.size("intermediate_size")?;
    let count = config.usize("num_local_experts")?.unwrap_or(128);
    // A softmax of the chosen logits is that of all of them, normalized.
    let route = base.route("num_experts_per_tok", 4, count, Scoring::Softmax)?;
    config.require("experts_per_token", route.top_k)?;
    // Of the rotation, which has its own.
    config.usize("initial_context_length")?;
    let (alpha, limit) = (base.number("swiglu_alpha", 1.702)?, base.number("swiglu_limit", 7.0)?);
    if limit <= 0.0 {
        return Err(config.error("swiglu_limit", format!("must be greater than 0, got {limit}")));
    }
    // What is written for a GGUF file.
    let apart = base.flag("gate_up_apart", false)?;
    base.spec("GptOssForCausalLM", |i| {
        let at = base.layer(i);
        let mut gqa = style.gqa(&base, i, window.filter(|_| slides[i]));
        gqa.sinks = Some(format!("{at}self_attn.sinks"));
        let at = format!("{at}mlp.");
        let moe = base.moe(format!("{at}router"), count, route, |e| match apart {
            true => base.gated(&format!("{at}experts.{e}."), inter, false),
            false => expert(&base, &at, inter, e, count),
        });
        let bias = |name: &str| format!("{at}experts.{name}_proj_bias");
        let gate_up = match apart {
            true => GateUpBias::Apart([bias("gate"), bias("up")]),
            false => GateUpBias::InTurn(bias("gate_up")),
        };
        let clamped = Some(ClampedExperts { gate_up, down: bias("down"), inter, alpha, limit });
        let moe = Moe { router: LinearSpec { bias: true, ..moe.router }, clamped, ..moe };
        Ok(base.decoder_layer(i, MixerSpec::Gqa(gqa), Mlp::Moe(moe)))
    })
}

fn expert(base: &Base, at: &str, inter: usize, index: usize, count: usize) -> Gated {
    let hidden = base.hidden;
    let inputs = |part: usize| {
        let linear = LinearSpec::new(format!("{at}experts.gate_up_proj"), [inter, hidden], false, Shard::Out);
        linear.every(2, 2 * inter * count, 2 * inter * index + part)
    };
    let down = LinearSpec::new(format!("{at}experts.down_proj"), [hidden, inter], false, Shard::In);
    let down = down.within(hidden * count, index * hidden);
    Gated { gate: inputs(0), up: inputs(1), down, ..base.gated("", inter, false) }
}
