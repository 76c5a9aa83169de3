//! Anthropic's Messages API as its clients see it.

use std::time::Duration;

use serde_json::json;

use super::{fake::Ending, *};
use crate::admission::keys::{ApiKeys, key_hash};

const PATH: &str = "/v1/messages";

pub fn messages_request(script: &[u32], more: Value) -> Value {
    let mut request = chat_request(script, json!({"max_tokens": 500}));
    for (name, value) in more.as_object().unwrap() {
        request[name] = value.clone();
    }
    request
}

pub fn message_tool(name: &str) -> Value {
    json!({"name": name, "input_schema": {"type": "object"}})
}

/// The payloads of a stream. Each has the name of its type.
pub fn message_events(answer: &Answer) -> Vec<Value> {
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text);
    let body = answer.text.strip_prefix(": admitted\n\n").unwrap();
    let event = |frame: &str| {
        let (name, data) = frame.strip_prefix("event: ").unwrap().split_once("\ndata: ").unwrap();
        let payload: Value = serde_json::from_str(data).unwrap();
        assert_eq!(payload["type"], name);
        payload
    };
    body.split_terminator("\n\n").map(event).collect()
}

async fn stream(router: &TestRouter, script: &[u32], more: Value) -> Vec<Value> {
    let mut request = messages_request(script, more);
    request["stream"] = true.into();
    message_events(&router.post(PATH, request).await)
}

/// The error of a request, with its status.
async fn refused(router: &TestRouter, request: Value) -> (u16, String, String) {
    let answer = router.post(PATH, request).await;
    let error = answer.json();
    assert_eq!(error["type"], "error");
    assert_eq!(error["request_id"], answer.header("request-id"));
    assert_eq!(answer.header("x-request-id"), answer.header("request-id"));
    let text = |field: &str| error["error"][field].as_str().unwrap().to_owned();
    (answer.status.as_u16(), text("type"), text("message"))
}

#[tokio::test]
async fn an_answer_has_its_blocks_in_order_streamed_or_not() {
    let script = [
        &[THINK],
        bytes("why").as_slice(),
        &[END_THINK],
        &bytes("text"),
        &[SECTION],
        &call("functions.f:0", "{\"a\": 1.10}"),
        &call("functions.g:1", "{}"),
        &[END_SECTION],
    ]
    .concat();
    let router = TestRouter::new();
    let more = json!({"tools": [message_tool("f"), message_tool("g")]});
    let answer = router.post(PATH, messages_request(&script, more.clone())).await;
    assert!(answer.text.contains("\"input\":{\"a\": 1.10}"), "numbers are as the model wrote them: {}", answer.text);
    let body = answer.ok();
    assert!(body["id"].as_str().unwrap().starts_with("msg_"));
    assert_eq!(body["id"], answer.header("request-id"));
    let kinds: Vec<&Value> = body["content"].as_array().unwrap().iter().map(|block| &block["type"]).collect();
    assert_eq!(kinds, ["thinking", "text", "tool_use", "tool_use"]);
    assert_eq!((&body["stop_reason"], &body["content"][3]["name"]), (&json!("tool_use"), &json!("g")));
    assert_ne!(body["content"][2]["id"], body["content"][3]["id"]);

    let events = stream(&router, &script, more).await;
    let start = &events[0]["message"]["usage"];
    // The scripted engine has cached three tokens of every prompt.
    let prompt = router.fake.starts()[0].prompt.len() as u64;
    assert_eq!((start["input_tokens"].as_u64(), &start["cache_read_input_tokens"]), (Some(prompt - 3), &json!(3)));
    assert_eq!(start["output_tokens"], 0);
    let end = &events[events.len() - 2];
    assert_eq!(end["usage"], body["usage"]);
    assert_eq!(end["usage"]["output_tokens"].as_u64(), Some(script.len() as u64 + 1));
    let texts = |kind: &str, field: &str| -> String {
        let deltas = events.iter().filter(|event| event["delta"]["type"] == kind);
        deltas.map(|event| event["delta"][field].as_str().unwrap()).collect()
    };
    assert_eq!(texts("thinking_delta", "thinking"), "why");
    assert_eq!(texts("text_delta", "text"), "text");
    assert_eq!(texts("input_json_delta", "partial_json"), "{\"a\": 1.10}{}");
    assert_eq!(events.last(), Some(&json!({"type": "message_stop"})));
}

