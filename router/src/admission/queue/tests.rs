use std::collections::HashMap;

use rand::{Rng, SeedableRng, rngs::StdRng};

use super::*;

const FAR: Duration = Duration::from_secs(1_000_000);

struct Waiting {
    since: Instant,
    priority: i64,
}

/// A day of random traffic; whatever happens, the rules hold.
fn day(seed: u64) {
    let mut random = StdRng::seed_from_u64(seed);
    let start = Instant::now();
    let (room, places) = (random.random_range(1..6), random.random_range(0..12));
    let mut line = WaitQueue::new(room, places, start);
    let (mut now, mut coming) = (start, 0usize);
    let mut served: Vec<Instant> = Vec::new();
    let mut waiting: HashMap<Ticket, Waiting> = HashMap::new();
    let (mut came, mut ended) = (0, 0);
    let busy = random.random_range(0.2..0.8);
    for _ in 0..2_000 {
        now += Duration::from_millis(random.random_range(0..3_000));
        let called = |ticket: Option<Ticket>, waiting: &mut HashMap<Ticket, Waiting>| {
            let ticket = ticket?;
            let next = waiting.remove(&ticket).expect("called twice, or never waiting");
            for other in waiting.values() {
                // Whoever came so much later than another that priority is outweighed goes after it.
                let points = (other.priority - next.priority).max(0) as u32;
                assert!(next.since <= other.since + PRIORITY_STEP * points, "seed {seed}: overtaken");
            }
            Some(())
        };
        match random.random_range(0..10) {
            0..4 if random.random_bool(busy) => match line.come() {
                Ok(()) => {
                    came += 1;
                    coming += 1;
                }
                Err(_) => assert_eq!(coming + waiting.len() + served.len(), room + places, "seed {seed}"),
            },
            4..7 if coming > 0 => {
                coming -= 1;
                let priority = random.random_range(-20..20);
                match line.line_up(priority, now, now + FAR) {
                    QueueStep::Go => served.push(now),
                    QueueStep::Wait(ticket) => {
                        assert!(waiting.insert(ticket, Waiting { since: now, priority }).is_none());
                    }
                    QueueStep::Late(_) => panic!("seed {seed}: nobody is late"),
                }
            }
            7 if coming > 0 => {
                coming -= 1;
                ended += 1;
                line.turn_back();
            }
            8 if !waiting.is_empty() => {
                let nth = random.random_range(0..waiting.len());
                let ticket = *waiting.keys().nth(nth).expect("one");
                assert!(line.give_up(ticket));
                assert!(!line.give_up(ticket));
                waiting.remove(&ticket);
                ended += 1;
            }
            _ if !served.is_empty() => {
                let since = served.swap_remove(random.random_range(0..served.len()));
                ended += 1;
                if called(line.done(Some(now - since)), &mut waiting).is_some() {
                    served.push(now);
                }
            }
            _ => {}
        }
        assert_eq!((line.served(), line.waiting()), (served.len(), waiting.len()), "seed {seed}");
        assert_eq!(line.present(), coming + waiting.len() + served.len(), "seed {seed}");
        assert_eq!(line.present(), came - ended, "seed {seed}");
        assert!(line.served() <= room && line.present() <= room + places, "seed {seed}");
        assert!(line.waiting() == 0 || line.served() == room, "seed {seed}: somebody waits before an open door");
    }
    // And everybody comes to an end.
    (0..coming).for_each(|_| line.turn_back());
    let (left, mut ends) = (line.present(), 0);
    while line.served() > 0 {
        line.done(None);
        ends += 1;
    }
    assert_eq!((ends, line.present()), (left, 0), "seed {seed}");
}

#[test]
fn the_rules_hold_on_any_day() {
    (0..300).for_each(day);
}

#[test]
fn nobody_waits_for_ever() {
    let start = Instant::now();
    let mut line = WaitQueue::new(1, 10_000, start);
    line.come().unwrap();
    assert_eq!(line.line_up(0, start, start + FAR), QueueStep::Go);
    line.come().unwrap();
    let QueueStep::Wait(patient) = line.line_up(50, start, start + FAR) else { panic!("full") };
    // Twenty urgent ones a second, without end; ten are served.
    for tenth in 0.. {
        let now = start + Duration::from_millis(100 * tenth);
        for _ in 0..2 {
            line.come().unwrap();
            assert!(matches!(line.line_up(-50, now, now + FAR), QueueStep::Wait(_)));
        }
        if line.done(None) == Some(patient) {
            assert!(now > start + PRIORITY_STEP * 100, "before the urgent ones that came in time");
            break;
        }
        assert!(tenth < 2_100, "starved");
    }
}

#[test]
fn who_would_be_late_is_sent_away_with_the_time_to_come_back() {
    let start = Instant::now();
    let mut line = WaitQueue::new(2, 8, start);
    let second = Duration::from_secs(1);
    let up = |line: &mut WaitQueue, priority, left: Duration| {
        line.come().unwrap();
        line.line_up(priority, start, start + left)
    };
    assert_eq!(up(&mut line, 0, second), QueueStep::Go);
    assert_eq!(up(&mut line, 0, second), QueueStep::Go);
    // Nothing is known of how long one takes: the benefit of the doubt.
    let QueueStep::Wait(doubtful) = up(&mut line, 0, second) else { panic!("full") };
    assert!(line.give_up(doubtful));
    assert_eq!(line.done(Some(Duration::from_secs(10))), None);
    assert_eq!(up(&mut line, 0, second), QueueStep::Go);
    // Two are served 10 s each: the next in 5 s, the one after in 10 s.
    assert_eq!(up(&mut line, 0, Duration::from_secs(5)), QueueStep::Late(Duration::ZERO));
    let QueueStep::Wait(first) = up(&mut line, 0, Duration::from_secs(6)) else { panic!("in time") };
    assert_eq!(up(&mut line, 0, Duration::from_secs(6)), QueueStep::Late(4 * second));
    // An urgent one has nobody before it.
    let QueueStep::Wait(urgent) = up(&mut line, -5, Duration::from_secs(6)) else { panic!("in time") };
    assert_eq!(line.done(None), Some(urgent));
    assert_eq!(line.done(None), Some(first));
    assert_eq!(line.present(), 2);
}

#[test]
fn no_place_is_the_old_rule_full_or_not() {
    let start = Instant::now();
    let mut line = WaitQueue::new(1, 0, start);
    line.come().unwrap();
    assert_eq!(line.come(), Err(None));
    assert_eq!(line.line_up(0, start, start), QueueStep::Go);
    assert_eq!(line.done(Some(Duration::from_secs(3))), None);
    line.come().unwrap();
    assert_eq!(line.come(), Err(Some(Duration::from_secs(3))));
}

#[test]
fn a_burst_that_is_refused_is_told_how_long_the_line_is_though_nobody_has_lined_up() {
    let start = Instant::now();
    let mut line = WaitQueue::new(2, 8, start);
    line.come().unwrap();
    assert_eq!(line.line_up(0, start, start + FAR), QueueStep::Go);
    assert_eq!(line.done(Some(Duration::from_secs(4))), None);
    (0..10).for_each(|_| line.come().unwrap());
    // Two at a time, 4 s each, and eight of the ten will be waiting.
    assert_eq!(line.come(), Err(Some(Duration::from_secs(18))));
}
