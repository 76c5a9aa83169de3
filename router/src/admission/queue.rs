//! The wait queue: decides which requests are in flight, wait or are refused. It has no clock and no I/O, so that tests
//! replay it from a seed.
//!
//! A request is *pending* while its body is read, and *unserved* while no engine serves its model. It enters the queue
//! once its priority, its deadline and its number of choices are known: it *waits* or is *in flight* until it ends.
//! While its client does not read, it is *parked* and holds no slot; then it waits again. Requests in flight hold at
//! most `slots` slots, one for each choice, and at most `queue` requests more are present.
//!
//! Callers share the slots and the queue. The next slot goes to the caller that received or returned a slot least
//! recently. The slots that a caller holds count against it like a higher priority value. A full queue refuses the
//! caller that has the most requests in it.
//!
//! A caller that has nothing does not wait for others that have all, however long they do. So its first request enters
//! a full queue, and gets one slot, or a few, beyond the limit.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, hash_map::Entry},
    time::Duration,
};

use tokio::time::Instant;

use crate::{fair::CallerName, limits};

/// Priorities are clamped to this range.
pub const PRIORITIES: std::ops::RangeInclusive<i64> = -100..=100;
/// Head start of a request over one whose priority is higher by 1, and of a caller over one that holds one slot more.
/// It prevents starvation: a request can only be overtaken by requests that arrive, or whose callers are served,
/// within this time times the difference.
pub const PRIORITY_STEP: Duration = Duration::from_secs(1);
/// A caller that holds no slot gets one beyond the limit, or more while those beyond it are at most one for so many.
const SLOTS_PER_FIRST: usize = 8;
/// The mean time in flight is over about this many of the last requests.
const MEAN_OVER: f64 = 32.0;

/// A request that has entered, by the order of arrival.
pub type RequestNumber = u64;

/// A waiting request. Of one caller's requests, lower tickets are admitted first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket {
    /// Time of arrival plus priority times `PRIORITY_STEP`, in microseconds.
    order: i128,
    pub number: RequestNumber,
}

#[derive(Debug, PartialEq)]
pub enum EnqueueOutcome {
    Admitted,
    Waiting(Ticket),
    /// It would wait until after its deadline. It may succeed when retried after this time.
    TooLate(Duration),
}

/// What a new request is given.
#[derive(Debug, PartialEq)]
pub struct Entered {
    pub number: RequestNumber,
    /// The request that had to leave for it, pending or waiting.
    pub evicted: Option<RequestNumber>,
    /// The requests that are admitted because that one left.
    pub admitted: Vec<RequestNumber>,
}

#[derive(Debug)]
pub struct WaitQueue {
    slots: usize,
    queue: usize,
    callers: HashMap<CallerName, CallerRequests>,
    pending: usize,
    unserved: usize,
    parked: usize,
    waiting: usize,
    /// Requests in flight, and the slots that they hold.
    in_flight: usize,
    held: usize,
    next_number: RequestNumber,
    /// Mean time that a slot is held.
    mean_time: Option<Duration>,
    /// The origin of [`Ticket::order`].
    start: Instant,
}

/// The requests of one caller.
#[derive(Debug, Default)]
struct CallerRequests {
    /// Requests whose bodies are being read, with the time of their arrival.
    pending: BTreeMap<RequestNumber, Instant>,
    /// Requests whose models have no engine.
    unserved: BTreeSet<RequestNumber>,
    waiting: BTreeMap<Ticket, WaitingRequest>,
    /// Number of its requests whose clients do not read.
    parked: usize,
    /// Slots of its requests in flight.
    held: usize,
    /// When a request of it was last admitted or ended.
    served: Option<Instant>,
}

#[derive(Debug, Clone, Copy)]
struct WaitingRequest {
    slots: usize,
    since: Instant,
    priority: i64,
    /// It has begun its answer, so that it must not leave the queue for another one.
    begun: bool,
}

impl CallerRequests {
    fn queued(&self) -> usize {
        self.pending.len() + self.unserved.len() + self.parked + self.waiting.len()
    }

    /// Whether a request of it has not begun its answer.
    fn may_leave(&self) -> bool {
        let queued = self.pending.len() + self.unserved.len();
        queued > 0 || self.waiting.values().any(|request| !request.begun)
    }

