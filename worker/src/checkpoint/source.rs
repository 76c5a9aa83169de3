//! A file of a checkpoint, open for the life of the process, of which every read is checked: bytes that are not those
//! that were there before are an error. Knows nothing of what is in the file.
//!
//! The descriptor stays open, so a file that is replaced by renaming another over it is read as it was. A file that is
//! written in place gives itself away by its size or its time of modification. Where these were put back, its content
//! does: a hash is kept of each chunk that has been read, and compared whenever the chunk is read again.

use std::fs::{File, FileType, Metadata};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use xxhash_rust::xxh3::xxh3_64;

use super::error::LoadError;
use super::reads::Reads;

/// What a hash is kept of. Reads begin and end at chunks.
const CHUNK: u64 = 64 << 10;
/// Bytes of one call of the system. A multiple of `CHUNK`.
const CALL: u64 = 1 << 20;
/// Chunks of a sample, spread from the first to the last.
const SAMPLE: u64 = 64;

#[derive(Debug)]
pub struct Source {
    path: PathBuf,
    file: File,
    stamp: Stamp,
    /// Of each chunk its hash; 0: it has not been read.
    chunks: Box<[AtomicU64]>,
    changed: OnceLock<String>,
    reads: Arc<Reads>,
}

/// What tells that a file has been written to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    len: u64,
    /// Seconds and nanoseconds.
    modified: (i64, i64),
}

impl Stamp {
    fn of(meta: &Metadata) -> Self {
        Self { len: meta.len(), modified: (meta.mtime(), meta.mtime_nsec()) }
    }
}

