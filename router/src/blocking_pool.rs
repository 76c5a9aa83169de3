//! Runs work that is too long for the async threads on a bounded number of blocking threads. It does not know what the
//! work is.

use std::{fmt, num::NonZero, thread::available_parallelism};

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
}

impl Default for BlockingPool {
    fn default() -> Self {
        let threads = available_parallelism().map_or(1, NonZero::get) / 2;
        let threads = threads.clamp(*limits::BLOCKING_THREADS.start(), *limits::BLOCKING_THREADS.end());
        BlockingPool { all: FairSemaphore::new(threads), large: FairSemaphore::new(threads / 2) }
    }
}

impl BlockingPool {
    /// Runs `work`, which reads `bytes` bytes, unless its deadline passes first. Work that has started is not stopped
    /// at the deadline: it keeps its thread until it ends, and its result is dropped.
    pub async fn run<T: Send + 'static>(
        &self,
        bytes: usize,
        requester: &Requester,
        work: impl FnOnce() -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let failed = |cause: &dyn fmt::Display| Error::internal("the request could not be prepared", cause);
        let large = match bytes > limits::LARGE_WORK_BYTES {
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
