//! Exponential backoff with deterministic jitter, and the log lines of an outage of the store.
//!
//! This module does not know what is retried.

use std::{
    collections::BTreeSet,
    hash::{DefaultHasher, Hash, Hasher},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use crate::{limits, store::StoreError};

/// A process has several watches and a session, which all fail in one outage. Each message is logged once.
static OUTAGE: Mutex<Outage> = Mutex::new(Outage::new());

/// An outage lasts while at least one backoff is failing.
#[derive(Debug)]
struct Outage {
    failing: usize,
    logged: BTreeSet<&'static str>,
}

impl Outage {
    const fn new() -> Self {
        Outage { failing: 0, logged: BTreeSet::new() }
    }

    /// One more backoff is failing.
    fn enter(&mut self) {
        self.failing += 1;
    }

    /// Whether the message is new in this outage.
    fn is_new(&mut self, message: &'static str) -> bool {
        self.logged.insert(message)
    }

    /// One backoff is no longer failing. Returns whether the outage is over.
    fn leave(&mut self) -> bool {
        self.failing -= 1;
        if self.failing == 0 {
            self.logged.clear();
        }
        self.failing == 0
    }
}

fn outage() -> MutexGuard<'static, Outage> {
    OUTAGE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A function of the node's name and the number of waits, so that a simulation can be replayed.
#[derive(Debug)]
pub struct Backoff {
    who: String,
    attempts: u32,
    waits: u64,
    /// The last answer was a failure: this backoff counts in [`OUTAGE`].
    failing: bool,
}

impl Backoff {
    pub fn new(who: &str) -> Self {
        Backoff { who: who.to_owned(), attempts: 0, waits: 0, failing: false }
    }

    /// After success: the next wait is short.
    pub fn reset(&mut self) {
        self.answered();
        self.attempts = 0;
    }

    /// The store has answered, but the attempt has to be repeated.
    pub fn answered(&mut self) {
        if std::mem::take(&mut self.failing) && outage().leave() {
            tracing::info!(who = self.who, "the store is reachable again");
        }
    }

    /// Logs a warning if the message is new in this outage.
    pub fn failed(&mut self, message: &'static str, error: &StoreError) {
        let entered = !std::mem::replace(&mut self.failing, true);
        let is_new = {
            let mut outage = outage();
            if entered {
                outage.enter();
            }
            outage.is_new(message)
        };
        match is_new {
            true => tracing::warn!(who = self.who, %error, "{message}; retrying"),
            false => tracing::debug!(who = self.who, %error, "{message}; retrying"),
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

impl Drop for Backoff {
    /// The task that used it has ended, which says nothing about the store.
    fn drop(&mut self) {
        if self.failing {
            outage().leave();
        }
    }
}

#[cfg(test)]
mod tests;
