use super::*;

#[test]
fn a_fifo_and_a_directory_are_refused_at_once() {
    let path = std::env::temp_dir().join(format!("rein-fifo-{}", std::process::id()));
    assert!(std::process::Command::new("mkfifo").arg(&path).status().expect("mkfifo").success());
    for path in [path.as_path(), std::env::temp_dir().as_path()] {
        assert_eq!(read(path).expect_err("not a file").to_string(), "not a regular file");
    }
    let error = crate::tools::formats::named(&path.to_string_lossy()).expect_err("not a file");
    assert!(error.contains("not a regular file"), "{error}");
    fs::remove_file(&path).expect("the FIFO");
}
