//! Reads `quantization_config`: the weight format of the checkpoint. It does not dequantize.

use regex::Regex;
use rein_kernels::quant::MXFP4_GROUP;
use rein_kernels::{BY_OUTPUT, ScaleForm, StoredForm};
use serde_json::{Map, Value};

use super::config::ConfigFields;
use super::error::LoadError;
use super::forms::{CodedForm, Fp4Scales};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quantization {
    None,
    /// e4m3 codes with one f32 scale per block of [rows, columns] (DeepSeek-V3, Kimi K2). Activations are not
    /// quantized.
    Fp8 {
        block: [usize; 2],
    },
    /// e4m3 codes with `weight_scale`: one number, one for each output, or one for each block. Activations are not
    /// quantized.
    Fp8Scaled {
        block: Option<[usize; 2]>,
    },
    /// Integers that become numbers while loading.
    Coded(CodedForm),
    /// compressed-tensors pack-quantized: symmetric int4 with one scale per `group` inputs (Kimi K2-Thinking, K2.5).
    Int4 {
        group: usize,
    },
}

impl Quantization {
    /// That of the language model's object in config.json, or else of config.json itself.
    pub fn of(config: &Map<String, Value>, text: &Map<String, Value>) -> Result<Self, LoadError> {
        match Self::read(&ConfigFields::new(text, ""))? {
            Self::None => Self::read(&ConfigFields::new(config, "")),
            found => Ok(found),
        }
    }

    pub fn read(config: &ConfigFields) -> Result<Self, LoadError> {
        let Some(fields) = config.object("quantization_config")? else { return Ok(Self::None) };
        let this = match fields.str("quant_method")? {
            Some("fp8") => read_fp8(&fields)?,
            Some("compressed-tensors") => read_compressed(&fields)?,
            Some("gptq") => read_gptq(&fields)?,
            Some("awq") => read_awq(&fields)?,
            Some("modelopt") => read_modelopt(&fields)?,
            Some("mxfp4") => {
                fields.require("dequantize", false)?;
                // The tensors show it.
                fields.get("modules_to_not_convert");
                Quantization::Coded(CodedForm::Fp4 { group: MXFP4_GROUP, scales: Fp4Scales::E8m0 })
            }
            Some(other) => {
                return Err(unsupported(format!("quantization_config.quant_method {other:?} is not supported")));
            }
            None => return Err(unsupported("quantization_config has no quant_method".into())),
        };
        fields.finish()?;
        Ok(this)
    }
}

/// Inputs that share a scale.
const NVFP4_GROUP: usize = 16;

fn unsupported(what: String) -> LoadError {
    LoadError::Quantization { what }
}

fn read_fp8(fields: &ConfigFields) -> Result<Quantization, LoadError> {
    // The second is MiniMax's.
    one_of(fields, "fmt", &["e4m3", "float8_e4m3fn"])?;
    // Activations are not quantized here, whatever their scales would be.
    one_of(fields, "activation_scheme", &["dynamic", "static"])?;
    fields.require("expert_dtype", "fp8")?;
    for off in ["dequantize", "weight_per_tensor", "act_per_tensor"] {
        fields.require(off, false)?;
    }
    // Rounding of activation scales, which are not used here, and modules that are not quantized, which the tensors
    // show.
    for harmless in ["scale_fmt", "modules_to_convert", "modules_to_not_convert", "ignored_layers"] {
        fields.get(harmless);
    }
    match fields.usizes("weight_block_size")?.as_deref() {
        Some(&[rows, cols]) if rows > 0 && cols > 0 => Ok(Quantization::Fp8 { block: [rows, cols] }),
        Some(other) => Err(fields.error("weight_block_size", format!("must be two sizes, got {other:?}"))),
        None => Ok(Quantization::Fp8Scaled { block: None }),
    }
}

