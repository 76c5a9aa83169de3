//! Responses as files of one directory, which several routers may share.

use std::{
    collections::HashMap,
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::SystemTime,
};

use rein_text::sha256_hex;

use super::{ResponseLimits, Shares, StoredResponse, expired, locked};
use crate::{fair::CallerName, limits};

/// Between the two texts of a file. JSON texts have no zero byte.
const SEPARATOR: u8 = 0;
const EXTENSION: &str = "response";
/// Hexadecimal digits of the API key's digest in a file's name.
const CALLER_DIGITS: usize = 16;

#[derive(Clone)]
pub struct ResponseDirectory(Arc<Shared>);

struct Shared {
    path: PathBuf,
    limits: ResponseLimits,
    /// Responses whose files are being written.
    pending: Mutex<HashMap<String, StoredResponse>>,
    /// The names of the files, by the part of the name that stands for the API key. None: the directory was not read
    /// yet.
    files: Mutex<Option<Shares<String>>>,
}

impl ResponseDirectory {
    pub fn new(path: PathBuf, limits: ResponseLimits) -> Self {
        ResponseDirectory(Arc::new(Shared { path, limits, pending: Mutex::default(), files: Mutex::default() }))
    }

    /// Until the file is written, the response is served from memory.
    pub fn put(&self, caller: &CallerName, id: &str, stored: StoredResponse) {
        let Some(name) = file_name(caller, id) else { return };
        {
            let mut pending = locked(&self.0.pending);
            let bytes: usize = pending.values().map(StoredResponse::bytes).sum();
            if pending.len() >= limits::PENDING_RESPONSES || bytes + stored.bytes() > self.0.limits.bytes {
                tracing::error!("a response could not be stored: the disk does not keep up");
                return;
            }
            pending.insert(name.clone(), stored.clone());
        }
        let shared = self.0.clone();
        tokio::task::spawn_blocking(move || {
            if let Err(error) = shared.write(&name, &stored) {
                tracing::error!(%error, path = %shared.path.display(), "a response could not be stored");
                locked(&shared.pending).remove(&name);
            }
        });
    }

    /// Whether every file has been written, and those beyond the limits have been removed.
    #[cfg(test)]
    pub fn is_settled(&self) -> bool {
        let written = locked(&self.0.pending).is_empty();
        drop(locked(&self.0.files));
        written
    }

    pub async fn get(&self, caller: &CallerName, id: &str) -> Option<StoredResponse> {
        let name = file_name(caller, id)?;
        if let Some(stored) = locked(&self.0.pending).get(&name) {
            return Some(stored.clone());
        }
        let shared = self.0.clone();
        tokio::task::spawn_blocking(move || shared.read(&name)).await.ok()?
    }

    pub async fn delete(&self, caller: &CallerName, id: &str) -> bool {
        let Some(name) = file_name(caller, id) else { return false };
        // What is not pending any more does not become a file.
        if locked(&self.0.pending).remove(&name).is_some() {
            return true;
        }
        let shared = self.0.clone();
        tokio::task::spawn_blocking(move || shared.delete(&name)).await.unwrap_or(false)
    }
}

impl Shared {
    fn write(&self, name: &str, stored: &StoredResponse) -> io::Result<()> {
        fs::create_dir_all(&self.path)?;
        let whole = self.path.join(name);
        let part = whole.with_extension("part");
        fs::write(&part, [&*stored.response, &[SEPARATOR], &*stored.input].concat())?;
        let mut files = locked(&self.files);
        {
            // Under the lock, so that the response is deleted either before it is a file or as one.
            let mut pending = locked(&self.pending);
            if pending.remove(name).is_none() {
                return fs::remove_file(&part);
            }
            fs::rename(&part, &whole)?;
        }
        let now = SystemTime::now();
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

    fn read(&self, name: &str) -> Option<StoredResponse> {
        let path = self.path.join(name);
        let written = fs::metadata(&path).and_then(|file| file.modified()).ok()?;
        if expired(written, self.limits.age, SystemTime::now()) {
            return None;
        }
        let bytes = fs::read(path).ok()?;
        let at = bytes.iter().position(|&byte| byte == SEPARATOR)?;
        Some(StoredResponse { response: bytes[..at].into(), input: bytes[at + 1..].into() })
    }
}

/// The files of a directory.
fn files_of(path: &Path) -> io::Result<Shares<String>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        let (name, file) = (entry.file_name(), entry.metadata()?);
        if let Some(name) = name.to_str().filter(|name| name.ends_with(EXTENSION)) {
            found.push((name.to_owned(), file.len(), file.modified()?));
        }
    }
    found.sort_by_key(|(_, _, at)| *at);
    let mut files = Shares::new();
    found.into_iter().for_each(|(name, bytes, at)| files.add(caller_part(&name), name, bytes as usize, at));
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
