//! What an answer must be, in each dialect: complete, in its shape, and no error of the server.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{
    dialects::{COUNT_TOKENS, EMBEDDINGS, INPUT_TOKENS, MESSAGES, RESPONSES},
    requests::Case,
};
use crate::it::process::Response;

fn has_error_body(path: &str, answer: &Value) -> bool {
    let error = &answer["error"];
    let shape = !path.starts_with(MESSAGES) || answer["type"] == "error";
    shape && error["message"].as_str().is_some_and(|message| !message.is_empty()) && error["type"].is_string()
}

/// The JSON of the events of a stream, without the last `[DONE]`.
fn payloads(body: &str) -> Result<Vec<Value>, String> {
    let lines = body.lines().filter_map(|line| line.strip_prefix("data: ")).filter(|line| *line != "[DONE]");
    lines.map(|line| serde_json::from_str(line).map_err(|error| format!("{line}: {error}"))).collect()
}

fn server_error(error: &Value) -> bool {
    let is = |name: &str, text: &str| error[name] == text;
    is("type", "server_error") || is("type", "api_error") || is("code", "internal_error") || is("code", "server_error")
}

/// Each choice ends once, and an error is the client's fault.
fn check_chunks(body: &str, payloads: &[Value]) -> Result<(), String> {
    if let Some(last) = payloads.iter().find(|payload| payload.get("error").is_some()) {
        let error = &last["error"];
        if !has_error_body("", last) || server_error(error) {
            return Err(format!("a server error in the stream: {error}"));
        }
        return Ok(());
    }
    if !body.trim_end().ends_with("data: [DONE]") {
        return Err(format!("the stream ends with {:?}", payloads.last()));
    }
    let mut ends = BTreeMap::<u64, usize>::new();
    for choice in payloads.iter().filter_map(|payload| payload["choices"].as_array()).flatten() {
        let ended = ends.entry(choice["index"].as_u64().ok_or("a choice without an index")?).or_default();
        *ended += usize::from(!choice["finish_reason"].is_null());
    }
    match ends.iter().find(|(_, ended)| **ended != 1) {
        Some((index, ended)) => Err(format!("choice {index} ends {ended} times")),
        None => Ok(()),
    }
}

/// Blocks start and stop in order, and the message ends once.
fn check_message_events(payloads: &[Value]) -> Result<(), String> {
    let (mut open, mut blocks, mut ends) = (None, 0u64, 0);
    for (number, event) in payloads.iter().enumerate() {
        let index = event["index"].as_u64();
        match event["type"].as_str().unwrap_or_default() {
            "message_start" if number == 0 => {}
            "content_block_start" if open.is_none() && index == Some(blocks) => open = index,
            "content_block_delta" if open.is_some() && index == open => {}
            "content_block_stop" if open.is_some() && index == open => (open, blocks) = (None, blocks + 1),
            "message_delta" if open.is_none() && event["delta"]["stop_reason"].is_string() => ends += 1,
            "message_stop" if ends == 1 && number + 1 == payloads.len() => return Ok(()),
            "ping" => {}
            "error" if number + 1 == payloads.len() && has_error_body(MESSAGES, event) => {
                return if server_error(&event["error"]) { Err(format!("a server error: {event}")) } else { Ok(()) };
            }
            _ => return Err(format!("event {number} is {event}, with {open:?} open after {blocks} blocks")),
        }
    }
    Err(format!("the stream ends with {:?}", payloads.last()))
}

/// Numbers have no gap, and the response ends once.
fn check_response_events(payloads: &[Value]) -> Result<(), String> {
    if let Some(event) = payloads.iter().zip(0u64..).find(|(event, number)| event["sequence_number"] != *number) {
        return Err(format!("event {} has another number: {}", event.1, event.0));
    }
    let last = payloads.last().ok_or("a stream without an event")?;
    match last["type"].as_str().unwrap_or_default() {
        "response.completed" | "response.incomplete" => Ok(()),
        "response.failed" if !server_error(&last["response"]["error"]) => Ok(()),
        "error" if !server_error(last) => Ok(()),
        _ => Err(format!("the stream ends with {last}")),
    }
}

fn check_whole(path: &str, body: &Value) -> Result<(), String> {
    let fine = match path {
        MESSAGES => body["type"] == "message" && body["stop_reason"].is_string(),
        COUNT_TOKENS | INPUT_TOKENS => body["input_tokens"].is_u64(),
        RESPONSES => {
            body["object"] == "response" && ["completed", "incomplete"].iter().any(|end| body["status"] == *end)
        }
        EMBEDDINGS => {
            let of_length_1 = |vector: &[Value]| {
                let length: f64 = vector.iter().map(|x| x.as_f64().unwrap_or(f64::NAN).powi(2)).sum();
                (length - 1.0).abs() < 1e-5
            };
            let data = body["data"].as_array().map(Vec::as_slice).unwrap_or_default();
            let vector = |item: &Value| match &item["embedding"] {
                Value::Array(numbers) => of_length_1(numbers),
                embedding => embedding.as_str().is_some_and(|text| !text.is_empty()),
            };
            !data.is_empty() && data.iter().zip(0u64..).all(|(item, index)| item["index"] == index && vector(item))
        }
        _ => body["choices"].as_array().is_none_or(|all| all.iter().all(|choice| choice["finish_reason"].is_string())),
    };
    if fine { Ok(()) } else { Err(format!("{path}: an answer without its end: {body:.500}")) }
}

pub fn check(case: &Case, answer: &Response) -> Result<(), String> {
    if answer.status >= 500 {
        return Err(format!("status {}", answer.status));
    }
    if answer.status == 200 && answer.head.to_lowercase().contains("text/event-stream") {
        let payloads = payloads(&answer.body)?;
        return match case.path {
            MESSAGES => check_message_events(&payloads),
            RESPONSES => check_response_events(&payloads),
            _ => check_chunks(&answer.body, &payloads),
        };
    }
    let body: Value = serde_json::from_str(&answer.body).map_err(|error| error.to_string())?;
    if answer.status < 400 {
        return check_whole(case.path, &body);
    }
    if has_error_body(case.path, &body) { Ok(()) } else { Err("an error in another shape".into()) }
}
