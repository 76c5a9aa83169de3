use std::collections::BTreeMap;

use rand::{Rng, SeedableRng, rngs::StdRng};

use super::*;

const FAR: Duration = Duration::from_secs(1_000_000);

struct Waiting {
    caller: CallerName,
    since: Instant,
    priority: i64,
    slots: usize,
    ticket: Ticket,
}

struct InFlight {
    caller: CallerName,
    since: Instant,
    slots: usize,
}

/// What the test knows of the requests, besides those that are pending.
#[derive(Default)]
struct Requests {
    waiting: BTreeMap<u64, Waiting>,
    served: Vec<InFlight>,
    /// When a request of each caller was last admitted or ended.
    last: BTreeMap<CallerName, Instant>,
}

impl Requests {
    fn held_by(&self, caller: &CallerName) -> usize {
        self.served.iter().filter(|request| request.caller == *caller).map(|request| request.slots).sum()
    }

    fn begin(&mut self, caller: CallerName, slots: usize, now: Instant) {
        self.last.insert(caller.clone(), now);
        self.served.push(InFlight { caller, since: now, slots });
    }

    /// Checks the order in which requests were admitted: one may overtake another only within the time that priorities
    /// and held slots are worth.
    fn admit(&mut self, numbers: Vec<u64>, now: Instant) {
        for number in numbers {
            let next = self.waiting.remove(&number).expect("admitted twice, or never waiting");
            let own = |other: &&Waiting| other.caller == next.caller;
            for other in self.waiting.values().filter(own) {
                let points = (other.priority - next.priority).max(0) as u32;
                assert!(next.since <= other.since + PRIORITY_STEP * points, "overtaken by a request of its caller");
            }
            let mut first: BTreeMap<&CallerName, &Waiting> = BTreeMap::new();
            for other in self.waiting.values().filter(|other| !own(other)) {
                let known = first.entry(&other.caller).or_insert(other);
                *known = if other.ticket < known.ticket { other } else { known };
            }
            for (caller, other) in first {
                let held = self.held_by(caller) as i64 - self.held_by(&next.caller) as i64;
                let points = (other.priority - next.priority + held).max(0) as u32;
                let since = self.last.get(caller).map_or(other.since, |last| other.since.max(*last));
                assert!(next.since <= since + PRIORITY_STEP * points, "overtaken by another caller");
            }
            self.begin(next.caller, next.slots, now);
        }
    }
}

