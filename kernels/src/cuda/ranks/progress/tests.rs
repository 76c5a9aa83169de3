use super::*;

#[test]
fn a_hang_is_noticed_before_the_deadline_of_a_step() {
    assert_eq!(hang_time(None), HANG_TIME);
    assert_eq!(hang_time(Some(Duration::from_secs(60))), HANG_TIME);
    assert_eq!(hang_time(Some(Duration::from_secs(3))), Duration::from_millis(1500));
}

const LIMIT: Duration = Duration::from_secs(4);
const LOOK: Duration = Duration::from_millis(5);

/// A watch that looks every 5 ms, at a clock of its own.
struct Looks {
    watch: HangWatch,
    now: Instant,
}

impl Looks {
    fn new() -> Looks {
        let now = Instant::now();
        Looks { watch: HangWatch::new(LIMIT, now), now }
    }

    /// Whether any look at these counts finds a hang, for so long.
    fn during(&mut self, time: Duration, begun: u32, passed: u32) -> bool {
        (0..time.as_millis() / LOOK.as_millis()).any(|_| {
            self.now += LOOK;
            self.watch.hangs(begun, passed, self.now)
        })
    }
}

#[test]
fn a_device_that_passes_no_exchange_for_the_limit_hangs() {
    let mut looks = Looks::new();
    assert!(!looks.during(LIMIT, 3, 0));
    assert!(looks.during(2 * LOOK, 3, 0));
}

#[test]
fn a_device_without_work_never_hangs() {
    let mut looks = Looks::new();
    assert!(!looks.during(3 * LIMIT, 7, 7));
    // The time without work does not count.
    assert!(!looks.during(LIMIT - LOOK, 8, 7));
    assert!(!looks.during(3 * LIMIT, 8, 8));
}

#[test]
fn each_exchange_that_is_passed_begins_anew() {
    let mut looks = Looks::new();
    // Also where the counts wrap around.
    let begun = 90u32;
    let passes = (u32::MAX - 3..=u32::MAX).chain(0..4);
    assert!(passes.into_iter().all(|passed| !looks.during(LIMIT - LOOK, begun, passed)));
    assert!(looks.during(3 * LOOK, begun, 3));
}

#[test]
fn a_process_that_was_stopped_has_not_waited() {
    let mut looks = Looks::new();
    assert!(!looks.during(LIMIT / 2, 3, 0));
    looks.now += 10 * LIMIT;
    assert!(!looks.during(LIMIT / 4, 3, 0));
}
