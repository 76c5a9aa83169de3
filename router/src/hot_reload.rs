//! Files that may be replaced while they are in use: certificates, keys. What is built from them follows, without a
//! restart; while a new version is wrong, the last right one stays.

use std::{
    fs::File,
    io::{self, Read},
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError, RwLock},
    time::{Duration, Instant},
};

use ring::digest::{Context, SHA256};

/// Bytes of one file.
const FILE_BYTES: u64 = 1 << 20;
/// Shortest time between two looks at the files.
const INTERVAL: Duration = Duration::from_secs(1);

/// A file, and the option that names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WatchedFile {
    pub flag: &'static str,
    pub path: PathBuf,
}

#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error("{}: cannot read {}: {error}", source_.flag, source_.path.display())]
    Read { source_: WatchedFile, error: io::Error },
    #[error("{}: {}: {what}", source_.flag, source_.path.display())]
    Wrong { source_: WatchedFile, what: String },
}

/// What is wrong in which of the files, counted from 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileProblem {
    pub file: usize,
    pub what: String,
}

impl FileProblem {
    pub fn new(file: usize, what: impl ToString) -> Self {
        FileProblem { file, what: what.to_string() }
    }
}

type Build<T> = Box<dyn Fn(&[Vec<u8>]) -> Result<T, FileProblem> + Send + Sync>;

/// A value that is built from files, and anew when they change.
pub struct HotReloaded<T> {
    sources: Vec<WatchedFile>,
    build: Build<T>,
    current: RwLock<Arc<T>>,
    seen: Mutex<Seen>,
}

/// The last look.
struct Seen {
    digest: Vec<u8>,
    next: Instant,
    complaint: Option<String>,
}

impl<T> HotReloaded<T> {
    /// `build` gets the files' contents in the order of `sources`.
    pub fn open(
        sources: Vec<WatchedFile>,
        build: impl Fn(&[Vec<u8>]) -> Result<T, FileProblem> + Send + Sync + 'static,
    ) -> Result<Self, FileError> {
        let contents = read(&sources)?;
        let value = build(&contents).map_err(|wrong| named(&sources, wrong))?;
        Ok(HotReloaded {
            current: RwLock::new(Arc::new(value)),
            seen: Mutex::new(Seen { digest: digest(&contents), next: Instant::now() + INTERVAL, complaint: None }),
            build: Box::new(build),
            sources,
        })
    }

    /// The value as the files say now, give or take a second.
    pub fn get(&self) -> Arc<T> {
        // One looks; others meanwhile take what there is.
        if let Ok(mut seen) = self.seen.try_lock()
            && seen.next <= Instant::now()
        {
            seen.next = Instant::now() + INTERVAL;
            self.look(&mut seen);
        }
        self.last()
    }

    /// The value as the files say now.
    pub fn refresh(&self) -> Arc<T> {
        self.look(&mut self.seen.lock().unwrap_or_else(PoisonError::into_inner));
        self.last()
    }

    fn last(&self) -> Arc<T> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn look(&self, seen: &mut Seen) {
        let complaint = self.take_in(seen).err().map(|error| error.to_string());
        if let Some(error) = complaint.as_ref().filter(|_| complaint != seen.complaint) {
            tracing::error!(error, "a file that was replaced is not right; what was read before stays in use");
        }
        seen.complaint = complaint;
    }

    fn take_in(&self, seen: &mut Seen) -> Result<(), FileError> {
        let contents = read(&self.sources)?;
        let digest = digest(&contents);
        if digest == seen.digest {
            return Ok(());
        }
        let value = (self.build)(&contents).map_err(|wrong| named(&self.sources, wrong))?;
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(value);
        seen.digest = digest;
        let files: Vec<String> = self.sources.iter().map(|source| source.path.display().to_string()).collect();
        tracing::info!(?files, "read again");
        Ok(())
    }
}

fn named(sources: &[WatchedFile], wrong: FileProblem) -> FileError {
    let nowhere = || WatchedFile { flag: "", path: PathBuf::new() };
    FileError::Wrong { source_: sources.get(wrong.file).cloned().unwrap_or_else(nowhere), what: wrong.what }
}

fn read(sources: &[WatchedFile]) -> Result<Vec<Vec<u8>>, FileError> {
    let one = |source: &WatchedFile| {
        let mut bytes = Vec::new();
        let read = File::open(&source.path).and_then(|file| file.take(FILE_BYTES + 1).read_to_end(&mut bytes));
        match read {
            Ok(_) if bytes.len() as u64 > FILE_BYTES => {
                Err(FileError::Wrong { source_: source.clone(), what: format!("has more than {FILE_BYTES} bytes") })
            }
            Ok(_) => Ok(bytes),
            Err(error) => Err(FileError::Read { source_: source.clone(), error }),
        }
    };
    sources.iter().map(one).collect()
}

/// Of keys only this is kept.
fn digest(contents: &[Vec<u8>]) -> Vec<u8> {
    let mut context = Context::new(&SHA256);
    for bytes in contents {
        context.update(&(bytes.len() as u64).to_le_bytes());
        context.update(bytes);
    }
    context.finish().as_ref().to_vec()
}

#[cfg(test)]
mod tests;
