//! Whether an engine is to be asked: a circuit breaker. No clock: a function of what happened and `now`, so that a seed
//! replays it.
//!
//! *Closed*: the engine is asked. It opens when the engine is gone, or after several failures within a while. *Open*: it
//! is not asked, for a time that grows with each failure in a row. *Half open*: after that time one request goes there;
//! its end decides. The times differ from engine to engine by their names, so that engines that fell together are not
//! tried together.

use std::{collections::VecDeque, time::Duration};

use tokio::time::Instant;

use crate::{hash::mix, route};

/// Failures within `WINDOW` that open it.
pub const FAILURES: usize = 3;
pub const WINDOW: Duration = Duration::from_secs(30);
/// How long it is open at first; each time in a row doubles it ...
pub const OPEN_FIRST: Duration = Duration::from_secs(1);
/// ... up to this, give or take a quarter.
pub const OPEN_MOST: Duration = Duration::from_secs(30);
/// A probe that has not come back for so long is not waited for any more: another may go.
pub const PROBE_TIME: Duration = Duration::from_secs(10);
/// An engine that did not fail for so long begins anew with the shortest time.
pub const CLEAN: Duration = Duration::from_secs(60);

#[derive(Debug, Clone)]
pub struct Breaker {
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

impl Breaker {
    pub fn new(name: &str) -> Self {
        let jitter = route::key(name);
        Breaker { state: State::Closed, failures: VecDeque::new(), opened: 0, last_failure: None, jitter, probes: 0 }
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
mod tests {
    use rand::{Rng, SeedableRng, rngs::StdRng};

    use super::*;

    fn open_for(breaker: &Breaker, now: Instant) -> Duration {
        breaker.opens_at().unwrap() - now
    }

    #[test]
    fn one_loss_opens_it_and_one_good_probe_closes_it() {
        let mut now = Instant::now();
        let mut breaker = Breaker::new("a");
        let (pass, late) = (breaker.begin(now).unwrap(), breaker.begin(now).unwrap());
        breaker.failed(pass, Fault::Gone, now);
        assert_eq!((breaker.condition(now), breaker.begin(now)), (Condition::Open, None));
        // One that was under way fails too: the same fall, and told once.
        let until = breaker.opens_at();
        breaker.failed(late, Fault::Gone, now);
        assert_eq!(breaker.opens_at(), until);
        now = until.unwrap();
        let probe = breaker.begin(now).unwrap();
        assert_eq!((breaker.condition(now), breaker.begin(now)), (Condition::HalfOpen, None));
        // Whoever was let in before it opened does not decide.
        breaker.succeeded(late);
        assert_eq!(breaker.condition(now), Condition::HalfOpen);
        breaker.succeeded(probe);
        assert_eq!(breaker.condition(now), Condition::Closed);
    }

    #[test]
    fn errors_open_it_when_they_are_many_within_the_window() {
        let start = Instant::now();
        let mut breaker = Breaker::new("a");
        let err = |breaker: &mut Breaker, seconds| {
            let now = start + Duration::from_secs(seconds);
            let pass = breaker.begin(now).unwrap();
            breaker.failed(pass, Fault::Erred, now);
            breaker.condition(now)
        };
        assert_eq!(err(&mut breaker, 0), Condition::Suspect);
        assert_eq!(err(&mut breaker, 20), Condition::Suspect);
        // The first is forgotten.
        assert_eq!(err(&mut breaker, 40), Condition::Suspect);
        assert_eq!(breaker.condition(start + Duration::from_secs(71)), Condition::Closed);
        assert_eq!(err(&mut breaker, 45), Condition::Open);
    }

    #[test]
    fn it_stays_open_longer_each_time_and_not_for_ever() {
        let mut now = Instant::now();
        let mut breaker = Breaker::new("a");
        let mut times = Vec::new();
        for _ in 0..40 {
            let pass = breaker.begin(now).unwrap();
            breaker.failed(pass, Fault::Gone, now);
            times.push(open_for(&breaker, now));
            now = breaker.opens_at().unwrap();
        }
        assert!(times[0] >= OPEN_FIRST.mul_f64(0.75) && times[0] <= OPEN_FIRST.mul_f64(1.25));
        assert!(times.windows(2).take(4).all(|pair| pair[0] < pair[1]), "{times:?}");
        assert!(times.iter().all(|time| *time <= OPEN_MOST.mul_f64(1.25)));
        // One good answer does not forgive a flapping engine; a clean while does.
        let probe = breaker.begin(now).unwrap();
        breaker.succeeded(probe);
        let pass = breaker.begin(now).unwrap();
        let mut flapping = breaker.clone();
        flapping.failed(pass, Fault::Gone, now);
        assert!(open_for(&flapping, now) > OPEN_MOST.mul_f64(0.7));
        now += CLEAN;
        breaker.failed(pass, Fault::Gone, now);
        assert!(open_for(&breaker, now) < OPEN_FIRST.mul_f64(1.3));
    }

    #[test]
    fn a_probe_that_is_lost_or_left_locks_nothing() {
        let mut now = Instant::now();
        let mut breaker = Breaker::new("a");
        let pass = breaker.begin(now).unwrap();
        breaker.failed(pass, Fault::Gone, now);
        now = breaker.opens_at().unwrap();
        let left = breaker.begin(now).unwrap();
        breaker.abandoned(left, now);
        let lost = breaker.begin(now).unwrap();
        assert_eq!(breaker.begin(now), None);
        now += PROBE_TIME;
        let third = breaker.begin(now).unwrap();
        // The lost one comes back after all, and is not waited for any more.
        breaker.failed(lost, Fault::Gone, now);
        assert_eq!(breaker.condition(now), Condition::HalfOpen);
        breaker.succeeded(third);
        assert_eq!(breaker.condition(now), Condition::Closed);
    }

    #[test]
    fn engines_that_fell_together_are_not_tried_together() {
        let now = Instant::now();
        let mut times: Vec<Duration> = (0..8)
            .map(|engine| {
                let mut breaker = Breaker::new(&format!("http://10.0.0.{engine}:7000"));
                let pass = breaker.begin(now).unwrap();
                breaker.failed(pass, Fault::Gone, now);
                open_for(&breaker, now)
            })
            .collect();
        times.sort();
        assert!(times.windows(2).all(|pair| pair[1] - pair[0] > Duration::from_micros(100)), "{times:?}");
        assert!(times[7] - times[0] > OPEN_FIRST / 5, "{times:?}");
    }

    /// Whatever happens: at most one probe is out, an open breaker lets nobody in, and it lets somebody in at last.
    #[test]
    fn the_rules_hold_for_any_history() {
        for seed in 0..500 {
            let mut random = StdRng::seed_from_u64(seed);
            let mut now = Instant::now();
            let mut breaker = Breaker::new(&seed.to_string());
            let mut passes: Vec<(Pass, Instant)> = Vec::new();
            for _ in 0..300 {
                now += Duration::from_millis(random.random_range(0..3_000));
                if random.random_bool(0.5) {
                    let lets = breaker.lets(now);
                    let open = breaker.condition(now) == Condition::Open;
                    let pass = breaker.begin(now);
                    assert_eq!((pass.is_some(), lets && open), (lets, false), "seed {seed}");
                    passes.extend(pass.map(|pass| (pass, now)));
                } else if !passes.is_empty() {
                    let (pass, _) = passes.swap_remove(random.random_range(0..passes.len()));
                    match random.random_range(0..4) {
                        0 => breaker.succeeded(pass),
                        1 => breaker.abandoned(pass, now),
                        2 => breaker.failed(pass, Fault::Erred, now),
                        _ => breaker.failed(pass, Fault::Gone, now),
                    }
                }
                let out = passes.iter().filter(|(pass, since)| breaker.is_current(*pass) && now < *since + PROBE_TIME);
                assert!(out.count() <= 1, "seed {seed}");
                let longest = OPEN_MOST.mul_f64(1.25).max(PROBE_TIME);
                assert!(breaker.clone().begin(now + longest).is_some(), "seed {seed}: locked");
            }
        }
    }
}