fn read_compressed(fields: &ConfigFields) -> Result<Quantization, LoadError> {
    let formats = [
        "pack-quantized",
        "int-quantized",
        "float-quantized",
        "naive-quantized",
        "nvfp4-pack-quantized",
        "mxfp4-pack-quantized",
    ];
    let format = fields.str("format")?.unwrap_or("none");
    if !formats.contains(&format) {
        return Err(unsupported(format!("compressed-tensors format {format:?} is not supported")));
    }
    // Null means: plain KV cache, no sparsity, no transform.
    for none in ["kv_cache_scheme", "transform_config"] {
        if fields.get(none).is_some_and(|v| v.as_object().is_none_or(|map| !map.is_empty())) {
            return Err(unsupported(format!("quantization_config.{none} is not supported")));
        }
    }
    let dense = |map: &Map<String, Value>| map.get("format").is_some_and(|format| format == "dense");
    if fields.get("sparsity_config").is_some_and(|v| v.as_object().is_none_or(|map| !map.is_empty() && !dense(map))) {
        return Err(unsupported("quantization_config.sparsity_config is not supported".into()));
    }
    fields.require("quantization_status", "compressed")?;
    // `ignore` lists modules that are not quantized; the tensors show that.
    for harmless in ["ignore", "global_compression_ratio", "version"] {
        fields.get(harmless);
    }
    let groups = fields.object("config_groups")?.ok_or_else(|| fields.error("config_groups", "is required"))?;
    // Of several groups, the others are left and refused.
    let name = groups.first_key().unwrap_or("group_0");
    let group = groups.object(name)?.ok_or_else(|| groups.error(name, "is required"))?;
    // Activations are not quantized here.
    group.get("input_activations");
    if group.get("output_activations").is_some() {
        return Err(unsupported("quantization_config: output_activations is not supported".into()));
    }
    group.require("format", format)?;
    group.get("targets");
    let weights = group.object("weights")?.ok_or_else(|| group.error("weights", "is required"))?;
    let read = read_compressed_weights(&weights, format)?;
    for none in ["zp_dtype", "scale_dtype"] {
        weights.get(none);
    }
    for harmless in ["observer", "observer_kwargs"] {
        weights.get(harmless);
    }
    weights.finish()?;
    group.finish()?;
    groups.finish()?;
    Ok(read)
}

fn read_compressed_weights(weights: &ConfigFields, format: &str) -> Result<Quantization, LoadError> {
    supports_only(weights, "dynamic", false.into())?;
    let bits = weights.size("num_bits")?;
    let kind = weights.str("type")?.unwrap_or("int");
    let symmetric = weights.bool("symmetric")?.unwrap_or(true);
    let strategy = weights.str("strategy")?.unwrap_or("tensor");
    let group = weights.usize("group_size")?.filter(|_| strategy.ends_with("group"));
    let order = weights.str("actorder")?;
    let block = match weights.usizes("block_structure")?.as_deref() {
        Some(&[rows, cols]) if rows > 0 && cols > 0 => Some([rows, cols]),
        Some(other) => return Err(weights.error("block_structure", format!("must be two sizes, got {other:?}"))),
        None => None,
    };
    let bad = |what: String| Err(unsupported(format!("quantization_config: {what} is not supported as {format}")));
    match (format, kind, bits, strategy) {
        ("pack-quantized", "int", 4 | 8, "group" | "channel") => {
            if strategy == "group" && group.is_none_or(|size| size == 0) {
                return Err(weights.error("group_size", "must be at least 1 with strategy group"));
            }
            if let Some(other) = order.filter(|order| !["group", "weight", "static", "dynamic"].contains(order)) {
                return bad(format!("actorder {other:?}"));
            }
            Ok(match (bits, group, symmetric, order) {
                // GPUs multiply these as they are stored.
                (4, Some(group), true, None | Some("weight" | "static")) => Quantization::Int4 { group },
                _ => Quantization::Coded(CodedForm::Packed { bits, group, symmetric }),
            })
        }
        ("nvfp4-pack-quantized", "float", 4, "tensor_group") => {
            let group = group.filter(|&size| size > 0).unwrap_or(NVFP4_GROUP);
            Ok(Quantization::Coded(CodedForm::Fp4 { group, scales: Fp4Scales::Divided }))
        }
        ("mxfp4-pack-quantized", "float", 4, "group") => {
            let group = group.filter(|&size| size > 0).unwrap_or(MXFP4_GROUP);
            Ok(Quantization::Coded(CodedForm::Fp4 { group, scales: Fp4Scales::E8m0 }))
        }
        ("int-quantized" | "naive-quantized", "int", 8, "channel" | "tensor") => {
            Ok(Quantization::Coded(CodedForm::Int8))
        }
        ("float-quantized" | "naive-quantized", "float", 8, "channel" | "tensor") => {
            Ok(Quantization::Fp8Scaled { block: None })
        }
        ("float-quantized" | "naive-quantized", "float", 8, "block") if block.is_some() => {
            Ok(Quantization::Fp8Scaled { block })
        }
        _ => bad(format!("num_bits {bits}, type {kind:?}, strategy {strategy:?}")),
    }
}

