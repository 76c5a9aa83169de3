//! The vocabulary of a file, and which of its tokens are special. It does not know the files that are written from it.
//!
//! Keys and defaults: `llama_vocab::impl::load` of llama.cpp's src/llama-vocab.cpp.

mod bpe;
mod pre;
mod sentencepiece;

use std::collections::HashMap;

use serde_json::{Value, json};

use crate::GgufError;
use crate::container::{Gguf, MetadataArray, MetadataValue};
use crate::fields::{flag, string, strings, token_id};

const MODEL: &str = "tokenizer.ggml.model";
const TOKENS: &str = "tokenizer.ggml.tokens";
const TYPES: &str = "tokenizer.ggml.token_type";
/// Rein's limit of a vocabulary.
const MAX_TOKENS: usize = 1 << 21;

/// Tokens that end a turn or a text, by their text. llama.cpp takes each as the end of generation and as special,
/// whatever type the file gives it.
const ENDS: [&str; 15] = [
    "<|eot_id|>",
    "<|eom_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|calls|>",
    "<|flush|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<end_of_turn>",
    "<end_of_utterance>",
    "<｜end▁of▁sentence｜>",
    "[EOT]",
    "[EOS]",
];
/// The same where the file itself calls the token special; elsewhere the text may be a word, such as HTML's `</s>`.
const ENDS_IF_SPECIAL: [&str; 5] = ["</s>", "<eos>", "<EOT>", "_<EOT>", "[e~["];
/// Tokens for filling in the middle, which llama.cpp takes as special, whatever type the file gives them.
const FILL_IN: [&str; 16] = [
    "<|fim_prefix|>",
    "<|fim_suffix|>",
    "<|fim_middle|>",
    "<|fim_pad|>",
    "<|fim_repo|>",
    "<|repo_name|>",
    "<|file_sep|>",
    "<fim-prefix>",
    "<fim-suffix>",
    "<fim-middle>",
    "<fim_prefix>",
    "<fim_suffix>",
    "<fim_middle>",
    "<fim_pad>",
    "<reponame>",
    "<fim-pad>",
];

/// `tokenizer.ggml.token_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TokenType {
    Normal,
    Unknown,
    Control,
    UserDefined,
    Unused,
    Byte,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum VocabKind {
    ByteLevel,
    SentencePiece,
}

#[derive(Debug)]
pub(crate) struct Vocabulary<'a> {
    pub gguf: &'a Gguf,
    pub kind: VocabKind,
    pub tokens: &'a [String],
    pub types: Vec<TokenType>,
    pub bos: Option<u32>,
    pub eos: Option<u32>,
    pub unk: Option<u32>,
    pub pad: Option<u32>,
    /// Tokens that end generation, ascending; `eos` too.
    pub ends: Vec<u32>,
    pub add_bos: bool,
    pub add_eos: bool,
}

impl<'a> Vocabulary<'a> {
    pub fn read(gguf: &'a Gguf) -> Result<Self, GgufError> {
        let kind = match string(gguf, MODEL)? {
            Some("gpt2") => VocabKind::ByteLevel,
            Some("llama") => VocabKind::SentencePiece,
            Some(other) => {
                let what = format!("must be gpt2 (byte-level BPE) or llama (SentencePiece BPE), got {other}");
                return Err(GgufError::unsupported(MODEL, what));
            }
            None => return Err(GgufError::invalid(MODEL, "is required")),
        };
        let Some(tokens) = strings(gguf, TOKENS)? else {
            return Err(GgufError::invalid(TOKENS, "is required"));
        };
        if tokens.is_empty() || tokens.len() > MAX_TOKENS {
            let what = format!("must have from 1 to {MAX_TOKENS} tokens, got {}", tokens.len());
            return Err(GgufError::invalid(TOKENS, what));
        }
        let mut vocabulary = Vocabulary {
            gguf,
            kind,
            tokens,
            types: token_types(gguf, tokens)?,
            bos: None,
            eos: None,
            unk: None,
            pad: None,
            ends: Vec::new(),
            add_bos: false,
            add_eos: false,
        };
        let ids = vocabulary.check_unique()?;
        vocabulary.find_special(&ids)?;
        Ok(vocabulary)
    }

