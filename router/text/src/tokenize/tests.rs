//! Compares with Python: `fixtures/make.py` wrote the tokenizers and `expected.json`.

use std::path::PathBuf;

use serde_json::Value as Json;

use super::*;

const NAMES: [&str; 4] = ["byte_level", "byte_fallback", "metaspace", "kimi"];

fn dir(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src/tokenize/fixtures").join(name)
}

pub fn load(name: &str) -> Tokenizer {
    Tokenizer::load(&dir(name)).unwrap()
}

fn cases(name: &str) -> Vec<Json> {
    let json: Json = serde_json::from_str(include_str!("fixtures/expected.json")).unwrap();
    json[name].as_array().unwrap().clone()
}

fn ids(case: &Json, key: &str) -> Vec<u32> {
    case[key].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

fn stream(tokenizer: &Tokenizer, ids: &[u32]) -> String {
    let mut detokenizer = tokenizer.detokenizer();
    let mut out = String::new();
    let mut put = |piece: TokenPiece<'_>| match piece {
        TokenPiece::Bytes(bytes) => out.push_str(std::str::from_utf8(&bytes).expect("whole characters")),
        TokenPiece::Special(text) => out.push_str(text),
    };
    for id in ids {
        detokenizer.push(*id).for_each(&mut put);
    }
    detokenizer.finish().into_iter().for_each(put);
    out
}

#[test]
fn ids_and_text_equal_python() {
    for name in NAMES {
        let tokenizer = load(name);
        for case in cases(name) {
            let text = case["text"].as_str().unwrap();
            for (key, how) in [
                ("ids", Encode::TEMPLATED),
                ("with_special", Encode { add_special_tokens: true, parse_special: true }),
                ("plain", Encode::TEXT),
            ] {
                assert_eq!(tokenizer.encode(text, how).unwrap(), ids(&case, key), "{name} {key} {text:?}");
            }
            let ids = ids(&case, "ids");
            let decoded = String::from_utf8(tokenizer.decode(&ids)).unwrap();
            assert_eq!(decoded, case["decoded"].as_str().unwrap(), "{name} {text:?}");
        }
    }
}

#[test]
fn streaming_equals_decoding_for_any_ids() {
    for name in NAMES {
        let tokenizer = load(name);
        let size = tokenizer.vocab_size() as u64;
        for seed in 0..200_u64 {
            let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
            let random: Vec<u32> = (0..seed % 40)
                .map(|_| {
                    x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    // About half of the tokens are single bytes, to produce incomplete characters.
                    (if x >> 63 == 0 { (x >> 33) % 259 } else { (x >> 33) % size }) as u32
                })
                .collect();
            let batch = String::from_utf8_lossy(&tokenizer.decode(&random)).into_owned();
            assert_eq!(stream(&tokenizer, &random), batch, "{name} {random:?}");
        }
    }
}

#[test]
fn incomplete_characters_are_held() {
    let tokenizer = load("kimi");
    let byte = |b: u8| tokenizer.encode_bytes(b);
    let mut detokenizer = tokenizer.detokenizer();
    let [a, b, c] = [0xe5, 0x8c, 0x97].map(byte);
    assert_eq!(detokenizer.push(a).count(), 0);
    assert_eq!(detokenizer.push(b).count(), 0);
    assert_eq!(detokenizer.push(c).collect::<Vec<_>>(), [TokenPiece::Bytes("北".into())]);
    // An added token ends an incomplete character.
    assert_eq!(detokenizer.push(a).count(), 0);
    let end = tokenizer.special_id("<|im_end|>").unwrap();
    assert_eq!(
        detokenizer.push(end).collect::<Vec<_>>(),
        [TokenPiece::Bytes("\u{fffd}".into()), TokenPiece::Special("<|im_end|>")]
    );
    assert_eq!(detokenizer.push(a).count(), 0);
    assert_eq!(detokenizer.finish(), Some(TokenPiece::Bytes("\u{fffd}".into())));
    assert_eq!(detokenizer.finish(), None);
}

