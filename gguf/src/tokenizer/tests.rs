use std::str::FromStr;

use tokenizers::Tokenizer;

use super::*;
use crate::tests::{BYTE_LEVEL, Header, Put};

fn load(header: &Header) -> Tokenizer {
    let gguf = header.read();
    let json = Vocabulary::read(&gguf).unwrap().tokenizer_json().unwrap();
    Tokenizer::from_str(&json.to_string()).unwrap()
}

fn ids(tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
    tokenizer.encode(text, false).unwrap().get_ids().to_vec()
}

fn message(header: &Header) -> String {
    let gguf = header.read();
    let made = Vocabulary::read(&gguf).and_then(|vocabulary| vocabulary.tokenizer_json());
    made.expect_err("the tokenizer is invalid").to_string()
}

fn byte_level() -> Header {
    Header::new().byte_level()
}

const PIECES: [(&str, f32, i32); 16] = [
    ("<unk>", 0.0, 2),
    ("<s>", 0.0, 3),
    ("</s>", 0.0, 3),
    ("<0x0A>", 0.0, 6),
    ("▁", -10.0, 1),
    ("a", -11.0, 1),
    ("b", -12.0, 1),
    ("c", -13.0, 1),
    ("ab", -2.0, 1),
    ("bc", -1.0, 1),
    ("▁a", -3.0, 1),
    ("abc", -2.5, 1),
    ("  ", -1000.0, 4),
    ("<0xC3>", 0.0, 6),
    ("<0xA9>", 0.0, 6),
    ("unused", -5.0, 5),
];

fn sentencepiece() -> Header {
    Header::new()
        .put("tokenizer.ggml.model", Put::Str("llama"))
        .put("tokenizer.ggml.tokens", Put::Strs(&PIECES.map(|piece| piece.0)))
        .put("tokenizer.ggml.scores", Put::F32s(&PIECES.map(|piece| piece.1)))
        .put("tokenizer.ggml.token_type", Put::I32s(&PIECES.map(|piece| piece.2)))
}

#[test]
fn byte_level_text_is_merged_and_special_tokens_are_found() {
    let tokenizer = load(&byte_level());
    assert_eq!(ids(&tokenizer, "ab ab\na1"), [3, 5, 7, 0, 6]);
    // The type of <|im_end|> in the file is "normal".
    assert_eq!(ids(&tokenizer, "a<|begin|> ab<|im_end|><tool>"), [0, 8, 5, 9, 10]);
    assert_eq!(ids(&tokenizer, ""), [] as [u32; 0]);
    assert_eq!(tokenizer.id_to_token(11), None);
    assert_eq!(tokenizer.decode(&[3, 8, 5, 10], true).unwrap(), "ab ab<tool>");
}

/// The library numbers added tokens that the vocabulary lacks by itself.
#[test]
fn added_tokens_keep_their_ids_wherever_they_are() {
    let front = ["<|begin|>", "<|im_end|>", "a", "b", "", "ab", "<|x|>"];
    let tokenizer = load(
        &byte_level()
            .set("tokenizer.ggml.tokens", Put::Strs(&front))
            .set("tokenizer.ggml.token_type", Put::I32s(&[3, 3, 1, 1, 5, 1, 3]))
            .set("tokenizer.ggml.merges", Put::Strs(&["a b"]))
            .set("tokenizer.ggml.bos_token_id", Put::U32(0))
            .set("tokenizer.ggml.eos_token_id", Put::U32(1)),
    );
    assert_eq!(ids(&tokenizer, "<|begin|>ab<|x|>b<|im_end|>"), [0, 5, 6, 3, 1]);
}

#[test]
fn bos_and_eos_are_put_around_a_text_if_the_file_says_so() {
    let with = |add_bos: bool, add_eos: bool| {
        let header = byte_level().put("tokenizer.ggml.add_bos_token", Put::Bool(add_bos));
        let tokenizer = load(&header.put("tokenizer.ggml.add_eos_token", Put::Bool(add_eos)));
        tokenizer.encode("ab", true).unwrap().get_ids().to_vec()
    };
    assert_eq!(with(false, false), [3]);
    assert_eq!(with(true, false), [8, 3]);
    assert_eq!(with(false, true), [3, 9]);
    assert_eq!(with(true, true), [8, 3, 9]);
    // Without the key, it depends on the kind of tokenizer.
    let begins = |header: &Header| load(header).encode("ab", true).unwrap().get_ids().first().copied();
    assert_eq!(begins(&byte_level()), Some(3));
    assert_eq!(begins(&byte_level().set("tokenizer.ggml.pre", Put::Str("llama-bpe"))), Some(8));
    assert_eq!(begins(&sentencepiece()), Some(1));
}

