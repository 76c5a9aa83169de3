use std::collections::BTreeMap;

use super::*;
use crate::tests::{Header, Put};

fn files(header: &Header) -> Result<BTreeMap<String, String>, String> {
    hf_files(&header.read(), &RopeFactors::new())
        .map(|files| files.into_iter().collect())
        .map_err(|error| error.to_string())
}

fn json_of(files: &BTreeMap<String, String>, name: &str) -> Value {
    serde_json::from_str(&files[name]).unwrap()
}

#[test]
fn a_model_has_the_files_of_a_directory() {
    let header = Header::dense("llama")
        .put("tokenizer.chat_template", Put::Str("{{ x }}"))
        .put("tokenizer.chat_template.tool_use", Put::Str("{{ y }}"))
        .put("tokenizer.ggml.padding_token_id", Put::U32(0));
    let files = files(&header).unwrap();
    let names: Vec<&str> = files.keys().map(String::as_str).collect();
    assert_eq!(
        names,
        [
            "additional_chat_templates/tool_use.jinja",
            "chat_template.jinja",
            "config.json",
            "generation_config.json",
            "tokenizer.json",
            "tokenizer_config.json",
        ]
    );
    assert_eq!(files["chat_template.jinja"], "{{ x }}");
    let config = json_of(&files, "config.json");
    assert_eq!((&config["bos_token_id"], &config["eos_token_id"]), (&json!(8), &json!(9)));
    // "a" is no token for padding.
    let expected = json!({
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|begin|>", "eos_token": "<|im_end|>",
        "add_bos_token": false, "add_eos_token": false, "clean_up_tokenization_spaces": false,
    });
    assert_eq!(json_of(&files, "tokenizer_config.json"), expected);
    assert_eq!(json_of(&files, "generation_config.json"), json!({"bos_token_id": 8, "eos_token_id": [9]}));
}

#[test]
fn the_same_metadata_makes_the_same_bytes() {
    let header = Header::dense("qwen2");
    assert_eq!(files(&header), files(&header));
}

#[test]
fn a_template_s_name_cannot_leave_the_directory() {
    for name in ["../x", "a/b", "", "a.b"] {
        let key = format!("tokenizer.chat_template.{name}");
        let message = files(&Header::dense("llama").put(&key, Put::Str("x"))).unwrap_err();
        assert!(message.contains("must consist of letters, digits, _ and -"), "{message}");
    }
    let twice = Header::dense("llama")
        .put("tokenizer.chat_template.rag", Put::Str("x"))
        .put("tokenizer.chat_template.RAG", Put::Str("y"));
    assert!(files(&twice).unwrap_err().contains("another template has the same name"));
}

#[test]
fn the_defaults_for_sampling_are_those_of_the_model() {
    let header = Header::dense("llama")
        .put("general.sampling.temp", Put::F32(0.6))
        .put("general.sampling.top_k", Put::I32(20))
        .put("general.sampling.top_p", Put::F32(0.95))
        .put("general.sampling.min_p", Put::F32(0.0))
        .put("general.sampling.penalty_repeat", Put::F32(1.05))
        .put("general.sampling.mirostat", Put::I32(0));
    let made = json_of(&files(&header).unwrap(), "generation_config.json");
    let expected = json!({
        "bos_token_id": 8, "eos_token_id": [9], "temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.0,
        "repetition_penalty": 1.05,
    });
    assert_eq!(made, expected);
    let made = |value: Put| files(&Header::dense("llama").put("general.sampling.top_k", value));
    assert_eq!(json_of(&made(Put::I32(-1)).unwrap(), "generation_config.json")["top_k"], 0);
    assert_eq!(made(Put::Str("x")).unwrap_err(), "general.sampling.top_k: must be a finite number, got a string");
}