impl Tokenizer {
    fn encode_bytes(&self, byte: u8) -> u32 {
        (0..256).find(|id| self.token_bytes(*id).is_some_and(|b| *b == [byte])).unwrap()
    }
}

#[test]
fn added_tokens_are_found_by_text_and_id() {
    let kimi = load("kimi");
    let base = kimi.vocab_size() as u32 - 256;
    assert_eq!(kimi.special_id("[BOS]"), Some(base));
    assert_eq!(kimi.special(base + 3), Some(format!("<|reserved_token_{}|>", base + 3).as_str()));
    assert_eq!(kimi.special_id("[PAD]"), Some(base + 255));
    let tool = kimi.special_id("<tool>").unwrap();
    assert!(!kimi.is_control(tool) && kimi.is_control(base));
    assert_eq!(kimi.token_bytes(tool).as_deref(), Some(b"<tool>".as_slice()));
    assert_eq!(kimi.token_bytes(base + 256), None);
    assert_eq!(kimi.special(0), None);
}

#[test]
fn sentencepiece_tokens_keep_their_leading_space() {
    for name in ["byte_fallback", "metaspace"] {
        let tokenizer = load(name);
        let ids = tokenizer.encode(" x", Encode::TEXT).unwrap();
        let middle: Vec<u8> = ids.iter().flat_map(|id| tokenizer.token_bytes(*id).unwrap().into_owned()).collect();
        assert!(middle.starts_with(b" "), "{name}");
        let newline =
            (0..tokenizer.vocab_size() as u32).find(|id| tokenizer.token_bytes(*id).as_deref() == Some(b"\n"));
        assert!(newline.is_some(), "{name}: the byte token of a newline");
    }
}

/// `fixtures/make_tekken.py` let mistral-common write these.
#[test]
fn tekken_ids_equal_mistral_common() {
    let tokenizer = load("tekken");
    let expected: Json = serde_json::from_str(include_str!("fixtures/tekken/expected.json")).unwrap();
    assert_eq!(tokenizer.vocab_size() as u64, expected["size"].as_u64().unwrap());
    for case in expected["texts"].as_array().unwrap() {
        let text = case["text"].as_str().unwrap();
        let with_bos = Encode { add_special_tokens: true, parse_special: false };
        assert_eq!(tokenizer.encode(text, with_bos).unwrap(), ids(case, "ids"), "{text:?}");
        let ids = tokenizer.encode(text, Encode::TEXT).unwrap();
        assert_eq!(String::from_utf8(tokenizer.decode(&ids)).unwrap(), text);
    }
    for (text, id) in expected["specials"].as_object().unwrap() {
        let ids = tokenizer.encode(text, Encode::TEMPLATED).unwrap();
        assert_eq!(ids, [id.as_u64().unwrap() as u32], "{text}");
    }
}

#[test]
fn too_long_texts_are_rejected_and_long_runs_are_split() {
    let tokenizer = load("kimi");
    let text = "a".repeat(MAX_TEXT_BYTES + 1);
    assert!(matches!(tokenizer.encode(&text, Encode::TEXT), Err(TokenizeError::TooLong { .. })));
    let lengths = |text: &str| kimi::split_long_text(text).iter().map(|part| part.len()).collect::<Vec<_>>();
    assert_eq!(lengths(&" ".repeat(60_000)), [25_000, 25_000, 10_000]);
    assert_eq!(lengths(&("a ".repeat(30_000))), [60_000]);
    assert_eq!(lengths(&("a ".repeat(250_000))), [400_000, 100_000]);
}

