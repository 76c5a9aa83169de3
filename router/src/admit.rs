//! Bounded requests in flight, and the end of them.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use crate::error::Error;

pub struct Admission {
    limit: u32,
    free: Arc<Semaphore>,
    draining: AtomicBool,
    aborted: watch::Sender<bool>,
}

/// One request in flight, until dropped.
pub struct Permit {
    _permit: OwnedSemaphorePermit,
    aborted: watch::Receiver<bool>,
}

impl Permit {
    /// Returns when the request has to end now. Cancel-safe.
    pub async fn aborted(&mut self) {
        raised(&mut self.aborted).await;
    }
}

impl Admission {
    pub fn new(limit: u32) -> Self {
        Admission {
            limit,
            free: Arc::new(Semaphore::new(limit as usize)),
            draining: AtomicBool::new(false),
            aborted: watch::Sender::new(false),
        }
    }

    pub fn enter(&self) -> Result<Permit, Error> {
        if self.draining() {
            return Err(Error::unavailable("this server is draining and takes no new requests"));
        }
        let permit = |_permit| Permit { _permit, aborted: self.aborted.subscribe() };
        self.free.clone().try_acquire_owned().map(permit).map_err(|_| {
            Error::full(format!(
                "this server has {} requests in flight, which is its limit; try again later",
                self.limit
            ))
        })
    }

    pub fn draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    pub fn limit(&self) -> u32 {
        self.limit
    }

    pub fn in_flight(&self) -> usize {
        self.limit as usize - self.free.available_permits()
    }

    /// Admits nothing more and returns when the last request is done.
    pub async fn drain(&self) {
        self.draining.store(true, Ordering::Release);
        // Fails only when the semaphore is closed, and nobody closes it.
        drop(self.free.acquire_many(self.limit).await);
    }

    /// Admits nothing more and ends what is open.
    pub fn abort(&self) {
        self.draining.store(true, Ordering::Release);
        self.aborted.send_replace(true);
    }

    /// Does a request's work, unless the server stops before it is done.
    pub async fn unless_aborted<T>(&self, work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        let mut aborted = self.aborted.subscribe();
        tokio::select! {
            biased;
            result = work => result,
            () = raised(&mut aborted) => Err(Error::shutting_down()),
        }
    }
}

async fn raised(flag: &mut watch::Receiver<bool>) {
    if flag.wait_for(|raised| *raised).await.is_err() {
        // The router is gone, and with it who could raise it.
        std::future::pending().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Kind;

    #[tokio::test]
    async fn full_then_free_then_draining() {
        let admission = Arc::new(Admission::new(2));
        let (first, second) = (admission.enter().unwrap(), admission.enter().unwrap());
        let full = admission.enter().err().unwrap();
        assert_eq!((full.kind, full.retry_after.is_some()), (Kind::Full, true));
        drop(first);
        let third = admission.enter().unwrap();
        let mut drain = Box::pin(admission.drain());
        assert!(futures::poll!(drain.as_mut()).is_pending());
        assert_eq!(admission.enter().err().unwrap().kind, Kind::Unavailable);
        drop(second);
        assert!(futures::poll!(drain.as_mut()).is_pending());
        drop(third);
        drain.await;
        assert_eq!(admission.in_flight(), 0);
    }
}
