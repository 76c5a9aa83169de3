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
        assert_eq!(store.get(&mine, &id(1)).await, Some(stored("one")));
        assert_eq!(store.get(&other, &id(1)).await, None);
        assert_eq!(store.get(&None, &id(1)).await, None);
        assert!(!store.delete(&other, &id(1)).await);
        assert!(store.delete(&mine, &id(1)).await);
        assert!(!store.delete(&mine, &id(1)).await);
        assert_eq!(store.get(&mine, &id(1)).await, None);
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
    assert!(!store.is_on() && store.get(&None, &id(1)).await.is_none() && !store.delete(&None, &id(1)).await);
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
            let mut found = Vec::new();
            for number in 0..10 {
                found.extend(store.get(&None, &id(number)).await.map(|_| number));
            }
            assert_eq!(found, [7, 8, 9]);
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
                assert!(store.get(&key("quiet"), &id(number)).await.is_some(), "bounds {which}: {number}");
            }
            let mut loud = Vec::new();
            for number in 0..30 {
                loud.extend(store.get(&key("loud"), &id(number)).await.map(|_| number));
            }
            assert_eq!(loud, [25, 26, 27, 28, 29], "bounds {which}");
        }
    }
}

/// Waits until no response waits for its file, and for the clock of the files.
async fn settle(store: &ResponseStore) {
    while let Backend::Directory(directory) = &store.0
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
    assert_eq!(again.get(&None, &id(1)).await, Some(stored("one")));
    for name in ["../secret", "a/b", "", "a.b", &"a".repeat(65)] {
        assert_eq!(store.get(&None, name).await, None);
        assert!(!store.delete(&None, name).await);
    }
}
