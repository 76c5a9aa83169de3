//! MiniMax-M2 to M2.7: norms of queries and keys over all heads together, heads that are rotated in part, and sigmoid
//! routing with a choice bias.

use rein_kernels::Scoring;

use crate::checkpoint::{ConfigFields, LoadError};
use crate::model::blocks::{Base, ConfigDefaults, GqaStyle, NormSpan};
use crate::model::spec::{ChoiceBias, Mlp, Moe, Spec};

const DEFAULTS: ConfigDefaults =
    ConfigDefaults { kv_heads: Some(8), head_dim: Some(128), max_positions: 196_608, eps: 1e-6, theta: 5e6 };
/// Modules for further tokens that a config may state.
const MOST_MTP_MODULES: usize = 64;

pub fn build(config: &ConfigFields, prefix: &str) -> Result<Spec, LoadError> {
    let base = Base::read(config, prefix, &DEFAULTS)?;
    config.require("use_qk_norm", true)?;
    config.require("qk_norm_type", "per_layer")?;
    config.require("scoring_func", "sigmoid")?;
    config.require("use_routing_bias", true)?;
    config.require("shared_intermediate_size", 0)?;
    config.require("sliding_window", serde_json::Value::Null)?;
    full_attention(&base)?;
    let head_dim = base.head_dim()?;
    let factor = match config.usize("rotary_dim")? {
        Some(dims) => config.within("rotary_dim", dims, head_dim)? as f64 / head_dim as f64,
        None => 1.0,
    };
    let rotation = base.partial_rotation(head_dim, factor)?;
    let style = GqaStyle { qk_norm: NormSpan::AllHeads, ..GqaStyle::rotated(rotation) };
    let count = config.usize("num_local_experts")?.unwrap_or(256);
    config.require("num_experts", count)?;
    let inter = config.size("intermediate_size")?;
    let route = base.route("num_experts_per_tok", 8, count, Scoring::Sigmoid)?;
    let mtp = config.usize("num_mtp_modules")?.unwrap_or(0).min(MOST_MTP_MODULES);
    config.usize("mtp_transformer_layers")?;
    config.bool("use_mtp")?;
    let mut spec = base.spec("MiniMaxM2ForCausalLM", |i| {
        let at = format!("{}block_sparse_moe.", base.layer(i));
        let expert = |e| base.gated_named(&format!("{at}experts.{e}."), ["w1", "w3", "w2"], inter, false);
        let moe = base.moe(format!("{at}gate"), count, route, expert);
        let moe = Moe {
            choice_bias: Some(ChoiceBias { tensor: format!("{at}e_score_correction_bias"), shape: vec![count] }),
            ..moe
        };
        Ok(base.decoder_layer(i, style.layer(&base, i, None), Mlp::Moe(moe)))
    })?;
    spec.ignored.extend((base.layers..base.layers + mtp).map(|i| base.layer(i)));
    Ok(spec)
}

/// `attn_type_list` has 1 for each layer: the architecture knew others.
fn full_attention(base: &Base) -> Result<(), LoadError> {
    const KEY: &str = "attn_type_list";
    match base.config.usizes(KEY)? {
        Some(kinds) if kinds.len() != base.layers || kinds.iter().any(|&kind| kind != 1) => {
            Err(base.config.error(KEY, format!("must be 1 for each of {} layers", base.layers)))
        }
        _ => Ok(()),
    }
}