#[test]
fn errors_name_the_unsupported_tokenizer() {
    let root = std::env::temp_dir().join(format!("rein-tokenize-{}", std::process::id()));
    let assert_error = |name: &str, files: &[(&str, &str)], expected: &str| {
        let dir = root.join(name);
        std::fs::create_dir_all(&dir).unwrap();
        for (file, text) in files {
            std::fs::write(dir.join(file), text).unwrap();
        }
        let error = Tokenizer::load(&dir).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    };
    assert_error("none", &[], "no tokenizer.json, tiktoken.model or tekken.json");
    assert_error("spm", &[("tokenizer.model", "x")], "SentencePiece");
    assert_error("tekken", &[("tekken.json", "{}")], "tekken.json: missing field `config`");
    let few = r#"{"config": {"pattern": "a", "default_vocab_size": 9, "default_num_special_tokens": 1}, "vocab": []}"#;
    assert_error("few", &[("tekken.json", few)], "9 tokens, of which 1 are special, with 0 in vocab");
    assert_error("broken", &[("tokenizer.json", "{\"model\": ")], "tokenizer.json");
    assert_error(
        "class",
        &[("tiktoken.model", ""), ("tokenizer_config.json", "{\"tokenizer_class\": \"Other\"}")],
        "Other",
    );
    assert_error(
        "ranks",
        &[
            ("tiktoken.model", "IQ== 0\nIg== 7\n"),
            ("tokenizer_config.json", "{\"tokenizer_class\": \"TikTokenTokenizer\"}"),
        ],
        "line 2: expected rank 1",
    );
    let wordpiece = std::fs::read_to_string(dir("byte_level").join("tokenizer.json")).unwrap().replace(
        "\"decoder\": {\"type\": \"ByteLevel\", \"add_prefix_space\": true, \"trim_offsets\": true, \"use_regex\": true}",
        "\"decoder\": {\"type\": \"WordPiece\", \"prefix\": \"##\", \"cleanup\": true}",
    );
    assert_error("wordpiece", &[("tokenizer.json", &wordpiece)], "decoder WordPiece");
    let _ = std::fs::remove_dir_all(root);
}

#[test]
fn a_bound_does_not_change_ids_and_rejects_too_many_tokens() {
    use std::time::{Duration, Instant};
    let later = Instant::now() + Duration::from_secs(600);
    for name in NAMES {
        let tokenizer = load(name);
        for case in cases(name) {
            let text = case["text"].as_str().unwrap();
            for (key, how) in [("ids", Encode::TEMPLATED), ("plain", Encode::TEXT)] {
                let ids = ids(&case, key);
                let within = |most: usize| tokenizer.encode_within(text, how, EncodeLimit::until(later).tokens(most));
                assert_eq!(within(ids.len()).unwrap(), ids, "{name} {key} {text:?}");
                assert!(tokenizer.least_tokens(text.len()) <= ids.len(), "{name} {key} {text:?}");
                if let Some(fewer) = ids.len().checked_sub(1) {
                    let error = within(fewer).unwrap_err();
                    let least = match error {
                        TokenizeError::TooMany { least, most } if most == fewer => least,
                        other => panic!("{name} {key} {text:?}: {other}"),
                    };
                    assert!((fewer + 1..=ids.len()).contains(&least), "{name} {key} {text:?}");
                    let late = tokenizer.encode_within(text, how, EncodeLimit::until(Instant::now()));
                    assert!(matches!(late, Err(TokenizeError::Late)), "{name} {key} {text:?}");
                }
            }
        }
    }
}

#[test]
fn a_text_that_needs_too_many_tokens_is_rejected_before_encoding() {
    for name in ["byte_level", "byte_fallback", "kimi"] {
        let tokenizer = load(name);
        let text = "汉".repeat(1_000_000);
        let began = std::time::Instant::now();
        let error = tokenizer.encode_within(&text, Encode::TEMPLATED, EncodeLimit::default().tokens(4096)).unwrap_err();
        assert!(matches!(error, TokenizeError::TooMany { most: 4096, .. }), "{name}: {error}");
        // Encoding would take seconds.
        assert!(began.elapsed() < std::time::Duration::from_millis(100), "{name}: {:?}", began.elapsed());
    }
}
