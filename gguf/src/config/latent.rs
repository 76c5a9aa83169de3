//! Models with latent attention.

use super::experts::{choice_bias_of_any, deepseek_experts};
use super::{ArchShape, Config, put};
use crate::GgufError;
use crate::fields::{MetadataFields, string};

/// Of MiniCPM3-4B, the only model of its architecture: llama.cpp has these numbers in its code.
const MINICPM3: [(&str, f64); 3] = [("scale_emb", 12.0), ("scale_depth", 1.4), ("dim_model_base", 256.0)];

pub(crate) fn minicpm3(fields: &MetadataFields, _: &ArchShape, out: &mut Config) -> Result<(), GgufError> {
    let rotated = fields.required("rope.dimension_count")?;
    let (hidden, heads) = (fields.required("embedding_length")?, fields.required("attention.head_count")?);
    let value = fields.size("attention.value_length")?.unwrap_or(hidden / heads);
    let keys = [
        ("q_lora_rank", fields.required("attention.q_lora_rank")?.into()),
        ("kv_lora_rank", fields.required("attention.kv_lora_rank")?.into()),
        ("qk_nope_head_dim", unrotated(fields, fields.required("attention.key_length")?, rotated)?.into()),
        ("qk_rope_head_dim", rotated.into()),
        ("v_head_dim", value.into()),
        ("attention_bias", false.into()),
    ];
    put(out, keys);
    put(out, MINICPM3.map(|(name, value)| (name, value.into())));
    Ok(())
}

fn unrotated(fields: &MetadataFields, key: u64, rotated: u64) -> Result<u64, GgufError> {
    match key.checked_sub(rotated) {
        None | Some(0) => {
            let what = format!("must be above rope.dimension_count, {rotated}, got {key}");
            Err(fields.invalid("attention.key_length", what))
        }
        Some(rest) => Ok(rest),
    }
}

pub(crate) fn deepseek(fields: &MetadataFields, shape: &ArchShape, out: &mut Config) -> Result<(), GgufError> {
    let kimi = string(fields.gguf, "tokenizer.ggml.pre")? == Some("kimi-k2");
    if kimi {
        put(out, [("model_type", "kimi_k2".into())]);
    }
    // GLM-4.7-Flash has no value either, but a choice bias.
    if fields.size("expert_gating_func")?.is_none() && !choice_bias_of_any(fields) {
        let what = "must be 2 (sigmoid, as in DeepSeek-V3 and Kimi K2), got no value, as in DeepSeek-V2";
        return Err(fields.unsupported("expert_gating_func", what));
    }
    let rotated = fields.required("rope.dimension_count")?;
    let rank = fields.required("attention.kv_lora_rank")?;
    // Files from before llama.cpp's merged attention have the sizes of a head under the plain keys.
    let mla = |name: &str, plain: &str| -> Result<u64, GgufError> {
        let plain_size = fields.size(plain)?;
        match fields.size(name)? {
            Some(size) => Ok(size),
            None => plain_size.ok_or_else(|| fields.invalid(name, "is required")),
        }
    };
    let key = mla("attention.key_length_mla", "attention.key_length")?;
    let value = mla("attention.value_length_mla", "attention.value_length")?;
    fields.neutral("attention.scale", &[0.0])?;
    fields.neutral("attention.temperature_scale", &[0.0])?;
    let keys = [
        ("q_lora_rank", fields.size("attention.q_lora_rank")?.filter(|&rank| rank > 0).into()),
        ("kv_lora_rank", rank.into()),
        ("qk_nope_head_dim", unrotated(fields, key, rotated)?.into()),
        ("qk_rope_head_dim", rotated.into()),
        ("v_head_dim", value.into()),
        // The rotated dimensions of this architecture are neighbours in the file, as in the original checkpoints.
        ("rope_interleave", true.into()),
        ("attention_bias", false.into()),
        ("moe_layer_freq", 1.into()),
    ];
    put(out, keys);
    deepseek_experts(fields, shape, out)
}
