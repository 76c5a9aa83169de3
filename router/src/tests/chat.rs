//! Chat completions over HTTP: streams, answers without streaming, and their fields.

use serde_json::json;

use super::*;

#[tokio::test]
async fn a_stream_has_its_role_with_the_first_text_then_the_finish_reason_then_usage() {
    let router = TestRouter::new();
    let chunks = router.stream(&bytes("ok"), json!({"stream_options": {"include_usage": true}})).await;
    assert_eq!(chunks.len(), 4);
    for chunk in &chunks {
        assert_eq!(chunk["object"], "chat.completion.chunk");
        assert_eq!((&chunk["id"], &chunk["created"]), (&chunks[0]["id"], &chunks[0]["created"]));
        assert_eq!(chunk["model"], "bytes");
    }
    assert_eq!(chunks[0]["choices"][0]["delta"], json!({"role": "assistant", "content": "o"}));
    assert_eq!(chunks[1]["choices"][0]["delta"], json!({"content": "k"}));
    assert_eq!(chunks[2]["choices"][0]["finish_reason"], "stop");
    assert_eq!(chunks[2]["choices"][0]["delta"], json!({}));
    assert!(chunks[..3].iter().all(|chunk| chunk["usage"].is_null() && chunk.get("usage").is_some()));
    assert_eq!(chunks[3]["choices"], json!([]));
    let prompt = bytes("user: hi\nassistant: ").len();
    assert_eq!(
        chunks[3]["usage"],
        json!({"prompt_tokens": prompt, "completion_tokens": 3, "total_tokens": prompt + 3,
               "prompt_tokens_details": {"cached_tokens": 3}, "completion_tokens_details": {"reasoning_tokens": 0}})
    );
    assert_eq!(router.fake.starts()[0].prompt, bytes("user: hi\nassistant: "));
}

#[tokio::test]
async fn the_first_chunk_of_each_choice_has_its_role_and_its_first_content() {
    let router = TestRouter::new();
    let reasons = [&[THINK], bytes("w").as_slice(), &[END_THINK], &bytes("t")].concat();
    let calls = [&[SECTION], call("functions.f:0", "{}").as_slice(), &[END_SECTION]].concat();
    for (script, first) in [
        (bytes("text"), json!({"role": "assistant", "content": "t"})),
        (reasons, json!({"role": "assistant", "content": "", "reasoning_content": "w", "reasoning": "w"})),
        (
            calls,
            json!({"role": "assistant", "content": "", "tool_calls": [
                {"index": 0, "id": "functions.f:0", "type": "function", "function": {"name": "f", "arguments": ""}}]}),
        ),
        // Only the end token is generated.
        (vec![], json!({"role": "assistant", "content": ""})),
    ] {
        let chunks = router.stream(&script, json!({"n": 2, "tools": tools(&["f"])})).await;
        for index in 0..2 {
            let deltas: Vec<&Value> = chunks
                .iter()
                .map(|chunk| &chunk["choices"][0])
                .filter(|choice| choice["index"] == index)
                .map(|choice| &choice["delta"])
                .collect();
            assert_eq!(*deltas[0], first);
            assert!(deltas[1..].iter().all(|delta| delta.get("role").is_none()), "{deltas:?}");
        }
    }
}

