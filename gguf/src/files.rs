//! The text files of a model directory, made from the metadata of a file. It writes nothing to a disk.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use crate::GgufError;
use crate::config::config;
use crate::container::{Gguf, MetadataValue};
use crate::fields::string;
use crate::rope::RopeFactors;
use crate::tokenizer::Vocabulary;

const TEMPLATE: &str = "tokenizer.chat_template";
/// The model's defaults for sampling: the ends of llama.cpp's keys, and those of generation_config.json.
const SAMPLING: [(&str, &str); 5] = [
    ("temp", "temperature"),
    ("top_k", "top_k"),
    ("top_p", "top_p"),
    ("min_p", "min_p"),
    ("penalty_repeat", "repetition_penalty"),
];

/// The text files of the directory that this model would have on Hugging Face: name and content.
///
/// `factors` are the values of those of [`FACTOR_TENSORS`](crate::FACTOR_TENSORS) that the file has.
pub fn hf_files(gguf: &Gguf, factors: &RopeFactors) -> Result<Vec<(String, String)>, GgufError> {
    let vocabulary = Vocabulary::read(gguf)?;
    let mut config = config(gguf, vocabulary.tokens.len() as u64, factors)?;
    if let Some(bos) = vocabulary.bos {
        config.insert("bos_token_id".into(), bos.into());
    }
    if let Some(eos) = vocabulary.eos {
        config.insert("eos_token_id".into(), eos.into());
    }
    let mut files = vec![
        file("config.json", &Value::Object(config)),
        file("tokenizer.json", &vocabulary.tokenizer_json()?),
        file("tokenizer_config.json", &tokenizer_config(&vocabulary)),
        file("generation_config.json", &generation_config(gguf, &vocabulary)?),
    ];
    files.extend(templates(gguf)?);
    Ok(files)
}

fn file(name: &str, content: &Value) -> (String, String) {
    (name.into(), content.to_string())
}

fn tokenizer_config(vocabulary: &Vocabulary) -> Value {
    let mut out = Map::new();
    out.insert("tokenizer_class".into(), "PreTrainedTokenizerFast".into());
    let named = [
        ("bos_token", vocabulary.bos),
        ("eos_token", vocabulary.eos),
        ("unk_token", vocabulary.unk),
        ("pad_token", vocabulary.pad),
    ];
    for (name, id) in named {
        if let Some(text) = vocabulary.text(id) {
            out.insert(name.into(), text.into());
        }
    }
    out.insert("add_bos_token".into(), vocabulary.add_bos.into());
    out.insert("add_eos_token".into(), vocabulary.add_eos.into());
    out.insert("clean_up_tokenization_spaces".into(), false.into());
    Value::Object(out)
}

fn generation_config(gguf: &Gguf, vocabulary: &Vocabulary) -> Result<Value, GgufError> {
    let mut out = Map::new();
    if let Some(bos) = vocabulary.bos {
        out.insert("bos_token_id".into(), bos.into());
    }
    if !vocabulary.ends.is_empty() {
        out.insert("eos_token_id".into(), json!(vocabulary.ends));
    }
    if let Some(pad) = vocabulary.pad {
        out.insert("pad_token_id".into(), pad.into());
    }
    for (theirs, name) in SAMPLING {
        let key = format!("general.sampling.{theirs}");
        let value: Value = match gguf.metadata.get(&key) {
            None => continue,
            // Off, in both.
            Some(&MetadataValue::Signed(..=0)) if name == "top_k" => 0.into(),
            Some(&MetadataValue::Signed(n)) => n.into(),
            Some(&MetadataValue::Unsigned(n)) => n.into(),
            Some(&MetadataValue::Float(n)) if n.is_finite() => n.into(),
            Some(other) => {
                let what = format!("must be a finite number, got {}", other.kind_name());
                return Err(GgufError::invalid(key, what));
            }
        };
        out.insert(name.into(), value);
    }
    Ok(Value::Object(out))
}

/// The chat template, and others by their name.
fn templates(gguf: &Gguf) -> Result<Vec<(String, String)>, GgufError> {
    let mut files = Vec::new();
    if let Some(text) = string(gguf, TEMPLATE)? {
        files.push(("chat_template.jinja".to_owned(), text.to_owned()));
    }
    let prefix = format!("{TEMPLATE}.");
    let mut names = HashSet::new();
    for key in gguf.metadata.keys() {
        let Some(name) = key.strip_prefix(&prefix) else { continue };
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
        if name.is_empty() || !name.chars().all(plain) {
            let what = "the template's name must consist of letters, digits, _ and -, since it becomes a file's name";
            return Err(GgufError::invalid(key, what));
        }
        // Names that differ only in case are one file on some systems.
        if !names.insert(name.to_ascii_lowercase()) {
            return Err(GgufError::invalid(key, "another template has the same name in other letter case"));
        }
        if let Some(text) = string(gguf, key)? {
            files.push((format!("additional_chat_templates/{name}.jinja"), text.to_owned()));
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests;
