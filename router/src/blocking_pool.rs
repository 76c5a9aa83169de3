//! Runs work that is too long for the async threads on a bounded number of blocking threads. It does not know what the
//! work is.

use std::{fmt, num::NonZero, thread::available_parallelism};

use rein_text::tokenize::MAX_TEXT_BYTES;
use tokio::{task::spawn_blocking, time::timeout_at};
use tracing::Span;

use crate::{
    error::Error,
    fair::{FairSemaphore, Requester},
    limits,
};

/// A bounded number of threads, which callers use in turn. Large work may use at most half of them, so that small work
/// does not wait behind it.
pub struct BlockingPool {
    all: FairSemaphore,
    large: FairSemaphore,
    /// Work on more bytes is large.
    small: usize,
}

impl Default for BlockingPool {
    fn default() -> Self {
        Self::within(usize::MAX)
    }
}

impl BlockingPool {
    /// Tokenizing takes this many bytes of memory at most: half for large works, half for small ones.
    pub fn within(bytes: usize) -> Self {
        let threads = available_parallelism().map_or(1, NonZero::get) / 2;
        let threads = threads.clamp(*limits::BLOCKING_THREADS.start(), *limits::BLOCKING_THREADS.end());
        let half = bytes / 2 / limits::TOKENIZING_PER_BYTE;
        let large = (threads / 2).min(half / MAX_TEXT_BYTES).max(1);
        let small = limits::LARGE_WORK_BYTES.min(half / threads);
        BlockingPool { all: FairSemaphore::new(threads), large: FairSemaphore::new(large), small }
    }

    /// Runs `work`, which reads `bytes` bytes, unless its deadline passes first. Work that has started is not stopped
    /// at the deadline: it keeps its thread until it ends, and its result is dropped.
    pub async fn run<T: Send + 'static>(
        &self,
        bytes: usize,
        requester: &Requester,
        work: impl FnOnce() -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let failed = |cause: &dyn fmt::Display| Error::internal("the request could not be prepared", cause);
        let large = match bytes > self.small {
            true => Some(self.large.acquire(requester).await?),
            false => None,
        };
        let permits = (large, self.all.acquire(requester).await?);
        let span = Span::current();
        let work = spawn_blocking(move || {
            let _permits = permits;
            span.in_scope(work)
        });
        match timeout_at(requester.deadline, work).await {
            Ok(done) => done.unwrap_or_else(|panic| Err(failed(&panic))),
            Err(_) => Err(Error::deadline()),
        }
    }
}

#[cfg(test)]
mod tests;
