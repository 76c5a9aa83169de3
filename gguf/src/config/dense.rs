//! Dense models.

use serde_json::{Value, json};

use super::{ArchShape, Config, WINDOW, attention_bias, has, put};
use crate::GgufError;
use crate::fields::MetadataFields;

/// Layers of Gemma 3 27B, whose queries are scaled by other than the size of a head.
const GEMMA3_27B_LAYERS: u64 = 62;
/// Every fourth layer of OLMo 3 sees all tokens, and every sixth of Gemma 3.
const OLMO3_PATTERN: u64 = 4;
const GEMMA3_PATTERN: u64 = 6;

pub(crate) fn nothing(_: &MetadataFields, _: &ArchShape, _: &mut Config) -> Result<(), GgufError> {
    Ok(())
}

pub(crate) fn llama(fields: &MetadataFields, _: &ArchShape, out: &mut Config) -> Result<(), GgufError> {
    let mlp_bias = has(fields, "blk.0.ffn_gate.bias");
    put(out, [("attention_bias", attention_bias(fields)?.into()), ("mlp_bias", mlp_bias.into())]);
    Ok(())
}

/// Mistral Small 3 and later. Queries that are scaled by their position are those of Ministral 3.
pub(crate) fn mistral3(fields: &MetadataFields, _: &ArchShape, out: &mut Config) -> Result<(), GgufError> {
    const SCALE: &str = "attention.temperature_scale";
    put(out, [("sliding_window", Value::Null)]);
    let Some(beta) = fields.float(SCALE)?.filter(|&beta| beta != 0.0) else { return Ok(()) };
    let Some(Value::Object(rope)) = out.get_mut("rope_scaling") else {
        return Err(fields.unsupported(SCALE, "must stand beside rope.scaling.type yarn"));
    };
    rope.insert("llama_4_scaling_beta".into(), beta.into());
    put(out, [("architectures", json!(["Ministral3ForCausalLM"])), ("model_type", "ministral3".into())]);
    Ok(())
}

pub(crate) fn qwen3(fields: &MetadataFields, _: &ArchShape, out: &mut Config) -> Result<(), GgufError> {
    put(out, [("attention_bias", attention_bias(fields)?.into())]);
    Ok(())
}

pub(crate) fn granite(fields: &MetadataFields, shape: &ArchShape, out: &mut Config) -> Result<(), GgufError> {
    llama(fields, shape, out)?;
    fields.neutral("expert_shared_feed_forward_length", &[0.0])?;
    granite_factors(fields, shape, out)
}

pub(super) fn granite_factors(fields: &MetadataFields, shape: &ArchShape, out: &mut Config) -> Result<(), GgufError> {
    // False turns the rotary embedding off.
    fields.require("rope.scaling.finetuned", true)?;
    // 0 stands for "none" in llama.cpp.
    let factor = |name: &str, none: f64| -> Result<Value, GgufError> {
        Ok(fields.float(name)?.filter(|&value| value != 0.0).unwrap_or(none).into())
    };
    let keys = [
        ("attention_multiplier", factor("attention.scale", 1.0 / (shape.head_dim as f64).sqrt())?),
        ("embedding_multiplier", factor("embedding_scale", 1.0)?),
        ("residual_multiplier", factor("residual_scale", 1.0)?),
        ("logits_scaling", factor("logit_scale", 1.0)?),
    ];
    put(out, keys);
    Ok(())
}

pub(crate) fn gemma3(fields: &MetadataFields, shape: &ArchShape, out: &mut Config) -> Result<(), GgufError> {
    out.remove("hidden_act");
    fields.neutral("final_logit_softcapping", &[0.0])?;
    let (hidden, heads) = (fields.required("embedding_length")?, fields.required("attention.head_count")?);
    let scalar = if shape.all_layers == GEMMA3_27B_LAYERS { hidden / heads } else { shape.head_dim };
    let local = fields.float("rope.freq_base_swa")?.unwrap_or(1e4);
    let pattern = fields.size("attention.sliding_window_pattern")?.unwrap_or(GEMMA3_PATTERN);
    let keys = [
        ("hidden_activation", "gelu_pytorch_tanh".into()),
        ("query_pre_attn_scalar", scalar.into()),
        ("rope_local_base_freq", local.into()),
    ];
    put(out, keys);
    match fields.size(WINDOW)?.filter(|&window| window > 0) {
        Some(window) => put(out, [("sliding_window", window.into()), ("sliding_window_pattern", pattern.into())]),
        // No layer has one.
        None => put(out, [("sliding_window_pattern", 1.into())]),
    }
    Ok(())
}

