//! Mixtures of experts.

use serde_json::{Value, json};

use super::{ArchShape, Config, WINDOW, attention_bias, dense, has, put};
use crate::GgufError;
use crate::fields::MetadataFields;

/// `expert_gating_func`.
const SOFTMAX: u64 = 1;
const SIGMOID: u64 = 2;

pub(crate) fn mixtral(fields: &MetadataFields, shape: &ArchShape, out: &mut Config) -> Result<(), GgufError> {
    softmax_routing(fields)?;
    unshared(fields)?;
    fields.require("expert_weights_norm", true)?;
    if let Some(size) = fields.size("expert_feed_forward_length")? {
        put(out, [("intermediate_size", size.into())]);
    }
    let keys = [
        ("num_local_experts", shape.experts.into()),
        ("num_experts_per_tok", fields.required("expert_used_count")?.into()),
        ("sliding_window", Value::Null),
    ];
    put(out, keys);
    Ok(())
}

pub(crate) fn qwen3(fields: &MetadataFields, shape: &ArchShape, out: &mut Config) -> Result<(), GgufError> {
    unshared(fields)?;
    put(out, [("attention_bias", attention_bias(fields)?.into())]);
    // llama.cpp normalizes the weights of this architecture and writes no key for it.
    qwen(fields, shape, out, true)
}

pub(crate) fn qwen2(fields: &MetadataFields, shape: &ArchShape, out: &mut Config) -> Result<(), GgufError> {
    put(out, [("qkv_bias", has(fields, "blk.0.attn_q.bias").into())]);
    qwen_shared(fields, out)?;
    qwen(fields, shape, out, false)
}

/// `normalize`: whether the weights of a token's experts are normalized if the file does not say.
pub(super) fn qwen(
    fields: &MetadataFields,
    shape: &ArchShape,
    out: &mut Config,
    normalize: bool,
) -> Result<(), GgufError> {
    softmax_routing(fields)?;
    let keys = [
        ("num_experts", shape.experts.into()),
        ("num_experts_per_tok", fields.required("expert_used_count")?.into()),
        ("moe_intermediate_size", fields.required("expert_feed_forward_length")?.into()),
        ("norm_topk_prob", fields.bool("expert_weights_norm")?.unwrap_or(normalize).into()),
        ("decoder_sparse_step", 1.into()),
        ("mlp_only_layers", json!([])),
    ];
    put(out, keys);
    Ok(())
}

/// The shared expert's size is that of a dense layer if the file does not say.
pub(super) fn qwen_shared(fields: &MetadataFields, out: &mut Config) -> Result<(), GgufError> {
    let size = match fields.size("expert_shared_feed_forward_length")?.filter(|&size| size > 0) {
        Some(size) => size,
        None => fields.required("feed_forward_length")?,
    };
    put(out, [("shared_expert_intermediate_size", size.into())]);
    Ok(())
}

pub(crate) fn granite(fields: &MetadataFields, shape: &ArchShape, out: &mut Config) -> Result<(), GgufError> {
    softmax_routing(fields)?;
    dense::granite_factors(fields, shape, out)?;
    match fields.size("expert_shared_feed_forward_length")?.filter(|&size| size > 0) {
        Some(size) => put(out, [("shared_intermediate_size", size.into())]),
        None => {
            put(out, [("architectures", json!(["GraniteMoeForCausalLM"])), ("model_type", "granitemoe".into())]);
        }
    }
    let keys = [
        ("attention_bias", attention_bias(fields)?.into()),
        ("intermediate_size", expert_size(fields)?.into()),
        ("num_local_experts", shape.experts.into()),
        ("num_experts_per_tok", fields.required("expert_used_count")?.into()),
        ("gate_up_apart", true.into()),
    ];
    put(out, keys);
    Ok(())
}

pub(crate) fn olmoe(fields: &MetadataFields, shape: &ArchShape, out: &mut Config) -> Result<(), GgufError> {
    softmax_routing(fields)?;
    unshared(fields)?;
    let keys = [
        ("attention_bias", attention_bias(fields)?.into()),
        ("intermediate_size", expert_size(fields)?.into()),
        ("num_experts", shape.experts.into()),
        ("num_experts_per_tok", fields.required("expert_used_count")?.into()),
        ("norm_topk_prob", fields.bool("expert_weights_norm")?.unwrap_or(false).into()),
    ];
    put(out, keys);
    Ok(())
}

