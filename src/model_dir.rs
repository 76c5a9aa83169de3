//! The error for a `--model` that is not a model directory. It reads no model files.

use std::path::Path;

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
        return Err(format!("--model: {shown} is a file; expected a model directory or a GGUF file"));
    }
    Err(format!("--model: {shown}: no such directory"))
}

#[cfg(test)]
mod tests;
