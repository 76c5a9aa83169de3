//! Reloads files that are replaced while they are in use, such as certificates and API keys. While a new version is
//! invalid, the last valid one stays in use. A thread reads the files: nothing else waits for a disk that hangs. It
//! does not know what the files contain.

use std::{
    io,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError, RwLock, mpsc},
    thread,
    time::{Duration, Instant},
};

use rein_text::regular_file;
use ring::digest::{Context, SHA256};

/// Maximum size of one file, in bytes.
const FILE_BYTES: u64 = 1 << 20;
/// Pause between two checks of the files.
const INTERVAL: Duration = Duration::from_secs(1);
/// Reading that takes longer is reported, and is an error at start.
const READ_TIME: Duration = Duration::from_secs(10);

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
    reloading: Arc<Reloading<T>>,
    /// Tells the thread that nobody uses the files any more, when it is dropped.
    _used: mpsc::SyncSender<()>,
}

struct Reloading<T> {
    sources: Vec<WatchedFile>,
    build: Build<T>,
    current: RwLock<Arc<T>>,
    last_check: Mutex<LastCheck>,
    /// When the thread began to read, and whether it was reported that it takes long.
    began: Mutex<Option<(Instant, bool)>>,
}

/// The last check of the files.
struct LastCheck {
    digest: Vec<u8>,
    last_error: Option<String>,
}

impl<T: Send + Sync + 'static> HotReloaded<T> {
    /// `build` gets the files' contents in the order of `sources`.
    pub fn open(
        sources: Vec<WatchedFile>,
        build: impl Fn(&[Vec<u8>]) -> Result<T, FileProblem> + Send + Sync + 'static,
    ) -> Result<Self, FileError> {
        let contents = read_in_time(&sources)?;
        let value = build(&contents).map_err(|wrong| file_error(&sources, wrong))?;
        let reloading = Arc::new(Reloading {
            current: RwLock::new(Arc::new(value)),
            last_check: Mutex::new(LastCheck { digest: digest(&contents), last_error: None }),
            began: Mutex::default(),
            build: Box::new(build),
            sources,
        });
        let (used, unused) = mpsc::sync_channel(1);
        let checked = reloading.clone();
        thread::spawn(move || {
            while unused.recv_timeout(INTERVAL) == Err(mpsc::RecvTimeoutError::Timeout) {
                checked.check();
            }
        });
        Ok(HotReloaded { reloading, _used: used })
    }

    /// The current value.
    pub fn get(&self) -> Arc<T> {
        self.reloading.report_delay();
        self.reloading.current()
    }

    /// Checks the files now and returns the current value.
    pub fn refresh(&self) -> Arc<T> {
        self.reloading.check();
        self.reloading.current()
    }
}

impl<T> Reloading<T> {
    fn current(&self) -> Arc<T> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Reports once that the files cannot be read because a disk or a network hangs.
    fn report_delay(&self) {
        let mut began = self.began.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((since, reported @ false)) = began.as_mut()
            && since.elapsed() > READ_TIME
        {
            *reported = true;
            let error = delayed(&self.sources).to_string();
            tracing::error!(error, "cannot reload files; the last valid version stays in use");
        }
    }

    fn check(&self) {
        let set = |began| *self.began.lock().unwrap_or_else(PoisonError::into_inner) = began;
        set(Some((Instant::now(), false)));
        let contents = read(&self.sources);
        set(None);
        let mut last_check = self.last_check.lock().unwrap_or_else(PoisonError::into_inner);
        let reloaded = contents.and_then(|contents| self.reload(&contents, &mut last_check));
        let last_error = reloaded.err().map(|error| error.to_string());
        if let Some(error) = last_error.as_ref().filter(|_| last_error != last_check.last_error) {
            tracing::error!(error, "cannot reload files; the last valid version stays in use");
        }
        last_check.last_error = last_error;
    }

    fn reload(&self, contents: &[Vec<u8>], last_check: &mut LastCheck) -> Result<(), FileError> {
        let digest = digest(contents);
        if digest == last_check.digest {
            return Ok(());
        }
        let value = (self.build)(contents).map_err(|wrong| file_error(&self.sources, wrong))?;
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(value);
        last_check.digest = digest;
        let files: Vec<String> = self.sources.iter().map(|source| source.path.display().to_string()).collect();
        tracing::info!(files = files.join(", "), "files reloaded");
        Ok(())
    }
}

fn delayed(sources: &[WatchedFile]) -> FileError {
    let what = format!("reading it takes longer than {} s", READ_TIME.as_secs());
    file_error(sources, FileProblem::new(0, what))
}

/// At start: in a thread, which a file that hangs keeps.
fn read_in_time(sources: &[WatchedFile]) -> Result<Vec<Vec<u8>>, FileError> {
    let (done, result) = mpsc::sync_channel(1);
    let files = sources.to_vec();
    thread::spawn(move || done.send(read(&files)));
    result.recv_timeout(READ_TIME).unwrap_or_else(|_| Err(delayed(sources)))
}

fn file_error(sources: &[WatchedFile], wrong: FileProblem) -> FileError {
    let unknown = || WatchedFile { flag: "", path: PathBuf::new() };
    FileError::Wrong { source_: sources.get(wrong.file).cloned().unwrap_or_else(unknown), what: wrong.what }
}

fn read(sources: &[WatchedFile]) -> Result<Vec<Vec<u8>>, FileError> {
    let one = |source: &WatchedFile| {
        regular_file::read(&source.path, "the file", FILE_BYTES)
            .map_err(|error| FileError::Read { source_: source.clone(), error })
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
