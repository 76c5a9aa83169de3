//! The Hugging Face names of the tensors of a file. It does not read their values.
//!
//! Names: gguf-py/gguf/tensor_mapping.py and conversion/*.py of llama.cpp.

use std::collections::{BTreeMap, HashSet};

use crate::GgufError;
use crate::config::{Arch, ArchShape};
use crate::container::{Gguf, TensorInfo};
use crate::fields::MetadataFields;
use crate::rope::ROPE_FACTORS_TENSOR;

/// Tensors of a model after merged experts have been taken apart.
const MAX_NAMES: usize = 1 << 20;

/// One tensor, or one expert of a merged tensor, under the name that Rein's architectures expect.
///
/// DeepSeek's `kv_b_proj.weight` has the rows of head `h` at `h * (nope + v)`: first `nope` rows that make keys, then
/// `v` rows that make values, each of `kv_lora_rank` columns. Newer files store it as two tensors, which keep names of
/// their own:
/// - `self_attn.kv_b_proj.k_b` has the dimensions `[nope, kv_lora_rank, heads]`, innermost first: each head's key
///   rows transposed. Element `[n, r, h]` is row `h * (nope + v) + n`, column `r` of `kv_b_proj.weight`.
/// - `self_attn.kv_b_proj.v_b` has the dimensions `[kv_lora_rank, v, heads]`: element `[r, i, h]` is row
///   `h * (nope + v) + nope + i`, column `r`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedTensor {
    pub name: String,
    /// Index in `Gguf::tensors`.
    pub tensor: usize,
    /// Expert `e` of `n`: the `e`-th of `n` equal parts of the tensor along its outermost (last) dimension.
    pub part: Option<(usize, usize)>,
    pub rows: RowOrder,
    /// What is stored is one more than the Hugging Face tensor: a norm's factors around one.
    pub plus_one: bool,
}

/// How the rows (the outermost dimension) of a tensor in the file are ordered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowOrder {
    /// As in the Hugging Face tensor.
    Stored,
    /// Llama's converter stores the two rows that are rotated together as neighbours. Row `h * head_dim + 2 * i + j` of
    /// the file is row `h * head_dim + j * head_dim / 2 + i` of the Hugging Face tensor, for each head `h`, pair `i`
    /// and `j` of 0 and 1. The same holds for the elements of a bias.
    RotaryPairs { head_dim: usize },
}

/// All tensors that Rein loads. The layers of multi-token prediction and Llama 3.1's rotary factors are left out.
pub fn hf_tensors(gguf: &Gguf) -> Result<Vec<NamedTensor>, GgufError> {
    let shape = ArchShape::read(&MetadataFields::new(gguf)?)?;
    let predicting = prediction_layers(gguf);
    let mut named = Vec::with_capacity(gguf.tensors.len());
    for (tensor, info) in gguf.tensors.iter().enumerate() {
        match place(info, &shape, &predicting)? {
            Place::LeftOut => {}
            Place::One { name, rows } => {
                let plus_one = shape.arch == Arch::Gemma3 && name.ends_with("norm.weight");
                named.push(NamedTensor { name, tensor, part: None, rows, plus_one });
            }
            Place::Experts { before, after } => {
                let experts = outermost(info, shape.experts)?;
                if named.len() + experts > MAX_NAMES {
                    return Err(GgufError::invalid(&info.name, format!("a model may have {MAX_NAMES} tensors")));
                }
                named.extend((0..experts).map(|e| NamedTensor {
                    name: format!("{before}{e}{after}"),
                    tensor,
                    part: Some((e, experts)),
                    rows: RowOrder::Stored,
                    plus_one: false,
                }));
            }
        }
    }
    let mut seen = BTreeMap::new();
    for one in &named {
        if let Some(other) = seen.insert(one.name.as_str(), one.tensor) {
            let names = [other, one.tensor].map(|i| gguf.tensors.get(i).map_or("", |info| info.name.as_str()));
            return Err(GgufError::invalid(names.join(" and "), format!("both are {}; give one of them", one.name)));
        }
    }
    Ok(named)
}

enum Place {
    LeftOut,
    One { name: String, rows: RowOrder },
    Experts { before: String, after: String },
}

fn unknown(info: &TensorInfo) -> GgufError {
    GgufError::unsupported(&info.name, "the tensor is unknown in this architecture")
}

