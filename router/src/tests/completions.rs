//! Text completions over HTTP.

use serde_json::json;

use super::*;

fn request(script: &[u32], more: Value) -> Value {
    let mut request = json!({"model": "bytes", "prompt": "ab", "script": script});
    for (name, value) in more.as_object().unwrap() {
        request[name] = value.clone();
    }
    request
}

async fn complete(router: &TestRouter, script: &[u32], more: Value) -> Value {
    router.post("/v1/completions", request(script, more)).await.ok()
}

#[tokio::test]
async fn a_completion_continues_its_prompt() {
    let router = TestRouter::new();
    let body = complete(&router, &bytes("cd"), json!({})).await;
    assert_eq!(body["object"], "text_completion");
    assert_eq!(body["choices"], json!([{"index": 0, "text": "cd", "logprobs": null, "finish_reason": "stop"}]));
    assert_eq!(body["usage"]["prompt_tokens"], 2);
    let start = &router.fake.starts()[0];
    assert_eq!((start.prompt.clone(), start.limits.as_ref().unwrap().max_tokens), (bytes("ab"), 16));
    // The default is at least `min_tokens`.
    complete(&router, &bytes("cd"), json!({"min_tokens": 20})).await;
    let limits = router.fake.starts()[1].limits.clone().unwrap();
    assert_eq!((limits.min_tokens, limits.max_tokens), (20, 20));
}

#[tokio::test]
async fn prompts_come_in_four_shapes() {
    let router = TestRouter::new();
    for (prompt, count) in
        [(json!("ab"), 1), (json!([97, 98]), 1), (json!(["ab", "ab"]), 2), (json!([[97, 98], [97, 98], [97, 98]]), 3)]
    {
        let before = router.fake.starts().len();
        let body = complete(&router, &bytes("c"), json!({"prompt": prompt, "n": 2, "seed": 5})).await;
        assert_eq!(body["choices"].as_array().unwrap().len(), 2 * count);
        assert_eq!(body["usage"]["prompt_tokens"], 2 * count);
        assert_eq!(body["usage"]["prompt_tokens_details"]["cached_tokens"], 3 * count);
        let starts = router.fake.starts().split_off(before);
        assert!(starts.iter().all(|start| start.prompt == bytes("ab")));
        // Every prompt's first choice uses the given seed.
        let given = starts.iter().filter(|start| start.sampling.as_ref().unwrap().seed == 5).count();
        assert_eq!(given, count);
    }
}

#[tokio::test]
async fn echo_with_logprobs_scores_the_prompt() {
    let router = TestRouter::new();
    let body = complete(&router, &bytes("c"), json!({"echo": true, "logprobs": 1})).await;
    let choice = &body["choices"][0];
    assert_eq!(choice["text"], "abc");
    let logprobs = &choice["logprobs"];
    assert_eq!(logprobs["tokens"], json!(["a", "b", "c", "<|im_end|>"]));
    assert_eq!(logprobs["token_logprobs"], json!([null, -0.5, -0.5, -0.5]));
    assert_eq!(logprobs["text_offset"], json!([0, 1, 2, 3]));
    assert_eq!(logprobs["top_logprobs"][0], json!(null));
    assert_eq!(logprobs["top_logprobs"][2], json!({"c": -0.5}));
    assert_eq!(router.fake.starts()[0].prompt_logprobs, 1);
}

#[tokio::test]
async fn no_tokens_with_echo_scores_the_prompt_and_frees_the_slot() {
    let router = TestRouter::new();
    let body = complete(&router, &bytes("c"), json!({"echo": true, "logprobs": 0, "max_tokens": 0})).await;
    let choice = &body["choices"][0];
    assert_eq!((&choice["text"], &choice["finish_reason"]), (&json!("ab"), &json!("length")));
    assert_eq!(choice["logprobs"]["tokens"], json!(["a", "b"]));
    assert_eq!(body["usage"]["completion_tokens"], 0);
    router.fake.open(0).await;
}

#[tokio::test]
async fn echo_of_token_ids_is_their_text() {
    let body = complete(&TestRouter::new(), &bytes("c"), json!({"echo": true, "prompt": [104, 195, 169]})).await;
    assert_eq!(body["choices"][0]["text"], "héc");
}

