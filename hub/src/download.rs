//! One file into the cache: under a lock, resumed where an earlier attempt ended, checked against its hash.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use http::{Response, StatusCode, header};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use ring::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY, SHA256};

use crate::cache::{Cached, create_parent};
use crate::client::{HubClient, HubFailure, backoff, innermost};
use crate::limits::{MAX_ATTEMPTS, READ_TIMEOUT};
use crate::listing::Blob;
use crate::{DownloadProgress, HubError};

const COPY_BYTES: usize = 1 << 20;

/// A file to download.
pub struct Download<'a> {
    pub client: &'a HubClient,
    pub cached: &'a Cached,
    /// `ORG/NAME`, for messages.
    pub id: &'a str,
    pub path: &'a str,
    pub url: String,
    pub blob: &'a Blob,
    pub progress: &'a dyn DownloadProgress,
}

impl Download<'_> {
    pub async fn run(&self) -> Result<(), HubError> {
        let whole = self.cached.blob(&self.blob.hash);
        if self.is_whole(&whole) {
            self.progress.at(self.path, self.blob.size);
            return Ok(());
        }
        let _lock = self.lock().await?;
        if self.is_whole(&whole) {
            self.progress.at(self.path, self.blob.size);
            return Ok(());
        }
        let draft = whole.with_file_name(format!("{}.incomplete", self.blob.hash));
        // What an earlier process left may be of another file of a mirror's, so a wrong hash gets one more attempt.
        let resumed = fs::metadata(&draft).is_ok_and(|file| file.len() > 0);
        match self.fetch(&draft).await {
            Err(error @ HubError::Hash { .. }) if resumed => {
                tracing::warn!(file = self.path, %error, "what an earlier download left is not of this file");
                self.fetch(&draft).await?;
            }
            done => done?,
        }
        fs::rename(&draft, &whole).map_err(HubError::disk(&whole))
    }

    fn is_whole(&self, path: &Path) -> bool {
        fs::metadata(path).is_ok_and(|file| file.len() == self.blob.size)
    }

    /// Waits for another process that downloads the same file.
    async fn lock(&self) -> Result<File, HubError> {
        let (path, file) = self.cached.lock_file(&self.blob.hash)?;
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(fs::TryLockError::WouldBlock) => {}
            Err(fs::TryLockError::Error(source)) => return Err(HubError::Disk { path, source }),
        }
        tracing::info!(file = self.path, "another process downloads this file; waiting for it");
        let locked = tokio::task::spawn_blocking(move || file.lock().map(|()| file)).await;
        locked.map_err(|error| io::Error::other(error.to_string())).flatten().map_err(HubError::disk(&path))
    }

    /// Downloads what the draft lacks, and checks it.
    async fn fetch(&self, draft: &Path) -> Result<(), HubError> {
        let mut part = Part::open(draft, self.blob)?;
        let mut failed = 0;
        while part.length < self.blob.size || self.blob.size == 0 {
            let before = part.length;
            match self.attempt(&mut part).await? {
                None => break,
                Some(HubFailure::Refused { status, message }) => {
                    let id = format!("{}: {}", self.id, self.path);
                    return Err(HubError::Refused { id, status, message });
                }
                Some(HubFailure::Answer(what)) => return Err(HubError::Answer { url: self.url.clone(), what }),
                Some(HubFailure::Passing { what, status, wait }) => {
                    failed = if part.length > before { 1 } else { failed + 1 };
                    if status == Some(StatusCode::RANGE_NOT_SATISFIABLE) {
                        part.restart()?;
                    }
                    if failed >= MAX_ATTEMPTS {
                        let what = format!("{what}; {} of {} bytes are kept", part.length, self.blob.size);
                        return Err(HubError::Unreachable { url: self.url.clone(), what });
                    }
                    let wait = backoff(failed, wait);
                    tracing::warn!(
                        file = self.path,
                        what,
                        bytes = part.length,
                        of = self.blob.size,
                        ?wait,
                        "the download is cut; it resumes"
                    );
                    tokio::time::sleep(wait).await;
                }
            }
        }
        match part.check(self.path) {
            Err(error) => {
                fs::remove_file(draft).map_err(HubError::disk(draft))?;
                Err(error)
            }
            done => done,
        }
    }

    /// One request. None: the file has all its bytes.
    async fn attempt(&self, part: &mut Part<'_>) -> Result<Option<HubFailure>, HubError> {
        let response = match self.client.open(&self.url, part.length).await {
            Err(failure) => return Ok(Some(failure)),
            Ok(response) => response,
        };
        if part.length > 0 && starts_at(&response) != part.length {
            // The server sends the whole file.
            part.restart()?;
        }
        let mut body = response.into_body();
        loop {
            match tokio::time::timeout(READ_TIMEOUT, body.frame()).await {
                Err(_) => return Ok(Some(HubFailure::passing(format!("no data for {READ_TIMEOUT:?}")))),
                Ok(Some(Err(error))) => return Ok(Some(HubFailure::passing(innermost(&error)))),
                Ok(None) if part.length < self.blob.size => {
                    return Ok(Some(HubFailure::passing("the answer ended early")));
                }
                Ok(None) => return Ok(None),
                Ok(Some(Ok(frame))) => {
                    let Ok(data) = frame.into_data() else { continue };
                    if part.length + data.len() as u64 > self.blob.size {
                        let what = format!("more than the {} bytes that the hub lists", self.blob.size);
                        part.restart()?;
                        return Ok(Some(HubFailure::passing(what)));
                    }
                    part.append(&data)?;
                    self.progress.at(self.path, part.length);
                }
            }
        }
    }
}

