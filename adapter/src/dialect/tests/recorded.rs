//! Answers that real engines gave to adapters. `tests/engines/record.py` writes them.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde_json::Value;

use super::super::*;
use crate::sse::SseEvents;

#[derive(Deserialize)]
struct Recorded {
    pages: BTreeMap<String, String>,
    exchanges: Vec<Exchange>,
}

#[derive(Deserialize)]
struct Exchange {
    request: Value,
    status: u16,
    answer: String,
}

/// What one answer says: its frames together.
fn whole(dialect: EngineDialect, exchange: &Exchange) -> DrawFrame {
    let mut datas = Vec::new();
    if exchange.request["stream"] == true {
        let mut events = SseEvents::new(1 << 20);
        // In pieces that end anywhere.
        for piece in exchange.answer.as_bytes().chunks(29) {
            events.push(piece, |data| datas.push(data.to_vec())).expect("short events");
        }
    } else {
        datas.push(exchange.answer.clone().into_bytes());
    }
    let (mut reader, mut whole) = (dialect.reader(), DrawFrame::default());
    for data in datas {
        if whole.end.is_some() && data == b"[DONE]" {
            break;
        }
        let frame = reader.read(&data).expect("a frame");
        whole.drawn.extend(frame.drawn);
        whole.cached_tokens = frame.cached_tokens.or(whole.cached_tokens);
        whole.end = whole.end.or(frame.end);
    }
    whole
}

/// The biases of a request: a map, or an array of pairs.
fn biases(request: &Value) -> Vec<(u64, Value)> {
    let map = request["logit_bias"].as_object().into_iter().flatten();
    let named = map.filter_map(|(id, bias)| Some((id.parse().ok()?, bias.clone())));
    let listed = request["logit_bias"].as_array().into_iter().flatten();
    named.chain(listed.filter_map(|entry| Some((entry[0].as_u64()?, entry[1].clone())))).collect()
}

/// The ids that a request allows; empty: all.
fn allowed(request: &Value) -> Vec<u64> {
    let listed = request["allowed_token_ids"].as_array().into_iter().flatten().filter_map(Value::as_u64);
    let raised = biases(request).into_iter().filter(|(_, bias)| bias.as_f64() >= Some(100.0)).map(|(id, _)| id);
    listed.chain(raised).collect()
}

const RECORDED: [(EngineDialect, &str); 3] = [
    (EngineDialect::Vllm, include_str!("../recorded/vllm.json")),
    (EngineDialect::Sglang, include_str!("../recorded/sglang.json")),
    (EngineDialect::LlamaServer, include_str!("../recorded/llama-server.json")),
];

#[test]
fn real_engines_tell_what_they_are() {
    for (dialect, text) in RECORDED {
        let Recorded { pages, .. } = serde_json::from_str(text).expect("a recording");
        let page = |path: &str| pages.get(path).map(String::as_bytes);
        let models = page(dialect.probes().models).expect("its models");
        let facts = dialect.facts(models, page(dialect.probes().version), page("/metrics")).expect("facts");
        assert_eq!((facts.models.as_slice(), facts.context), (&["m".to_owned()][..], Some(4096)), "{dialect:?}");
        assert!(facts.version.is_some_and(|version| !version.is_empty()), "{dialect:?}");
        match dialect {
            EngineDialect::Vllm => assert_eq!((facts.block_size, facts.prefix_cache), (Some(32), Some(true))),
            EngineDialect::Sglang => {
                assert_eq!((facts.block_size, facts.prefix_cache, facts.slots), (Some(1), Some(true), Some(16)));
                assert_eq!(facts.blocks, Some(16 * 4096));
            }
            _ => assert_eq!(facts.slots, Some(16)),
        }
    }
}

#[test]
fn answers_of_real_engines_are_read() {
    for (dialect, text) in RECORDED {
        let Recorded { exchanges, .. } = serde_json::from_str(text).expect("a recording");
        let mut seen = BTreeSet::new();
        for exchange in &exchanges {
            assert_eq!(exchange.status, 200, "{}", exchange.request);
            let whole = whole(dialect, exchange);
            // SGLang has most parameters in an object of their own.
            let mut request = exchange.request.clone();
            if let Some(more) = exchange.request["sampling_params"].as_object() {
                request.as_object_mut().expect("an object").extend(more.clone());
            }
            let limit =
                ["max_tokens", "n_predict", "max_new_tokens"].into_iter().find_map(|name| request[name].as_u64());
            let most = limit.expect("a limit") as usize;
            match whole.end {
                Some(DrawEnd::Length) => assert_eq!(whole.drawn.len(), most, "{request}"),
                Some(DrawEnd::Stop(Some(id))) => {
                    assert_eq!(whole.drawn.last().map(|drawn| drawn.id), Some(id), "{request}");
                    seen.insert("a stop token");
                }
                end => panic!("{end:?} for {request}"),
            }
            let allowed = allowed(&request);
            if !allowed.is_empty() {
                assert!(allowed.contains(&u64::from(whole.drawn[0].id)), "{request}");
                seen.insert("allowed ids");
            }
            if biases(&request).iter().any(|(_, bias)| *bias == false || bias.as_f64() <= Some(-100.0)) {
                seen.insert("excluded ids");
            }
            let scored = request["n_probs"].as_u64().or(request["top_logprobs_num"].as_u64());
            if request["logprobs"].is_u64() || scored > Some(0) {
                for drawn in &whole.drawn {
                    let logprob = drawn.logprob.as_ref().expect("a logprob");
                    assert!(logprob.logprob.is_some_and(|value| value < 0.0) && logprob.top.len() >= 2, "{logprob:?}");
                }
                seen.insert("logprobs");
            }
            if whole.cached_tokens.is_some() {
                seen.insert("cached tokens");
            }
        }
        let mut want = vec!["allowed ids", "cached tokens", "excluded ids", "logprobs"];
        if dialect != EngineDialect::LlamaServer {
            // llama-server stops at the model's own stop tokens only, and draws none of them here.
            want.push("a stop token");
        }
        want.sort_unstable();
        assert_eq!(seen.into_iter().collect::<Vec<_>>(), want, "{dialect:?}");
    }
}