/// Runs random traffic and checks the invariants after each event.
fn run_random_traffic(seed: u64) {
    let mut random = StdRng::seed_from_u64(seed);
    let start = Instant::now();
    let (slots, queue_limit) = (random.random_range(1..6), random.random_range(0..12));
    let callers: Vec<CallerName> = vec![None, Some("a".into()), Some("b".into())];
    let callers = &callers[..random.random_range(1..=3)];
    let mut queue = WaitQueue::new(slots, queue_limit, start);
    let mut now = start;
    // And whether they are unserved.
    let mut pending: Vec<(u64, CallerName, bool)> = Vec::new();
    let mut requests = Requests::default();
    let (mut entered, mut ended) = (0, 0);
    let busy = random.random_range(0.2..0.8);
    for _ in 0..2_000 {
        now += Duration::from_millis(random.random_range(0..3_000));
        match random.random_range(0..11) {
            0..4 if random.random_bool(busy) => {
                let caller = &callers[random.random_range(0..callers.len())];
                let queued = |caller: &CallerName| {
                    pending.iter().filter(|(_, other, _)| other == caller).count()
                        + requests.waiting.values().filter(|other| other.caller == *caller).count()
                };
                let full = pending.len() + requests.waiting.len() + queue.held() >= slots + queue_limit;
                match queue.enter(caller, now) {
                    Ok(Entered { number, evicted, admitted }) => {
                        assert_eq!(evicted.is_some(), full, "seed {seed}: evicted although there is room, or too many");
                        if let Some(evicted) = evicted {
                            match pending.iter().position(|(number, ..)| *number == evicted) {
                                Some(at) => drop(pending.remove(at)),
                                None => {
                                    let left =
                                        requests.waiting.remove(&evicted).expect("evicted twice, or never there");
                                    let own =
                                        requests.waiting.values().filter(|other| other.caller == left.caller).count();
                                    assert!(left.caller != *caller && own > 0, "seed {seed}: evicted its last request");
                                }
                            }
                            ended += 1;
                        }
                        requests.admit(admitted, now);
                        entered += 1;
                        pending.push((number, caller.clone(), false));
                    }
                    Err(_) => {
                        assert!(full, "seed {seed}: refused although there is room");
                        let most = callers.iter().map(queued).max().unwrap_or(0);
                        assert!(most < queued(caller) + 2, "seed {seed}: refused although another has more");
                    }
                }
            }
            4..7 if !pending.is_empty() => {
                let (number, caller, _) = pending.swap_remove(random.random_range(0..pending.len()));
                let (needed, priority) = (random.random_range(1..4), random.random_range(-20..20));
                let request = |ticket| {
                    let slots = needed.min(slots);
                    Waiting { caller: caller.clone(), since: now, priority, slots, ticket }
                };
                match queue.enqueue(&caller, number, needed, priority, now, now + FAR) {
                    EnqueueOutcome::Admitted => {
                        requests.begin(caller, needed.min(slots), now);
                    }
                    EnqueueOutcome::Waiting(ticket) => {
                        assert!(requests.waiting.insert(number, request(ticket)).is_none())
                    }
                    EnqueueOutcome::TooLate(_) => panic!("seed {seed}: no deadline is near"),
                }
            }
            7 if !pending.is_empty() => {
                let (number, caller, unserved) = pending.swap_remove(random.random_range(0..pending.len()));
                ended += 1;
                assert_eq!(queue.leave_unserved(&caller, number), unserved);
                assert_eq!(queue.leave_pending(&caller, number), !unserved);
                assert!(!queue.leave_pending(&caller, number));
            }
            8 if !requests.waiting.is_empty() => {
                let nth = random.random_range(0..requests.waiting.len());
                let number = *requests.waiting.keys().nth(nth).expect("one");
                let left = requests.waiting.remove(&number).expect("one");
                let next = queue.cancel(&left.caller, left.ticket, now).expect("it waits");
                assert_eq!(queue.cancel(&left.caller, left.ticket, now), None);
                requests.admit(next, now);
                ended += 1;
            }
            9 if !pending.is_empty() => {
                let nth = random.random_range(0..pending.len());
                let (number, caller, unserved) = &mut pending[nth];
                if !*unserved {
                    queue.await_engine(caller, *number);
                    *unserved = true;
                }
            }
            _ if !requests.served.is_empty() => {
                let done = requests.served.swap_remove(random.random_range(0..requests.served.len()));
                ended += 1;
                requests.last.insert(done.caller.clone(), now);
                let next = queue.finish(&done.caller, done.slots, Some(now - done.since), now);
                requests.admit(next, now);
            }
            _ => {}
        }
        let held: usize = requests.served.iter().map(|request| request.slots).sum();
        assert_eq!((queue.in_flight(), queue.held()), (requests.served.len(), held), "seed {seed}");
        let unserved = pending.iter().filter(|(.., unserved)| *unserved).count();
        let waiting = requests.waiting.len() + unserved;
        assert_eq!((queue.waiting(), queue.present()), (waiting, entered - ended), "seed {seed}");
        assert_eq!(queue.present(), pending.len() + requests.waiting.len() + requests.served.len(), "seed {seed}");
        assert!(
            held <= slots && pending.len() + requests.waiting.len() + held <= slots + queue_limit + 3,
            "seed {seed}"
        );
        let largest = requests.waiting.values().map(|request| request.slots).max().unwrap_or(usize::MAX);
        assert!(requests.waiting.is_empty() || held + largest > slots, "seed {seed}: all fit, and one waits");
    }
    // In the end all requests leave.
    for (number, caller, _) in pending {
        assert!(queue.leave_unserved(&caller, number) || queue.leave_pending(&caller, number));
    }
    while let Some(done) = requests.served.pop() {
        requests.last.insert(done.caller.clone(), now);
        let next = queue.finish(&done.caller, done.slots, None, now);
        requests.admit(next, now);
    }
    assert_eq!((queue.present(), queue.held(), queue.callers.len()), (0, 0, 0), "seed {seed}");
}

#[test]
fn invariants_hold_for_random_traffic() {
    (0..300).for_each(run_random_traffic);
}

/// A request of a caller without a name that enters and needs one slot.
fn arrive(queue: &mut WaitQueue, caller: &CallerName, priority: i64, now: Instant, left: Duration) -> EnqueueOutcome {
    arrive_with(queue, caller, 1, priority, now, left)
}

fn arrive_with(
    queue: &mut WaitQueue,
    caller: &CallerName,
    slots: usize,
    priority: i64,
    now: Instant,
    left: Duration,
) -> EnqueueOutcome {
    let Entered { number, .. } = queue.enter(caller, now).expect("room");
    queue.enqueue(caller, number, slots, priority, now, now + left)
}

