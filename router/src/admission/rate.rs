//! A token bucket with a rate per minute and a burst of one minute. It has no clock: every method takes `now`.

use std::time::Duration;

use tokio::time::Instant;

const MINUTE: f64 = 60.0;

#[derive(Debug, Clone)]
pub struct TokenBucket {
    per_minute: f64,
    /// Negative after a [`Self::charge`] of more than the bucket had.
    level: f64,
    updated: Instant,
}

impl TokenBucket {
    /// A full bucket.
    pub fn new(per_minute: u64, now: Instant) -> Self {
        TokenBucket { per_minute: per_minute as f64, level: per_minute as f64, updated: now }
    }

    /// A bucket with this in it.
    pub fn with_level(per_minute: u64, level: f64, now: Instant) -> Self {
        let full = TokenBucket::new(per_minute, now);
        TokenBucket { level: level.min(full.level), ..full }
    }

    /// Changes the rate from `now` on.
    pub fn resize(&mut self, per_minute: u64, now: Instant) {
        self.refill(now);
        self.per_minute = per_minute as f64;
        self.level = self.level.min(self.per_minute);
    }

    pub fn limit(&self) -> u64 {
        self.per_minute as u64
    }

    /// Whether the bucket has a token. Err: the time until it has one.
    pub fn ready(&mut self, now: Instant) -> Result<(), Duration> {
        self.refill(now);
        // The tolerance is for rounding errors of the refill.
        if self.level >= 1.0 - 1e-6 { Ok(()) } else { Err(self.time_until(1.0)) }
    }

    /// Takes `amount` even if the bucket has less: its level may become negative.
    pub fn charge(&mut self, amount: u64, now: Instant) {
        self.refill(now);
        self.level -= amount as f64;
    }

    pub fn level(&mut self, now: Instant) -> f64 {
        self.refill(now);
        self.level
    }

    fn time_until(&self, level: f64) -> Duration {
        Duration::try_from_secs_f64((level - self.level).max(0.0) * MINUTE / self.per_minute).unwrap_or(Duration::MAX)
    }

    fn refill(&mut self, now: Instant) {
        let time = now.saturating_duration_since(self.updated);
        self.updated = self.updated.max(now);
        self.level = (self.level + time.as_secs_f64() * self.per_minute / MINUTE).min(self.per_minute);
    }
}

/// How many whole tokens these are.
pub fn whole(level: f64) -> u64 {
    // The tolerance is for rounding errors of the refill.
    (level + 1e-6).max(0.0) as u64
}

#[cfg(test)]
mod tests;
