use proptest::prelude::*;
use tokenizers::tokenizer::PreTokenizer;
use tokenizers::{OffsetReferential, OffsetType, PreTokenizedString};

use super::super::Encode;
use super::super::tests::load;
use super::*;

/// Patterns of published tokenizers: Qwen's, the three of DeepSeek-V3, and one that matches nothing.
const PATTERNS: [&[&str]; 3] = [
    &[
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ],
    &[
        r"\p{N}{1,3}",
        "[一-龥぀-ゟ゠-ヿ]+",
        r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##,
    ],
    &[r"(?!)"],
];

fn pre_tokenizer(patterns: &[&str]) -> PreTokenizerWrapper {
    let split = |pattern: &&str| serde_json::json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false});
    let byte_level =
        serde_json::json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    let steps: Vec<_> = patterns.iter().map(split).chain([byte_level]).collect();
    serde_json::from_value(serde_json::json!({"type": "Sequence", "pretokenizers": steps})).expect("a pre-tokenizer")
}

fn texts() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        ".{0,8}",
        "[a-zA-Z']{1,9}",
        "[0-9]{1,7}",
        "[ \\t\\r\\n\u{a0}\u{3000}]{1,5}",
        "[一-十あ-おア-オ가-깋]{1,4}",
        "[!-/:-@]{1,4}",
        Just("<|im_end|>".to_owned()),
        Just("e\u{301}\u{1F469}\u{200D}\u{1F467}".to_owned()),
        Just("'ll DON'T".to_owned()),
    ];
    proptest::collection::vec(part, 0..12).prop_map(|parts| parts.concat())
}

proptest! {
    #[test]
    fn words_are_those_of_the_library(text in texts()) {
        for patterns in PATTERNS {
            let pre_tokenizer = pre_tokenizer(patterns);
            let mut pieces = PreTokenizedString::from(text.as_str());
            pre_tokenizer.pre_tokenize(&mut pieces).expect("pieces");
            let splits = pieces.get_splits(OffsetReferential::Original, OffsetType::None);
            let want: Vec<String> = splits.into_iter().map(|(word, _, _)| word.to_owned()).filter(|word| !word.is_empty()).collect();
            let mut found = Vec::new();
            let mut keep = |word: &str| {
                found.push(word.to_owned());
                Ok::<_, ()>(())
            };
            WordSplitter::of(Some(&pre_tokenizer)).expect("known steps").words(&text, &mut keep).expect("words");
            prop_assert_eq!(&found, &want, "{:?}", patterns);
        }
    }

    #[test]
    fn ids_are_those_of_the_library(text in texts()) {
        for name in ["byte_level", "kimi", "metaspace"] {
            let tokenizer = load(name);
            let library = |text: &str| tokenizer.0.tokenizer.encode_fast(text, false).expect("ids").get_ids().to_vec();
            prop_assert_eq!(tokenizer.encode(&text, Encode::TEMPLATED).expect("ids"), library(&text), "{}", name);
        }
    }
}

#[test]
fn other_steps_are_left_to_the_library() {
    let of = |json: serde_json::Value| {
        let pre_tokenizer: PreTokenizerWrapper = serde_json::from_value(json).expect("a pre-tokenizer");
        WordSplitter::of(Some(&pre_tokenizer)).is_some()
    };
    let byte_level = |prefix: bool, regex: bool| serde_json::json!({"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": true, "use_regex": regex});
    let split = |behavior: &str, invert: bool| serde_json::json!({"type": "Split", "pattern": {"String": " "}, "behavior": behavior, "invert": invert});
    let both = |first: serde_json::Value| serde_json::json!({"type": "Sequence", "pretokenizers": [first, byte_level(false, false)]});
    assert!(of(byte_level(false, false)) && of(both(split("Isolated", false))));
    assert!(!of(byte_level(true, false)) && !of(byte_level(false, true)));
    assert!(!of(both(split("Removed", false))) && !of(both(split("Isolated", true))) && !of(split("Isolated", false)));
    assert!(!of(both(serde_json::json!({"type": "Digits", "individual_digits": true}))));
    assert!(WordSplitter::of(None).is_none());
}
