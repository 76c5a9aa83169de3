//! How long routers take to refuse a token. It does not know sequences.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::limits;

/// The longest time of late from tokens to the steer that refuses one of them, in nanoseconds.
#[derive(Debug, Default)]
pub struct VerdictTime(AtomicU64);

impl VerdictTime {
    pub fn note(&self, took: Duration) {
        let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let longest = |before: u64| Some(took.max(before - before / limits::VERDICT_DECAY));
        // The closure always has a value.
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, longest);
    }

    /// How long the chunk after one that took so long waits, if refused tokens are likely.
    pub fn pause(&self, chunk: Duration) -> Duration {
        let wait = Duration::from_nanos(self.0.load(Ordering::Relaxed)).saturating_mul(limits::VERDICTS_WAITED);
        wait.clamp(chunk / limits::CHUNK_PAUSE, chunk / limits::REFUSED_PAUSE)
    }
}

#[cfg(test)]
mod tests;