    /// The ids by text, without unused tokens.
    fn check_unique(&self) -> Result<HashMap<&'a str, u32>, GgufError> {
        let mut ids = HashMap::with_capacity(self.tokens.len());
        for (id, text, _) in self.used() {
            if let Some(other) = ids.insert(text, id) {
                let what = format!("tokens {other} and {id} are both {text:?}; the texts must differ");
                return Err(GgufError::invalid(TOKENS, what));
            }
        }
        Ok(ids)
    }

    fn find_special(&mut self, ids: &HashMap<&str, u32>) -> Result<(), GgufError> {
        for text in ENDS.iter().chain(&FILL_IN) {
            self.make_special(ids.get(text).copied());
        }
        let model_default = |id| (self.kind == VocabKind::SentencePiece).then_some(id);
        let named = |key: &str, default: Option<u32>| self.named_id(key, default);
        let bos = named("bos_token_id", model_default(1))?;
        let eos = named("eos_token_id", model_default(2))?;
        let unk = named("unknown_token_id", model_default(0))?;
        let pad = named("padding_token_id", None)?;
        let turn_ends = [named("eot_token_id", None)?, named("eom_token_id", None)?];
        let add = |key: &str| flag(self.gguf, &format!("tokenizer.ggml.{key}"));
        let add_bos = match (add("add_bos_token")?, self.kind) {
            (Some(add), _) => add,
            (None, VocabKind::SentencePiece) => true,
            (None, VocabKind::ByteLevel) => pre::PreTokenizer::of(self.gguf)?.add_bos,
        };
        let add_eos = add("add_eos_token")?.unwrap_or(false);
        self.add_bos = add_bos && bos.is_some();
        self.add_eos = add_eos && eos.is_some();
        for end in [eos].into_iter().chain(turn_ends) {
            self.make_special(end);
        }
        if self.add_bos {
            self.make_special(bos);
        }
        // Some files name a token of the text, such as "!" for the padding. As a special token it would be missing
        // from outputs.
        for id in [bos, unk, pad] {
            self.make_special(id.filter(|_| self.text(id).is_some_and(|text| text.starts_with(['<', '[']))));
        }
        let types = &self.types;
        let special = |id: &u32| is_special(types, *id);
        (self.bos, self.eos) = (bos.filter(special), eos.filter(special));
        (self.unk, self.pad) = (unk.filter(special), pad.filter(special));
        let by_text = ENDS.iter().chain(&ENDS_IF_SPECIAL).filter_map(|text| ids.get(text).copied());
        let mut ends: Vec<u32> = [eos].into_iter().chain(turn_ends).flatten().chain(by_text.filter(special)).collect();
        // In gpt-oss's and Solar's vocabularies, <|end|> ends only a message of several (llama.cpp).
        let has = |text: &str| ids.get(text).is_some_and(|id| ends.contains(id));
        if has("<|return|>") && has("<|call|>") || has("<|calls|>") && has("<|flush|>") {
            let inner = ids.get("<|end|>").copied();
            ends.retain(|id| Some(*id) != inner);
        }
        ends.sort_unstable();
        ends.dedup();
        self.ends = ends;
        Ok(())
    }

    fn named_id(&self, key: &str, default: Option<u32>) -> Result<Option<u32>, GgufError> {
        let key = format!("tokenizer.ggml.{key}");
        let stated = token_id(self.gguf, &key)?;
        let known = |id: &u32| (*id as usize) < self.tokens.len();
        match stated {
            Some(id) if !known(&id) => {
                let what = format!("must be below the number of tokens, {}, got {id}", self.tokens.len());
                Err(GgufError::invalid(key, what))
            }
            Some(id) => Ok(Some(id)),
            // A key with the value "none" is not a missing key.
            None => Ok(default.filter(|id| known(id) && !self.gguf.metadata.contains_key(&key))),
        }
    }

    fn make_special(&mut self, id: Option<u32>) {
        if let Some(kind) = id.and_then(|id| self.types.get_mut(id as usize))
            && !matches!(kind, TokenType::Unknown | TokenType::Unused)
        {
            *kind = TokenType::Control;
        }
    }

    /// The tokens that encoding may produce: id, text and type.
    pub fn used(&self) -> impl Iterator<Item = (u32, &'a str, TokenType)> {
        let tokens = self.tokens.iter().zip(0_u32..).zip(&self.types);
        let used = |text: &str, kind: TokenType| !text.is_empty() && kind != TokenType::Unused;
        tokens.filter(move |((text, _), kind)| used(text, **kind)).map(|((text, id), kind)| (id, text.as_str(), *kind))
    }

    pub fn text(&self, id: Option<u32>) -> Option<&'a str> {
        self.tokens.get(id? as usize).map(String::as_str)
    }

    /// tokenizer.json.
    pub fn tokenizer_json(&self) -> Result<Value, GgufError> {
        match self.kind {
            VocabKind::ByteLevel => bpe::tokenizer_json(self),
            VocabKind::SentencePiece => sentencepiece::tokenizer_json(self),
        }
    }

    /// `added_tokens` of tokenizer.json: those that are found in a text before it is split.
    fn added_tokens(&self) -> Vec<Value> {
        let added = self.used().filter(|(_, _, kind)| is_added(*kind));
        added
            .map(|(id, text, kind)| {
                json!({
                    "id": id,
                    "content": text,
                    "single_word": false,
                    "lstrip": false,
                    "rstrip": false,
                    "normalized": false,
                    "special": kind != TokenType::UserDefined,
                })
            })
            .collect()
    }

    /// `post_processor` of tokenizer.json; None if nothing is put around a text.
    fn template(&self) -> Option<Value> {
        let around = [(self.add_bos, self.bos), (self.add_eos, self.eos)];
        let [begin, end] = around.map(|(add, id)| self.text(id.filter(|_| add)).zip(id));
        if begin.is_none() && end.is_none() {
            return None;
        }
        let part = |sequence: &str, type_id: u32| {
            let special = |token: Option<(&str, u32)>| {
                token.map(|(text, _)| json!({"SpecialToken": {"id": text, "type_id": type_id}}))
            };
            let text = Some(json!({"Sequence": {"id": sequence, "type_id": type_id}}));
            [special(begin), text, special(end)].into_iter().flatten().collect::<Vec<_>>()
        };
        let named = [begin, end].into_iter().flatten();
        let named = named.map(|(text, id)| (text.to_owned(), json!({"id": text, "ids": [id], "tokens": [text]})));
        let pair = [part("A", 0), part("B", 1)].concat();
        Some(json!({
            "type": "TemplateProcessing",
            "single": part("A", 0),
            "pair": pair,
            "special_tokens": named.collect::<serde_json::Map<_, _>>(),
        }))
    }
}

