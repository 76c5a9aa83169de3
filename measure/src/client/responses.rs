//! The dialect of OpenAI's Responses API: sends OpenAI chat requests to `/responses` and returns OpenAI answers and
//! chunks. It does not know what they mean.

use serde_json::{Map, Value, json};

/// Path of the API below the base URL.
pub const PATH: &str = "/responses";
/// Fields of a chat that have no counterpart and change nothing.
const WITHOUT_EFFECT: [&str; 3] = ["stream_options", "n", "store"];

/// Translates the body of a chat request. Err: it has something that the API cannot express.
pub fn request(body: &[u8]) -> Result<Vec<u8>, String> {
    let value: Value = serde_json::from_slice(body).map_err(|error| error.to_string())?;
    let Value::Object(mut chat) = value else { return Err("the request is not an object".into()) };
    let mut take = |name: &str| chat.shift_remove(name).filter(|value| !value.is_null());
    let mut out = Map::from_iter([("store".to_owned(), false.into())]);
    let limits = [take("max_completion_tokens"), take("max_tokens")];
    out.extend(limits.into_iter().flatten().next().map(|limit| ("max_output_tokens".to_owned(), limit)));
    let messages = take("messages").ok_or("the request has no messages")?;
    let mut input = Vec::new();
    for message in messages.as_array().into_iter().flatten() {
        add_items(message, &mut input)?;
    }
    out.insert("input".into(), input.into());
    if let Some(tools) = take("tools") {
        out.insert("tools".into(), tools.as_array().into_iter().flatten().map(tool).collect());
    }
    if let Some(choice) = take("tool_choice") {
        out.insert("tool_choice".into(), tool_choice(choice)?);
    }
    if let Some(format) = take("response_format") {
        out.insert("text".into(), json!({"format": text_format(format)}));
    }
    if let Some(effort) = take("reasoning_effort") {
        out.insert("reasoning".into(), json!({"effort": effort}));
    }
    for name in WITHOUT_EFFECT {
        take(name);
    }
    out.extend(chat);
    Ok(Value::Object(out).to_string().into_bytes())
}

/// Adds the items that stand for a message.
fn add_items(message: &Value, items: &mut Vec<Value>) -> Result<(), String> {
    let content = message.get("content").cloned().unwrap_or_default();
    match message.get("role").and_then(Value::as_str).unwrap_or_default() {
        "system" | "developer" if message.get("tools").is_some() => return Err("a message declares tools".into()),
        "tool" => {
            let output = parts(content, "input_text");
            items.push(json!({"type": "function_call_output", "call_id": message["tool_call_id"], "output": output}));
        }
        "assistant" => {
            let reasoning = ["reasoning_content", "reasoning"].into_iter().find_map(|name| message.get(name)?.as_str());
            if let Some(text) = reasoning.filter(|text| !text.is_empty()) {
                let content = json!([{"type": "reasoning_text", "text": text}]);
                items.push(json!({"type": "reasoning", "summary": [], "content": content}));
            }
            if !(content.is_null() || content == "") {
                let content = parts(content, "output_text");
                items.push(json!({"type": "message", "role": "assistant", "content": content}));
            }
            for call in message.get("tool_calls").and_then(Value::as_array).into_iter().flatten() {
                let arguments = match &call["function"]["arguments"] {
                    Value::String(text) => text.clone(),
                    other => other.to_string(),
                };
                let name = &call["function"]["name"];
                let id = &call["id"];
                items.push(json!({"type": "function_call", "call_id": id, "name": name, "arguments": arguments}));
            }
        }
        role => items.push(json!({"type": "message", "role": role, "content": parts(content, "input_text")})),
    }
    Ok(())
}

/// Content with parts of this type.
fn parts(mut content: Value, kind: &str) -> Value {
    for part in content.as_array_mut().into_iter().flatten() {
        if part["type"] == "text" {
            part["type"] = kind.into();
        }
    }
    content
}

fn tool(tool: &Value) -> Value {
    let mut out = tool["function"].as_object().cloned().unwrap_or_default();
    out.insert("type".into(), "function".into());
    // The API's default is true.
    out.entry("strict").or_insert(false.into());
    out.into()
}

