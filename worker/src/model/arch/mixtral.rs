//! Mixtral: Mistral's attention, softmax routing with weights normalized over the chosen experts.

use rein_kernels::Scoring;

use crate::checkpoint::{ConfigFields, LoadError};
use crate::model::blocks::{Base, ConfigDefaults, GqaStyle};
use crate::model::spec::{Mlp, Spec};

const DEFAULTS: ConfigDefaults =
    ConfigDefaults { kv_heads: Some(8), head_dim: None, max_positions: 131_072, eps: 1e-5, theta: 1e6 };

pub fn build(config: &ConfigFields, prefix: &str) -> Result<Spec, LoadError> {
    let base = Base::read(config, prefix, &DEFAULTS)?;
    let style = GqaStyle::plain(&base)?;
    config.require("attention_bias", false)?;
    let inter = config.size("intermediate_size")?;
    let experts = match config.usize("num_local_experts")? {
        Some(n) => n,
        None => config.usize("num_experts")?.unwrap_or(8),
    };
    let route = base.route("num_experts_per_tok", 2, experts, Scoring::Softmax)?;
    let window = base.uniform_window(base.sliding_window(None)?)?;
    base.spec("MixtralForCausalLM", |i| {
        let at = format!("{}block_sparse_moe.", base.layer(i));
        let expert = |e| base.gated_named(&format!("{at}experts.{e}."), ["w1", "w3", "w2"], inter, false);
        let moe = base.moe(format!("{at}gate"), experts, route, expert);
        Ok(base.decoder_layer(i, style.layer(&base, i, window), Mlp::Moe(moe)))
    })
}
