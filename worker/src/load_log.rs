//! Loading progress as log lines, for processes without a terminal. It does not know what is loaded.

use std::time::{Duration, Instant};

use crate::bytes::ByteCount;

/// Time between two log lines.
const LOG_INTERVAL: Duration = Duration::from_secs(5);

/// Logs the progress of one load.
pub struct LoadLog {
    started: Instant,
    logged: Instant,
    complete: bool,
}

impl LoadLog {
    pub fn start() -> Self {
        Self::start_at(Instant::now())
    }

    fn start_at(now: Instant) -> Self {
        LoadLog { started: now, logged: now, complete: false }
    }

    /// Logs that `done` of `total` bytes are read: every few seconds, and at the end.
    pub fn report(&mut self, done: u64, total: u64) {
        if let Some(line) = self.line(Instant::now(), done, total) {
            tracing::info!("{line}");
        }
    }

    fn line(&mut self, now: Instant, done: u64, total: u64) -> Option<String> {
        let elapsed = now - self.started;
        if total == 0 || self.complete {
            return None;
        }
        if done == total {
            self.complete = true;
            return Some(format!("weights loaded: {} in {:.1} s", ByteCount(total), elapsed.as_secs_f64()));
        }
        if now - self.logged < LOG_INTERVAL {
            return None;
        }
        self.logged = now;
        let percent = u128::from(done) * 100 / u128::from(total);
        let rate = ByteCount((done as f64 / elapsed.as_secs_f64()) as u64);
        Some(format!("loading weights: {} of {} ({percent} %), {rate}/s", ByteCount(done), ByteCount(total)))
    }
}

#[cfg(test)]
mod tests;
