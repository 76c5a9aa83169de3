//! A token bucket: so many per minute, a minute's worth at once at most. No clock: a function of `now`.

use std::time::Duration;

use tokio::time::Instant;

const MINUTE: f64 = 60.0;

#[derive(Debug, Clone)]
pub struct Bucket {
    per_minute: f64,
    /// Below 0: more was taken than was known beforehand, and has to flow back first.
    level: f64,
    at: Instant,
}

impl Bucket {
    /// Full.
    pub fn new(per_minute: u64, now: Instant) -> Self {
        Bucket { per_minute: per_minute as f64, level: per_minute as f64, at: now }
    }

    /// Another rate from here on.
    pub fn resize(&mut self, per_minute: u64, now: Instant) {
        self.flow(now);
        self.per_minute = per_minute as f64;
        self.level = self.level.min(self.per_minute);
    }

    pub fn limit(&self) -> u64 {
        self.per_minute as u64
    }

    /// One, or how long to wait for it.
    pub fn take(&mut self, now: Instant) -> Result<(), Duration> {
        self.ready(now)?;
        self.level -= 1.0;
        Ok(())
    }

    /// Whether there is one; else how long to wait for it.
    pub fn ready(&mut self, now: Instant) -> Result<(), Duration> {
        self.flow(now);
        // What has flowed in is a sum of fractions.
        if self.level >= 1.0 - 1e-6 { Ok(()) } else { Err(self.until(1.0)) }
    }

    /// Takes what was used, whether it is there or not.
    pub fn charge(&mut self, amount: u64, now: Instant) {
        self.flow(now);
        self.level -= amount as f64;
    }

    pub fn remaining(&mut self, now: Instant) -> u64 {
        self.flow(now);
        (self.level + 1e-6).max(0.0) as u64
    }

    /// Until it is full again.
    pub fn reset(&mut self, now: Instant) -> Duration {
        self.flow(now);
        self.until(self.per_minute)
    }

    fn until(&self, level: f64) -> Duration {
        Duration::try_from_secs_f64((level - self.level).max(0.0) * MINUTE / self.per_minute).unwrap_or(Duration::MAX)
    }

    fn flow(&mut self, now: Instant) {
        let time = now.saturating_duration_since(self.at);
        self.at = self.at.max(now);
        self.level = (self.level + time.as_secs_f64() * self.per_minute / MINUTE).min(self.per_minute);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_minutes_worth_at_once_then_at_its_pace() {
        let start = Instant::now();
        let mut bucket = Bucket::new(6, start);
        (0..6).for_each(|_| bucket.take(start).unwrap());
        assert_eq!(bucket.take(start), Err(Duration::from_secs(10)));
        assert_eq!((bucket.remaining(start), bucket.reset(start)), (0, Duration::from_secs(60)));
        let later = start + Duration::from_secs(9);
        assert!(bucket.take(later).is_err_and(|wait| wait.as_secs_f64() < 1.001));
        // A clock that goes back brings nothing and breaks nothing.
        assert!(bucket.take(start).is_err());
        bucket.take(start + Duration::from_secs(10)).unwrap();
        assert_eq!(bucket.remaining(start + Duration::from_secs(3600)), 6);
    }

    #[test]
    fn what_was_used_beyond_the_level_flows_back_first() {
        let start = Instant::now();
        let mut bucket = Bucket::new(60, start);
        bucket.charge(180, start);
        assert_eq!(bucket.ready(start), Err(Duration::from_secs(121)));
        assert!(bucket.ready(start + Duration::from_secs(120)).is_err());
        assert!(bucket.ready(start + Duration::from_secs(121)).is_ok());
        bucket.resize(30, start + Duration::from_secs(3600));
        assert_eq!((bucket.limit(), bucket.remaining(start + Duration::from_secs(3600))), (30, 30));
    }

    proptest! {
        /// Over any time, no more than the burst and what flowed in; and after the wait that was told, there is one.
        #[test]
        fn never_more_than_the_limit(rate in 1u64..10_000, steps in proptest::collection::vec(0u64..5_000, 1..200)) {
            let start = Instant::now();
            let (mut bucket, mut now, mut taken) = (Bucket::new(rate, start), start, 0);
            for step in steps {
                now += Duration::from_millis(step);
                match bucket.take(now) {
                    Ok(()) => taken += 1,
                    Err(wait) => {
                        let mut later = bucket.clone();
                        prop_assert!(later.take(now + wait + Duration::from_micros(1)).is_ok());
                    }
                }
                let most = rate as f64 + (now - start).as_secs_f64() * rate as f64 / MINUTE;
                prop_assert!(f64::from(taken) <= most + 1e-3, "{taken} > {most}");
            }
        }
    }
}