/// Every second layer has a window, and the gates of experts are clamped, by numbers that files do not have.
pub(crate) fn gpt_oss(fields: &MetadataFields, shape: &ArchShape, out: &mut Config) -> Result<(), GgufError> {
    fields.neutral("expert_weights_scale", &[0.0, 1.0])?;
    let keys = [
        ("attention_bias", true.into()),
        ("gate_up_apart", true.into()),
        ("intermediate_size", fields.required("expert_feed_forward_length")?.into()),
        ("num_local_experts", shape.experts.into()),
        ("num_experts_per_tok", fields.required("expert_used_count")?.into()),
        ("sliding_window", fields.required(WINDOW)?.into()),
    ];
    put(out, keys);
    if let Some(scaling) = out.get_mut("rope_scaling").filter(|scaling| scaling["rope_type"] == "yarn") {
        // As the published model has it; llama.cpp rounds the band of YaRN to whole pairs.
        scaling["truncate"] = false.into();
    }
    Ok(())
}

pub(crate) fn glm4(fields: &MetadataFields, shape: &ArchShape, out: &mut Config) -> Result<(), GgufError> {
    let keys = [
        ("attention_bias", has(fields, "blk.0.attn_q.bias").into()),
        ("use_qk_norm", has(fields, "blk.0.attn_q_norm.weight").into()),
    ];
    put(out, keys);
    deepseek_experts(fields, shape, out)
}

/// Sigmoid scores with a choice bias, shared experts, dense layers first.
pub(super) fn deepseek_experts(fields: &MetadataFields, shape: &ArchShape, out: &mut Config) -> Result<(), GgufError> {
    sigmoid_routing(fields)?;
    let first_dense = fields.size("leading_dense_block_count")?.unwrap_or(0);
    if first_dense < shape.layers {
        choice_bias(fields, first_dense)?;
    }
    if first_dense > 0 {
        fields.required("feed_forward_length")?;
    }
    let scale = fields.float("expert_weights_scale")?.filter(|&scale| scale != 0.0);
    let keys = [
        ("n_routed_experts", shape.experts.into()),
        ("n_shared_experts", fields.size("expert_shared_count")?.unwrap_or(0).into()),
        ("num_experts_per_tok", fields.required("expert_used_count")?.into()),
        ("moe_intermediate_size", fields.required("expert_feed_forward_length")?.into()),
        ("first_k_dense_replace", first_dense.into()),
        // Missing keys and 0 mean no groups in llama.cpp.
        ("n_group", fields.size("expert_group_count")?.unwrap_or(1).max(1).into()),
        ("topk_group", fields.size("expert_group_used_count")?.unwrap_or(1).max(1).into()),
        ("norm_topk_prob", fields.bool("expert_weights_norm")?.unwrap_or(false).into()),
        ("routed_scaling_factor", scale.unwrap_or(1.0).into()),
        ("scoring_func", "sigmoid".into()),
        ("topk_method", "noaux_tc".into()),
    ];
    put(out, keys);
    Ok(())
}

pub(crate) fn minimax_m2(fields: &MetadataFields, shape: &ArchShape, out: &mut Config) -> Result<(), GgufError> {
    sigmoid_routing(fields)?;
    unshared(fields)?;
    fields.require("expert_weights_norm", true)?;
    fields.neutral("expert_weights_scale", &[0.0, 1.0])?;
    choice_bias(fields, 0)?;
    // The config states the number itself.
    out.remove("partial_rotary_factor");
    let keys = [
        ("rotary_dim", shape.rotated(fields)?.into()),
        ("intermediate_size", fields.required("expert_feed_forward_length")?.into()),
        ("num_local_experts", shape.experts.into()),
        ("num_experts_per_tok", fields.required("expert_used_count")?.into()),
        ("scoring_func", "sigmoid".into()),
        ("use_qk_norm", true.into()),
        ("use_routing_bias", true.into()),
    ];
    put(out, keys);
    Ok(())
}