impl Source {
    pub fn open(path: &Path, reads: &Arc<Reads>) -> Result<Self, LoadError> {
        let (file, meta) = reads.during(path, || open_regular(path))?;
        let stamp = Stamp::of(&meta);
        let chunks = (0..stamp.len.div_ceil(CHUNK)).map(|_| AtomicU64::new(0)).collect();
        Ok(Self { path: path.to_owned(), file, stamp, chunks, changed: OnceLock::new(), reads: reads.clone() })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn len(&self) -> u64 {
        self.stamp.len
    }

    /// Fills `out` with the bytes from `at` on.
    pub fn read(&self, at: u64, out: &mut [u8]) -> Result<(), LoadError> {
        let end = at.checked_add(out.len() as u64).filter(|&end| end <= self.len());
        let end = end.ok_or_else(|| self.error(format!("has {} bytes, fewer than are read", self.len())))?;
        let mut part = Vec::new();
        let mut pos = at;
        while pos < end {
            let first = pos / CHUNK * CHUNK;
            let done = (pos - at) as usize;
            let whole = if end == self.len() { end - pos } else { (end - pos) / CHUNK * CHUNK };
            if pos == first && whole > 0 {
                let n = whole.min(CALL);
                self.chunks(pos, &mut out[done..done + n as usize])?;
                pos += n;
            } else {
                part.resize(CHUNK.min(self.len() - first) as usize, 0);
                self.chunks(first, &mut part)?;
                let n = (first + part.len() as u64).min(end) - pos;
                let from = (pos - first) as usize;
                out[done..done + n as usize].copy_from_slice(&part[from..from + n as usize]);
                pos += n;
            }
        }
        self.reads.during(&self.path, || self.unwritten())
    }

    /// Reads whole chunks from the beginning of one on.
    fn chunks(&self, at: u64, out: &mut [u8]) -> Result<(), LoadError> {
        let read = self.reads.during(&self.path, || self.file.read_exact_at(out, at));
        match read {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Err(self.changes("was cut short")),
            Err(error) => return Err(self.failed(error)),
        }
        let known = &self.chunks[(at / CHUNK) as usize..];
        for (bytes, known) in out.chunks(CHUNK as usize).zip(known) {
            let hash = xxh3_64(bytes).max(1);
            let before = known.compare_exchange(0, hash, Ordering::Relaxed, Ordering::Relaxed);
            if before.is_err_and(|before| before != hash) {
                return Err(self.changes("has other bytes"));
            }
        }
        Ok(())
    }

    /// That size and time are what they were. A write changes the time before it changes bytes, so what was read before this
    /// call is from before any write.
    pub fn unwritten(&self) -> Result<(), LoadError> {
        let now = Stamp::of(&self.file.metadata().map_err(|error| self.failed(error))?);
        match (now == self.stamp, self.changed.get()) {
            (true, None) => Ok(()),
            (true, Some(what)) => Err(self.changes(what)),
            (false, _) if now.len != self.stamp.len => {
                Err(self.changes(&format!("had {} bytes and has {}", self.stamp.len, now.len)))
            }
            (false, _) => Err(self.changes("was written to")),
        }
    }

    /// Hashes chunks that are spread over the file, or all of it. Each keeps its place: two files of equal hashes are equal
    /// there.
    pub fn sample(&self, whole: bool) -> Result<u64, LoadError> {
        let count = self.chunks.len() as u64;
        let step = if whole { count } else { count.min(SAMPLE) };
        let mut hashes = self.len().to_le_bytes().to_vec();
        let mut bytes = Vec::new();
        for i in 0..step {
            // From the first to the last; the product fits for any file that there is.
            let chunk =
                if step > 1 { (u128::from(count - 1) * u128::from(i) / u128::from(step - 1)) as u64 } else { 0 };
            let at = chunk * CHUNK;
            bytes.resize(CHUNK.min(self.len() - at) as usize, 0);
            self.read(at, &mut bytes)?;
            hashes.extend_from_slice(&self.chunks[chunk as usize].load(Ordering::Relaxed).to_le_bytes());
        }
        Ok(xxh3_64(&hashes))
    }

    fn failed(&self, source: io::Error) -> LoadError {
        match source.kind() {
            ErrorKind::StaleNetworkFileHandle => self.changes("was deleted on its file server"),
            _ => LoadError::Io { path: self.path.clone(), source },
        }
    }

    fn error(&self, what: impl Into<String>) -> LoadError {
        LoadError::File { path: self.path.clone(), what: what.into() }
    }

    /// From now on no read of this file succeeds.
    fn changes(&self, what: &str) -> LoadError {
        let what = self.changed.get_or_init(|| what.to_owned()).clone();
        LoadError::Changed { path: self.path.clone(), what }
    }
}

fn open_regular(path: &Path) -> Result<(File, Metadata), LoadError> {
    let io = |source| LoadError::Io { path: path.to_owned(), source };
    let regular = |meta: &Metadata| match meta.is_file() {
        true => Ok(()),
        false => {
            let what = format!("is {}; a checkpoint consists of regular files", kind(meta.file_type()));
            Err(LoadError::File { path: path.to_owned(), what })
        }
    };
    // Not opened before: opening a FIFO waits for a writer, and opening a device may do anything.
    let meta = std::fs::metadata(path).map_err(|source| match path.read_link() {
        Ok(to) if source.kind() == ErrorKind::NotFound => {
            let what = format!("is a symbolic link to {}, which does not exist", to.display());
            LoadError::File { path: path.to_owned(), what }
        }
        _ => io(source),
    })?;
    regular(&meta)?;
    let file = File::open(path).map_err(io)?;
    let meta = file.metadata().map_err(io)?;
    regular(&meta)?;
    Ok((file, meta))
}

fn kind(of: FileType) -> &'static str {
    match of {
        of if of.is_dir() => "a directory",
        of if of.is_fifo() => "a FIFO",
        of if of.is_socket() => "a socket",
        of if of.is_block_device() => "a block device",
        of if of.is_char_device() => "a character device",
        _ => "no file",
    }
}

/// The bytes of a regular file of at most `most` bytes.
pub fn read_file(path: &Path, most: u64, reads: &Reads) -> Result<Vec<u8>, LoadError> {
    reads.during(path, || {
        let (mut file, meta) = open_regular(path)?;
        let error = |what: String| LoadError::File { path: path.to_owned(), what };
        if meta.len() > most {
            return Err(error(format!("has {} bytes; the limit is {most}", meta.len())));
        }
        let io = |source: io::Error| LoadError::Io { path: path.to_owned(), source };
        let mut bytes = Vec::with_capacity(meta.len() as usize);
        file.by_ref().take(most + 1).read_to_end(&mut bytes).map_err(io)?;
        let after = file.metadata().map_err(io)?;
        if Stamp::of(&meta) != Stamp::of(&after) || bytes.len() as u64 != after.len() {
            let what = "was written to while it was read".into();
            return Err(LoadError::Changed { path: path.to_owned(), what });
        }
        Ok(bytes)
    })
}

#[cfg(test)]
mod tests {
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

        fn open(&self) -> Source {
            Source::open(&self.0, &Reads::new(READ_TIMEOUT)).expect("opens")
        }
    }

    impl Drop for Written {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    #[test]
    fn any_range_is_read_as_it_is() {
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
    fn a_sample_tells_one_fine_tune_from_another() {
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
}