#[tokio::test]
async fn a_second_turn_sends_back_what_the_first_answered() {
    let template = "{% for m in messages %}{{ m.role }}: \
        {% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content or '' }}\
        {% for t in m.tool_calls %}[{{ t.id }} {{ t.function.arguments }}]{% endfor %}\
        {% if m.role == 'tool' %} of {{ m.tool_call_id }}{% endif %}{{ '\\n' }}{% endfor %}\
        {% for t in tools or [] %}{{ t.function.name }}{% endfor %}\
        {% if thinking %}{% endif %}";
    let format = rein_grammar::by_name("kimi_k2");
    let router = TestRouter::with_policy(template, ModelPolicy { format, ..ModelPolicy::default() });
    let script = [
        &[THINK],
        bytes("why").as_slice(),
        &[END_THINK, SECTION],
        &call("functions.f:0", "{\"a\": [1, 2]}"),
        &call("functions.f:1", "{}"),
        &[END_SECTION],
    ]
    .concat();
    for display in ["summarized", "omitted"] {
        let thinking = json!({"type": "adaptive", "display": display});
        let first = json!({"tools": [message_tool("f")], "thinking": thinking});
        let answer = router.post(PATH, messages_request(&script, first.clone())).await.ok();
        let content = &answer["content"];
        assert_eq!(content[0]["thinking"], if display == "omitted" { "" } else { "why" });
        let result =
            |block: &Value, text: &str| json!({"type": "tool_result", "tool_use_id": block["id"], "content": text});
        let mut second = first;
        second["messages"] = json!([
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": content},
            {"role": "user", "content": [result(&content[2], "second"), result(&content[1], "first")]},
        ]);
        let answer = router.post(PATH, messages_request(&bytes("done"), second)).await;
        assert_eq!(answer.header("x-rein-ignored-fields"), "");
        assert_eq!(answer.ok()["content"], json!([{"type": "text", "text": "done"}]));
        let spelled = |&id: &u32| match id {
            THINK => "<think>".to_owned(),
            END_THINK => "</think>".to_owned(),
            byte => char::from(byte as u8).to_string(),
        };
        let prompt: String = router.fake.starts().last().unwrap().prompt.iter().map(spelled).collect();
        assert_eq!(
            prompt.split("assistant: ").nth(1).unwrap(),
            "<think>why</think>[functions.f:0 {\"a\": [1, 2]}][functions.f:1 {}]\ntool: second of functions.f:1\n\
             tool: first of functions.f:0\nf"
        );
    }
}

#[tokio::test]
async fn tokens_are_counted_without_an_engine() {
    let router = TestRouter::new();
    let more = json!({"tools": [message_tool("f")], "system": "be brief"});
    router.post(PATH, messages_request(&bytes("x"), more.clone())).await.ok();
    let prompt = router.fake.starts()[0].prompt.len();
    let without =
        TestRouter::with(RouterConfig::default(), Fake { refuse: Some(tonic::Code::Unavailable), ..Fake::default() });
    let count = json!({"model": "bytes", "messages": [{"role": "user", "content": "hi"}],
        "tools": more["tools"], "system": more["system"]});
    let answer = without.post("/v1/messages/count_tokens?beta=true", count).await;
    assert_eq!(answer.ok(), json!({"input_tokens": prompt}));
    let image = json!({"model": "bytes", "messages": [{"role": "user", "content": [{"type": "image"}]}]});
    let answer = without.post("/v1/messages/count_tokens", image).await;
    assert_eq!(
        (answer.status, &answer.json()["error"]["type"]),
        (StatusCode::BAD_REQUEST, &json!("invalid_request_error"))
    );
}

#[tokio::test]
async fn an_answer_continues_a_last_assistant_message() {
    let router = TestRouter::new();
    let messages = json!([{"role": "user", "content": "q"}, {"role": "assistant", "content": "The answer is ("}]);
    let answer = router.post(PATH, messages_request(&bytes("B)"), json!({"messages": messages}))).await.ok();
    assert_eq!(answer["content"], json!([{"type": "text", "text": "B)"}]));
    let prompt = &router.fake.starts()[0].prompt;
    assert!(prompt.ends_with(&bytes("The answer is (")), "{prompt:?}");
}

