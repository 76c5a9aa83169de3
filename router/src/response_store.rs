//! Keeps responses for clients that continue them or fetch them later: in memory, or as files. It does not know what is
//! in a response.

mod directory;
mod file;
mod shares;

use std::{
    collections::HashMap,
    fmt, io,
    path::PathBuf,
    str::FromStr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime},
};

use prometheus_client::{metrics::counter::Counter, registry::Registry};
use uuid::Uuid;

use crate::{
    error::{Error, ErrorKind},
    fair::CallerName,
    limits,
};
use directory::ResponseDirectory;
use shares::Shares;

/// Where responses are kept.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ResponsesStoreMode {
    #[default]
    Off,
    Memory,
    /// One file for each response. Several routers may share the directory.
    Directory(PathBuf),
}

impl FromStr for ResponsesStoreMode {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text {
            "" => return Err("must be memory, off or a directory"),
            "off" => ResponsesStoreMode::Off,
            "memory" => ResponsesStoreMode::Memory,
            directory => ResponsesStoreMode::Directory(directory.into()),
        })
    }
}

impl ResponsesStoreMode {
    /// Makes the directory, and shows that files can be written into it.
    pub fn check(&self) -> io::Result<()> {
        let ResponsesStoreMode::Directory(path) = self else { return Ok(()) };
        file::make_directory(path)?;
        // Routers in containers have the same process id, and may share the directory.
        let probe = path.join(format!(".probe-{}", Uuid::new_v4().simple()));
        std::fs::write(&probe, [])?;
        std::fs::remove_file(&probe)
    }
}

impl fmt::Display for ResponsesStoreMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ResponsesStoreMode::Off => f.write_str("off"),
            ResponsesStoreMode::Memory => f.write_str("memory"),
            ResponsesStoreMode::Directory(path) => path.display().fmt(f),
        }
    }
}

/// How much is kept, of all API keys and of each, and for how long.
#[derive(Debug, Clone, Copy)]
pub struct ResponseLimits {
    pub count: usize,
    pub bytes: usize,
    pub count_per_key: usize,
    pub bytes_per_key: usize,
    pub age: Duration,
    /// How long a request waits for a directory.
    pub wait: Duration,
}

impl ResponseLimits {
    /// The limits of a process that keeps so many bytes.
    pub fn within(bytes: usize) -> Self {
        ResponseLimits {
            count: limits::STORED_RESPONSES,
            bytes,
            count_per_key: limits::STORED_RESPONSES_PER_KEY,
            bytes_per_key: limits::STORED_RESPONSE_BYTES_PER_KEY.min(bytes / 4),
            age: limits::STORED_RESPONSE_AGE,
            wait: limits::STORE_WAIT,
        }
    }
}

#[cfg(test)]
impl Default for ResponseLimits {
    fn default() -> Self {
        ResponseLimits::within(limits::STORED_RESPONSE_BYTES)
    }
}

/// Two JSON texts: the response, and the input that it answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredResponse {
    pub response: Arc<[u8]>,
    pub input: Arc<[u8]>,
}

impl StoredResponse {
    fn bytes(&self) -> usize {
        self.response.len() + self.input.len()
    }
}

/// Why a kept response cannot be read.
#[derive(Debug)]
pub enum UnreadResponse {
    /// Its file is not what was written.
    Damaged(String),
    /// The directory cannot be read.
    Unreadable(io::Error),
    /// The directory does not answer.
    Hangs,
}

impl From<io::Error> for UnreadResponse {
    fn from(error: io::Error) -> Self {
        UnreadResponse::Unreadable(error)
    }
}

impl From<UnreadResponse> for Error {
    fn from(error: UnreadResponse) -> Self {
        const UNREAD: &str = "a kept response could not be read";
        match error {
            UnreadResponse::Damaged(problem) => Error::internal(UNREAD, problem),
            UnreadResponse::Unreadable(error) => Error::internal(UNREAD, error),
            UnreadResponse::Hangs => {
                Error::new(ErrorKind::Deadline, format!("{UNREAD}: the directory of responses does not answer"))
            }
        }
    }
}

/// Responses by API key and id. Beyond a limit, the oldest ones of a key are dropped: see [`Shares::trim`].
#[derive(Clone)]
pub struct ResponseStore {
    backend: Backend,
    /// Responses that could not be kept.
    lost: Counter,
}

