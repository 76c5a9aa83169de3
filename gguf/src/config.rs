//! Writes config.json for the architectures that Rein serves. It does not know the tokenizer's files.
//!
//! Keys of the metadata: `LLM_KV_NAMES` of llama.cpp's src/llama-arch.cpp; their meaning: `load_arch_hparams` of
//! src/models/*.cpp and the `set_gguf_parameters` of conversion/*.py.

use serde_json::{Map, Value, json};

use crate::GgufError;
use crate::container::Gguf;
use crate::fields::{MetadataFields, string};
use crate::rope::rope_scaling;

/// `general.architecture` of the files that can be read.
pub const GGUF_ARCHITECTURES: [&str; 8] =
    ["llama", "qwen2", "qwen3", "qwen3moe", "deepseek2", "granite", "gemma3", "gpt-oss"];

/// Keys that do not change the results of a forward pass, or repeat what the tensors say.
const HARMLESS: &[&str] = &[
    "vocab_size",
    "pooling_type",
    "tensor_data_layout",
    "embedding_length_out",
    // How a past version of llama.cpp chose its context; whether the scaled length was trained.
    "rope.scaling.finetuned",
];

const SIGMOID: u64 = 2;
const SOFTMAX: u64 = 1;

/// The architecture of a file, as far as the names of its tensors depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Arch {
    Llama,
    Mixtral,
    Qwen2,
    Qwen3,
    Qwen3Moe,
    Deepseek,
    Granite,
    Gemma3,
    GptOss,
}

/// What `hf_tensors` needs.
pub(crate) struct ArchShape {
    pub arch: Arch,
    /// Without the layers of multi-token prediction.
    pub layers: u64,
    /// With them.
    pub all_layers: u64,
    pub head_dim: u64,
    /// 0 if the model is dense.
    pub experts: u64,
}

impl ArchShape {
    pub fn read(fields: &MetadataFields) -> Result<Self, GgufError> {
        let experts = fields.size("expert_count")?.unwrap_or(0);
        let arch = match fields.arch {
            "llama" if experts > 0 => Arch::Mixtral,
            "llama" => Arch::Llama,
            "qwen2" => Arch::Qwen2,
            "qwen3" => Arch::Qwen3,
            "qwen3moe" => Arch::Qwen3Moe,
            "deepseek2" => Arch::Deepseek,
            "granite" => Arch::Granite,
            "gemma3" => Arch::Gemma3,
            "gpt-oss" => Arch::GptOss,
            other => {
                let what = format!("must be one of {}, got {other}", GGUF_ARCHITECTURES.join(", "));
                return Err(GgufError::unsupported("general.architecture", what));
            }
        };
        match (arch, experts) {
            (Arch::Qwen3Moe | Arch::Deepseek | Arch::GptOss, 0) => {
                return Err(fields.invalid("expert_count", "must be at least 1"));
            }
            (Arch::Qwen2 | Arch::Qwen3 | Arch::Granite | Arch::Gemma3, 1..) => {
                return Err(fields.unsupported("expert_count", "must be 0 or missing for this architecture"));
            }
            _ => {}
        }
        let all_layers = fields.required("block_count")?;
        let extra = fields.size("nextn_predict_layers")?.unwrap_or(0);
        if extra >= all_layers {
            return Err(fields.invalid("nextn_predict_layers", format!("must be below block_count, got {extra}")));
        }
        let heads = fields.required("attention.head_count")?;
        let hidden = fields.required("embedding_length")?;
        let head_dim = match arch {
            Arch::Deepseek => 0,
            _ => head_dim(fields, hidden, heads)?,
        };
        Ok(Self { arch, layers: all_layers - extra, all_layers, head_dim, experts })
    }
}