#[tokio::test]
async fn answers_end_at_their_limit_or_at_that_of_the_context() {
    let router = TestRouter::new();
    let long = bytes(&"a".repeat(CONTEXT as usize));
    let stop = async |max_tokens: u32| {
        let body = router.post(PATH, messages_request(&long, json!({"max_tokens": max_tokens}))).await.ok();
        (body["stop_reason"].clone(), body["usage"]["output_tokens"].as_u64().unwrap() as u32)
    };
    assert_eq!(stop(3).await, (json!("max_tokens"), 3));
    let room = CONTEXT - router.fake.starts()[0].prompt.len() as u32;
    assert_eq!(stop(room).await, (json!("max_tokens"), room));
    assert_eq!(stop(room + 1).await, (json!("model_context_window_exceeded"), room));
    assert_eq!(stop(u32::MAX).await, (json!("model_context_window_exceeded"), room));
    let text = "a".repeat(CONTEXT as usize);
    let (status, kind, message) =
        refused(&router, messages_request(&[], json!({"messages": [{"role": "user", "content": text}]}))).await;
    assert_eq!((status, kind.as_str()), (400, "invalid_request_error"));
    assert!(message.starts_with("prompt is too long: "), "{message}");
}

#[tokio::test]
async fn stop_sequences_end_an_answer() {
    let router = TestRouter::new();
    let more = json!({"stop_sequences": ["STOP"]});
    let body = router.post(PATH, messages_request(&bytes("a STOP b"), more)).await.ok();
    assert_eq!(body["content"][0]["text"], "a ");
    assert_eq!((&body["stop_reason"], &body["stop_sequence"]), (&json!("stop_sequence"), &json!("STOP")));
}

#[tokio::test]
async fn errors_have_the_statuses_and_the_shape_of_the_api() {
    let router = TestRouter::new();
    for (request, status, kind, field) in [
        (json!({}), 400, "invalid_request_error", "max_tokens"),
        (messages_request(&[], json!({"max_tokens": 0})), 400, "invalid_request_error", "max_tokens"),
        (messages_request(&[], json!({"model": "other"})), 404, "not_found_error", "other"),
        (
            messages_request(&[], json!({"tools": [message_tool("a b")]})),
            400,
            "invalid_request_error",
            "'tools[0].name'",
        ),
        (messages_request(&[VOCAB], json!({})), 400, "invalid_request_error", "script[0]"),
        (messages_request(&[], json!({"stop_sequences": [""]})), 400, "invalid_request_error", "stop_sequences[0]"),
    ] {
        let (found, name, message) = refused(&router, request).await;
        assert_eq!((found, name.as_str()), (status, kind), "{message}");
        assert!(message.contains(field), "{message}");
    }
    // Clients that ask the server to keep the conversation learn that it does not.
    let answer = router.post(PATH, messages_request(&[], json!({"thread": {"type": "create"}}))).await;
    assert_eq!(answer.json()["error"]["details"]["error_code"], "thread_unsupported_request");
    // Other paths below it, and other methods.
    for (method, path, status) in [("GET", PATH, 405), ("POST", "/v1/messages/batches", 404)] {
        let request = Request::builder().method(method).uri(path).body(Body::empty()).unwrap();
        let answer = Answer::of(router.send(request).await).await;
        assert_eq!((answer.status.as_u16(), &answer.json()["type"]), (status, &json!("error")));
        assert_eq!(answer.json()["request_id"], answer.header("x-request-id"));
    }
    // The OpenAI API keeps its own shape.
    assert!(router.chat(&[], json!({"temperature": 9})).await.json()["error"]["code"].is_string());
    let own = Request::post(PATH).header("x-request-id", "mine").body(Body::from("{")).unwrap();
    let answer = Answer::of(router.send(own).await).await;
    assert_eq!((answer.header("request-id"), &answer.json()["request_id"]), ("mine", &json!("mine")));
    // Agents ask whether the server is there.
    let head = Request::builder().method("HEAD").uri("/").body(Body::empty()).unwrap();
    assert_eq!(router.send(head).await.status(), StatusCode::OK);
}

