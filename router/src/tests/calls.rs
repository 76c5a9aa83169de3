//! Incomplete, malformed and invalid tool calls: what clients get, and what metrics count.

use std::sync::{Arc, Mutex};

use rein_grammar::{self as grammar, Response, Rules};
use rein_proto::v1::{self, chat_event::Event};

use super::{
    fake::Ending,
    grpc::{events, request as grpc_request},
    *,
};

/// `malformed`, and the names and arguments of `incomplete_tool_calls`, in a message or a stream's last delta.
fn leftovers(message: &Value) -> (Value, Vec<(String, String)>) {
    let calls = message["incomplete_tool_calls"].as_array().cloned().unwrap_or_default();
    let text = |call: &Value, name: &str| call["function"][name].as_str().unwrap().to_owned();
    let calls = calls.iter().map(|call| (text(call, "name"), text(call, "arguments"))).collect();
    (message.get("malformed").cloned().unwrap_or(json!([])), calls)
}

fn metric(text: &str, sample: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(sample)?.strip_prefix(' ')?.parse().ok())
}

struct Case {
    script: Vec<u32>,
    malformed: Value,
    incomplete: &'static [(&'static str, &'static str)],
    calls: usize,
    /// valid, incomplete, malformed, invalid
    outcomes: [u64; 4],
}

fn cases() -> Vec<Case> {
    let section = |parts: &[Vec<u32>]| [&[SECTION], parts.concat().as_slice(), &[END_SECTION]].concat();
    vec![
        Case {
            script: section(&[call("functions.f:0", "{\"a\": oops}"), call("functions.g:1", "{}")]),
            malformed: json!(["oops}"]),
            incomplete: &[("f", "{\"a\": ")],
            calls: 1,
            outcomes: [1, 0, 1, 0],
        },
        Case {
            script: section(&[call("I would say", "{\"a\": 1}")]),
            malformed: json!(["I would say{\"a\": 1}"]),
            incomplete: &[],
            calls: 0,
            outcomes: [0, 0, 1, 0],
        },
        Case {
            script: section(&[bytes("hm"), call("functions.f:0", "{}"), bytes("!")]),
            malformed: json!(["hm", "!"]),
            incomplete: &[],
            calls: 1,
            outcomes: [1, 0, 1, 0],
        },
        Case {
            script: [&[SECTION], &call("functions.f:0", "{\"a\": \"xy")[..22]].concat(),
            malformed: json!([]),
            incomplete: &[("f", "{\"a\": \"")],
            calls: 0,
            outcomes: [0, 1, 0, 0],
        },
    ]
}

#[tokio::test]
async fn incomplete_and_malformed_calls_are_neither_text_nor_calls() {
    for Case { script, malformed, incomplete, calls, outcomes } in cases() {
        let router = TestRouter::new();
        let more = json!({"tools": tools(&["f", "g"])});
        let body = router.chat(&script, more.clone()).await.ok();
        let message = &body["choices"][0]["message"];
        let expected: Vec<_> = incomplete.iter().map(|(name, text)| (name.to_string(), text.to_string())).collect();
        assert_eq!(leftovers(message), (malformed.clone(), expected.clone()), "{body}");
        assert_eq!(message["tool_calls"].as_array().map_or(0, Vec::len), calls, "{body}");
        assert_eq!(message["content"].as_str().unwrap_or_default(), "", "{body}");

        let chunks = router.stream(&script, more).await;
        let last = &chunks.last().unwrap()["choices"][0];
        assert_eq!(leftovers(&last["delta"]), (malformed, expected), "{chunks:?}");
        let joined = &join(&chunks)[0];
        assert_eq!(joined["content"], "", "{chunks:?}");
        assert_eq!(joined["calls"].as_array().unwrap().len(), calls, "{chunks:?}");
        for call in joined["calls"].as_array().unwrap() {
            serde_json::from_str::<Value>(call["arguments"].as_str().unwrap()).unwrap();
        }

        let metrics = router.get("/metrics").await.text;
        for (name, count) in ["valid", "incomplete", "malformed", "invalid"].iter().zip(outcomes) {
            let sample = format!("rein_tool_calls_total{{model=\"bytes\",outcome=\"{name}\"}}");
            assert_eq!(metric(&metrics, &sample), Some(2 * count), "{script:?} {name}");
        }
        let texts = body["choices"][0]["message"]["malformed"].as_array().map_or(0, Vec::len) as u64;
        let sample = "rein_malformed_total{model=\"bytes\",format=\"kimi_k2\"}";
        assert_eq!(metric(&metrics, sample), Some(2 * texts));
    }
}

