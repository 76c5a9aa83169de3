//! ERNIE 4.5: Llama with a rotation of neighbours, and mixtures of experts with softmax routing, a choice bias and
//! shared experts.

use std::sync::Arc;

use rein_kernels::{RopeSpec, Scoring};

use crate::checkpoint::{ConfigFields, LoadError};
use crate::model::blocks::{Base, ConfigDefaults, GqaStyle};
use crate::model::spec::{ChoiceBias, Mlp, Moe, Spec};

const DEFAULTS: ConfigDefaults =
    ConfigDefaults { kv_heads: Some(2), head_dim: Some(128), max_positions: 131_072, eps: 1e-5, theta: 5e5 };
const MOE_DEFAULTS: ConfigDefaults = ConfigDefaults { kv_heads: Some(4), head_dim: None, ..DEFAULTS };

pub fn build(config: &ConfigFields, prefix: &str) -> Result<Spec, LoadError> {
    let (base, style) = read(config, prefix, &DEFAULTS)?;
    let inter = config.size("intermediate_size")?;
    base.spec("Ernie4_5ForCausalLM", |i| {
        let mlp = base.gated(&format!("{}mlp.", base.layer(i)), inter, false);
        Ok(base.decoder_layer(i, style.layer(&base, i, None), Mlp::Dense(mlp)))
    })
}

pub fn build_moe(config: &ConfigFields, prefix: &str) -> Result<Spec, LoadError> {
    let (base, style) = read(config, prefix, &MOE_DEFAULTS)?;
    config.require("moe_gate", "topk")?;
    config.require("moe_use_aux_free", true)?;
    // Limits of training, and of a sum that is never so small.
    config.get("moe_capacity");
    config.f64("moe_norm_min")?;
    let dense_inter = config.size("intermediate_size")?;
    let inter = config.size("moe_intermediate_size")?;
    let count = config.usize("moe_num_experts")?.unwrap_or(64);
    let shared = config.usize("moe_num_shared_experts")?.unwrap_or(2);
    let route = base.route("moe_k", 6, count, Scoring::Softmax)?;
    let sparse = sparse_layers(&base)?;
    let mut spec = base.spec("Ernie4_5_MoeForCausalLM", |i| {
        let at = format!("{}mlp.", base.layer(i));
        let mlp = match sparse[i] {
            false => Mlp::Dense(base.gated(&at, dense_inter, false)),
            true => {
                let expert = |e| base.gated(&format!("{at}experts.{e}."), inter, false);
                let moe = base.moe(format!("{at}gate"), count, route, expert);
                let shared = base.shared_expert(&format!("{at}shared_experts."), shared * inter);
                let tensor = format!("{at}moe_statics.e_score_correction_bias");
                Mlp::Moe(Moe { choice_bias: Some(ChoiceBias { tensor, shape: vec![1, count] }), shared, ..moe })
            }
        };
        Ok(base.decoder_layer(i, style.layer(&base, i, None), mlp))
    })?;
    // Layers that only predict further tokens.
    spec.ignored.push(format!("{prefix}model.mtp_"));
    Ok(spec)
}

fn read<'a>(
    config: &'a ConfigFields<'a>,
    prefix: &'a str,
    defaults: &ConfigDefaults,
) -> Result<(Base<'a>, GqaStyle), LoadError> {
    let mut base = Base::read(config, prefix, defaults)?;
    base.tied = config.bool("tie_word_embeddings")?.unwrap_or(true);
    config.require("use_bias", false)?;
    config.require("use_rmsnorm", true)?;
    let mut style = GqaStyle::plain(&base)?;
    style.rope = Arc::new(RopeSpec { interleaved: true, ..(*style.rope).clone() });
    Ok((base, style))
}

/// Every `moe_layer_interval`-th from `moe_layer_start_index` to `moe_layer_end_index`; -1 is the last.
fn sparse_layers(base: &Base) -> Result<Vec<bool>, LoadError> {
    let config = base.config;
    let every = config.usize("moe_layer_interval")?.unwrap_or(1);
    if every == 0 {
        return Err(config.error("moe_layer_interval", "must be at least 1"));
    }
    let start = config.usize("moe_layer_start_index")?.unwrap_or(1);
    let end = match config.f64("moe_layer_end_index")? {
        None | Some(-1.0) => base.layers - 1,
        Some(_) => config.usize("moe_layer_end_index")?.unwrap_or(base.layers - 1),
    };
    Ok((0..base.layers).map(|i| (i + 1).is_multiple_of(every) && (start..=end).contains(&i)).collect())
}
