//! The dialect of Anthropic's Messages API: sends OpenAI chat requests to `/messages` and returns OpenAI answers and
//! chunks. It does not know what they mean.

use serde_json::{Map, Value, json};

/// Path of the API below the base URL.
pub const PATH: &str = "/messages";
/// The API needs a limit; chat requests may have none.
const DEFAULT_MAX_TOKENS: u32 = 4096;
/// Fields of a chat that have no counterpart and change nothing.
const WITHOUT_EFFECT: [&str; 3] = ["stream_options", "n", "store"];

/// Translates the body of a chat request. Err: it has something that the API cannot express.
pub fn request(body: &[u8]) -> Result<Vec<u8>, String> {
    let value: Value = serde_json::from_slice(body).map_err(|error| error.to_string())?;
    let Value::Object(mut chat) = value else { return Err("the request is not an object".into()) };
    let mut take = |name: &str| chat.shift_remove(name).filter(|value| !value.is_null());
    let mut out = Map::new();
    let (limit, other_limit) = (take("max_completion_tokens"), take("max_tokens"));
    out.insert("max_tokens".into(), limit.or(other_limit).unwrap_or(DEFAULT_MAX_TOKENS.into()));
    let messages = take("messages").ok_or("the request has no messages")?;
    out.insert("messages".into(), messages.as_array().into_iter().flatten().map(message).collect::<Result<_, _>>()?);
    if let Some(tools) = take("tools") {
        out.insert("tools".into(), tools.as_array().into_iter().flatten().map(tool).collect());
    }
    let (choice, parallel) = (take("tool_choice"), take("parallel_tool_calls"));
    out.extend(tool_choice(choice, parallel)?.map(|choice| ("tool_choice".to_owned(), choice)));
    match take("stop") {
        Some(Value::String(stop)) => drop(out.insert("stop_sequences".into(), json!([stop]))),
        Some(stop) => drop(out.insert("stop_sequences".into(), stop)),
        None => {}
    }
    if let Some(format) = take("response_format") {
        let schema = format.pointer("/json_schema/schema").ok_or("response_format must be a json_schema")?;
        out.insert("output_config".into(), json!({"format": {"type": "json_schema", "schema": schema}}));
    }
    if let Some(user) = take("user") {
        out.insert("metadata".into(), json!({"user_id": user}));
    }
    for name in WITHOUT_EFFECT {
        take(name);
    }
    out.extend(chat);
    Ok(Value::Object(out).to_string().into_bytes())
}

fn message(message: &Value) -> Result<Value, String> {
    let content = message.get("content").cloned().unwrap_or_default();
    match message.get("role").and_then(Value::as_str).unwrap_or_default() {
        "system" | "developer" if message.get("tools").is_some() => Err("a message declares tools".into()),
        "system" | "developer" => Ok(json!({"role": "system", "content": content})),
        "tool" => {
            let result = json!({"type": "tool_result", "tool_use_id": message["tool_call_id"], "content": content});
            Ok(json!({"role": "user", "content": [result]}))
        }
        "assistant" => {
            let mut blocks = match content {
                Value::Array(parts) => parts,
                Value::String(text) if !text.is_empty() => vec![json!({"type": "text", "text": text})],
                _ => Vec::new(),
            };
            for call in message.get("tool_calls").and_then(Value::as_array).into_iter().flatten() {
                let input = match &call["function"]["arguments"] {
                    Value::String(text) => serde_json::from_str(text).map_err(|error| format!("arguments: {error}"))?,
                    other => other.clone(),
                };
                let name = &call["function"]["name"];
                blocks.push(json!({"type": "tool_use", "id": call["id"], "name": name, "input": input}));
            }
            Ok(json!({"role": "assistant", "content": blocks}))
        }
        role => Ok(json!({"role": role, "content": content})),
    }
}

fn tool(tool: &Value) -> Value {
    let function = &tool["function"];
    let mut out = Map::new();
    for (from, to) in [("name", "name"), ("description", "description"), ("strict", "strict")] {
        out.extend(function.get(from).map(|value| (to.to_owned(), value.clone())));
    }
    let schema = function.get("parameters").filter(|schema| !schema.is_null()).cloned();
    out.insert("input_schema".into(), schema.unwrap_or_else(|| json!({"type": "object"})));
    out.into()
}

