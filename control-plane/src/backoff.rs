//! Exponential backoff with deterministic jitter.
//!
//! This module does not know what is retried.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    time::Duration,
};

use crate::{limits, store::StoreError};

/// A function of the node's name and the number of waits, so that a simulation can be replayed.
#[derive(Debug, Clone)]
pub struct Backoff {
    who: String,
    attempts: u32,
    waits: u64,
    told: bool,
}

impl Backoff {
    pub fn new(who: &str) -> Self {
        Backoff { who: who.to_owned(), attempts: 0, waits: 0, told: false }
    }

    /// After success: the next wait is short.
    pub fn reset(&mut self) {
        if std::mem::take(&mut self.told) {
            tracing::info!(who = self.who, "the store is reachable again");
        }
        self.attempts = 0;
    }

    /// Logs a warning for the first failure of an outage only.
    pub fn failed(&mut self, what: &str, error: &StoreError) {
        match std::mem::replace(&mut self.told, true) {
            false => tracing::warn!(who = self.who, %error, "{what}; retrying"),
            true => tracing::debug!(who = self.who, %error, "{what}; retrying"),
        }
    }

    /// Half to all of a time that doubles from attempt to attempt.
    pub fn next(&mut self) -> Duration {
        let longest = limits::MIN_RETRY_WAIT.saturating_mul(1 << self.attempts.min(16)).min(limits::MAX_RETRY_WAIT);
        self.attempts += 1;
        self.waits += 1;
        let mut hasher = DefaultHasher::new();
        (&self.who, self.waits).hash(&mut hasher);
        longest.mul_f64(0.5 + 0.5 * (hasher.finish() as f64 / u64::MAX as f64))
    }

    pub async fn wait(&mut self) {
        tokio::time::sleep(self.next()).await;
    }
}
