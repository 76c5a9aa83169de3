use std::collections::HashMap;

use rand::{Rng, SeedableRng, rngs::StdRng};

use super::*;

const FAR: Duration = Duration::from_secs(1_000_000);

struct Waiting {
    since: Instant,
    priority: i64,
}

/// Runs random traffic and checks the invariants after each event.
fn run_random_traffic(seed: u64) {
    let mut random = StdRng::seed_from_u64(seed);
    let start = Instant::now();
    let (slots, queue_limit) = (random.random_range(1..6), random.random_range(0..12));
    let mut queue = WaitQueue::new(slots, queue_limit, start);
    let (mut now, mut pending) = (start, 0usize);
    let mut served: Vec<Instant> = Vec::new();
    let mut waiting: HashMap<Ticket, Waiting> = HashMap::new();
    let (mut entered, mut ended) = (0, 0);
    let busy = random.random_range(0.2..0.8);
    for _ in 0..2_000 {
        now += Duration::from_millis(random.random_range(0..3_000));
        let admitted = |ticket: Option<Ticket>, waiting: &mut HashMap<Ticket, Waiting>| {
            let ticket = ticket?;
            let next = waiting.remove(&ticket).expect("admitted twice, or never waiting");
            for other in waiting.values() {
                // Nobody overtakes a request that arrived so much earlier that this outweighs the priorities.
                let points = (other.priority - next.priority).max(0) as u32;
                assert!(next.since <= other.since + PRIORITY_STEP * points, "seed {seed}: overtaken");
            }
            Some(())
        };
        match random.random_range(0..10) {
            0..4 if random.random_bool(busy) => match queue.enter() {
                Ok(()) => {
                    entered += 1;
                    pending += 1;
                }
                Err(_) => assert_eq!(pending + waiting.len() + served.len(), slots + queue_limit, "seed {seed}"),
            },
            4..7 if pending > 0 => {
                pending -= 1;
                let priority = random.random_range(-20..20);
                match queue.enqueue(priority, now, now + FAR) {
                    EnqueueOutcome::Admitted => served.push(now),
                    EnqueueOutcome::Waiting(ticket) => {
                        assert!(waiting.insert(ticket, Waiting { since: now, priority }).is_none());
                    }
                    EnqueueOutcome::TooLate(_) => panic!("seed {seed}: no deadline is near"),
                }
            }
            7 if pending > 0 => {
                pending -= 1;
                ended += 1;
                queue.leave_pending();
            }
            8 if !waiting.is_empty() => {
                let nth = random.random_range(0..waiting.len());
                let ticket = *waiting.keys().nth(nth).expect("one");
                assert!(queue.cancel(ticket));
                assert!(!queue.cancel(ticket));
                waiting.remove(&ticket);
                ended += 1;
            }
            _ if !served.is_empty() => {
                let since = served.swap_remove(random.random_range(0..served.len()));
                ended += 1;
                if admitted(queue.finish(Some(now - since)), &mut waiting).is_some() {
                    served.push(now);
                }
            }
            _ => {}
        }
        assert_eq!((queue.in_flight(), queue.waiting()), (served.len(), waiting.len()), "seed {seed}");
        assert_eq!(queue.present(), pending + waiting.len() + served.len(), "seed {seed}");
        assert_eq!(queue.present(), entered - ended, "seed {seed}");
        assert!(queue.in_flight() <= slots && queue.present() <= slots + queue_limit, "seed {seed}");
        assert!(
            queue.waiting() == 0 || queue.in_flight() == slots,
            "seed {seed}: a request waits although a slot is free"
        );
    }
    // In the end all requests leave.
    (0..pending).for_each(|_| queue.leave_pending());
    let (left, mut ends) = (queue.present(), 0);
    while queue.in_flight() > 0 {
        queue.finish(None);
        ends += 1;
    }
    assert_eq!((ends, queue.present()), (left, 0), "seed {seed}");
}

#[test]
fn invariants_hold_for_random_traffic() {
    (0..300).for_each(run_random_traffic);
}

