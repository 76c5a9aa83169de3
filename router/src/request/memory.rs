//! What requests hold in memory until they are tokens: their bodies while they are read, their values after that. All
//! of it is charged to one budget.

use std::sync::Arc;

use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, timeout, timeout_at},
};

use crate::{blocking_pool::BlockingPool, error::Error, limits};

/// The budget counts in these.
const UNIT: usize = 1 << 10;

pub struct RequestMemory {
    budget: Arc<Semaphore>,
    parsers: BlockingPool,
}

/// What one request has charged to the budget, until dropped.
pub struct MemoryCharge {
    budget: Arc<Semaphore>,
    permit: Option<OwnedSemaphorePermit>,
}

impl RequestMemory {
    /// `body`: the most bytes that one body may have.
    pub fn new(body: usize) -> Self {
        let units = limits::HELD_BYTES.max(4 * body) / UNIT;
        RequestMemory {
            budget: Arc::new(Semaphore::new(units.min(Semaphore::MAX_PERMITS))),
            parsers: BlockingPool::default(),
        }
    }

    pub fn hold(&self) -> MemoryCharge {
        MemoryCharge { budget: self.budget.clone(), permit: None }
    }

    /// Reads a body of so many bytes: a large one off the async threads.
    pub async fn parse<T: Send + 'static>(
        &self,
        bytes: usize,
        deadline: Instant,
        read: impl FnOnce() -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        match bytes <= limits::INLINE_TEXT_BYTES {
            true => read(),
            false => self.parsers.run(bytes, deadline, read).await,
        }
    }
}

impl MemoryCharge {
    /// Charges this many bytes in all. What little a usual request holds is free, so that it never waits for large
    /// ones.
    pub async fn charge(&mut self, bytes: usize, until: Instant) -> Result<(), Error> {
        let units = bytes.saturating_sub(limits::FREE_BYTES).div_ceil(UNIT);
        let held = self.permit.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        if units <= held {
            // Dropped, it is given back.
            drop(self.permit.as_mut().and_then(|permit| permit.split(held - units)));
            return Ok(());
        }
        let more = u32::try_from(units - held).unwrap_or(u32::MAX);
        let acquired = timeout(limits::HELD_WAIT, self.budget.clone().acquire_many_owned(more));
        let permit = match timeout_at(until, acquired).await {
            Ok(Ok(Ok(permit))) => permit,
            _ => {
                let message = "large requests hold all memory that this server has for them; try again later";
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