/// Whether the token is not part of a text.
fn is_special(types: &[TokenType], id: u32) -> bool {
    matches!(types.get(id as usize), Some(TokenType::Control | TokenType::Unknown))
}

fn is_added(kind: TokenType) -> bool {
    matches!(kind, TokenType::Control | TokenType::Unknown | TokenType::UserDefined)
}

fn token_types(gguf: &Gguf, tokens: &[String]) -> Result<Vec<TokenType>, GgufError> {
    let numbers: Vec<i64> = match gguf.metadata.get(TYPES) {
        None => return Ok(vec![TokenType::Normal; tokens.len()]),
        Some(MetadataValue::Array(MetadataArray::Signed(list))) => list.clone(),
        Some(MetadataValue::Array(MetadataArray::Unsigned(list))) => {
            list.iter().map(|&n| i64::try_from(n).unwrap_or(i64::MAX)).collect()
        }
        Some(other) => {
            let what = format!("must be an array of integers, got {}", other.kind_name());
            return Err(GgufError::invalid(TYPES, what));
        }
    };
    if numbers.len() != tokens.len() {
        let what = format!("must have one entry per token, {}, got {}", tokens.len(), numbers.len());
        return Err(GgufError::invalid(TYPES, what));
    }
    let kind = |(id, number): (usize, i64)| match number {
        // llama.cpp treats "undefined" as it treats normal tokens.
        0 | 1 => Ok(TokenType::Normal),
        2 => Ok(TokenType::Unknown),
        3 => Ok(TokenType::Control),
        4 => Ok(TokenType::UserDefined),
        5 => Ok(TokenType::Unused),
        6 => Ok(TokenType::Byte),
        other => Err(GgufError::invalid(TYPES, format!("token {id}: must be from 1 to 6, got {other}"))),
    };
    numbers.into_iter().enumerate().map(kind).collect()
}

#[cfg(test)]
mod tests;
