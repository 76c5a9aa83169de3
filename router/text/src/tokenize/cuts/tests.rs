//! Parts that are encoded separately have the same ids as in the whole prompt, for every kind of tokenizer.

use std::path::PathBuf;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value as Json, json};

use super::super::{Encode, EncodeLimit, PromptCache, Tokenizer};

const PROMPTS: usize = 60;
const FIXTURES: [&str; 3] = ["byte_level", "byte_fallback", "metaspace"];

fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src/tokenize/fixtures").join(name)
}

fn file(name: &str) -> Json {
    serde_json::from_str(&std::fs::read_to_string(fixture(name).join("tokenizer.json")).unwrap()).unwrap()
}

fn tokenizer(json: &Json) -> Tokenizer {
    let tokenizer = tokenizers::Tokenizer::from_bytes(json.to_string()).unwrap();
    Tokenizer::build("a test", tokenizer, false).unwrap()
}

/// Prompts of added tokens, their fragments, whitespace of all kinds and text.
fn prompts(tokenizer: &Tokenizer, seed: u64) -> impl Iterator<Item = String> {
    let mut added: Vec<String> = tokenizer.added_tokens().map(|(_, text)| text.to_owned()).take(24).collect();
    added.sort();
    let halves = added.iter().flat_map(|text| {
        let middle = text.char_indices().nth(text.chars().count() / 2).map_or(0, |(at, _)| at);
        [text[..middle].to_owned(), text[middle..].to_owned()]
    });
    let halves: Vec<String> = halves.collect();
    let text = [
        " ",
        "  ",
        "\n",
        "\n\n",
        "\t",
        "\u{a0}",
        "\u{3000}",
        "a",
        "user",
        "Hello world",
        "The quick",
        "x_1",
        "_",
        "1234",
        "北京今天",
        "Größe",
        "e\u{301}",
        "🙂",
        "▁",
        "{\"a\": ",
        "<",
        "|>",
        "It's",
        "don't ",
        "\u{f0000}",
        "ＡＢ",
    ];
    let mut random = StdRng::seed_from_u64(seed);
    std::iter::repeat_with(move || {
        let mut prompt = String::new();
        for _ in 0..random.random_range(1..24) {
            let from: &[String] = if random.random_bool(0.8) { &added } else { &halves };
            match random.random_bool(0.45) && !from.is_empty() {
                true => prompt.push_str(&from[random.random_range(0..from.len())]),
                false => prompt.push_str(text[random.random_range(0..text.len())]),
            }
        }
        prompt
    })
    .take(PROMPTS)
}

/// Compares parts with the whole; returns the number of cuts.
fn compare(name: &str, tokenizer: &Tokenizer) -> usize {
    let Some(cuts) = &tokenizer.0.cuts else { return 0 };
    let cache = PromptCache::new(1 << 20);
    let mut count = 0;
    for (i, prompt) in prompts(tokenizer, 7).enumerate() {
        let whole = tokenizer.encode(&prompt, Encode::TEMPLATED).unwrap();
        for least in [1, 12] {
            let parts: Vec<&str> = cuts.parts(&prompt, least).map(|range| &prompt[range]).collect();
            assert_eq!(parts.concat(), prompt, "{name}");
            let encode = |part: &&str| tokenizer.encode(part, Encode::TEMPLATED).unwrap();
            let ids: Vec<u32> = parts.iter().flat_map(encode).collect();
            assert_eq!(ids, whole, "{name}: {parts:?}");
            count += parts.len().saturating_sub(1);
        }
        // The second time, from the cache.
        let long = prompt.repeat(1 + 300 / prompt.len().max(1));
        let whole = tokenizer.encode(&long, Encode::TEMPLATED).unwrap();
        for salt in ["", "", "s", if i % 2 == 0 { "s" } else { "t" }] {
            let ids = tokenizer.encode_prompt(&long, &cache, salt, EncodeLimit::default()).unwrap();
            assert_eq!(ids, whole, "{name}: {long:?}");
        }
    }
    count
}

/// Sets a member of every added token for which `when` holds.
fn flag(json: &mut Json, name: &str, value: bool, when: impl Fn(usize) -> bool) {
    let tokens = json["added_tokens"].as_array_mut().unwrap();
    tokens.iter_mut().enumerate().filter(|(i, _)| when(*i)).for_each(|(_, token)| token[name] = value.into());
}

#[test]
fn parts_have_the_ids_of_the_whole() {
    for name in FIXTURES {
        assert!(compare(name, &tokenizer(&file(name))) > PROMPTS, "{name}: too few cuts");
    }
    let kimi = Tokenizer::load(&fixture("kimi")).unwrap();
    assert!(compare("kimi", &kimi) > PROMPTS, "kimi: too few cuts");
}

/// The demo model's tokenizer, Kimi's, and those in the folders of `REIN_TEST_TOKENIZERS`.
#[test]
fn parts_have_the_ids_of_the_whole_for_the_tokenizers_of_models() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut all = vec![root.join("models/demo"), root.join("tests/fixtures/kimi_k2")];
    let more = std::env::var_os("REIN_TEST_TOKENIZERS").map(|folder| std::fs::read_dir(folder).unwrap());
    all.extend(more.into_iter().flatten().map(|entry| entry.unwrap().path()));
    for dir in all {
        let cuts = compare(&dir.display().to_string(), &Tokenizer::load(&dir).unwrap());
        println!("{}: {cuts} cuts", dir.display());
    }
}

