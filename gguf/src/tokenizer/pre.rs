//! How each `tokenizer.ggml.pre` splits a text, as in the tokenizer.json of the models that it stands for. It does not
//! know vocabularies.
//!
//! Names and patterns: src/llama-vocab.cpp of llama.cpp, where a comment gives the original pattern if its own differs.

use serde_json::{Value, json};

use crate::GgufError;
use crate::container::Gguf;
use crate::fields::string;

const PRE: &str = "tokenizer.ggml.pre";

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const DIGIT: &str = r"\p{N}";
const LLAMA3: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*",
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
);
const QWEN2: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*",
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
);
const QWEN35: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*",
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
);
const SEED_CODER: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+",
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
);
const GPT4O: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);
const TEKKEN: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);
/// tokenization_kimi.py of Kimi K2.
const KIMI_K2: &str = concat!(
    r"[\p{Han}]+",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);
const DEEPSEEK_V3: [&str; 3] = [
    r"\p{N}{1,3}",
    r"[\x{4e00}-\x{9fa5}\x{3040}-\x{309f}\x{30a0}-\x{30ff}]+",
    concat!(
        r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"##,
        r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
];
const DEEPSEEK_HAN: &str = r"[\x{4e00}-\x{9fa5}\x{800}-\x{4e00}\x{ac00}-\x{d7ff}]+";
const DEEPSEEK_LETTERS: &str = concat!(
    r"\s?[",
    r"A-Za-z\x{b5}\x{c0}-\x{d6}\x{d8}-\x{f6}\x{f8}-\x{1ba}\x{1bc}-\x{1bf}\x{1c4}-\x{293}\x{295}-\x{2af}\x{370}",
    r"-\x{373}\x{376}\x{377}\x{37b}-\x{37d}\x{37f}\x{386}\x{388}-\x{38a}\x{38c}\x{38e}-\x{3a1}\x{3a3}-\x{3f5}",
    r"\x{3f7}-\x{481}\x{48a}-\x{52f}\x{531}-\x{556}\x{10a0}-\x{10c5}\x{13a0}-\x{13f5}\x{13f8}-\x{13fd}\x{1c90}",
    r"-\x{1cba}\x{1cbd}-\x{1cbf}\x{1d00}-\x{1d2b}\x{1d6b}-\x{1d77}\x{1d79}-\x{1d9a}\x{1e00}-\x{1f15}\x{1f18}-",
    r"\x{1f1d}\x{1f20}-\x{1f45}\x{1f48}-\x{1f4d}\x{1f50}-\x{1f57}\x{1f59}\x{1f5b}\x{1f5d}\x{1f5f}-\x{1f7d}",
    r"\x{1f80}-\x{1fb4}\x{1fb6}-\x{1fbc}\x{1fbe}\x{1fc2}-\x{1fc4}\x{1fc6}-\x{1fcc}\x{1fd0}-\x{1fd3}\x{1fd6}-",
    r"\x{1fdb}\x{1fe0}-\x{1fec}\x{1ff2}-\x{1ff4}\x{1ff6}-\x{1ffc}\x{2102}\x{2107}\x{210a}-\x{2113}\x{2115}",
    r"\x{2119}-\x{211d}\x{2124}\x{2126}\x{2128}\x{212a}-\x{212d}\x{212f}-\x{2134}\x{2139}\x{213c}-\x{213f}",
    r"\x{2145}-\x{2149}\x{214e}\x{2183}\x{2184}\x{2c00}-\x{2c7b}\x{2c7e}-\x{2ce4}\x{2ceb}-\x{2cee}\x{2cf2}",
    r"\x{2cf3}\x{a640}-\x{a66d}\x{a680}-\x{a69b}\x{a722}-\x{a76f}\x{a771}-\x{a787}\x{a78b}-\x{a78e}\x{ab70}-",
    r"\x{abbf}\x{fb00}-\x{fb06}\x{fb13}-\x{fb17}\x{ff21}-\x{ff3a}\x{ff41}-\x{ff5a}\x{10400}-\x{1044f}\x{104b0}",
    r"-\x{104d3}\x{104d8}-\x{104fb}\x{10c80}-\x{10cb2}\x{10cc0}-\x{10cf2}\x{118a0}-\x{118df}\x{1e900}-",
    r"\x{1e943}",
    "]+"
);
const DEEPSEEK_LLM: [&str; 6] = [
    r"[\r\n]",
    DEEPSEEK_LETTERS,
    r"\s?[!-/:-~\x{ff01}-\x{ff0f}\x{ff1a}-\x{ff5e}\x{2018}-\x{201f}\x{3000}-\x{3002}]+",
    r"\s+$",
    DEEPSEEK_HAN,
    r"\p{N}+",
];
const DEEPSEEK_CODER: [&str; 5] = [r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", DEEPSEEK_HAN, DIGIT];
/// llama.cpp's for files that do not say how their model splits.
const DEFAULT: [&str; 4] = [r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"];

/// One way to split.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PreTokenizer {
    pub names: &'static [&'static str],
    /// Applied one after the other, each to the parts that the one before left or isolated.
    pub splits: &'static [&'static str],
    pub nfc: bool,
    /// Whether a word that is a token is taken as it is, without merges.
    pub ignore_merges: bool,
    /// Whether the model expects BOS if the file does not say.
    pub add_bos: bool,
}

