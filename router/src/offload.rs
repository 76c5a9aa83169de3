//! Work that is too long for the async threads: on threads of its own, bounded in number, and in turn. It knows nothing of
//! what the work is.

use std::{fmt, num::NonZero, sync::Arc, thread::available_parallelism};

use tokio::{
    sync::Semaphore,
    task::spawn_blocking,
    time::{Instant, timeout_at},
};
use tracing::Span;

use crate::{error::Error, limits};

/// A bounded number of threads. Large work may take half of them, so that small work does not wait behind it.
pub struct Workers {
    all: Arc<Semaphore>,
    large: Arc<Semaphore>,
}

impl Default for Workers {
    fn default() -> Self {
        let threads = available_parallelism().map_or(1, NonZero::get) / 2;
        let threads = threads.clamp(*limits::OFF_THREADS.start(), *limits::OFF_THREADS.end());
        Workers { all: Arc::new(Semaphore::new(threads)), large: Arc::new(Semaphore::new(threads / 2)) }
    }
}

impl Workers {
    /// Does the work, which reads so many bytes, unless the deadline passes first. Work that has begun goes on then, with
    /// its thread, and its result is dropped.
    pub async fn run<T: Send + 'static>(
        &self,
        bytes: usize,
        deadline: Instant,
        work: impl FnOnce() -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let failed = |cause: &dyn fmt::Display| Error::internal("the request could not be prepared", cause);
        let turn = async {
            let large = match bytes > limits::LARGE_WORK_BYTES {
                true => Some(self.large.clone().acquire_owned().await?),
                false => None,
            };
            Ok::<_, tokio::sync::AcquireError>((large, self.all.clone().acquire_owned().await?))
        };
        let permits = timeout_at(deadline, turn).await.map_err(|_| Error::deadline())?.map_err(|e| failed(&e))?;
        let span = Span::current();
        let work = spawn_blocking(move || {
            let _permits = permits;
            span.in_scope(work)
        });
        match timeout_at(deadline, work).await {
            Ok(done) => done.unwrap_or_else(|panic| Err(failed(&panic))),
            Err(_) => Err(Error::deadline()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, time::Duration};

    use super::*;
    use crate::error::Kind;

    fn workers(threads: usize) -> Workers {
        Workers { all: Arc::new(Semaphore::new(threads)), large: Arc::new(Semaphore::new(threads / 2)) }
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(20)
    }

    #[tokio::test]
    async fn small_work_does_not_wait_behind_large_work() {
        let workers = Arc::new(workers(2));
        let (end, ended) = mpsc::sync_channel::<()>(0);
        let large = |work: Box<dyn FnOnce() -> Result<bool, Error> + Send>| {
            let workers = workers.clone();
            tokio::spawn(async move { workers.run(limits::LARGE_WORK_BYTES + 1, soon(), work).await })
        };
        // The thread waits until the test ends it.
        let first = large(Box::new(move || Ok(ended.recv().is_ok())));
        let second = large(Box::new(|| Ok(true)));
        while workers.all.available_permits() == 2 {
            tokio::task::yield_now().await;
        }
        assert_eq!(workers.run(1, soon(), || Ok(7)).await.unwrap(), 7);
        assert!(!first.is_finished() && !second.is_finished());
        drop(end);
        first.await.unwrap().unwrap();
        second.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn a_deadline_that_passes_in_line_or_at_work_ends_the_wait() {
        let workers = workers(2);
        let (end, ended) = mpsc::sync_channel::<()>(0);
        let late = || Instant::now() + Duration::from_millis(20);
        let at_work = workers.run(usize::MAX, late(), move || Ok(ended.recv().is_ok())).await;
        assert_eq!(at_work.unwrap_err().kind, Kind::Deadline);
        let in_line = workers.run(usize::MAX, late(), || Ok(())).await;
        assert_eq!(in_line.unwrap_err().kind, Kind::Deadline);
        drop(end);
        workers.run(usize::MAX, soon(), || Ok(())).await.unwrap();
        let panicked = workers.run(1, soon(), || -> Result<(), Error> { panic!("oh") }).await;
        assert_eq!(panicked.unwrap_err().kind, Kind::Internal);
    }
}
