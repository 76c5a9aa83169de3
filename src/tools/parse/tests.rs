use super::*;

fn read(name: &str, line: Json) -> Json {
    let format = rein_grammar::by_name(name).unwrap();
    ParseSource::new(format, None).unwrap().answer(&line.to_string())
}

#[test]
fn chunk_sizes_do_not_change_the_result() {
    let calls = json!([{"name": "f", "arguments": "{\"a\": \"é\"}"}]);
    let line = json!({"reasoning": "Hm.", "content": "Hi.", "tool_calls": calls});
    let text = &render_line(rein_grammar::by_name("hermes").unwrap(), &line.to_string())["text"];
    for chunks in [json!("all"), json!("char"), json!(1), json!(7), Json::Null] {
        let got = read("hermes", json!({"text": text, "chunks": chunks}));
        assert_eq!(got["reasoning"], "Hm.");
        assert_eq!(got["content"], "Hi.");
        assert_eq!(got["tool_calls"], json!([{"id": "call_0", "name": "f", "arguments": "{\"a\": \"é\"}"}]));
        assert_eq!(got["malformed"], json!([]));
    }
}

#[test]
fn a_truncated_call_is_listed_as_incomplete() {
    let got = read(
        "llama_json",
        json!({
            "text": "{\"name\": \"f\", \"parameters\": {\"a\": ",
            "tools": [{"type": "function", "function": {"name": "f"}}],
        }),
    );
    assert_eq!(got["tool_calls"], json!([]));
    let cut = json!([{"id": "call_0", "name": "f", "arguments": "{\"a\": "}]);
    assert_eq!(got["incomplete_tool_calls"], cut);
    let last = got["events"].as_array().and_then(|e| e.last());
    assert_eq!(last, Some(&json!({"type": "tool_call_end", "index": 0, "complete": false})));
}

#[test]
fn errors_name_the_field() {
    for (line, want) in [
        (json!({}), "a line needs text or token_ids"),
        (json!({"text": 1}), "text must be a string"),
        (json!({"token_ids": [1]}), "token_ids need a tokenizer"),
        (json!({"text": "", "tools": [{}]}), "tools[0].function.name is missing"),
        (json!({"text": "", "chunks": 0}), "chunks must be"),
        (json!({"text": "", "in_reasoning": 1}), "in_reasoning must be"),
        (json!([]), "a line must be a JSON object"),
    ] {
        let got = read("plain", line.clone());
        assert!(got["error"].as_str().is_some_and(|e| e.contains(want)), "{line}: {got}");
    }
}
