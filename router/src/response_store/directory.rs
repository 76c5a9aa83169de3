//! Responses as files of one directory, which several routers may share. The directory may hang: its threads are few,
//! and nobody waits for them without end.

use std::{
    collections::HashMap,
    fs, io,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, SystemTime},
};

use prometheus_client::metrics::counter::Counter;
use rein_text::sha256_hex;
use tokio::{sync::Semaphore, task::spawn_blocking, time::timeout};

use super::{ResponseLimits, Shares, StoredResponse, UnreadResponse, expired, file, locked};
use crate::{fair::CallerName, limits};

const EXTENSION: &str = "response";
/// Of a file that is being written.
const PART_EXTENSION: &str = "part";
/// After this time, its writer is gone.
const PART_AGE: Duration = Duration::from_secs(600);
/// Hexadecimal digits of the API key's digest in a file's name.
const CALLER_DIGITS: usize = 16;

#[derive(Clone)]
pub struct ResponseDirectory(Arc<Shared>);

struct Shared {
    path: PathBuf,
    limits: ResponseLimits,
    /// Responses whose files are being written. None: it was deleted meanwhile.
    pending: Mutex<HashMap<String, Option<StoredResponse>>>,
    /// The names of the files, by the part of the name that stands for the API key. None: the directory was not read
    /// yet.
    files: Mutex<Option<Shares<String>>>,
    /// Threads that read or delete, and that write.
    readers: Arc<Semaphore>,
    writers: Arc<Semaphore>,
    /// The last response could not be written.
    failing: AtomicBool,
    lost: Counter,
}

impl ResponseDirectory {
    pub fn new(path: PathBuf, limits: ResponseLimits, lost: Counter) -> Self {
        ResponseDirectory(Arc::new(Shared {
            path,
            limits,
            pending: Mutex::default(),
            files: Mutex::default(),
            readers: Arc::new(Semaphore::new(limits::STORE_READERS)),
            writers: Arc::new(Semaphore::new(limits::STORE_WRITERS)),
            failing: AtomicBool::new(false),
            lost,
        }))
    }

    /// Whether the last response was written.
    pub fn is_writable(&self) -> bool {
        !self.0.failing.load(Ordering::Relaxed)
    }

    /// Until the file is written, the response is served from memory.
    pub fn put(&self, caller: &CallerName, id: &str, stored: StoredResponse) {
        let Some(name) = file_name(caller, id) else { return };
        {
            let mut pending = locked(&self.0.pending);
            let bytes: usize = pending.values().flatten().map(StoredResponse::bytes).sum();
            if pending.len() >= limits::PENDING_RESPONSES || bytes + stored.bytes() > self.0.limits.bytes {
                drop(pending);
                self.0.lose();
                tracing::error!("a response could not be stored: the disk does not keep up");
                return;
            }
            pending.insert(name.clone(), Some(stored.clone()));
        }
        let shared = self.0.clone();
        tokio::spawn(async move {
            // The semaphore is never closed.
            let Ok(permit) = shared.writers.clone().acquire_owned().await else { return };
            spawn_blocking(move || {
                let _permit = permit;
                match shared.write(&name, &stored) {
                    Ok(()) => shared.failing.store(false, Ordering::Relaxed),
                    Err(error) => {
                        tracing::error!(%error, path = %shared.path.display(), "a response could not be stored");
                        locked(&shared.pending).remove(&name);
                        shared.lose();
                    }
                }
            });
        });
    }

    /// Whether every file has been written, and those beyond the limits have been removed.
    #[cfg(test)]
    pub fn is_settled(&self) -> bool {
        let written = locked(&self.0.pending).is_empty();
        written && self.0.writers.available_permits() == limits::STORE_WRITERS
    }

    pub async fn get(&self, caller: &CallerName, id: &str) -> Result<Option<StoredResponse>, UnreadResponse> {
        let Some(name) = file_name(caller, id) else { return Ok(None) };
        if let Some(stored) = locked(&self.0.pending).get(&name) {
            return Ok(stored.clone());
        }
        self.on_a_thread(move |shared| shared.read(&name)).await?
    }

    /// Bytes that must be read for it. None: no such response is kept.
    pub async fn cost(&self, caller: &CallerName, id: &str) -> Result<Option<usize>, UnreadResponse> {
        let Some(name) = file_name(caller, id) else { return Ok(None) };
        if let Some(stored) = locked(&self.0.pending).get(&name) {
            return Ok(stored.as_ref().map(|_| 0));
        }
        let found = self.on_a_thread(move |shared| fs::metadata(shared.path.join(&name))).await?;
        match found {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            // The file's bytes, and the texts in it.
            found => Ok(Some(2 * found?.len() as usize)),
        }
    }

