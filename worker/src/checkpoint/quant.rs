//! Reads `quantization_config`: the weight format of the checkpoint. It does not dequantize.

use regex::Regex;
use rein_kernels::{ScaleForm, StoredForm};
use serde_json::{Map, Value};

use super::config::ConfigFields;
use super::error::LoadError;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quantization {
    None,
    /// e4m3 codes with one f32 scale per block of [rows, columns] (DeepSeek-V3, Kimi K2). Activations are not
    /// quantized.
    Fp8 {
        block: [usize; 2],
    },
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
            Some(other) => {
                return Err(unsupported(format!("quantization_config.quant_method {other:?} is not supported")));
            }
            None => return Err(unsupported("quantization_config has no quant_method".into())),
        };
        fields.finish()?;
        Ok(this)
    }
}

fn unsupported(what: String) -> LoadError {
    LoadError::Quantization { what }
}

fn read_fp8(fields: &ConfigFields) -> Result<Quantization, LoadError> {
    fields.require("fmt", "e4m3")?;
    fields.require("activation_scheme", "dynamic")?;
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
        None => Err(unsupported("fp8 without weight_block_size (one scale per tensor) is not supported".into())),
    }
}

fn read_compressed(fields: &ConfigFields) -> Result<Quantization, LoadError> {
    match fields.str("format")? {
        Some("pack-quantized") => {}
        other => return Err(unsupported(format!("compressed-tensors format {other:?} is not supported"))),
    }
    // Null means: plain KV cache, no sparsity, no transform.
    for none in ["kv_cache_scheme", "transform_config"] {
        if fields.get(none).is_some_and(|v| v.as_object().is_none_or(|map| !map.is_empty())) {
            return Err(unsupported(format!("quantization_config.{none} is not supported")));
        }
    }
    if fields.get("sparsity_config").is_some_and(|v| v.as_object().is_none_or(|map| !map.is_empty())) {
        return Err(unsupported("quantization_config.sparsity_config is not supported".into()));
    }
    fields.require("quantization_status", "compressed")?;
    // `ignore` lists modules that are not quantized; the tensors show that.
    for harmless in ["ignore", "global_compression_ratio", "version"] {
        fields.get(harmless);
    }
    let groups = fields.object("config_groups")?.ok_or_else(|| fields.error("config_groups", "is required"))?;
    let group = groups.object("group_0")?.ok_or_else(|| groups.error("group_0", "is required"))?;
    for none in ["input_activations", "output_activations"] {
        if group.get(none).is_some() {
            return Err(unsupported(format!("quantization_config: {none} (quantized activations) is not supported")));
        }
    }
    group.require("format", "pack-quantized")?;
    group.get("targets");
    let weights = group.object("weights")?.ok_or_else(|| group.error("weights", "is required"))?;
    for (key, value) in [("num_bits", 4.into()), ("type", "int".into()), ("symmetric", true.into())] {
        supports_only(&weights, key, value)?;
    }
    supports_only(&weights, "strategy", "group".into())?;
    supports_only(&weights, "dynamic", false.into())?;
    if weights.get("actorder").is_some() {
        return Err(unsupported("quantization_config: actorder is not supported".into()));
    }
    for none in ["block_structure", "zp_dtype", "scale_dtype"] {
        weights.get(none);
    }
    for harmless in ["observer", "observer_kwargs"] {
        weights.get(harmless);
    }
    let size = weights.size("group_size")?;
    weights.finish()?;
    group.finish()?;
    groups.finish()?;
    Ok(Quantization::Int4 { group: size })
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
            Quantization::Fp8 { .. } => Some("fp8"),
            Quantization::Int4 { .. } => Some("int4"),
        }
    }

    /// The form of a linear module's weight. What is not quantized counts as bf16.
    pub fn of(&self, module: &str) -> StoredForm {
        match self.quantization {
            Quantization::None => StoredForm::Bf16,
            _ if self.left_out.iter().any(|name| name.is_match(module)) => StoredForm::Bf16,
            Quantization::Fp8 { block } => StoredForm::Fp8 { block },
            Quantization::Int4 { group } => StoredForm::Int4 { group, scales: self.scales },
        }
    }
}

/// A regular expression after `re:` that matches from the start, or the name of a module or of what holds it.
fn pattern(name: &str) -> Result<Regex, LoadError> {
    let pattern = match name.strip_prefix("re:") {
        Some(pattern) => format!("^(?:{pattern})"),
        None => format!(r"^(?:{})(?:\.|$)", regex::escape(name)),
    };
    Regex::new(&pattern).map_err(|error| unsupported(format!("quantization_config: {name}: {error}")))
}

#[cfg(test)]
mod tests;
