//! Request fields of other servers with an OpenAI API.

use serde_json::json;

use super::*;

/// The last of this many steers of a stream, whose engine then sends nothing more.
async fn last_steer(router: &TestRouter, steers: usize, script: &[u32], more: Value) -> rein_proto::internal::Steer {
    let mut request = chat_request(script, more);
    request["stream"] = true.into();
    let body = Body::from(request.to_string());
    let request = Request::post("/v1/chat/completions").header("content-type", "application/json").body(body).unwrap();
    let mut body = router.send(request).await.into_body();
    tokio::select! {
        steers = router.fake.steers(steers) => steers.last().unwrap().clone(),
        () = async { while body.frame().await.is_some() {} } => panic!("the engine hangs"),
    }
}

#[tokio::test]
async fn guided_fields_constrain_the_text_like_structured_outputs() {
    let (router, hanging) =
        (TestRouter::new(), TestRouter::with(RouterConfig::default(), Fake::ending(fake::Ending::Hang)));
    let mut steers = 0;
    let schema =
        json!({"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"], "additionalProperties": false});
    for (more, text) in [
        (json!({"guided_json": schema}), r#"{"a":1}"#),
        (json!({"guided_json": schema.to_string()}), r#"{"a":1}"#),
        (json!({"json_schema": schema}), r#"{"a":1}"#),
        (json!({"guided_choice": ["yes", "no"]}), "no"),
        (json!({"guided_regex": "[ab]+c"}), "abc"),
        (json!({"regex": "[ab]+c"}), "abc"),
        (json!({"guided_grammar": "start: \"x\" \"y\""}), "xy"),
    ] {
        let good = router.chat(&bytes(text), more.clone()).await.ok();
        assert_eq!(good["choices"][0]["message"]["content"], text, "{more}");
        steers += 1;
        let steer = last_steer(&hanging, steers, &bytes("~"), more).await;
        assert!(steer.keep == 0 && (steer.mask.is_some() || !steer.append.is_empty()), "{steer:?}");
    }
    let both = router.chat(&[], json!({"guided_json": schema, "regex": "a"})).await.json();
    assert_eq!(both["error"]["message"], "'guided_json' and 'regex' cannot both be set");
    let both = router.chat(&[], json!({"guided_regex": "a", "guided_choice": ["a"]})).await.json();
    assert_eq!(both["error"]["param"], "guided_choice");
}

#[tokio::test]
async fn truncate_prompt_tokens_cuts_the_beginning_of_the_prompt() {
    let router = TestRouter::new();
    let whole = bytes("user: hi\nassistant: ");
    for (keep, left) in [(json!(5), 5), (json!(100), whole.len()), (json!(-1), whole.len())] {
        router.chat(&bytes("a"), json!({"truncate_prompt_tokens": keep})).await.ok();
        assert_eq!(router.fake.starts().last().unwrap().prompt, whole[whole.len() - left..]);
    }
    let long = json!([{"role": "user", "content": "x".repeat(3000)}]);
    let more = json!({"messages": long, "truncate_prompt_tokens": -1, "max_tokens": 7});
    router.chat(&bytes("a"), more).await.ok();
    let prompt = router.fake.starts().last().unwrap().prompt.clone();
    assert_eq!((prompt.len() as u32, prompt.ends_with(&bytes("x\nassistant: "))), (CONTEXT - 7, true));
    let request =
        json!({"model": "bytes", "prompt": "abcdef", "script": bytes("g"), "truncate_prompt_tokens": 2, "echo": true});
    let body = router.post("/v1/completions", request).await.ok();
    assert_eq!((&body["choices"][0]["text"], &body["usage"]["prompt_tokens"]), (&json!("efg"), &json!(2)));
}

#[tokio::test]
async fn control_tokens_are_text_without_skip_special_tokens() {
    let router = TestRouter::new();
    let script =
        [bytes("a").as_slice(), &[CONTROL], &bytes("b"), &[SECTION], &call("functions.f:0", "{}"), &[END_SECTION]]
            .concat();
    for (skip, content) in [(json!(null), "ab"), (json!(true), "ab"), (json!(false), "a<|control|>b")] {
        let body = router.chat(&script, json!({"skip_special_tokens": skip, "tools": tools(&["f"])})).await.ok();
        let message = &body["choices"][0]["message"];
        assert_eq!((&message["content"], message["tool_calls"].as_array().map(Vec::len)), (&json!(content), Some(1)));
    }
}

#[tokio::test]
async fn the_fingerprint_depends_on_the_model() {
    let router = TestRouter::new();
    let body = router.chat(&bytes("a"), json!({})).await.ok();
    let fingerprint = body["system_fingerprint"].as_str().unwrap();
    assert!(fingerprint.starts_with("fp_") && fingerprint.len() == 13, "{fingerprint}");
    let chunks = router.stream(&bytes("a"), json!({"stream_options": {"include_usage": true}})).await;
    assert!(chunks.iter().all(|chunk| chunk["system_fingerprint"] == fingerprint));
    let completion =
        router.post("/v1/completions", json!({"model": "bytes", "prompt": "a", "script": bytes("b")})).await.ok();
    assert_eq!(completion["system_fingerprint"], fingerprint);
    let other = TestRouter::of(&format!("{TEMPLATE} "), RouterConfig::default(), Fake::default());
    assert_ne!(other.chat(&bytes("a"), json!({})).await.ok()["system_fingerprint"], fingerprint);
}

#[tokio::test]
async fn token_restrictions_are_masks_for_the_engine() {
    let router = TestRouter::with(RouterConfig::default(), Fake::ending(fake::Ending::Hang));
    let script = [&[THINK], bytes("why not").as_slice()].concat();
    let steer = async |steers: usize, more: Value| last_steer(&router, steers, &script, more).await;
    let words = steer(1, json!({"bad_words": ["ot"]})).await;
    assert_eq!(words.keep, 7, "all but the last token of the word");
    let mask = words.mask.unwrap();
    assert_eq!((mask[b't' as usize / 8] >> (b't' % 8) & 1, mask[b'u' as usize / 8] >> (b'u' % 8) & 1), (0, 1));
    let allowed = steer(2, json!({"allowed_token_ids": [65, END]})).await;
    assert_eq!((allowed.keep, allowed.hold), (0, true));
    assert_eq!(allowed.mask.unwrap().iter().map(|byte| byte.count_ones()).sum::<u32>(), 2);
    let budget = steer(3, json!({"thinking_token_budget": 3})).await;
    assert_eq!((budget.keep, budget.append, budget.mask), (4, vec![END_THINK], None));
    let none = steer(4, json!({"reasoning": {"max_tokens": 0, "enabled": true}})).await;
    assert_eq!((none.keep, none.append), (0, vec![END_THINK]));
    let closed = steer(5, json!({"thinking_token_budget": 0})).await;
    assert_eq!((closed.keep, closed.append), (1, vec![END_THINK]));
}

#[tokio::test]
async fn kimi_has_names_that_begin_with_a_letter() {
    let router = TestRouter::new();
    for (name, fine) in [("mcp__server__tool", true), ("a.b-c_9", true), ("_f", false), ("9f", false), ("-f", false)] {
        let history = json!([{"role": "user", "content": "hi"}, {"role": "assistant", "content": null, "tool_calls": [
            {"id": "x", "type": "function", "function": {"name": "_f/ö", "arguments": "{}"}}]},
            {"role": "tool", "tool_call_id": "x", "content": "y"}, {"role": "user", "content": "hi"}]);
        let answer = router.chat(&bytes("a"), json!({"tools": tools(&["f", name]), "messages": history})).await;
        assert_eq!(answer.status == StatusCode::OK, fine, "{name}: {}", answer.text);
        if !fine {
            let error = answer.json()["error"].clone();
            assert_eq!(error["param"], "tools[1].function.name");
            assert!(error["message"].as_str().unwrap().contains("begin with a letter"), "{error}");
        }
    }
}
