//! The error for a `--model` that is not a model directory, which says how to get one. It reads no model files.

use std::path::Path;

/// What a Hub repository holds that Rein reads.
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
mod tests {
    use super::*;

    #[test]
    fn hub_ids_are_told_from_paths() {
        let id = |text| hub_id(Path::new(text));
        assert_eq!(id("moonshotai/Kimi-K2"), Some(("moonshotai/Kimi-K2", "Kimi-K2")));
        for path in ["model", "./model", "../a/b", "/models/demo", "a/b/c", "a/", "a b/c", "a/.b", ""] {
            assert_eq!(id(path), None, "{path}");
        }
    }

    #[test]
    fn the_error_says_what_is_wrong_with_the_directory() {
        let said = |dir: &str| check(Path::new(dir)).expect_err(dir);
        assert!(said("no-such-organization/no-such-model").contains("hf download no-such-organization/no-such-model "));
        assert_eq!(said("/nonexistent/model"), "--model: /nonexistent/model: no such directory");
        let source = env!("CARGO_MANIFEST_DIR");
        assert!(said(source).ends_with("is not a model directory: config.json is missing"));
        assert!(said(&format!("{source}/Cargo.toml")).ends_with("is a file; expected a model directory"));
        assert_eq!(check(&Path::new(source).join("models/demo")), Ok(()));
    }
}