fn head_dim(fields: &MetadataFields, hidden: u64, heads: u64) -> Result<u64, GgufError> {
    let dim = match fields.size("attention.key_length")? {
        Some(dim) => dim,
        None if hidden.is_multiple_of(heads) => hidden / heads,
        None => {
            let what = format!("must divide embedding_length, {hidden}, got {heads}");
            return Err(fields.invalid("attention.head_count", what));
        }
    };
    if dim == 0 || !dim.is_multiple_of(2) {
        return Err(fields.invalid("attention.key_length", format!("must be even and at least 2, got {dim}")));
    }
    for same in ["attention.value_length", "rope.dimension_count"] {
        if let Some(other) = fields.size(same)?
            && other != dim
        {
            return Err(fields.unsupported(same, format!("must be the size of a head, {dim}, got {other}")));
        }
    }
    Ok(dim)
}

/// config.json. `rope_factors`: the values of `rope_freqs.weight`, if the file has it.
pub(crate) fn config(
    gguf: &Gguf,
    vocab_size: u64,
    rope_factors: Option<&[f32]>,
) -> Result<Map<String, Value>, GgufError> {
    let fields = MetadataFields::new(gguf)?;
    let shape = ArchShape::read(&fields)?;
    let mut out = common(&fields, &shape, vocab_size)?;
    let mut harmless = HARMLESS.to_vec();
    match shape.arch {
        Arch::Llama => llama(&fields, &shape, &mut out)?,
        Arch::Mixtral => mixtral(&fields, &shape, &mut out)?,
        Arch::Qwen2 => named(&mut out, "Qwen2ForCausalLM", "qwen2"),
        Arch::Qwen3 => {
            named(&mut out, "Qwen3ForCausalLM", "qwen3");
            out.insert("attention_bias".into(), attention_bias(&fields)?.into());
        }
        Arch::Qwen3Moe => qwen3_moe(&fields, &shape, &mut out)?,
        Arch::Deepseek => deepseek(&fields, &shape, &mut out)?,
        Arch::Gemma3 => gemma3(&fields, &shape, &mut out)?,
        Arch::GptOss => gpt_oss(&fields, &shape, &mut out)?,
        Arch::Granite => {
            granite(&fields, &shape, &mut out)?;
            // In granite, false turns the rotary embedding off.
            harmless.retain(|&name| name != "rope.scaling.finetuned");
            fields.require("rope.scaling.finetuned", true)?;
        }
    }
    let rotated = match shape.arch {
        Arch::Deepseek => fields.required("rope.dimension_count")?,
        _ => shape.head_dim,
    };
    let usual_theta = if shape.arch == Arch::Gemma3 { 1e6 } else { 1e4 };
    let theta = fields.float("rope.freq_base")?.unwrap_or(usual_theta);
    out.insert("rope_theta".into(), theta.into());
    if let Some(mut scaling) = rope_scaling(&fields, theta, rotated, rope_factors)? {
        if shape.arch == Arch::GptOss && scaling["rope_type"] == "yarn" {
            // As the published model has it; llama.cpp rounds the band of YaRN to whole pairs.
            scaling["truncate"] = false.into();
        }
        out.insert("rope_scaling".into(), scaling);
    }
    if !matches!(shape.arch, Arch::Gemma3 | Arch::GptOss) {
        window(&fields)?;
    }
    fields.require("attention.causal", true)?;
    fields.require("use_parallel_residual", false)?;
    fields.finish(&harmless)?;
    Ok(out)
}

