//! Events to frames and bodies.

use rand::{Rng, SeedableRng, rngs::StdRng};
use rein_proto::v1::{self, chat_event::Event};

use super::*;
use crate::{
    api::{anthropic::request::AnswerOptions, frames::EncodeFrames},
    error::ErrorKind,
};

const OPTIONS: AnswerOptions = AnswerOptions { max_tokens: 100, omit_thinking: false };

fn frames(options: AnswerOptions) -> MessageFrames {
    MessageFrames::new(options, seal(), Default::default(), "m", Some("req-1".into()))
}

fn event(event: Event) -> v1::ChatEvent {
    v1::ChatEvent { event: Some(event), ..v1::ChatEvent::default() }
}

/// The payloads of a stream's events. Each has the name of its type.
pub fn payloads(stream: &str) -> Vec<Value> {
    let frame = |frame: &str| {
        let (name, data) = frame.strip_prefix("event: ").unwrap().split_once("\ndata: ").unwrap();
        let payload: Value = serde_json::from_str(data).unwrap();
        assert_eq!(payload["type"], name);
        payload
    };
    stream.split_terminator("\n\n").map(frame).collect()
}

fn encoded(options: AnswerOptions, events: Vec<v1::ChatEvent>) -> Vec<Value> {
    let (mut frames, mut out) = (frames(options), Vec::new());
    events.into_iter().for_each(|event| frames.event(event, &mut out));
    frames.end(&mut out);
    payloads(&String::from_utf8(out).unwrap())
}

fn started() -> Event {
    let usage = v1::Usage { prompt_tokens: 10, cached_tokens: 4, ..v1::Usage::default() };
    Event::Start(v1::Started { id: "msg_1".into(), model: "m".into(), usage: Some(usage), ..v1::Started::default() })
}

fn done(reason: v1::FinishReason, more: v1::Done) -> Event {
    let usage = v1::Usage {
        prompt_tokens: 10,
        cached_tokens: 4,
        completion_tokens: 100,
        reasoning_tokens: 3,
        ..v1::Usage::default()
    };
    Event::Done(v1::Done { finish_reason: reason.into(), usage: Some(usage), ..more })
}

fn reasoning(text: &str) -> Event {
    Event::ReasoningDelta(v1::Delta { text: text.into() })
}

fn text(text: &str) -> Event {
    Event::TextDelta(v1::Delta { text: text.into() })
}

fn call(index: u32) -> Event {
    Event::ToolCallStart(v1::ToolCallStart { index, id: format!("functions.f:{index}"), name: "f".into() })
}

fn arguments(index: u32, text: &str) -> Event {
    Event::ArgumentsDelta(v1::ArgumentsDelta { index, text: text.into() })
}

fn ended(index: u32, complete: bool) -> Event {
    Event::ToolCallEnd(v1::ToolCallEnd { index, complete })
}

#[test]
fn a_stream_has_the_events_of_the_api_in_order() {
    let events = [
        started(),
        Event::ReasoningStart(v1::RegionStart {}),
        reasoning("w"),
        Event::ReasoningEnd(v1::RegionEnd {}),
        Event::TextStart(v1::RegionStart {}),
        text("a"),
        text("b"),
        Event::TextEnd(v1::RegionEnd {}),
        call(0),
        arguments(0, "{\"x\":"),
        arguments(0, " 1}"),
        ended(0, true),
        done(v1::FinishReason::ToolCalls, v1::Done::default()),
        Event::Usage(v1::UsageEvent::default()),
    ];
    let mut payloads = encoded(OPTIONS, events.map(event).into());
    let id = payloads[9]["content_block"]["id"].take();
    let id = id.as_str().unwrap().strip_prefix("toolu_").unwrap();
    assert!(id.len() == 24 && id.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{id}");
    let signature = payloads[3]["delta"]["signature"].take();
    assert_eq!(seal().open("m", "w", signature.as_str().unwrap()).as_deref(), Some("w"));
    let usage = json!({"input_tokens": 6, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 4,
        "output_tokens": 100, "output_tokens_details": {"thinking_tokens": 3}});
    let mut first = usage.clone();
    first["output_tokens"] = 0.into();
    first["output_tokens_details"]["thinking_tokens"] = 0.into();
    assert_eq!(
        Value::from(payloads),
        json!([
            {"type": "message_start", "message": {"id": "msg_1", "type": "message", "role": "assistant", "model": "m",
                "content": [], "stop_reason": null, "stop_sequence": null, "usage": first}},
            {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": "", "signature": ""}},
            {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "w"}},
            {"type": "content_block_delta", "index": 0, "delta": {"type": "signature_delta", "signature": null}},
            {"type": "content_block_stop", "index": 0},
            {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}},
            {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "a"}},
            {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "b"}},
            {"type": "content_block_stop", "index": 1},
            {"type": "content_block_start", "index": 2, "content_block": {"type": "tool_use", "id": null, "name": "f", "input": {}}},
            {"type": "content_block_delta", "index": 2, "delta": {"type": "input_json_delta", "partial_json": "{\"x\":"}},
            {"type": "content_block_delta", "index": 2, "delta": {"type": "input_json_delta", "partial_json": " 1}"}},
            {"type": "content_block_stop", "index": 2},
            {"type": "message_delta", "delta": {"stop_reason": "tool_use", "stop_sequence": null}, "usage": usage},
            {"type": "message_stop"},
        ])
    );
}