/// Which layers are dense is known by their tensors alone.
pub(crate) fn hy_v3(fields: &MetadataFields, shape: &ArchShape, out: &mut Config) -> Result<(), GgufError> {
    sigmoid_routing(fields)?;
    let sparse = |layer: u64| has(fields, &format!("blk.{layer}.ffn_gate_inp.weight"));
    let kinds: Vec<&str> = (0..shape.layers).map(|layer| if sparse(layer) { "sparse" } else { "dense" }).collect();
    let size = fields.required("expert_feed_forward_length")?;
    let shared = fields.size("expert_shared_feed_forward_length")?.filter(|&shared| shared > 0).unwrap_or(size);
    if !shared.is_multiple_of(size) {
        let what = format!("must be a multiple of expert_feed_forward_length, {size}, got {shared}");
        return Err(fields.unsupported("expert_shared_feed_forward_length", what));
    }
    fields.required("feed_forward_length")?;
    let scale = fields.float("expert_weights_scale")?.filter(|&scale| scale != 0.0);
    let keys = [
        ("mlp_layer_types", json!(kinds)),
        ("num_experts", shape.experts.into()),
        ("num_experts_per_tok", fields.required("expert_used_count")?.into()),
        ("moe_intermediate_size", size.into()),
        ("num_shared_experts", (shared / size).into()),
        ("route_norm", fields.bool("expert_weights_norm")?.unwrap_or(false).into()),
        ("router_scaling_factor", scale.unwrap_or(1.0).into()),
        ("qk_norm", true.into()),
        ("moe_router_use_sigmoid", true.into()),
        ("moe_router_enable_expert_bias", true.into()),
    ];
    put(out, keys);
    Ok(())
}

pub(crate) fn ernie4_5(fields: &MetadataFields, shape: &ArchShape, out: &mut Config) -> Result<(), GgufError> {
    softmax_routing(fields)?;
    fields.require("expert_weights_norm", true)?;
    let first = fields.size("leading_dense_block_count")?.unwrap_or(0);
    let every = fields.size("interleave_moe_layer_step")?.unwrap_or(1).max(1);
    let sparse = (first..shape.layers).find(|layer| (layer + 1).is_multiple_of(every));
    sparse.map_or(Ok(()), |layer| choice_bias(fields, layer))?;
    // The converter divides another number by the number of key heads; the tensors have the size.
    fields.size("expert_shared_feed_forward_length")?;
    fields.required("feed_forward_length")?;
    let keys = [
        ("use_bias", false.into()),
        ("moe_num_experts", shape.experts.into()),
        ("moe_k", fields.required("expert_used_count")?.into()),
        ("moe_intermediate_size", fields.required("expert_feed_forward_length")?.into()),
        ("moe_num_shared_experts", fields.size("expert_shared_count")?.unwrap_or(0).into()),
        ("moe_layer_start_index", first.into()),
        ("moe_layer_end_index", (shape.layers - 1).into()),
        ("moe_layer_interval", every.into()),
    ];
    put(out, keys);
    Ok(())
}

/// In some files, what a dense layer would have is an expert's.
fn expert_size(fields: &MetadataFields) -> Result<u64, GgufError> {
    match fields.size("expert_feed_forward_length")?.filter(|&size| size > 0) {
        Some(size) => Ok(size),
        None => fields.required("feed_forward_length"),
    }
}

pub(super) fn choice_bias_of_any(fields: &MetadataFields) -> bool {
    fields.gguf.tensors.iter().any(|tensor| tensor.name.ends_with(".exp_probs_b.bias"))
}

fn choice_bias(fields: &MetadataFields, layer: u64) -> Result<(), GgufError> {
    let bias = format!("blk.{layer}.exp_probs_b.bias");
    if has(fields, &bias) {
        return Ok(());
    }
    Err(GgufError::unsupported(bias, "the tensor is required: the choice of experts must have a bias"))
}

fn sigmoid_routing(fields: &MetadataFields) -> Result<(), GgufError> {
    match fields.size("expert_gating_func")? {
        None | Some(SIGMOID) => Ok(()),
        Some(other) => {
            Err(fields
                .unsupported("expert_gating_func", format!("must be 2 (sigmoid) for this architecture, got {other}")))
        }
    }
}

fn softmax_routing(fields: &MetadataFields) -> Result<(), GgufError> {
    if let Some(kind) = fields.size("expert_gating_func")?
        && kind != SOFTMAX
    {
        return Err(fields.unsupported("expert_gating_func", format!("must be 1 (softmax), got {kind}")));
    }
    fields.neutral("expert_weights_scale", &[0.0, 1.0])?;
    ["expert_group_count", "expert_group_used_count"].iter().try_for_each(|groups| fields.neutral(groups, &[0.0, 1.0]))
}

fn unshared(fields: &MetadataFields) -> Result<(), GgufError> {
    let keys = ["expert_shared_count", "expert_shared_feed_forward_length"];
    keys.iter().try_for_each(|key| fields.neutral(key, &[0.0]))
}
