use super::*;

#[test]
fn what_is_no_regular_file_or_too_long_is_refused_at_once() {
    let dir = std::env::temp_dir();
    let path = dir.join(format!("rein-regular-file-{}", std::process::id()));
    assert!(std::process::Command::new("mkfifo").arg(&path).status().expect("mkfifo").success());
    for path in [&path, &dir] {
        assert_eq!(read(path, "a file", 9).expect_err("not a file").to_string(), "not a regular file");
    }
    fs::remove_file(&path).expect("the FIFO");
    fs::write(&path, b"ten \xff byte").expect("a file");
    let long = read(&path, "a file", 9).expect_err("too long");
    assert_eq!((long.kind(), &*long.to_string()), (ErrorKind::FileTooLarge, "a file may have at most 9 bytes, got 10"));
    assert_eq!(read(&path, "a file", 10).expect("within the limit"), b"ten \xff byte");
    assert_eq!(read_text(&path, "a file", 10).expect_err("no text").kind(), ErrorKind::InvalidData);
    fs::remove_file(&path).expect("the file");
}
