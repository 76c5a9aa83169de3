use std::path::PathBuf;

use super::*;
use crate::tools::lines::MAX_LINE_BYTES;

fn answers(source: &RenderSource, input: &[u8]) -> Vec<Json> {
    let mut output = Vec::new();
    answer_lines(input, &mut output, |line| source.answer(line)).unwrap();
    let text = String::from_utf8(output).unwrap();
    text.split_terminator('\n').map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn fixtures() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("router/text/src/tokenize/fixtures")
}

#[test]
fn every_line_gets_an_answer() {
    let template = std::env::temp_dir().join(format!("rein-render-{}.jinja", std::process::id()));
    std::fs::write(
        &template,
        "{% for m in messages %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}>{% endif %}",
    )
    .unwrap();
    let overrides = ModelOverrides {
        template: Some(template.clone()),
        tokenizer: Some(fixtures().join("kimi")),
        ..ModelOverrides::default()
    };
    let source = RenderSource::parts(&overrides).unwrap();
    let input = b"{\"messages\": [{\"role\": \"user\", \"content\": \"a\\u2028\"}]}\n\nnot json\n\xff\n[]\n{}\n\
            {\"messages\": []}\n{\"text\": \"ab\"}\n{\"token_ids\": [65, 66]}\n{\"ids\": [100000]}\n{\"text\": 5}\n\
            {\"messages\": [{\"role\": \"user\", \"content\": \"b\"}], \"add_generation_prompt\": false}";
    let mut answers = answers(&source, input);
    assert!(answers.remove(1)["error"].as_str().unwrap().starts_with("not JSON"), "an empty line has an answer too");
    assert_eq!(answers[0]["prompt"], "a\u{2028}>");
    assert_eq!(answers[0]["token_ids"].as_array().unwrap().len(), 5);
    let error = |i: usize| answers[i]["error"].as_str().unwrap();
    assert!(error(1).starts_with("not JSON"));
    assert!(error(2).contains("not UTF-8"));
    assert_eq!(error(3), "a line must be a JSON object");
    assert_eq!(error(4), "a line needs messages, text or token_ids");
    assert!(error(5).contains("messages must have at least one message"));
    assert!(answers[6]["token_ids"].is_array());
    assert_eq!(answers[7]["text"], "AB");
    assert!(error(8).contains("100000 is not a token id"));
    assert_eq!(error(9), "text must be a string");
    assert_eq!(answers[10]["prompt"], "b");
    assert_eq!(answers.len(), 11);

    let source =
        RenderSource::parts(&ModelOverrides { template: Some(template.clone()), ..ModelOverrides::default() }).unwrap();
    let first = source.answer(r#"{"messages": [{"role": "user", "content": "x"}]}"#);
    assert_eq!(first, json!({"prompt": "x>"}));
    assert!(source.answer(r#"{"text": "x"}"#)["error"].as_str().unwrap().contains("no tokenizer"));
    std::fs::remove_file(template).unwrap();
    let source = RenderSource::model(&fixtures().join("byte_level"), &ModelOverrides::default()).unwrap();
    let refused = source.answer(r#"{"messages": [{"role": "user", "content": "x"}]}"#);
    assert!(refused["error"].as_str().unwrap().contains("no chat template"));
}

#[test]
fn an_overlong_line_is_skipped() {
    let source = RenderSource::parts(&ModelOverrides::default()).unwrap();
    let mut input = vec![b'x'; MAX_LINE_BYTES + 10];
    input.extend_from_slice(b"\n[]\n");
    let answers = answers(&source, &input);
    assert!(answers[0]["error"].as_str().unwrap().contains("longer than the limit"));
    assert_eq!(answers[1]["error"], "a line must be a JSON object");
    assert_eq!(answers.len(), 2);
}

/// As the endpoints do it, unless the line is raw.
#[test]
fn ids_of_past_calls_are_renamed() {
    let path = std::env::temp_dir().join(format!("rein-render-ids-{}.jinja", std::process::id()));
    let template = "{# <|tool_calls_section_begin|> #}{% for m in messages %}{{ m.role }}{% for t in m.tool_calls %} {{ t.id }}{% endfor %} {{ m.tool_call_id }};{% endfor %}";
    std::fs::write(&path, template).unwrap();
    let overrides = ModelOverrides {
        template: Some(path.clone()),
        tokenizer: Some(fixtures().join("kimi")),
        ..ModelOverrides::default()
    };
    let source = RenderSource::parts(&overrides).unwrap();
    std::fs::remove_file(path).unwrap();
    let call = json!({"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}});
    let messages = json!([{"role": "user", "content": "q"}, {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "r"}]);
    for (raw, id) in [(false, "functions.f:0"), (true, "call_1")] {
        let line = json!({"messages": messages, "raw": raw, "add_generation_prompt": false});
        assert_eq!(source.answer(&line.to_string())["prompt"], format!("user ;assistant {id} ;tool {id};"));
    }
}
