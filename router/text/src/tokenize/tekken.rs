//! Converts Mistral's `tekken.json` in memory to a byte-level BPE that produces the same ids (mistral-common,
//! tokens/tokenizers/tekken.py).

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde::Deserialize;
use tokenizers::AddedToken;
use tokenizers::processors::template::TemplateProcessing;

use super::MAX_VOCAB;
use super::ranks::ranked_bpe;

/// Special tokens of files that list none (versions 3 and 7). Further ones are `<SPECIAL_n>`.
const LISTED_NOWHERE: [&str; 20] = [
    "<unk>",
    "<s>",
    "</s>",
    "[INST]",
    "[/INST]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
    "[TOOL_CALLS]",
    "[IMG]",
    "<pad>",
    "[IMG_BREAK]",
    "[IMG_END]",
    "[PREFIX]",
    "[MIDDLE]",
    "[SUFFIX]",
    "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]",
    "[TOOL_CONTENT]",
];
const BOS: &str = "<s>";

#[derive(Deserialize)]
struct Tekken {
    config: Config,
    vocab: Vec<Ranked>,
    special_tokens: Option<Vec<Special>>,
}

#[derive(Deserialize)]
struct Config {
    pattern: String,
    default_vocab_size: usize,
    default_num_special_tokens: usize,
}

#[derive(Deserialize)]
struct Ranked {
    rank: usize,
    token_bytes: String,
}

#[derive(Deserialize)]
struct Special {
    rank: usize,
    token_str: String,
}

pub(super) fn convert(json: &[u8]) -> Result<tokenizers::Tokenizer, String> {
    let Tekken { config, vocab, special_tokens } = serde_json::from_slice(json).map_err(|e| e.to_string())?;
    let (all, count) = (config.default_vocab_size, config.default_num_special_tokens);
    if count > all || all > MAX_VOCAB || all - count > vocab.len() {
        return Err(format!("config: {all} tokens, of which {count} are special, with {} in vocab", vocab.len()));
    }
    let specials = specials(special_tokens, count)?;
    // The last ones are left out so that special tokens have room.
    let tokens = vocab[..all - count].iter().enumerate().map(|(rank, token)| {
        let bytes = BASE64_STANDARD.decode(&token.token_bytes).ok().filter(|bytes| !bytes.is_empty());
        bytes.filter(|_| token.rank == rank).ok_or_else(|| format!("vocab[{rank}] must have this rank and some bytes"))
    });
    let tokens = tokens.collect::<Result<Vec<_>, _>>()?;
    let mut tokenizer = ranked_bpe(&tokens, &specials, &config.pattern)?;
    let added = specials.iter().map(|text| AddedToken::from(text.as_str(), true).normalized(false));
    tokenizer.add_special_tokens(added).map_err(|e| e.to_string())?;
    if let Some(bos) = specials.iter().position(|text| text == BOS) {
        let around = TemplateProcessing::builder()
            .try_single(format!("{BOS} $A"))
            .and_then(|builder| builder.try_pair(format!("{BOS} $A {BOS} $B")))
            .map(|builder| builder.special_tokens(vec![(BOS, bos as u32)]).build());
        tokenizer.with_post_processor(Some(around?.map_err(|e| e.to_string())?));
    }
    Ok(tokenizer)
}

/// The texts of special tokens by id.
fn specials(listed: Option<Vec<Special>>, count: usize) -> Result<Vec<String>, String> {
    let listed = match listed {
        Some(listed) => listed,
        None => LISTED_NOWHERE
            .iter()
            .enumerate()
            .map(|(rank, text)| Special { rank, token_str: (*text).to_owned() })
            .collect(),
    };
    let mut texts: Vec<String> = (0..count).map(|i| format!("<SPECIAL_{i}>")).collect();
    for special in listed {
        let text = texts.get_mut(special.rank).ok_or_else(|| {
            format!("special_tokens: {} has rank {}, but there are {count}", special.token_str, special.rank)
        })?;
        *text = special.token_str;
    }
    Ok(texts)
}
