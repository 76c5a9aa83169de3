use rand::{Rng, SeedableRng, rngs::StdRng};

use super::*;

fn open_for(breaker: &CircuitBreaker, now: Instant) -> Duration {
    breaker.opens_at().unwrap() - now
}

#[test]
fn one_loss_opens_the_breaker_and_one_successful_probe_closes_it() {
    let mut now = Instant::now();
    let mut breaker = CircuitBreaker::new("a");
    let (pass, late) = (breaker.begin(now).unwrap(), breaker.begin(now).unwrap());
    breaker.failed(pass, Fault::Gone, now);
    assert_eq!((breaker.condition(now), breaker.begin(now)), (BreakerState::Open, None));
    // A second sequence that was open fails too, which does not extend the time.
    let until = breaker.opens_at();
    breaker.failed(late, Fault::Gone, now);
    assert_eq!(breaker.opens_at(), until);
    now = until.unwrap();
    let probe = breaker.begin(now).unwrap();
    assert_eq!((breaker.condition(now), breaker.begin(now)), (BreakerState::HalfOpen, None));
    // A pass from before the breaker opened does not close it.
    breaker.succeeded(late);
    assert_eq!(breaker.condition(now), BreakerState::HalfOpen);
    breaker.succeeded(probe);
    assert_eq!(breaker.condition(now), BreakerState::Closed);
}

#[test]
fn several_failures_within_the_window_open_the_breaker() {
    let start = Instant::now();
    let mut breaker = CircuitBreaker::new("a");
    let err = |breaker: &mut CircuitBreaker, seconds| {
        let now = start + Duration::from_secs(seconds);
        let pass = breaker.begin(now).unwrap();
        breaker.failed(pass, Fault::Failed, now);
        breaker.condition(now)
    };
    assert_eq!(err(&mut breaker, 0), BreakerState::Suspect);
    assert_eq!(err(&mut breaker, 20), BreakerState::Suspect);
    // The first failure is outside the window.
    assert_eq!(err(&mut breaker, 40), BreakerState::Suspect);
    assert_eq!(breaker.condition(start + Duration::from_secs(71)), BreakerState::Closed);
    assert_eq!(err(&mut breaker, 45), BreakerState::Open);
}

#[test]
fn the_open_time_grows_up_to_its_limit() {
    let mut now = Instant::now();
    let mut breaker = CircuitBreaker::new("a");
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
    // One success does not reset the open time; a time without failures does.
    let probe = breaker.begin(now).unwrap();
    breaker.succeeded(probe);
    let pass = breaker.begin(now).unwrap();
    let mut flapping = breaker.clone();
    flapping.failed(pass, Fault::Gone, now);
    assert!(open_for(&flapping, now) > OPEN_MOST.mul_f64(0.7));
    now += RESET_AFTER;
    breaker.failed(pass, Fault::Gone, now);
    assert!(open_for(&breaker, now) < OPEN_FIRST.mul_f64(1.3));
}

#[test]
fn a_lost_or_abandoned_probe_does_not_block_the_next() {
    let mut now = Instant::now();
    let mut breaker = CircuitBreaker::new("a");
    let pass = breaker.begin(now).unwrap();
    breaker.failed(pass, Fault::Gone, now);
    now = breaker.opens_at().unwrap();
    let left = breaker.begin(now).unwrap();
    breaker.abandoned(left, now);
    let lost = breaker.begin(now).unwrap();
    assert_eq!(breaker.begin(now), None);
    now += PROBE_TIME;
    let third = breaker.begin(now).unwrap();
    // The lost probe's outcome arrives late and is ignored.
    breaker.failed(lost, Fault::Gone, now);
    assert_eq!(breaker.condition(now), BreakerState::HalfOpen);
    breaker.succeeded(third);
    assert_eq!(breaker.condition(now), BreakerState::Closed);
}

#[test]
fn engines_that_failed_together_are_not_probed_together() {
    let now = Instant::now();
    let mut times: Vec<Duration> = (0..8)
        .map(|engine| {
            let mut breaker = CircuitBreaker::new(&format!("http://10.0.0.{engine}:7000"));
            let pass = breaker.begin(now).unwrap();
            breaker.failed(pass, Fault::Gone, now);
            open_for(&breaker, now)
        })
        .collect();
    times.sort();
    assert!(times.windows(2).all(|pair| pair[1] - pair[0] > Duration::from_micros(100)), "{times:?}");
    assert!(times[7] - times[0] > OPEN_FIRST / 5, "{times:?}");
}

/// In any history, there is at most one probe, an open breaker gives no pass, and in the end it gives one again.
#[test]
fn invariants_hold_for_random_histories() {
    for seed in 0..500 {
        let mut random = StdRng::seed_from_u64(seed);
        let mut now = Instant::now();
        let mut breaker = CircuitBreaker::new(&seed.to_string());
        let mut passes: Vec<(BreakerPermit, Instant)> = Vec::new();
        for _ in 0..300 {
            now += Duration::from_millis(random.random_range(0..3_000));
            if random.random_bool(0.5) {
                let allowed = breaker.allows(now);
                let open = breaker.condition(now) == BreakerState::Open;
                let pass = breaker.begin(now);
                assert_eq!((pass.is_some(), allowed && open), (allowed, false), "seed {seed}");
                passes.extend(pass.map(|pass| (pass, now)));
            } else if !passes.is_empty() {
                let (pass, _) = passes.swap_remove(random.random_range(0..passes.len()));
                match random.random_range(0..4) {
                    0 => breaker.succeeded(pass),
                    1 => breaker.abandoned(pass, now),
                    2 => breaker.failed(pass, Fault::Failed, now),
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
