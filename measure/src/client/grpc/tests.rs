use std::time::Duration;

use http::HeaderMap;
use rein_proto::v1::{self, chat_event::Event, response_format::Kind, tool_choice::Mode};
use serde_json::{Value, json};
use tonic::metadata::MetadataMap;
use tonic::{Code, Status};

use super::super::{ApiDialect, Endpoint, Failure};
use super::{chunk, failure, request};

fn translated(more: Value) -> Result<v1::ChatRequest, String> {
    let mut body = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}]});
    body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    request::chat(body.to_string().as_bytes())
}

fn chat(more: Value) -> v1::ChatRequest {
    translated(more).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn every_field_of_the_message_has_an_openai_field() {
    let tool = json!({"type": "function", "function": {"name": "f", "description": "d", "strict": true,
        "parameters": {"type": "object"}}});
    let call = json!({"id": "c", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}});
    let mut body = json!({
        "messages": [
            {"role": "system", "content": [{"type": "text", "text": "a"}], "tools": [tool]},
            {"role": "assistant", "content": null, "tool_calls": [call], "reasoning_content": "r", "refusal": null},
            {"role": "tool", "name": "f", "tool_call_id": "c", "content": "x"},
        ],
        "tools": [tool], "tool_choice": "required", "parallel_tool_calls": false,
        "response_format": {"type": "json_object"}, "stream": true, "stream_options": {"include_usage": true},
    });
    let numbers = json!({
        "temperature": 0.5, "top_p": 0.25, "top_k": 3, "min_p": 0.125, "repetition_penalty": 1.5, "presence_penalty": 0.75,
        "frequency_penalty": 2, "logit_bias": {"7": -1.5}, "allowed_token_ids": [1, 2], "bad_words": ["w"], "seed": 9,
        "max_tokens": 5, "min_tokens": 1, "stop": "s", "stop_token_ids": [4], "include_stop_str_in_output": true,
        "ignore_eos": true, "n": 2, "logprobs": true, "top_logprobs": 3, "prompt_logprobs": 1, "return_token_ids": true,
        "return_grammar": true, "return_decisions": true, "script": [6], "thinking": false, "reasoning_effort": "low", "thinking_token_budget": 8,
        "finish_structured": true,
        "truncate_prompt_tokens": -1, "skip_special_tokens": false, "add_generation_prompt": true,
        "continue_final_message": false, "chat_template_kwargs": {"k": 1}, "cache_salt": "salt", "priority": -2, "user": "u",
    });
    body.as_object_mut().expect("an object").extend(numbers.as_object().expect("an object").clone());
    let sent = chat(body);
    let declared = v1::Tool {
        name: "f".into(),
        description: Some("d".into()),
        parameters_json: Some(r#"{"type":"object"}"#.into()),
        strict: Some(true),
    };
    let message = v1::Message::default;
    let expected = v1::ChatRequest {
        model: "m".into(),
        messages: vec![
            v1::Message {
                role: "system".into(),
                parts: vec![v1::ContentPart { r#type: "text".into(), text: "a".into() }],
                tools: vec![declared.clone()],
                ..message()
            },
            v1::Message {
                role: "assistant".into(),
                tool_calls: vec![v1::ToolCall { id: "c".into(), name: "f".into(), arguments: r#"{"a":1}"#.into() }],
                reasoning_content: Some("r".into()),
                ..message()
            },
            v1::Message {
                role: "tool".into(),
                name: Some("f".into()),
                tool_call_id: Some("c".into()),
                content: Some("x".into()),
                ..message()
            },
        ],
        tools: vec![declared],
        tool_choice: Some(v1::ToolChoice { mode: Mode::Required.into(), ..v1::ToolChoice::default() }),
        parallel_tool_calls: Some(false),
        sampling: Some(v1::Sampling {
            temperature: Some(0.5),
            top_p: Some(0.25),
            top_k: Some(3),
            min_p: Some(0.125),
            repetition_penalty: Some(1.5),
            presence_penalty: Some(0.75),
            frequency_penalty: Some(2.0),
            logit_bias: [(7, -1.5)].into(),
            seed: Some(9),
            allowed_token_ids: vec![1, 2],
            bad_words: vec!["w".into()],
        }),
        limits: Some(v1::Limits {
            max_tokens: Some(5),
            min_tokens: Some(1),
            stop: vec!["s".into()],
            stop_token_ids: vec![4],
            ignore_eos: true,
            include_stop: true,
        }),
        top_logprobs: Some(3),
        thinking: Some(false),
        reasoning_effort: Some("low".into()),
        chat_template_kwargs_json: Some(r#"{"k":1}"#.into()),
        add_generation_prompt: Some(true),
        continue_final_message: Some(false),
        return_token_ids: true,
        cache_salt: Some("salt".into()),
        n: Some(2),
        user: Some("u".into()),
        script: vec![6],
        prompt_logprobs: Some(1),
        response_format: Some(v1::ResponseFormat { kind: Some(Kind::JsonObject(true)), whitespace_pattern: None }),
        return_grammar: true,
        return_decisions: true,
        priority: Some(-2),
        thinking_token_budget: Some(8),
        finish_structured: true,
        truncate_prompt_tokens: Some(-1),
        skip_special_tokens: Some(false),
    };
    assert_eq!(sent, expected);
}

#[test]
fn fields_with_two_spellings_are_translated_alike() {
    let stops = |more| chat(more).limits.expect("limits").stop;
    assert_eq!(stops(json!({"stop": ["a", "b"]})), ["a", "b"]);
    let most = |more| chat(more).limits.expect("limits").max_tokens;
    assert_eq!(most(json!({"max_tokens": 5, "max_completion_tokens": 6})), Some(6));
    assert_eq!(chat(json!({"logprobs": true})).top_logprobs, Some(0));
    assert_eq!(chat(json!({"logprobs": false})).top_logprobs, None);
    assert_eq!(chat(json!({"tools": null, "stop": null, "logit_bias": null})), chat(json!({})));
}

#[test]
fn tool_choices_are_translated() {
    let choice = |choice: Value| chat(json!({"tool_choice": choice})).tool_choice.expect("a choice");
    let of = |mode: Mode| v1::ToolChoice { mode: mode.into(), ..v1::ToolChoice::default() };
    assert_eq!(choice(json!("auto")), of(Mode::Auto));
    assert_eq!(choice(json!("none")), of(Mode::None));
    let named = v1::ToolChoice { name: "f".into(), ..of(Mode::Named) };
    assert_eq!(choice(json!({"type": "function", "function": {"name": "f"}})), named);
    let tools = json!([{"type": "function", "function": {"name": "f"}}]);
    for (mode, expected) in [("auto", Mode::Auto), ("required", Mode::Required)] {
        let allowed = json!({"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}});
        assert_eq!(choice(allowed), v1::ToolChoice { names: vec!["f".into()], ..of(expected) });
    }
}

#[test]
fn every_constraint_on_the_text_is_translated() {
    let kind = |more| chat(more).response_format.and_then(|format| format.kind);
    let schema = |strict| {
        let schema_json = r#"{"type":"integer"}"#.into();
        Some(Kind::JsonSchema(v1::response_format::JsonSchema { schema_json, strict }))
    };
    let tag = || Some(Kind::StructuralTagJson(r#"{"format":{"type":"any_text"}}"#.into()));
    let lark = || Some(Kind::Lark("start: \"a\"".into()));
    let described = json!({"name": "n", "description": "d", "schema": {"type": "integer"}, "strict": true});
    let choice = Some(Kind::Choice(v1::response_format::Choice { options: vec!["a".into(), "b".into()] }));
    for (more, expected) in [
        (json!({"response_format": {"type": "text"}}), None),
        (json!({"response_format": {"type": "json_object"}}), Some(Kind::JsonObject(true))),
        (json!({"response_format": {"type": "json_schema", "json_schema": described}}), schema(true)),
        (json!({"response_format": {"type": "grammar", "grammar": "start: \"a\""}}), lark()),
        (json!({"response_format": {"type": "structural_tag", "format": {"type": "any_text"}}}), tag()),
        (json!({"structured_outputs": {"json": {"type": "integer"}}}), schema(false)),
        (json!({"structured_outputs": {"json": r#"{"type":"integer"}"#}}), schema(false)),
        (json!({"structured_outputs": {"json_object": true}}), Some(Kind::JsonObject(true))),
        (json!({"structured_outputs": {"json_object": false}}), None),
        (json!({"structured_outputs": {"regex": "a+"}}), Some(Kind::Regex("a+".into()))),
        (json!({"structured_outputs": {"choice": ["a", "b"]}}), choice),
        (json!({"structured_outputs": {"grammar": "start: \"a\""}}), lark()),
        (json!({"structured_outputs": {"structural_tag": {"format": {"type": "any_text"}}}}), tag()),
    ] {
        assert_eq!(kind(more.clone()), expected, "{more}");
    }
}

#[test]
fn errors_name_the_field() {
    for (more, expected) in [
        (json!({"no_such_field": 1}), "`no_such_field`: unknown field"),
        (json!({"temperature": "hot"}), "`temperature`: invalid type: string \"hot\""),
        (json!({"n": -1}), "`n`: invalid value: integer `-1`"),
        (json!({"logit_bias": {"x": 1}}), "`logit_bias"),
        (json!({"logit_bias": {"1": "x"}}), "`logit_bias.1`: invalid type"),
        (json!({"stop": 5}), "`stop`: expected a string or a list of strings"),
        (json!({"bad_words": ["a", 1]}), "`bad_words[1]`: invalid type: integer `1`, expected a string"),
        (json!({"messages": [{"role": "user", "content": 5}]}), "`messages[0].content`: expected a string or a list"),
        (json!({"messages": [{"content": "x"}]}), "`messages[0]`: missing field `role`"),
        (json!({"tools": [{"type": "function", "function": {"nam": "f"}}]}), "`tools[0].function"),
        (json!({"top_logprobs": 2}), "`top_logprobs` needs `logprobs`"),
        (json!({"tool_choice": "maybe"}), "`tool_choice` must be \"auto\""),
        (json!({"tool_choice": {"type": "function", "function": {}}}), "`tool_choice.function`: missing field `name`"),
        (json!({"response_format": {"type": "yaml"}}), "`response_format.type` must be text, json_object"),
        (json!({"response_format": {}}), "`response_format.type` must be"),
        (
            json!({"response_format": {"type": "json_schema", "json_schema": {"schema": {}, "strict": 1}}}),
            "`response_format.json_schema.strict`: invalid type",
        ),
        (json!({"structured_outputs": {"choice": "a"}}), "`structured_outputs.choice`: invalid type"),
        (
            json!({"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}}),
            "`response_format` and `structured_outputs`",
        ),
    ] {
        let error = translated(more.clone()).err();
        assert!(error.as_ref().is_some_and(|error| error.contains(expected)), "{more}: {error:?}");
    }
}

#[test]
fn blanks_are_carried_over_from_either_field() {
    for (name, fields) in [
        ("structured_outputs", json!({"structured_outputs": {"json": {}, "whitespace_pattern": " ?"}})),
        ("guided_whitespace_pattern", json!({"structured_outputs": {"json": {}}, "guided_whitespace_pattern": " ?"})),
        (
            "of a response format",
            json!({"response_format": {"type": "json_object"}, "guided_whitespace_pattern": " ?"}),
        ),
    ] {
        let format = chat(fields).response_format.unwrap_or_else(|| panic!("{name}"));
        assert_eq!(format.whitespace_pattern.as_deref(), Some(" ?"), "{name}");
    }
}

#[test]
fn statuses_count_as_http_statuses() {
    for (code, expected) in [
        (Code::InvalidArgument, 400),
        (Code::OutOfRange, 400),
        (Code::Unauthenticated, 401),
        (Code::PermissionDenied, 403),
        (Code::NotFound, 404),
        (Code::ResourceExhausted, 429),
        (Code::Unimplemented, 501),
        (Code::Unavailable, 503),
        (Code::DeadlineExceeded, 504),
        (Code::Internal, 500),
    ] {
        assert_eq!(failure(&Status::new(code, "x")).kind(), format!("http_{expected}"), "{code:?}");
    }
    let mut headers = HeaderMap::new();
    headers.insert("retry-after", "3".parse().expect("a value"));
    let full = Status::with_metadata(Code::ResourceExhausted, "full", MetadataMap::from_headers(headers));
    let retry_after = Some(Duration::from_secs(3));
    assert_eq!(failure(&full), Failure::Status { code: 429, text: "full".into(), retry_after });
    // A status with a source was made by this client.
    let broken = |code| {
        let mut status = Status::new(code, "broken");
        status.set_source(std::sync::Arc::new(std::io::Error::other("broken")));
        failure(&status)
    };
    assert_eq!(broken(Code::Unavailable), Failure::Connect("broken".into()));
    assert_eq!(broken(Code::Internal), Failure::NoResponse("broken".into()));
}

#[test]
fn events_are_read_as_chunks() {
    let of = |event| chunk(v1::ChatEvent { choice: 1, event: Some(event), ..v1::ChatEvent::default() });
    let delta = |delta: Value| Some(json!({"choices": [{"index": 1, "delta": delta, "finish_reason": null}]}));
    let text = || v1::Delta { text: "t".into() };
    assert_eq!(of(Event::TextDelta(text())), delta(json!({"content": "t"})));
    assert_eq!(of(Event::ReasoningDelta(text())), delta(json!({"reasoning_content": "t"})));
    let start = v1::ToolCallStart { index: 2, id: "c".into(), name: "f".into() };
    let call = json!({"index": 2, "id": "c", "type": "function", "function": {"name": "f", "arguments": ""}});
    assert_eq!(of(Event::ToolCallStart(start)), delta(json!({"tool_calls": [call]})));
    let arguments = v1::ArgumentsDelta { index: 2, text: "{".into() };
    let part = json!({"index": 2, "function": {"arguments": "{"}});
    assert_eq!(of(Event::ArgumentsDelta(arguments)), delta(json!({"tool_calls": [part]})));
    for (reason, name) in [
        (v1::FinishReason::Stop, "stop"),
        (v1::FinishReason::Length, "length"),
        (v1::FinishReason::ToolCalls, "tool_calls"),
    ] {
        let done = v1::Done { finish_reason: reason.into(), ..v1::Done::default() };
        let expected = json!({"choices": [{"index": 1, "delta": {}, "finish_reason": name}]});
        assert_eq!(of(Event::Done(done)), Some(expected));
    }
    let usage = v1::Usage { prompt_tokens: 3, completion_tokens: 4, ..v1::Usage::default() };
    let counts = json!({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4}});
    assert_eq!(of(Event::Usage(v1::UsageEvent { usage: Some(usage) })), Some(counts));
    assert_eq!(of(Event::TextStart(v1::RegionStart {})), None);
}

#[test]
fn metadata_has_the_endpoints_headers() {
    let mut endpoint = Endpoint::new("grpc://x:1", Some("key"), None, Duration::from_secs(1)).expect("an endpoint");
    endpoint.header("x-team: a").expect("a header");
    let body = json!({"model": "m", "messages": []}).to_string();
    let sent = super::request(&endpoint, body.as_bytes()).expect("a request");
    let header = |name| sent.metadata().get(name).and_then(|value| value.to_str().ok());
    assert_eq!((header("authorization"), header("x-team")), (Some("Bearer key"), Some("a")));
    assert_eq!((header("content-type"), header("user-agent")), (None, None));
}

#[test]
fn urls_of_grpc_need_the_dialect() {
    let endpoint = |url: &str, dialect| {
        let endpoint = Endpoint::new(url, None, None, Duration::from_secs(1)).and_then(|one| one.with_dialect(dialect));
        endpoint.map(|endpoint| (endpoint.address, endpoint.tls.is_some())).map_err(|error| error.to_string())
    };
    assert_eq!(endpoint("grpc://x:50051", ApiDialect::Grpc), Ok(("x:50051".into(), false)));
    assert_eq!(endpoint("grpcs://x:50051/", ApiDialect::Grpc), Ok(("x:50051".into(), true)));
    assert_eq!(endpoint("https://x", ApiDialect::Grpc), Ok(("x:443".into(), true)));
    for (url, dialect, expected) in [
        ("grpc://x", ApiDialect::Openai, "need --dialect grpc"),
        ("grpc://x/v1", ApiDialect::Grpc, "has no path"),
        ("ftp://x", ApiDialect::Grpc, "must start with"),
    ] {
        let error = endpoint(url, dialect).err();
        assert!(error.as_ref().is_some_and(|error| error.contains(expected)), "{url}: {error:?}");
    }
}