#[tokio::test]
async fn a_stream_has_the_same_content_as_an_answer_without_streaming() {
    let router = TestRouter::new();
    for more in [
        json!({}),
        json!({"echo": true, "logprobs": 2, "n": 2}),
        json!({"return_token_ids": true, "prompt": ["ab", "xyz"]}),
        json!({"stop": ["lo w", "zz"], "logprobs": 0}),
        json!({"prompt_logprobs": 1, "max_tokens": 3}),
    ] {
        let script = bytes("héllo world");
        let whole = complete(&router, &script, more.clone()).await;
        let mut streamed = request(&script, more.clone());
        streamed["stream"] = true.into();
        streamed["stream_options"] = json!({"include_usage": true});
        let chunks = router.post("/v1/completions", streamed).await.payloads();
        for expected in whole["choices"].as_array().unwrap() {
            let mut text = String::new();
            let mut lists: HashMap<&str, Vec<Value>> = HashMap::new();
            let mut finish = Value::Null;
            for choice in chunks.iter().flat_map(|chunk| chunk["choices"].as_array().unwrap()) {
                if choice["index"] != expected["index"] {
                    continue;
                }
                text.push_str(choice["text"].as_str().unwrap());
                for name in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
                    let items = choice["logprobs"][name].as_array().cloned().unwrap_or_default();
                    lists.entry(name).or_default().extend(items);
                }
                let ids = choice["token_ids"].as_array().cloned().unwrap_or_default();
                lists.entry("token_ids").or_default().extend(ids);
                for once in ["prompt_token_ids", "prompt_logprobs"] {
                    if let Some(value) = choice.get(once) {
                        assert_eq!(*value, expected[once]);
                    }
                }
                if !choice["finish_reason"].is_null() {
                    finish = choice["finish_reason"].clone();
                }
            }
            assert_eq!((&json!(text), &finish), (&expected["text"], &expected["finish_reason"]), "{more}");
            for name in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
                let whole = expected["logprobs"][name].as_array().cloned().unwrap_or_default();
                assert_eq!(lists[name], whole, "{more} {name}");
            }
            assert_eq!(lists["token_ids"], expected["token_ids"].as_array().cloned().unwrap_or_default());
        }
        let last = chunks.last().unwrap();
        assert_eq!((&last["choices"], &last["usage"]), (&json!([]), &whole["usage"]));
        assert!(chunks[..chunks.len() - 1].iter().all(|chunk| chunk["usage"].is_null()));
    }
}

#[tokio::test]
async fn control_tokens_are_omitted_unless_requested_and_markers_are_text() {
    let router = TestRouter::new();
    let script = [bytes("a").as_slice(), &[CONTROL, THINK], &bytes("b")].concat();
    assert_eq!(complete(&router, &script, json!({})).await["choices"][0]["text"], "a<think>b");
    let body = complete(&router, &script, json!({"skip_special_tokens": false})).await;
    assert_eq!(body["choices"][0]["text"], "a<|control|><think>b");
}

#[tokio::test]
async fn tokenize_and_detokenize_are_inverse() {
    let router = TestRouter::new();
    let tokens = router.post("/tokenize", json!({"prompt": "hé<|im_end|>", "return_token_strs": true})).await.ok();
    let ids = [104, 195, 169, END];
    assert_eq!((&tokens["tokens"], &tokens["count"]), (&json!(ids), &json!(4)));
    assert_eq!(tokens["max_model_len"], CONTEXT);
    assert_eq!(tokens["token_strs"], json!(["h", "\u{FFFD}", "\u{FFFD}", "<|im_end|>"]));
    let text = router.post("/detokenize", json!({"model": "bytes", "tokens": ids})).await.ok();
    assert_eq!(text, json!({"prompt": "hé<|im_end|>"}));
    let chat = json!({"messages": [{"role": "user", "content": "hi"}], "add_generation_prompt": false});
    let answer = router.post("/tokenize", chat).await;
    assert_eq!(answer.ok()["tokens"], json!(bytes("user: hi\n")));
    assert_eq!(answer.ok()["token_strs"], json!(null));
}

#[tokio::test]
async fn text_offsets_are_characters_of_the_text() {
    let router = TestRouter::new();
    let script = [bytes("aé").as_slice(), &[CONTROL], &bytes("bc")].concat();
    let asked = json!({"prompt": "hé", "echo": true, "logprobs": 0, "stop": "c"});
    let body = complete(&router, &script, asked).await;
    assert_eq!(body["choices"][0]["text"], "héaéb");
    // h, two bytes of é, a, two bytes of é, a control token without text, b, and the stop c.
    assert_eq!(body["choices"][0]["logprobs"]["text_offset"], json!([0, 1, 1, 2, 3, 3, 4, 4, 5]));
}

#[tokio::test]
async fn a_prompt_as_long_as_the_context_can_be_scored_but_a_longer_one_cannot() {
    let router = TestRouter::new();
    let asked = |length: u32| {
        json!({"model": "bytes", "prompt": vec![97; length as usize], "echo": true,
        "logprobs": 0, "max_tokens": 0})
    };
    let full = router.post("/v1/completions", asked(CONTEXT)).await.ok();
    assert_eq!(full["choices"][0]["logprobs"]["tokens"].as_array().map(Vec::len), Some(CONTEXT as usize));
    let longer = router.post("/v1/completions", asked(CONTEXT + 1)).await.json()["error"].clone();
    assert_eq!(longer["code"], "context_length_exceeded");
    assert!(longer["message"].as_str().unwrap().contains("'max_tokens' asks for 0 more"), "{longer}");
}
