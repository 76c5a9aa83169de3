//! Reloads files that are replaced while they are in use, such as certificates and API keys. While a new version is
//! invalid, the last valid one stays in use. It does not know what the files contain.

use std::{
    fs::File,
    io::{self, Read},
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError, RwLock},
    time::{Duration, Instant},
};

use ring::digest::{Context, SHA256};

/// Maximum size of one file, in bytes.
const FILE_BYTES: u64 = 1 << 20;
/// Shortest interval between two checks of the files.
const INTERVAL: Duration = Duration::from_secs(1);

/// A file, and the command line option that names it.
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

/// What is wrong with a file. `file` is its index in `sources`.
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

/// A value that is built from files, and rebuilt when they change.
pub struct HotReloaded<T> {
    sources: Vec<WatchedFile>,
    build: Build<T>,
    current: RwLock<Arc<T>>,
    last_check: Mutex<LastCheck>,
}

/// The last check of the files.
struct LastCheck {
    digest: Vec<u8>,
    next: Instant,
    last_error: Option<String>,
}

impl<T> HotReloaded<T> {
    /// `build` gets the files' contents in the order of `sources`.
    pub fn open(
        sources: Vec<WatchedFile>,
        build: impl Fn(&[Vec<u8>]) -> Result<T, FileProblem> + Send + Sync + 'static,
    ) -> Result<Self, FileError> {
        let contents = read(&sources)?;
        let value = build(&contents).map_err(|wrong| file_error(&sources, wrong))?;
        Ok(HotReloaded {
            current: RwLock::new(Arc::new(value)),
            last_check: Mutex::new(LastCheck {
                digest: digest(&contents),
                next: Instant::now() + INTERVAL,
                last_error: None,
            }),
            build: Box::new(build),
            sources,
        })
    }

    /// The current value. Checks the files if the last check is older than `INTERVAL`.
    pub fn get(&self) -> Arc<T> {
        // One caller checks the files; concurrent callers get the current value.
        if let Ok(mut last_check) = self.last_check.try_lock()
            && last_check.next <= Instant::now()
        {
            last_check.next = Instant::now() + INTERVAL;
            self.check(&mut last_check);
        }
        self.current()
    }

    /// Checks the files now and returns the current value.
    pub fn refresh(&self) -> Arc<T> {
        self.check(&mut self.last_check.lock().unwrap_or_else(PoisonError::into_inner));
        self.current()
    }

    fn current(&self) -> Arc<T> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn check(&self, last_check: &mut LastCheck) {
        let last_error = self.reload(last_check).err().map(|error| error.to_string());
        if let Some(error) = last_error.as_ref().filter(|_| last_error != last_check.last_error) {
            tracing::error!(error, "cannot reload files; the last valid version stays in use");
        }
        last_check.last_error = last_error;
    }

    fn reload(&self, last_check: &mut LastCheck) -> Result<(), FileError> {
        let contents = read(&self.sources)?;
        let digest = digest(&contents);
        if digest == last_check.digest {
            return Ok(());
        }
        let value = (self.build)(&contents).map_err(|wrong| file_error(&self.sources, wrong))?;
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(value);
        last_check.digest = digest;
        let files: Vec<String> = self.sources.iter().map(|source| source.path.display().to_string()).collect();
        tracing::info!(files = files.join(", "), "files reloaded");
        Ok(())
    }
}

fn file_error(sources: &[WatchedFile], wrong: FileProblem) -> FileError {
    let unknown = || WatchedFile { flag: "", path: PathBuf::new() };
    FileError::Wrong { source_: sources.get(wrong.file).cloned().unwrap_or_else(unknown), what: wrong.what }
}

fn read(sources: &[WatchedFile]) -> Result<Vec<Vec<u8>>, FileError> {
    let one = |source: &WatchedFile| {
        let mut bytes = Vec::new();
        let read = File::open(&source.path).and_then(|file| file.take(FILE_BYTES + 1).read_to_end(&mut bytes));
        match read {
            Ok(_) if bytes.len() as u64 > FILE_BYTES => {
                Err(FileError::Wrong { source_: source.clone(), what: format!("must have at most {FILE_BYTES} bytes") })
            }
            Ok(_) => Ok(bytes),
            Err(error) => Err(FileError::Read { source_: source.clone(), error }),
        }
    };
    sources.iter().map(one).collect()
}

/// Hash of the files' contents, so that secrets are not kept in memory for comparison.
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
