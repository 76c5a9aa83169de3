//! Random outputs: streams and answers without streaming agree for any output and any batching.

use rand::{Rng, SeedableRng, rngs::StdRng};
use serde_json::json;

use super::*;

pub fn script(rng: &mut StdRng) -> Vec<u32> {
    let mut script = Vec::new();
    for _ in 0..rng.random_range(1..8) {
        match rng.random_range(0..10) {
            0 => script.push(THINK),
            1 => script.push(END_THINK),
            2 => script.extend([&[SECTION], call("functions.f:0", "{\"a\": \"é\"}").as_slice()].concat()),
            3 => script.extend(call("functions.g:7", "{\"b\": [1, 2]}")),
            4 => script.push(END_SECTION),
            5 => script.extend((0..4).map(|_| rng.random_range(257..VOCAB))),
            6 => script.extend((0..4).map(|_| rng.random_range(0..256))),
            _ => script.extend(bytes(["one two", "é火🙂", "\n\nSTOP", "a S", "TOP b"][rng.random_range(0..5)])),
        }
    }
    script
}

#[tokio::test]
async fn streams_and_answers_agree() {
    let mut rng = StdRng::seed_from_u64(20);
    for round in 0..150 {
        let batches = (0..rng.random_range(0..3)).map(|_| rng.random_range(1..6)).collect();
        let router = TestRouter::with(RouterConfig::default(), Fake { batches, ..Fake::default() });
        let single = TestRouter::new();
        let script = script(&mut rng);
        let mut more = json!({"logprobs": true, "return_token_ids": true, "n": rng.random_range(1..3)});
        if rng.random_bool(0.5) {
            more["stop"] = json!(["STOP", "two"]);
        }
        if rng.random_bool(0.7) {
            more["tools"] = tools(&["f", "g"]);
        }
        if rng.random_bool(0.3) {
            more["max_tokens"] = rng.random_range(1..40).into();
        }
        more["thinking"] = rng.random_bool(0.3).into();
        let stopped = more.get("stop").is_some();
        let whole = unfold(&router.chat(&script, more.clone()).await.ok());
        let streamed = join(&router.stream(&script, more.clone()).await);
        assert_eq!(streamed, whole, "round {round}: {script:?} {more}");
        // The result does not depend on the engine's batches.
        assert_eq!(unfold(&single.chat(&script, more.clone()).await.ok()), whole, "round {round}: {script:?} {more}");
        // A stop string does not match across a call.
        let plain = script.iter().all(|&id| id < SECTION);
        for choice in &whole {
            assert!(!choice["finish"].is_null());
            let text = format!("{}|{}", choice["content"], choice["reasoning"]);
            let leaks = text.contains("STOP") || text.contains("two");
            assert!(!(stopped && plain && leaks), "round {round}: {text}");
            let ids = choice["token_ids"].as_array().unwrap();
            assert_eq!(ids.len(), choice["logprobs"].as_array().unwrap().len());
            let full: Vec<Value> = script.iter().chain([&END]).map(|&id| id.into()).collect();
            assert_eq!(ids[..], full[..ids.len()], "every token is reported once, in order");
        }
    }
}