#[test]
fn stop_reasons_are_those_of_the_api() {
    let stop = |reason, more: v1::Done| {
        let done = done(reason, more);
        let body = message_body(vec![event(started()), event(done)], OPTIONS, &seal());
        let body: Value = serde_json::from_slice(&body).unwrap();
        (body["stop_reason"].as_str().unwrap().to_owned(), body["stop_sequence"].clone())
    };
    let matched = |text: &str, token: Option<u32>| v1::Done {
        stop_reason: text.into(),
        stop_token: token,
        ..v1::Done::default()
    };
    use v1::FinishReason::{Length, Stop, ToolCalls};
    assert_eq!(stop(Stop, v1::Done::default()), ("end_turn".into(), Value::Null));
    assert_eq!(stop(Stop, matched("END", None)), ("stop_sequence".into(), json!("END")));
    assert_eq!(stop(Stop, matched("7", Some(7))), ("end_turn".into(), Value::Null));
    assert_eq!(stop(ToolCalls, matched("END", None)), ("tool_use".into(), Value::Null));
    assert_eq!(stop(Length, v1::Done::default()), ("max_tokens".into(), Value::Null));
    // The answer has 100 tokens.
    let longer = AnswerOptions { max_tokens: 101, ..OPTIONS };
    let body = message_body(vec![event(done(Length, v1::Done::default()))], longer, &seal());
    let body: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(body["stop_reason"], "model_context_window_exceeded");
}

#[test]
fn omitted_thinking_has_a_signature_that_stands_for_its_text() {
    let options = AnswerOptions { omit_thinking: true, ..OPTIONS };
    let events =
        || vec![event(started()), event(reasoning("secret")), event(done(v1::FinishReason::Stop, v1::Done::default()))];
    let payloads = encoded(options, events());
    assert!(!Value::from(payloads.clone()).to_string().contains("secret"));
    let signature = payloads[2]["delta"]["signature"].as_str().unwrap();
    assert_eq!(seal().open("m", "", signature).as_deref(), Some("secret"));
    let body: Value = serde_json::from_slice(&message_body(events(), options, &seal())).unwrap();
    assert_eq!(body["content"][0]["thinking"], "");
    assert_eq!(seal().open("m", "", body["content"][0]["signature"].as_str().unwrap()).as_deref(), Some("secret"));
    assert_eq!(seal().open("other", "", signature), None, "bound to the model");
}

#[test]
fn calls_that_must_not_be_executed_are_reported_apart() {
    let cut = v1::ToolCall { id: "functions.f:0".into(), name: "f".into(), arguments: "{\"x".into() };
    let more = v1::Done {
        incomplete_tool_calls: vec![cut],
        malformed: vec!["oops".into()],
        grammar_relaxed: "too many states".into(),
        ..v1::Done::default()
    };
    let events =
        [started(), text("a"), call(0), arguments(0, "{\"x"), ended(0, false), done(v1::FinishReason::Length, more)];
    let body = message_body(events.clone().map(event).into(), OPTIONS, &seal());
    let body: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(body["content"], json!([{"type": "text", "text": "a"}]));
    assert_eq!(body["malformed"], json!(["oops"]));
    assert_eq!(body["incomplete_tool_calls"][0]["partial_json"], "{\"x");
    assert_eq!(body["grammar_relaxed"], "too many states");
    // A stream has sent the call; the end names it.
    let payloads = encoded(OPTIONS, events.map(event).into());
    let end = &payloads[payloads.len() - 2];
    assert_eq!(end["delta"]["stop_reason"], "max_tokens");
    assert_eq!(end["delta"]["incomplete_tool_calls"][0]["id"], payloads[4]["content_block"]["id"]);
}

