use std::path::PathBuf;

use rand::rngs::StdRng;
use rand::{Rng, RngCore, SeedableRng};

use super::*;
use crate::limits::READ_TIMEOUT;

struct Written(PathBuf);

impl Written {
    fn new(name: &str, bytes: &[u8]) -> Self {
        let path = std::env::temp_dir().join(format!("rein-source-{name}-{}", std::process::id()));
        std::fs::write(&path, bytes).expect("write");
        Self(path)
    }

    fn open(&self) -> CheckpointFile {
        CheckpointFile::open(&self.0, &Reads::new(READ_TIMEOUT)).expect("opens")
    }
}

impl Drop for Written {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn any_range_is_read_correctly() {
    let mut rng = StdRng::seed_from_u64(1);
    let mut bytes = vec![0; (2 * CALL + CHUNK + 77) as usize];
    rng.fill_bytes(&mut bytes);
    let file = Written::new("ranges", &bytes);
    let source = file.open();
    for i in 0..300 {
        let (from, most) = (rng.random_range(0..=bytes.len()), [1, 100, CHUNK as usize, bytes.len()][i % 4]);
        let to = rng.random_range(from..=bytes.len().min(from + most));
        let mut out = vec![0; to - from];
        source.read(from as u64, &mut out).expect("reads");
        assert!(out == bytes[from..to], "{from}..{to}");
    }
    assert!(source.read(bytes.len() as u64 - 1, &mut [0; 2]).is_err(), "beyond the end");
    assert!(source.read(u64::MAX, &mut [0; 2]).is_err(), "far beyond the end");
}

#[test]
fn a_sample_differs_between_fine_tunes() {
    let sample = |bytes: &[u8], whole| Written::new("sample", bytes).open().sample(whole).expect("reads");
    for len in [0, 100, 3 * CHUNK as usize, (100 * CHUNK + 5) as usize] {
        let bytes = vec![7; len];
        let before = sample(&bytes, false);
        assert_eq!(sample(&bytes, false), before);
        assert_ne!(sample(&[&bytes[..], &[7]].concat(), false), before, "the length");
        let change = |part: std::ops::Range<usize>, whole| {
            let mut changed = bytes.clone();
            changed[part].fill(9);
            sample(&changed, whole)
        };
        if len > 0 {
            assert_ne!(change(0..1, false), before, "the first byte");
            assert_ne!(change(len - 1..len, false), before, "the last byte");
            assert_ne!(change(len / 3..len / 2, false), before, "a tensor");
            assert_ne!(change(len / 3..len / 3 + 1, true), sample(&bytes, true), "any byte of the whole");
        }
    }
}

/// Writes a byte in place, as if nothing had happened.
fn change(path: &Path, at: u64) {
    let file = File::options().read(true).write(true).open(path).expect("opens");
    let modified = file.metadata().and_then(|meta| meta.modified()).expect("a time");
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).expect("reads");
    file.write_all_at(&[byte[0] ^ 1], at).expect("writes");
    file.set_modified(modified).expect("sets the time");
}

#[test]
fn one_of_several_readers_finds_changed_bytes() {
    let file = Written::new("changed", &[]);
    File::options().write(true).open(&file.0).and_then(|file| file.set_len(MANY as u64 + 77)).expect("grows");
    let source = file.open();
    let mut out = vec![1; MANY + 70];
    source.read(3, &mut out).expect("reads");
    assert!(out.iter().all(|&byte| byte == 0));
    change(&file.0, MANY as u64 * 2 / 3);
    let error = source.read(3, &mut out).expect_err("changed").to_string();
    assert!(error.contains("has other bytes") && error.contains("rein-source-changed"), "{error}");
    let error = source.read(0, &mut [0]).expect_err("all further reads").to_string();
    assert!(error.contains("has other bytes"), "{error}");
}

#[test]
fn several_readers_of_a_file_that_shrinks_end_with_one_error() {
    let file = Written::new("shrinks", &[]);
    let writes = File::options().write(true).open(&file.0).expect("opens");
    writes.set_len(MANY as u64).expect("grows");
    let source = file.open();
    let mut out = vec![0; MANY];
    source.read(0, &mut out).expect("reads");
    writes.set_len(MANY as u64 / 3).expect("shrinks");
    let error = source.read(0, &mut out).expect_err("shrunk").to_string();
    assert!(error.contains("was cut short") && error.contains("rein-source-shrinks"), "{error}");
}
