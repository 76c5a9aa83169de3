//! What enforcement costs, by processor time: `cargo bench -p rein-grammar --bench steering [-- KIMI_DIR]`.
//! Over the demo model's vocabulary, and Kimi's where its `tiktoken.model` is. Linux only: the times are the kernel's.

use std::collections::HashMap;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use rein_grammar::{Compiled, Grammars, Matcher, Rules, Tool, Vocab, by_name};
use serde_json::{Value, json};

/// More than the caches next to a core hold.
const OTHER_WORK_BYTES: usize = 8 << 20;

type Words = Vec<(Vec<u8>, bool)>;

/// A vocabulary and the way to spell text in it.
struct Tokens {
    name: &'static str,
    ids: HashMap<Vec<u8>, u32>,
    added: HashMap<String, u32>,
    vocab: Arc<Vocab>,
}

/// The longest token that fits, again and again: as many tokens as a tokenizer makes, give or take a few.
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

    /// Of a `tokenizer.json` with byte-level tokens.
    fn demo() -> Self {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/demo/tokenizer.json");
        let text = std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let json: Value = serde_json::from_str(&text).expect("JSON");
        // Bytes that are no letters are written as those from U+0100 on.
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

    /// Of a `tiktoken.model` (a token in base64 and its rank per line) and its `tokenizer_config.json`.
    fn kimi(dir: &Path) -> Option<Self> {
        let text = std::fs::read_to_string(dir.join("tiktoken.model")).ok()?;
        let config = std::fs::read_to_string(dir.join("tokenizer_config.json")).ok()?;
        let config: Value = serde_json::from_str(&config).ok()?;
        let mut words: Words = text.lines().map(|line| (base64(line.split(' ').next().unwrap_or("")), false)).collect();
        for (id, token) in config["added_tokens_decoder"].as_object()? {
            let id: usize = id.parse().ok()?;
            words.resize(words.len().max(id + 1), (Vec::new(), false));
            words[id] = (token["content"].as_str()?.as_bytes().to_vec(), true);
        }
        Some(Tokens::new("kimi", words, &["<|im_end|>", "[EOS]"]))
    }

    /// Text in which `⟦x⟧` is the added token x.
    fn encode(&self, text: &str) -> Vec<u32> {
        let mut out = Vec::new();
        for (i, part) in text.split(['⟦', '⟧']).enumerate() {
            if i % 2 == 1 { out.push(self.added[part]) } else { out.extend(encode(&self.ids, part.as_bytes())) }
        }
        out
    }
}

fn base64(text: &str) -> Vec<u8> {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let (mut out, mut bits, mut held) = (Vec::new(), 0_u32, 0);
    for c in text.bytes().filter(|c| *c != b'=') {
        bits = bits << 6 | ALPHABET.iter().position(|a| *a == c).expect("base64") as u32;
        held += 6;
        if held >= 8 {
            held -= 8;
            out.push((bits >> held) as u8);
        }
    }
    out
}

/// Tools that differ, with the kinds of arguments that tools have.
fn tools(n: usize) -> Vec<Tool> {
    let one = |i: usize| Tool {
        name: format!("tool_{i}_of_many"),
        parameters: Some(json!({"type": "object", "required": ["query", format!("kind_{i}")], "properties": {
            "query": {"type": "string", "description": "what to look for"},
            format!("kind_{i}"): {"type": "string", "enum": ["a", "b", format!("c{i}")]},
            "limit": {"type": "integer", "minimum": 1, "maximum": 100},
            format!("options_{i}"): {"type": "object", "properties":
                {"deep": {"type": "boolean"}, "tags": {"type": "array", "items": {"type": "string"}}}},
            "since": {"anyOf": [{"type": "string", "format": "date"}, {"type": "null"}]},
        }})),
        strict: false,
    };
    (0..n).map(one).collect()
}

fn rules(n: usize) -> Rules {
    Rules { tools: tools(n), parallel: true, ..Rules::default() }
}

/// Nanoseconds that this thread has computed, as against waited.
fn computed() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux's schedstat");
    text.split(' ').next().and_then(|first| first.parse().ok()).expect("nanoseconds")
}

/// Microseconds that `work` takes on average, `setup` left out.
fn micros<S, T>(repeat: usize, mut setup: impl FnMut() -> S, mut work: impl FnMut(S) -> T) -> f64 {
    let inputs: Vec<S> = (0..repeat).map(|_| setup()).collect();
    let mut outputs = Vec::with_capacity(repeat);
    let began = computed();
    for input in inputs {
        outputs.push(work(input));
    }
    let took = computed() - began;
    drop(outputs);
    took as f64 / 1e3 / repeat as f64
}

const TEXT: &str = "Let me look that up for you: the weather in Paris is mild today, with a few clouds in the afternoon, \
    and 18 degrees at most. If you plan to go out, take a light jacket (it gets cooler after 7 pm).\n\n\
    - Morning: sunny, 12 degrees\n- Afternoon: some clouds, 18 degrees\n- Evening: clear\n\nShall I check tomorrow as well? ";

