//! Keeps responses for clients that continue them or fetch them later: in memory, or as files. It does not know what is
//! in a response.

mod directory;

use std::{
    collections::{HashMap, VecDeque},
    convert::Infallible,
    fmt,
    path::PathBuf,
    str::FromStr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime},
};

use crate::{fair::CallerName, limits};
use directory::ResponseDirectory;

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
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(match text {
            "off" => ResponsesStoreMode::Off,
            "memory" => ResponsesStoreMode::Memory,
            directory => ResponsesStoreMode::Directory(directory.into()),
        })
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

/// How much is kept, and for how long.
#[derive(Debug, Clone, Copy)]
pub struct ResponseLimits {
    pub count: usize,
    pub bytes: usize,
    pub age: Duration,
}

impl Default for ResponseLimits {
    fn default() -> Self {
        ResponseLimits {
            count: limits::STORED_RESPONSES,
            bytes: limits::STORED_RESPONSE_BYTES,
            age: limits::STORED_RESPONSE_AGE,
        }
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

/// Responses by API key and id. Beyond a limit, the oldest ones are dropped.
#[derive(Clone)]
pub struct ResponseStore(Backend);

#[derive(Clone)]
enum Backend {
    Off,
    Memory(Arc<Mutex<Kept>>),
    Directory(ResponseDirectory),
}

type Key = (CallerName, String);

struct Kept {
    limits: ResponseLimits,
    responses: HashMap<Key, (StoredResponse, SystemTime)>,
    /// From the oldest to the newest. Deleted ones are skipped when their turn comes.
    order: VecDeque<(Key, SystemTime)>,
    bytes: usize,
}

impl ResponseStore {
    pub fn new(mode: &ResponsesStoreMode, limits: ResponseLimits) -> Self {
        ResponseStore(match mode {
            ResponsesStoreMode::Off => Backend::Off,
            ResponsesStoreMode::Memory => Backend::Memory(Arc::new(Mutex::new(Kept::new(limits)))),
            ResponsesStoreMode::Directory(path) => Backend::Directory(ResponseDirectory::new(path.clone(), limits)),
        })
    }

    pub fn is_on(&self) -> bool {
        !matches!(self.0, Backend::Off)
    }

    /// Keeps a response. It can be fetched as soon as this returns.
    pub fn put(&self, caller: &CallerName, id: &str, stored: StoredResponse) {
        match &self.0 {
            Backend::Off => {}
            Backend::Memory(kept) => locked(kept).put((caller.clone(), id.to_owned()), stored, SystemTime::now()),
            Backend::Directory(directory) => directory.put(caller, id, stored),
        }
    }

    pub async fn get(&self, caller: &CallerName, id: &str) -> Option<StoredResponse> {
        match &self.0 {
            Backend::Off => None,
            Backend::Memory(kept) => locked(kept).get(&(caller.clone(), id.to_owned()), SystemTime::now()),
            Backend::Directory(directory) => directory.get(caller, id).await,
        }
    }

    /// Whether there was such a response.
    pub async fn delete(&self, caller: &CallerName, id: &str) -> bool {
        match &self.0 {
            Backend::Off => false,
            Backend::Memory(kept) => locked(kept).remove(&(caller.clone(), id.to_owned())),
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
        Kept { limits, responses: HashMap::new(), order: VecDeque::new(), bytes: 0 }
    }

    fn put(&mut self, key: Key, stored: StoredResponse, now: SystemTime) {
        self.remove(&key);
        self.bytes += stored.bytes();
        self.responses.insert(key.clone(), (stored, now));
        self.order.push_back((key, now));
        self.trim(now);
    }

    fn get(&mut self, key: &Key, now: SystemTime) -> Option<StoredResponse> {
        self.trim(now);
        self.responses.get(key).map(|(stored, _)| stored.clone())
    }

    fn remove(&mut self, key: &Key) -> bool {
        let removed = self.responses.remove(key);
        self.bytes -= removed.as_ref().map_or(0, |(stored, _)| stored.bytes());
        removed.is_some()
    }

    /// Drops the oldest responses until all limits hold. Entries of deleted responses count towards the number, so that
    /// the queue is bounded, too.
    fn trim(&mut self, now: SystemTime) {
        while let Some((key, at)) = self.order.front() {
            let over = self.order.len() > self.limits.count || self.bytes > self.limits.bytes;
            let current = self.responses.get(key).is_some_and(|(_, kept)| kept == at);
            if current && !over && !expired(*at, self.limits.age, now) {
                return;
            }
            let Some((key, _)) = self.order.pop_front() else { return };
            if current {
                self.remove(&key);
            }
        }
    }
}

#[cfg(test)]
mod tests;