/// Wherever the length limit cuts a call, the last chunk reports it, and no part of it was sent as text.
#[tokio::test]
async fn a_call_that_the_length_limit_cuts_anywhere_is_incomplete() {
    let script = [&bytes("ok")[..], &[SECTION], &call("functions.f:0", "{\"a\": [1]}")].concat();
    let whole = script.len() - 1;
    for limit in 1..=script.len() {
        let router = TestRouter::new();
        let more = json!({"tools": tools(&["f"]), "max_tokens": limit});
        let chunks = router.stream(&script, more.clone()).await;
        let last = &chunks.last().unwrap()["choices"][0];
        let (malformed, incomplete) = leftovers(&last["delta"]);
        let inside = (3..whole).contains(&limit);
        assert_eq!((malformed, incomplete.len()), (json!([]), usize::from(inside)), "{limit}: {last}");
        assert_eq!(join(&chunks)[0]["content"], &"ok"[..limit.min(2)], "{limit}");
        let body = router.chat(&script, more).await.ok();
        assert_eq!(leftovers(&body["choices"][0]["message"]).1, incomplete, "{limit}");
        let outcome =
            format!("rein_tool_calls_total{{model=\"bytes\",outcome=\"incomplete\"}} {}", 2 * incomplete.len());
        assert!(router.get("/metrics").await.text.contains(&outcome), "{limit}");
        if inside {
            let (name, text) = &incomplete[0];
            let written =
                String::from_utf8(script[2..limit].iter().filter_map(|&id| u8::try_from(id).ok()).collect()).unwrap();
            assert!(written.ends_with(text) && written.contains(name), "{limit}: {incomplete:?} of {written}");
        }
    }
}

