//! Model directories of models in Mistral's own layout: config.json made of params.json, and links to the other files.

use std::fs;
use std::path::{Path, PathBuf};

use rein_worker::checkpoint::{PARAMS, Reads, config_of, parse_json, read_file};
use rein_worker::limits::READ_TIMEOUT;

use crate::made_dir::MadeDirectory;

const CONFIG: &str = "config.json";
const MAX_BYTES: u64 = 16 << 20;

/// What templates call the special tokens of tekken.json.
const NAMED_TOKENS: &str = r#"{"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}"#;

/// Whether a directory has this layout alone, or its weights in it alone.
pub fn is_native(dir: &Path) -> bool {
    let any = |stem: &str| ["", ".index.json"].iter().any(|end| dir.join(format!("{stem}.safetensors{end}")).exists());
    dir.join(PARAMS).is_file() && (!dir.join(CONFIG).exists() || any("consolidated") && !any("model"))
}

/// The model directory of `dir`. It is made in the cache, under a name that tells its contents.
pub fn directory(dir: &Path) -> Result<PathBuf, String> {
    let path = dir.join(PARAMS);
    let failed = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let text = read_file(&path, MAX_BYTES, &Reads::new(READ_TIMEOUT)).map_err(|error| error.to_string())?;
    let params = parse_json(&path, &text).map_err(|error| error.to_string())?;
    let config = config_of(&params).map_err(|error| failed(&error))?;
    let text = serde_json::to_string_pretty(&config).map_err(|error| failed(&error))?;
    let dir = fs::canonicalize(dir).map_err(|error| failed(&error))?;
    let mut links = Vec::new();
    for entry in fs::read_dir(&dir).map_err(|error| failed(&error))? {
        let entry = entry.map_err(|error| failed(&error))?;
        if let Some(name) = entry.file_name().to_str().filter(|&name| name != PARAMS && name != CONFIG) {
            links.push((name.to_owned(), entry.path()));
        }
    }
    links.sort();
    let mut texts = vec![(CONFIG.into(), text)];
    let named = "tokenizer_config.json";
    if !links.iter().any(|(name, _)| name == named) {
        texts.push((named.into(), NAMED_TOKENS.to_string()));
    }
    let name = dir.file_name().map_or("model".into(), |name| name.to_string_lossy().into_owned());
    MadeDirectory { texts, links }.in_cache("native", &name).map_err(|error| failed(&error))
}
