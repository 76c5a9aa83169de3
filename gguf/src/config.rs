//! Writes config.json for the architectures that Rein serves. It does not know the tokenizer's files.
//!
//! Keys of the metadata: `LLM_KV_NAMES` of llama.cpp's src/llama-arch.cpp; their meaning: `load_arch_hparams` of
//! src/models/*.cpp and the `set_gguf_parameters` of conversion/*.py.

pub(crate) mod dense;
pub(crate) mod experts;
pub(crate) mod latent;
pub(crate) mod recurrent;

use serde_json::{Map, Value, json};

use crate::GgufError;
use crate::container::Gguf;
use crate::families::{Family, HeadKind};
use crate::fields::MetadataFields;
use crate::names::DeltaHeads;
use crate::rope::{RopeFactors, rope_scaling};

/// More than any model has; what is written for each layer must have an end.
pub const MAX_LAYERS: usize = 1 << 12;

/// Keys that do not change the results of a forward pass, or repeat what the tensors say.
const HARMLESS: &[&str] = &[
    "vocab_size",
    "pooling_type",
    "tensor_data_layout",
    "embedding_length_out",
    // How a past version of llama.cpp chose its context; whether the scaled length was trained.
    "rope.scaling.finetuned",
];

/// config.json.
pub(crate) type Config = Map<String, Value>;

/// The architecture of a file, as far as the names of its tensors depend on it.
pub(crate) struct ArchShape {
    pub family: &'static Family,
    /// Without the layers of multi-token prediction.
    pub layers: u64,
    /// With them.
    pub all_layers: u64,
    /// 0 in latent attention.
    pub head_dim: u64,
    /// 0 if the model is dense.
    pub experts: u64,
    /// If they are not in the Hub's order.
    pub heads_in_turn: Option<DeltaHeads>,
}

impl ArchShape {
    pub fn read(fields: &MetadataFields) -> Result<Self, GgufError> {
        let experts = fields.size("expert_count")?.unwrap_or(0);
        let family = Family::of(fields, experts > 0)?;
        let all_layers = fields.required("block_count")?;
        if all_layers > MAX_LAYERS as u64 {
            return Err(fields.invalid("block_count", format!("must be at most {MAX_LAYERS}, got {all_layers}")));
        }
        let extra = fields.size("nextn_predict_layers")?.unwrap_or(0);
        if extra >= all_layers {
            return Err(fields.invalid("nextn_predict_layers", format!("must be below block_count, got {extra}")));
        }
        let heads = fields.required("attention.head_count")?;
        let hidden = fields.required("embedding_length")?;
        let head_dim = match family.heads {
            HeadKind::Latent => 0,
            kind => head_dim(fields, hidden, heads, kind)?,
        };
        let heads_in_turn = family.in_turn.then(|| recurrent::heads(fields)).transpose()?;
        Ok(Self { family, layers: all_layers - extra, all_layers, head_dim, experts, heads_in_turn })
    }

    /// Dimensions of a head that are rotated.
    fn rotated(&self, fields: &MetadataFields) -> Result<u64, GgufError> {
        match self.family.heads {
            HeadKind::Whole => Ok(self.head_dim),
            HeadKind::InPart => Ok(fields.size("rope.dimension_count")?.unwrap_or(self.head_dim)),
            HeadKind::Latent => fields.required("rope.dimension_count"),
        }
    }
}

fn head_dim(fields: &MetadataFields, hidden: u64, heads: u64, kind: HeadKind) -> Result<u64, GgufError> {
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
    let rotated = (kind == HeadKind::Whole).then_some("rope.dimension_count");
    for same in ["attention.value_length"].into_iter().chain(rotated) {
        if let Some(other) = fields.size(same)?
            && other != dim
        {
            return Err(fields.unsupported(same, format!("must be the size of a head, {dim}, got {other}")));
        }
    }
    Ok(dim)
}

