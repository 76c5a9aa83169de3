use std::path::Path;

use super::*;

fn stored(text: &str) -> StoredResponse {
    StoredResponse { response: text.as_bytes().into(), input: b"[]".as_slice().into() }
}

fn id(number: usize) -> String {
    format!("resp_{number:032}")
}

struct TemporaryDirectory(PathBuf);

impl TemporaryDirectory {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("rein-responses-{name}-{}", std::process::id()));
        drop(std::fs::remove_dir_all(&path));
        TemporaryDirectory(path)
    }
}

impl Drop for TemporaryDirectory {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

/// What a healthy store answers.
fn found(answer: Result<Option<StoredResponse>, UnreadResponse>) -> Option<StoredResponse> {
    answer.expect("a store that can be read")
}

fn stores(directory: &Path, limits: ResponseLimits) -> [ResponseStore; 2] {
    [ResponsesStoreMode::Memory, ResponsesStoreMode::Directory(directory.into())]
        .map(|mode| ResponseStore::new(&mode, limits))
}

#[tokio::test]
async fn a_response_is_found_under_its_id_and_key_until_it_is_deleted() {
    let directory = TemporaryDirectory::new("keys");
    for store in stores(&directory.0, ResponseLimits::default()) {
        let (mine, other) = (Some(Arc::from("team")), Some(Arc::from("other")));
        store.put(&mine, &id(1), stored("one"));
        assert_eq!(found(store.get(&mine, &id(1)).await), Some(stored("one")));
        assert_eq!(found(store.get(&other, &id(1)).await), None);
        assert_eq!(found(store.get(&None, &id(1)).await), None);
        assert!(!store.delete(&other, &id(1)).await.unwrap());
        assert!(store.delete(&mine, &id(1)).await.unwrap());
        assert!(!store.delete(&mine, &id(1)).await.unwrap());
        assert_eq!(found(store.get(&mine, &id(1)).await), None);
    }
}

#[test]
fn a_place_that_cannot_be_written_is_found_before_any_response() {
    let directory = TemporaryDirectory::new("check");
    let mode = |path: PathBuf| ResponsesStoreMode::Directory(path);
    mode(directory.0.join("made/below")).check().unwrap();
    let file = directory.0.join("file");
    std::fs::write(&file, []).unwrap();
    assert!(mode(file.clone()).check().is_err() && mode(file.join("below")).check().is_err());
    assert_eq!(std::fs::read_dir(directory.0.join("made/below")).unwrap().count(), 0);
    assert!("".parse::<ResponsesStoreMode>().is_err());
}

#[tokio::test]
async fn a_store_that_is_off_keeps_nothing() {
    let store = ResponseStore::new(&ResponsesStoreMode::Off, ResponseLimits::default());
    store.put(&None, &id(1), stored("one"));
    assert!(
        !store.is_on()
            && found(store.get(&None, &id(1)).await).is_none()
            && !store.delete(&None, &id(1)).await.unwrap()
    );
}

#[tokio::test]
async fn the_oldest_are_dropped_beyond_count_and_bytes() {
    let text = "x".repeat(98);
    for limits in [
        ResponseLimits { count: 3, ..ResponseLimits::default() },
        ResponseLimits { bytes: 399, ..ResponseLimits::default() },
        ResponseLimits { count_per_key: 3, ..ResponseLimits::default() },
        ResponseLimits { bytes_per_key: 399, ..ResponseLimits::default() },
    ] {
        let directory = TemporaryDirectory::new(&format!("bounds{}-{}", limits.count, limits.count_per_key));
        for store in stores(&directory.0, limits) {
            for number in 0..10 {
                store.put(&None, &id(number), stored(&text));
                settle(&store).await;
            }
            let mut all = Vec::new();
            for number in 0..10 {
                all.extend(found(store.get(&None, &id(number)).await).map(|_| number));
            }
            assert_eq!(all, [7, 8, 9]);
        }
    }
}

#[test]
fn old_responses_are_dropped() {
    let mut kept = Kept::new(ResponseLimits { age: Duration::from_secs(60), ..ResponseLimits::default() });
    let now = SystemTime::now();
    kept.put((None, id(1)), stored("one"), now);
    assert!(kept.get(&(None, id(1)), now + Duration::from_secs(60)).is_some());
    assert!(kept.get(&(None, id(1)), now + Duration::from_secs(61)).is_none());
    assert_eq!((kept.shares.bytes(), kept.shares.len(), kept.responses.len()), (0, 0, 0));
}

#[test]
fn deleted_and_replaced_responses_do_not_count() {
    let mut kept = Kept::new(ResponseLimits { count: 4, ..ResponseLimits::default() });
    for number in 0..100 {
        kept.put((None, id(number)), stored("one"), SystemTime::now());
        assert!(kept.remove(&(None, id(number))));
    }
    assert_eq!((kept.shares.bytes(), kept.shares.len()), (0, 0));
    for text in ["a", "bb"] {
        kept.put((None, id(7)), stored(text), SystemTime::now());
    }
    assert_eq!((kept.shares.bytes(), kept.get(&(None, id(7)), SystemTime::now())), (4, Some(stored("bb"))));
}

/// A key that stores without end takes the place of its own responses, by count and by bytes, also when all keys
/// together are at their bounds.
#[tokio::test]
async fn a_key_cannot_drop_the_responses_of_another() {
    let key = |name: &str| -> CallerName { Some(Arc::from(name)) };
    let text = "x".repeat(98);
    for (which, limits) in [
        ResponseLimits { count_per_key: 5, ..ResponseLimits::default() },
        ResponseLimits { bytes_per_key: 550, ..ResponseLimits::default() },
        ResponseLimits { count: 8, ..ResponseLimits::default() },
        ResponseLimits { bytes: 850, ..ResponseLimits::default() },
    ]
    .into_iter()
    .enumerate()
    {
        let directory = TemporaryDirectory::new(&format!("fair{which}"));
        for store in stores(&directory.0, limits) {
            let put = async |caller: &CallerName, number| {
                store.put(caller, &id(number), stored(&text));
                settle(&store).await;
            };
            for number in 0..3 {
                put(&key("quiet"), number).await;
            }
            for number in 0..30 {
                put(&key("loud"), number).await;
            }
            for number in 0..3 {
                assert!(found(store.get(&key("quiet"), &id(number)).await).is_some(), "bounds {which}: {number}");
            }
            let mut loud = Vec::new();
            for number in 0..30 {
                loud.extend(found(store.get(&key("loud"), &id(number)).await).map(|_| number));
            }
            assert_eq!(loud, [25, 26, 27, 28, 29], "bounds {which}");
        }
    }
}

/// Waits until no response waits for its file, and for the clock of the files.
async fn settle(store: &ResponseStore) {
    while let Backend::Directory(directory) = &store.backend
        && !directory.is_settled()
    {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    tokio::time::sleep(Duration::from_millis(2)).await;
}

#[tokio::test]
async fn files_outlive_the_process_and_ids_cannot_name_other_files() {
    let directory = TemporaryDirectory::new("files");
    let mode = ResponsesStoreMode::Directory(directory.0.clone());
    let store = ResponseStore::new(&mode, ResponseLimits::default());
    store.put(&None, &id(1), stored("one"));
    while std::fs::read_dir(&directory.0).map_or(0, Iterator::count) == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    tokio::time::sleep(Duration::from_millis(20)).await;
    let again = ResponseStore::new(&mode, ResponseLimits::default());
    assert_eq!(found(again.get(&None, &id(1)).await), Some(stored("one")));
    for name in ["../secret", "a/b", "", "a.b", &"a".repeat(65)] {
        assert_eq!(found(store.get(&None, name).await), None);
        assert!(!store.delete(&None, name).await.unwrap());
    }
}

/// A store of files in this directory, with one response in it, and its file.
async fn with_file(directory: &Path) -> (ResponseStore, PathBuf) {
    let mode = ResponsesStoreMode::Directory(directory.to_path_buf());
    let store = ResponseStore::new(&mode, ResponseLimits::default());
    let response = format!("{{\"id\": \"{}\"}}", id(1));
    store.put(&None, &id(1), stored(&response));
    settle(&store).await;
    let file = std::fs::read_dir(directory).unwrap().next().unwrap().unwrap().path();
    (store, file)
}

/// What was not written so is no answer: cut, zeros after a loss of power, half of it, another response's, a byte.
#[tokio::test]
async fn a_damaged_file_is_an_error_and_not_an_answer() {
    let directory = TemporaryDirectory::new("damaged");
    let (store, file) = with_file(&directory.0).await;
    let whole = std::fs::read(&file).unwrap();
    let other = file.with_file_name(format!("none.{}.response", id(2)));
    std::fs::write(&other, &whole).unwrap();
    assert!(matches!(store.get(&None, &id(2)).await, Err(UnreadResponse::Damaged(_))), "another response's");
    let mut flipped = whole.clone();
    *flipped.last_mut().unwrap() ^= 1;
    let old = |id: &str, input: &[u8]| [format!("{{\"id\": \"{id}\"}}").as_bytes(), &[0], input].concat();
    for (what, bytes) in [
        ("empty", Vec::new()),
        ("zeros", vec![0; whole.len()]),
        ("half", whole[..whole.len() / 2].to_vec()),
        ("all but one byte", whole[..whole.len() - 1].to_vec()),
        ("a byte more", [&whole[..], b" "].concat()),
        ("a changed byte", flipped),
        ("only JSON", b"{\"id\": \"x\"}".to_vec()),
        ("an old file, cut", old(&id(1), b"[")),
        ("an old file of another response", old(&id(2), b"[]")),
    ] {
        std::fs::write(&file, bytes).unwrap();
        let answer = store.get(&None, &id(1)).await;
        assert!(matches!(answer, Err(UnreadResponse::Damaged(_))), "{what}: {answer:?}");
        let error = Error::from(answer.unwrap_err());
        assert_eq!((error.kind, error.message.as_str()), (ErrorKind::Internal, "a kept response could not be read"));
    }
    // Files of earlier versions have no checksum.
    std::fs::write(&file, old(&id(1), b"[1]")).unwrap();
    assert_eq!(&*found(store.get(&None, &id(1)).await).unwrap().input, b"[1]");
    std::fs::write(&file, whole).unwrap();
    assert!(found(store.get(&None, &id(1)).await).is_some());
    assert!(store.delete(&None, &id(1)).await.unwrap());
    assert_eq!(found(store.get(&None, &id(1)).await), None);
}

#[tokio::test]
async fn only_the_server_reads_the_files() {
    use std::os::unix::fs::PermissionsExt;
    let directory = TemporaryDirectory::new("private");
    let (_, file) = with_file(&directory.0.join("made/below")).await;
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&file), mode(file.parent().unwrap()), mode(&directory.0)), (0o600, 0o700, 0o700));
}

