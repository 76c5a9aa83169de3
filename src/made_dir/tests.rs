use super::*;

#[test]
fn a_directory_that_was_changed_or_left_half_made_is_made_again() {
    let cache = std::env::temp_dir().join(format!("rein-made-dir-{}", std::process::id()));
    let text = |name: &str, text: &str| (name.to_owned(), text.to_owned());
    let files = MadeDirectory {
        texts: vec![text("config.json", "{}"), text("additional_chat_templates/rag.jinja", "{{ messages }}")],
        links: vec![("model.gguf".into(), PathBuf::from("/models/one.gguf"))],
    };
    let made = files.within(&cache, "one").expect("made");
    let draft = made.with_file_name(format!(".{}", std::process::id()));
    fs::create_dir_all(draft.join("config.json")).expect("left by another process");
    assert_eq!(files.within(&cache, "one").expect("kept"), made);
    fs::write(made.join("config.json"), "{\"a\": 1}").expect("written");
    assert_eq!(files.within(&cache, "one").expect("made again"), made);
    assert_eq!(fs::read_to_string(made.join("config.json")).expect("read"), "{}");
    assert!(files.are_in(&made) && !draft.exists());
    fs::remove_dir_all(cache).expect("removed");
}