    /// Its next request.
    fn next(&self) -> Option<(Ticket, WaitingRequest)> {
        self.waiting.first_key_value().map(|(ticket, request)| (*ticket, *request))
    }

    fn waiting_slots(&self) -> usize {
        self.waiting.values().map(|request| request.slots).sum()
    }
}

impl WaitQueue {
    pub fn new(slots: usize, queue: usize, start: Instant) -> Self {
        WaitQueue {
            slots,
            queue,
            callers: HashMap::new(),
            pending: 0,
            unserved: 0,
            parked: 0,
            waiting: 0,
            in_flight: 0,
            held: 0,
            next_number: 0,
            mean_time: None,
            start,
        }
    }

    /// Requests that wait for a slot or for an engine of their model.
    pub fn waiting(&self) -> usize {
        self.unserved + self.waiting
    }

    /// Mean time that a slot is held.
    pub fn mean_time_in_flight(&self) -> Option<Duration> {
        self.mean_time
    }

    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Requests that gave up their slots because their clients do not read.
    pub fn parked(&self) -> usize {
        self.parked
    }

    /// Slots of the requests in flight.
    pub fn held(&self) -> usize {
        self.held
    }

    pub fn present(&self) -> usize {
        self.queued() + self.in_flight
    }

    fn queued(&self) -> usize {
        self.pending + self.unserved + self.parked + self.waiting
    }

    /// Registers a pending request. If the queue is full, another one may be evicted for it. Err: the queue is full;
    /// the estimated wait, if it is known.
    pub fn enter(&mut self, caller: &CallerName, now: Instant) -> Result<Entered, Option<Duration>> {
        let queued = self.queued();
        let evicted = match queued + self.held >= self.slots + self.queue {
            true => match self.evict(caller, now) {
                Some(number) => Some(number),
                None if !self.callers.contains_key(caller) => None,
                // Requests whose bodies are still being read enter the queue before a client that retries.
                None => return Err(self.estimated_wait((queued + self.held).saturating_sub(self.slots))),
            },
            false => None,
        };
        let number = self.next_number;
        self.next_number += 1;
        self.pending += 1;
        self.callers.entry(caller.clone()).or_default().pending.insert(number, now);
        let admitted = if evicted.is_some() { self.admit(now) } else { Vec::new() };
        Ok(Entered { number, evicted, admitted })
    }

    /// Makes place for a request of `caller`. If the caller with the most requests in the queue has at least two more,
    /// its last request leaves, unless all have begun their answers. Otherwise the oldest pending request leaves, if
    /// its body has been read for longer than `limits::PENDING_TIME`.
    fn evict(&mut self, caller: &CallerName, now: Instant) -> Option<RequestNumber> {
        let own = self.callers.get(caller).map_or(0, CallerRequests::queued);
        let others = self.callers.iter().filter(|(_, requests)| requests.may_leave());
        let longest = others.max_by_key(|(name, requests)| (requests.queued(), *name));
        if let Some((name, requests)) = longest
            && requests.queued() >= own + 2
        {
            let name = name.clone();
            if let Some(&number) = requests.pending.keys().next_back() {
                self.leave_pending(&name, number);
                return Some(number);
            }
            if let Some(&number) = requests.unserved.last() {
                self.leave_unserved(&name, number);
                return Some(number);
            }
            let (&ticket, _) = requests.waiting.iter().rfind(|(_, request)| !request.begun)?;
            self.remove_waiting(&name, ticket);
            return Some(ticket.number);
        }
        let first = |requests: &CallerRequests| requests.pending.first_key_value().map(|(n, since)| (*n, *since));
        let oldest = self.callers.iter().filter_map(|(name, requests)| Some((first(requests)?, name)));
        let ((number, since), name) = oldest.min()?;
        let (slow, name) = (now.saturating_duration_since(since) >= limits::PENDING_TIME, name.clone());
        (slow && self.leave_pending(&name, number)).then_some(number)
    }

    /// A pending request left. False: it is no longer pending.
    pub fn leave_pending(&mut self, caller: &CallerName, number: RequestNumber) -> bool {
        let was = self.callers.get_mut(caller).is_some_and(|caller| caller.pending.remove(&number).is_some());
        self.pending -= usize::from(was);
        self.forget_idle(caller);
        was
    }

