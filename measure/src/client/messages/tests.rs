use serde_json::{Value, json};

use super::*;

#[test]
fn a_chat_becomes_a_messages_request() {
    let call = json!({"id": "c", "type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}});
    let schema = json!({"type": "object"});
    let chat = json!({
        "model": "m", "temperature": 0, "stream": true, "stream_options": {"include_usage": true}, "stop": "x",
        "max_completion_tokens": 7, "parallel_tool_calls": false, "tool_choice": "required", "seed": 1,
        "tools": [{"type": "function", "function": {"name": "f", "description": "d", "parameters": schema}},
            {"type": "function", "function": {"name": "g"}}],
        "messages": [{"role": "developer", "content": "s"}, {"role": "user", "content": "q"},
            {"role": "assistant", "content": "t", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": "r"}],
    });
    let found: Value = serde_json::from_slice(&request(chat.to_string().as_bytes()).unwrap()).unwrap();
    assert_eq!(
        found,
        json!({
            "max_tokens": 7, "model": "m", "temperature": 0, "stream": true, "stop_sequences": ["x"], "seed": 1,
            "tool_choice": {"type": "any", "disable_parallel_tool_use": true},
            "tools": [{"name": "f", "description": "d", "input_schema": schema}, {"name": "g", "input_schema": schema}],
            "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "q"},
                {"role": "assistant", "content": [{"type": "text", "text": "t"},
                    {"type": "tool_use", "id": "c", "name": "f", "input": {"a": 1}}]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "r"}]}],
        })
    );
    for (field, value) in [("messages", Value::Null), ("response_format", json!({"type": "json_object"}))] {
        let mut broken = chat.clone();
        broken[field] = value;
        assert!(request(broken.to_string().as_bytes()).is_err(), "{field}");
    }
}

#[test]
fn answers_and_events_become_those_of_a_chat() {
    let usage = json!({"input_tokens": 3, "cache_read_input_tokens": 4, "output_tokens": 5});
    let message = json!({"content": [{"type": "thinking", "thinking": "w", "signature": ""}, {"type": "text", "text": "a"},
        {"type": "tool_use", "id": "t", "name": "f", "input": {"x": 1}}], "stop_reason": "tool_use", "usage": usage});
    let found: Value = serde_json::from_slice(&answer(message.to_string().as_bytes()).unwrap()).unwrap();
    let choice = &found["choices"][0];
    assert_eq!((&choice["finish_reason"], &choice["message"]["content"]), (&json!("tool_calls"), &json!("a")));
    assert_eq!(choice["message"]["tool_calls"][0]["function"], json!({"name": "f", "arguments": "{\"x\":1}"}));
    assert_eq!(found["usage"], json!({"prompt_tokens": 7, "completion_tokens": 5}));

    let mut translator = EventTranslator::default();
    let mut chunk = |event: Value| -> Option<Value> {
        translator.chunk(event.to_string().as_bytes()).map(|chunk| serde_json::from_slice(&chunk).unwrap())
    };
    let delta = |chunk: Option<Value>| chunk.unwrap()["choices"][0]["delta"].clone();
    let text = json!({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "a"}});
    assert_eq!(delta(chunk(text)), json!({"content": "a"}));
    let block = json!({"type": "tool_use", "id": "t", "name": "f", "input": {}});
    let start = delta(chunk(json!({"type": "content_block_start", "index": 1, "content_block": block})));
    assert_eq!((&start["tool_calls"][0]["index"], &start["tool_calls"][0]["id"]), (&json!(0), &json!("t")));
    let partial =
        json!({"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": "{"}});
    assert_eq!(delta(chunk(partial)), json!({"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]}));
    let end = json!({"type": "message_delta", "delta": {"stop_reason": "max_tokens"}, "usage": usage});
    assert_eq!(chunk(end).unwrap()["choices"][0]["finish_reason"], "length");
    assert_eq!(chunk(json!({"type": "ping"})), None);
    let error = json!({"type": "error", "error": {"type": "api_error", "message": "no"}});
    assert_eq!(chunk(error.clone()), Some(error));
    assert_eq!(chunk(json!({"type": "message_stop"})), None);
    assert!(translator.done);
}
