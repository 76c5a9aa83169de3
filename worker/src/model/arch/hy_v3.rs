//! Hy3: Qwen 3's attention, sigmoid routing with a choice bias, shared experts.

use rein_kernels::{RouteSpec, Scoring};

use crate::checkpoint::{ConfigFields, LoadError};
use crate::model::blocks::{Base, ConfigDefaults, GqaStyle};
use crate::model::spec::{ChoiceBias, Mlp, Moe, Spec};

const DEFAULTS: ConfigDefaults =
    ConfigDefaults { kv_heads: Some(8), head_dim: Some(128), max_positions: 131_072, eps: 1e-5, theta: 11_158_840.0 };

pub fn build(config: &ConfigFields, prefix: &str) -> Result<Spec, LoadError> {
    let base = Base::read(config, prefix, &DEFAULTS)?;
    config.require("qk_norm", true)?;
    config.require("mlp_bias", false)?;
    config.require("moe_router_use_sigmoid", true)?;
    config.require("moe_router_enable_expert_bias", true)?;
    // Where sums and the head are rounded: they are f32 here.
    for precision in ["enable_attention_fp32_softmax", "enable_lm_head_fp32", "enable_moe_fp32_combine"] {
        config.bool(precision)?;
    }
    let style = GqaStyle::qwen3(&base)?;
    let count = config.usize("num_experts")?.unwrap_or(192);
    config.require("num_local_experts", count)?;
    let inter = match config.usize("moe_intermediate_size")? {
        Some(inter) => inter,
        None => config.usize("expert_hidden_dim")?.unwrap_or(1536),
    };
    config.require("expert_hidden_dim", inter)?;
    let shared = config.usize("num_shared_experts")?.unwrap_or(1);
    let dense_inter = config.size("intermediate_size")?;
    let sparse = base.sparse_layers(1)?;
    let route = RouteSpec {
        normalize: base.flag("route_norm", true)?,
        scaling: base.number("router_scaling_factor", 2.826)?,
        ..base.route("num_experts_per_tok", 8, count, Scoring::Sigmoid)?
    };
    base.spec("HYV3ForCausalLM", |i| {
        let at = format!("{}mlp.", base.layer(i));
        let mlp = match sparse[i] {
            false => Mlp::Dense(base.gated(&at, dense_inter, false)),
            true => {
                let expert = |e| base.gated(&format!("{at}experts.{e}."), inter, false);
                let moe = base.moe(format!("{at}router.gate"), count, route, expert);
                let shared = base.shared_expert(&format!("{at}shared_mlp."), shared * inter);
                Mlp::Moe(Moe {
                    choice_bias: Some(ChoiceBias { tensor: format!("{at}expert_bias"), shape: vec![count] }),
                    shared,
                    ..moe
                })
            }
        };
        Ok(base.decoder_layer(i, style.layer(&base, i, None), mlp))
    })
}