fn call(number: usize) -> String {
    let arguments = json!({"since": "2026-01-31", "query": TEXT.replace('\n', " "), "kind_3": "b",
        "options_3": {"tags": ["warm", "dry and sunny"], "deep": false}, "limit": 99});
    format!(
        "⟦<|tool_call_begin|>⟧functions.tool_3_of_many:{number}⟦<|tool_call_argument_begin|>⟧{arguments}⟦<|tool_call_end|>⟧"
    )
}

fn accept(matcher: &mut Matcher, id: u32) {
    assert_eq!(matcher.accept(id), Ok(true), "token {id}");
}

/// Microseconds per token where the caches are full of other work, as they are for a router that sees a token every few
/// milliseconds. The median by the clock: one token is too short for the kernel's own times.
fn after_other_work(compiled: &Compiled, begin: &[u32], ids: &[u32]) -> f64 {
    let mut other = vec![1_u64; OTHER_WORK_BYTES / size_of::<u64>()];
    let mut took = Vec::new();
    while took.len() < 600 {
        let mut matcher = compiled.matcher().expect("a matcher");
        begin.iter().for_each(|id| accept(&mut matcher, *id));
        for id in ids {
            other.iter_mut().for_each(|number| *number = number.wrapping_mul(3));
            black_box(&mut other);
            let began = Instant::now();
            accept(&mut matcher, *id);
            black_box(matcher.forced());
            took.push(began.elapsed());
        }
    }
    took.sort_unstable();
    took[took.len() / 2].as_nanos() as f64 / 1e3
}

/// Requests of one output each. Microseconds per token: accepting alone, as the router does it, and with masks.
fn per_token(name: &str, compiled: &Compiled, begin: &[u32], ids: &[u32], repeat: usize) {
    let matcher = || {
        let mut matcher = compiled.matcher().expect("a matcher");
        begin.iter().for_each(|id| accept(&mut matcher, *id));
        matcher
    };
    let accepted = micros(repeat, matcher, |mut matcher| {
        ids.iter().for_each(|id| accept(&mut matcher, *id));
        matcher
    });
    let mut forced = 0;
    let steered = micros(repeat, matcher, |mut matcher| {
        for id in ids {
            accept(&mut matcher, *id);
            forced += usize::from(!matcher.forced().is_empty());
        }
        matcher
    });
    let masks = repeat.div_ceil(8);
    let masked = micros(masks, matcher, |mut matcher| {
        for id in ids {
            matcher.mask().expect("a mask");
            accept(&mut matcher, *id);
        }
        matcher
    });
    let cold = after_other_work(compiled, begin, ids);
    let per = |total: f64| total / ids.len() as f64;
    println!(
        "  {name:<22} {:>5} tokens  accept {:>5.2}  steer {:>5.2} (forced {} times)  cold {cold:>5.2}  mask {:>6.1}  us per token",
        ids.len(),
        per(accepted),
        per(steered),
        forced / repeat,
        per(masked),
    );
}

fn run(tokens: &Tokens) {
    println!("{}: {} tokens", tokens.name, tokens.vocab.size());
    let format = by_name("kimi_k2").expect("a format");
    for n in [8, 64] {
        let rules = rules(n);
        let cold = micros(
            200 / n,
            || Grammars::new(format, tokens.vocab.clone()),
            |grammars| {
                grammars.compile(&rules).expect("compiles");
                grammars
            },
        );
        let grammars = Grammars::new(format, tokens.vocab.clone());
        let compiled = grammars.compile(&rules).expect("compiles").expect("binds");
        let cached = micros(200, || (), |()| grammars.compile(&rules).expect("compiles"));
        let copy = micros(200, || (), |()| compiled.matcher().expect("a matcher"));
        println!("  {n:>2} tools: compile {:.2} ms, cached {:.3} ms, a matcher {copy:.0} us", cold / 1e3, cached / 1e3);
    }
    let grammars = Grammars::new(format, tokens.vocab.clone());
    let compiled = grammars.compile(&rules(8)).expect("compiles").expect("binds");
    let text = tokens.encode(TEXT);
    let section = tokens.encode("⟦<|tool_calls_section_begin|>⟧");
    let calls = tokens.encode(&call(0));
    per_token("text", &compiled, &[], &text, 200);
    per_token("text, 10 times as long", &compiled, &[], &text.repeat(10), 40);
    per_token("a call", &compiled, &section, &calls, 200);
    let calls = tokens.encode(&(0..10).map(call).collect::<String>());
    per_token("ten calls", &compiled, &section, &calls, 40);
}

fn main() {
    let dir = std::env::args().skip(1).find(|argument| !argument.starts_with('-')).map(PathBuf::from);
    let dir =
        dir.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/kimi-k2-tokenizer"));
    run(&Tokens::demo());
    match Tokens::kimi(&dir) {
        Some(tokens) => run(&tokens),
        None => println!("no Kimi tokenizer in {}", dir.display()),
    }
}
