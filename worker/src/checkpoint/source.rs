//! A checkpoint file, open for the life of the process, whose reads are checked: changed bytes are an error. It does
//! not know what is in the file.
//!
//! The descriptor stays open, so a file that was replaced by a rename is read as it was. A write in place shows in the
//! size or the modification time. If these were reset, the contents show it: a hash of each chunk that was read is kept
//! and compared when the chunk is read again.

use std::fs::{File, FileType, Metadata};
use std::io::{self, ErrorKind, Read};
use std::num::NonZero;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::available_parallelism;

use xxhash_rust::xxh3::xxh3_64;

use super::error::LoadError;
use super::reads::Reads;

/// Unit of hashing. Reads start and end at chunk boundaries.
const CHUNK: u64 = 64 << 10;
/// Bytes per system call: a core still has them in its cache when it hashes them. A multiple of `CHUNK`.
const CALL: u64 = 256 << 10;
/// Reads of at least so many bytes (embeddings, heads) are shared by up to so many threads.
const MANY: usize = 48 << 20;
const READERS: usize = 4;
/// Number of chunks in a sample, spread over the file.
const SAMPLE: u64 = 64;

#[derive(Debug)]
pub struct CheckpointFile {
    path: PathBuf,
    file: File,
    stamp: Stamp,
    /// The hash of each chunk. 0: not read yet.
    chunks: Box<[AtomicU64]>,
    changed: OnceLock<String>,
    reads: Arc<Reads>,
}

/// Shows whether a file was written to.
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

impl CheckpointFile {
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
        end.ok_or_else(|| self.error(format!("has {} bytes, fewer than are read", self.len())))?;
        if out.len() < MANY {
            self.read_part(at, out)?;
        } else {
            let readers = available_parallelism().map_or(1, NonZero::get).min(READERS);
            let share = out.len().div_ceil(readers);
            // A chunk that two shares have is read twice. Of several errors, the first in the file is returned.
            std::thread::scope(|scope| {
                let read = |(first, out)| scope.spawn(move || self.read_part(first, out));
                let all: Vec<_> = (at..).step_by(share).zip(out.chunks_mut(share)).map(read).collect();
                all.into_iter().try_for_each(|reader| reader.join().unwrap_or_else(|panic| resume_unwind(panic)))
            })?;
        }
        self.reads.during(&self.path, || self.check_unmodified())
    }

    fn read_part(&self, at: u64, out: &mut [u8]) -> Result<(), LoadError> {
        let end = at + out.len() as u64;
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
        Ok(())
    }

    /// Reads whole chunks, starting at a chunk boundary.
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

    /// Checks that size and time are unchanged. A write changes the time before it changes bytes, so everything read
    /// before this call precedes any write.
    pub fn check_unmodified(&self) -> Result<(), LoadError> {
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

    /// Hashes chunks spread over the file, or all of it.
    pub fn sample(&self, whole: bool) -> Result<u64, LoadError> {
        let count = self.chunks.len() as u64;
        let step = if whole { count } else { count.min(SAMPLE) };
        let mut hashes = self.len().to_le_bytes().to_vec();
        let mut bytes = Vec::new();
        for i in 0..step {
            // From the first to the last chunk; the product does not overflow for any real file.
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

    /// Makes all further reads of this file fail.
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
    // Checked before opening: opening a FIFO waits for a writer, and opening a device may have side effects.
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
        _ => "not a regular file",
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
mod tests;