/// config.json. `factors`: the values of the file's tensors of them.
pub(crate) fn config(gguf: &Gguf, vocab_size: u64, factors: &RopeFactors) -> Result<Config, GgufError> {
    let fields = MetadataFields::new(gguf)?;
    let shape = ArchShape::read(&fields)?;
    let family = shape.family;
    let mut out = common(&fields, &shape, vocab_size)?;
    let usual_theta = if family.gguf == "gemma3" { 1e6 } else { 1e4 };
    let theta = fields.float("rope.freq_base")?.unwrap_or(usual_theta);
    out.insert("rope_theta".into(), theta.into());
    let rotated = shape.rotated(&fields)?;
    if family.heads == HeadKind::InPart {
        if rotated == 0 || rotated > shape.head_dim || !rotated.is_multiple_of(2) {
            let what = format!("must be even and at most the size of a head, {}, got {rotated}", shape.head_dim);
            return Err(fields.invalid("rope.dimension_count", what));
        }
        out.insert("partial_rotary_factor".into(), (rotated as f64 / shape.head_dim as f64).into());
    }
    if let Some(scaling) = rope_scaling(&fields, theta, rotated, factors)? {
        out.insert("rope_scaling".into(), scaling);
    }
    (family.config)(&fields, &shape, &mut out)?;
    if !fields.is_read(WINDOW) {
        no_window(&fields)?;
    }
    fields.require("attention.causal", true)?;
    fields.require("use_parallel_residual", false)?;
    fields.finish(HARMLESS)?;
    Ok(out)
}

/// The keys that all architectures have.
fn common(fields: &MetadataFields, shape: &ArchShape, vocab_size: u64) -> Result<Config, GgufError> {
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
    put("architectures", json!([shape.family.architecture]));
    put("model_type", shape.family.model_type.into());
    put("vocab_size", vocab_size.into());
    put("hidden_size", hidden.into());
    put("num_hidden_layers", shape.layers.into());
    put("num_attention_heads", heads.into());
    put("hidden_act", "silu".into());
    if let Some(eps) = fields.float("attention.layer_norm_rms_epsilon")? {
        put("rms_norm_eps", eps.into());
    } else if shape.family.gguf != "starcoder" {
        return Err(fields.invalid("attention.layer_norm_rms_epsilon", "is required"));
    }
    put("max_position_embeddings", fields.required("context_length")?.into());
    put("tie_word_embeddings", fields.gguf.tensor("output.weight").is_none().into());
    match fields.size("feed_forward_length")? {
        Some(size) => drop(put("intermediate_size", size.into())),
        None if shape.experts == 0 => return Err(fields.invalid("feed_forward_length", "is required")),
        None => {}
    }
    if shape.experts == 0 {
        fields.size("expert_used_count")?;
    }
    if shape.family.heads == HeadKind::Latent {
        fields.size("attention.head_count_kv")?;
        put("num_key_value_heads", heads.into());
        return Ok(out);
    }
    let kv_heads = fields.size("attention.head_count_kv")?.unwrap_or(heads);
    if kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
        let what = format!("must divide attention.head_count, {heads}, got {kv_heads}");
        return Err(fields.invalid("attention.head_count_kv", what));
    }
    put("num_key_value_heads", kv_heads.into());
    put("head_dim", shape.head_dim.into());
    if !shape.family.gguf.starts_with("granite") {
        let usual = 1.0 / (shape.head_dim as f64).sqrt();
        let scale = fields.float("attention.scale")?.unwrap_or(0.0);
        if scale != 0.0 && (scale - usual).abs() > 1e-6 * usual {
            let what = format!("must be 1 / sqrt(head size), {usual}, for this architecture, got {scale}");
            return Err(fields.unsupported("attention.scale", what));
        }
    }
    Ok(out)
}

fn put(out: &mut Config, keys: impl IntoIterator<Item = (&'static str, Value)>) {
    out.extend(keys.into_iter().map(|(key, value)| (key.to_owned(), value)));
}

fn has(fields: &MetadataFields, tensor: &str) -> bool {
    fields.gguf.tensor(tensor).is_some()
}

/// Whether the attention has biases, on all four projections or on none.
fn attention_bias(fields: &MetadataFields) -> Result<bool, GgufError> {
    let (q, output) = (has(fields, "blk.0.attn_q.bias"), has(fields, "blk.0.attn_output.bias"));
    if q != output {
        let what = "this architecture must have biases on the projections of q, k, v and the output, or on none";
        return Err(GgufError::unsupported("blk.0.attn_q.bias and blk.0.attn_output.bias", what));
    }
    Ok(q)
}

const WINDOW: &str = "attention.sliding_window";

/// llama.cpp ignores a window in these architectures; one that no sequence exceeds has no effect.
fn no_window(fields: &MetadataFields) -> Result<(), GgufError> {
    let context = fields.required("context_length")?;
    match fields.size(WINDOW)? {
        Some(window) if window > 0 && window < context => {
            let what = format!("must be 0 or at least context_length, {context}, got {window}");
            Err(fields.unsupported(WINDOW, what))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
