//! Figures over the real Kimi vocabulary, where it is there. `cargo test -p rein-grammar --lib timing -- --nocapture`

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use serde_json::{Value, json};

use super::{rules, tool};
use crate::{Grammars, Tool, Vocab};

const STOPS: [u32; 2] = [163_585, 163_586];

/// The ranks of a tiktoken file: a token in base64 and its rank per line.
pub fn kimi() -> Option<Vocab> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/kimi-k2-tokenizer/tiktoken.model");
    let text = std::fs::read_to_string(file).ok()?;
    let mut words: Vec<(Vec<u8>, bool)> =
        text.lines().map(|l| (base64(l.split(' ').next().unwrap_or("")), false)).collect();
    let names = [
        (163_585, "[EOS]"),
        (163_586, "<|im_end|>"),
        (163_595, "<|tool_calls_section_begin|>"),
        (163_596, "<|tool_calls_section_end|>"),
        (163_597, "<|tool_call_begin|>"),
        (163_598, "<|tool_call_argument_begin|>"),
        (163_599, "<|tool_call_end|>"),
        (163_606, "<think>"),
        (163_607, "</think>"),
    ];
    for id in words.len()..163_840 {
        let name =
            names.iter().find(|(i, _)| *i == id).map_or(format!("<|reserved_token_{id}|>"), |(_, n)| (*n).into());
        words.push((name.into_bytes(), true));
    }
    Vocab::new(words.into_iter(), &STOPS, None).ok()
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

fn tools(n: usize) -> Vec<Tool> {
    let one = |i: usize| {
        tool(
            &format!("tool_{i}_of_many"),
            json!({"type": "object", "required": ["query", format!("kind_{i}")], "properties": {
                "query": {"type": "string", "description": "what to look for"},
                format!("kind_{i}"): {"type": "string", "enum": ["a", "b", format!("c{i}")]},
                "limit": {"type": "integer", "minimum": 1, "maximum": 100},
                format!("options_{i}"): {"type": "object", "properties": {"deep": {"type": "boolean"}, "tags": {"type": "array", "items": {"type": "string"}}}},
                "since": {"anyOf": [{"type": "string", "format": "date"}, {"type": "null"}]},
            }}),
        )
    };
    (0..n).map(one).collect()
}

#[test]
fn figures() {
    let Some(vocab) = kimi() else { return };
    let vocab = Arc::new(vocab);
    let format = crate::by_name("kimi_k2").expect("kimi");
    let grammars = Grammars::new(format, vocab.clone());
    for n in [1, 8, 64] {
        let r = rules(tools(n));
        let compiled = grammars.compile(&r).expect("compiles").expect("binds");
        // Others work on this machine, too: the best of some.
        let mut best = [std::time::Duration::MAX; 2];
        for _ in 0..5 {
            let start = Instant::now();
            let written = crate::lark::write(format, &vocab, &r, false).expect("writes");
            best[0] = best[0].min(start.elapsed());
            Grammars::new(format, vocab.clone()).compile(&r).expect("compiles");
            best[1] = best[1].min(start.elapsed());
            drop(written);
        }
        let again = (0..5).map(|_| {
            let start = Instant::now();
            grammars.compile(&r).expect("compiles");
            start.elapsed()
        });
        let again = again.min().unwrap_or_default();
        let start = Instant::now();
        let mut m = compiled.matcher().expect("matcher");
        let copy = start.elapsed();
        let arguments: Value = json!({"since": "2026-01-31", "query": "some long text, as it is. ".repeat(20), "kind_0": "b", "options_0": {"tags": ["x", "y"], "deep": false}, "limit": 99});
        let mut ids = vec![163_595, 163_597];
        let trie = vocab.trie();
        ids.extend(trie.greedy_tokenize(b"functions.tool_0_of_many:0"));
        ids.push(163_598);
        ids.extend(trie.greedy_tokenize(arguments.to_string().as_bytes()));
        ids.extend([163_599, 163_596]);
        let text = trie.greedy_tokenize("Some text before the call, of the usual kind. ".repeat(10).as_bytes());
        let all: Vec<u32> = text.iter().chain(&ids).copied().collect();
        let start = Instant::now();
        for id in &all {
            assert_eq!(m.accept(*id), Ok(true), "{}", trie.token_dbg(*id));
        }
        let accept = start.elapsed() / all.len() as u32;
        let mut m = compiled.matcher().expect("matcher");
        let start = Instant::now();
        for id in &all {
            m.mask().expect("mask");
            m.accept(*id).expect("accepts");
        }
        let mask = start.elapsed() / all.len() as u32;
        println!(
            "{n} tools: writing {:?}, that and compiling {:?}, again {again:?}, matcher {copy:?}, accept {accept:?} per token, mask and accept {mask:?} per token ({} tokens), grammar {} KB",
            best[0],
            best[1],
            all.len(),
            compiled.lark().len() >> 10
        );
    }
}
