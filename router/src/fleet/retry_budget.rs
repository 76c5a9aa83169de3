//! What a router spends on sequences beyond one attempt each: trying again elsewhere, and hedging. Both are bounded
//! over all its requests, so that engines in trouble get no multiple of their load.

use std::{
    fmt::Write,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::time::Instant;

use crate::limits::{HEDGED_ONE_IN, RETRIES_AT_ONCE, RETRIES_PER_SECOND, RETRIES_PER_SEQUENCE};

#[derive(Debug)]
pub struct Effort {
    /// Silence of an engine after which another one is asked, too.
    pub hedge_after: Option<Duration>,
    account: Mutex<Account>,
    retries: AtomicU64,
    refused: AtomicU64,
    /// Sequences, and those of them that two engines have.
    sequences: AtomicUsize,
    hedged: AtomicUsize,
    hedges: AtomicU64,
    won: AtomicU64,
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
pub struct Counted {
    effort: Arc<Effort>,
    of: fn(&Effort) -> &AtomicUsize,
}

impl Counted {
    fn new(effort: &Arc<Effort>, of: fn(&Effort) -> &AtomicUsize) -> Self {
        of(effort).fetch_add(1, Ordering::SeqCst);
        Counted { effort: effort.clone(), of }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        (self.of)(&self.effort).fetch_sub(1, Ordering::SeqCst);
    }
}

impl Effort {
    pub fn new(hedge_after: Option<Duration>) -> Self {
        Effort {
            hedge_after,
            account: Mutex::new(Account { credit: RETRIES_AT_ONCE, since: None }),
            retries: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            sequences: AtomicUsize::new(0),
            hedged: AtomicUsize::new(0),
            hedges: AtomicU64::new(0),
            won: AtomicU64::new(0),
        }
    }

    /// One more sequence.
    pub fn begin(self: &Arc<Self>) -> Counted {
        self.account.lock().unwrap_or_else(PoisonError::into_inner).earn(RETRIES_PER_SEQUENCE);
        Counted::new(self, |effort| &effort.sequences)
    }

    /// Whether a sequence may be tried once more.
    pub fn retry(&self, now: Instant) -> bool {
        let may = self.account.lock().unwrap_or_else(PoisonError::into_inner).spend(now);
        let counter = if may { &self.retries } else { &self.refused };
        counter.fetch_add(1, Ordering::Relaxed);
        may
    }

    /// Leave for one more sequence to be with two engines, as long as it is.
    pub fn hedge(self: &Arc<Self>) -> Option<Counted> {
        let hedge = Counted::new(self, |effort| &effort.hedged);
        let most = (self.sequences.load(Ordering::SeqCst) / HEDGED_ONE_IN).max(1);
        (self.hedged.load(Ordering::SeqCst) <= most).then_some(hedge)
    }

    /// A second engine was asked.
    pub fn hedges(&self) {
        self.hedges.fetch_add(1, Ordering::Relaxed);
    }

    /// It was the one that answered.
    pub fn won(&self) {
        self.won.fetch_add(1, Ordering::Relaxed);
    }

    pub fn write_metrics(&self, out: &mut String) {
        for (name, help, value) in [
            ("rein_retries_total", "Attempts beyond a sequence's first on an engine.", &self.retries),
            ("rein_retry_budget_exhausted_total", "Attempts that the retry budget did not allow.", &self.refused),
            ("rein_hedges_total", "Sequences that were given to a second engine.", &self.hedges),
            ("rein_hedges_won_total", "Of these, those that the second engine answered first.", &self.won),
        ] {
            let value = value.load(Ordering::Relaxed);
            let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} counter\n{name} {value}");
        }
    }
}

#[cfg(test)]
mod tests;