#[test]
fn parts_have_the_ids_of_the_whole_for_every_flag_of_added_tokens() {
    for name in FIXTURES {
        for flagged in ["lstrip", "rstrip", "single_word", "normalized"] {
            let mut one = file(name);
            flag(&mut one, flagged, true, |i| i % 2 == 0);
            assert!(compare(&format!("{name}, {flagged} for some"), &tokenizer(&one)) > 0, "{name} {flagged}");
            flag(&mut one, flagged, true, |_| true);
            assert!(tokenizer(&one).0.cuts.is_none(), "{name}: {flagged} for all");
        }
        let mut strips = file(name);
        flag(&mut strips, "lstrip", true, |i| i % 3 == 0);
        flag(&mut strips, "rstrip", true, |i| i % 3 != 1);
        flag(&mut strips, "single_word", true, |i| i % 3 == 2);
        compare(&format!("{name}, many flags"), &tokenizer(&strips));
    }
}

#[test]
fn parts_have_the_ids_of_the_whole_for_added_tokens_that_overlap() {
    for name in FIXTURES {
        let mut json = file(name);
        let tokens = json["added_tokens"].as_array_mut().unwrap();
        let next = tokens.iter().map(|token| token["id"].as_u64().unwrap()).max().unwrap() + 1;
        let more = ["<|end|>\n", "<|end", "end|><", " <|end|>", "word", "_", "<|end|><|end|>", "\n\n", "  "];
        for (i, content) in more.into_iter().enumerate() {
            let flags = json!({"id": next + i as u64, "content": content, "single_word": i == 4, "lstrip": false, "rstrip": i == 5,
                "normalized": false, "special": i % 2 == 0});
            tokens.push(flags);
        }
        assert!(compare(&format!("{name}, overlapping"), &tokenizer(&json)) > 0);
    }
}

#[test]
fn parts_have_the_ids_of_the_whole_for_every_pipeline() {
    let metaspace = |scheme: &str, split: bool| json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": split});
    let byte_level = |prefix: bool, regex: bool| json!({"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": true, "use_regex": regex});
    let digits = json!({"type": "Digits", "individual_digits": true});
    let sequence = |steps: Vec<Json>| json!({"type": "Sequence", "pretokenizers": steps});
    let split = |behavior: &str| json!({"type": "Split", "pattern": {"Regex": "\\s+(?!\\S)|\\p{N}{1,3}|\\s+"}, "behavior": behavior, "invert": false});
    let mut pre_tokenizers = vec![("byte_level", byte_level(true, true)), ("byte_level", byte_level(false, false))];
    pre_tokenizers.extend(["first", "always", "never"].map(|scheme| ("metaspace", metaspace(scheme, true))));
    pre_tokenizers.extend(["first", "always", "never"].map(|scheme| ("metaspace", metaspace(scheme, false))));
    pre_tokenizers.push(("byte_level", sequence(vec![digits, byte_level(true, false)])));
    pre_tokenizers.extend(
        ["Isolated", "Removed", "MergedWithNext", "MergedWithPrevious", "Contiguous"]
            .map(|behavior| ("byte_level", sequence(vec![split(behavior), byte_level(false, false)]))),
    );
    pre_tokenizers.extend(
        ["Whitespace", "WhitespaceSplit", "BertPreTokenizer", "UnicodeScripts"]
            .map(|kind| ("byte_level", sequence(vec![json!({"type": kind}), byte_level(false, false)]))),
    );
    let normalizers = [
        Json::Null,
        json!({"type": "NFC"}),
        json!({"type": "NFKC"}),
        json!({"type": "Lowercase"}),
        json!({"type": "Strip", "strip_left": true, "strip_right": true}),
        json!({"type": "Prepend", "prepend": "▁"}),
        json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"}),
    ];
    for (name, pre_tokenizer) in pre_tokenizers {
        for normalizer in &normalizers {
            let mut json = file(name);
            json["pre_tokenizer"] = pre_tokenizer.clone();
            json["normalizer"] = normalizer.clone();
            let what = format!("{pre_tokenizer} {normalizer}");
            assert!(compare(&what, &tokenizer(&json)) > PROMPTS, "{what}: too few cuts");
        }
    }
}

#[test]
fn short_parts_are_joined_and_nothing_is_lost() {
    let kimi = Tokenizer::load(&fixture("kimi")).unwrap();
    let cuts = kimi.0.cuts.as_ref().unwrap();
    let parts =
        |prompt: &str, least| cuts.parts(prompt, least).map(|range| prompt[range].to_owned()).collect::<Vec<_>>();
    assert_eq!(parts("", 4), [""; 0]);
    assert_eq!(parts("abc", 4), ["abc"]);
    assert_eq!(parts("<|im_end|>", 4), ["<|im_end|>"]);
    assert_eq!(parts("ab<|im_end|>cd<|im_end|>", 4), ["ab<|im_end|>cd", "<|im_end|>"]);
    assert_eq!(parts("ab<|im_end|>cd<|im_end|>e", 1), ["ab", "<|im_end|>cd", "<|im_end|>e"]);
}

#[test]
fn a_bound_holds_for_ids_from_the_cache() {
    use super::super::TokenizeError;
    let kimi = Tokenizer::load(&fixture("kimi")).unwrap();
    let cache = PromptCache::new(1 << 20);
    let prompt = format!("<|im_end|>{}", "word ".repeat(80)).repeat(5);
    let whole = kimi.encode(&prompt, Encode::TEMPLATED).unwrap();
    let within = |bound| kimi.encode_prompt(&prompt, &cache, "", bound);
    for _ in 0..2 {
        assert_eq!(within(EncodeLimit::default().tokens(whole.len())).unwrap(), whole);
        let error = within(EncodeLimit::default().tokens(whole.len() - 1)).unwrap_err();
        assert!(matches!(error, TokenizeError::TooMany { least, .. } if least <= whole.len()), "{error}");
        let late = within(EncodeLimit::until(std::time::Instant::now()));
        assert!(matches!(late, Err(TokenizeError::Late)));
    }
}