fn ticket(outcome: EnqueueOutcome) -> Ticket {
    let EnqueueOutcome::Waiting(ticket) = outcome else { panic!("{outcome:?}") };
    ticket
}

#[test]
fn low_priorities_do_not_starve() {
    let start = Instant::now();
    let mut queue = WaitQueue::new(1, 10_000, start);
    assert_eq!(arrive(&mut queue, &None, 0, start, FAR), EnqueueOutcome::Admitted);
    let patient = ticket(arrive(&mut queue, &None, 50, start, FAR));
    // Each second, 20 urgent requests arrive and 10 end.
    for tenth in 0.. {
        let now = start + Duration::from_millis(100 * tenth);
        for _ in 0..2 {
            ticket(arrive(&mut queue, &None, -50, now, FAR));
        }
        if queue.finish(&None, 1, None, now) == [patient.number] {
            assert!(now > start + PRIORITY_STEP * 100, "admitted before urgent requests that arrived in time");
            break;
        }
        assert!(tenth < 2_100, "starved");
    }
}

#[test]
fn callers_share_the_slots() {
    let start = Instant::now();
    let mut queue = WaitQueue::new(10, 1_000, start);
    let [many, few]: [CallerName; 2] = [Some("many".into()), Some("few".into())];
    for _ in 0..10 {
        assert_eq!(arrive(&mut queue, &many, 0, start, FAR), EnqueueOutcome::Admitted);
    }
    for _ in 0..500 {
        ticket(arrive(&mut queue, &many, 0, start, FAR));
    }
    // A later caller that holds fewer slots gets the next ones, until both hold as many.
    let later = start + PRIORITY_STEP;
    let mine: Vec<u64> = (0..100).map(|_| ticket(arrive(&mut queue, &few, 0, later, FAR)).number).collect();
    let next: Vec<u64> = (0..4).flat_map(|_| queue.finish(&many, 1, None, later)).collect();
    assert_eq!(next, mine[..4]);
    let more: Vec<u64> =
        (0..20).flat_map(|i| queue.finish(if i % 2 == 0 { &many } else { &few }, 1, None, later)).collect();
    let share = more.iter().filter(|number| mine.contains(number)).count();
    assert!((9..=11).contains(&share), "{share} of 20");
}

#[test]
fn callers_share_a_single_slot() {
    let start = Instant::now();
    let mut queue = WaitQueue::new(1, 1_000, start);
    let [many, few]: [CallerName; 2] = [Some("many".into()), Some("few".into())];
    assert_eq!(arrive(&mut queue, &many, 0, start, FAR), EnqueueOutcome::Admitted);
    for _ in 0..500 {
        ticket(arrive(&mut queue, &many, 0, start, FAR));
    }
    // Each request takes longer than a point of priority is worth.
    let (mut now, mut holder, mut order) = (start, many.clone(), Vec::new());
    let mut mine = Vec::new();
    for turn in 0..8 {
        if turn == 2 {
            mine.extend((0..3).map(|_| ticket(arrive(&mut queue, &few, 0, now, FAR)).number));
        }
        now += PRIORITY_STEP * 30;
        let next = queue.finish(&holder, 1, None, now);
        let is_mine = mine.contains(&next[0]);
        holder = if is_mine { few.clone() } else { many.clone() };
        order.push(is_mine);
    }
    assert_eq!(order, [false, false, true, false, true, false, true, false]);
}

#[test]
fn a_full_queue_refuses_the_caller_that_has_most_in_it() {
    let start = Instant::now();
    let mut queue = WaitQueue::new(1, 3, start);
    let [many, few]: [CallerName; 2] = [Some("many".into()), Some("few".into())];
    assert_eq!(arrive(&mut queue, &many, 0, start, FAR), EnqueueOutcome::Admitted);
    let [_, second, third] = [0; 3].map(|_| ticket(arrive(&mut queue, &many, 0, start, FAR)).number);
    assert_eq!(queue.enter(&many, start), Err(None));
    assert_eq!(queue.enter(&few, start).expect("evicts").evicted, Some(third));
    // One of `few` and two of `many`: neither has two more than the other.
    assert_eq!(queue.enter(&few, start), Err(None));
    let other = Some("other".into());
    assert_eq!(queue.enter(&other, start).expect("evicts").evicted, Some(second));
}