/// The keys that all architectures have.
fn common(fields: &MetadataFields, shape: &ArchShape, vocab_size: u64) -> Result<Map<String, Value>, GgufError> {
    let hidden = fields.required("embedding_length")?;
    let heads = fields.required("attention.head_count")?;
    let embedding = fields.gguf.tensor("token_embd.weight");
    let Some(embedding) = embedding else {
        return Err(GgufError::invalid("token_embd.weight", "the tensor is required"));
    };
    if embedding.dims != [hidden, vocab_size] {
        let what = format!(
            "must have the dimensions [{hidden}, {vocab_size}] (embedding_length, number of tokens), got {:?}",
            embedding.dims
        );
        return Err(GgufError::invalid("token_embd.weight", what));
    }
    let mut out = Map::new();
    let mut put = |key: &str, value: Value| out.insert(key.into(), value);
    put("vocab_size", vocab_size.into());
    put("hidden_size", hidden.into());
    put("num_hidden_layers", shape.layers.into());
    put("num_attention_heads", heads.into());
    put("hidden_act", "silu".into());
    let eps = fields.float("attention.layer_norm_rms_epsilon")?;
    put("rms_norm_eps", eps.ok_or_else(|| fields.invalid("attention.layer_norm_rms_epsilon", "is required"))?.into());
    put("max_position_embeddings", fields.required("context_length")?.into());
    put("tie_word_embeddings", fields.gguf.tensor("output.weight").is_none().into());
    let dense = fields.size("feed_forward_length")?;
    if let Some(size) = dense {
        put("intermediate_size", size.into());
    }
    if shape.arch == Arch::Deepseek {
        put("num_key_value_heads", heads.into());
        return Ok(out);
    }
    if dense.is_none() && !matches!(shape.arch, Arch::Qwen3Moe | Arch::GptOss) {
        return Err(fields.invalid("feed_forward_length", "is required"));
    }
    let kv_heads = fields.size("attention.head_count_kv")?.unwrap_or(heads);
    if kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
        let what = format!("must divide attention.head_count, {heads}, got {kv_heads}");
        return Err(fields.invalid("attention.head_count_kv", what));
    }
    put("num_key_value_heads", kv_heads.into());
    // Qwen 2 and Granite have no such key in transformers.
    if !matches!(shape.arch, Arch::Qwen2 | Arch::Granite) || shape.head_dim * heads != hidden {
        put("head_dim", shape.head_dim.into());
    }
    if shape.arch != Arch::Granite {
        let usual = 1.0 / (shape.head_dim as f64).sqrt();
        let scale = fields.float("attention.scale")?.unwrap_or(0.0);
        if scale != 0.0 && (scale - usual).abs() > 1e-6 * usual {
            let what = format!("must be 1 / sqrt(head size), {usual}, for this architecture, got {scale}");
            return Err(fields.unsupported("attention.scale", what));
        }
    }
    if shape.experts == 0 {
        fields.size("expert_used_count")?;
    }
    Ok(out)
}

fn named(out: &mut Map<String, Value>, architecture: &str, model_type: &str) {
    out.insert("architectures".into(), json!([architecture]));
    out.insert("model_type".into(), model_type.into());
}

/// Whether the attention has biases, on all four projections or on none.
fn attention_bias(fields: &MetadataFields) -> Result<bool, GgufError> {
    let has = |name: &str| fields.gguf.tensor(&format!("blk.0.{name}.bias")).is_some();
    let (q, output) = (has("attn_q"), has("attn_output"));
    if q != output {
        let what = "this architecture must have biases on the projections of q, k, v and the output, or on none";
        return Err(GgufError::unsupported("blk.0.attn_q.bias and blk.0.attn_output.bias", what));
    }
    Ok(q)
}

fn llama(fields: &MetadataFields, _: &ArchShape, out: &mut Map<String, Value>) -> Result<(), GgufError> {
    named(out, "LlamaForCausalLM", "llama");
    biases(fields, out)
}

fn biases(fields: &MetadataFields, out: &mut Map<String, Value>) -> Result<(), GgufError> {
    out.insert("attention_bias".into(), attention_bias(fields)?.into());
    out.insert("mlp_bias".into(), fields.gguf.tensor("blk.0.ffn_gate.bias").is_some().into());
    Ok(())
}

fn mixtral(fields: &MetadataFields, shape: &ArchShape, out: &mut Map<String, Value>) -> Result<(), GgufError> {
    named(out, "MixtralForCausalLM", "mixtral");
    softmax_routing(fields)?;
    fields.require("expert_weights_norm", true)?;
    if let Some(size) = fields.size("expert_feed_forward_length")? {
        out.insert("intermediate_size".into(), size.into());
    }
    out.insert("num_local_experts".into(), shape.experts.into());
    out.insert("num_experts_per_tok".into(), fields.required("expert_used_count")?.into());
    out.insert("sliding_window".into(), Value::Null);
    Ok(())
}