#[tokio::test]
async fn a_stream_begins_before_its_prompt_is_computed_with_a_comment_and_no_chunk() {
    for (path, more) in [
        ("/v1/chat/completions", json!({})),
        ("/v1/chat/completions", json!({"n": 2})),
        ("/v1/chat/completions", json!({"prompt_logprobs": 1, "return_token_ids": true})),
        ("/v1/completions", json!({"echo": true, "return_token_ids": true})),
        ("/v1/completions", json!({"echo": true, "logprobs": 1, "max_tokens": 0})),
        ("/v1/completions", json!({"prompt": ["ab", "cd"]})),
    ] {
        let router = TestRouter::with(RouterConfig::default(), Fake::ending(fake::Ending::Prefill));
        let mut request = chat_request(&bytes("a"), more.clone());
        request["stream"] = true.into();
        if path == "/v1/completions" {
            request.as_object_mut().unwrap().remove("messages");
            request.as_object_mut().unwrap().entry("prompt").or_insert("ab".into());
        }
        let request = Request::post(path).header("content-type", "application/json").body(request.to_string().into());
        let response = router.send(request.unwrap()).await;
        assert_eq!(response.status(), StatusCode::OK, "{path} {more}");
        let mut body = response.into_body();
        let frame = body.frame().await.unwrap().unwrap().into_data().unwrap();
        assert_eq!(frame, ": admitted\n\n", "{path} {more}");
        assert!(futures::poll!(body.frame()).is_pending(), "{path} {more}");
        assert!(!router.fake.starts().is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn a_silent_stream_gets_comments() {
    let router = TestRouter::with(RouterConfig::default(), Fake::ending(fake::Ending::Prefill));
    let body = chat_request(&bytes("a"), json!({"stream": true})).to_string();
    let request = Request::post("/v1/chat/completions").header("content-type", "application/json");
    let mut body = router.send(request.body(body.into()).unwrap()).await.into_body();
    let mut next = async || body.frame().await.unwrap().unwrap().into_data().unwrap();
    assert_eq!(next().await, ": admitted\n\n");
    let began = tokio::time::Instant::now();
    for _ in 0..3 {
        assert_eq!(next().await, ": waiting\n\n");
    }
    assert_eq!(began.elapsed(), 3 * crate::limits::SSE_SILENCE);
}

#[tokio::test]
async fn continuous_usage_is_in_each_chunk() {
    let router = TestRouter::new();
    let script = [&[THINK], bytes("why").as_slice(), &[END_THINK], &bytes("so")].concat();
    let options = json!({"include_usage": true, "continuous_usage_stats": true});
    for (n, include) in [(1, true), (2, true), (1, false)] {
        let mut options = options.clone();
        options["include_usage"] = include.into();
        let chunks = router.stream(&script, json!({"n": n, "stream_options": options, "stop": "zz"})).await;
        let counts =
            |name: &str| -> Vec<u64> { chunks.iter().map(|chunk| chunk["usage"][name].as_u64().unwrap()).collect() };
        let completion = counts("completion_tokens");
        assert!(completion.is_sorted() && completion[0] > 0, "{completion:?}");
        assert_eq!(*completion.last().unwrap(), n * 8, "seven tokens and the end: {completion:?}");
        let prompt = bytes("user: hi\nassistant: ").len() as u64;
        assert!(counts("prompt_tokens").iter().all(|count| *count == prompt));
        let totals = counts("total_tokens");
        assert!(totals.iter().zip(&completion).all(|(total, completion)| *total == prompt + completion));
        assert_eq!(chunks.last().unwrap()["choices"] == json!([]), include);
        // Token ids were not requested.
        assert!(chunks.iter().all(|chunk| chunk.get("prompt_token_ids").is_none()));
        assert!(chunks.iter().all(|chunk| chunk["choices"][0].get("token_ids").is_none()));
    }
    let request = json!({"model": "bytes", "prompt": ["ab", "xyz"], "script": bytes("cd"), "stream": true, "stream_options": options});
    let chunks = router.post("/v1/completions", request).await.payloads();
    let usage = |chunk: &Value| {
        (chunk["usage"]["prompt_tokens"].as_u64().unwrap(), chunk["usage"]["completion_tokens"].as_u64().unwrap())
    };
    assert_eq!(usage(chunks.last().unwrap()), (5, 6));
    assert_eq!(usage(&chunks[chunks.len() - 2]), (5, 6));
}

#[tokio::test]
async fn without_include_usage_no_chunk_has_usage() {
    let chunks = TestRouter::new().stream(&bytes("ok"), json!({})).await;
    assert!(
        chunks.iter().all(|chunk| chunk.get("usage").is_none() && !chunk["choices"].as_array().unwrap().is_empty())
    );
}

#[tokio::test]
async fn an_answer_has_the_shape_of_the_openai_api() {
    let router = TestRouter::new();
    let answer = router.chat(&bytes("héllo"), json!({})).await;
    let body = answer.ok();
    assert_eq!(body["object"], "chat.completion");
    let choice = &body["choices"][0];
    assert_eq!(choice["message"], json!({"role": "assistant", "content": "héllo", "refusal": null}));
    assert_eq!((&choice["finish_reason"], &choice["logprobs"]), (&json!("stop"), &json!(null)));
    assert_eq!(body["usage"]["completion_tokens"], 7);
    assert_eq!(answer.header("x-request-id"), body["id"]);
    assert!(body["id"].as_str().unwrap().starts_with("chatcmpl-"));
}

#[tokio::test]
async fn defaults_come_from_the_model_and_every_field_reaches_the_engine() {
    let router = TestRouter::new();
    router.chat(&bytes("a"), json!({})).await.ok();
    let defaults = router.fake.starts()[0].clone();
    let sampling = defaults.sampling.unwrap();
    assert_eq!((sampling.temperature, sampling.top_k, sampling.top_p), (0.5, 40, 1.0));
    assert_eq!((sampling.min_p, sampling.repetition_penalty), (0.0, 1.0));
    let limits = defaults.limits.unwrap();
    assert_eq!(limits.max_tokens, CONTEXT - defaults.prompt.len() as u32);
    assert_eq!((limits.stop_token_ids, limits.ignore_eos, limits.min_tokens), (vec![END], false, 0));
    assert_eq!((defaults.logprobs, defaults.prompt_logprobs, defaults.cache_salt.as_str()), (-1, -1, ""));

    let more = json!({"temperature": 0, "top_p": 0.9, "top_k": -1, "min_p": 0.1, "repetition_penalty": 1.1,
        "presence_penalty": -1, "frequency_penalty": 2, "logit_bias": {"7": -100, "3": 5.5}, "seed": -1, "max_tokens": 9,
        "max_completion_tokens": 8, "min_tokens": 2, "stop_token_ids": [65], "logprobs": true, "top_logprobs": 2,
        "prompt_logprobs": 1, "cache_salt": "s"});
    router.chat(&bytes("a"), more).await.ok();
    let start = router.fake.starts()[1].clone();
    let sampling = start.sampling.unwrap();
    assert_eq!((sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p), (0.0, 0.9, 0, 0.1));
    assert_eq!((sampling.repetition_penalty, sampling.presence_penalty), (1.1, -1.0));
    assert_eq!((sampling.frequency_penalty, sampling.seed), (2.0, u64::MAX));
    let bias: Vec<_> = sampling.logit_bias.iter().map(|bias| (bias.token, bias.bias)).collect();
    assert_eq!(bias, [(3, 5.5), (7, -100.0)]);
    let limits = start.limits.unwrap();
    assert_eq!((limits.max_tokens, limits.min_tokens, limits.stop_token_ids), (8, 2, vec![65, END]));
    assert_eq!((start.logprobs, start.prompt_logprobs, start.cache_salt.as_str()), (2, 1, "s"));
}

#[tokio::test]
async fn ignore_eos_keeps_the_requests_stop_tokens() {
    let router = TestRouter::new();
    router.chat(&bytes("a"), json!({"ignore_eos": true, "stop_token_ids": [66]})).await.ok();
    router.chat(&bytes("a"), json!({"ignore_eos": true, "max_tokens": 1})).await.ok();
    let limits: Vec<_> = router.fake.starts().into_iter().map(|start| start.limits.unwrap()).collect();
    assert_eq!((&limits[0].stop_token_ids, limits[0].ignore_eos), (&vec![66], false));
    assert_eq!((&limits[1].stop_token_ids, limits[1].ignore_eos), (&vec![], true));
}

#[tokio::test]
async fn a_requests_stop_token_is_the_stop_reason_and_not_text() {
    let router = TestRouter::new();
    let body = router.chat(&bytes("abc"), json!({"stop_token_ids": ['b' as u32], "return_token_ids": true})).await.ok();
    let choice = &body["choices"][0];
    assert_eq!((&choice["message"]["content"], &choice["stop_reason"]), (&json!("a"), &json!('b' as u32)));
    assert_eq!(choice["token_ids"], json!(bytes("ab")));
    assert_eq!(body["prompt_token_ids"], json!(bytes("user: hi\nassistant: ")));
}

#[tokio::test]
async fn stop_strings_split_over_tokens_never_leak_and_stop_the_engine() {
    let router = TestRouter::with(RouterConfig::default(), Fake::ending(fake::Ending::Hang));
    for (stop, content) in [(json!("END"), "ab E"), (json!(["x", "b E", "END"]), "a")] {
        let more = json!({"stop": stop});
        let chunks = router.stream(&bytes("ab EEND more"), more.clone()).await;
        let joined = &join(&chunks)[0];
        assert_eq!((&joined["content"], &joined["finish"]), (&json!(content), &json!("stop")));
        assert_eq!(unfold(&router.chat(&bytes("ab EEND more"), more).await.ok())[0], *joined);
        router.fake.open(0).await;
    }
    let joined =
        &join(&router.stream(&bytes("ab END"), json!({"stop": "END", "include_stop_str_in_output": true})).await)[0];
    assert_eq!((&joined["content"], &joined["stop"]), (&json!("ab END"), &json!("END")));
    router.fake.open(0).await;
    let steers = router.fake.steers(5).await;
    assert!(steers.iter().all(|steer| steer.stop && steer.epoch == 1), "{steers:?}");
    // Usage counts up to the token that completed the match.
    assert_eq!(steers.iter().map(|steer| steer.keep).collect::<Vec<_>>(), [7, 7, 4, 4, 6]);
}

#[tokio::test]
async fn characters_split_over_tokens_are_whole_in_every_chunk() {
    let text = "é火🙂";
    for size in 1..5 {
        let router = TestRouter::with(RouterConfig::default(), Fake { batches: vec![size], ..Fake::default() });
        let chunks = router.stream(&bytes(text), json!({})).await;
        assert_eq!(join(&chunks)[0]["content"], text);
        assert!(!chunks.iter().any(|chunk| chunk.to_string().contains('\u{FFFD}')));
    }
    let cut = TestRouter::new().chat(&bytes(text)[..4], json!({})).await.ok();
    assert_eq!(cut["choices"][0]["message"]["content"], "é\u{FFFD}");
}

#[tokio::test]
async fn reasoning_is_separate_from_text_even_if_the_prompt_opened_it() {
    let router = TestRouter::new();
    let script = [&[THINK], bytes("why").as_slice(), &[END_THINK], &bytes("so")].concat();
    let written = router.chat(&script, json!({"stream_options": null})).await.ok();
    let opened = router.chat(&script[1..], json!({"thinking": {"type": "enabled"}})).await.ok();
    for body in [written, opened] {
        let message = &body["choices"][0]["message"];
        assert_eq!((&message["reasoning_content"], &message["reasoning"]), (&json!("why"), &json!("why")));
        assert_eq!(message["content"], "so");
        assert_eq!(body["usage"]["completion_tokens_details"]["reasoning_tokens"], 3);
    }
    assert_eq!(*router.fake.starts()[1].prompt.last().unwrap(), THINK);
}

#[tokio::test]
async fn thinking_switches_both_names_of_the_template_variable() {
    let router = TestRouter::new();
    for (more, open) in [
        (json!({"thinking": true}), true),
        (json!({"thinking": false}), false),
        (json!({"thinking": {"type": "disabled"}}), false),
        (json!({"reasoning_effort": "high"}), false),
        (json!({"thinking": true, "chat_template_kwargs": {"thinking": false}}), false),
        (json!({"chat_template_kwargs": {"thinking": true}}), true),
    ] {
        let rendered = router.post("/v1/chat/completions/render", chat_request(&[], more.clone())).await.ok();
        assert_eq!(rendered["prompt"].as_str().unwrap().ends_with("<think>"), open, "{more}");
    }
}

#[tokio::test]
async fn tool_calls_have_native_ids_that_count_over_the_conversation() {
    let router = TestRouter::new();
    let script = [
        bytes("let me see").as_slice(),
        &[SECTION],
        &call("functions.f:0", "{\"a\": 1}"),
        &call("functions.g:1", "{}"),
        &[END_SECTION],
    ]
    .concat();
    let body = router.chat(&script, json!({"tools": tools(&["f", "g"])})).await.ok();
    let message = &body["choices"][0]["message"];
    assert_eq!(message["content"], "let me see");
    assert_eq!(
        message["tool_calls"],
        json!([{"id": "functions.f:0", "type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}},
               {"id": "functions.g:1", "type": "function", "function": {"name": "g", "arguments": "{}"}}])
    );
    assert_eq!(body["choices"][0]["finish_reason"], "tool_calls");

    let messages = json!([{"role": "user", "content": "hi"}, {"role": "assistant", "content": null, "tool_calls": [
        {"id": "functions.f:0", "type": "function", "function": {"name": "f", "arguments": "{}"}},
        {"id": "functions.f:1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "functions.f:0", "content": "1"},
        {"role": "tool", "tool_call_id": "functions.f:1", "content": "2"}]);
    let body = router.chat(&script, json!({"tools": tools(&["f", "g"]), "messages": messages})).await.ok();
    let calls = &body["choices"][0]["message"]["tool_calls"];
    assert_eq!((&calls[0]["id"], &calls[1]["id"]), (&json!("functions.f:2"), &json!("functions.g:3")));
}

#[tokio::test]
async fn tool_choice_none_keeps_the_tools_in_the_prompt_and_refuses_calls() {
    let router = TestRouter::new();
    let body = router.chat(&bytes("text"), json!({"tools": tools(&["f"]), "tool_choice": "none"})).await.ok();
    assert_eq!(body["choices"][0]["finish_reason"], "stop");
    assert!(body["choices"][0]["message"].get("tool_calls").is_none());
    // The router makes the engine draw again without the token that opens a call; this engine never answers.
    let hanging = TestRouter::with(RouterConfig::default(), Fake::ending(fake::Ending::Hang));
    let request = json!({"tools": tools(&["f"]), "tool_choice": "none"});
    let script = [u32::from(b'a'), SECTION];
    let asked = hanging.chat(&script, request);
    let steers = async { hanging.fake.steers(1).await };
    let steer = tokio::select! { steers = steers => steers[0].clone(), _ = asked => panic!("it ended") };
    let mask = steer.mask.unwrap();
    let allowed = |id: u32| mask[id as usize / 8] >> (id % 8) & 1 == 1;
    assert_eq!((steer.keep, allowed(SECTION), allowed(u32::from(b'b')), allowed(END)), (1, false, true, true));
    let prompt: Vec<u8> = router.fake.starts()[0].prompt.iter().map(|&id| id as u8).collect();
    assert!(prompt.starts_with(b"tools: "));
}

#[tokio::test]
async fn an_answer_without_text_but_with_calls_has_null_content() {
    let script = [&[SECTION], call("functions.f:0", "{}").as_slice(), &[END_SECTION]].concat();
    let body = TestRouter::new().chat(&script, json!({"tools": tools(&["f"])})).await.ok();
    assert_eq!(body["choices"][0]["message"]["content"], json!(null));
    assert_eq!(TestRouter::new().chat(&[], json!({})).await.ok()["choices"][0]["message"]["content"], json!(""));
}

#[tokio::test]
async fn a_length_limit_inside_a_call_has_the_finish_reason_length() {
    let script = [&[SECTION], call("functions.f:0", "{\"a\": 1}").as_slice()].concat();
    let body = TestRouter::new().chat(&script, json!({"tools": tools(&["f"]), "max_tokens": 20})).await.ok();
    assert_eq!(body["choices"][0]["finish_reason"], "length");
    assert_eq!(body["usage"]["completion_tokens"], 20);
}

#[tokio::test]
async fn logprobs_cover_every_generated_token() {
    let router = TestRouter::new();
    let body = router.chat(&bytes("é!"), json!({"logprobs": true, "top_logprobs": 2})).await.ok();
    let content = body["choices"][0]["logprobs"]["content"].as_array().unwrap().clone();
    let bytes_of: Vec<&Value> = content.iter().map(|token| &token["bytes"]).collect();
    assert_eq!(bytes_of, [&json!([0xC3]), &json!([0xA9]), &json!([b'!']), &json!(b"<|im_end|>".to_vec())]);
    assert_eq!(content[2]["token"], "!");
    assert_eq!(content[2]["logprob"], -0.5);
    assert_eq!(
        content[2]["top_logprobs"],
        json!([{"token": "!", "logprob": -0.5, "bytes": [33]}, {"token": "\"", "logprob": -1.5, "bytes": [34]}])
    );
    let none = router.chat(&bytes("é!"), json!({"logprobs": true})).await.ok();
    assert_eq!(none["choices"][0]["logprobs"]["content"][0]["top_logprobs"], json!([]));
}

#[tokio::test]
async fn prompt_logprobs_come_once_and_the_first_token_has_none() {
    let router = TestRouter::new();
    let body = router.chat(&bytes("a"), json!({"prompt_logprobs": 1, "n": 2})).await.ok();
    let scores = body["prompt_logprobs"].as_array().unwrap();
    assert_eq!(scores.len(), bytes("user: hi\nassistant: ").len());
    assert!(scores[0].is_null());
    assert_eq!(scores[1]["115"], json!({"logprob": -0.5, "rank": 1, "decoded_token": "s"}));
    assert_eq!(router.fake.starts().iter().map(|start| start.prompt_logprobs).collect::<Vec<_>>(), [1, -1]);
}

#[tokio::test]
async fn choices_share_the_prompt_and_have_their_own_seeds() {
    let router = TestRouter::new();
    let body = router.chat(&bytes("abc"), json!({"n": 3, "seed": 11})).await.ok();
    assert_eq!(body["choices"].as_array().unwrap().len(), 3);
    assert_eq!((0..3).map(|i| body["choices"][i]["index"].as_u64().unwrap()).collect::<Vec<_>>(), [0, 1, 2]);
    assert_eq!(body["usage"]["completion_tokens"], 12);
    assert_eq!(body["usage"]["prompt_tokens"], 20);
    assert_eq!(body["usage"]["prompt_tokens_details"]["cached_tokens"], 3);
    let starts = router.fake.starts();
    let seeds: std::collections::HashSet<u64> = starts.iter().map(|s| s.sampling.as_ref().unwrap().seed).collect();
    assert_eq!((seeds.len(), starts[0].sampling.as_ref().unwrap().seed), (3, 11));
    assert!(starts.iter().all(|start| start.prompt == starts[0].prompt));
}

#[tokio::test]
async fn unknown_fields_are_reported_and_harmless_ones_are_not() {
    let router = TestRouter::new();
    let more = json!({"user": "me", "metadata": {"a": "b"}, "store": true, "service_tier": "auto", "wibble": 1,
        "wobble, x": {}, "absent": null, "n": 1, "best_of": 1, "modalities": ["text"],
        "response_format": {"type": "text"}, "parallel_tool_calls": true, "tool_choice": "auto"});
    let answer = router.chat(&bytes("a"), more).await;
    answer.ok();
    assert_eq!(answer.header("x-rein-ignored-fields"), "wibble,wobble??x");
    assert!(!router.chat(&bytes("a"), json!({})).await.headers.contains_key("x-rein-ignored-fields"));
}

#[tokio::test]
async fn a_final_message_is_continued_without_a_generation_prompt() {
    let router = TestRouter::new();
    let messages = json!([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "well"}]);
    let more = json!({"messages": messages, "continue_final_message": true});
    let rendered = router.post("/v1/chat/completions/render", chat_request(&[], more)).await.ok();
    assert_eq!(rendered["prompt"], "user: hi\nassistant: well");
    assert_eq!(rendered["token_ids"], json!(bytes("user: hi\nassistant: well")));
    assert_eq!(rendered["count"], 24);
}

#[tokio::test]
async fn numbers_beyond_64_bits_reach_the_template_as_written() {
    let router = TestRouter::new();
    let body = r#"{"model": "bytes", "temperature": 0.7, "messages": [{"role": "user", "content": "x"}], "tools": [{"type":
        "function", "function": {"name": "f", "parameters": {"maximum": 1000000000000000000000000000000, "x": 1.0}}}]}"#;
    let prompt = router.post_bytes("/v1/chat/completions/render", body).await.ok()["prompt"].clone();
    let prompt = prompt.as_str().unwrap();
    assert!(prompt.contains(r#""maximum": 1000000000000000000000000000000, "x": 1.0"#), "{prompt}");
}

#[tokio::test]
async fn added_tokens_that_are_not_control_tokens_are_text() {
    let script = [bytes("a").as_slice(), &[EXTRA, CONTROL], &bytes("b")].concat();
    let body = TestRouter::new().chat(&script, json!({})).await.ok();
    assert_eq!(body["choices"][0]["message"]["content"], "a<|extra|>b");
}

#[tokio::test]
async fn calls_of_a_format_without_ids_get_random_ones() {
    let template = format!("{{# <tool_call> arguments #}}{TEMPLATE}");
    let fake = Fake::default();
    let router = Router::new(RouterConfig::default(), vec![entry(&template, &fake)]).unwrap();
    let router = TestRouter { router, fake };
    assert_eq!(router.get("/v1/models").await.ok()["data"][0]["format"], "hermes");
    let script = bytes("sure\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>");
    let body = router.chat(&script, json!({"tools": tools(&["f"])})).await.ok();
    let message = &body["choices"][0]["message"];
    assert_eq!(message["content"], "sure");
    let call = &message["tool_calls"][0];
    assert_eq!(call["function"], json!({"name": "f", "arguments": "{\"a\": 1}"}));
    let id = call["id"].as_str().unwrap().strip_prefix("call_").unwrap();
    assert!(id.len() == 24 && id.chars().all(|c| c.is_ascii_alphanumeric()), "{id}");
}

#[tokio::test]
async fn reasoning_is_not_sent_if_it_is_excluded() {
    let router = TestRouter::new();
    let script = [&[THINK], bytes("why").as_slice(), &[END_THINK], &bytes("so")].concat();
    let asked = json!({"include_reasoning": false});
    let whole = router.chat(&script, asked.clone()).await.ok();
    let message = &whole["choices"][0]["message"];
    assert_eq!(
        (&message["content"], message.get("reasoning_content"), message.get("reasoning")),
        (&json!("so"), None, None)
    );
    let joined = join(&router.stream(&script, asked).await);
    assert_eq!((&joined[0]["content"], &joined[0]["reasoning"]), (&json!("so"), &json!("")));
    assert!(router.chat(&script, json!({})).await.ok()["choices"][0]["message"]["reasoning"] == "why");
}

#[tokio::test]
async fn stop_strings_wait_for_min_tokens_and_stay_strings() {
    let router = TestRouter::new();
    let choice = async |more: Value| router.chat(&bytes("a44b44c"), more).await.ok()["choices"][0].clone();
    let at_once = choice(json!({"stop": "44"})).await;
    assert_eq!((&at_once["message"]["content"], &at_once["stop_reason"]), (&json!("a"), &json!("44")));
    let later = choice(json!({"stop": "44", "min_tokens": 3})).await;
    assert_eq!((&later["message"]["content"], &later["stop_reason"]), (&json!("a44b"), &json!("44")));
    // A match that begins before `min_tokens` and ends after it counts.
    let across = choice(json!({"stop": "44", "min_tokens": 2})).await;
    assert_eq!(across["message"]["content"], "a");
}

#[tokio::test]
async fn nested_unknown_fields_are_reported() {
    let router = TestRouter::new();
    let more = json!({"stream": true, "stream_options": {"x": 1}, "thinking": {"type": "enabled", "y": 9}, "reasoning": {"z": 1},
        "usage": {"w": 1}, "dry_base": 2});
    let answer = router.chat(&bytes("a"), more).await;
    assert_eq!(answer.header("x-rein-ignored-fields"), "dry_base,stream_options.x,usage.w,thinking.y,reasoning.z");
}
