use super::*;

#[test]
fn the_text_files_of_a_repository_are_known_by_their_paths() {
    let read = ["config.json", "tokenizer.json", "chat_template.jinja", "additional_chat_templates/rag.jinja"];
    for path in read.iter().chain(&["modules.json", "1_Pooling/config.json", "tiktoken.model"]) {
        assert!(is_text(path), "{path}");
    }
    for path in
        ["README.md", "model.safetensors", "onnx/model.onnx", "tokenization_kimi.py", "a/b/config.json", "vocab.json"]
    {
        assert!(!is_text(path), "{path}");
    }
}
