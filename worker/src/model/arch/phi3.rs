//! Phi-3 and Phi-4: Llama with q, k and v in one matrix, and gate and up in another.

use crate::checkpoint::{ConfigFields, LoadError};
use crate::model::blocks::{Base, ConfigDefaults, GqaStyle};
use crate::model::linear::LinearSpec;
use crate::model::mixer::MixerSpec;
use crate::model::spec::{Mlp, Spec};

const DEFAULTS: ConfigDefaults =
    ConfigDefaults { kv_heads: None, head_dim: None, max_positions: 4096, eps: 1e-5, theta: 1e4 };

pub fn build(config: &ConfigFields, prefix: &str) -> Result<Spec, LoadError> {
    let base = Base::read(config, prefix, &DEFAULTS)?;
    config.require("attention_bias", false)?;
    // Read where a rotation is scaled.
    config.usize("original_max_position_embeddings")?;
    for bias in ["lm_head_bias", "mlp_bias"] {
        config.require(bias, false)?;
    }
    // Phi-4-mini's config has them; its own code reads neither.
    config.require("full_attn_mod", 1)?;
    config.require("interpolate_factor", 1)?;
    let head_dim = base.head_dim()?;
    let style = GqaStyle::rotated(base.partial_rotation(head_dim, 1.0)?);
    let inter = config.size("intermediate_size")?;
    let window = base.uniform_window(base.sliding_window(None)?)?;
    let (q, kv) = (base.heads * head_dim, base.kv_heads * head_dim);
    base.spec("Phi3ForCausalLM", |i| {
        let at = base.layer(i);
        let joined = |linear: LinearSpec, name: &str, rows, offset| {
            LinearSpec { module: format!("{at}{name}"), ..linear }.within(rows, offset)
        };
        let qkv = |linear, offset| joined(linear, "self_attn.qkv_proj", q + 2 * kv, offset);
        let gate_up = |linear, offset| joined(linear, "mlp.gate_up_proj", 2 * inter, offset);
        let mut gqa = style.gqa(&base, i, window);
        (gqa.q, gqa.k, gqa.v) = (qkv(gqa.q, 0), qkv(gqa.k, q), qkv(gqa.v, q + kv));
        let mut mlp = base.gated(&format!("{at}mlp."), inter, false);
        (mlp.gate, mlp.up) = (gate_up(mlp.gate, 0), gate_up(mlp.up, inter));
        Ok(base.decoder_layer(i, MixerSpec::Gqa(gqa), Mlp::Dense(mlp)))
    })
}
