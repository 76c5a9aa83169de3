//! The memory bound of decoding: the memory bandwidth, and the bytes of weights that are read per token. It knows
//! checkpoints only by their configuration and tensor headers.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use super::BenchError;
use super::report::Weights;

/// Maximum size of a header in the safetensors format.
const MAX_HEADER_BYTES: u64 = 100_000_000;

/// Bytes per second that `threads` threads read in total.
pub fn bandwidth(threads: usize, seconds: f64) -> Result<f64, BenchError> {
    let gigabytes = rein_kernels::probe::memory_bandwidth(threads, seconds);
    if gigabytes > 0.0 { Ok(gigabytes * 1e9) } else { Err(BenchError::Probe("cannot allocate its buffer".into())) }
}

#[derive(Debug, Deserialize)]
struct Tensor {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: [u64; 2],
}

/// The active weights of a checkpoint directory. `weight_bytes`: bytes per weight in memory, if they differ from the
/// checkpoint.
pub fn active_weights(dir: &Path, weight_bytes: Option<f64>) -> Result<Weights, BenchError> {
    let failed = |reason: String| BenchError::ModelDir { path: dir.to_owned(), reason };
    let read = |name: &str| std::fs::read(dir.join(name)).map_err(|e| failed(format!("cannot read {name}: {e}")));
    let config: Value =
        serde_json::from_slice(&read("config.json")?).map_err(|e| failed(format!("config.json: {e}")))?;
    // Multimodal checkpoints have the language model's configuration under this key.
    let config = config.get("text_config").unwrap_or(&config);
    let mut tensors = BTreeMap::new();
    for file in files(dir).map_err(&failed)? {
        tensors.extend(header(&dir.join(&file)).map_err(|e| failed(format!("{file}: {e}")))?);
    }
    if tensors.is_empty() {
        return Err(failed("has no *.safetensors file".into()));
    }
    Ok(sum_weights(config, &tensors, weight_bytes))
}

/// The weight files in the index; all *.safetensors files without an index.
fn files(dir: &Path) -> Result<BTreeSet<String>, String> {
    if let Ok(index) = std::fs::read(dir.join("model.safetensors.index.json")) {
        let index: Value = serde_json::from_slice(&index).map_err(|e| format!("model.safetensors.index.json: {e}"))?;
        let map = index["weight_map"].as_object().ok_or("model.safetensors.index.json: no weight_map")?;
        return Ok(map.values().filter_map(|v| v.as_str().map(str::to_owned)).collect());
    }
    let entries = std::fs::read_dir(dir).map_err(|e| e.to_string())?;
    let names = entries.filter_map(|e| e.ok()?.file_name().into_string().ok());
    Ok(names.filter(|n| n.ends_with(".safetensors")).collect())
}

fn header(path: &Path) -> Result<BTreeMap<String, Tensor>, String> {
    let mut file = File::open(path).map_err(|e| e.to_string())?;
    let mut length = [0; 8];
    file.read_exact(&mut length).map_err(|e| e.to_string())?;
    let length = u64::from_le_bytes(length);
    if length > MAX_HEADER_BYTES {
        return Err(format!("not a safetensors file: its header has {length} bytes"));
    }
    let mut text = Vec::new();
    file.take(length).read_to_end(&mut text).map_err(|e| e.to_string())?;
    let entries: BTreeMap<String, Value> = serde_json::from_slice(&text).map_err(|e| e.to_string())?;
    let tensors = entries.into_iter().filter(|(name, _)| name != "__metadata__");
    tensors.map(|(name, value)| Ok((name, serde_json::from_value(value).map_err(|e| e.to_string())?))).collect()
}

fn sum_weights(config: &Value, tensors: &BTreeMap<String, Tensor>, weight_bytes: Option<f64>) -> Weights {
    let number = |keys: &[&str]| keys.iter().find_map(|k| config.get(*k)?.as_f64());
    let experts = number(&["n_routed_experts", "num_experts", "num_local_experts"]).unwrap_or(1.0).max(1.0);
    let used = number(&["num_experts_per_tok"]).unwrap_or(experts).min(experts);
    let layers = number(&["num_hidden_layers"]).unwrap_or(f64::MAX);
    let tied = !tensors.keys().any(|name| name.ends_with("lm_head.weight"));
    let mut sum = Weights { total_parameters: 0.0, active_parameters: 0.0, active_bytes: 0.0 };
    for (name, tensor) in tensors {
        let Some(share) = share(name, tied, layers, used / experts) else { continue };
        let stored = (tensor.data_offsets[1].saturating_sub(tensor.data_offsets[0])) as f64;
        let parameters = match tensor.dtype.as_str() {
            // Each packed integer has eight 4-bit weights. Scales and shapes are not parameters.
            "I32" | "U32" if name.ends_with("_packed") => stored * 2.0,
            _ if name.ends_with("_scale") || name.ends_with("_scale_inv") || name.ends_with("_shape") => 0.0,
            _ => tensor.shape.iter().map(|n| *n as f64).product(),
        };
        sum.total_parameters += parameters;
        sum.active_parameters += parameters * share;
        sum.active_bytes += share * weight_bytes.map_or(stored, |b| b * parameters);
    }
    sum
}

/// The share of a tensor that is read per token. None for tensors that decoding does not use.
fn share(name: &str, tied: bool, layers: f64, routed: f64) -> Option<f64> {
    if ["vision_tower.", "vision_model.", "visual.", "mm_projector", "multi_modal_projector"]
        .iter()
        .any(|p| name.contains(p))
    {
        return None;
    }
    // Layers after the last are for multi-token prediction.
    let layer = name.split_once("layers.").and_then(|(_, rest)| rest.split('.').next()?.parse::<f64>().ok());
    if layer.is_some_and(|l| l >= layers) {
        return None;
    }
    if name.ends_with("embed_tokens.weight") {
        return Some(if tied { 1.0 } else { 0.0 });
    }
    Some(if name.contains(".experts.") { routed } else { 1.0 })
}

#[cfg(test)]
mod tests;
