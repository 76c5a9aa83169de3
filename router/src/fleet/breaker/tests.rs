use rand::{Rng, SeedableRng, rngs::StdRng};

use super::*;

fn open_for(breaker: &CircuitBreaker, now: Instant) -> Duration {
    breaker.opens_at().unwrap() - now
}

#[test]
fn one_loss_opens_it_and_one_good_probe_closes_it() {
    let mut now = Instant::now();
    let mut breaker = CircuitBreaker::new("a");
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
    let mut breaker = CircuitBreaker::new("a");
    let err = |breaker: &mut CircuitBreaker, seconds| {
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

/// Whatever happens: at most one probe is out, an open breaker lets nobody in, and it lets somebody in at last.
#[test]
fn the_rules_hold_for_any_history() {
    for seed in 0..500 {
        let mut random = StdRng::seed_from_u64(seed);
        let mut now = Instant::now();
        let mut breaker = CircuitBreaker::new(&seed.to_string());
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
