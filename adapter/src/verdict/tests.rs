use super::*;

const CHUNK: Duration = Duration::from_millis(400);

#[test]
fn a_pause_follows_slow_verdicts_within_its_bounds() {
    let verdicts = VerdictTime::default();
    assert_eq!(verdicts.pause(CHUNK), CHUNK / limits::CHUNK_PAUSE);
    verdicts.note(Duration::from_millis(10));
    assert_eq!(verdicts.pause(CHUNK), Duration::from_millis(20));
    // Faster ones do not hide a slow one at once.
    verdicts.note(Duration::from_millis(1));
    assert!(verdicts.pause(CHUNK) > Duration::from_millis(18));
    (0..200).for_each(|_| verdicts.note(Duration::from_millis(1)));
    assert_eq!(verdicts.pause(CHUNK), CHUNK / limits::CHUNK_PAUSE);
    verdicts.note(Duration::MAX);
    assert_eq!(verdicts.pause(CHUNK), CHUNK / limits::REFUSED_PAUSE);
}
