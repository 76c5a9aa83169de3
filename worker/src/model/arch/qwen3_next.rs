//! Qwen3-Next, and Qwen3.5 to 3.8: gated delta nets, every few layers attention with gates; mixtures of experts with a
//! gated shared one, or dense.

use std::sync::Arc;

use rein_kernels::{DeltaSpec, RopeSpec, WeightRole};

use super::qwen3_moe::{ExpertDefaults, QwenExperts};
use crate::checkpoint::{ConfigFields, LoadError};
use crate::model::blocks::{Base, ConfigDefaults, MAX_HEAD_DIM};
use crate::model::linear::{LinearSpec, Norm, Shard, StoredPart};
use crate::model::mixer::{DeltaInputs, DeltaNet, Gqa, MixerSpec};
use crate::model::spec::{LayerSpec, Mlp, SharedExpert, Spec};

const DEFAULTS: ConfigDefaults =
    ConfigDefaults { kv_heads: Some(2), head_dim: Some(256), max_positions: 32_768, eps: 1e-6, theta: 1e4 };
/// Rows that the convolution sees.
const MAX_TAPS: usize = 64;

pub fn build(config: &ConfigFields, prefix: &str) -> Result<Spec, LoadError> {
    let base = Base::read(config, prefix, &DEFAULTS)?;
    let experts = experts(&base, 512, 10)?;
    // What is written for a GGUF file.
    let inputs = match config.str("linear_inputs")? {
        None | Some("by_head") => StoredInputs::ByHead,
        Some("values_apart") => StoredInputs::ValuesApart,
        Some(other) => {
            return Err(config.error("linear_inputs", format!("must be by_head or values_apart, got {other:?}")));
        }
    };
    hybrid(&base, "Qwen3NextForCausalLM", inputs, experts)
}

/// In how many matrices the inputs of a delta net are.
#[derive(Clone, Copy)]
enum StoredInputs {
    ByHead,
    ValuesApart,
    Apart,
}

/// Qwen3.5 to 3.8 with experts.
pub fn build_qwen3_5_moe(config: &ConfigFields, prefix: &str) -> Result<Spec, LoadError> {
    let base = Base::read(config, prefix, &DEFAULTS)?;
    config.require("norm_topk_prob", true)?;
    config.require("decoder_sparse_step", 1)?;
    let experts = experts(&base, 256, 8)?;
    hybrid(&base, "Qwen3_5MoeForCausalLM", StoredInputs::Apart, experts)
}

/// The dense ones.
pub fn build_qwen3_5(config: &ConfigFields, prefix: &str) -> Result<Spec, LoadError> {
    let base = Base::read(config, prefix, &ConfigDefaults { kv_heads: Some(4), ..DEFAULTS })?;
    let inter = config.size("intermediate_size")?;
    hybrid(&base, "Qwen3_5ForCausalLM", StoredInputs::Apart, |i| {
        Mlp::Dense(base.gated(&format!("{}mlp.", base.layer(i)), inter, false))
    })
}

/// The experts of a layer, with the defaults of an architecture.
fn experts<'a>(base: &'a Base, count: usize, top_k: usize) -> Result<impl Fn(usize) -> Mlp + 'a, LoadError> {
    let count = base.config.usize("num_experts")?.unwrap_or(count);
    let defaults = ExpertDefaults { top_k, normalize: true, inter: 512, dense: 5632 };
    let experts = QwenExperts::read(base, count, &defaults)?;
    let shared_inter = base.config.usize("shared_expert_intermediate_size")?.unwrap_or(512);
    Ok(move |i| with_shared(base, i, shared_inter, experts.layer(base, i)))
}

fn hybrid(
    base: &Base,
    architecture: &'static str,
    inputs: StoredInputs,
    mlp: impl Fn(usize) -> Mlp,
) -> Result<Spec, LoadError> {
    let delta = delta_spec(base)?;
    let head_dim = base.head_dim()?;
    let rope = Arc::new(base.partial_rotation(head_dim, 0.25)?);
    let bias = base.flag("attention_bias", false)?;
    let attends = attention_layers(base)?;
    let mut spec = base.spec(architecture, |i| {
        let mixer = match attends[i] {
            true => attention(base, i, &rope, bias),
            false => delta_net(base, i, delta, inputs),
        };
        Ok(around_one(base.decoder_layer(i, mixer, mlp(i))))
    })?;
    spec.norm.from_one = true;
    // Layers that only predict further tokens.
    spec.ignored.push(format!("{}mtp.", base.prefix));
    Ok(spec)
}

fn around_one(mut layer: LayerSpec) -> LayerSpec {
    [&mut layer.input_norm, &mut layer.mlp_norm].into_iter().flatten().for_each(|norm| norm.from_one = true);
    layer
}

/// For each layer, whether it is attention.
fn attention_layers(base: &Base) -> Result<Vec<bool>, LoadError> {
    let config = base.config;
    let every = config.usize("full_attention_interval")?.unwrap_or(4);
    let Some(types) = config.strs("layer_types")? else {
        if every == 0 {
            return Err(config.error("full_attention_interval", "must be at least 1"));
        }
        return Ok((1..=base.layers).map(|layer| layer.is_multiple_of(every)).collect());
    };
    if types.len() != base.layers {
        let what = format!("has {} entries for {} layers", types.len(), base.layers);
        return Err(config.error("layer_types", what));
    }
    let attends = |kind: &&str| match *kind {
        "full_attention" => Ok(true),
        "linear_attention" => Ok(false),
        other => {
            let what = format!("must be full_attention or linear_attention, got {other:?}");
            Err(config.error("layer_types", what))
        }
    };
    types.iter().map(attends).collect()
}