/// The same where a call begins with letters: only its name tells that it is one.
#[tokio::test]
async fn a_call_of_letters_that_the_length_limit_cuts_anywhere_is_incomplete() {
    for (format, text) in [
        ("llama_json", r#"{"name": "f", "parameters": {"a": [1]}}"#),
        ("hermes", "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": [1]}}\n</tool_call>"),
        ("functools", r#"functools[{"name": "f", "arguments": {"a": [1]}}]"#),
        ("granite_20b_fc", r#"<function_call> {"name": "f", "arguments": {"a": [1]}}"#),
    ] {
        let format = grammar::by_name(format);
        assert!(format.is_some());
        let router = TestRouter::with_policy(TEMPLATE, ModelPolicy { format, ..ModelPolicy::default() });
        let whole = text.find("}}").unwrap() + 2;
        for limit in 1..whole {
            let more = json!({"tools": tools(&["f"]), "max_tokens": limit});
            let chunks = router.stream(&bytes(text), more.clone()).await;
            let (malformed, incomplete) = leftovers(&chunks.last().unwrap()["choices"][0]["delta"]);
            assert_eq!((malformed, incomplete.len()), (json!([]), 1), "{text} {limit}: {chunks:?}");
            let joined = &join(&chunks)[0];
            assert_eq!((&joined["content"], &joined["finish"]), (&json!(""), &json!("length")), "{text} {limit}");
            let body = router.chat(&bytes(text), more).await.ok();
            let message = &body["choices"][0]["message"];
            assert_eq!((leftovers(message).1, &message["content"]), (incomplete, &json!("")), "{text} {limit}");
        }
        // Ended by itself, the same text is what the model wrote.
        let body = router.chat(&bytes("{\"name\": \"g\""), json!({"tools": tools(&["f"])})).await.ok();
        assert_eq!(body["choices"][0]["message"]["content"], "{\"name\": \"g\"", "{body}");

        let tool = v1::Tool {
            name: "f".into(),
            parameters_json: Some("{\"type\": \"object\"}".into()),
            ..v1::Tool::default()
        };
        let limits = Some(v1::Limits { max_tokens: Some(10), ..v1::Limits::default() });
        let asked = v1::ChatRequest { tools: vec![tool], limits, ..grpc_request(&bytes(text)) };
        let mut incomplete = Vec::new();
        for event in events(&router, asked).await {
            match event.event.unwrap() {
                Event::TextDelta(delta) => panic!("{text}: {delta:?}"),
                Event::Done(done) => incomplete = done.incomplete_tool_calls,
                _ => {}
            }
        }
        assert_eq!(incomplete.len(), 1, "{text}");
    }
}

/// Without enforcement, every finished call is delivered, and the metrics tell which would have been refused.
#[tokio::test]
async fn calls_that_are_not_enforced_are_validated() {
    let router = TestRouter::new();
    let mut tools = tools(&["f"]);
    tools[0]["function"]["parameters"] = json!({"type": "object", "properties": {"a": {"type": "string"}}});
    let script = [
        &[SECTION],
        call("functions.f:0", "{\"a\": 7}").as_slice(),
        &call("functions.nobody:1", "{}"),
        &call("functions.f:2", "{\"a\": \"x\"}"),
        &[END_SECTION],
    ]
    .concat();
    let body = router.chat(&script, json!({"tools": tools})).await.ok();
    assert_eq!(body["choices"][0]["message"]["tool_calls"].as_array().unwrap().len(), 3, "{body}");
    let metrics = router.get("/metrics").await.text;
    for (outcome, count) in [("valid", 1), ("incomplete", 0), ("malformed", 0), ("invalid", 2)] {
        let sample = format!("rein_tool_calls_total{{model=\"bytes\",outcome=\"{outcome}\"}}");
        assert_eq!(metric(&metrics, &sample), Some(count), "{outcome}");
    }
    assert_eq!(metric(&metrics, "rein_grammar_invalid_calls_total"), Some(0));
    // A declaration that is no schema validates nothing.
    tools[0]["function"]["parameters"] = json!({"type": "object", "properties": {"a": {"type": "strin"}}});
    router.chat(&script, json!({"tools": tools})).await.ok();
    let sample = "rein_tool_calls_total{model=\"bytes\",outcome=\"valid\"}";
    assert_eq!(metric(&router.get("/metrics").await.text, sample), Some(3));
}

#[tokio::test]
async fn grpc_reports_the_same_in_its_last_event() {
    for Case { script, malformed, incomplete, calls, .. } in cases() {
        let parameters_json = Some("{\"type\": \"object\"}".into());
        let tool = |name: &str| v1::Tool {
            name: name.into(),
            parameters_json: parameters_json.clone(),
            ..v1::Tool::default()
        };
        let asked = v1::ChatRequest { tools: vec![tool("f"), tool("g")], ..grpc_request(&script) };
        let (mut starts, mut ends, mut texts, mut done) = (0, 0, Vec::new(), None);
        for event in events(&TestRouter::new(), asked).await {
            match event.event.unwrap() {
                Event::ToolCallStart(_) => starts += 1,
                Event::ToolCallEnd(end) => ends += usize::from(end.complete),
                Event::Malformed(v1::Malformed { text }) => texts.push(text),
                Event::Done(last) => done = Some(last),
                _ => {}
            }
        }
        let done = done.unwrap();
        let told: Vec<_> = done.incomplete_tool_calls.iter().map(|c| (c.name.as_str(), c.arguments.as_str())).collect();
        assert_eq!((starts, ends, told.as_slice()), (calls, calls, incomplete));
        assert_eq!((json!(texts), json!(done.malformed)), (malformed.clone(), malformed));
    }
}

/// The sum over all reasons, and each count that is not 0.
fn finished(metrics: &str) -> (u64, Vec<(String, u64)>) {
    let reason = |line: &str| {
        let (reason, count) = line.strip_prefix("rein_finished_total{model=\"bytes\",reason=\"")?.split_once("\"} ")?;
        Some((reason.to_owned(), count.parse::<u64>().unwrap()))
    };
    let all: Vec<_> = metrics.lines().filter_map(reason).filter(|(_, count)| *count > 0).collect();
    (all.iter().map(|(_, count)| count).sum(), all)
}

#[tokio::test]
async fn every_choice_is_counted_as_finished_once() {
    let of = |reason: &str, count: u64| (count, vec![(reason.to_owned(), count)]);
    let section = [&[SECTION], call("functions.f:0", "{}").as_slice(), &[END_SECTION]].concat();
    let more = |n: u32| json!({"n": n, "tools": tools(&["f"])});
    let router = TestRouter::new();
    router.chat(&section, more(3)).await.ok();
    assert_eq!(finished(&router.get("/metrics").await.text), of("tool_calls", 3));
    let router = TestRouter::new();
    router.stream(&bytes("ab"), json!({"max_tokens": 1})).await;
    assert_eq!(finished(&router.get("/metrics").await.text), of("length", 1));
    let router = TestRouter::new();
    router
        .post("/v1/completions", json!({"model": "bytes", "prompt": ["a", "b"], "n": 2, "script": bytes("c")}))
        .await
        .ok();
    assert_eq!(finished(&router.get("/metrics").await.text), of("stop", 4));
    for (ending, code) in [(Ending::Error, "internal_error"), (Ending::Lost, "capacity_lost")] {
        let router = TestRouter::with(RouterConfig::default(), Fake::ending(ending));
        router.chat(&bytes("abc"), json!({"n": 2})).await;
        assert_eq!(finished(&router.get("/metrics").await.text), of(code, 2));
    }
    let router = TestRouter::with(
        RouterConfig::default(),
        Fake { refuse: Some(tonic::Code::ResourceExhausted), ..Fake::default() },
    );
    router.chat(&bytes("abc"), json!({"n": 2})).await;
    assert_eq!(finished(&router.get("/metrics").await.text), of("overloaded", 2));
    // A request that is refused before generation has no choices.
    let router = TestRouter::new();
    router.chat(&bytes("abc"), json!({"temperature": 9})).await;
    assert_eq!(finished(&router.get("/metrics").await.text), (0, vec![]));
}

#[tokio::test]
async fn a_choice_is_cancelled_when_its_client_leaves() {
    use futures::StreamExt;
    let router = TestRouter::with(RouterConfig::default(), Fake::ending(Ending::Hang));
    let body = chat_request(&bytes("abc"), json!({"stream": true, "n": 2})).to_string();
    let request = Request::post("/v1/chat/completions").header("content-type", "application/json").body(body.into());
    let mut body = router.send(request.unwrap()).await.into_body().into_data_stream();
    body.next().await.unwrap().unwrap();
    router.fake.open(2).await;
    drop(body);
    router.fake.open(0).await;
    assert_eq!(finished(&router.get("/metrics").await.text), (2, vec![("cancelled".into(), 2)]));
}

/// A stop token that is a marker of the format ends the answer after the call that has the marker.
#[tokio::test]
async fn a_stop_token_never_cuts_a_call() {
    let script = [
        bytes("ok").as_slice(),
        &[SECTION],
        &call("functions.f:0", "{\"a\": 1}"),
        &call("functions.f:1", "{}"),
        &[END_SECTION],
        &bytes("more"),
    ]
    .concat();
    for (stop, calls) in [(SECTION, 1), (CALL, 1), (ARGUMENTS, 1), (END_CALL, 1), (END_SECTION, 2)] {
        let more = json!({"tools": tools(&["f"]), "stop_token_ids": [stop]});
        let router = TestRouter::new();
        let body = router.chat(&script, more.clone()).await.ok();
        let choice = &body["choices"][0];
        let told = choice["message"]["tool_calls"].as_array().map_or(0, Vec::len);
        assert_eq!((told, &choice["message"]["content"]), (calls, &json!("ok")), "{stop}: {body}");
        assert_eq!((&choice["finish_reason"], &choice["stop_reason"]), (&json!("tool_calls"), &json!(stop)));
        assert_eq!(leftovers(&choice["message"]), (json!([]), vec![]), "{stop}: {body}");
        assert_eq!(join(&router.stream(&script, more).await), unfold(&body), "{stop}");
        assert!(!router.fake.starts()[0].limits.as_ref().unwrap().stop_token_ids.contains(&stop));
        // Without tools, it is an ordinary stop token.
        let body = router.chat(&script, json!({"stop_token_ids": [stop]})).await.ok();
        assert_eq!(body["choices"][0]["stop_reason"], stop);
    }
    // It has no effect before `min_tokens`.
    let more = json!({"tools": tools(&["f"]), "stop_token_ids": [END_CALL], "min_tokens": 40});
    let body = TestRouter::new().chat(&script, more).await.ok();
    assert_eq!(body["choices"][0]["message"]["tool_calls"].as_array().unwrap().len(), 2, "{body}");
}

#[tokio::test]
async fn where_a_call_is_required_markers_of_reasoning_are_no_stops() {
    let script =
        [&[THINK], bytes("w").as_slice(), &[END_THINK, SECTION], &call("functions.f:0", "{}"), &[END_SECTION]].concat();
    for stop in [THINK, END_THINK] {
        let more = json!({"tools": tools(&["f"]), "tool_choice": "required", "stop_token_ids": [stop]});
        let body = TestRouter::new().chat(&script, more).await.ok();
        let choice = &body["choices"][0];
        assert_eq!(choice["message"]["tool_calls"].as_array().map(Vec::len), Some(1), "{stop}: {body}");
        let more = json!({"tools": tools(&["f"]), "stop_token_ids": [stop]});
        let body = TestRouter::new().chat(&script, more).await.ok();
        assert_eq!(body["choices"][0]["stop_reason"], stop);
    }
}

#[tokio::test]
async fn a_stop_string_that_is_a_marker_ends_the_answer_after_the_call() {
    let router =
        TestRouter::of(&format!("{{# <tool_call> arguments #}}{TEMPLATE}"), RouterConfig::default(), Fake::default());
    let one = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"</tool_call>\"}}\n</tool_call>";
    let script = bytes(&format!("sure\n{one}\n{one}\nmore"));
    for stop in ["<tool_call>", "</tool_call>"] {
        let body = router.chat(&script, json!({"tools": tools(&["f"]), "stop": stop})).await.ok();
        let choice = &body["choices"][0];
        assert_eq!(choice["message"]["tool_calls"].as_array().map_or(0, Vec::len), 1, "{body}");
        assert_eq!((&choice["message"]["content"], &choice["stop_reason"]), (&json!("sure"), &json!(stop)), "{body}");
    }
    let body = router.chat(&script, json!({"stop": "<tool_call>"})).await.ok();
    assert_eq!(body["choices"][0]["message"]["content"], "sure\n");
}

/// Constraints of a response's schema that the grammar does not enforce are validated at the end, and violations are
/// reported.
#[tokio::test]
async fn a_response_that_violates_its_schema_is_reported_in_the_last_event() {
    let schema = json!({"type": "array", "items": {"type": "integer"}, "uniqueItems": true});
    let more = json!({"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}});
    for (text, broken) in [("[1, 2]", false), ("[1, 1]", true)] {
        let router = TestRouter::new();
        let body = router.chat(&bytes(text), more.clone()).await.ok();
        let chunks = router.stream(&bytes(text), more.clone()).await;
        let last = &chunks.last().unwrap()["choices"][0];
        for choice in [&body["choices"][0], last] {
            assert_eq!(
                choice.get("invalid_response").is_some_and(|why| why.as_str().unwrap().contains("unique")),
                broken,
                "{choice}"
            );
            assert_eq!(choice["finish_reason"], "stop");
        }
        let sample = metric(&router.get("/metrics").await.text, "rein_grammar_invalid_responses_total");
        assert_eq!(sample, Some(2 * u64::from(broken)));
    }
}

/// Regular expressions and choices are validated by another implementation than the grammar's. For a client's own
/// grammar there is none, so such answers are not validated.
#[tokio::test]
async fn a_response_that_violates_its_regex_or_choices_is_reported() {
    for (asked, validated_by, broken_by) in [
        (json!({"regex": "[ab]+"}), Response::Regex("a+".into()), true),
        (json!({"guided_regex": "[ab]+"}), Response::Regex("a+".into()), true),
        (json!({"guided_choice": ["a", "b"]}), Response::Choice(vec!["a".into()]), true),
        (json!({"guided_grammar": "start: /[ab]+/"}), Response::Lark("start: \"a\"".into()), false),
    ] {
        for (text, broken) in [("a", false), ("b", broken_by)] {
            let router = TestRouter::new();
            router.validate_by(Rules { response: Some(validated_by.clone()), ..Rules::default() });
            let body = router.chat(&bytes(text), asked.clone()).await.ok();
            let choice = &body["choices"][0];
            assert_eq!((&choice["message"]["content"], choice["invalid_response"].is_string()), (&json!(text), broken));
            let sample = metric(&router.get("/metrics").await.text, "rein_grammar_invalid_responses_total");
            assert_eq!(sample, Some(u64::from(broken)), "{asked}");
        }
    }
}

/// The text before a stop is validated.
#[tokio::test]
async fn a_response_that_a_stop_cuts_is_validated() {
    let schema = json!({"type": "array", "items": {"type": "integer"}});
    let format = json!({"type": "json_schema", "json_schema": {"name": "s", "schema": schema}});
    let comma = u32::from(b',');
    for stop in [json!({"stop_token_ids": [comma]}), json!({"stop": ","})] {
        for (asked, text, broken) in [
            (json!({"response_format": format}), "[1, 2]", true),
            (json!({"response_format": format}), "[1]", false),
            (json!({"regex": "[0-9]+(, [0-9]+)*"}), "1, 2", false),
            (json!({"regex": "([0-9]+, )*end"}), "1, end", true),
            (json!({"guided_grammar": "start: /1, 2/"}), "1, 2", false),
        ] {
            let mut more = asked.clone();
            more.as_object_mut().unwrap().extend(stop.as_object().unwrap().clone());
            let script = [bytes(text).as_slice(), &[END]].concat();
            let body = TestRouter::new().chat(&script, more).await.ok();
            let choice = &body["choices"][0];
            assert_eq!(choice["finish_reason"], "stop", "{body}");
            assert_eq!(choice.get("stop_reason").is_some(), text.contains(','), "{body}");
            assert_eq!(choice.get("invalid_response").is_some(), broken, "{asked} {stop}: {body}");
        }
    }
}

/// A call that the grammar accepts but its schema rejects, although nothing was relaxed, is a defect of the grammar:
/// the client is told that the call is invalid, and it is counted and logged.
#[tokio::test]
async fn a_call_that_the_grammar_accepts_but_the_schema_rejects_is_invalid() {
    let schema = |max| json!({"type": "object", "properties": {"a": {"type": "integer", "maximum": max}}});
    let tool = |max| grammar::Tool { name: "f".into(), parameters: Some(schema(max)), ..grammar::Tool::default() };
    let stricter = || Rules { tools: vec![tool(5)].into(), ..Rules::default() };
    let of = |name: &str| json!({"type": "function", "function": {"name": name, "parameters": schema(9)}});
    let script = [&[SECTION], call("functions.f:0", "{\"a\": 7}").as_slice(), &[END_SECTION]].concat();
    let invalid = (json!([]), vec![("f".to_owned(), "{\"a\": 7}".to_owned())]);

    let router = TestRouter::new();
    router.validate_by(stricter());
    let logs = Logs::default();
    let guard = tracing::subscriber::set_default(logs.clone());
    let answer = router.chat(&script, json!({"tools": [of("f")]})).await;
    assert!(!answer.headers.contains_key("x-rein-relaxed"));
    let body = answer.ok();
    drop(guard);
    let choice = &body["choices"][0];
    assert_eq!(leftovers(&choice["message"]), invalid, "{body}");
    assert!(choice["message"].get("tool_calls").is_none_or(Value::is_null), "{body}");
    assert_eq!(choice["finish_reason"], "stop", "{body}");
    assert!(logs.said("a finished tool call violates its schema"), "{logs:?}");

    // A stream has already sent the call.
    let chunks = router.stream(&script, json!({"tools": [of("f")]})).await;
    let told = &join(&chunks)[0]["calls"];
    assert_eq!((told.as_array().unwrap().len(), &told[0]["arguments"]), (1, &json!("{\"a\": 7}")), "{chunks:?}");
    let last = &chunks.last().unwrap()["choices"][0];
    assert_eq!((leftovers(&last["delta"]), &last["finish_reason"]), (invalid, &json!("stop")), "{chunks:?}");
    assert_eq!(last["delta"]["incomplete_tool_calls"][0]["id"], told[0]["id"], "{chunks:?}");

    let tool = v1::Tool { name: "f".into(), parameters_json: Some(schema(9).to_string()), ..v1::Tool::default() };
    let asked = v1::ChatRequest { tools: vec![tool], ..grpc_request(&script) };
    let (mut complete, mut done) = (None, None);
    for event in events(&router, asked).await {
        match event.event.unwrap() {
            Event::ToolCallEnd(end) => complete = Some(end.complete),
            Event::Done(last) => done = Some(last),
            _ => {}
        }
    }
    let done = done.unwrap();
    assert_eq!((complete, done.finish_reason()), (Some(false), v1::FinishReason::Stop));
    assert_eq!(done.incomplete_tool_calls[0].arguments, "{\"a\": 7}");

    let metrics = router.get("/metrics").await.text;
    assert_eq!(metric(&metrics, "rein_grammar_invalid_calls_total"), Some(3));
    for (outcome, count) in [("valid", 0), ("incomplete", 0), ("malformed", 0), ("invalid", 3)] {
        let sample = format!("rein_tool_calls_total{{model=\"bytes\",outcome=\"{outcome}\"}}");
        assert_eq!(metric(&metrics, &sample), Some(count), "{outcome}");
    }
}

impl TestRouter {
    /// Validates finished calls by other rules than the request's, as if the grammar had a defect.
    fn validate_by(&self, rules: Rules) {
        let words = (0..=255).map(|byte| (vec![byte], false)).chain([(b"<|im_end|>".to_vec(), true)]);
        let vocab = Arc::new(grammar::Vocab::new(words, &[END], None).unwrap());
        let compiled = grammar::Grammars::new(grammar::by_name("hermes").unwrap(), vocab).compile(&rules);
        let model = self.router.state.named("bytes").unwrap();
        assert!(model.validator.set(compiled.unwrap().unwrap()).is_ok());
    }
}

/// The log lines of this thread.
#[derive(Debug, Clone, Default)]
struct Logs(Arc<Mutex<Vec<String>>>);

impl Logs {
    fn said(&self, text: &str) -> bool {
        self.0.lock().unwrap().iter().any(|line| line.contains(text))
    }
}

impl tracing::Subscriber for Logs {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::Id {
        tracing::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::Id, _: &tracing::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        self.0.lock().unwrap().push(format!("{event:?}"));
    }

    fn enter(&self, _: &tracing::Id) {}

    fn exit(&self, _: &tracing::Id) {}
}

/// The first validation with a schema may take long, so it must not block the other tasks of its thread.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn validating_a_response_does_not_block_other_tasks() {
    let schema = json!({"type": "array", "uniqueItems": true});
    let more = json!({"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}});
    let body = TestRouter::new().chat(&bytes("[1, 1]"), more).await.ok();
    assert!(body["choices"][0]["invalid_response"].is_string(), "{body}");
}

#[tokio::test]
async fn engines_hold_the_blocks_of_a_conversation_whose_tool_runs() {
    let router = TestRouter::new();
    let section = [&[SECTION], call("functions.f:0", "{}").as_slice(), &[END_SECTION]].concat();
    let long = "What is the weather like in each of the capitals of Europe?";
    let with = |messages: Value| json!({"messages": messages, "tools": tools(&["f"])});
    let asked = json!({"role": "user", "content": long});
    router.chat(&bytes("no call"), with(json!([asked.clone()]))).await.ok();
    router.chat(&section, with(json!([asked.clone()]))).await.ok();
    let held = router.fake.holds(1).await;
    let hashes = |start: &rein_proto::internal::Start| {
        let tokens = [&start.prompt[..], &start.script].concat();
        rein_proto::block_hash::chain("", &tokens, 16).collect::<Vec<u64>>()
    };
    let starts = router.fake.starts();
    let (prompt, all) = (starts[1].prompt.len() / 16, hashes(&starts[1]));
    assert!(held[0].hashes.len() >= prompt && all.starts_with(&held[0].hashes), "{prompt} blocks of {held:?}");
    assert_eq!(held[0].milliseconds, 60_000);
    let call = json!({"id": "functions.f:0", "type": "function", "function": {"name": "f", "arguments": "{}"}});
    let called = json!({"role": "assistant", "content": null, "tool_calls": [call]});
    let result = json!({"role": "tool", "tool_call_id": "functions.f:0", "content": "sunny"});
    router.chat(&section, with(json!([asked, called, result]))).await.ok();
    let held = router.fake.holds(2).await;
    assert_eq!(held[1].milliseconds, 2_000, "as long as its tools take, but not less");
    let metrics = router.get("/metrics").await.text;
    for (name, count) in [("held", 2), ("returned", 1), ("late", 0)] {
        assert_eq!(metric(&metrics, &format!("rein_tool_turns_{name}_total")), Some(count), "{name}");
    }
}
