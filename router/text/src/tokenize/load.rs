//! Finds and loads the tokenizer of a model directory.

use std::io::ErrorKind;
use std::path::Path;

use serde_json::Value as Json;
use tokenizers::AddedToken;

use super::{MAX_TOKENIZER_BYTES, TokenizeError, Tokenizer, kimi, tekken};
use crate::regular_file;

/// Fields of a tokenizer configuration that name one special token each.
pub(crate) const NAMED_SPECIAL_TOKENS: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// The text of a special token: a string, or an object with `content`.
pub(crate) fn token_text(token: &Json) -> Option<&str> {
    token.as_str().or_else(|| token.get("content").and_then(Json::as_str))
}

/// Reads a JSON file of the model; `Null` if it does not exist.
pub fn read_json(path: &Path) -> Result<Json, TokenizeError> {
    match read(path)? {
        Some(bytes) => serde_json::from_slice(&bytes).map_err(|e| load_error(path, e)),
        None => Ok(Json::Null),
    }
}

pub(super) fn load(dir: &Path) -> Result<Tokenizer, TokenizeError> {
    let config = read_json(&dir.join("tokenizer_config.json"))?;
    let json = dir.join("tokenizer.json");
    if let Some(bytes) = read(&json)? {
        let tokenizer = from_json(&bytes, &config).map_err(|e| load_error(&json, e))?;
        return Tokenizer::build(&json.display().to_string(), tokenizer, false);
    }
    let model = dir.join("tiktoken.model");
    let unsupported = |path: &Path, what: String| TokenizeError::Unsupported { path: path.display().to_string(), what };
    if let Some(bytes) = read(&model)? {
        let class = config.get("tokenizer_class").and_then(Json::as_str);
        if class != Some("TikTokenTokenizer") {
            let what = match class {
                Some(class) => format!(
                    "tiktoken.model with the tokenizer_class {class}; only Kimi's TikTokenTokenizer is supported"
                ),
                None => "tiktoken.model without a tokenizer_class in tokenizer_config.json".to_owned(),
            };
            return Err(unsupported(&model, what));
        }
        let tokenizer = kimi::convert(&bytes, &config).map_err(|e| load_error(&model, e))?;
        return Tokenizer::build(&model.display().to_string(), tokenizer, true);
    }
    let tekken = dir.join("tekken.json");
    if let Some(bytes) = read(&tekken)? {
        let tokenizer = tekken::convert(&bytes).map_err(|e| load_error(&tekken, e))?;
        return Tokenizer::build(&tekken.display().to_string(), tokenizer, false);
    }
    for (file, kind) in [
        ("tokenizer.model", "a SentencePiece model"),
        ("qwen.tiktoken", "a tiktoken file of Qwen 1"),
        ("vocab.json", "vocab.json with merges.txt"),
    ] {
        if dir.join(file).is_file() {
            return Err(unsupported(
                &dir.join(file),
                format!("{kind} without a tokenizer.json; convert it to tokenizer.json first"),
            ));
        }
    }
    Err(load_error(dir, "has no tokenizer.json, tiktoken.model or tekken.json"))
}

fn load_error(path: &Path, message: impl ToString) -> TokenizeError {
    TokenizeError::Load { path: path.display().to_string(), message: message.to_string() }
}

fn read(path: &Path) -> Result<Option<Vec<u8>>, TokenizeError> {
    match regular_file::read(path, "a tokenizer file", MAX_TOKENIZER_BYTES) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        Err(e) => Err(load_error(path, e)),
    }
}

/// Loads `tokenizer.json` with the added tokens of `tokenizer_config.json`. The post-processor of `tokenizer.json`
/// alone decides which tokens are put around a text: like transformers 5, this ignores `add_bos_token`.
fn from_json(bytes: &[u8], config: &Json) -> Result<tokenizers::Tokenizer, String> {
    let mut tokenizer = tokenizers::Tokenizer::from_bytes(bytes).map_err(|e| e.to_string())?;
    tokenizer.with_truncation(None).map_err(|e| e.to_string())?;
    tokenizer.with_padding(None);
    add_tokens(&mut tokenizer, config)?;
    Ok(tokenizer)
}

fn add_tokens(tokenizer: &mut tokenizers::Tokenizer, config: &Json) -> Result<(), String> {
    let mut declared = Vec::new();
    for (id, token) in config.get("added_tokens_decoder").and_then(Json::as_object).into_iter().flatten() {
        let (Ok(id), Some(text)) = (id.parse::<u32>(), token_text(token)) else {
            return Err(format!(
                "tokenizer_config.json: added_tokens_decoder.{id} must have a numeric id and a content"
            ));
        };
        let flag = |name: &str| token.get(name).and_then(Json::as_bool);
        let special = flag("special").unwrap_or(false);
        let added = AddedToken::from(text, special)
            .single_word(flag("single_word").unwrap_or(false))
            .lstrip(flag("lstrip").unwrap_or(false))
            .rstrip(flag("rstrip").unwrap_or(false))
            .normalized(flag("normalized").unwrap_or(!special));
        declared.push((id, added));
    }
    declared.sort_by_key(|(id, _)| *id);
    for (id, token) in declared {
        let text = token.content.clone();
        tokenizer.add_tokens([token]).map_err(|e| e.to_string())?;
        let got = tokenizer.token_to_id(&text);
        if got != Some(id) {
            return Err(format!(
                "tokenizer_config.json: the added token {text:?} should have id {id}, but tokenizer.json gives {got:?}"
            ));
        }
    }
    let named = NAMED_SPECIAL_TOKENS.iter().filter_map(|name| config.get(*name)).filter_map(token_text);
    let extra = ["additional_special_tokens", "extra_special_tokens"].iter().filter_map(|name| config.get(*name));
    let extra = extra.flat_map(|tokens| match tokens {
        Json::Array(tokens) => tokens.iter().filter_map(token_text).collect::<Vec<_>>(),
        Json::Object(tokens) => tokens.values().filter_map(token_text).collect(),
        _ => Vec::new(),
    });
    for text in named.chain(extra) {
        // A token that the vocabulary lacks would get a new id, which has no embedding.
        if tokenizer.token_to_id(text).is_some() && !tokenizer.get_added_vocabulary().get_vocab().contains_key(text) {
            tokenizer.add_tokens([AddedToken::from(text, true)]).map_err(|e| e.to_string())?;
        }
    }
    Ok(())
}