fn place(info: &TensorInfo, shape: &ArchShape, predicting: &HashSet<&str>) -> Result<Place, GgufError> {
    let stored = |name: &str| Ok(Place::One { name: name.into(), rows: RowOrder::Stored });
    match info.name.as_str() {
        "token_embd.weight" => return stored("model.embed_tokens.weight"),
        "output_norm.weight" => return stored("model.norm.weight"),
        "output.weight" => return stored("lm_head.weight"),
        ROPE_FACTORS_TENSOR => return Ok(Place::LeftOut),
        _ => {}
    }
    let block = info.name.strip_prefix("blk.").and_then(|rest| rest.split_once('.'));
    // Not `parse` alone, which accepts "+1" and "01".
    let parsed = block.and_then(|(layer, rest)| Some((layer.parse::<u64>().ok()?, layer, rest)));
    let Some((layer, digits, rest)) = parsed.filter(|(number, text, _)| number.to_string() == *text) else {
        return Err(unknown(info));
    };
    if rest.starts_with("nextn.") {
        return Ok(Place::LeftOut);
    }
    if layer >= shape.layers {
        let predicts = layer < shape.all_layers || predicting.contains(digits);
        let what = format!("the layer must be below block_count, {}", shape.all_layers);
        return if predicts { Ok(Place::LeftOut) } else { Err(GgufError::invalid(&info.name, what)) };
    }
    in_layer(info, rest, &format!("model.layers.{layer}."), shape)
}

/// The layers with tensors of multi-token prediction, as in the names.
fn prediction_layers(gguf: &Gguf) -> HashSet<&str> {
    let blocks = gguf.tensors.iter().filter_map(|tensor| tensor.name.strip_prefix("blk.")?.split_once('.'));
    blocks.filter(|(_, rest)| rest.starts_with("nextn.")).map(|(layer, _)| layer).collect()
}

fn in_layer(info: &TensorInfo, rest: &str, at: &str, shape: &ArchShape) -> Result<Place, GgufError> {
    let Some((base, suffix)) = rest.rsplit_once('.').filter(|(_, suffix)| matches!(*suffix, "weight" | "bias")) else {
        return Err(unknown(info));
    };
    let weight = suffix == "weight";
    let one = |name: &str| Ok(Place::One { name: format!("{at}{name}.{suffix}"), rows: RowOrder::Stored });
    let mixtral = shape.arch == Arch::Mixtral;
    let mla = shape.arch == Arch::Deepseek;
    let gemma = shape.arch == Arch::Gemma3;
    if shape.arch == Arch::GptOss
        && let Some(place) = of_gpt_oss(base, suffix, at)
    {
        return Ok(place);
    }
    let moe = if mixtral { "block_sparse_moe" } else { "mlp" };
    match base {
        "attn_norm" if weight => return one("input_layernorm"),
        "post_attention_norm" if weight && gemma => return one("post_attention_layernorm"),
        "ffn_norm" if weight && gemma => return one("pre_feedforward_layernorm"),
        "post_ffw_norm" if weight && gemma => return one("post_feedforward_layernorm"),
        "ffn_norm" if weight => return one("post_attention_layernorm"),
        "attn_output" => return one("self_attn.o_proj"),
        "attn_q" | "attn_k" if !mla || base == "attn_q" => {
            let rows = match shape.arch {
                Arch::Llama | Arch::Mixtral | Arch::Granite => rotary_pairs(info, shape)?,
                _ => RowOrder::Stored,
            };
            let name = if base == "attn_q" { "q_proj" } else { "k_proj" };
            return Ok(Place::One { name: format!("{at}self_attn.{name}.{suffix}"), rows });
        }
        "attn_v" if !mla => return one("self_attn.v_proj"),
        "attn_q_norm" if weight && matches!(shape.arch, Arch::Qwen3 | Arch::Qwen3Moe | Arch::Gemma3) => {
            return one("self_attn.q_norm");
        }
        "attn_k_norm" if weight && matches!(shape.arch, Arch::Qwen3 | Arch::Qwen3Moe | Arch::Gemma3) => {
            return one("self_attn.k_norm");
        }
        "ffn_gate" if !mixtral => return one("mlp.gate_proj"),
        "ffn_up" if !mixtral => return one("mlp.up_proj"),
        "ffn_down" if !mixtral => return one("mlp.down_proj"),
        "ffn_gate_inp" if weight && shape.experts > 0 => return one(&format!("{moe}.gate")),
        _ => {}
    }
    if mla && let Some(name) = latent(base, suffix) {
        return Ok(Place::One { name: format!("{at}{name}"), rows: RowOrder::Stored });
    }
    if weight && shape.experts > 0 {
        let projection = |name: &str| match (name, mixtral) {
            ("ffn_gate", false) => Some("gate_proj"),
            ("ffn_up", false) => Some("up_proj"),
            ("ffn_down", false) => Some("down_proj"),
            ("ffn_gate", true) => Some("w1"),
            ("ffn_up", true) => Some("w3"),
            ("ffn_down", true) => Some("w2"),
            _ => None,
        };
        if let Some(name) = base.strip_suffix("_exps").and_then(projection) {
            return Ok(Place::Experts { before: format!("{at}{moe}.experts."), after: format!(".{name}.weight") });
        }
        // The first Mixtral files had a tensor per expert: blk.0.ffn_gate.7.weight.
        if let Some((name, expert)) = base.split_once('.')
            && let Some(name) = projection(name).filter(|_| mixtral)
            && let Ok(e) = expert.parse::<u64>()
            && e < shape.experts
        {
            let name = format!("{at}{moe}.experts.{e}.{name}.weight");
            return Ok(Place::One { name, rows: RowOrder::Stored });
        }
    }
    Err(unknown(info))
}