/// A place that cannot be written (a file where the directory was) leaves no parts, is counted, and ends the promise to
/// keep responses until one could be written.
#[tokio::test]
async fn what_cannot_be_written_is_counted_and_not_promised() {
    let directory = TemporaryDirectory::new("full");
    std::fs::create_dir_all(&directory.0).unwrap();
    let place = directory.0.join("place");
    let store = ResponseStore::new(&ResponsesStoreMode::Directory(place.clone()), ResponseLimits::default());
    std::fs::write(&place, []).unwrap();
    assert!(store.keeps());
    store.put(&None, &id(1), stored("{}"));
    settle(&store).await;
    assert!(!store.keeps() && store.lost.get() == 1);
    std::fs::remove_file(&place).unwrap();
    store.put(&None, &id(2), stored("{}"));
    settle(&store).await;
    assert!(store.keeps() && found(store.get(&None, &id(2)).await).is_some());
    // The name is taken: the part is removed.
    std::fs::create_dir(place.join(format!("none.{}.response", id(3)))).unwrap();
    store.put(&None, &id(3), stored("{}"));
    settle(&store).await;
    let parts = std::fs::read_dir(&place)
        .unwrap()
        .filter(|entry| entry.as_ref().unwrap().path().extension().is_some_and(|extension| extension == "part"));
    assert_eq!((parts.count(), store.lost.get(), store.keeps()), (0, 2, false));
}

/// A directory that hangs (a FIFO in the place of a file) holds its own threads and no other, and is given up.
#[tokio::test]
async fn a_directory_that_hangs_is_given_up() {
    let directory = TemporaryDirectory::new("hangs");
    let (_, file) = with_file(&directory.0).await;
    let limits = ResponseLimits { wait: Duration::from_millis(50), ..ResponseLimits::default() };
    let store = ResponseStore::new(&ResponsesStoreMode::Directory(directory.0.clone()), limits);
    std::fs::remove_file(&file).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(&file).status().unwrap().success());
    let hung: Vec<_> = (0..crate::limits::STORE_READERS + 4)
        .map(|_| {
            let store = store.clone();
            tokio::spawn(async move { store.get(&None, &id(1)).await })
        })
        .collect();
    for get in hung {
        assert!(matches!(get.await.unwrap(), Err(UnreadResponse::Hangs)));
    }
    // Who writes ends the wait of the threads, for which the runtime would wait.
    std::fs::write(&file, []).unwrap();
}
