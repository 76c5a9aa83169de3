use super::*;

#[test]
fn the_error_says_what_is_wrong_with_the_directory() {
    let error = |dir: &str| check(Path::new(dir)).expect_err(dir);
    assert_eq!(error("/nonexistent/model"), "--model: /nonexistent/model: no such directory");
    let source = env!("CARGO_MANIFEST_DIR");
    assert!(error(source).ends_with("is not a model directory: config.json is missing"));
    assert!(error(&format!("{source}/Cargo.toml")).ends_with("is a file; expected a model directory or a GGUF file"));
    assert_eq!(check(&Path::new(source).join("models/demo")), Ok(()));
}
