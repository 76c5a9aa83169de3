use serde_json::{Value, json};

use super::*;

#[test]
fn a_chat_becomes_a_request_of_the_responses_api() {
    let call = json!({"id": "c", "type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}});
    let schema = json!({"type": "object"});
    let chat = json!({
        "model": "m", "stream": true, "stream_options": {"include_usage": true}, "max_tokens": 7, "seed": 1,
        "tool_choice": {"type": "function", "function": {"name": "f"}}, "reasoning_effort": "low",
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}},
        "tools": [{"type": "function", "function": {"name": "f", "description": "d", "parameters": schema}}],
        "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": [{"type": "text", "text": "q"}]},
            {"role": "assistant", "content": "t", "reasoning_content": "w", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": "r"}],
    });
    let found: Value = serde_json::from_slice(&request(chat.to_string().as_bytes()).unwrap()).unwrap();
    assert_eq!(
        found,
        json!({
            "store": false, "max_output_tokens": 7, "model": "m", "stream": true, "seed": 1,
            "tool_choice": {"type": "function", "name": "f"}, "reasoning": {"effort": "low"},
            "text": {"format": {"type": "json_schema", "name": "n", "schema": schema}},
            "tools": [{"type": "function", "name": "f", "description": "d", "parameters": schema, "strict": false}],
            "input": [
                {"type": "message", "role": "system", "content": "s"},
                {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "q"}]},
                {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "w"}]},
                {"type": "message", "role": "assistant", "content": "t"},
                {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{\"a\": 1}"},
                {"type": "function_call_output", "call_id": "c", "output": "r"}],
        })
    );
    for (field, value) in [("messages", Value::Null), ("tool_choice", json!({"type": "allowed_tools"}))] {
        let mut broken = chat.clone();
        broken[field] = value;
        assert!(request(broken.to_string().as_bytes()).is_err(), "{field}");
    }
}

#[test]
fn answers_and_events_become_those_of_a_chat() {
    let call = json!({"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", "status": "completed"});
    let response = json!({"status": "completed", "usage": {"input_tokens": 3, "output_tokens": 5}, "output": [
        {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "w"}]},
        {"type": "message", "content": [{"type": "output_text", "text": "a"}]}, call]});
    let found: Value = serde_json::from_slice(&answer(response.to_string().as_bytes()).unwrap()).unwrap();
    let message = &found["choices"][0]["message"];
    assert_eq!((&message["content"], &message["reasoning_content"]), (&json!("a"), &json!("w")));
    assert_eq!(message["tool_calls"][0]["id"], "c");
    assert_eq!(found["choices"][0]["finish_reason"], "tool_calls");
    assert_eq!(found["usage"], json!({"prompt_tokens": 3, "completion_tokens": 5}));
    assert_eq!(answer(b"{\"error\": {}}"), None);

    let mut translator = ResponseTranslator::default();
    let mut chunk = |event: Value| -> Option<Value> {
        translator.chunk(event.to_string().as_bytes()).map(|chunk| serde_json::from_slice(&chunk).unwrap())
    };
    let delta = |chunk: Option<Value>| chunk.unwrap()["choices"][0]["delta"].clone();
    let text = json!({"type": "response.output_text.delta", "output_index": 0, "delta": "a"});
    assert_eq!(delta(chunk(text)), json!({"content": "a"}));
    let added = delta(chunk(json!({"type": "response.output_item.added", "output_index": 2, "item": call})));
    assert_eq!((&added["tool_calls"][0]["index"], &added["tool_calls"][0]["id"]), (&json!(0), &json!("c")));
    let more = json!({"type": "response.function_call_arguments.delta", "output_index": 2, "delta": "{"});
    assert_eq!(delta(chunk(more)), json!({"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]}));
    assert_eq!(chunk(json!({"type": "response.output_item.done"})), None);
    let failed = chunk(json!({"type": "response.failed", "response": {"error": {"message": "no"}}}));
    assert_eq!(failed, Some(json!({"error": {"message": "no"}})));
    let end = chunk(json!({"type": "response.completed", "response": response})).unwrap();
    assert_eq!(end["choices"][0]["finish_reason"], "tool_calls");
    assert!(translator.done);
}
