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
mod tests {
    use super::*;

    #[test]
    fn a_line_every_few_seconds_and_one_at_the_end() {
        let began = Instant::now();
        let mut log = LoadLog::start_at(began);
        let total = 4 << 30;
        let mut lines = Vec::new();
        for second in 0..=16 {
            lines.extend(log.line(began + Duration::from_secs(second), second << 28, total));
        }
        lines.extend(log.line(began + Duration::from_secs(17), total, total));
        assert_eq!(
            lines,
            [
                "loading weights: 1.2 GiB of 4.0 GiB (31 %), 256.0 MiB/s",
                "loading weights: 2.5 GiB of 4.0 GiB (62 %), 256.0 MiB/s",
                "loading weights: 3.8 GiB of 4.0 GiB (93 %), 256.0 MiB/s",
                "weights loaded: 4.0 GiB in 16.0 s",
            ]
        );
    }

    #[test]
    fn nothing_to_load_is_not_logged() {
        let began = Instant::now();
        assert_eq!(LoadLog::start_at(began).line(began + LOG_INTERVAL, 0, 0), None);
    }
}