#[test]
fn silence_is_a_ping_and_errors_have_the_shape_of_the_api() {
    let (mut frames, mut out) = (frames(OPTIONS), Vec::new());
    frames.silence(&mut out);
    frames.error(&Error { code: Some("grammar_failed"), ..Error::new(ErrorKind::Internal, "it failed") }, &mut out);
    frames.error(&Error::unavailable("no engine"), &mut out);
    let error = |kind: &str, message: &str| json!({"type": "error", "error": {"type": kind, "message": message}, "request_id": "req-1"});
    let expected =
        vec![json!({"type": "ping"}), error("api_error", "it failed"), error("overloaded_error", "no engine")];
    assert_eq!(payloads(&String::from_utf8(out).unwrap()), expected);
}

/// The content of a stream, in the form of an answer that is not streamed. Ids and signatures become null.
fn joined(payloads: &[Value]) -> Value {
    let mut content: Vec<Value> = Vec::new();
    let (mut open, mut json) = (None, String::new());
    for payload in payloads {
        let index = payload["index"].as_u64();
        match payload["type"].as_str().unwrap() {
            "content_block_start" => {
                assert_eq!((open, index), (None, Some(content.len() as u64)));
                open = index;
                content.push(payload["content_block"].clone());
            }
            "content_block_delta" => {
                assert_eq!(open, index);
                let block = content.last_mut().unwrap();
                for (field, text) in payload["delta"].as_object().unwrap().iter().filter(|(field, _)| *field != "type")
                {
                    match field.as_str() {
                        "partial_json" => json.push_str(text.as_str().unwrap()),
                        field => {
                            block[field] =
                                format!("{}{}", block[field].as_str().unwrap(), text.as_str().unwrap()).into()
                        }
                    }
                }
            }
            "content_block_stop" => {
                assert_eq!(open.take(), index);
                let block = content.last_mut().unwrap();
                if block["type"] == "tool_use" {
                    block["input"] = serde_json::from_str(&std::mem::take(&mut json)).unwrap();
                }
            }
            _ => {}
        }
    }
    assert_eq!(open, None);
    blind(content.into())
}

fn blind(mut content: Value) -> Value {
    for block in content.as_array_mut().unwrap() {
        for field in ["id", "signature"] {
            if let Some(value) = block.get_mut(field) {
                assert!(!value.as_str().unwrap().is_empty());
                value.take();
            }
        }
    }
    content
}

/// Cuts a text into random pieces.
fn pieces(rng: &mut StdRng, whole: &str) -> Vec<String> {
    let mut pieces = vec![String::new()];
    for c in whole.chars() {
        if rng.random_bool(0.4) {
            pieces.push(String::new());
        }
        pieces.last_mut().unwrap().push(c);
    }
    pieces
}

#[test]
fn any_cut_of_any_answer_is_the_whole_answer() {
    let mut rng = StdRng::seed_from_u64(27);
    for _ in 0..5_000 {
        let (mut whole, mut cut, mut calls) = (vec![started()], vec![started()], 0);
        for _ in 0..rng.random_range(0..6) {
            let words = ["a", "é火", "two words\n", "\"quoted\""][rng.random_range(0..4)];
            match rng.random_range(0..3) {
                0 => {
                    whole.extend([reasoning(words), Event::ReasoningEnd(v1::RegionEnd {})]);
                    cut.push(Event::ReasoningStart(v1::RegionStart {}));
                    cut.extend(pieces(&mut rng, words).iter().map(|piece| reasoning(piece)));
                    cut.push(Event::ReasoningEnd(v1::RegionEnd {}));
                }
                1 => {
                    whole.extend([text(words), Event::TextEnd(v1::RegionEnd {})]);
                    cut.push(Event::TextStart(v1::RegionStart {}));
                    cut.extend(pieces(&mut rng, words).iter().map(|piece| text(piece)));
                    cut.push(Event::TextEnd(v1::RegionEnd {}));
                }
                _ => {
                    let input = json!({"x": words, "n": rng.random::<i32>()}).to_string();
                    whole.extend([call(calls), arguments(calls, &input), ended(calls, true)]);
                    cut.push(call(calls));
                    cut.extend(pieces(&mut rng, &input).iter().map(|piece| arguments(calls, piece)));
                    cut.push(ended(calls, true));
                    calls += 1;
                }
            }
        }
        let end = done(v1::FinishReason::Stop, v1::Done::default());
        whole.push(end.clone());
        cut.push(end);
        let options = AnswerOptions { omit_thinking: rng.random_bool(0.2), ..OPTIONS };
        let body = message_body(whole.into_iter().map(event).collect(), options, &seal());
        let body: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(joined(&encoded(options, cut.into_iter().map(event).collect())), blind(body["content"].clone()));
    }
}
