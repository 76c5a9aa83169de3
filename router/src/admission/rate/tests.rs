use proptest::prelude::*;

use super::*;

/// Takes one token, if there is one.
fn take(bucket: &mut TokenBucket, now: Instant) -> Result<(), Duration> {
    bucket.ready(now).map(|()| bucket.charge(1, now))
}

#[test]
fn a_full_bucket_allows_a_minutes_burst_and_then_the_rate() {
    let start = Instant::now();
    let mut bucket = TokenBucket::new(6, start);
    (0..6).for_each(|_| take(&mut bucket, start).unwrap());
    assert_eq!(take(&mut bucket, start), Err(Duration::from_secs(10)));
    assert_eq!(whole(bucket.level(start)), 0);
    let later = start + Duration::from_secs(9);
    assert!(take(&mut bucket, later).is_err_and(|wait| wait.as_secs_f64() < 1.001));
    // A clock that goes back adds nothing.
    assert!(take(&mut bucket, start).is_err());
    take(&mut bucket, start + Duration::from_secs(10)).unwrap();
    assert_eq!(whole(bucket.level(start + Duration::from_secs(3600))), 6);
}

#[test]
fn a_negative_level_refills_before_anything_is_allowed() {
    let start = Instant::now();
    let mut bucket = TokenBucket::new(60, start);
    bucket.charge(180, start);
    assert_eq!(bucket.ready(start), Err(Duration::from_secs(121)));
    assert!(bucket.ready(start + Duration::from_secs(120)).is_err());
    assert!(bucket.ready(start + Duration::from_secs(121)).is_ok());
    bucket.resize(30, start + Duration::from_secs(3600));
    assert_eq!((bucket.limit(), whole(bucket.level(start + Duration::from_secs(3600)))), (30, 30));
}

proptest! {
    /// Over any time, at most the burst and the refill are taken; after the returned wait, one can be taken.
    #[test]
    fn never_more_than_the_limit(rate in 1u64..10_000, steps in proptest::collection::vec(0u64..5_000, 1..200)) {
        let start = Instant::now();
        let (mut bucket, mut now, mut taken) = (TokenBucket::new(rate, start), start, 0);
        for step in steps {
            now += Duration::from_millis(step);
            match take(&mut bucket, now) {
                Ok(()) => taken += 1,
                Err(wait) => {
                    let mut later = bucket.clone();
                    prop_assert!(take(&mut later, now + wait + Duration::from_micros(1)).is_ok());
                }
            }
            let most = rate as f64 + (now - start).as_secs_f64() * rate as f64 / MINUTE;
            prop_assert!(f64::from(taken) <= most + 1e-3, "{taken} > {most}");
        }
    }
}