    /// A pending request waits until an engine serves its model.
    pub fn await_engine(&mut self, caller: &CallerName, number: RequestNumber) {
        self.leave_pending(caller, number);
        self.callers.entry(caller.clone()).or_default().unserved.insert(number);
        self.unserved += 1;
    }

    /// An unserved request left. False: it is not unserved.
    pub fn leave_unserved(&mut self, caller: &CallerName, number: RequestNumber) -> bool {
        let was = self.callers.get_mut(caller).is_some_and(|caller| caller.unserved.remove(&number));
        self.unserved -= usize::from(was);
        self.forget_idle(caller);
        was
    }

    /// Moves a pending or unserved request to the queue. It needs this many slots, or all if there are fewer.
    pub fn enqueue(
        &mut self,
        caller: &CallerName,
        number: RequestNumber,
        slots: usize,
        priority: i64,
        now: Instant,
        deadline: Instant,
    ) -> EnqueueOutcome {
        self.leave_unserved(caller, number);
        self.leave_pending(caller, number);
        let slots = self.slots_of(slots);
        let priority = priority.clamp(*PRIORITIES.start(), *PRIORITIES.end());
        let request = WaitingRequest { slots, since: now, priority, begun: false };
        let Some(ticket) = self.wait(caller, number, request, now) else { return EnqueueOutcome::Admitted };
        let left = deadline.saturating_duration_since(now);
        // The sum is linear in the queue's length, so it is computed only if it is used.
        if self.mean_time.is_some()
            && let Some(wait) = self.estimated_wait(self.slots_before(caller, ticket) + slots - 1)
            && wait >= left
        {
            self.remove_waiting(caller, ticket);
            return EnqueueOutcome::TooLate(wait - left);
        }
        EnqueueOutcome::Waiting(ticket)
    }

    /// None: the request is admitted.
    fn wait(
        &mut self,
        caller: &CallerName,
        number: RequestNumber,
        request: WaitingRequest,
        now: Instant,
    ) -> Option<Ticket> {
        let ticket = Ticket { order: self.order(request.since, request.priority), number };
        self.callers.entry(caller.clone()).or_default().waiting.insert(ticket, request);
        self.waiting += 1;
        // Those that waited before need more slots than are free: if one is admitted, it is this request.
        self.admit_next(now).is_none().then_some(ticket)
    }

    /// A request in flight gives up its slots until its client reads again. Returns the requests that are admitted in
    /// its place. None: it keeps them, because parked requests fill half of the queue.
    pub fn park(&mut self, caller: &CallerName, slots: usize, now: Instant) -> Option<Vec<RequestNumber>> {
        if self.parked >= self.queue / 2 {
            return None;
        }
        self.parked += 1;
        self.callers.entry(caller.clone()).or_default().parked += 1;
        Some(self.finish(caller, slots, None, now))
    }

    /// A parked request ends.
    pub fn leave_parked(&mut self, caller: &CallerName) {
        self.parked = self.parked.saturating_sub(1);
        if let Some(requests) = self.callers.get_mut(caller) {
            requests.parked = requests.parked.saturating_sub(1);
        }
        self.forget_idle(caller);
    }

    /// A parked request waits for its slots again, like one that arrived now. None: it has them.
    pub fn unpark(&mut self, caller: &CallerName, number: RequestNumber, slots: usize, now: Instant) -> Option<Ticket> {
        self.leave_parked(caller);
        let request = WaitingRequest { slots: self.slots_of(slots), since: now, priority: 0, begun: true };
        self.wait(caller, number, request, now)
    }

    /// The slots that a request takes.
    fn slots_of(&self, slots: usize) -> usize {
        slots.clamp(1, self.slots.max(1))
    }

    /// A time plus so many points of priority, in microseconds.
    fn order(&self, time: Instant, points: i64) -> i128 {
        let time = time.saturating_duration_since(self.start).as_micros() as i128;
        time + i128::from(points) * PRIORITY_STEP.as_micros() as i128
    }

