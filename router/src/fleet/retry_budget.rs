//! The budget for attempts beyond the first of each sequence: retries on other engines, and hedges. It bounds them over
//! all requests of the router, so that failing engines do not get a multiple of their load.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use prometheus_client::{metrics::counter::Counter, registry::Registry};
use tokio::time::Instant;

use crate::limits::{HEDGED_ONE_IN, RETRIES_AT_ONCE, RETRIES_PER_SECOND, RETRIES_PER_SEQUENCE};

#[derive(Debug)]
pub struct RetryBudget {
    /// How long an engine may send nothing before a second one is asked. None: sequences are not hedged.
    pub hedge_after: Option<Duration>,
    account: Mutex<Account>,
    retries: Counter,
    refused: Counter,
    /// Open sequences, and those of them that are hedged.
    sequences: AtomicUsize,
    hedged: AtomicUsize,
    hedges: Counter,
    won: Counter,
}

/// A token bucket that new sequences and time refill.
#[derive(Debug, Clone, Copy)]
struct Account {
    credit: f64,
    since: Option<Instant>,
}

impl Account {
    fn earn(&mut self, credit: f64) {
        self.credit = (self.credit + credit).min(RETRIES_AT_ONCE);
    }

    fn spend(&mut self, now: Instant) -> bool {
        let waited = self.since.replace(now).map_or(Duration::ZERO, |since| now.duration_since(since));
        self.earn(waited.as_secs_f64() * RETRIES_PER_SECOND);
        let enough = self.credit >= 1.0;
        self.credit -= f64::from(u8::from(enough));
        enough
    }
}

/// Counts a sequence or a hedge until dropped.
#[derive(Debug)]
pub struct CountGuard {
    retry_budget: Arc<RetryBudget>,
    counter: fn(&RetryBudget) -> &AtomicUsize,
}

impl CountGuard {
    fn new(retry_budget: &Arc<RetryBudget>, counter: fn(&RetryBudget) -> &AtomicUsize) -> Self {
        counter(retry_budget).fetch_add(1, Ordering::SeqCst);
        CountGuard { retry_budget: retry_budget.clone(), counter }
    }
}

impl Drop for CountGuard {
    fn drop(&mut self) {
        (self.counter)(&self.retry_budget).fetch_sub(1, Ordering::SeqCst);
    }
}

impl RetryBudget {
    pub fn new(hedge_after: Option<Duration>) -> Self {
        RetryBudget {
            hedge_after,
            account: Mutex::new(Account { credit: RETRIES_AT_ONCE, since: None }),
            retries: Counter::default(),
            refused: Counter::default(),
            sequences: AtomicUsize::new(0),
            hedged: AtomicUsize::new(0),
            hedges: Counter::default(),
            won: Counter::default(),
        }
    }

    /// Counts a new sequence, which adds to the budget.
    pub fn count_sequence(self: &Arc<Self>) -> CountGuard {
        self.account.lock().unwrap_or_else(PoisonError::into_inner).earn(RETRIES_PER_SEQUENCE);
        CountGuard::new(self, |retry_budget| &retry_budget.sequences)
    }

    /// Takes one retry from the budget. False: the budget is spent.
    pub fn try_retry(&self, now: Instant) -> bool {
        let allowed = self.account.lock().unwrap_or_else(PoisonError::into_inner).spend(now);
        let counter = if allowed { &self.retries } else { &self.refused };
        counter.inc();
        allowed
    }

    /// Counts a hedge until the guard is dropped. None: too many sequences are hedged.
    pub fn try_hedge(self: &Arc<Self>) -> Option<CountGuard> {
        let hedge = CountGuard::new(self, |retry_budget| &retry_budget.hedged);
        let most = (self.sequences.load(Ordering::SeqCst) / HEDGED_ONE_IN).max(1);
        (self.hedged.load(Ordering::SeqCst) <= most).then_some(hedge)
    }

    /// Counts a sequence that was sent to a second engine.
    pub fn count_hedge(&self) {
        self.hedges.inc();
    }

    /// Counts a hedged sequence that the second engine answered first.
    pub fn count_won(&self) {
        self.won.inc();
    }

    pub fn register(&self, registry: &mut Registry) {
        for (name, help, counter) in [
            (
                "rein_retries",
                "Attempts beyond a sequence's first, because an engine did not accept it, or because it lost another engine before a token",
                &self.retries,
            ),
            (
                "rein_retry_budget_exhausted",
                "Attempts that the router's retry budget did not allow; the request failed",
                &self.refused,
            ),
            ("rein_hedges", "Sequences that were given to a second engine (`--hedge-after`)", &self.hedges),
            ("rein_hedges_won", "Hedged sequences that the second engine answered first", &self.won),
        ] {
            registry.register(name, help, counter.clone());
        }
    }
}

#[cfg(test)]
mod tests;