/// -1: all of an output.
fn group_size(fields: &ConfigFields) -> Result<Option<usize>, LoadError> {
    match fields.get("group_size").and_then(Value::as_i64) {
        Some(-1) => Ok(None),
        Some(size) if size > 0 => Ok(Some(size as usize)),
        _ => Err(fields.error("group_size", "must be -1 or at least 1")),
    }
}

fn one_of(fields: &ConfigFields, key: &str, allowed: &[&str]) -> Result<(), LoadError> {
    match fields.str(key)? {
        Some(found) if !allowed.contains(&found) => {
            Err(unsupported(format!("quantization_config.{key} must be one of {}, got {found:?}", allowed.join(", "))))
        }
        _ => Ok(()),
    }
}

fn read_gptq(fields: &ConfigFields) -> Result<Quantization, LoadError> {
    let bits = fields.size("bits")?;
    if ![4, 8].contains(&bits) {
        return Err(unsupported(format!("quantization_config.bits must be 4 or 8, got {bits}")));
    }
    one_of(fields, "checkpoint_format", &["gptq", "gptq_v2"])?;
    one_of(fields, "format", &["gptq", "gptq_v2"])?;
    one_of(fields, "pack_dtype", &["int32"])?;
    fields.require("lm_head", false)?;
    if fields.get("dynamic").is_some_and(|dynamic| dynamic.as_object().is_none_or(|map| !map.is_empty())) {
        return Err(unsupported("quantization_config.dynamic (other forms for some modules) is not supported".into()));
    }
    let second = |key| Ok::<_, LoadError>(fields.str(key)? == Some("gptq_v2"));
    // The first version stores a zero less one.
    let offset = u32::from(!(second("checkpoint_format")? || second("format")?));
    // How it was made. Order and symmetry are in the tensors.
    for harmless in GPTQ_NOTES {
        fields.get(harmless);
    }
    let symmetric = fields.bool("sym")?.unwrap_or(false) && !fields.bool("desc_act")?.unwrap_or(false);
    Ok(Quantization::Coded(CodedForm::Gptq { bits, group: group_size(fields)?, offset, symmetric }))
}

const GPTQ_NOTES: &[&str] = &[
    "desc_act",
    "act_group_aware",
    "sym",
    "static_groups",
    "true_sequential",
    "damp_percent",
    "damp_auto_increment",
    "mse",
    "meta",
    "model_name_or_path",
    "model_file_base_name",
    "is_marlin_format",
    "quant_method",
    "method",
    "batch_size",
    "block_name_to_quantize",
    "module_name_preceding_first_block",
    "modules_in_block_to_quantize",
    "dataset",
    "tokenizer",
    "model_seqlen",
    "max_input_length",
    "use_cuda_fp16",
    "use_exllama",
    "disable_exllama",
    "exllama_config",
    "pad_token_id",
    "cache_block_outputs",
    "backend",
    "adapter",
    "rotation",
    "hyb_act",
    "lora_rank",
];

fn read_awq(fields: &ConfigFields) -> Result<Quantization, LoadError> {
    let four = |key: &str| fields.require(key, 4);
    four("bits").and(four("w_bit")).map_err(|error| unsupported(error.to_string().replace("config.json: ", "")))?;
    one_of(fields, "version", &["gemm", "GEMM"])?;
    fields.require("zero_point", true)?;
    let group = match fields.get("q_group_size") {
        Some(size) => size.as_u64().map(|size| size as usize).filter(|&size| size > 0),
        None => group_size(fields)?,
    };
    for harmless in ["modules_to_not_convert", "backend", "do_fuse", "exllama_config", "fuse_max_seq_len"] {
        fields.get(harmless);
    }
    for harmless in ["modules_to_fuse", "quant_method", "group_size", "q_group_size"] {
        fields.get(harmless);
    }
    Ok(Quantization::Coded(CodedForm::Awq { group }))
}