#[tokio::test]
async fn a_server_that_cannot_take_a_request_is_overloaded() {
    for (fake, status, kind) in [
        (Fake { refuse: Some(tonic::Code::Unavailable), ..Fake::default() }, 529, "overloaded_error"),
        (Fake { refuse: Some(tonic::Code::ResourceExhausted), ..Fake::default() }, 529, "overloaded_error"),
        (Fake::ending(Ending::Error), 500, "api_error"),
    ] {
        let router = TestRouter::with(RouterConfig::default(), fake);
        let answer = router.post(PATH, messages_request(&bytes("a"), json!({}))).await;
        assert_eq!(
            (answer.status.as_u16(), &answer.json()["error"]["type"]),
            (status, &json!(kind)),
            "{}",
            answer.text
        );
        assert_eq!(!answer.header("retry-after").is_empty(), status == 529);
        let metrics = router.get("/metrics").await.text;
        let counted = format!("endpoint=\"messages\",status=\"{status}\"");
        assert!(metrics.contains(&counted), "{counted} is missing in {metrics}");
    }
    // In a stream, the error is its last event.
    let router = TestRouter::with(RouterConfig::default(), Fake::ending(Ending::Error));
    let events = stream(&router, &bytes("a"), json!({})).await;
    let error = events.last().unwrap();
    assert_eq!((&error["type"], &error["error"]["type"]), (&json!("error"), &json!("api_error")));
    assert!(error["request_id"].as_str().unwrap().starts_with("msg_"));
}

#[tokio::test]
async fn keys_and_deadlines_hold() {
    let file = std::env::temp_dir().join(format!("rein-message-keys-{}.toml", std::process::id()));
    let entry = |name: &str, key: &str, more: &str| {
        format!("[[key]]\nname = \"{name}\"\nhash = \"{}\"\n{more}\n", key_hash(key))
    };
    let text = entry("a", "sk-a", "requests_per_minute = 1") + &entry("b", "sk-b", "");
    std::fs::write(&file, text).unwrap();
    let keys = ApiKeys::open("--api-keys", file.clone()).unwrap();
    let router = TestRouter::with(RouterConfig { keys: Some(keys), ..RouterConfig::default() }, Fake::default());
    let ask = async |key: &str, more: Value| {
        let mut request = Request::post(PATH);
        if !key.is_empty() {
            request = request.header("x-api-key", key);
        }
        let body = messages_request(&[&[THINK], bytes("w").as_slice(), &[END_THINK]].concat(), more);
        Answer::of(router.send(request.body(body.to_string().into()).unwrap()).await).await
    };
    let answer = ask("", json!({})).await;
    assert_eq!((answer.status.as_u16(), &answer.json()["error"]["type"]), (401, &json!("authentication_error")));
    let first = ask("sk-a", json!({})).await.ok();
    let answer = ask("sk-a", json!({})).await;
    assert_eq!((answer.status.as_u16(), &answer.json()["error"]["type"]), (429, &json!("rate_limit_error")));
    assert!(!answer.header("retry-after").is_empty());
    // The thinking of one key's answer is not that of another key.
    let messages = json!([{"role": "user", "content": "q"}, {"role": "assistant", "content": first["content"]}, {"role": "user", "content": "r"}]);
    let answer = ask("sk-b", json!({"messages": messages})).await;
    assert_eq!(answer.header("x-rein-ignored-fields"), "messages[1].content[0]");
    std::fs::remove_file(file).unwrap();

    let router = TestRouter::with(RouterConfig::default(), Fake::ending(Ending::Prefill));
    let request = Request::post(PATH).header("x-request-timeout", "0.2");
    let body = messages_request(&bytes("a"), json!({})).to_string();
    let answer = Answer::of(router.send(request.body(body.into()).unwrap()).await).await;
    assert_eq!((answer.status.as_u16(), &answer.json()["error"]["type"]), (504, &json!("timeout_error")));
}

#[tokio::test(start_paused = true)]
async fn a_silent_stream_sends_pings() {
    let router = TestRouter::with(RouterConfig::default(), Fake::ending(Ending::Prefill));
    let mut request = messages_request(&[], json!({}));
    request["stream"] = true.into();
    let request = Request::post(PATH).body(Body::from(request.to_string())).unwrap();
    let mut body = router.send(request).await.into_body();
    let mut next = async || {
        let frame = tokio::time::timeout(Duration::from_secs(11), body.frame()).await.unwrap().unwrap().unwrap();
        String::from_utf8(frame.into_data().unwrap().to_vec()).unwrap()
    };
    assert_eq!(next().await, ": admitted\n\n");
    for _ in 0..2 {
        let began = tokio::time::Instant::now();
        assert_eq!(next().await, "event: ping\ndata: {\"type\":\"ping\"}\n\n");
        assert_eq!(began.elapsed().as_secs(), 10);
    }
}
