//! Byte-level BPE of a list of tokens by rank, as tiktoken has it. tiktoken merges by rank. The merge of each token is
//! recovered by applying the merges of lower rank to its bytes until two parts remain.

use std::collections::HashMap;

use tokenizers::SplitDelimiterBehavior;
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};

use super::bytes::alphabet;

/// A tokenizer without added tokens. `before` are special tokens whose ids precede the ranks.
pub(super) fn ranked_bpe(
    tokens: &[Vec<u8>],
    before: &[String],
    pattern: &str,
) -> Result<tokenizers::Tokenizer, String> {
    let by_bytes: HashMap<&[u8], u32> = tokens.iter().zip(0_u32..).map(|(token, id)| (token.as_slice(), id)).collect();
    if by_bytes.len() != tokens.len() {
        return Err("a token appears twice".into());
    }
    let alphabet = alphabet();
    let spell = |bytes: &[u8]| bytes.iter().map(|b| alphabet[usize::from(*b)]).collect::<String>();
    let mut merges = Vec::with_capacity(tokens.len());
    for (token, rank) in tokens.iter().zip(0_u32..).filter(|(token, _)| token.len() > 1) {
        let at = last_merge(token, rank, &by_bytes)
            .ok_or_else(|| format!("the token of rank {rank} is not a merge of two tokens of lower rank"))?;
        merges.push((spell(&token[..at]), spell(&token[at..])));
    }
    let texts = before.iter().cloned().chain(tokens.iter().map(|token| spell(token)));
    let vocab: Vocab = texts.zip(0_u32..).collect();
    if vocab.len() != before.len() + tokens.len() {
        return Err("a special token is spelled like another one".into());
    }
    let bpe = BPE::builder().vocab_and_merges(vocab, merges).ignore_merges(true).build().map_err(|e| e.to_string())?;
    let split = Split::new(SplitPattern::Regex(pattern.into()), SplitDelimiterBehavior::Isolated, false)
        .map_err(|e| e.to_string())?;
    let byte_level = ByteLevel::new(false, true, false);
    let mut tokenizer = tokenizers::Tokenizer::new(bpe);
    tokenizer.with_pre_tokenizer(Some(Sequence::new(vec![
        PreTokenizerWrapper::Split(split),
        PreTokenizerWrapper::ByteLevel(byte_level),
    ])));
    tokenizer.with_decoder(Some(byte_level));
    Ok(tokenizer)
}

/// The offset in a token at which its last merge joins two parts.
fn last_merge(token: &[u8], rank: u32, ranks: &HashMap<&[u8], u32>) -> Option<usize> {
    // The borders of the parts. `pairs[i]` is the rank of parts i and i + 1 joined.
    let mut borders: Vec<usize> = (0..=token.len()).collect();
    let join = |borders: &[usize], i: usize| {
        let range = *borders.get(i)?..*borders.get(i + 2)?;
        ranks.get(&token[range]).copied().filter(|r| *r < rank)
    };
    let mut pairs: Vec<u32> = (0..token.len()).map(|i| join(&borders, i).unwrap_or(u32::MAX)).collect();
    while borders.len() > 3 {
        let (i, best) = pairs.iter().enumerate().min_by_key(|(_, rank)| **rank)?;
        if *best == u32::MAX {
            return None;
        }
        borders.remove(i + 1);
        pairs.remove(i);
        pairs[i] = join(&borders, i).unwrap_or(u32::MAX);
        if i > 0 {
            pairs[i - 1] = join(&borders, i - 1).unwrap_or(u32::MAX);
        }
    }
    (borders.len() == 3).then(|| borders[1])
}
