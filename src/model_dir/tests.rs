use super::*;

#[test]
fn hub_ids_are_distinguished_from_paths() {
    let id = |text| hub_id(Path::new(text));
    assert_eq!(id("moonshotai/Kimi-K2"), Some(("moonshotai/Kimi-K2", "Kimi-K2")));
    for path in ["model", "./model", "../a/b", "/models/demo", "a/b/c", "a/", "a b/c", "a/.b", ""] {
        assert_eq!(id(path), None, "{path}");
    }
}

#[test]
fn the_error_says_what_is_wrong_with_the_directory() {
    let error = |dir: &str| check(Path::new(dir)).expect_err(dir);
    assert!(error("no-such-organization/no-such-model").contains("hf download no-such-organization/no-such-model "));
    assert_eq!(error("/nonexistent/model"), "--model: /nonexistent/model: no such directory");
    let source = env!("CARGO_MANIFEST_DIR");
    assert!(error(source).ends_with("is not a model directory: config.json is missing"));
    assert!(error(&format!("{source}/Cargo.toml")).ends_with("is a file; expected a model directory"));
    assert_eq!(check(&Path::new(source).join("models/demo")), Ok(()));
}
