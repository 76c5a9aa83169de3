//! Every invalid request gets an error that names its field, over HTTP and gRPC, and the next request is served.

use rein_text::tokenize::MAX_TEXT_BYTES;
use serde_json::json;

use super::*;

/// The field to change, its value, the error's `param` and a part of its message.
type Row = (&'static str, Value, &'static str, &'static str);

fn chat_rows() -> Vec<Row> {
    let named = |names: &[&str]| -> Value {
        names.iter().map(|name| json!({"type": "function", "function": {"name": name}})).collect()
    };
    let user = |content: Value| json!([{"role": "user", "content": content}]);
    vec![
        ("messages", json!([]), "messages", "at least one message"),
        ("messages", json!(null), "messages", "required"),
        ("messages", json!("hi"), "messages", "must be an array, got a string"),
        ("messages", json!(["hi"]), "messages[0]", "must be an object, got a string"),
        ("messages", json!([{"content": "x"}]), "messages[0].role", "required"),
        ("messages", json!([{"role": "wizard", "content": "x"}]), "messages[0].role", "got 'wizard'"),
        ("messages", json!([{"role": "function", "name": "f", "content": "x"}]), "messages[0].role", "one of"),
        ("messages", json!([{"role": 7, "content": "x"}]), "messages[0].role", "got a number"),
        ("messages", json!([{"role": "user"}]), "messages[0].content", "required"),
        ("messages", user(json!(null)), "messages[0].content", "got null"),
        ("messages", user(json!(5)), "messages[0].content", "got a number"),
        ("messages", user(json!([5])), "messages[0].content[0]", "must be an object"),
        ("messages", user(json!([{"type": "text"}])), "messages[0].content[0].text", "required"),
        (
            "messages",
            user(json!([{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "x"}}])),
            "messages[0].content[1].type",
            "must be 'text', got 'image_url'",
        ),
        (
            "messages",
            json!([{"role": "assistant", "tool_calls": [{"function": {"name": ""}}]}]),
            "messages[0].tool_calls[0].function.name",
            "empty",
        ),
        ("messages", json!([{"role": "tool", "content": "x"}]), "messages[0].tool_call_id", "required"),
        ("include_reasoning", json!("no"), "include_reasoning", "a boolean"),
        ("model", json!(3), "model", "must be a string"),
        ("temperature", json!(-1), "temperature", "between 0 and 2, got -1"),
        ("temperature", json!(2.5), "temperature", "got 2.5"),
        ("temperature", json!("warm"), "temperature", "must be a number, got a string"),
        ("temperature", json!(1e300), "temperature", "between 0 and 2, got 1e+300"),
        ("top_p", json!(1e-300), "top_p", "above 0 and at most 1, got 1e-300"),
        ("logit_bias", json!({"5": -1e300}), "logit_bias.5", "between -100 and 100, got -1e+300"),
        ("max_tokens", json!(1e300), "max_tokens", "at most 4294967295, got 1e+300"),
        ("max_tokens", json!(-1e300), "max_tokens", "at least 0, got -1e+300"),
        ("n", json!(1e300), "n", "between 1 and 128, got 1e+300"),
        ("n", json!(u64::MAX), "n", "between 1 and 128, got 18446744073709551615"),
        ("top_k", json!(1e300), "top_k", "between 1 and 4294967295, or 0 or -1 for off, got 1e+300"),
        ("top_logprobs", json!(1e300), "top_logprobs", "between 0 and 20, got 1e+300"),
        ("stop_token_ids", json!([1e300]), "stop_token_ids[0]", "token id, got 1e+300"),
        ("truncate_prompt_tokens", json!(-1e300), "truncate_prompt_tokens", "got -1e+300"),
        ("thinking_token_budget", json!(1e300), "thinking_token_budget", "at most 4294967295, got 1e+300"),
        ("top_p", json!(0), "top_p", "above 0 and at most 1"),
        ("top_p", json!(1.5), "top_p", "got 1.5"),
        ("top_k", json!(-2), "top_k", "got -2"),
        ("top_k", json!(1.5), "top_k", "an integer"),
        ("min_p", json!(-0.1), "min_p", "between 0 and 1"),
        ("repetition_penalty", json!(0), "repetition_penalty", "above 0"),
        ("presence_penalty", json!(3), "presence_penalty", "between -2 and 2"),
        ("frequency_penalty", json!(-3), "frequency_penalty", "between -2 and 2"),
        ("max_tokens", json!(0), "max_tokens", "at least 1, got 0"),
        ("max_tokens", json!(-5), "max_tokens", "at least 0, got -5"),
        ("max_tokens", json!(1.5), "max_tokens", "an integer"),
        ("max_tokens", json!("5"), "max_tokens", "an integer, got a string"),
        ("max_tokens", json!(10_000_000_000u64), "max_tokens", "at most"),
        ("max_completion_tokens", json!(0), "max_completion_tokens", "at least 1"),
        (
            "max_tokens",
            json!(4000),
            "messages",
            "20 tokens and 'max_tokens' asks for 4000 more, but this model's context is 2048",
        ),
        ("max_completion_tokens", json!(2029), "messages", "'max_completion_tokens' asks for 2029 more"),
        ("messages", user(json!("x".repeat(2048))), "messages", "context is 2048 tokens"),
        ("min_tokens", json!(-1), "min_tokens", "at least 0"),
        ("min_tokens", json!(2029), "messages", "'min_tokens' asks for 2029 more, but this model's context is 2048"),
        ("n", json!(0), "n", "between 1 and 128, got 0"),
        ("n", json!(1000), "n", "between 1 and 128, got 1000"),
        ("stop", json!(7), "stop", "a string or an array of strings"),
        ("stop", json!(["a", 7]), "stop[1]", "must be a string"),
        ("stop", json!(["a", ""]), "stop[1]", "empty string"),
        ("stop", json!(vec!["a"; 17]), "stop", "at most 16 strings, got 17"),
        ("stop", json!("x".repeat(2000)), "stop[0]", "at most 1024 bytes"),
        ("stop_token_ids", json!([VOCAB]), "stop_token_ids[0]", "of the model's vocabulary, between 0 and 265"),
        ("stop_token_ids", json!([-1]), "stop_token_ids[0]", "token id, got -1"),
        ("logit_bias", json!({"9999": 1}), "logit_bias.9999", "of the model's vocabulary"),
        ("logit_bias", json!({"5": 101}), "logit_bias.5", "between -100 and 100"),
        ("logit_bias", json!({"five": 1}), "logit_bias.five", "token ids to numbers"),
        ("logit_bias", json!({"5": "x"}), "logit_bias.5", "must be a number"),
        ("logit_bias", json!([1]), "logit_bias", "must be an object"),
        ("seed", json!("x"), "seed", "an integer"),
        ("seed", json!(1e300), "seed", "64 bits, got 1e+300"),
        ("logprobs", json!(3), "logprobs", "a boolean"),
        ("top_logprobs", json!(3), "top_logprobs", "when 'logprobs' is true"),
        ("prompt_logprobs", json!(21), "prompt_logprobs", "between 0 and 20, got 21"),
        ("stream", json!("yes"), "stream", "a boolean"),
        ("stream_options", json!({"include_usage": true}), "stream_options", "when 'stream' is true"),
        ("tools", json!({}), "tools", "must be an array"),
        ("tools", json!([{"type": "retrieval"}]), "tools[0].type", "must be 'function'"),
        ("tools", json!([{"type": "function"}]), "tools[0].function", "required"),
        ("tools", json!([{"type": "function", "function": {}}]), "tools[0].function.name", "required"),
        ("tools", json!([{"function": {"name": "f"}}]), "tools[0].type", "required: 'function'"),
        ("tools", json!([{"type": null, "function": {"name": "f"}}]), "tools[0].type", "required: 'function'"),
        ("tools", named(&["a b"]), "tools[0].function.name", "must not contain whitespace"),
        (
            "tools",
            named(&["f", "a/b"]),
            "tools[1].function.name",
            "letters, digits, '_', '-' and '.', got '/' in 'a/b'",
        ),
        ("tools", named(&["größe"]), "tools[0].function.name", "got 'ö' in 'größe'"),
        ("tools", named(&["f", "g", "f"]), "tools[2].function.name", "must be unique: 'tools[0]' is also named 'f'"),
        (
            "messages",
            json!([{"role": "system", "content": "x", "tools": named(&["f"])}]),
            "messages[0].content",
            "in a message without content",
        ),
        (
            "messages",
            json!([{"role": "system", "tools": named(&["f", "f"])}]),
            "messages[0].tools[1].function.name",
            "'messages[0].tools[0]' is also named 'f'",
        ),
        (
            "messages",
            json!([{"role": "system", "tools": [{"function": {"name": "f"}}]}]),
            "messages[0].tools[0].type",
            "required",
        ),
        (
            "tools",
            json!([{"type": "function", "function": {"name": "f", "parameters": "{}"}}]),
            "tools[0].function.parameters",
            "JSON Schema",
        ),
        (
            "tools",
            json!([{"type": "function", "function": {"name": "f", "strict": 1}}]),
            "tools[0].function.strict",
            "a boolean",
        ),
        ("tool_choice", json!("required"), "tool_choice", "declares a tool"),
        ("tool_choice", json!({"type": "function", "function": {"name": "f"}}), "tool_choice", "not declared"),
        ("tool_choice", json!({"type": "function", "function": {}}), "tool_choice.function.name", "required"),
        ("tool_choice", json!({"type": "custom"}), "tool_choice.type", "got 'custom'"),
        ("tool_choice", json!({"function": {"name": "f"}}), "tool_choice.type", "required"),
        (
            "tool_choice",
            json!({"type": "allowed_tools", "allowed_tools": {"mode": "never", "tools": [{"name": "f"}]}}),
            "tool_choice.allowed_tools.mode",
            "got 'never'",
        ),
        (
            "tool_choice",
            json!({"type": "allowed_tools", "mode": "auto", "tools": []}),
            "tool_choice.tools",
            "at least one",
        ),
        ("tool_choice", json!(7), "tool_choice", "a string or an object"),
        ("tool_choice", json!("sometimes"), "tool_choice", "got 'sometimes'"),
        ("parallel_tool_calls", json!("no"), "parallel_tool_calls", "a boolean"),
        ("response_format", json!({"type": "xml"}), "response_format.type", "got 'xml'"),
        ("response_format", json!({}), "response_format.type", "required"),
        ("response_format", json!({"type": "json_schema"}), "response_format.json_schema", "required"),
        (
            "response_format",
            json!({"type": "json_schema", "json_schema": {"name": "x", "schema": 5}}),
            "response_format.json_schema.schema",
            "a JSON Schema",
        ),
        (
            "response_format",
            json!({"type": "json_schema", "json_schema": {"schema": {}}}),
            "response_format.json_schema.name",
            "required",
        ),
        (
            "response_format",
            json!({"type": "json_schema", "json_schema": {"name": "", "schema": {}}}),
            "response_format.json_schema.name",
            "required",
        ),
        (
            "response_format",
            json!({"type": "json_schema", "json_schema": {"name": "x"}}),
            "response_format.json_schema.schema",
            "required",
        ),
        ("guided_choice", json!([]), "guided_choice", "at least one string"),
        ("guided_choice", json!([1]), "guided_choice[0]", "a string"),
        ("guided_json", json!("{"), "guided_json", "not valid JSON"),
        ("guided_json", json!("5"), "guided_json", "a JSON Schema, got a number"),
        ("guided_regex", json!(5), "guided_regex", "a string"),
        ("json_schema", json!([]), "json_schema", "a JSON Schema, got an array"),
        ("allowed_token_ids", json!([]), "allowed_token_ids", "at least one"),
        ("allowed_token_ids", json!([1, VOCAB]), "allowed_token_ids[1]", "of the model's vocabulary"),
        ("bad_words", json!(["a", ""]), "bad_words[1]", "empty"),
        ("bad_words", json!(["a", 1]), "bad_words[1]", "a string"),
        ("bad_words", json!("a"), "bad_words", "an array"),
        ("truncate_prompt_tokens", json!(0), "truncate_prompt_tokens", "at least 1, or -1 to fit the context, got 0"),
        ("truncate_prompt_tokens", json!(-2), "truncate_prompt_tokens", "got -2"),
        ("skip_special_tokens", json!("no"), "skip_special_tokens", "a boolean"),
        ("stream_options", json!({"continuous_usage_stats": true}), "stream_options", "when 'stream' is true"),
        ("thinking_token_budget", json!(-2), "thinking_token_budget", "at least 0, got -2"),
        ("reasoning", json!({"effort": "huge"}), "reasoning_effort", "one of none"),
        ("typical_p", json!(0.9), "typical_p", "this sampler is not supported"),
        ("n_predict", json!(5), "n_predict", "use 'max_tokens'"),
        ("structured_outputs", json!({"choice": []}), "structured_outputs.choice", "at least one"),
        ("structured_outputs", json!({"choice": [1]}), "structured_outputs.choice[0]", "a string"),
        ("structured_outputs", json!({"json": "{"}), "structured_outputs.json", "not valid JSON"),
        ("structured_outputs", json!({"regex": "a", "json_object": true}), "structured_outputs", "may set only one of"),
        ("structured_outputs", json!({}), "structured_outputs", "must set one of"),
        ("structured_outputs", json!({"regexp": "a"}), "structured_outputs", "must set one of"),
        (
            "structured_outputs",
            json!({"json": {}, "disable_any_whitespace": 1}),
            "structured_outputs.disable_any_whitespace",
            "boolean",
        ),
        (
            "structured_outputs",
            json!({"json": {}, "whitespace_pattern": "a"}),
            "structured_outputs.whitespace_pattern",
            "spaces, tabs and line breaks alone",
        ),
        ("response_format", json!({"type": "json_object", "schema": []}), "response_format.schema", "an object"),
        ("suppress_tokens", json!([1]), "suppress_tokens", "use 'logit_bias'"),
        ("max_output_tokens", json!(5), "max_output_tokens", "use 'max_tokens'"),
        ("modalities", json!(["text", "audio"]), "modalities", "not supported"),
        ("audio", json!({"voice": "x"}), "audio", "not supported"),
        ("functions", json!([{"name": "f"}]), "functions", "use 'tools'"),
        ("function_call", json!("auto"), "function_call", "use 'tool_choice'"),
        ("web_search_options", json!({}), "web_search_options", "not supported"),
        ("best_of", json!(3), "best_of", "not supported"),
        ("use_beam_search", json!(true), "use_beam_search", "not supported"),
        ("chat_template", json!("x"), "chat_template", "not supported"),
        ("thinking", json!("on"), "thinking", "a boolean or an object"),
        ("thinking", json!({"type": "maybe"}), "thinking.type", "'enabled' or 'disabled'"),
        ("reasoning_effort", json!("huge"), "reasoning_effort", "one of none, minimal"),
        ("chat_template_kwargs", json!([]), "chat_template_kwargs", "must be an object"),
        ("chat_template_kwargs", json!({"messages": []}), "chat_template_kwargs.messages", "may not set 'messages'"),
        ("continue_final_message", json!(true), "continue_final_message", "role assistant"),
        ("cache_salt", json!(""), "cache_salt", "empty"),
        ("cache_salt", json!("x".repeat(300)), "cache_salt", "at most 256 bytes"),
        ("script", json!([9999]), "script[0]", "of the model's vocabulary"),
    ]
}

