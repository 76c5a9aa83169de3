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
    begun: bool,
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
            // The first request of a caller may have slots beyond the limit.
            let sole = self.held_by(&next.caller) == 0;
            for (caller, other) in first.into_iter().filter(|_| !sole) {
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
    // The callers and slots of requests whose clients do not read.
    let mut parked: Vec<(CallerName, usize)> = Vec::new();
    let (mut entered, mut ended) = (0, 0);
    let mut unparked = u64::MAX;
    let busy = random.random_range(0.2..0.8);
    for _ in 0..2_000 {
        now += Duration::from_millis(random.random_range(0..3_000));
        match random.random_range(0..13) {
            0..4 if random.random_bool(busy) => {
                let caller = &callers[random.random_range(0..callers.len())];
                let queued = |caller: &CallerName| {
                    pending.iter().filter(|(_, other, _)| other == caller).count()
                        + requests.waiting.values().filter(|other| other.caller == *caller).count()
                        + parked.iter().filter(|(other, _)| other == caller).count()
                };
                let may_leave = |caller: &&CallerName| {
                    pending.iter().any(|(_, other, _)| other == *caller)
                        || requests.waiting.values().any(|other| other.caller == **caller && !other.begun)
                };
                let queued_all = pending.len() + requests.waiting.len() + parked.len();
                let full = queued_all + queue.held() >= slots + queue_limit;
                let new = queued(caller) + requests.held_by(caller) == 0;
                match queue.enter(caller, now) {
                    Ok(Entered { number, evicted, admitted }) => {
                        assert!(evicted.is_none() || full, "seed {seed}: evicted although there is room");
                        assert!(evicted.is_some() || !full || new, "seed {seed}: too many");
                        if let Some(evicted) = evicted {
                            match pending.iter().position(|(number, ..)| *number == evicted) {
                                Some(at) => drop(pending.remove(at)),
                                None => {
                                    let left =
                                        requests.waiting.remove(&evicted).expect("evicted twice, or never there");
                                    let own =
                                        requests.waiting.values().filter(|other| other.caller == left.caller).count();
                                    let own = own + parked.iter().filter(|(other, _)| *other == left.caller).count();
                                    assert!(left.caller != *caller && own > 0, "seed {seed}: evicted its last request");
                                    assert!(!left.begun, "seed {seed}: evicted an answer that has begun");
                                }
                            }
                            ended += 1;
                        }
                        requests.admit(admitted, now);
                        entered += 1;
                        pending.push((number, caller.clone(), false));
                    }
                    Err(_) => {
                        assert!(full && !new, "seed {seed}: refused although there is room");
                        let most = callers.iter().filter(may_leave).map(queued).max().unwrap_or(0);
                        assert!(most < queued(caller) + 2, "seed {seed}: refused although another has more");
                    }
                }
            }
            4..7 if !pending.is_empty() => {
                let (number, caller, _) = pending.swap_remove(random.random_range(0..pending.len()));
                let (needed, priority) = (random.random_range(1..4), random.random_range(-20..20));
                let request = |ticket| {
                    let slots = needed.min(slots);
                    Waiting { caller: caller.clone(), since: now, priority, slots, ticket, begun: false }
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
            10 if !requests.served.is_empty() => {
                let at = random.random_range(0..requests.served.len());
                let InFlight { caller, slots, .. } = &requests.served[at];
                match queue.park(caller, *slots, now) {
                    Some(next) => {
                        let InFlight { caller, slots, .. } = requests.served.swap_remove(at);
                        requests.last.insert(caller.clone(), now);
                        parked.push((caller, slots));
                        requests.admit(next, now);
                    }
                    None => assert_eq!(parked.len(), queue_limit / 2, "seed {seed}"),
                }
            }
            11 if !parked.is_empty() => {
                let (caller, slots) = parked.swap_remove(random.random_range(0..parked.len()));
                if random.random() {
                    queue.leave_parked(&caller);
                    ended += 1;
                } else {
                    unparked -= 1;
                    match queue.unpark(&caller, unparked, slots, now) {
                        None => requests.begin(caller, slots, now),
                        Some(ticket) => {
                            let waiting = Waiting { caller, since: now, priority: 0, slots, ticket, begun: true };
                            assert!(requests.waiting.insert(unparked, waiting).is_none());
                        }
                    }
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
        let queued = pending.len() + requests.waiting.len() + parked.len();
        assert_eq!(queue.present(), queued + requests.served.len(), "seed {seed}");
        // Each caller may have one request beyond the limits.
        assert!(held <= slots + callers.len(), "seed {seed}: {held} of {slots} slots");
        assert!(queued + held <= slots + queue_limit + 3 + callers.len(), "seed {seed}: {queued} are queued");
        let largest = requests.waiting.values().map(|request| request.slots).max().unwrap_or(usize::MAX);
        assert!(requests.waiting.is_empty() || held + largest > slots, "seed {seed}: all fit, and one waits");
    }
    // In the end all requests leave.
    for (number, caller, _) in pending {
        assert!(queue.leave_unserved(&caller, number) || queue.leave_pending(&caller, number));
    }
    for (caller, _) in parked {
        queue.leave_parked(&caller);
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
    // A later caller that holds none gets one more at once, and the next ones, until both hold as many.
    let later = start + PRIORITY_STEP;
    assert_eq!(arrive(&mut queue, &few, 0, later, FAR), EnqueueOutcome::Admitted);
    let mine: Vec<u64> = (0..100).map(|_| ticket(arrive(&mut queue, &few, 0, later, FAR)).number).collect();
    let next: Vec<u64> = (0..4).flat_map(|_| queue.finish(&many, 1, None, later)).collect();
    assert_eq!(next, mine[..3]);
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
    // Each request takes longer than a point of priority is worth, and the other caller holds the slot all the time.
    let mut now = start + PRIORITY_STEP * 30;
    assert_eq!(arrive(&mut queue, &few, 0, now, FAR), EnqueueOutcome::Admitted);
    let mut mine: Vec<u64> = (0..3).map(|_| ticket(arrive(&mut queue, &few, 0, now, FAR)).number).collect();
    mine.reverse();
    while let Some(next) = mine.pop() {
        now += PRIORITY_STEP * 30;
        assert_eq!(queue.finish(&few, 1, None, now), [next]);
        assert_eq!((queue.in_flight(), queue.held()), (2, 2));
    }
    // Then the one slot is the other caller's again, and it never has more.
    assert!(queue.finish(&few, 1, None, now).is_empty());
    assert_eq!(queue.finish(&many, 1, None, now).len(), 1);
    assert_eq!((queue.in_flight(), queue.held()), (1, 1));
}

/// What is left for first requests is bounded, and a request that needs more of it waits as before.
#[test]
fn a_caller_that_holds_nothing_does_not_wait_for_those_that_hold_all() {
    let start = Instant::now();
    let mut queue = WaitQueue::new(16, 100, start);
    let caller = |name: &str| -> CallerName { Some(name.into()) };
    assert_eq!(arrive_with(&mut queue, &caller("many"), 128, 0, start, FAR), EnqueueOutcome::Admitted);
    // A large one of the same caller blocks the slots that become free.
    ticket(arrive_with(&mut queue, &caller("many"), 128, 0, start, FAR));
    let large = ticket(arrive_with(&mut queue, &caller("large"), 3, 0, start, FAR));
    let pair = arrive_with(&mut queue, &caller("pair"), 2, 0, start, FAR);
    assert_eq!(pair, EnqueueOutcome::Admitted);
    let [first, second] = ["a", "b"].map(|name| arrive(&mut queue, &caller(name), 0, start, FAR));
    assert_eq!((first, second), (EnqueueOutcome::Admitted, EnqueueOutcome::Admitted));
    let more = ticket(arrive(&mut queue, &caller("a"), 0, start, FAR));
    assert_eq!(queue.held(), 20);
    // What ends makes no place for one more of a caller that has one, nor for what is larger than what is free.
    assert!(queue.finish(&caller("b"), 1, None, start).is_empty());
    assert_eq!(queue.finish(&caller("a"), 1, None, start), [more.number]);
    assert!(queue.finish(&caller("a"), 1, None, start).is_empty());
    assert_eq!(queue.cancel(&caller("large"), large, start), Some(Vec::new()));
}

/// A caller whose clients do not read any of its streams has its slots again when they do.
#[test]
fn parked_requests_give_up_their_slots_and_wait_for_them_again() {
    let start = Instant::now();
    let mut queue = WaitQueue::new(2, 4, start);
    let [slow, other]: [CallerName; 2] = [Some("slow".into()), Some("other".into())];
    assert_eq!(arrive_with(&mut queue, &slow, 2, 0, start, FAR), EnqueueOutcome::Admitted);
    let waiting = ticket(arrive(&mut queue, &slow, 0, start, FAR));
    assert_eq!(queue.park(&slow, 2, start), Some(vec![waiting.number]));
    assert_eq!(arrive(&mut queue, &other, 0, start, FAR), EnqueueOutcome::Admitted);
    assert_eq!((queue.held(), queue.waiting(), queue.present()), (2, 0, 3));
    // It waits for both slots, and is not overtaken, and does not leave a full queue.
    let parked = queue.unpark(&slow, 100, 2, start).expect("no slot is free");
    ticket(arrive(&mut queue, &slow, 1, start, FAR));
    while queue.enter(&other, start).is_ok_and(|entered| entered.evicted.is_none()) {}
    assert_eq!((queue.waiting(), queue.finish(&slow, 1, None, start)), (2, vec![]));
    assert_eq!(queue.finish(&other, 1, None, start), [parked.number]);
    // Half of the queue may be parked.
    let mut queue = WaitQueue::new(3, 2, start);
    for _ in 0..3 {
        assert_eq!(arrive(&mut queue, &slow, 0, start, FAR), EnqueueOutcome::Admitted);
    }
    assert_eq!((queue.park(&slow, 1, start), queue.park(&slow, 1, start)), (Some(vec![]), None));
    queue.leave_parked(&slow);
    assert_eq!(queue.park(&slow, 1, start), Some(vec![]));
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