    pub async fn delete(&self, caller: &CallerName, id: &str) -> Result<bool, UnreadResponse> {
        let Some(name) = file_name(caller, id) else { return Ok(false) };
        // What is not pending any more does not stay a file.
        if let Some(stored) = locked(&self.0.pending).get_mut(&name) {
            return Ok(stored.take().is_some());
        }
        self.on_a_thread(move |shared| shared.delete(&name)).await
    }

    async fn on_a_thread<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Shared) -> T + Send + 'static,
    ) -> Result<T, UnreadResponse> {
        let shared = self.0.clone();
        let done = async {
            let permit = shared.readers.clone().acquire_owned().await;
            let shared = shared.clone();
            spawn_blocking(move || {
                let _permit = permit;
                work(&shared)
            })
            .await
        };
        match timeout(self.0.limits.wait, done).await {
            Ok(Ok(done)) => Ok(done),
            Ok(Err(_)) | Err(_) => Err(UnreadResponse::Hangs),
        }
    }
}

impl Shared {
    fn lose(&self) {
        self.failing.store(true, Ordering::Relaxed);
        self.lost.inc();
    }

    fn write(&self, name: &str, stored: &StoredResponse) -> io::Result<()> {
        file::make_directory(&self.path)?;
        let whole = self.path.join(name);
        let part = whole.with_extension(PART_EXTENSION);
        file::write(&part, name, stored)?;
        fs::rename(&part, &whole).inspect_err(|_| drop(fs::remove_file(&part)))?;
        // Nobody waits for the disk with this lock.
        let deleted = locked(&self.pending).remove(name).is_none_or(|stored| stored.is_none());
        if deleted {
            return fs::remove_file(&whole);
        }
        let now = SystemTime::now();
        let mut files = locked(&self.files);
        let files = match &mut *files {
            Some(files) => {
                files.add(caller_part(name), name.to_owned(), stored.bytes(), now);
                files
            }
            unread => unread.insert(files_of(&self.path)?),
        };
        for (_, name) in files.trim(&self.limits, now) {
            // It may have been deleted, or another router has removed it.
            let _ = fs::remove_file(self.path.join(name));
        }
        Ok(())
    }

    fn delete(&self, name: &str) -> bool {
        if let Some(files) = &mut *locked(&self.files) {
            files.remove(&caller_part(name), name);
        }
        fs::remove_file(self.path.join(name)).is_ok()
    }

    fn read(&self, name: &str) -> Result<Option<StoredResponse>, UnreadResponse> {
        let path = self.path.join(name);
        let written = match fs::metadata(&path).and_then(|file| file.modified()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            written => written?,
        };
        if expired(written, self.limits.age, SystemTime::now()) {
            return Ok(None);
        }
        let bytes = match fs::read(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            bytes => bytes?,
        };
        let damaged = |problem| UnreadResponse::Damaged(format!("the file {name}: {problem}"));
        file::read(name, &bytes).map(Some).map_err(damaged)
    }
}

/// The files of a directory.
fn files_of(path: &Path) -> io::Result<Shares<String>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        let (name, file) = (entry.file_name(), entry.metadata()?);
        let is_part = Path::new(&name).extension().is_some_and(|extension| extension == PART_EXTENSION);
        if is_part && expired(file.modified()?, PART_AGE, SystemTime::now()) {
            let _ = fs::remove_file(entry.path());
        }
        if let Some(name) = name.to_str().filter(|name| name.ends_with(EXTENSION)) {
            found.push((name.to_owned(), file.len(), file.modified()?));
        }
    }
    found.sort_by_key(|(_, _, at)| *at);
    let mut files = Shares::new();
    found.into_iter().for_each(|(name, bytes, at)| {
        files.add(caller_part(&name), name, (bytes as usize).saturating_sub(file::HEAD_BYTES), at)
    });
    Ok(files)
}

/// The part of a file's name that stands for the API key.
fn caller_part(name: &str) -> String {
    name.split('.').next().unwrap_or_default().to_owned()
}

/// The name of a response's file. None: it is no id of this server, and could name another file.
fn file_name(caller: &CallerName, id: &str) -> Option<String> {
    let plain = |c: u8| c.is_ascii_alphanumeric() || c == b'_';
    if !id.bytes().all(plain) || id.is_empty() || id.len() > 64 {
        return None;
    }
    let caller = caller
        .as_ref()
        .map_or_else(|| "none".to_owned(), |name| sha256_hex(name.as_bytes())[..CALLER_DIGITS].to_owned());
    Some(format!("{caller}.{id}.{EXTENSION}"))
}