fn delta_spec(base: &Base) -> Result<DeltaSpec, LoadError> {
    let config = base.config;
    let size = |key: &str, default: usize, most: usize| {
        let found = config.usize(key)?.unwrap_or(default);
        config.within(key, found, most)
    };
    let (key_heads, value_heads) =
        (size("linear_num_key_heads", 16, MAX_HEAD_DIM)?, size("linear_num_value_heads", 32, MAX_HEAD_DIM)?);
    if !value_heads.is_multiple_of(key_heads) {
        let what = format!("must be a multiple of {key_heads}, the number of key heads, got {value_heads}");
        return Err(config.error("linear_num_value_heads", what));
    }
    Ok(DeltaSpec {
        key_heads,
        value_heads,
        key_dim: size("linear_key_head_dim", 128, MAX_HEAD_DIM)?,
        value_dim: size("linear_value_head_dim", 128, MAX_HEAD_DIM)?,
        taps: size("linear_conv_kernel_dim", 4, MAX_TAPS)?,
        eps: base.eps,
    })
}

fn attention(base: &Base, i: usize, rope: &Arc<RopeSpec>, bias: bool) -> MixerSpec {
    let at = format!("{}self_attn.", base.layer(i));
    let (dim, h) = (rope.head_dim, base.hidden);
    let (q, kv) = (base.heads * dim, base.kv_heads * dim);
    let norm = |name: &str| Norm { from_one: true, ..base.norm(format!("{at}{name}"), dim) };
    // The query of each head is followed by its gate.
    let of_query = |index| LinearSpec {
        part: Some(StoredPart { width: dim, stride: 2 * dim, offset: index * dim, rows: 2 * q }),
        ..LinearSpec::new(format!("{at}q_proj"), [q, h], bias, Shard::OutHeads(dim))
    };
    MixerSpec::Gqa(Gqa {
        q: of_query(0),
        gate: Some(of_query(1)),
        k: LinearSpec::new(format!("{at}k_proj"), [kv, h], bias, Shard::OutKvHeads(dim)),
        v: LinearSpec::new(format!("{at}v_proj"), [kv, h], bias, Shard::OutKvHeads(dim)),
        o: LinearSpec::new(format!("{at}o_proj"), [h, q], bias, Shard::InHeads(dim)),
        qk_norm: Some((norm("q_norm"), norm("k_norm"))),
        head_dim: dim,
        scale: (1.0 / (dim as f64).sqrt()) as f32,
        sinks: None,
        window: None,
        rope: Some(rope.clone()),
        growth: None,
    })
}

fn delta_net(base: &Base, i: usize, spec: DeltaSpec, inputs: StoredInputs) -> MixerSpec {
    let at = format!("{}linear_attn.", base.layer(i));
    let (h, values) = (base.hidden, spec.value_heads * spec.value_dim);
    let linear = |name: &str, shape, shard| LinearSpec::new(format!("{at}{name}"), shape, false, shard);
    let joined = |name, outs| LinearSpec { joined: true, ..linear(name, [outs, h], Shard::Out) };
    let (qkv, z) = (joined("in_proj_qkv", spec.key_heads * spec.channels()), joined("in_proj_z", values));
    let ba = linear("in_proj_ba", [2 * spec.value_heads, h], Shard::Out);
    MixerSpec::DeltaNet(DeltaNet {
        inputs: match inputs {
            StoredInputs::ByHead => {
                DeltaInputs::ByHead([linear("in_proj_qkvz", [spec.key_heads * spec.inputs(), h], Shard::Out), ba])
            }
            StoredInputs::ValuesApart => DeltaInputs::ValuesApart(Box::new([qkv, z, ba])),
            StoredInputs::Apart => {
                let [b, a] = ["in_proj_b", "in_proj_a"].map(|name| joined(name, spec.value_heads));
                DeltaInputs::Apart(Box::new([qkv, z, b, a]))
            }
        },
        o: linear("out_proj", [h, values], Shard::In),
        conv: format!("{at}conv1d.weight"),
        log_decay: format!("{at}A_log"),
        step_bias: format!("{at}dt_bias"),
        norm: base.norm(format!("{at}norm"), spec.value_dim),
        spec,
    })
}

/// Beside the experts of a layer, one for all tokens, whose output a gate scales.
pub(super) fn with_shared(base: &Base, i: usize, inter: usize, mut mlp: Mlp) -> Mlp {
    if let Mlp::Moe(moe) = &mut mlp {
        let at = format!("{}mlp.", base.layer(i));
        let gate = LinearSpec::new(format!("{at}shared_expert_gate"), [1, base.hidden], false, Shard::Whole);
        moe.shared = Some(Box::new(SharedExpert {
            mlp: base.gated(&format!("{at}shared_expert."), inter, false),
            gate: Some(gate.with_role(WeightRole::Router)),
        }));
    }
    mlp
}
