//! The events of a stream in order, cut and failed answers.

use std::sync::Arc;

use rein_proto::v1::{self, chat_event::Event};
use serde_json::{Map, Value, json};

use super::super::{ResponseBuilder, ResponseParameters};
use crate::error::{Error, ErrorKind};

fn builder() -> ResponseBuilder {
    ResponseBuilder::new(ResponseParameters {
        id: "resp_1".into(),
        created: 7,
        model: "m".into(),
        stored: false,
        echo: Map::new(),
        tools: Arc::default(),
        hide_reasoning: false,
        token_ids: false,
        seal: None,
    })
}

fn event(event: Event) -> v1::ChatEvent {
    v1::ChatEvent { event: Some(event), ..v1::ChatEvent::default() }
}

fn text(text: &str) -> v1::ChatEvent {
    event(Event::TextDelta(v1::Delta { text: text.into() }))
}

fn done(reason: v1::FinishReason, incomplete: Vec<v1::ToolCall>) -> [v1::ChatEvent; 2] {
    let done = v1::Done { finish_reason: reason.into(), incomplete_tool_calls: incomplete, ..v1::Done::default() };
    [event(Event::Done(done)), event(Event::Usage(v1::UsageEvent { usage: Some(v1::Usage::default()) }))]
}

/// The frames of these events, and the object.
fn frames(events: impl IntoIterator<Item = v1::ChatEvent>, error: Option<Error>) -> (Vec<Value>, Value) {
    let (mut builder, mut frames) = (builder(), Vec::new());
    let mut write = |frame: &super::super::ResponseFrame<'_>| frames.push(serde_json::to_value(frame).unwrap());
    for event in events {
        builder.event(event, &mut write);
    }
    if let Some(error) = error {
        builder.fail(&error, &mut write);
    }
    assert!(builder.is_final());
    for (number, frame) in frames.iter().enumerate() {
        assert_eq!(frame["sequence_number"], number);
    }
    (frames, serde_json::from_slice(&builder.object()).unwrap())
}

fn kinds(frames: &[Value]) -> Vec<&str> {
    let kind = |frame: &Value| frame["type"].as_str().unwrap().len();
    frames.iter().map(|frame| &frame["type"].as_str().unwrap()["response.".len().min(kind(frame))..]).collect()
}

#[test]
fn a_text_has_its_events_in_order() {
    let ended = [text("a"), text("b"), event(Event::TextEnd(v1::RegionEnd {}))];
    let (frames, object) = frames(ended.into_iter().chain(done(v1::FinishReason::Stop, Vec::new())), None);
    assert_eq!(
        kinds(&frames),
        [
            "created",
            "in_progress",
            "output_item.added",
            "content_part.added",
            "output_text.delta",
            "output_text.delta",
            "output_text.done",
            "content_part.done",
            "output_item.done",
            "completed"
        ]
    );
    assert_eq!(frames[9]["response"], object);
    assert_eq!(
        object["output"],
        json!([{"id": "msg_1_0", "type": "message", "role": "assistant", "status": "completed",
            "content": [{"type": "output_text", "text": "ab", "annotations": [], "logprobs": []}]}])
    );
    assert_eq!(frames[8]["item"], object["output"][0]);
}

#[test]
fn a_text_that_the_length_limit_cuts_is_incomplete() {
    let events = [text("a"), event(Event::TextEnd(v1::RegionEnd {}))];
    let (frames, object) = frames(events.into_iter().chain(done(v1::FinishReason::Length, Vec::new())), None);
    assert_eq!((&object["status"], &object["output"][0]["status"]), (&json!("incomplete"), &json!("incomplete")));
    assert_eq!(object["incomplete_details"], json!({"reason": "max_output_tokens"}));
    assert_eq!(frames.last().unwrap()["type"], "response.incomplete");
}

#[test]
fn calls_that_were_cut_before_an_event_are_items_and_unnamed_ones_a_field() {
    let call = |name: &str, arguments: &str| v1::ToolCall {
        id: format!("id-{name}"),
        name: name.into(),
        arguments: arguments.into(),
    };
    let cut = vec![call("f", "{\"a\""), call("", "rest")];
    let (frames, object) = frames(done(v1::FinishReason::Length, cut), None);
    assert_eq!(
        object["output"],
        json!([{"id": "fc_1_0", "type": "function_call", "call_id": "id-f", "name": "f", "arguments": "{\"a\"",
            "status": "incomplete"}])
    );
    assert_eq!(object["incomplete_tool_calls"], json!([{"arguments": "rest"}]));
    assert_eq!(
        kinds(&frames)[2..],
        [
            "output_item.added",
            "function_call_arguments.delta",
            "function_call_arguments.done",
            "output_item.done",
            "incomplete"
        ]
    );
}

#[test]
fn a_failure_ends_the_open_item_and_the_response() {
    for (kind, code) in [
        (ErrorKind::Full, "rate_limit_exceeded"),
        (ErrorKind::Unavailable, "server_error"),
        (ErrorKind::Deadline, "server_error"),
        (ErrorKind::Internal, "server_error"),
    ] {
        let (frames, object) = frames([text("a")], Some(Error::new(kind, "it broke")));
        assert_eq!(kinds(&frames)[5..], ["output_text.done", "content_part.done", "output_item.done", "", "failed"]);
        assert_eq!(frames[8]["type"], "error");
        assert_eq!(object["error"], json!({"code": code, "message": "it broke"}));
        assert_eq!((&object["status"], &object["output"][0]["status"]), (&json!("failed"), &json!("incomplete")));
    }
    let (frames, _) = frames([], Some(Error::deadline()));
    assert_eq!(kinds(&frames), ["created", "in_progress", "", "failed"]);
}
