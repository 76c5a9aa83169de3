//! A model directory for tests, whose tokens are bytes and a few markers. The router's tests use it too.

use std::{
    path::PathBuf,
    sync::atomic::{AtomicU32, Ordering},
};

use serde_json::{Value, json};

/// Context length: tokens of prompt and output.
pub const CONTEXT: u32 = 2048;

const ADDED: [(&str, bool); 10] = [
    ("<|im_end|>", true),
    ("<think>", false),
    ("</think>", false),
    ("<|tool_calls_section_begin|>", false),
    ("<|tool_calls_section_end|>", false),
    ("<|tool_call_begin|>", false),
    ("<|tool_call_argument_begin|>", false),
    ("<|tool_call_end|>", false),
    ("<|control|>", true),
    ("<|extra|>", false),
];

/// The character of each byte in a byte-level vocabulary.
fn byte_chars() -> Vec<char> {
    let printable =
        |byte: u32| (33..=126).contains(&byte) || (161..=172).contains(&byte) || (174..=255).contains(&byte);
    let mut other = 256..;
    (0..256).filter_map(|byte| char::from_u32(if printable(byte) { byte } else { other.next()? })).collect()
}

/// Writes a model directory whose tokens are bytes and a few markers.
pub fn model_dir(template: &str) -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let dir = std::env::temp_dir().join(format!("rein-router-test-{}-{number}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let vocab: serde_json::Map<String, Value> =
        byte_chars().iter().enumerate().map(|(id, c)| (c.to_string(), id.into())).collect();
    let added = |(i, (content, special)): (usize, &(&str, bool))| {
        json!({"id": 256 + i, "content": content, "special": special, "single_word": false, "lstrip": false,
               "rstrip": false, "normalized": false})
    };
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null,
        "added_tokens": ADDED.iter().enumerate().map(added).collect::<Vec<_>>(),
        "pre_tokenizer": byte_level, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                  "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "vocab": vocab, "merges": []},
    });
    for (name, content) in [
        ("tokenizer.json", tokenizer),
        ("tokenizer_config.json", json!({"eos_token": "<|im_end|>", "chat_template": template})),
        ("config.json", json!({"architectures": ["DeepseekV3ForCausalLM"], "max_position_embeddings": CONTEXT})),
        ("generation_config.json", json!({"temperature": 0.5, "top_k": 40})),
    ] {
        std::fs::write(dir.join(name), content.to_string()).unwrap();
    }
    dir
}
