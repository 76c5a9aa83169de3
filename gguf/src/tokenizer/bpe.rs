//! tokenizer.json of a byte-level BPE (`tokenizer.ggml.model` gpt2). It does not know which model it belongs to.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use super::pre::{PreTokenizer, byte_level};
use super::{TokenType, Vocabulary, is_added};
use crate::GgufError;
use crate::fields::strings;

const MERGES: &str = "tokenizer.ggml.merges";

pub(super) fn tokenizer_json(vocabulary: &Vocabulary) -> Result<Value, GgufError> {
    let pre = PreTokenizer::of(vocabulary.gguf)?;
    let Some(merges) = strings(vocabulary.gguf, MERGES)? else {
        return Err(GgufError::invalid(MERGES, "is required"));
    };
    let vocab = model_vocab(vocabulary);
    let texts: HashSet<&str> = vocab.iter().map(|(text, _)| *text).collect();
    let merges = merges.iter().enumerate().map(|(i, merge)| split_merge(i, merge, &texts));
    let merges = merges.collect::<Result<Vec<_>, _>>()?;
    let vocab: Map<String, Value> = vocab.into_iter().map(|(text, id)| (text.to_owned(), id.into())).collect();
    Ok(json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": vocabulary.added_tokens(),
        "normalizer": pre.normalizer(),
        "pre_tokenizer": pre.steps(),
        "post_processor": vocabulary.template().unwrap_or_else(byte_level),
        "decoder": byte_level(),
        "model": {
            "type": "BPE",
            "dropout": null,
            "unk_token": null,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": false,
            "byte_fallback": false,
            "ignore_merges": pre.ignore_merges,
            "vocab": vocab,
            "merges": merges,
        },
    }))
}

/// The tokens that merges may produce. The `tokenizers` library numbers added tokens that are not in this vocabulary
/// from its size on, whatever id they declare. They are left out only where that gives the right ids, as in most
/// models; with `ignore_merges`, a text must not reach them.
fn model_vocab<'a>(vocabulary: &Vocabulary<'a>) -> Vec<(&'a str, u32)> {
    let used: Vec<(u32, &str, TokenType)> = vocabulary.used().collect();
    let last_text = used.iter().rposition(|(_, _, kind)| !is_added(*kind)).map_or(0, |at| at + 1);
    let dense = used.iter().zip(0..).all(|((id, _, _), at)| *id == at);
    let kept = if dense { used.get(..last_text).unwrap_or(&used) } else { &used };
    kept.iter().map(|(id, text, _)| (*text, *id)).collect()
}

/// The two parts of "a b", which and whose join are tokens.
fn split_merge<'a>(i: usize, merge: &'a str, texts: &HashSet<&str>) -> Result<[&'a str; 2], GgufError> {
    let bad = |what: String| GgufError::invalid(format!("{MERGES}[{i}]"), what);
    // The first character may be a space itself.
    let first = merge.chars().next().map_or(0, char::len_utf8);
    let space = merge.get(first..).and_then(|rest| rest.find(' ')).map(|at| at + first);
    let parts =
        space.and_then(|at| merge.split_at_checked(at)).map(|(left, right)| [left, right.get(1..).unwrap_or("")]);
    let Some([left, right]) = parts.filter(|parts| !parts.contains(&"")) else {
        return Err(bad(format!("must be two tokens with a space between them, got {merge:?}")));
    };
    let joined = format!("{left}{right}");
    match [left, right, &joined].into_iter().find(|text| !texts.contains(text)) {
        Some(missing) => Err(bad(format!("{missing:?} must be a token"))),
        None => Ok([left, right]),
    }
}