#[test]
fn every_pre_tokenizer_loads_and_keeps_the_text() {
    const TEXT: &str = "I'm 1234 años,\r\n  中文 ab\n\n\tx\u{301} \u{1f600}!? Ⅷ ſ ";
    for row in pre::PRE_TOKENIZERS {
        for name in row.names {
            let tokenizer = load(&byte_level().set("tokenizer.ggml.pre", Put::Str(name)));
            let mut text = tokenizers::PreTokenizedString::from(TEXT);
            let steps = tokenizer.get_pre_tokenizer().unwrap();
            tokenizers::PreTokenizer::pre_tokenize(steps, &mut text).unwrap();
            let splits = text.get_splits(tokenizers::OffsetReferential::Original, tokenizers::OffsetType::Byte);
            let words: Vec<&str> = splits.iter().map(|(_, (from, to), _)| &TEXT[*from..*to]).collect();
            assert_eq!(words.concat(), TEXT, "{name}");
            assert!(words.len() > 8, "{name}: {words:?}");
            assert_eq!(ids(&tokenizer, "ab ab"), [3, 5], "{name}");
        }
    }
}

#[test]
fn digits_are_split_as_the_model_does() {
    let words = |name: &str, text: &str| {
        let tokenizer = load(&byte_level().set("tokenizer.ggml.pre", Put::Str(name)));
        let mut pieces = tokenizers::PreTokenizedString::from(text);
        let steps = tokenizer.get_pre_tokenizer().unwrap();
        tokenizers::PreTokenizer::pre_tokenize(steps, &mut pieces).unwrap();
        let splits = pieces.get_splits(tokenizers::OffsetReferential::Original, tokenizers::OffsetType::Byte);
        splits.into_iter().map(|(word, ..)| word.to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(words("qwen2", "12345 x"), ["1", "2", "3", "4", "5", "Ġx"]);
    assert_eq!(words("llama-bpe", "12345 x"), ["123", "45", "Ġx"]);
    assert_eq!(words("deepseek-v3", "12345 x"), ["123", "45", "Ġx"]);
    assert_eq!(words("smollm", "12 x"), ["1", "2", "Ġx"]);
    assert_eq!(words("gpt-2", "12345 x"), ["12345", "Ġx"]);
    assert_eq!(words("gpt-4o", "camelCase"), ["camel", "Case"]);
    assert_eq!(words("kimi-k2", "x中文y"), ["x", "ä¸Ńæĸĩ", "y"]);
}

#[test]
fn sentencepiece_merges_by_score_and_falls_back_to_bytes() {
    let tokenizer = load(&sentencepiece());
    // "bc" has a higher score than "ab", and "abc" is made of "a" and "bc".
    assert_eq!(ids(&tokenizer, "abc"), [4, 11]);
    assert_eq!(ids(&tokenizer, "a"), [10]);
    assert_eq!(ids(&tokenizer, "é\n"), [4, 13, 14, 3]);
    // A space comes before each piece of text between added tokens.
    assert_eq!(ids(&tokenizer, "<s>a</s>a"), [1, 10, 2, 10]);
    assert_eq!(ids(&tokenizer, "a  b"), [10, 12, 4, 6]);
    assert_eq!(tokenizer.decode(&[10, 7, 13, 14], true).unwrap(), "acé");
    assert_eq!(tokenizer.encode("a", true).unwrap().get_ids(), [1, 10]);
    // An unused token is not made, and its letters have no bytes here.
    assert!(!ids(&tokenizer, "unused").contains(&15));
}

#[test]
fn sentencepiece_without_a_prefix_keeps_the_text() {
    let tokenizer = load(&sentencepiece().put("tokenizer.ggml.add_space_prefix", Put::Bool(false)));
    assert_eq!(ids(&tokenizer, "a  b a"), [5, 12, 6, 10]);
    assert_eq!(tokenizer.decode(&[10, 12, 6], true).unwrap(), " a  b");
    // Where no tokens are looked for, merges make the run of spaces.
    let made = tokenizers::Model::tokenize(tokenizer.get_model(), "a▁▁b").unwrap();
    assert_eq!(made.iter().map(|token| token.id).collect::<Vec<_>>(), [5, 12, 6]);
    let extra = sentencepiece().put("tokenizer.ggml.remove_extra_whitespaces", Put::Bool(true));
    assert!(message(&extra).contains("tokenizer.ggml.remove_extra_whitespaces: must be false or missing"));
}

#[test]
fn tokens_that_end_generation_are_found_by_key_and_by_text() {
    let tokens = ["<|end|>", "<|return|>", "<|call|>", "</s>", "<eos>", "x", "<|eot_id|>", "[EOT]"];
    let header = |types: &[i32]| {
        byte_level()
            .set("tokenizer.ggml.tokens", Put::Strs(&tokens))
            .set("tokenizer.ggml.token_type", Put::I32s(types))
            .set("tokenizer.ggml.eos_token_id", Put::U32(5))
            .without("tokenizer.ggml.bos_token_id")
    };
    let ends = |header: &Header| Vocabulary::read(&header.read()).unwrap().ends;
    // </s> is an ordinary token here; <|end|> ends only a message where <|return|> and <|call|> exist.
    assert_eq!(ends(&header(&[3, 3, 3, 1, 3, 1, 1, 1])), [1, 2, 4, 5, 6, 7]);
    let eot = header(&[1, 5, 5, 3, 1, 1, 5, 5]).put("tokenizer.ggml.eot_token_id", Put::U32(4));
    assert_eq!(ends(&eot), [0, 3, 4, 5]);
}

#[test]
fn invalid_vocabularies_name_the_field() {
    let with = |key: &str, value: Put| message(&byte_level().set(key, value));
    assert!(with("tokenizer.ggml.model", Put::Str("bert")).contains("must be gpt2 (byte-level BPE) or llama"));
    let pre = with("tokenizer.ggml.pre", Put::Str("viking"));
    assert!(pre.starts_with("tokenizer.ggml.pre: must be one of qwen2, ") && pre.ends_with(", got viking"), "{pre}");
    assert!(message(&byte_level().without("tokenizer.ggml.pre")).contains("tokenizer.ggml.pre: is required"));
    assert!(message(&byte_level().without("tokenizer.ggml.merges")).contains("tokenizer.ggml.merges: is required"));
    for (merge, expected) in [
        ("ab", "must be two tokens with a space between them, got \"ab\""),
        ("", "must be two tokens"),
        (" ", "must be two tokens"),
        ("a ", "must be two tokens"),
        ("é", "must be two tokens"),
        ("a z", "\"z\" must be a token"),
        ("b a", "\"ba\" must be a token"),
        ("[ PAD11]", "\"[\" must be a token"),
    ] {
        let message = with("tokenizer.ggml.merges", Put::Strs(&[merge]));
        assert!(message.starts_with("tokenizer.ggml.merges[0]: ") && message.contains(expected), "{message}");
    }
    assert!(with("tokenizer.ggml.tokens", Put::Strs(&[])).contains("must have from 1 to 2097152 tokens, got 0"));
    let mut twice = BYTE_LEVEL;
    twice[1] = "a";
    assert!(with("tokenizer.ggml.tokens", Put::Strs(&twice)).contains("tokens 0 and 1 are both \"a\""));
    assert!(with("tokenizer.ggml.token_type", Put::I32s(&[1])).contains("must have one entry per token, 12, got 1"));
    assert!(with("tokenizer.ggml.token_type", Put::I32s(&[9; 12])).contains("token 0: must be from 1 to 6, got 9"));
    assert!(with("tokenizer.ggml.eos_token_id", Put::U32(12)).contains("must be below the number of tokens, 12"));
    assert!(with("tokenizer.ggml.eos_token_id", Put::Str("x")).contains("must be a token id"));
    assert!(message(&sentencepiece().without("tokenizer.ggml.scores")).contains("tokenizer.ggml.scores: is required"));
    let scores = sentencepiece().set("tokenizer.ggml.scores", Put::F32s(&[f32::NAN; 16]));
    assert!(message(&scores).contains("token 0: must be a number, got NaN"));
}