async fn check(router: &TestRouter, path: &str, request: Value, row: &Row) {
    let answer = router.post(path, request).await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{row:?}: {}", answer.text);
    let body = answer.json();
    let error = &body["error"];
    assert_eq!(error["param"], row.2, "{row:?}: {error}");
    assert!(error["message"].as_str().unwrap().contains(row.3), "{row:?}: {error}");
    assert_eq!(error["type"], "invalid_request_error");
    assert!(error["code"].is_string(), "{error}");
}

#[tokio::test]
async fn errors_name_every_invalid_chat_field() {
    let router = TestRouter::new();
    for row in chat_rows() {
        check(&router, "/v1/chat/completions", chat_request(&[], json!({row.0: row.1})), &row).await;
        // The request did not reach the engine, and the next request is served.
        assert!(router.fake.starts().is_empty(), "{row:?}");
    }
    router.chat(&bytes("a"), json!({})).await.ok();
    assert_eq!(router.router.in_flight(), 0);
}

#[tokio::test]
async fn errors_name_every_invalid_completion_field() {
    let router = TestRouter::new();
    let rows: Vec<Row> = vec![
        ("prompt", json!(null), "prompt", "required"),
        ("prompt", json!([]), "prompt", "at least one prompt"),
        ("prompt", json!(7), "prompt", "a string, an array"),
        ("prompt", json!(""), "prompt", "at least one token"),
        ("prompt", json!(["a", 7]), "prompt[1]", "a string or an array of token ids"),
        ("prompt", json!([1, "a"]), "prompt[1]", "a token id"),
        ("prompt", json!([1, VOCAB]), "prompt[1]", "of the model's vocabulary"),
        ("prompt", json!([[1], [2, VOCAB]]), "prompt[1][1]", "of the model's vocabulary"),
        ("prompt", json!([1, -1]), "prompt[1]", "token id, got -1"),
        ("prompt", json!(vec!["a"; 300]), "prompt", "at most 256"),
        ("prompt", json!("x".repeat(2048)), "prompt", "2048 tokens"),
        ("max_tokens", json!(0), "max_tokens", "only allowed with 'echo'"),
        ("prompt", json!("x".repeat(MAX_TEXT_BYTES + 1)), "prompt", "4194305 bytes; the limit is 4194304"),
        ("max_tokens", json!(2048), "prompt", "context"),
        ("min_tokens", json!(2047), "prompt", "'min_tokens' asks for 2047 more"),
        ("logprobs", json!(true), "logprobs", "an integer"),
        ("logprobs", json!(50), "logprobs", "between 0 and 20"),
        ("suffix", json!("end"), "suffix", "not supported"),
        ("best_of", json!(2), "best_of", "not supported"),
        ("thinking_token_budget", json!(5), "thinking_token_budget", "no reasoning"),
        ("messages", json!(["x"]), "messages", "'/v1/chat/completions'"),
        ("logprobs", json!(1e300), "logprobs", "between 0 and 20, got 1e+300"),
        ("echo", json!(1), "echo", "a boolean"),
        ("temperature", json!(9), "temperature", "between 0 and 2"),
    ];
    for row in rows {
        let mut request = json!({"model": "bytes", "prompt": "ab"});
        request[row.0] = row.1.clone();
        check(&router, "/v1/completions", request, &row).await;
    }
    assert!(router.fake.starts().is_empty());
}

