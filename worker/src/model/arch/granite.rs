//! Granite 3: Llama with four multipliers, and its mixtures of experts, whose matrices are stacked in one tensor of a
//! layer.

use rein_kernels::Scoring;

use crate::checkpoint::{ConfigFields, LoadError};
use crate::model::blocks::{Base, GqaStyle, LLAMA_DEFAULTS};
use crate::model::linear::{LinearSpec, Shard};
use crate::model::spec::{Gated, Mlp, Moe, SharedExpert, Spec};

pub fn build(config: &ConfigFields, prefix: &str) -> Result<Spec, LoadError> {
    let base = Base::read(config, prefix, &LLAMA_DEFAULTS)?;
    let mlp_bias = base.flag("mlp_bias", false)?;
    let inter = config.size("intermediate_size")?;
    decoder(&base, "GraniteForCausalLM", |i| Mlp::Dense(base.gated(&format!("{}mlp.", base.layer(i)), inter, mlp_bias)))
}

pub fn build_moe(config: &ConfigFields, prefix: &str) -> Result<Spec, LoadError> {
    experts(config, prefix, "GraniteMoeForCausalLM", 0)
}

pub fn build_moe_shared(config: &ConfigFields, prefix: &str) -> Result<Spec, LoadError> {
    let shared = config.usize("shared_intermediate_size")?.unwrap_or(1024);
    experts(config, prefix, "GraniteMoeSharedForCausalLM", shared)
}

fn experts(config: &ConfigFields, prefix: &str, architecture: &'static str, shared: usize) -> Result<Spec, LoadError> {
    let base = Base::read(config, prefix, &LLAMA_DEFAULTS)?;
    config.require("mlp_bias", false)?;
    let inter = config.size("intermediate_size")?;
    let count = config.usize("num_local_experts")?.unwrap_or(8);
    // A softmax of the chosen logits is that of all of them, normalized.
    let route = base.route("num_experts_per_tok", 2, count, Scoring::Softmax)?;
    // What is written for a GGUF file.
    let apart = base.flag("gate_up_apart", false)?;
    decoder(&base, architecture, |i| {
        let at = format!("{}block_sparse_moe.", base.layer(i));
        let expert = |e| match apart {
            true => base.gated(&format!("{at}experts.{e}."), inter, false),
            false => stacked(&base, &at, inter, e, count),
        };
        let moe = base.moe(format!("{at}router.layer"), count, route, expert);
        let shared = (shared > 0).then(|| {
            let at = format!("{}shared_mlp.", base.layer(i));
            let mlp = if apart { base.gated(&at, shared, false) } else { stacked(&base, &at, shared, 0, 1) };
            Box::new(SharedExpert { mlp, gate: None })
        });
        Mlp::Moe(Moe { shared, ..moe })
    })
}

/// The MLP at `index` of `count` in stacked tensors: gate above up, and down.
fn stacked(base: &Base, at: &str, inter: usize, index: usize, count: usize) -> Gated {
    let hidden = base.hidden;
    let inputs = |part: usize| {
        let linear = LinearSpec::new(format!("{at}input_linear"), [inter, hidden], false, Shard::Out);
        linear.within(2 * inter * count, (2 * index + part) * inter)
    };
    let down = LinearSpec::new(format!("{at}output_linear"), [hidden, inter], false, Shard::In);
    let down = down.within(hidden * count, index * hidden);
    Gated { gate: inputs(0), up: inputs(1), down, ..base.gated("", inter, false) }
}

fn decoder(base: &Base, architecture: &'static str, mlp: impl Fn(usize) -> Mlp) -> Result<Spec, LoadError> {
    let bias = base.flag("attention_bias", false)?;
    let style = GqaStyle {
        qkv_bias: bias,
        o_bias: bias,
        scale: Some(base.number("attention_multiplier", 1.0)?),
        ..GqaStyle::plain(base)?
    };
    let window = base.uniform_window(None)?;
    let spec = base.spec(architecture, |i| Ok(base.decoder_layer(i, style.layer(base, i, window), mlp(i))))?;
    let logits_scaling = base.number("logits_scaling", 1.0)?;
    if logits_scaling == 0.0 {
        return Err(base.config.error("logits_scaling", "must not be 0"));
    }
    Ok(Spec {
        embedding_multiplier: base.number("embedding_multiplier", 1.0)?,
        residual_multiplier: base.number("residual_multiplier", 1.0)?,
        logits_scaling,
        ..spec
    })
}