fn tool_choice(choice: Option<Value>, parallel: Option<Value>) -> Result<Option<Value>, String> {
    let mut out = match choice {
        None if parallel.is_none() => return Ok(None),
        None => json!({"type": "auto"}),
        Some(Value::String(mode)) if mode == "required" => json!({"type": "any"}),
        Some(Value::String(mode)) => json!({"type": mode}),
        Some(named) if named["type"] == "function" => json!({"type": "tool", "name": named["function"]["name"]}),
        Some(other) => return Err(format!("tool_choice {} cannot be expressed", other["type"])),
    };
    if parallel == Some(Value::Bool(false)) {
        out["disable_parallel_tool_use"] = true.into();
    }
    Ok(Some(out))
}

fn finish_reason(message: &Value) -> Option<&'static str> {
    match message.get("stop_reason")?.as_str()? {
        "end_turn" | "stop_sequence" => Some("stop"),
        "tool_use" => Some("tool_calls"),
        "max_tokens" | "model_context_window_exceeded" => Some("length"),
        _ => None,
    }
}

fn usage(value: &Value) -> Value {
    let count = |name: &str| value[name].as_u64().unwrap_or_default();
    let prompt = ["input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"].into_iter().map(count);
    json!({"prompt_tokens": prompt.sum::<u64>(), "completion_tokens": count("output_tokens")})
}

/// Translates an answer that is not streamed. Other JSON is returned as it is.
pub fn answer(body: &[u8]) -> Option<Vec<u8>> {
    let message: Value = serde_json::from_slice(body).ok()?;
    let texts = |kind: &str| -> String {
        let blocks = message["content"].as_array().into_iter().flatten().filter(|block| block["type"] == kind);
        blocks.filter_map(|block| block[kind].as_str()).collect()
    };
    let calls = message["content"].as_array()?.iter().filter(|block| block["type"] == "tool_use").map(|block| {
        let function = json!({"name": block["name"], "arguments": block["input"].to_string()});
        json!({"id": block["id"], "type": "function", "function": function})
    });
    let content = json!({"role": "assistant", "content": texts("text"), "reasoning_content": texts("thinking"),
        "tool_calls": calls.collect::<Vec<_>>()});
    let choice = json!({"index": 0, "message": content, "finish_reason": finish_reason(&message)});
    Some(json!({"choices": [choice], "usage": usage(&message["usage"])}).to_string().into_bytes())
}

/// Translates the events of a stream.
#[derive(Debug, Default)]
pub struct EventTranslator {
    /// Calls that have begun.
    calls: u64,
    pub done: bool,
}

impl EventTranslator {
    /// The chunk that stands for an event. None: chats have no such chunk. Errors and other JSON remain as they are.
    pub fn chunk(&mut self, event: &[u8]) -> Option<Vec<u8>> {
        let Ok(value) = serde_json::from_slice::<Value>(event) else { return Some(event.to_vec()) };
        let of = |delta: Value| json!({"choices": [{"index": 0, "delta": delta, "finish_reason": null}]});
        let call = |index: u64, more: Value| {
            let mut call = json!({"index": index});
            call.as_object_mut()?.extend(more.as_object()?.clone());
            Some(json!({"tool_calls": [call]}))
        };
        let chunk = match value["type"].as_str()? {
            "message_start" => of(json!({"role": "assistant"})),
            "content_block_start" if value["content_block"]["type"] == "tool_use" => {
                let block = &value["content_block"];
                let function = json!({"name": block["name"], "arguments": ""});
                self.calls += 1;
                of(call(self.calls - 1, json!({"id": block["id"], "type": "function", "function": function}))?)
            }
            "content_block_delta" => {
                let delta = &value["delta"];
                match delta["type"].as_str()? {
                    "text_delta" => of(json!({"content": delta["text"]})),
                    "thinking_delta" => of(json!({"reasoning_content": delta["thinking"]})),
                    "input_json_delta" => {
                        let function = json!({"arguments": delta["partial_json"]});
                        of(call(self.calls.checked_sub(1)?, json!({"function": function}))?)
                    }
                    _ => return None,
                }
            }
            "message_delta" => {
                let choice = json!({"index": 0, "delta": {}, "finish_reason": finish_reason(&value["delta"])});
                json!({"choices": [choice], "usage": usage(&value["usage"])})
            }
            "message_stop" => {
                self.done = true;
                return None;
            }
            "error" => value,
            _ => return None,
        };
        Some(chunk.to_string().into_bytes())
    }
}

#[cfg(test)]
mod tests;
