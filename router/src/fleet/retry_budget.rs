//! What a router spends on sequences beyond one attempt each: trying again elsewhere, and hedging. Both are bounded
//! over all its requests, so that engines in trouble get no multiple of their load.

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
    /// Silence of an engine after which another one is asked, too.
    pub hedge_after: Option<Duration>,
    account: Mutex<Account>,
    retries: Counter,
    refused: Counter,
    /// Sequences, and those of them that two engines have.
    sequences: AtomicUsize,
    hedged: AtomicUsize,
    hedges: Counter,
    won: Counter,
}

/// A token bucket in which sequences and time leave credit.
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

/// Of a sequence, or of its second engine: counts while it is there.
#[derive(Debug)]
pub struct CountGuard {
    retry_budget: Arc<RetryBudget>,
    of: fn(&RetryBudget) -> &AtomicUsize,
}

impl CountGuard {
    fn new(retry_budget: &Arc<RetryBudget>, of: fn(&RetryBudget) -> &AtomicUsize) -> Self {
        of(retry_budget).fetch_add(1, Ordering::SeqCst);
        CountGuard { retry_budget: retry_budget.clone(), of }
    }
}

impl Drop for CountGuard {
    fn drop(&mut self) {
        (self.of)(&self.retry_budget).fetch_sub(1, Ordering::SeqCst);
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

    /// One more sequence.
    pub fn begin(self: &Arc<Self>) -> CountGuard {
        self.account.lock().unwrap_or_else(PoisonError::into_inner).earn(RETRIES_PER_SEQUENCE);
        CountGuard::new(self, |retry_budget| &retry_budget.sequences)
    }

    /// Whether a sequence may be tried once more.
    pub fn retry(&self, now: Instant) -> bool {
        let may = self.account.lock().unwrap_or_else(PoisonError::into_inner).spend(now);
        let counter = if may { &self.retries } else { &self.refused };
        counter.inc();
        may
    }

    /// Leave for one more sequence to be with two engines, as long as it is.
    pub fn hedge(self: &Arc<Self>) -> Option<CountGuard> {
        let hedge = CountGuard::new(self, |retry_budget| &retry_budget.hedged);
        let most = (self.sequences.load(Ordering::SeqCst) / HEDGED_ONE_IN).max(1);
        (self.hedged.load(Ordering::SeqCst) <= most).then_some(hedge)
    }

    /// A second engine was asked.
    pub fn hedges(&self) {
        self.hedges.inc();
    }

    /// It was the one that answered.
    pub fn won(&self) {
        self.won.inc();
    }

    pub fn register(&self, registry: &mut Registry) {
        for (name, help, counter) in [
            (
                "rein_retries",
                "Attempts beyond a sequence's first: an engine did not take it, or it lost another engine before a token",
                &self.retries,
            ),
            (
                "rein_retry_budget_exhausted",
                "Attempts that the router's retry budget did not allow; the request got an error",
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