/// The position of an answer's first byte in the file.
fn starts_at(response: &Response<Incoming>) -> u64 {
    let range = response.headers().get(header::CONTENT_RANGE).and_then(|value| value.to_str().ok());
    match response.status() {
        StatusCode::PARTIAL_CONTENT => {
            range.and_then(|range| range.strip_prefix("bytes ")?.split('-').next()?.parse().ok()).unwrap_or(0)
        }
        _ => 0,
    }
}

/// The bytes of a file so far, and their hash.
struct Part<'a> {
    path: PathBuf,
    file: File,
    length: u64,
    blob: &'a Blob,
    hash: Option<Context>,
}

impl<'a> Part<'a> {
    fn open(path: &Path, blob: &'a Blob) -> Result<Self, HubError> {
        let open = || {
            create_parent(path)?;
            File::options().create(true).truncate(false).read(true).write(true).open(path)
        };
        let mut file = open().map_err(HubError::disk(path))?;
        let mut hash = new_hash(blob);
        let mut length = 0;
        let mut buffer = vec![0; COPY_BYTES];
        loop {
            let read = file.read(&mut buffer).map_err(HubError::disk(path))?;
            if read == 0 {
                break;
            }
            length += read as u64;
            if let Some(hash) = &mut hash {
                hash.update(&buffer[..read]);
            }
        }
        let mut part = Part { path: path.to_owned(), file, length, blob, hash };
        if part.length > blob.size {
            part.restart()?;
        }
        Ok(part)
    }

    fn append(&mut self, data: &[u8]) -> Result<(), HubError> {
        self.file.write_all(data).map_err(|source| match source.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
                // What was written of the data counts: the next attempt begins after it.
                HubError::Full { path: self.path.clone(), needed: self.blob.size - self.length, free: free(&self.path) }
            }
            _ => HubError::Disk { path: self.path.clone(), source },
        })?;
        self.length += data.len() as u64;
        if let Some(hash) = &mut self.hash {
            hash.update(data);
        }
        Ok(())
    }

    fn restart(&mut self) -> Result<(), HubError> {
        let emptied = self.file.set_len(0).and_then(|()| self.file.seek(SeekFrom::Start(0)));
        emptied.map_err(HubError::disk(&self.path))?;
        self.length = 0;
        self.hash = new_hash(self.blob);
        Ok(())
    }

    /// Compares the hash with the Hub's.
    fn check(self, path: &str) -> Result<(), HubError> {
        self.file.sync_all().map_err(HubError::disk(&self.path))?;
        let Some(hash) = self.hash else {
            tracing::warn!(
                file = path,
                tag = self.blob.hash,
                "the server gives no hash of this file; it is not checked"
            );
            return Ok(());
        };
        let algorithm = if self.blob.hash.len() == 64 { "SHA-256" } else { "git's SHA-1" };
        let actual = hash.finish().as_ref().iter().fold(String::new(), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        });
        match actual == self.blob.hash {
            true => Ok(()),
            false => Err(HubError::Hash { file: path.to_owned(), algorithm, expected: self.blob.hash.clone(), actual }),
        }
    }
}

/// The hash that a blob's name is, if it is one.
fn new_hash(blob: &Blob) -> Option<Context> {
    let is_hex = blob.hash.bytes().all(|b| b.is_ascii_hexdigit());
    match blob.hash.len() {
        64 if is_hex => Some(Context::new(&SHA256)),
        40 if is_hex => {
            let mut hash = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
            hash.update(format!("blob {}\0", blob.size).as_bytes());
            Some(hash)
        }
        _ => None,
    }
}

/// Bytes that this process may still write beside a path.
pub fn free(path: &Path) -> u64 {
    let existing = path.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"));
    rustix::fs::statvfs(existing).map_or(u64::MAX, |fs| fs.f_bavail.saturating_mul(fs.f_frsize))
}
