//! tokenizer.json of a SentencePiece BPE (`tokenizer.ggml.model` llama), as transformers converts Llama's. It does not
//! know which model it belongs to.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use super::{TokenType, Vocabulary, is_added};
use crate::GgufError;
use crate::container::{MetadataArray, MetadataValue};
use crate::fields::flag;

const SCORES: &str = "tokenizer.ggml.scores";
const ADD_SPACE: &str = "tokenizer.ggml.add_space_prefix";
const REMOVE_SPACES: &str = "tokenizer.ggml.remove_extra_whitespaces";
/// What SentencePiece writes for a space.
const SPACE: char = '▁';
/// Longer tokens are not searched for merges, which takes time in proportion to the square of the length.
const MAX_MERGED_BYTES: usize = 1 << 8;
/// Gemma's 262,144 tokens have 514,906.
const MAX_MERGES: usize = 1 << 23;

pub(super) fn tokenizer_json(vocabulary: &Vocabulary) -> Result<Value, GgufError> {
    if flag(vocabulary.gguf, REMOVE_SPACES)? == Some(true) {
        return Err(GgufError::unsupported(REMOVE_SPACES, "must be false or missing"));
    }
    let add_space = flag(vocabulary.gguf, ADD_SPACE)?.unwrap_or(true);
    let replace = json!({"type": "Replace", "pattern": {"String": " "}, "content": SPACE.to_string()});
    let back = json!({"type": "Replace", "pattern": {"String": SPACE.to_string()}, "content": " "});
    let mut decoders = vec![back, json!({"type": "ByteFallback"}), json!({"type": "Fuse"})];
    let normalizer = if add_space {
        decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
        json!({"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": SPACE.to_string()}, replace]})
    } else {
        replace
    };
    let scores = scores(vocabulary)?;
    let pieces = pieces(vocabulary, &scores, add_space);
    let mut vocab: Map<String, Value> = vocabulary.used().map(|(id, text, _)| (text.to_owned(), id.into())).collect();
    // A user-defined token has spaces in the file. It is found under that text, and made by merges under this one
    // where tokens in a text are not looked for.
    let mut escaped: Vec<_> = pieces.iter().filter(|(text, _)| !vocab.contains_key(*text)).collect();
    escaped.sort_unstable_by_key(|(_, piece)| piece.id);
    vocab.extend(escaped.into_iter().map(|(text, piece)| (text.clone(), piece.id.into())));
    Ok(json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": vocabulary.added_tokens(),
        "normalizer": normalizer,
        "pre_tokenizer": null,
        "post_processor": vocabulary.template(),
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {
            "type": "BPE",
            "dropout": null,
            "unk_token": vocabulary.text(vocabulary.unk),
            "continuing_subword_prefix": null,
            "end_of_word_suffix": null,
            "fuse_unk": true,
            "byte_fallback": true,
            "ignore_merges": false,
            "vocab": vocab,
            "merges": merges(&pieces)?,
        },
    }))
}

/// A token that merges may produce or use.
struct Piece {
    id: u32,
    score: f64,
}

/// The pieces by their text with `▁`. Special and byte tokens are none, so that no text can produce them. Of the
/// user-defined tokens, runs of whitespace are pieces: SentencePiece finds them before it merges anything.
fn pieces(vocabulary: &Vocabulary, scores: &[f64], add_space: bool) -> HashMap<String, Piece> {
    let mut pieces = HashMap::new();
    for (id, text, kind) in vocabulary.used() {
        let score = scores.get(id as usize).copied().unwrap_or(0.0);
        let spaces = |c: char| matches!(c, ' ' | SPACE | '\n' | '\t' | '\r');
        match kind {
            TokenType::Normal => {
                // Unlike a user-defined token with the same text, this one is what the converter found.
                pieces.insert(text.to_owned(), Piece { id, score });
            }
            // A space that the normalizer puts before a word belongs to the word.
            TokenType::UserDefined if !add_space && text.chars().all(spaces) => {
                let escaped = text.replace(' ', "▁");
                pieces.entry(escaped).or_insert(Piece { id, score: f64::INFINITY });
            }
            _ => debug_assert!(is_added(kind) || kind == TokenType::Byte),
        }
    }
    pieces
}

/// SentencePiece joins the neighbours whose join has the highest score. The same order as a list of merges, as in
/// `generate_merges` of transformers' convert_slow_tokenizer.py.
fn merges(pieces: &HashMap<String, Piece>) -> Result<Vec<[&str; 2]>, GgufError> {
    struct Merge<'a> {
        score: f64,
        left: (&'a str, u32),
        right: (&'a str, u32),
    }
    let mut found = Vec::with_capacity(pieces.len() * 2);
    for (text, piece) in pieces.iter().filter(|(text, _)| text.len() <= MAX_MERGED_BYTES) {
        for (at, _) in text.char_indices().skip(1) {
            let (left, right) = text.split_at(at);
            if let (Some(a), Some(b)) = (pieces.get(left), pieces.get(right)) {
                if found.len() == MAX_MERGES {
                    let what = format!("the tokens may be made by {MAX_MERGES} merges");
                    return Err(GgufError::unsupported("tokenizer.ggml.tokens", what));
                }
                found.push(Merge { score: piece.score, left: (left, a.id), right: (right, b.id) });
            }
        }
    }
    let chars = |text: &str| text.chars().count();
    found.sort_by(|a, b| {
        let longer = chars(b.left.0).cmp(&chars(a.left.0)).then(chars(b.right.0).cmp(&chars(a.right.0)));
        let by_id = (a.left.1, a.right.1).cmp(&(b.left.1, b.right.1));
        b.score.total_cmp(&a.score).then(longer).then(by_id)
    });
    Ok(found.into_iter().map(|merge| [merge.left.0, merge.right.0]).collect())
}

fn scores(vocabulary: &Vocabulary) -> Result<Vec<f64>, GgufError> {
    let scores: Vec<f64> = match vocabulary.gguf.metadata.get(SCORES) {
        None => return Err(GgufError::invalid(SCORES, "is required")),
        Some(MetadataValue::Array(MetadataArray::Float(list))) => list.clone(),
        Some(MetadataValue::Array(MetadataArray::Signed(list))) => list.iter().map(|&n| n as f64).collect(),
        Some(other) => {
            let what = format!("must be an array of floats, got {}", other.kind_name());
            return Err(GgufError::invalid(SCORES, what));
        }
    };
    if scores.len() != vocabulary.tokens.len() {
        let what = format!("must have one entry per token, {}, got {}", vocabulary.tokens.len(), scores.len());
        return Err(GgufError::invalid(SCORES, what));
    }
    match scores.iter().position(|score| score.is_nan()) {
        Some(id) => Err(GgufError::invalid(SCORES, format!("token {id}: must be a number, got NaN"))),
        None => Ok(scores),
    }
}