#[tokio::test]
async fn errors_name_invalid_fields_of_the_other_endpoints() {
    let router = TestRouter::new();
    let rows: Vec<(&str, Value, Row)> = vec![
        ("/tokenize", json!({}), ("", json!(null), "prompt", "either 'prompt' or 'messages'")),
        ("/tokenize", json!({"prompt": 3}), ("", json!(null), "prompt", "a string")),
        (
            "/tokenize",
            json!({"prompt": "x".repeat(MAX_TEXT_BYTES + 1)}),
            ("", json!(null), "prompt", "4194305 bytes; the limit is 4194304"),
        ),
        ("/tokenize", json!({"messages": []}), ("", json!(null), "messages", "at least one")),
        ("/detokenize", json!({}), ("", json!(null), "tokens", "required")),
        ("/detokenize", json!({"tokens": "x"}), ("", json!(null), "tokens", "an array")),
        ("/detokenize", json!({"tokens": [1, 99999]}), ("", json!(null), "tokens[1]", "of the model's vocabulary")),
        ("/v1/chat/completions/render", json!({"messages": 1}), ("", json!(null), "messages", "an array")),
    ];
    for (path, request, row) in rows {
        check(&router, path, request, &row).await;
    }
}

#[tokio::test]
async fn errors_of_invalid_json_have_the_position() {
    let router = TestRouter::new();
    for (body, code, part) in [
        (b"".as_slice(), "invalid_json", "got an empty body"),
        (b"{\"model\": \n nope}", "invalid_json", "line 2 column"),
        (b"{\"model\": \"x\"", "invalid_json", "EOF while parsing"),
        (b"{\"temperature\": NaN}", "invalid_json", "line 1 column"),
        (b"{\"temperature\": 1e999}", "invalid_json", "a number beyond the range of 64-bit floats at line 1 column 21"),
        (b"{\"model\": \"\xff\"}", "invalid_utf8", "offset 11"),
        (b"{\"model\": \"\\ud80\"}", "invalid_json", "line 1"),
        (b"[1]", "invalid_type", "the body must be a JSON object, got an array"),
    ] {
        for path in ["/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"] {
            let answer = router.post_bytes(path, body).await;
            assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{}", answer.text);
            let error = answer.json()["error"].clone();
            assert_eq!((&error["code"], &error["param"]), (&json!(code), &json!(null)), "{error}");
            assert!(error["message"].as_str().unwrap().contains(part), "{error}");
        }
    }
    let deep = "[".repeat(100_000);
    assert_eq!(router.post_bytes("/tokenize", deep).await.status, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn a_model_may_be_omitted_only_where_one_is_served() {
    let fake = Fake::default();
    let mut other = entry(TEMPLATE, &fake);
    other.text.name = "other".into();
    let aliases = [("also", "other"), ("bytes", "other"), ("ghost", "nothing")];
    let aliases = aliases.into_iter().map(|(alias, model)| (alias.to_owned(), model.to_owned())).collect();
    let config = RouterConfig { aliases, ..RouterConfig::default() };
    let models = vec![entry(TEMPLATE, &fake), other];
    let router = TestRouter { router: Router::new(config, models).unwrap(), fake };
    for model in [json!(null), json!("")] {
        let answer = router.chat(&bytes("a"), json!({"model": model})).await;
        let error = answer.json()["error"].clone();
        assert_eq!((answer.status, &error["param"]), (StatusCode::BAD_REQUEST, &json!("model")), "{error}");
    }
    // A model's own name comes before an alias.
    for (asked, served) in [("bytes", "bytes"), ("other", "other"), ("also", "other")] {
        let answer = router.chat(&bytes("a"), json!({"model": asked})).await;
        assert_eq!(answer.json()["model"], served);
    }
    let list = router.get("/v1/models").await.json();
    let ids: Vec<&str> = list["data"].as_array().unwrap().iter().map(|model| model["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["bytes", "other", "also"]);
    assert_eq!(router.chat(&[], json!({"model": "ghost"})).await.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn unknown_routes_methods_models_and_content_types_have_their_own_codes() {
    let router = TestRouter::new();
    let error = |answer: &Answer| answer.json()["error"].clone();

    let unknown = router.chat(&[], json!({"model": "gpt-4"})).await;
    assert_eq!(unknown.status, StatusCode::NOT_FOUND);
    assert_eq!(
        (error(&unknown)["code"].clone(), error(&unknown)["param"].clone()),
        (json!("model_not_found"), json!("model"))
    );
    assert!(error(&unknown)["message"].as_str().unwrap().contains("bytes"));
    assert_eq!(router.get("/v1/models/gpt-4").await.status, StatusCode::NOT_FOUND);
    let broken = router.get("/v1/models/%ff").await;
    assert_eq!((broken.status, error(&broken)["param"].clone()), (StatusCode::BAD_REQUEST, json!("model")));

    let nowhere = router.get("/v1/nothing").await;
    assert_eq!((nowhere.status, error(&nowhere)["code"].clone()), (StatusCode::NOT_FOUND, json!("unknown_url")));

    let method = router.get("/v1/chat/completions").await;
    assert_eq!(method.status, StatusCode::METHOD_NOT_ALLOWED);
    assert_eq!((error(&method)["code"].clone(), method.header("allow")), (json!("method_not_allowed"), "POST"));

    for (kind, status) in [
        ("text/plain", StatusCode::UNSUPPORTED_MEDIA_TYPE),
        ("application/x-www-form-urlencoded", StatusCode::UNSUPPORTED_MEDIA_TYPE),
        ("Application/JSON; charset=utf-8", StatusCode::OK),
    ] {
        let body = chat_request(&bytes("a"), json!({})).to_string();
        let request = Request::post("/v1/chat/completions").header("content-type", kind).body(body.into()).unwrap();
        assert_eq!(Answer::of(router.send(request).await).await.status, status, "{kind}");
    }
    for (encoding, code) in [("br", json!("unsupported_content_encoding")), ("Identity", json!(null))] {
        let body = chat_request(&bytes("a"), json!({})).to_string();
        let request = Request::post("/v1/chat/completions").header("content-encoding", encoding);
        let answer = Answer::of(router.send(request.body(body.into()).unwrap()).await).await;
        assert_eq!(answer.json()["error"]["code"], code, "{encoding}");
        let status = if code.is_null() { StatusCode::OK } else { StatusCode::UNSUPPORTED_MEDIA_TYPE };
        assert_eq!(answer.status, status, "{encoding}");
        // The body of a refused request was not read, so the connection ends, and the client is told.
        let closes = answer.headers.get("connection").map(|value| value.to_str().unwrap());
        assert_eq!(closes, (!code.is_null()).then_some("close"), "{encoding}");
    }
    let file = router.get("/playground/nothing.js").await;
    assert_eq!((file.status, error(&file)["code"].clone()), (StatusCode::NOT_FOUND, json!("unknown_url")));
}

#[tokio::test]
async fn a_too_large_body_is_refused_and_not_buffered() {
    let router = TestRouter::with(
        RouterConfig {
            memory: crate::MemoryLimits { body: 1000, ..crate::MemoryLimits::default() },
            ..RouterConfig::default()
        },
        Fake::default(),
    );
    let announced = router.post_bytes("/v1/chat/completions", vec![b'x'; 1001]).await;
    // 100 MB in chunks, without a content-length.
    let pieces = futures::stream::iter((0..1600).map(|_| Ok::<_, std::convert::Infallible>(vec![b' '; 64 << 10])));
    let streamed = router.post_bytes("/v1/chat/completions", Body::from_stream(pieces)).await;
    for answer in [announced, streamed] {
        assert_eq!(answer.status, StatusCode::PAYLOAD_TOO_LARGE);
        assert_eq!(answer.json()["error"]["code"], "body_too_large");
        assert!(answer.json()["error"]["message"].as_str().unwrap().contains("at most 1000 bytes"));
    }
    router.chat(&bytes("a"), json!({})).await.ok();
}