/// Where gpt-oss differs: the norm before the MLP, sinks, and biases of router and experts.
fn of_gpt_oss(base: &str, suffix: &str, at: &str) -> Option<Place> {
    let name = match (base, suffix) {
        ("post_attention_norm", "weight") => "post_attention_layernorm.weight".to_owned(),
        ("attn_sinks", "weight") => "self_attn.sinks".to_owned(),
        ("ffn_gate_inp", _) => format!("mlp.router.{suffix}"),
        ("ffn_gate_exps", "bias") => "mlp.experts.gate_proj_bias".to_owned(),
        ("ffn_up_exps", "bias") => "mlp.experts.up_proj_bias".to_owned(),
        ("ffn_down_exps", "bias") => "mlp.experts.down_proj_bias".to_owned(),
        _ => return None,
    };
    Some(Place::One { name: format!("{at}{name}"), rows: RowOrder::Stored })
}

/// Names of DeepSeek's latent attention, choice bias and shared experts.
fn latent(base: &str, suffix: &str) -> Option<&'static str> {
    Some(match (base, suffix) {
        ("attn_q_a", "weight") => "self_attn.q_a_proj.weight",
        ("attn_q_a_norm", "weight") => "self_attn.q_a_layernorm.weight",
        ("attn_q_b", "weight") => "self_attn.q_b_proj.weight",
        ("attn_kv_a_mqa", "weight") => "self_attn.kv_a_proj_with_mqa.weight",
        ("attn_kv_a_norm", "weight") => "self_attn.kv_a_layernorm.weight",
        ("attn_kv_b", "weight") => "self_attn.kv_b_proj.weight",
        ("attn_k_b", "weight") => "self_attn.kv_b_proj.k_b",
        ("attn_v_b", "weight") => "self_attn.kv_b_proj.v_b",
        ("exp_probs_b", "bias") => "mlp.gate.e_score_correction_bias",
        ("ffn_gate_shexp", "weight") => "mlp.shared_experts.gate_proj.weight",
        ("ffn_up_shexp", "weight") => "mlp.shared_experts.up_proj.weight",
        ("ffn_down_shexp", "weight") => "mlp.shared_experts.down_proj.weight",
        _ => return None,
    })
}

fn rotary_pairs(info: &TensorInfo, shape: &ArchShape) -> Result<RowOrder, GgufError> {
    let rows = info.dims.last().copied().unwrap_or(0);
    match usize::try_from(shape.head_dim) {
        Ok(head_dim) if head_dim > 0 && rows.is_multiple_of(shape.head_dim) => Ok(RowOrder::RotaryPairs { head_dim }),
        _ => {
            let what = format!("must have a multiple of {} rows (the size of a head), got {rows}", shape.head_dim);
            Err(GgufError::invalid(&info.name, what))
        }
    }
}

fn outermost(info: &TensorInfo, experts: u64) -> Result<usize, GgufError> {
    match (info.dims.as_slice(), usize::try_from(experts)) {
        (&[_, _, last], Ok(count)) if last == experts => Ok(count),
        _ => {
            let what = format!("must have 3 dimensions, the last of expert_count, {experts}, got {:?}", info.dims);
            Err(GgufError::invalid(&info.name, what))
        }
    }
}

#[cfg(test)]
mod tests;