fn read_modelopt(fields: &ConfigFields) -> Result<Quantization, LoadError> {
    one_of(fields, "quant_algo", &["FP8", "NVFP4"])?;
    if fields.get("kv_cache_quant_algo").or(fields.get("kv_cache_scheme")).is_some() {
        return Err(unsupported("quantization_config: a quantized KV cache is not supported".into()));
    }
    for harmless in ["ignore", "exclude_modules", "producer", "config_groups", "quant_method", "targets"] {
        fields.get(harmless);
    }
    let group = fields.usize("group_size")?.filter(|&size| size > 0).unwrap_or(NVFP4_GROUP);
    Ok(match fields.str("quant_algo")? {
        Some("NVFP4") => Quantization::Coded(CodedForm::Fp4 { group, scales: Fp4Scales::Multiplied }),
        _ => Quantization::Fp8Scaled { block: None },
    })
}

fn supports_only(fields: &ConfigFields, key: &str, value: serde_json::Value) -> Result<(), LoadError> {
    fields.require(key, value).map_err(|error| unsupported(error.to_string().replace("config.json: ", "")))
}

/// How a checkpoint stores its weights, as far as config.json says.
pub struct StatedForms {
    quantization: Quantization,
    /// Of int4.
    scales: ScaleForm,
    /// Modules that are not quantized.
    left_out: Vec<Regex>,
}

impl StatedForms {
    /// `scales`: the form of int4 scales, which compressed-tensors stores in the type of the model.
    pub fn read(config: &Map<String, Value>, text: &Map<String, Value>, scales: ScaleForm) -> Result<Self, LoadError> {
        let quantization = Quantization::of(config, text)?;
        // transformers never converts the head to FP8.
        let mut left_out = vec![pattern(r"re:(.*\.)?lm_head$")?];
        for object in [text, config] {
            let Some(fields) = ConfigFields::new(object, "").object("quantization_config")? else { continue };
            for key in ["ignore", "modules_to_not_convert", "ignored_layers"] {
                for name in fields.strs(key)?.unwrap_or_default() {
                    left_out.push(pattern(name)?);
                }
            }
        }
        Ok(Self { quantization, scales, left_out })
    }

    /// The form of most weights, unless nothing is quantized.
    pub fn quantized(&self) -> Option<&'static str> {
        match self.quantization {
            Quantization::None => None,
            Quantization::Fp8 { .. } | Quantization::Fp8Scaled { .. } => Some("fp8"),
            Quantization::Coded(form) => Some(form.name()),
            Quantization::Int4 { .. } => Some("int4"),
        }
    }

    /// The form of a linear module's weight. What is not quantized counts as bf16.
    pub fn of(&self, module: &str) -> StoredForm {
        match self.quantization {
            Quantization::None => StoredForm::Bf16,
            _ if self.left_out.iter().any(|name| name.is_match(module)) => StoredForm::Bf16,
            Quantization::Fp8 { block } => StoredForm::Fp8 { block },
            Quantization::Fp8Scaled { block } => StoredForm::Fp8 { block: block.unwrap_or(BY_OUTPUT) },
            Quantization::Coded(form) => form.stored(),
            Quantization::Int4 { group } => StoredForm::Int4 { group, scales: self.scales },
        }
    }
}

/// A regular expression after `re:` that matches from the start, or the name of a module or of what holds it, in which
/// `*` is any part between two dots.
fn pattern(name: &str) -> Result<Regex, LoadError> {
    let pattern = match name.strip_prefix("re:") {
        Some(pattern) => format!("^(?:{pattern})"),
        None => format!(r"^(?:{})(?:\.|$)", regex::escape(name).replace(r"\*", "[^.]*")),
    };
    Regex::new(&pattern).map_err(|error| unsupported(format!("quantization_config: {name}: {error}")))
}

#[cfg(test)]
mod tests;
