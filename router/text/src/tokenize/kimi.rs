//! Converts Kimi's `tiktoken.model` in memory to a byte-level BPE that produces the same ids. The pattern and the
//! reserved tokens are those of K2, K2-Thinking, K2.5 and K2.6.

use std::collections::HashMap;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde_json::Value as Json;
use tokenizers::AddedToken;

use super::ranks::ranked_bpe;

const PATTERN: &str = concat!(
    r"[\p{Han}]+",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|\p{N}{1,3}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*",
    r"|\s*[\r\n]+",
    r"|\s+(?!\S)",
    r"|\s+",
);

/// Number of special tokens, named or reserved; their ids follow the ranks.
const SPECIAL_TOKENS: u32 = 256;
/// Most characters that Kimi's code encodes at once.
const MAX_PART: usize = 400_000;
/// Longest run of whitespace, or of other characters, that Kimi's code encodes at once.
const MAX_RUN: usize = 25_000;

/// Builds the tokenizer from the rank file and from `added_tokens_decoder` of the configuration.
pub(super) fn convert(model: &[u8], config: &Json) -> Result<tokenizers::Tokenizer, String> {
    let tokens = ranks(model)?;
    let mut tokenizer = ranked_bpe(&tokens, &[], PATTERN)?;
    add_special(&mut tokenizer, tokens.len() as u32, config)?;
    Ok(tokenizer)
}

fn add_special(tokenizer: &mut tokenizers::Tokenizer, base: u32, config: &Json) -> Result<(), String> {
    let mut named: HashMap<u32, AddedToken> = HashMap::new();
    for (id, token) in config.get("added_tokens_decoder").and_then(Json::as_object).into_iter().flatten() {
        let content = token.get("content").and_then(Json::as_str);
        let (Ok(id), Some(content)) = (id.parse::<u32>(), content) else {
            return Err(format!(
                "tokenizer_config.json: added_tokens_decoder.{id} must have a numeric id and a string content"
            ));
        };
        if !(base..base + SPECIAL_TOKENS).contains(&id) {
            return Err(format!(
                "tokenizer_config.json: the id of an added token must be in {base}..{}, got {id}",
                base + SPECIAL_TOKENS
            ));
        }
        let special = token.get("special").and_then(Json::as_bool).unwrap_or(false);
        named.insert(id, AddedToken::from(content, special).normalized(false));
    }
    let reserved = |id| AddedToken::from(format!("<|reserved_token_{id}|>"), true).normalized(false);
    let all = (base..base + SPECIAL_TOKENS).map(|id| named.remove(&id).unwrap_or_else(|| reserved(id)));
    let added = tokenizer.add_tokens(all).map_err(|e| e.to_string())?;
    match added == SPECIAL_TOKENS as usize {
        true => Ok(()),
        false => Err("tokenizer_config.json: two added tokens have the same content".into()),
    }
}

/// Reads lines of a base64 token and its rank; ranks must be 0, 1, 2, ...
fn ranks(model: &[u8]) -> Result<Vec<Vec<u8>>, String> {
    let mut tokens = Vec::new();
    for (number, line) in model.split(|b| *b == b'\n').enumerate().filter(|(_, line)| !line.trim_ascii().is_empty()) {
        let bad = |what: &str| format!("line {}: {what}", number + 1);
        let mut fields = line.trim_ascii().splitn(2, |b| *b == b' ');
        let token = BASE64_STANDARD.decode(fields.next().unwrap_or_default());
        let token = token.ok().filter(|t| !t.is_empty()).ok_or_else(|| bad("not base64"))?;
        let rank = fields.next().and_then(|rank| std::str::from_utf8(rank).ok()?.trim().parse::<usize>().ok());
        if rank != Some(tokens.len()) {
            return Err(bad(&format!("expected rank {}", tokens.len())));
        }
        tokens.push(token);
    }
    match tokens.len() {
        256..=1_000_000 => Ok(tokens),
        len => Err(format!("expected 256 to 1000000 ranks, got {len}")),
    }
}

/// Whether [`split_long_text`] may split this text; false only if it does not.
pub(super) fn may_split(text: &str) -> bool {
    // A run that is too long fills a whole block of half its length.
    let one_kind = |block: &[u8]| {
        let space = |b: &u8| matches!(b, b' ' | b'\n' | b'\t' | b'\r');
        !block.iter().any(space) || !block.iter().any(|b| b.is_ascii_graphic())
    };
    text.len() > MAX_PART || text.as_bytes().chunks_exact(MAX_RUN / 2).any(one_kind)
}

/// Splits a long text at the same places as Kimi's code, which encodes each part separately.
pub(super) fn split_long_text(text: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let (mut start, mut count, mut run, mut space) = (0, 0, 0, None);
    for (at, c) in text.char_indices() {
        let is_space = c.is_whitespace() || ('\x1c'..='\x1f').contains(&c);
        if count == MAX_PART {
            parts.push(&text[start..at]);
            (start, count, run, space) = (at, 0, 0, None);
        }
        count += 1;
        if space != Some(is_space) {
            (run, space) = (1, Some(is_space));
            continue;
        }
        run += 1;
        if run > MAX_RUN {
            parts.push(&text[start..at]);
            (start, run) = (at, 1);
        }
    }
    parts.push(&text[start..]);
    parts
}
