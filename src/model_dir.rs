//! The error for a `--model` that is not a model directory, which says how to get one. It reads no model files.

use std::path::Path;

/// The files of a Hub repository that Rein reads.
const PATTERNS: &str = "'*.json' '*.safetensors' '*.jinja' '*.model'";

/// Checks that `dir` holds a config.json.
pub fn check(dir: &Path) -> Result<(), String> {
    let shown = dir.display();
    if dir.join("config.json").exists() {
        return Ok(());
    }
    if dir.is_dir() {
        return Err(format!("--model: {shown} is not a model directory: config.json is missing"));
    }
    if dir.exists() {
        return Err(format!("--model: {shown} is a file; expected a model directory"));
    }
    Err(match hub_id(dir) {
        None => format!("--model: {shown}: no such directory"),
        Some((id, name)) => format!(
            "--model: {id}: no such directory. Rein does not download models. To serve {id} from the Hugging Face \
             Hub, download it and pass its directory:\n\n  \
             pip install huggingface_hub\n  \
             hf download {id} --local-dir {name} --include {PATTERNS}\n  \
             rein check --model {name}\n  \
             rein serve --model {name}\n"
        ),
    })
}

/// A path of the form `organization/name` with the characters that the Hub allows, and its last part.
fn hub_id(dir: &Path) -> Option<(&str, &str)> {
    let id = dir.to_str()?;
    let (organization, name) = id.split_once('/')?;
    let is_part = |part: &str| {
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        part.starts_with(|c: char| c.is_ascii_alphanumeric()) && part.chars().all(allowed)
    };
    (is_part(organization) && is_part(name)).then_some((id, name))
}

#[cfg(test)]
mod tests;
