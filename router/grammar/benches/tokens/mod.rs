//! Vocabularies for benchmarks: the demo model's, and Kimi's if its files exist.

mod clock;

pub use clock::computed;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use rein_grammar::Vocab;
use serde_json::Value;

type Words = Vec<(Vec<u8>, bool)>;

/// A vocabulary and an encoder for text.
pub struct Tokens {
    pub name: &'static str,
    ids: HashMap<Vec<u8>, u32>,
    added: HashMap<String, u32>,
    pub vocab: Arc<Vocab>,
}

/// Greedy longest match: about as many tokens as a tokenizer produces.
fn encode(ids: &HashMap<Vec<u8>, u32>, text: &[u8]) -> Vec<u32> {
    let mut out = Vec::new();
    let mut at = 0;
    while at < text.len() {
        let longest = (1..=(text.len() - at).min(24)).rev();
        let Some((id, len)) = longest.filter_map(|len| Some((*ids.get(&text[at..at + len])?, len))).next() else {
            panic!("byte {} is no token", text[at]);
        };
        out.push(id);
        at += len;
    }
    out
}

impl Tokens {
    /// The demo model's vocabulary, and Kimi's.
    pub fn demo_and_kimi() -> [Tokens; 2] {
        [Tokens::demo(), Tokens::kimi()]
    }

    fn new(name: &'static str, words: Words, stops: &[&str]) -> Self {
        let of = |added: bool| words.iter().zip(0..).filter(move |(word, _)| word.1 == added);
        let ids: HashMap<Vec<u8>, u32> = of(false).map(|(word, id)| (word.0.clone(), id)).collect();
        let added: HashMap<String, u32> =
            of(true).map(|(word, id)| (String::from_utf8_lossy(&word.0).into_owned(), id)).collect();
        let stops: Vec<u32> = stops.iter().map(|stop| added[*stop]).collect();
        let known = ids.clone();
        let encoder = Box::new(move |text: &str| encode(&known, text.as_bytes()));
        let vocab = Vocab::new(words.into_iter(), &stops, Some(encoder)).expect("a vocabulary");
        Tokens { name, ids, added, vocab: Arc::new(vocab) }
    }

    /// From a `tokenizer.json` with byte-level tokens.
    fn demo() -> Self {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/demo/tokenizer.json");
        let text = std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let json: Value = serde_json::from_str(&text).expect("JSON");
        // Bytes that are not letters are written as characters from U+0100 on.
        let plain = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
        let letters: HashMap<char, u8> = (0..=255_u8)
            .filter(|byte| plain(*byte))
            .map(|byte| (char::from(byte), byte))
            .chain((0..=255_u8).filter(|byte| !plain(*byte)).zip('\u{100}'..).map(|(byte, letter)| (letter, byte)))
            .collect();
        let vocab = json["model"]["vocab"].as_object().expect("a vocabulary");
        let mut words: Words = vec![(Vec::new(), false); vocab.len()];
        for (word, id) in vocab {
            words[id.as_u64().expect("an id") as usize].0 = word.chars().map(|letter| letters[&letter]).collect();
        }
        for token in json["added_tokens"].as_array().expect("added tokens") {
            let id = token["id"].as_u64().expect("an id") as usize;
            words.resize(words.len().max(id + 1), (Vec::new(), false));
            words[id] = (token["content"].as_str().expect("text").as_bytes().to_vec(), true);
        }
        Tokens::new("demo", words, &["<|im_end|>"])
    }

    /// From a `tiktoken.model` (a base64 token and its rank per line) and its `tokenizer_config.json`.
    fn kimi() -> Self {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/kimi_k2");
        let text = std::fs::read_to_string(dir.join("tiktoken.model")).expect("a vocabulary");
        let config = std::fs::read_to_string(dir.join("tokenizer_config.json")).expect("a config");
        let config: Value = serde_json::from_str(&config).expect("JSON");
        let token = |line: &str| BASE64_STANDARD.decode(line.split(' ').next().unwrap_or_default());
        let mut words: Words = text.lines().map(|line| (token(line).expect("base64"), false)).collect();
        for (id, token) in config["added_tokens_decoder"].as_object().expect("added tokens") {
            let id: usize = id.parse().expect("a token id");
            words.resize(words.len().max(id + 1), (Vec::new(), false));
            words[id] = (token["content"].as_str().expect("a text").as_bytes().to_vec(), true);
        }
        Tokens::new("kimi", words, &["<|im_end|>", "[EOS]"])
    }

    /// Text in which `⟦x⟧` is the added token x.
    pub fn encode(&self, text: &str) -> Vec<u32> {
        let mut out = Vec::new();
        for (i, part) in text.split(['⟦', '⟧']).enumerate() {
            if i % 2 == 1 { out.push(self.added[part]) } else { out.extend(encode(&self.ids, part.as_bytes())) }
        }
        out
    }
}
