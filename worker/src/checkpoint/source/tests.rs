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