#[derive(Clone)]
enum Backend {
    Off,
    Memory(Arc<Mutex<Kept>>),
    Directory(ResponseDirectory),
}

type Key = (CallerName, String);

struct Kept {
    limits: ResponseLimits,
    responses: HashMap<Key, StoredResponse>,
    shares: Shares<CallerName>,
}

impl ResponseStore {
    pub fn new(mode: &ResponsesStoreMode, limits: ResponseLimits) -> Self {
        let lost = Counter::default();
        let backend = match mode {
            ResponsesStoreMode::Off => Backend::Off,
            ResponsesStoreMode::Memory => Backend::Memory(Arc::new(Mutex::new(Kept::new(limits)))),
            ResponsesStoreMode::Directory(path) => {
                Backend::Directory(ResponseDirectory::new(path.clone(), limits, lost.clone()))
            }
        };
        ResponseStore { backend, lost }
    }

    pub fn register(&self, registry: &mut Registry) {
        registry.register("rein_responses_lost", "Responses that could not be kept", self.lost.clone());
    }

    pub fn is_on(&self) -> bool {
        !matches!(self.backend, Backend::Off)
    }

    /// Whether a response would be kept now, as far as the last one tells.
    pub fn keeps(&self) -> bool {
        match &self.backend {
            Backend::Off => false,
            Backend::Memory(_) => true,
            Backend::Directory(directory) => directory.is_writable(),
        }
    }

    /// Keeps a response. It can be fetched as soon as this returns.
    pub fn put(&self, caller: &CallerName, id: &str, stored: StoredResponse) {
        match &self.backend {
            Backend::Off => {}
            Backend::Memory(kept) => locked(kept).put((caller.clone(), id.to_owned()), stored, SystemTime::now()),
            Backend::Directory(directory) => directory.put(caller, id, stored),
        }
    }

    /// Bytes that [`Self::get`] takes beyond what is in memory already. None: no such response is kept.
    pub async fn cost(&self, caller: &CallerName, id: &str) -> Result<Option<usize>, UnreadResponse> {
        match &self.backend {
            Backend::Off => Ok(None),
            Backend::Memory(_) => Ok(self.get(caller, id).await?.map(|_| 0)),
            Backend::Directory(directory) => directory.cost(caller, id).await,
        }
    }

    /// None: no such response is kept.
    pub async fn get(&self, caller: &CallerName, id: &str) -> Result<Option<StoredResponse>, UnreadResponse> {
        match &self.backend {
            Backend::Off => Ok(None),
            Backend::Memory(kept) => Ok(locked(kept).get(&(caller.clone(), id.to_owned()), SystemTime::now())),
            Backend::Directory(directory) => directory.get(caller, id).await,
        }
    }

    /// Whether there was such a response.
    pub async fn delete(&self, caller: &CallerName, id: &str) -> Result<bool, UnreadResponse> {
        match &self.backend {
            Backend::Off => Ok(false),
            Backend::Memory(kept) => Ok(locked(kept).remove(&(caller.clone(), id.to_owned()))),
            Backend::Directory(directory) => directory.delete(caller, id).await,
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn expired(at: SystemTime, age: Duration, now: SystemTime) -> bool {
    now.duration_since(at).is_ok_and(|passed| passed > age)
}

impl Kept {
    fn new(limits: ResponseLimits) -> Self {
        Kept { limits, responses: HashMap::new(), shares: Shares::new() }
    }

    fn put(&mut self, key: Key, stored: StoredResponse, now: SystemTime) {
        self.remove(&key);
        self.shares.add(key.0.clone(), key.1.clone(), stored.bytes(), now);
        self.responses.insert(key, stored);
        self.trim(now);
    }

    fn get(&mut self, key: &Key, now: SystemTime) -> Option<StoredResponse> {
        self.trim(now);
        self.responses.get(key).cloned()
    }

    fn remove(&mut self, key: &Key) -> bool {
        self.shares.remove(&key.0, &key.1);
        self.responses.remove(key).is_some()
    }

    fn trim(&mut self, now: SystemTime) {
        for key in self.shares.trim(&self.limits, now) {
            self.responses.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests;
