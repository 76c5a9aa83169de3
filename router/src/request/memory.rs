//! Charges the memory of all requests to one budget until they are tokenized: their bodies while they are read, then
//! their decoded values.

use std::sync::Arc;

use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, timeout, timeout_at},
};

use crate::{blocking_pool::BlockingPool, error::Error, fair::Requester, limits};

/// Bytes per unit of the budget.
const UNIT: usize = 1 << 10;

pub struct RequestMemory {
    budget: Arc<Semaphore>,
    parsers: BlockingPool,
}

/// One request's share of the budget. Dropping it returns the share.
pub struct MemoryCharge {
    budget: Arc<Semaphore>,
    permit: Option<OwnedSemaphorePermit>,
}

impl RequestMemory {
    /// `body` is the maximum size of one body, in bytes.
    pub fn new(body: usize) -> Self {
        let units = limits::BODY_MEMORY_BYTES.max(4 * body) / UNIT;
        RequestMemory {
            budget: Arc::new(Semaphore::new(units.min(Semaphore::MAX_PERMITS))),
            parsers: BlockingPool::default(),
        }
    }

    pub fn open_charge(&self) -> MemoryCharge {
        MemoryCharge { budget: self.budget.clone(), permit: None }
    }

    /// Decodes a body of this many bytes: inline if it is small, else off the async threads.
    pub async fn parse<T: Send + 'static>(
        &self,
        bytes: usize,
        requester: &Requester,
        read: impl FnOnce() -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        match bytes <= limits::INLINE_TEXT_BYTES {
            true => read(),
            false => self.parsers.run(bytes, requester, read).await,
        }
    }
}

impl MemoryCharge {
    /// Sets this request's charge to `bytes` in total. The first [`limits::UNCOUNTED_BODY_BYTES`] are free, so that
    /// small requests never wait for large ones.
    pub async fn resize(&mut self, bytes: usize, until: Instant) -> Result<(), Error> {
        let units = bytes.saturating_sub(limits::UNCOUNTED_BODY_BYTES).div_ceil(UNIT);
        let held = self.permit.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        if units <= held {
            // Dropping the surplus returns it to the budget.
            drop(self.permit.as_mut().and_then(|permit| permit.split(held - units)));
            return Ok(());
        }
        let more = u32::try_from(units - held).unwrap_or(u32::MAX);
        let acquired = timeout(limits::BODY_MEMORY_WAIT, self.budget.clone().acquire_many_owned(more));
        let permit = match timeout_at(until, acquired).await {
            Ok(Ok(Ok(permit))) => permit,
            _ => {
                let message = "the memory for large requests is full; try again later";
                return Err(Error::full(message));
            }
        };
        match &mut self.permit {
            Some(held) => held.merge(permit),
            none => *none = Some(permit),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
