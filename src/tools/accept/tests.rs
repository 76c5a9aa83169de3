use std::path::PathBuf;

use super::*;

#[test]
fn outputs_are_accepted_as_far_as_the_grammar_allows() {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("router/text/src/tokenize/fixtures/kimi");
    let source = AcceptSource::open(rein_grammar::by_name("hermes").unwrap(), &dir).unwrap();
    let tools = json!([{"type": "function", "function": {"name": "f", "parameters": {"type": "object",
        "properties": {"a": {"type": "integer"}}, "required": ["a"]}}}]);
    let ask = |extra: Json| {
        let mut line = json!({"tools": tools});
        line.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        source.answer(&line.to_string())
    };
    let call = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>";
    let answer = ask(json!({"text": call}));
    assert_eq!((&answer["complete"], &answer["error"]), (&json!(true), &Json::Null), "{answer}");
    assert_eq!(answer["accepted"], answer["total"]);
    let answer = ask(json!({"text": call.replace("\"a\"", "\"b\"")}));
    assert_eq!(answer["complete"], false);
    assert!(answer["accepted"].as_u64() < answer["total"].as_u64() && answer["error"].is_string(), "{answer}");
    assert_eq!(ask(json!({"text": call, "tool_choice": "none"}))["complete"], false);
    assert_eq!(ask(json!({"text": "hello", "tool_choice": "required"}))["complete"], false);
    assert_eq!(ask(json!({"text": "hello"}))["complete"], true);
    let schema = json!({"type": "array", "uniqueItems": true});
    let format = json!({"type": "json_schema", "json_schema": {"name": "it", "schema": schema}});
    let answer = ask(json!({"text": "[1]", "tools": [], "response_format": format}));
    assert_eq!((&answer["complete"], &answer["relaxed"]), (&json!(true), &json!(["#/uniqueItems"])), "{answer}");
    assert!(ask(json!({"text": "", "tool_choice": "sometimes"}))["error"].is_string());
    assert!(source.answer("{").get("error").is_some_and(Json::is_string));
    // A limit is named, and not a token that it refuses.
    let schema = json!({"type": "object", "properties": {"a": {"type": "string", "maxLength": 900, "pattern": "^(?:\\S+\\s+){0,89}\\S+$"}}});
    let format = json!({"type": "json_schema", "json_schema": {"name": "it", "schema": schema}});
    let text = json!({"a": "some words and more ".repeat(20).trim()}).to_string();
    let answer = ask(json!({"text": text, "tools": [], "response_format": format}));
    let error = answer["error"].as_str().unwrap_or_default();
    assert!(answer["complete"] == false && !error.contains("is not allowed here"), "{answer}");
    let yes = json!({"text": "yes", "structured_outputs": {"choice": ["yes", "no"]}});
    assert_eq!(ask(yes)["complete"], true);
}

/// Examples are `｜DSML｜` of DeepSeek V4 and the runs of spaces of GPT-NeoX.
#[test]
fn added_tokens_that_are_not_special_are_text() {
    let dir = std::env::temp_dir().join(format!("rein-accept-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let demo = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("models/demo");
    let mut tokenizer = read_json(&demo.join("tokenizer.json")).unwrap();
    let added = tokenizer["added_tokens"].as_array_mut().unwrap();
    let mut template = added[0].clone();
    template["normalized"] = json!(false);
    let first = added.iter().map(|token| token["id"].as_u64().unwrap()).max().unwrap() + 1;
    let texts = ["｜DSML｜", "    ", "<|aside|>", "<|stop|>"];
    for (id, text) in (first..).zip(texts) {
        let mut token = template.clone();
        (token["id"], token["content"], token["special"]) = (id.into(), text.into(), (text == "<|stop|>").into());
        added.push(token);
    }
    std::fs::write(dir.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    std::fs::write(dir.join("tokenizer_config.json"), json!({"eos_token": "<|stop|>"}).to_string()).unwrap();
    let tools = json!([{"type": "function", "function": {"name": "f", "parameters": {"type": "object",
        "properties": {"a": {"type": "string"}}, "required": ["a"]}}}]);
    for (format, call) in [
        (
            "deepseek_v4",
            "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"a\" string=\"true\">x    y<|aside|></｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
        ),
        ("hermes", "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"x    y<|aside|>\"}}\n</tool_call>"),
    ] {
        let source = AcceptSource::open(rein_grammar::by_name(format).unwrap(), &dir).unwrap();
        let ask = |text: &str| source.answer(&json!({"tools": tools, "text": text}).to_string());
        let answer = ask(&format!("A word    <|aside|>.\n\n{call}"));
        assert_eq!(answer["complete"], true, "{format}: {answer}");
        let answer = ask(&call.replace("x  ", "x<|stop|>"));
        assert_eq!(answer["complete"], false, "{format}: {answer}");
    }
    std::fs::remove_dir_all(&dir).unwrap();
}