const fn row(names: &'static [&'static str], splits: &'static [&'static str]) -> PreTokenizer {
    PreTokenizer { names, splits, nfc: false, ignore_merges: false, add_bos: false }
}

pub(super) const PRE_TOKENIZERS: &[PreTokenizer] = &[
    PreTokenizer { nfc: true, ..row(&["qwen2", "deepseek-r1-qwen"], &[QWEN2]) },
    PreTokenizer { nfc: true, ..row(&["qwen35"], &[QWEN35]) },
    PreTokenizer {
        ignore_merges: true,
        add_bos: true,
        ..row(&["llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral"], &[LLAMA3])
    },
    row(&["smaug-bpe", "dbrx", "chatglm-bpe"], &[LLAMA3]),
    PreTokenizer { ignore_merges: true, ..row(&["glm4", "glm5"], &[LLAMA3]) },
    row(&["hunyuan"], &[QWEN2]),
    row(&["seed-coder"], &[SEED_CODER]),
    PreTokenizer { ignore_merges: true, add_bos: true, ..row(&["tekken"], &[TEKKEN]) },
    row(&["gpt-4o", "llama4", "minimax-m2"], &[GPT4O]),
    row(&["deepseek-v3", "hunyuan-dense"], &DEEPSEEK_V3),
    row(&["deepseek-llm"], &DEEPSEEK_LLM),
    row(&["deepseek-coder"], &DEEPSEEK_CODER),
    PreTokenizer { ignore_merges: true, ..row(&["kimi-k2"], &[KIMI_K2]) },
    row(&["smollm", "starcoder", "refact"], &[DIGIT, GPT2]),
    row(&["gpt-2", "olmo", "granite-docling"], &[GPT2]),
    row(&["default"], &DEFAULT),
];

impl PreTokenizer {
    pub fn of(gguf: &Gguf) -> Result<Self, GgufError> {
        let known = || {
            let names = PRE_TOKENIZERS.iter().flat_map(|row| row.names);
            names.copied().collect::<Vec<_>>().join(", ")
        };
        let Some(name) = string(gguf, PRE)? else {
            let what = format!("is required; convert the model again, or set it to one of {}", known());
            return Err(GgufError::invalid(PRE, what));
        };
        let row = PRE_TOKENIZERS.iter().find(|row| row.names.contains(&name));
        row.copied().ok_or_else(|| GgufError::unsupported(PRE, format!("must be one of {}, got {name}", known())))
    }

    /// `normalizer` of tokenizer.json.
    pub fn normalizer(&self) -> Value {
        if self.nfc { json!({"type": "NFC"}) } else { Value::Null }
    }

    /// `pre_tokenizer` of tokenizer.json.
    pub fn steps(&self) -> Value {
        let steps: Vec<Value> = self.splits.iter().map(|regex| split(regex)).chain([byte_level()]).collect();
        json!({"type": "Sequence", "pretokenizers": steps})
    }
}

fn split(regex: &str) -> Value {
    json!({
        "type": "Split",
        "pattern": {"Regex": regex},
        "behavior": "Isolated",
        "invert": false,
    })
}

/// The step that spells bytes, without GPT-2's own split.
pub(super) fn byte_level() -> Value {
    json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false})
}
