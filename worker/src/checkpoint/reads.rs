//! Tracks file reads in progress, so that a thread that does not hang notices a read that does (on a network file
//! system without its server). It does not know what is read.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crossbeam_channel::{RecvTimeoutError, bounded};

use super::error::LoadError;
use crate::limits::STALL_CHECK_INTERVAL;

#[derive(Debug)]
pub struct Reads {
    timeout: Duration,
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    next: u64,
    reads: BTreeMap<u64, (Instant, PathBuf)>,
}

impl Reads {
    /// A read that returns nothing for `timeout` counts as stalled.
    pub fn new(timeout: Duration) -> Arc<Self> {
        Arc::new(Self { timeout, open: Mutex::default() })
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `read`, which may hang on `path`.
    pub fn during<T>(&self, path: &Path, read: impl FnOnce() -> T) -> T {
        let id = {
            let mut open = self.open();
            open.next += 1;
            let id = open.next;
            open.reads.insert(id, (Instant::now(), path.to_owned()));
            id
        };
        let result = read();
        self.open().reads.remove(&id);
        result
    }

    /// The error of the oldest read, if it has stalled.
    pub fn stalled(&self) -> Option<LoadError> {
        let open = self.open();
        let (since, path) = open.reads.values().next()?;
        let stalled = since.elapsed() > self.timeout;
        stalled.then(|| LoadError::Stalled { path: path.clone(), seconds: self.timeout.as_secs_f64() })
    }

    /// Runs `work` on its own thread. If one of these reads stalls, that thread is abandoned.
    pub fn watch<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, LoadError> + Send + 'static,
    ) -> Result<T, LoadError> {
        let ended = || LoadError::Rank { rank: 0, what: "the thread that opens the checkpoint panicked".into() };
        let (done, result) = bounded(1);
        // After a stall the receiver is gone.
        let run = move || drop(done.send(work()));
        std::thread::Builder::new().name("open".into()).spawn(run).map_err(|_| ended())?;
        loop {
            match result.recv_timeout(STALL_CHECK_INTERVAL) {
                Ok(result) => return result,
                Err(RecvTimeoutError::Disconnected) => return Err(ended()),
                Err(RecvTimeoutError::Timeout) => self.stalled().map_or(Ok(()), Err)?,
            }
        }
    }
}

#[cfg(test)]
mod tests;
