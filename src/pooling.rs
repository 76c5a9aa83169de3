//! Checks that the embeddings of a model directory are those that `--task embed` computes: the last token's, of length
//! 1. It reads only what sentence-transformers writes beside the weights.

use std::path::Path;

use rein_text::tokenize::read_json;
use serde_json::{Map, Value};

/// The modules that are computed, in order.
const MODULES: [&str; 3] = ["Transformer", "Pooling", "Normalize"];
const LAST_TOKEN: &str = "lasttoken";

/// Directories without `modules.json` say nothing about pooling and are accepted.
pub fn check(dir: &Path) -> Result<(), String> {
    let read = |file: &str| read_json(&dir.join(file)).map_err(|error| format!("--model: {error}"));
    let modules = read("modules.json")?;
    for module in modules.as_array().into_iter().flatten() {
        let kind = module["type"].as_str().unwrap_or_default();
        let name = kind.rsplit('.').next().unwrap_or_default();
        if !MODULES.contains(&name) {
            let all = MODULES.join(", ");
            return Err(format!("--task embed: modules.json has the module {kind:?}; supported are {all}"));
        }
        if name == "Pooling" {
            let file = format!("{}/config.json", module["path"].as_str().unwrap_or("1_Pooling"));
            pooling(&file, read(&file)?.as_object().unwrap_or(&Map::new()))?;
        }
    }
    Ok(())
}

/// `pooling_mode`, or one flag per mode.
fn pooling(file: &str, config: &Map<String, Value>) -> Result<(), String> {
    let set = |(name, value): (&String, &Value)| {
        let mode = name.strip_prefix("pooling_mode_").filter(|_| value == true)?;
        Some(mode.to_owned())
    };
    let modes: Vec<String> = match config.get("pooling_mode") {
        Some(Value::String(mode)) => vec![mode.clone()],
        _ => config.iter().filter_map(set).collect(),
    };
    match modes.iter().all(|mode| mode == LAST_TOKEN) && !modes.is_empty() {
        true => Ok(()),
        false => {
            let got = if modes.is_empty() { "none".to_owned() } else { modes.join(", ") };
            Err(format!("--task embed: {file}: the pooling mode must be {LAST_TOKEN}, got {got}"))
        }
    }
}

#[cfg(test)]
mod tests;
