//! `quantization_config`: which of the published weight formats the checkpoint says it is in.

use super::config::Fields;
use super::error::LoadError;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quantization {
    None,
    /// e4m3 codes with one f32 scale per block of [rows, columns] (DeepSeek-V3, Kimi K2). Activations are not quantized here.
    Fp8 {
        block: [usize; 2],
    },
    /// compressed-tensors pack-quantized: symmetric int4 with one scale per `group` inputs (Kimi K2-Thinking, K2.5).
    Int4 {
        group: usize,
    },
}

impl Quantization {
    pub fn read(config: &Fields) -> Result<Self, LoadError> {
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

fn read_fp8(fields: &Fields) -> Result<Quantization, LoadError> {
    fields.only("fmt", "e4m3")?;
    fields.only("activation_scheme", "dynamic")?;
    fields.only("expert_dtype", "fp8")?;
    for off in ["dequantize", "weight_per_tensor", "act_per_tensor"] {
        fields.only(off, false)?;
    }
    // Says how activations' scales are rounded where activations are quantized too; and which modules are stored plain,
    // which the tensors themselves tell.
    for harmless in ["scale_fmt", "modules_to_convert", "modules_to_not_convert", "ignored_layers"] {
        fields.get(harmless);
    }
    match fields.usizes("weight_block_size")?.as_deref() {
        Some(&[rows, cols]) if rows > 0 && cols > 0 => Ok(Quantization::Fp8 { block: [rows, cols] }),
        Some(other) => Err(fields.error("weight_block_size", format!("must be two sizes, not {other:?}"))),
        None => Err(unsupported("fp8 without weight_block_size (one scale per tensor) is not supported".into())),
    }
}

fn read_compressed(fields: &Fields) -> Result<Quantization, LoadError> {
    match fields.str("format")? {
        Some("pack-quantized") => {}
        other => return Err(unsupported(format!("compressed-tensors format {other:?} is not supported"))),
    }
    // Null means plain KV cache, no sparsity, no transform.
    for none in ["kv_cache_scheme", "transform_config"] {
        if fields.get(none).is_some_and(|v| v.as_object().is_none_or(|map| !map.is_empty())) {
            return Err(unsupported(format!("quantization_config.{none} is not supported")));
        }
    }
    if fields.get("sparsity_config").is_some_and(|v| v.as_object().is_none_or(|map| !map.is_empty())) {
        return Err(unsupported("quantization_config.sparsity_config is not supported".into()));
    }
    fields.only("quantization_status", "compressed")?;
    // `ignore` lists the modules that are stored plain; the tensors themselves tell.
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
    group.only("format", "pack-quantized")?;
    group.get("targets");
    let weights = group.object("weights")?.ok_or_else(|| group.error("weights", "is required"))?;
    for (key, value) in [("num_bits", 4.into()), ("type", "int".into()), ("symmetric", true.into())] {
        only(&weights, key, value)?;
    }
    only(&weights, "strategy", "group".into())?;
    only(&weights, "dynamic", false.into())?;
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

fn only(fields: &Fields, key: &str, value: serde_json::Value) -> Result<(), LoadError> {
    fields.only(key, value).map_err(|error| unsupported(error.to_string().replace("config.json: ", "")))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(value: Value) -> Result<Quantization, LoadError> {
        let config = json!({ "quantization_config": value });
        Quantization::read(&Fields::new(config.as_object().expect("object"), ""))
    }

    fn int4(change: impl FnOnce(&mut Value)) -> Value {
        let mut value = json!({
            "quant_method": "compressed-tensors", "format": "pack-quantized", "kv_cache_scheme": null,
            "ignore": ["lm_head"], "quantization_status": "compressed", "config_groups": {"group_0": {
                "input_activations": null, "output_activations": null, "targets": ["Linear"], "weights": {
                    "actorder": null, "dynamic": false, "group_size": 32, "num_bits": 4, "observer": "minmax",
                    "strategy": "group", "symmetric": true, "type": "int"}}}});
        change(&mut value);
        value
    }

    #[test]
    fn published_formats_are_read() {
        let fp8 = json!({"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8",
                         "weight_block_size": [128, 128], "scale_fmt": "ue8m0"});
        assert_eq!(read(fp8).expect("fp8"), Quantization::Fp8 { block: [128, 128] });
        // As transformers 5 writes it.
        let fp8 = json!({"activation_scheme": "dynamic", "dequantize": false, "expert_dtype": "fp8",
                         "modules_to_convert": null, "modules_to_not_convert": ["lm_head"], "quant_method": "fp8",
                         "scale_fmt": "float", "weight_block_size": [128, 128]});
        assert_eq!(read(fp8).expect("fp8"), Quantization::Fp8 { block: [128, 128] });
        let fp8 = json!({"act_per_tensor": false, "activation_scheme": "dynamic", "fmt": "e4m3",
                         "quant_method": "fp8", "weight_block_size": [128, 128], "weight_per_tensor": false});
        assert_eq!(read(fp8).expect("fp8"), Quantization::Fp8 { block: [128, 128] });
        assert_eq!(read(int4(|_| ())).expect("int4"), Quantization::Int4 { group: 32 });
    }

    #[test]
    fn other_formats_are_refused_by_name() {
        let weights =
            |key: &'static str, new: Value| int4(move |v| v["config_groups"]["group_0"]["weights"][key] = new);
        let cases = [
            (json!({"quant_method": "gptq", "bits": 4}), "gptq"),
            (json!({"quant_method": "fp8", "fmt": "e4m3"}), "weight_block_size"),
            (json!({"quant_method": "fp8", "activation_scheme": "static", "weight_block_size": [128, 128]}), "static"),
            (json!({"quant_method": "fp8", "expert_dtype": "fp4", "weight_block_size": [128, 128]}), "expert_dtype"),
            (weights("num_bits", 8.into()), "num_bits"),
            (weights("symmetric", false.into()), "symmetric"),
            (weights("actorder", "group".into()), "actorder"),
            (weights("strategy", "channel".into()), "strategy"),
            (int4(|v| v["format"] = "marlin-24".into()), "marlin-24"),
            (int4(|v| v["kv_cache_scheme"] = json!({"num_bits": 8})), "kv_cache_scheme"),
            (int4(|v| v["config_groups"]["group_1"] = json!({"weights": 1})), "group_1"),
        ];
        for (value, name) in cases {
            let error = read(value).expect_err(name).to_string();
            assert!(error.contains(name), "{error}");
        }
    }
}
