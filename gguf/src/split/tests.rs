use super::*;
use crate::tests::{Header, Put};

fn part(no: u16, count: u16) -> Header {
    Header::new().put("split.no", Put::U16(no)).put("split.count", Put::U16(count))
}

#[test]
fn one_file_is_the_model() {
    let path = Path::new("/models/x.gguf");
    assert_eq!(split_files(path, &Header::new().read()).unwrap(), [path]);
    assert_eq!(split_files(path, &part(0, 1).read()).unwrap(), [path]);
}

#[test]
fn the_first_part_names_the_others() {
    let files = split_files(Path::new("/models/x-q4-00001-of-00003.gguf"), &part(0, 3).read()).unwrap();
    let names = ["/models/x-q4-00001-of-00003.gguf", "/models/x-q4-00002-of-00003.gguf"];
    assert_eq!(files[..2], names.map(PathBuf::from));
    assert_eq!(files.len(), 3);
}

#[test]
fn another_part_or_name_is_refused() {
    let error = |path: &str, header: Header| split_files(Path::new(path), &header.read()).unwrap_err().to_string();
    let message = error("x-00002-of-00003.gguf", part(1, 3));
    assert!(message.ends_with("is part 2 of 3; give the first part, x-00001-of-00003.gguf"), "{message}");
    let message = error("renamed.gguf", part(0, 3));
    assert!(message.ends_with("its name must end with -00001-of-00003.gguf, got renamed.gguf"), "{message}");
    assert!(error("x.gguf", part(3, 3)).contains("split.no: must be below split.count, 3, got 3"));
    let text = Header::new().put("split.count", Put::Str("3"));
    assert_eq!(error("x.gguf", text), "split.count: must be a whole number, got a string");
}

#[test]
fn headers_are_joined_in_order() {
    let first = part(0, 2).put("split.tensors.count", Put::I32(2)).tensor("a", &[1]);
    let second = part(1, 2).tensor("b", &[1]);
    let joined = join_headers(vec![first.read(), second.read()]).unwrap();
    assert_eq!(joined.tensors.iter().map(|t| (t.name.as_str(), t.file)).collect::<Vec<_>>(), [("a", 0), ("b", 1)]);
    let error =
        |files: &[&Header]| join_headers(files.iter().map(|header| header.read()).collect()).unwrap_err().to_string();
    assert!(error(&[]).contains("files: must be at least one"));
    assert!(error(&[&first]).contains("split.count: must be the number of files, 1, got 2"));
    assert!(error(&[&first, &first]).contains("file 2 of 2 must have split.no 1 and split.count 2"));
    assert!(error(&[&first, &second.clone().tensor("a", &[1])]).contains("a: the tensor is in two files"));
    assert!(error(&[&first, &second.tensor("c", &[1])]).contains("is 2, but the files have 3 tensors"));
}
