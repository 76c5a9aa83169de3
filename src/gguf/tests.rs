use super::*;

#[test]
fn a_model_is_named_after_its_file() {
    let name = |file: &str| stem(Path::new(file));
    assert_eq!(name("/models/Qwen3-0.6B-Q4_K_M.gguf"), "Qwen3-0.6B-Q4_K_M");
    assert_eq!(name("K2-00001-of-00013.gguf"), "K2");
    assert_eq!(name("one-of-many.gguf"), "one-of-many");
}