#[test]
fn low_priorities_do_not_starve() {
    let start = Instant::now();
    let mut queue = WaitQueue::new(1, 10_000, start);
    queue.enter().unwrap();
    assert_eq!(queue.enqueue(0, start, start + FAR), EnqueueOutcome::Admitted);
    queue.enter().unwrap();
    let EnqueueOutcome::Waiting(patient) = queue.enqueue(50, start, start + FAR) else { panic!("full") };
    // Each second, 20 urgent requests arrive and 10 end.
    for tenth in 0.. {
        let now = start + Duration::from_millis(100 * tenth);
        for _ in 0..2 {
            queue.enter().unwrap();
            assert!(matches!(queue.enqueue(-50, now, now + FAR), EnqueueOutcome::Waiting(_)));
        }
        if queue.finish(None) == Some(patient) {
            assert!(now > start + PRIORITY_STEP * 100, "admitted before urgent requests that arrived in time");
            break;
        }
        assert!(tenth < 2_100, "starved");
    }
}

#[test]
fn a_request_that_would_be_late_is_rejected_with_the_time_to_retry() {
    let start = Instant::now();
    let mut queue = WaitQueue::new(2, 8, start);
    let second = Duration::from_secs(1);
    let up = |queue: &mut WaitQueue, priority, left: Duration| {
        queue.enter().unwrap();
        queue.enqueue(priority, start, start + left)
    };
    assert_eq!(up(&mut queue, 0, second), EnqueueOutcome::Admitted);
    assert_eq!(up(&mut queue, 0, second), EnqueueOutcome::Admitted);
    // Without a mean time in flight, no request is rejected.
    let EnqueueOutcome::Waiting(doubtful) = up(&mut queue, 0, second) else { panic!("full") };
    assert!(queue.cancel(doubtful));
    assert_eq!(queue.finish(Some(Duration::from_secs(10))), None);
    assert_eq!(up(&mut queue, 0, second), EnqueueOutcome::Admitted);
    // Two are in flight for 10 s each: the next is admitted in 5 s, the one after in 10 s.
    assert_eq!(up(&mut queue, 0, Duration::from_secs(5)), EnqueueOutcome::TooLate(Duration::ZERO));
    let EnqueueOutcome::Waiting(first) = up(&mut queue, 0, Duration::from_secs(6)) else { panic!("in time") };
    assert_eq!(up(&mut queue, 0, Duration::from_secs(6)), EnqueueOutcome::TooLate(4 * second));
    // An urgent request has no other before it.
    let EnqueueOutcome::Waiting(urgent) = up(&mut queue, -5, Duration::from_secs(6)) else { panic!("in time") };
    assert_eq!(queue.finish(None), Some(urgent));
    assert_eq!(queue.finish(None), Some(first));
    assert_eq!(queue.present(), 2);
}

#[test]
fn without_a_queue_requests_are_admitted_or_refused() {
    let start = Instant::now();
    let mut queue = WaitQueue::new(1, 0, start);
    queue.enter().unwrap();
    assert_eq!(queue.enter(), Err(None));
    assert_eq!(queue.enqueue(0, start, start), EnqueueOutcome::Admitted);
    assert_eq!(queue.finish(Some(Duration::from_secs(3))), None);
    queue.enter().unwrap();
    assert_eq!(queue.enter(), Err(Some(Duration::from_secs(3))));
}

#[test]
fn the_wait_of_a_refused_request_counts_pending_requests() {
    let start = Instant::now();
    let mut queue = WaitQueue::new(2, 8, start);
    queue.enter().unwrap();
    assert_eq!(queue.enqueue(0, start, start + FAR), EnqueueOutcome::Admitted);
    assert_eq!(queue.finish(Some(Duration::from_secs(4))), None);
    (0..10).for_each(|_| queue.enter().unwrap());
    // Two are in flight for 4 s each, and eight of the ten pending requests will wait.
    assert_eq!(queue.enter(), Err(Some(Duration::from_secs(18))));
}