pub(crate) fn ernie4_5(_: &MetadataFields, _: &ArchShape, out: &mut Config) -> Result<(), GgufError> {
    put(out, [("use_bias", false.into())]);
    Ok(())
}

/// OLMo 3 is OLMo 2 with windows.
pub(crate) fn olmo2(fields: &MetadataFields, shape: &ArchShape, out: &mut Config) -> Result<(), GgufError> {
    put(out, [("attention_bias", attention_bias(fields)?.into())]);
    let Some(window) = fields.size(WINDOW)?.filter(|&window| window > 0) else { return Ok(()) };
    const PATTERN: &str = "attention.sliding_window_pattern";
    let slides = match fields.bools(PATTERN)? {
        Some(slides) if (slides.len() as u64) < shape.layers => {
            return Err(fields.invalid(PATTERN, format!("must have {} values, got {}", shape.layers, slides.len())));
        }
        Some(slides) => slides,
        None => (1..=shape.layers).map(|layer| !layer.is_multiple_of(OLMO3_PATTERN)).collect(),
    };
    let theta = fields.float("rope.freq_base")?;
    if let Some(local) = fields.float("rope.freq_base_swa")?
        && Some(local) != theta
    {
        return Err(fields.unsupported("rope.freq_base_swa", format!("must be rope.freq_base, got {local}")));
    }
    let kind = |&slides: &bool| if slides { "sliding_attention" } else { "full_attention" };
    let types: Vec<&str> = slides.iter().map(kind).take(shape.layers as usize).collect();
    let keys = [
        ("architectures", json!(["Olmo3ForCausalLM"])),
        ("model_type", "olmo3".into()),
        ("sliding_window", window.into()),
        ("layer_types", json!(types)),
    ];
    put(out, keys);
    Ok(())
}

pub(crate) fn seed_oss(fields: &MetadataFields, _: &ArchShape, out: &mut Config) -> Result<(), GgufError> {
    let bias = |module: &str| -> Value { has(fields, &format!("blk.0.{module}.bias")).into() };
    let keys = [
        ("attention_bias", bias("attn_q")),
        ("attention_out_bias", bias("attn_output")),
        ("mlp_bias", bias("ffn_gate")),
    ];
    put(out, keys);
    Ok(())
}

/// The window is the model's; llama.cpp leaves it out.
pub(crate) fn phi3(fields: &MetadataFields, _: &ArchShape, out: &mut Config) -> Result<(), GgufError> {
    let window = fields.size(WINDOW)?.filter(|&window| window > 0);
    put(out, [("sliding_window", window.into())]);
    if let Some(trained) = fields.size("rope.scaling.original_context_length")? {
        put(out, [("original_max_position_embeddings", trained.into())]);
    }
    Ok(())
}

/// Its config has GPT-2's names. llama.cpp computes GELU with tanh.
pub(crate) fn gpt_bigcode(fields: &MetadataFields, _: &ArchShape, out: &mut Config) -> Result<(), GgufError> {
    const EPS: &str = "attention.layer_norm_epsilon";
    let eps = fields.float(EPS)?.ok_or_else(|| fields.invalid(EPS, "is required"))?;
    let mut take = |name: &str| out.remove(name).unwrap_or_default();
    let heads = take("num_attention_heads");
    let kv_heads = take("num_key_value_heads");
    if kv_heads != 1 {
        return Err(fields.unsupported("attention.head_count_kv", format!("must be 1, got {kv_heads}")));
    }
    let keys = [
        ("n_embd", take("hidden_size")),
        ("n_layer", take("num_hidden_layers")),
        ("n_head", heads),
        ("n_positions", take("max_position_embeddings")),
        ("n_inner", take("intermediate_size")),
        ("layer_norm_epsilon", eps.into()),
        ("activation_function", "gelu_pytorch_tanh".into()),
        ("multi_query", true.into()),
        ("scale_attn_weights", true.into()),
    ];
    for unknown in ["hidden_act", "rms_norm_eps", "rope_theta", "head_dim"] {
        out.remove(unknown);
    }
    put(out, keys);
    Ok(())
}