fn qwen3_moe(fields: &MetadataFields, shape: &ArchShape, out: &mut Map<String, Value>) -> Result<(), GgufError> {
    named(out, "Qwen3MoeForCausalLM", "qwen3_moe");
    softmax_routing(fields)?;
    out.insert("attention_bias".into(), attention_bias(fields)?.into());
    out.insert("num_experts".into(), shape.experts.into());
    out.insert("num_experts_per_tok".into(), fields.required("expert_used_count")?.into());
    out.insert("moe_intermediate_size".into(), fields.required("expert_feed_forward_length")?.into());
    // llama.cpp normalizes the weights of this architecture and writes no key for it.
    out.insert("norm_topk_prob".into(), fields.bool("expert_weights_norm")?.unwrap_or(true).into());
    out.insert("decoder_sparse_step".into(), 1.into());
    out.insert("mlp_only_layers".into(), json!([]));
    Ok(())
}

fn softmax_routing(fields: &MetadataFields) -> Result<(), GgufError> {
    if let Some(kind) = fields.size("expert_gating_func")?
        && kind != SOFTMAX
    {
        return Err(fields.unsupported("expert_gating_func", format!("must be 1 (softmax), got {kind}")));
    }
    fields.neutral("expert_weights_scale", &[0.0, 1.0])?;
    for groups in ["expert_group_count", "expert_group_used_count", "expert_shared_count"] {
        fields.neutral(groups, if groups == "expert_shared_count" { &[0.0] } else { &[0.0, 1.0] })?;
    }
    fields.neutral("expert_shared_feed_forward_length", &[0.0])
}

fn granite(fields: &MetadataFields, shape: &ArchShape, out: &mut Map<String, Value>) -> Result<(), GgufError> {
    named(out, "GraniteForCausalLM", "granite");
    biases(fields, out)?;
    fields.neutral("expert_shared_feed_forward_length", &[0.0])?;
    let factor = |name: &str| Ok::<_, GgufError>(fields.float(name)?.filter(|&value| value != 0.0));
    // 0 stands for "none" in llama.cpp.
    let scale = factor("attention.scale")?.unwrap_or(1.0 / (shape.head_dim as f64).sqrt());
    out.insert("attention_multiplier".into(), scale.into());
    out.insert("embedding_multiplier".into(), factor("embedding_scale")?.unwrap_or(1.0).into());
    out.insert("residual_multiplier".into(), factor("residual_scale")?.unwrap_or(1.0).into());
    out.insert("logits_scaling".into(), factor("logit_scale")?.unwrap_or(1.0).into());
    Ok(())
}