fn tool_choice(choice: Value) -> Result<Value, String> {
    match &choice {
        Value::String(_) => Ok(choice),
        named if named["type"] == "function" => Ok(json!({"type": "function", "name": named["function"]["name"]})),
        other => Err(format!("tool_choice {} cannot be expressed", other["type"])),
    }
}

fn text_format(mut format: Value) -> Value {
    let Some(described) = format.get_mut("json_schema").map(Value::take) else { return format };
    let mut out = described.as_object().cloned().unwrap_or_default();
    out.insert("type".into(), format["type"].clone());
    out.into()
}

fn usage(response: &Value) -> Value {
    let usage = &response["usage"];
    json!({"prompt_tokens": usage["input_tokens"], "completion_tokens": usage["output_tokens"]})
}

/// The calls that the client may execute.
fn calls(response: &Value) -> impl Iterator<Item = &Value> {
    let items = response["output"].as_array().into_iter().flatten();
    items.filter(|item| item["type"] == "function_call" && item["status"] != "incomplete")
}

fn finish_reason(response: &Value) -> &'static str {
    match calls(response).next() {
        _ if response["status"] == "incomplete" => "length",
        Some(_) => "tool_calls",
        None => "stop",
    }
}

/// Translates an answer that is not streamed. Other JSON is returned as it is.
pub fn answer(body: &[u8]) -> Option<Vec<u8>> {
    let response: Value = serde_json::from_slice(body).ok()?;
    let items = response["output"].as_array()?;
    let texts = |kind: &str| -> String {
        let parts = items.iter().filter(|item| item["type"] == kind).filter_map(|item| item["content"].as_array());
        parts.flatten().filter_map(|part| part["text"].as_str()).collect()
    };
    let calls = calls(&response).map(|call| {
        let function = json!({"name": call["name"], "arguments": call["arguments"]});
        json!({"id": call["call_id"], "type": "function", "function": function})
    });
    let message = json!({"role": "assistant", "content": texts("message"), "reasoning_content": texts("reasoning"),
        "tool_calls": calls.collect::<Vec<_>>()});
    let choice = json!({"index": 0, "message": message, "finish_reason": finish_reason(&response)});
    Some(json!({"choices": [choice], "usage": usage(&response)}).to_string().into_bytes())
}

/// Translates the events of a stream.
#[derive(Debug, Default)]
pub struct ResponseTranslator {
    /// The items that are calls.
    calls: Vec<u64>,
    pub done: bool,
}

impl ResponseTranslator {
    /// The chunk that stands for an event. None: chats have no such chunk. Other JSON remains as it is.
    pub fn chunk(&mut self, event: &[u8]) -> Option<Vec<u8>> {
        let Ok(value) = serde_json::from_slice::<Value>(event) else { return Some(event.to_vec()) };
        let of = |delta: Value| json!({"choices": [{"index": 0, "delta": delta, "finish_reason": null}]});
        let item = value["output_index"].as_u64().unwrap_or_default();
        let chunk = match value["type"].as_str()? {
            "response.created" => of(json!({"role": "assistant"})),
            "response.output_text.delta" => of(json!({"content": value["delta"]})),
            "response.reasoning_text.delta" => of(json!({"reasoning_content": value["delta"]})),
            "response.output_item.added" if value["item"]["type"] == "function_call" => {
                let call = &value["item"];
                let function = json!({"name": call["name"], "arguments": ""});
                self.calls.push(item);
                let index = self.calls.len() - 1;
                of(json!({"tool_calls": [
                    {"index": index, "id": call["call_id"], "type": "function", "function": function}]}))
            }
            "response.function_call_arguments.delta" => {
                let index = self.calls.iter().position(|call| *call == item)?;
                of(json!({"tool_calls": [{"index": index, "function": {"arguments": value["delta"]}}]}))
            }
            "response.completed" | "response.incomplete" => {
                self.done = true;
                let response = &value["response"];
                let choice = json!({"index": 0, "delta": {}, "finish_reason": finish_reason(response)});
                json!({"choices": [choice], "usage": usage(response)})
            }
            "response.failed" => json!({"error": value["response"]["error"]}),
            "error" => json!({"error": {"message": value["message"]}}),
            _ => return None,
        };
        Some(chunk.to_string().into_bytes())
    }
}

#[cfg(test)]
mod tests;