    /// About how many slots are given before this request gets its own: those of its caller's earlier requests, and as
    /// many for each other caller that waits.
    fn slots_before(&self, caller: &CallerName, ticket: Ticket) -> usize {
        let Some(of_caller) = self.callers.get(caller) else { return 0 };
        let own: usize = of_caller.waiting.range(..ticket).map(|(_, request)| request.slots).sum();
        let others = self.callers.iter().filter(|(name, _)| *name != caller);
        own + others.map(|(_, other)| other.waiting_slots().min(own + 1)).sum::<usize>()
    }

    /// A request stops waiting. None: it does not wait, because it was admitted or evicted before. Some: the requests
    /// that are admitted because it left.
    pub fn cancel(&mut self, caller: &CallerName, ticket: Ticket, now: Instant) -> Option<Vec<RequestNumber>> {
        self.remove_waiting(caller, ticket).then(|| self.admit(now))
    }

    fn remove_waiting(&mut self, caller: &CallerName, ticket: Ticket) -> bool {
        let was = self.callers.get_mut(caller).is_some_and(|caller| caller.waiting.remove(&ticket).is_some());
        self.waiting -= usize::from(was);
        self.forget_idle(caller);
        was
    }

    /// A request in flight with this many slots ended. `time_in_flight` is None if it was never woken. Returns the
    /// requests that are admitted in its place.
    pub fn finish(
        &mut self,
        caller: &CallerName,
        slots: usize,
        time_in_flight: Option<Duration>,
        now: Instant,
    ) -> Vec<RequestNumber> {
        if let Some(time) = time_in_flight {
            self.mean_time = Some(match self.mean_time {
                Some(mean) => mean.mul_f64(1.0 - 1.0 / MEAN_OVER) + time.div_f64(MEAN_OVER),
                None => time,
            });
        }
        let slots = self.slots_of(slots);
        self.in_flight = self.in_flight.saturating_sub(1);
        self.held = self.held.saturating_sub(slots);
        if let Some(requests) = self.callers.get_mut(caller) {
            requests.held = requests.held.saturating_sub(slots);
            requests.served = Some(now);
        }
        self.forget_idle(caller);
        self.admit(now)
    }

    /// Admits waiting requests while slots are free for the next one.
    fn admit(&mut self, now: Instant) -> Vec<RequestNumber> {
        std::iter::from_fn(|| self.admit_next(now)).collect()
    }

    /// Admits the next waiting request, if its slots are free. A request that needs more than are free is not
    /// overtaken, except by one of a caller that holds none: else it would wait as long as smaller ones arrive.
    fn admit_next(&mut self, now: Instant) -> Option<RequestNumber> {
        let next = |first: bool| {
            let all = self.callers.iter().filter(|(_, requests)| !first || requests.held == 0);
            let all = all.filter_map(|(name, requests)| {
                let (ticket, request) = requests.next()?;
                let since = requests.served.map_or(request.since, |served| served.max(request.since));
                let order = self.order(since, request.priority + requests.held as i64);
                Some(((order, ticket.number), ticket, request.slots, name))
            });
            let more = if first { self.slots / SLOTS_PER_FIRST } else { 0 };
            let fits = |slots: usize| self.held + slots <= self.slots + more || (first && slots == 1);
            let all = all.filter(|(_, _, slots, _)| !first || fits(*slots));
            let (_, ticket, slots, name) = all.min_by_key(|next| next.0)?;
            fits(slots).then(|| (ticket, slots, name.clone()))
        };
        let (ticket, slots, name) = next(false).or_else(|| next(true))?;
        if let Some(requests) = self.callers.get_mut(&name) {
            requests.waiting.remove(&ticket);
            requests.held += slots;
            requests.served = Some(now);
        }
        self.waiting -= 1;
        self.in_flight += 1;
        self.held += slots;
        Some(ticket.number)
    }

    fn forget_idle(&mut self, caller: &CallerName) {
        if let Entry::Occupied(entry) = self.callers.entry(caller.clone())
            && entry.get().queued() + entry.get().held == 0
        {
            entry.remove();
        }
    }

    /// Estimated wait of a request if `before` slots are given to others first. None: no request has ended yet.
    fn estimated_wait(&self, before: usize) -> Option<Duration> {
        Some(self.mean_time?.mul_f64((before + 1) as f64 / self.slots.max(1) as f64))
    }
}

#[cfg(test)]
mod tests;
