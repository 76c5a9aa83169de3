//! Charges the memory of all requests to two budgets: their bodies while they are read, and then their decoded values
//! until they are tokenized; the state of their grammars while they generate; and their answers until they are read.

mod division;

use std::sync::Arc;

use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, timeout, timeout_at},
};

use crate::{blocking_pool::BlockingPool, error::Error, fair::Requester, limits};
pub use division::MemoryLimits;

/// Bytes per unit of the budget.
const UNIT: usize = 1 << 10;

pub struct RequestMemory {
    /// Bodies, and their values until they are tokenized.
    bodies: MemoryBudget,
    uncounted_body: usize,
    /// The grammars' state.
    pub matchers: MatcherMemory,
    /// Large answers until their clients have read them.
    pub answers: MemoryBudget,
    parsers: BlockingPool,
}

/// The budget of the grammars' state.
#[derive(Clone)]
pub struct MatcherMemory {
    pub budget: MemoryBudget,
    /// Bytes of each choice that do not count.
    pub uncounted: usize,
}

/// Bytes that requests share.
#[derive(Clone)]
pub struct MemoryBudget {
    bytes: usize,
    units: Arc<Semaphore>,
    /// What it is for, in errors.
    purpose: &'static str,
}

/// A share of a budget. Dropping it returns the share.
pub struct MemoryCharge {
    budget: MemoryBudget,
    /// Bytes that do not count.
    uncounted: usize,
    permit: Option<OwnedSemaphorePermit>,
}

impl RequestMemory {
    pub fn new(limits: &MemoryLimits) -> Self {
        let MemoryLimits { bodies, uncounted_body, matchers, uncounted_matcher, answers, .. } = *limits;
        let matchers = MemoryBudget::new(matchers, "grammars");
        RequestMemory {
            bodies: MemoryBudget::new(bodies, "large requests"),
            uncounted_body,
            matchers: MatcherMemory { budget: matchers, uncounted: uncounted_matcher },
            answers: MemoryBudget::new(answers, "large answers"),
            parsers: BlockingPool::default(),
        }
    }

    /// The charge of a body: small requests never wait for large ones.
    pub fn open_charge(&self) -> MemoryCharge {
        self.bodies.open_charge(self.uncounted_body)
    }

    /// The charge of an answer of about this many bytes, until its client has read it. Small ones do not count.
    pub async fn charge_answer(&self, bytes: usize, deadline: Instant) -> Result<MemoryCharge, Error> {
        let mut charge = self.answers.open_charge(limits::UNCOUNTED_ANSWER_BYTES);
        charge.resize(bytes.min(self.answers.bytes()), deadline).await?;
        Ok(charge)
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

impl MemoryBudget {
    fn new(bytes: usize, purpose: &'static str) -> Self {
        let units = (bytes / UNIT).min(Semaphore::MAX_PERMITS);
        MemoryBudget { bytes, units: Arc::new(Semaphore::new(units)), purpose }
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// A charge of which only what is above `uncounted` bytes counts.
    pub fn open_charge(&self, uncounted: usize) -> MemoryCharge {
        MemoryCharge { budget: self.clone(), uncounted, permit: None }
    }

    fn full(&self) -> Error {
        Error::full(format!("the memory for {} is full; try again later", self.purpose))
    }
}

impl MemoryCharge {
    /// Sets the charge to `bytes` in total, and waits for them if necessary.
    pub async fn resize(&mut self, bytes: usize, until: Instant) -> Result<(), Error> {
        let Some(more) = self.shrink(bytes) else { return Ok(()) };
        let acquired = timeout(limits::MEMORY_WAIT, self.budget.units.clone().acquire_many_owned(more));
        match timeout_at(until, acquired).await {
            Ok(Ok(Ok(permit))) => self.add(permit),
            _ => return Err(self.budget.full()),
        }
        Ok(())
    }

    /// Like [`MemoryCharge::resize`], but fails at once if the bytes are not free.
    pub fn try_resize(&mut self, bytes: usize) -> Result<(), Error> {
        let Some(more) = self.shrink(bytes) else { return Ok(()) };
        match self.budget.units.clone().try_acquire_many_owned(more) {
            Ok(permit) => self.add(permit),
            Err(_) => return Err(self.budget.full()),
        }
        Ok(())
    }

    /// Returns what is above `bytes` to the budget, or else the units that are missing.
    fn shrink(&mut self, bytes: usize) -> Option<u32> {
        let units = bytes.saturating_sub(self.uncounted).div_ceil(UNIT);
        let held = self.permit.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        if units <= held {
            drop(self.permit.as_mut().and_then(|permit| permit.split(held - units)));
            return None;
        }
        Some(u32::try_from(units - held).unwrap_or(u32::MAX))
    }

    fn add(&mut self, permit: OwnedSemaphorePermit) {
        match &mut self.permit {
            Some(held) => held.merge(permit),
            none => *none = Some(permit),
        }
    }
}

#[cfg(test)]
mod tests;
