//! How long an engine may take for the next token of a request. It does not know what is sent.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use crate::limits;
use crate::metrics::EngineCounters;

/// The clock of one engine.
#[derive(Debug)]
pub struct TokenClock {
    limit: Duration,
    began: Instant,
    /// Milliseconds until the last token of any request.
    last: AtomicU64,
    counters: Arc<EngineCounters>,
    /// Sequences that the engine computes at once.
    slots: u32,
}

impl TokenClock {
    pub fn new(limit: Duration, counters: Arc<EngineCounters>, slots: u32) -> Self {
        TokenClock { limit, began: Instant::now(), last: AtomicU64::new(0), counters, slots }
    }

    /// A request got a token.
    pub fn tick(&self) {
        self.last.store(self.began.elapsed().as_millis() as u64, Ordering::Relaxed);
    }

    /// Waits for the next part of an answer. `last`: when the request was sent or got its last token. `prompt`: it has
    /// none yet, so this many tokens may have to be computed first, and it may wait in the engine's queue. Err: there
    /// was no token for too long.
    pub async fn within<T>(
        &self,
        last: Instant,
        prompt: Option<usize>,
        part: impl Future<Output = T>,
    ) -> Result<T, String> {
        let prefill = limits::PREFILL_TIME * u32::try_from(prompt.unwrap_or(0)).unwrap_or(u32::MAX);
        let limit = self.limit + prefill;
        let (mut part, mut until) = (pin!(part), last + limit);
        loop {
            match timeout_at(until, &mut part).await {
                Ok(part) => return Ok(part),
                Err(_) if prompt.is_some() && self.queue_moves() => until = Instant::now() + limit,
                Err(_) => return Err(format!("the engine sent no token for {limit:?}")),
            }
        }
    }

    /// Whether more sequences are open than the engine computes at once, and others get tokens.
    fn queue_moves(&self) -> bool {
        let last = self.began + Duration::from_millis(self.last.load(Ordering::Relaxed));
        self.counters.running.load(Ordering::Relaxed) > u64::from(self.slots) && last.elapsed() < self.limit
    }
}

#[cfg(test)]
mod tests;
