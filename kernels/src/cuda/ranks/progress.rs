//! Counts a rank's exchanges, so that a device that hangs is noticed. It does not know how numbers travel.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use super::super::{CudaDevice, DeviceBuffer, PinnedBuffer, Result};

/// A device that has work and passes no exchange for this long hangs: a kernel, or a link. Between two exchanges is a
/// part of one layer.
const HANG_TIME: Duration = Duration::from_secs(4);
/// [`HANG_TIME`], but well below the deadline of a step: past the deadline nobody knows which rank hangs.
pub(in super::super) fn hang_time(step_deadline: Option<Duration>) -> Duration {
    step_deadline.map_or(HANG_TIME, |deadline| HANG_TIME.min(deadline / 2))
}

/// The most that counts of the time between two looks: a process that was stopped has not waited.
const LONGEST_LOOK: Duration = Duration::from_millis(100);

/// The exchanges of one group.
pub(super) struct ExchangeCount {
    /// Exchanges that the host has put into the stream in all groups, those of recorded steps included.
    begun: Arc<AtomicU32>,
    /// Of these, the ones before this group.
    before: u32,
    /// Where kernels count.
    counter: DeviceBuffer,
    /// Where they tell the host.
    passed: PinnedBuffer,
}

impl ExchangeCount {
    pub fn new(device: &CudaDevice, begun: Arc<AtomicU32>) -> Result<ExchangeCount> {
        let counter = device.allocate(4)?;
        counter.write(device, 0, &[0u32])?;
        let before = begun.load(Ordering::Acquire);
        Ok(ExchangeCount { begun, before, counter, passed: PinnedBuffer::new(device, 4)? })
    }

    /// The arguments `count` and `passed` of kernels.
    pub fn arguments(&self) -> Result<[u64; 2]> {
        Ok([self.counter.address(), self.passed.address()?])
    }

    fn begun(&self) -> u32 {
        self.begun.load(Ordering::Acquire).wrapping_sub(self.before)
    }

    fn passed(&self) -> u32 {
        self.passed.flag().load(Ordering::Acquire)
    }
}

/// Notices that a device hangs, from looks at its counts.
#[derive(Debug, Clone, Copy)]
pub(super) struct HangWatch {
    limit: Duration,
    seen: u32,
    last: Instant,
    waited: Duration,
}

impl HangWatch {
    pub fn new(limit: Duration, now: Instant) -> HangWatch {
        HangWatch { limit, seen: 0, last: now, waited: Duration::ZERO }
    }

    /// Whether the device hangs.
    pub fn look(&mut self, count: &ExchangeCount) -> bool {
        // Read first: it may pass more meanwhile.
        let passed = count.passed();
        self.hangs(count.begun(), passed, Instant::now())
    }

    fn hangs(&mut self, begun: u32, passed: u32, now: Instant) -> bool {
        let since = now.saturating_duration_since(self.last).min(LONGEST_LOOK);
        self.last = now;
        if begun == passed || passed != self.seen {
            (self.seen, self.waited) = (passed, Duration::ZERO);
            return false;
        }
        self.waited += since;
        self.waited > self.limit
    }
}

#[cfg(test)]
mod tests;
