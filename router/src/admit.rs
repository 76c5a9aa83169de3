//! Bounded requests in flight, and the end of them.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::error::Error;

pub struct Admission {
    limit: u32,
    free: Arc<Semaphore>,
    draining: AtomicBool,
}

/// One request in flight, until dropped.
pub struct Permit {
    _permit: OwnedSemaphorePermit,
}

impl Admission {
    pub fn new(limit: u32) -> Self {
        Admission { limit, free: Arc::new(Semaphore::new(limit as usize)), draining: AtomicBool::new(false) }
    }

    pub fn enter(&self) -> Result<Permit, Error> {
        if self.draining() {
            return Err(Error::unavailable("this server is draining and takes no new requests"));
        }
        self.free.clone().try_acquire_owned().map(|_permit| Permit { _permit }).map_err(|_| {
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