fn deepseek(fields: &MetadataFields, shape: &ArchShape, out: &mut Map<String, Value>) -> Result<(), GgufError> {
    let kimi = string(fields.gguf, "tokenizer.ggml.pre")? == Some("kimi-k2");
    named(out, "DeepseekV3ForCausalLM", if kimi { "kimi_k2" } else { "deepseek_v3" });
    match fields.size("expert_gating_func")? {
        Some(SIGMOID) => {}
        other => {
            let got = other.map_or("no value, as in DeepSeek-V2".into(), |kind| kind.to_string());
            let what = format!("must be 2 (sigmoid, as in DeepSeek-V3 and Kimi K2), got {got}");
            return Err(fields.unsupported("expert_gating_func", what));
        }
    }
    let first_dense = fields.size("leading_dense_block_count")?.unwrap_or(0);
    let bias = format!("blk.{first_dense}.exp_probs_b.bias");
    if first_dense < shape.layers && fields.gguf.tensor(&bias).is_none() {
        return Err(GgufError::unsupported(bias, "the tensor is required: the choice of experts must have a bias"));
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
    if key <= rotated {
        let what = format!("must be above rope.dimension_count, {rotated}, got {key}");
        return Err(fields.invalid("attention.key_length_mla", what));
    }
    fields.size("attention.head_count_kv")?;
    fields.neutral("attention.scale", &[0.0])?;
    fields.neutral("attention.temperature_scale", &[0.0])?;
    let mut put = |name: &str, value: Value| out.insert(name.into(), value);
    put("q_lora_rank", fields.size("attention.q_lora_rank")?.filter(|&rank| rank > 0).into());
    put("kv_lora_rank", rank.into());
    put("qk_nope_head_dim", (key - rotated).into());
    put("qk_rope_head_dim", rotated.into());
    put("v_head_dim", value.into());
    // The rotated dimensions of this architecture are neighbours in the file, as in the original checkpoints.
    put("rope_interleave", true.into());
    put("attention_bias", false.into());
    put("n_routed_experts", shape.experts.into());
    put("n_shared_experts", fields.size("expert_shared_count")?.unwrap_or(0).into());
    put("num_experts_per_tok", fields.required("expert_used_count")?.into());
    put("moe_intermediate_size", fields.required("expert_feed_forward_length")?.into());
    put("first_k_dense_replace", first_dense.into());
    put("moe_layer_freq", 1.into());
    // Missing keys and 0 mean no groups in llama.cpp.
    put("n_group", fields.size("expert_group_count")?.unwrap_or(1).max(1).into());
    put("topk_group", fields.size("expert_group_used_count")?.unwrap_or(1).max(1).into());
    put("norm_topk_prob", fields.bool("expert_weights_norm")?.unwrap_or(false).into());
    let scale = fields.float("expert_weights_scale")?.filter(|&scale| scale != 0.0);
    put("routed_scaling_factor", scale.unwrap_or(1.0).into());
    put("scoring_func", "sigmoid".into());
    put("topk_method", "noaux_tc".into());
    if first_dense > 0 && fields.size("feed_forward_length")?.is_none() {
        return Err(fields.invalid("feed_forward_length", "is required"));
    }
    Ok(())
}

/// Layers of Gemma 3 27B, whose queries are scaled by other than the size of a head.
const GEMMA3_27B_LAYERS: u64 = 62;

fn gemma3(fields: &MetadataFields, shape: &ArchShape, out: &mut Map<String, Value>) -> Result<(), GgufError> {
    named(out, "Gemma3ForCausalLM", "gemma3_text");
    out.remove("hidden_act");
    fields.neutral("final_logit_softcapping", &[0.0])?;
    let (hidden, heads) = (fields.required("embedding_length")?, fields.required("attention.head_count")?);
    let scalar = if shape.all_layers == GEMMA3_27B_LAYERS { hidden / heads } else { shape.head_dim };
    let mut put = |name: &str, value: Value| out.insert(name.into(), value);
    put("hidden_activation", "gelu_pytorch_tanh".into());
    put("query_pre_attn_scalar", scalar.into());
    put("rope_local_base_freq", fields.float("rope.freq_base_swa")?.unwrap_or(1e4).into());
    let pattern = fields.size("attention.sliding_window_pattern")?.unwrap_or(6);
    match fields.size("attention.sliding_window")?.filter(|&window| window > 0) {
        Some(window) => {
            put("sliding_window", window.into());
            put("sliding_window_pattern", pattern.into());
        }
        // No layer has one.
        None => {
            put("sliding_window_pattern", 1.into());
        }
    }
    Ok(())
}

/// Every second layer has a window, and the gates of experts are clamped, by numbers that files do not have.
fn gpt_oss(fields: &MetadataFields, shape: &ArchShape, out: &mut Map<String, Value>) -> Result<(), GgufError> {
    named(out, "GptOssForCausalLM", "gpt_oss");
    fields.neutral("expert_weights_scale", &[0.0, 1.0])?;
    let mut put = |name: &str, value: Value| out.insert(name.into(), value);
    put("attention_bias", true.into());
    put("gate_up_apart", true.into());
    put("intermediate_size", fields.required("expert_feed_forward_length")?.into());
    put("num_local_experts", shape.experts.into());
    put("num_experts_per_tok", fields.required("expert_used_count")?.into());
    put("sliding_window", fields.required("attention.sliding_window")?.into());
    Ok(())
}

/// llama.cpp ignores a window in these architectures; one that no sequence exceeds has no effect.
fn window(fields: &MetadataFields) -> Result<(), GgufError> {
    let context = fields.required("context_length")?;
    match fields.size("attention.sliding_window")? {
        Some(window) if window > 0 && window < context => {
            let what = format!("must be 0 or at least context_length, {context}, got {window}");
            Err(fields.unsupported("attention.sliding_window", what))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
