//! Whether an engine is to be asked: a circuit breaker. No clock: a function of what happened and `now`, so that a seed
//! replays it.
//!
//! *Closed*: the engine is asked. It opens when the engine is gone, or after several failures in a while. *Open*: it
//! is not asked, for a time that grows with each failure in a row. *Half open*: after that time one request goes there;
//! its end decides. The times differ from engine to engine by their names, so that engines that fell together are not
//! tried together.

use std::{collections::VecDeque, time::Duration};

use rein_proto::splitmix::mix;
use tokio::time::Instant;

use crate::fleet::route;

/// Failures within `WINDOW` that open it.
pub const FAILURES: usize = 3;
pub const WINDOW: Duration = Duration::from_secs(30);
/// How long it is open at first; each time in a row doubles it ...
pub const OPEN_FIRST: Duration = Duration::from_secs(1);
/// ... up to this, give or take a quarter.
pub const OPEN_MOST: Duration = Duration::from_secs(30);
/// A probe that has not come back for so long is not waited for any more: another may go.
pub const PROBE_TIME: Duration = Duration::from_secs(10);
/// An engine that did not fail for so long starts again with the shortest time.
pub const CLEAN: Duration = Duration::from_secs(60);

#[derive(Debug, Clone)]
pub struct CircuitBreaker {
    state: State,
    /// When it failed lately, at most `FAILURES` times.
    failures: VecDeque<Instant>,
    /// Times that it opened in a row.
    opened: u32,
    last_failure: Option<Instant>,
    /// Of its name.
    jitter: u64,
    /// Tells probes apart.
    probes: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Closed,
    Open { until: Instant },
    HalfOpen { probe: u64, since: Instant },
}

/// Leave to ask once. Its outcome is told with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pass {
    /// None: the breaker was closed.
    probe: Option<u64>,
}

/// How an engine failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It cannot be reached or lost its workers: no request would fare better.
    Gone,
    /// It failed on this one.
    Erred,
}

/// For metrics and for picking.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Condition {
    Closed,
    /// It failed lately, not often enough to open: others are better.
    Suspect,
    Open,
    HalfOpen,
}

impl CircuitBreaker {
    pub fn new(name: &str) -> Self {
        let jitter = route::key(name);
        CircuitBreaker {
            state: State::Closed,
            failures: VecDeque::new(),
            opened: 0,
            last_failure: None,
            jitter,
            probes: 0,
        }
    }

    pub fn condition(&self, now: Instant) -> Condition {
        let lately = |failure: &Instant| now.saturating_duration_since(*failure) < WINDOW;
        match self.state {
            State::Closed if self.failures.iter().any(lately) => Condition::Suspect,
            State::Closed => Condition::Closed,
            State::Open { until } if now < until => Condition::Open,
            State::Open { .. } | State::HalfOpen { .. } => Condition::HalfOpen,
        }
    }

    /// Whether `begin` would give leave.
    pub fn lets(&self, now: Instant) -> bool {
        match self.state {
            State::Closed => true,
            State::Open { until } => now >= until,
            State::HalfOpen { since, .. } => now >= since + PROBE_TIME,
        }
    }

    /// When it will, if it would not now. For Retry-After.
    pub fn opens_at(&self) -> Option<Instant> {
        match self.state {
            State::Closed => None,
            State::Open { until } => Some(until),
            State::HalfOpen { since, .. } => Some(since + PROBE_TIME),
        }
    }

    /// Leave to ask the engine, if it may be asked now. Every pass ends with one of the next three.
    pub fn begin(&mut self, now: Instant) -> Option<Pass> {
        if !self.lets(now) {
            return None;
        }
        if self.state == State::Closed {
            return Some(Pass { probe: None });
        }
        self.probes += 1;
        self.state = State::HalfOpen { probe: self.probes, since: now };
        Some(Pass { probe: Some(self.probes) })
    }

    pub fn succeeded(&mut self, pass: Pass) {
        if self.is_current(pass) {
            self.state = State::Closed;
            self.failures.clear();
        }
    }

    /// Nothing was learned: the client left, say.
    pub fn abandoned(&mut self, pass: Pass, now: Instant) {
        if self.is_current(pass) {
            self.state = State::Open { until: now };
        }
    }

    pub fn failed(&mut self, pass: Pass, fault: Fault, now: Instant) {
        let clean = self.last_failure.is_none_or(|last| now.saturating_duration_since(last) >= CLEAN);
        self.last_failure = Some(now);
        match self.state {
            // Passes given before it opened end now: they tell nothing new.
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

    /// Whether the pass is the probe that is waited for.
    fn is_current(&self, pass: Pass) -> bool {
        matches!(self.state, State::HalfOpen { probe, .. } if pass.probe == Some(probe))
    }

    fn open(&mut self, now: Instant) {
        let doubled = OPEN_FIRST.saturating_mul(1 << self.opened.min(16)).min(OPEN_MOST);
        self.opened = self.opened.saturating_add(1);
        self.failures.clear();
        self.state = State::Open { until: now + doubled.mul_f64(self.stretch()) };
    }

    /// Between 3/4 and 5/4; another each time.
    fn stretch(&self) -> f64 {
        0.75 + (mix(self.jitter ^ u64::from(self.opened)) >> 11) as f64 / (1u64 << 53) as f64 / 2.0
    }
}

#[cfg(test)]
mod tests;
