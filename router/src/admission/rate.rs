//! A token bucket: so many per minute, a minute's worth at once at most. No clock: a function of `now`.

use std::time::Duration;

use tokio::time::Instant;

const MINUTE: f64 = 60.0;

#[derive(Debug, Clone)]
pub struct TokenBucket {
    per_minute: f64,
    /// Below 0: more was taken than was known beforehand, and has to flow back first.
    level: f64,
    at: Instant,
}

impl TokenBucket {
    /// Full.
    pub fn new(per_minute: u64, now: Instant) -> Self {
        TokenBucket { per_minute: per_minute as f64, level: per_minute as f64, at: now }
    }

    /// Another rate from here on.
    pub fn resize(&mut self, per_minute: u64, now: Instant) {
        self.flow(now);
        self.per_minute = per_minute as f64;
        self.level = self.level.min(self.per_minute);
    }

    pub fn limit(&self) -> u64 {
        self.per_minute as u64
    }

    /// One, or how long to wait for it.
    pub fn take(&mut self, now: Instant) -> Result<(), Duration> {
        self.ready(now)?;
        self.level -= 1.0;
        Ok(())
    }

    /// Whether there is one; else how long to wait for it.
    pub fn ready(&mut self, now: Instant) -> Result<(), Duration> {
        self.flow(now);
        // What has flowed in is a sum of fractions.
        if self.level >= 1.0 - 1e-6 { Ok(()) } else { Err(self.until(1.0)) }
    }

    /// Takes what was used, whether it is there or not.
    pub fn charge(&mut self, amount: u64, now: Instant) {
        self.flow(now);
        self.level -= amount as f64;
    }

    pub fn remaining(&mut self, now: Instant) -> u64 {
        self.flow(now);
        (self.level + 1e-6).max(0.0) as u64
    }

    /// Until it is full again.
    pub fn reset(&mut self, now: Instant) -> Duration {
        self.flow(now);
        self.until(self.per_minute)
    }

    fn until(&self, level: f64) -> Duration {
        Duration::try_from_secs_f64((level - self.level).max(0.0) * MINUTE / self.per_minute).unwrap_or(Duration::MAX)
    }

    fn flow(&mut self, now: Instant) {
        let time = now.saturating_duration_since(self.at);
        self.at = self.at.max(now);
        self.level = (self.level + time.as_secs_f64() * self.per_minute / MINUTE).min(self.per_minute);
    }
}

#[cfg(test)]
mod tests;
