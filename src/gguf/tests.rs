use super::*;

#[test]
fn a_model_is_named_after_its_file() {
    let name = |file: &str| stem(Path::new(file));
    assert_eq!(name("/models/Qwen3-0.6B-Q4_K_M.gguf"), "Qwen3-0.6B-Q4_K_M");
    assert_eq!(name("K2-00001-of-00013.gguf"), "K2");
    assert_eq!(name("one-of-many.gguf"), "one-of-many");
}

#[test]
fn the_configs_of_the_fixtures_are_what_is_written() {
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/models");
    let dirs = fs::read_dir(models).unwrap().map(|entry| entry.unwrap().path());
    let dirs = dirs.filter(|dir| dir.file_name().unwrap().to_string_lossy().starts_with("gguf_"));
    let firsts = dirs.map(|dir| {
        let names = ["model.gguf", "model-00001-of-00002.gguf"].map(|name| dir.join(name));
        names.into_iter().find(|path| path.exists()).unwrap()
    });
    for first in firsts {
        let paths = split_files(&first, &header(&first).unwrap()).unwrap();
        let gguf = join_headers(paths.iter().map(|path| header(path).unwrap()).collect()).unwrap();
        let files = hf_files(&gguf, &rope_factors(&gguf, &paths).unwrap()).unwrap();
        let made = &files.iter().find(|(name, _)| name == "config.json").unwrap().1;
        let stored = fs::read_to_string(first.with_file_name("config.json")).unwrap();
        let json = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
        assert_eq!(json(made), json(&stored), "{}", first.display());
    }
}