#[test]
fn a_slow_body_leaves_a_full_queue() {
    let start = Instant::now();
    let mut queue = WaitQueue::new(1, 1, start);
    let slow = queue.enter(&None, start).expect("room").number;
    let later = start + limits::PENDING_TIME;
    let second = queue.enter(&None, later - Duration::from_millis(1)).expect("room").number;
    assert_eq!(queue.enter(&None, later - Duration::from_millis(1)), Err(None));
    assert_eq!(queue.enter(&None, later).expect("evicts").evicted, Some(slow));
    assert_eq!(queue.enter(&None, later), Err(None));
    assert_eq!(queue.enqueue(&None, second, 1, 0, later, later + FAR), EnqueueOutcome::Admitted);
}

#[test]
fn a_request_with_many_choices_waits_for_their_slots_and_is_not_overtaken() {
    let start = Instant::now();
    let mut queue = WaitQueue::new(4, 8, start);
    let arrives = |queue: &mut WaitQueue, slots| arrive_with(queue, &None, slots, 0, start, FAR);
    assert_eq!(arrives(&mut queue, 3), EnqueueOutcome::Admitted);
    let large = ticket(arrives(&mut queue, 128));
    let small = ticket(arrives(&mut queue, 1));
    assert_eq!(queue.finish(&None, 3, None, start), [large.number]);
    assert_eq!(queue.finish(&None, 128, None, start), [small.number]);
    // If the large one leaves, the small one need not wait.
    let large = ticket(arrives(&mut queue, 4));
    let small = ticket(arrives(&mut queue, 2));
    assert_eq!(queue.cancel(&None, large, start), Some(vec![small.number]));
    assert_eq!((queue.in_flight(), queue.held()), (2, 3));
}

#[test]
fn a_request_that_would_be_late_is_rejected_with_the_time_to_retry() {
    let start = Instant::now();
    let mut queue = WaitQueue::new(2, 8, start);
    let second = Duration::from_secs(1);
    let up = |queue: &mut WaitQueue, priority, left| arrive(queue, &None, priority, start, left);
    let end = |queue: &mut WaitQueue, time| queue.finish(&None, 1, time, start);
    assert_eq!(up(&mut queue, 0, second), EnqueueOutcome::Admitted);
    assert_eq!(up(&mut queue, 0, second), EnqueueOutcome::Admitted);
    // Without a mean time in flight, no request is rejected.
    let doubtful = ticket(up(&mut queue, 0, second));
    assert_eq!(queue.cancel(&None, doubtful, start), Some(vec![]));
    assert_eq!(end(&mut queue, Some(Duration::from_secs(10))), [0_u64; 0]);
    assert_eq!(up(&mut queue, 0, second), EnqueueOutcome::Admitted);
    // Two are in flight for 10 s each: the next is admitted in 5 s, the one after in 10 s.
    assert_eq!(up(&mut queue, 0, Duration::from_secs(5)), EnqueueOutcome::TooLate(Duration::ZERO));
    let first = ticket(up(&mut queue, 0, Duration::from_secs(6)));
    assert_eq!(up(&mut queue, 0, Duration::from_secs(6)), EnqueueOutcome::TooLate(4 * second));
    // An urgent request has no other before it.
    let urgent = ticket(up(&mut queue, -5, Duration::from_secs(6)));
    assert_eq!(end(&mut queue, None), [urgent.number]);
    assert_eq!(end(&mut queue, None), [first.number]);
    assert_eq!(queue.present(), 2);
}

#[test]
fn without_a_queue_requests_are_admitted_or_refused() {
    let start = Instant::now();
    let mut queue = WaitQueue::new(1, 0, start);
    let number = queue.enter(&None, start).expect("room").number;
    assert_eq!(queue.enter(&None, start), Err(None));
    assert_eq!(queue.enqueue(&None, number, 1, 0, start, start), EnqueueOutcome::Admitted);
    assert_eq!(queue.finish(&None, 1, Some(Duration::from_secs(3)), start), [0_u64; 0]);
    queue.enter(&None, start).expect("room");
    assert_eq!(queue.enter(&None, start), Err(Some(Duration::from_secs(3))));
}

#[test]
fn the_wait_of_a_refused_request_counts_pending_requests() {
    let start = Instant::now();
    let mut queue = WaitQueue::new(2, 8, start);
    assert_eq!(arrive(&mut queue, &None, 0, start, FAR), EnqueueOutcome::Admitted);
    assert_eq!(queue.finish(&None, 1, Some(Duration::from_secs(4)), start), [0_u64; 0]);
    (0..10).for_each(|_| drop(queue.enter(&None, start).expect("room")));
    // Two are in flight for 4 s each, and eight of the ten pending requests will wait.
    assert_eq!(queue.enter(&None, start), Err(Some(Duration::from_secs(18))));
}
