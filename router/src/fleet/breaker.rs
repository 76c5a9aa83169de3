//! The circuit breaker of one engine. It has no clock, so that tests replay it from a seed: every method takes `now`.
//!
//! - *Closed*: the engine gets sequences. The breaker opens when the engine is gone, or after `FAILURES` failures
//!   within `WINDOW`.
//! - *Open*: the engine gets no sequences, for a time that doubles each time the breaker opens in a row.
//! - *Half open*: after that time one sequence, the probe, goes to the engine. Its outcome closes or opens the breaker.
//!
//! The times have a jitter from the engine's name, so that engines that failed together are not probed together.

use std::{collections::VecDeque, time::Duration};

use rein_proto::splitmix::mix;
use tokio::time::Instant;

use crate::fleet::route;

/// Failures within [`WINDOW`] that open the breaker.
pub const FAILURES: usize = 3;
/// Time over which failures are counted.
pub const WINDOW: Duration = Duration::from_secs(30);
/// How long the breaker is open the first time. It doubles each further time in a row.
pub const OPEN_FIRST: Duration = Duration::from_secs(1);
/// Longest time that the breaker is open, before a jitter of 25 %.
pub const OPEN_MOST: Duration = Duration::from_secs(30);
/// A probe without an outcome after this time is given up, and another one is allowed.
pub const PROBE_TIME: Duration = Duration::from_secs(10);
/// After this time without a failure, the breaker's next opening takes [`OPEN_FIRST`] again.
pub const RESET_AFTER: Duration = Duration::from_secs(60);

/// The circuit breaker of one engine.
#[derive(Debug, Clone)]
pub struct CircuitBreaker {
    state: State,
    /// Times of the recent failures, at most `FAILURES`.
    failures: VecDeque<Instant>,
    /// How often it opened in a row.
    opened: u32,
    last_failure: Option<Instant>,
    /// Seed of the jitter, from the engine's name.
    jitter_seed: u64,
    /// Number of probes, which identifies the current one.
    probes: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Closed,
    Open { until: Instant },
    HalfOpen { probe: u64, since: Instant },
}

/// Permission to send one sequence. Its outcome is reported with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BreakerPermit {
    /// The probe's number. None: the breaker was closed.
    probe: Option<u64>,
}

/// How an engine failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It cannot be reached or lost its workers: every sequence would fail.
    Gone,
    /// It failed on this sequence.
    Failed,
}

/// The breaker's state at a given time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BreakerState {
    Closed,
    /// Closed with recent failures: other engines are preferred.
    Suspect,
    Open,
    HalfOpen,
}

impl CircuitBreaker {
    pub fn new(name: &str) -> Self {
        let jitter_seed = route::key(name);
        CircuitBreaker {
            state: State::Closed,
            failures: VecDeque::new(),
            opened: 0,
            last_failure: None,
            jitter_seed,
            probes: 0,
        }
    }

    pub fn condition(&self, now: Instant) -> BreakerState {
        let lately = |failure: &Instant| now.saturating_duration_since(*failure) < WINDOW;
        match self.state {
            State::Closed if self.failures.iter().any(lately) => BreakerState::Suspect,
            State::Closed => BreakerState::Closed,
            State::Open { until } if now < until => BreakerState::Open,
            State::Open { .. } | State::HalfOpen { .. } => BreakerState::HalfOpen,
        }
    }

    /// Whether `begin` would return a pass.
    pub fn allows(&self, now: Instant) -> bool {
        match self.state {
            State::Closed => true,
            State::Open { until } => now >= until,
            State::HalfOpen { since, .. } => now >= since + PROBE_TIME,
        }
    }

    /// From when on `begin` returns a pass. None: the breaker is closed.
    pub fn opens_at(&self) -> Option<Instant> {
        match self.state {
            State::Closed => None,
            State::Open { until } => Some(until),
            State::HalfOpen { since, .. } => Some(since + PROBE_TIME),
        }
    }

    /// A pass for one sequence, if the engine may get one now. Every pass ends with `succeeded`, `abandoned` or
    /// `failed`.
    pub fn begin(&mut self, now: Instant) -> Option<BreakerPermit> {
        if !self.allows(now) {
            return None;
        }
        if self.state == State::Closed {
            return Some(BreakerPermit { probe: None });
        }
        self.probes += 1;
        self.state = State::HalfOpen { probe: self.probes, since: now };
        Some(BreakerPermit { probe: Some(self.probes) })
    }

    pub fn succeeded(&mut self, pass: BreakerPermit) {
        if self.is_current(pass) {
            self.state = State::Closed;
            self.failures.clear();
        }
    }

    /// The sequence ended without an outcome, for example because the client left.
    pub fn abandoned(&mut self, pass: BreakerPermit, now: Instant) {
        if self.is_current(pass) {
            self.state = State::Open { until: now };
        }
    }

    pub fn failed(&mut self, pass: BreakerPermit, fault: Fault, now: Instant) {
        let clean = self.last_failure.is_none_or(|last| now.saturating_duration_since(last) >= RESET_AFTER);
        self.last_failure = Some(now);
        match self.state {
            // The pass was given before the breaker opened.
            State::Open { .. } => {}
            State::HalfOpen { .. } if self.is_current(pass) => self.open(now),
            State::HalfOpen { .. } => {}
            State::Closed => {
                if clean {
                    self.opened = 0;
                }
                self.failures.retain(|failure| now.saturating_duration_since(*failure) < WINDOW);
                self.failures.push_back(now);
                if fault == Fault::Gone || self.failures.len() >= FAILURES {
                    self.open(now);
                }
            }
        }
    }

    /// Whether the pass is the current probe.
    fn is_current(&self, pass: BreakerPermit) -> bool {
        matches!(self.state, State::HalfOpen { probe, .. } if pass.probe == Some(probe))
    }

    fn open(&mut self, now: Instant) {
        let doubled = OPEN_FIRST.saturating_mul(1 << self.opened.min(16)).min(OPEN_MOST);
        self.opened = self.opened.saturating_add(1);
        self.failures.clear();
        self.state = State::Open { until: now + doubled.mul_f64(self.jitter_factor()) };
    }

    /// Between 0.75 and 1.25, different each time.
    fn jitter_factor(&self) -> f64 {
        0.75 + (mix(self.jitter_seed ^ u64::from(self.opened)) >> 11) as f64 / (1u64 << 53) as f64 / 2.0
    }
}

#[cfg(test)]
mod tests;
