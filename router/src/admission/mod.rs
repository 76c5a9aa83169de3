//! Admission control: bounds the requests in flight and the requests that wait, shares both between callers, and drains
//! or aborts them. It does not know models or engines.

pub mod keys;
mod queue;
mod rate;

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use prometheus_client::registry::Registry;
use tokio::{
    sync::{oneshot, watch},
    time::{Instant, sleep_until},
};

use crate::{
    admission::keys::KeyPermit,
    error::{Error, ErrorKind},
    fair::CallerName,
    limits,
    metrics::{Durations, NO_LABELS, Samples, on_scrape},
};
use queue::{EnqueueOutcome, Entered, RequestNumber, Ticket, WaitQueue};

/// Admits requests. One for all requests of a router.
pub struct Admission(Arc<Shared>);

struct Shared {
    limit: u32,
    queue: u32,
    state: Mutex<State>,
    draining: AtomicBool,
    aborted: watch::Sender<bool>,
    /// Number of requests that are pending, waiting or in flight.
    present: watch::Sender<usize>,
    waited: Durations,
    full: AtomicU64,
    late: AtomicU64,
    evicted: AtomicU64,
}

struct State {
    queue: WaitQueue,
    /// Wakes requests that are pending or waiting.
    wakers: HashMap<RequestNumber, oneshot::Sender<Wake>>,
}

/// What happens to a request that is pending or waiting.
#[derive(Clone, Copy)]
enum Wake {
    Admitted,
    Evicted,
}

/// A request whose body may be read. It enters the queue with [`PendingRequest::admit`], and leaves when dropped.
pub struct PendingRequest(RequestSlot);

/// One request in flight, until dropped.
pub struct InFlightPermit {
    slots: HeldSlots,
    shared: Arc<Shared>,
    aborted: watch::Receiver<bool>,
}

/// The slots of a request in flight. They are freed when the last copy is dropped.
#[derive(Clone)]
pub struct HeldSlots(Arc<tokio::sync::Mutex<RequestSlot>>);

/// The place of one request in the queue or in flight. It is freed when dropped.
struct RequestSlot {
    shared: Arc<Shared>,
    caller: CallerName,
    number: RequestNumber,
    stage: Stage,
    woken: oneshot::Receiver<Wake>,
    /// The request's share of its key's `max_in_flight`.
    key_permit: Option<KeyPermit>,
}

/// How far a request is, and the slots that it needs or holds.
enum Stage {
    Pending,
    Unserved,
    Waiting(Ticket, usize),
    InFlight(Instant, usize),
    /// Its client does not read. It waits for its slots again when it does.
    Parked(usize),
    Rejected,
}

impl HeldSlots {
    /// Gives up the slots, until [`Self::take_back`].
    pub fn give_up(&self) {
        // If it is locked, the request waits for its slots: it has none.
        let Ok(mut slot) = self.0.try_lock() else { return };
        slot.park();
    }

    /// Waits for the slots, if they were given up. Cancel-safe.
    pub async fn take_back(&self, deadline: Instant) -> Result<(), Error> {
        let back = async {
            let mut slot = self.0.lock().await;
            slot.unpark();
            if let Stage::Waiting(_, slots) = slot.stage {
                // The sender lives in the shared state until it is used: this never fails.
                let _ = (&mut slot.woken).await;
                slot.stage = Stage::InFlight(Instant::now(), slots);
            }
        };
        tokio::time::timeout_at(deadline, back).await.map_err(|_| Error::deadline())
    }
}

impl InFlightPermit {
    /// Sets `Retry-After` of an engine's refusal to the mean time that a request is in flight.
    pub fn with_retry_after(&self, error: Error) -> Error {
        match error.kind {
            ErrorKind::Full => {
                Error { retry_after: Some(retry_after(self.shared.state().queue.mean_time_in_flight())), ..error }
            }
            _ => error,
        }
    }

    pub fn slots(&self) -> &HeldSlots {
        &self.slots
    }

    /// Returns when the router aborts all requests. Cancel-safe.
    pub async fn aborted(&mut self) {
        wait_until_set(&mut self.aborted).await;
    }

    /// The same as [`Self::aborted`], without borrowing the permit.
    pub fn when_aborted(&self) -> impl Future<Output = ()> + use<> {
        let mut aborted = self.aborted.clone();
        async move { wait_until_set(&mut aborted).await }
    }
}

impl PendingRequest {
    /// Returns when the request must leave the queue to make place for another one. Cancel-safe.
    pub async fn evicted(&mut self) -> Error {
        // The sender lives in the shared state until it is used: this never fails.
        let _ = (&mut self.0.woken).await;
        self.0.stage = Stage::Rejected;
        evicted()
    }

    /// Waits in the queue, without a claim to a slot, until an engine serves the request's model.
    pub async fn await_engine(&mut self, served: impl Future<Output = ()>, deadline: Instant) -> Result<(), Error> {
        self.0.await_engine()?;
        tokio::select! {
            biased;
            evicted = self.evicted() => Err(evicted),
            () = sleep_until(deadline) => Err(Error::deadline()),
            () = served => Ok(()),
        }
    }

    /// Waits for this many in-flight slots, or for all if there are fewer. Requests with a lower priority value, and
    /// requests of callers that hold fewer slots, are admitted earlier. A request that would wait until after its
    /// deadline is rejected at once.
    pub async fn admit(mut self, slots: usize, priority: i64, deadline: Instant) -> Result<InFlightPermit, Error> {
        let began = Instant::now();
        if let Some(key_permit) = &mut self.0.key_permit {
            key_permit.extend_to(slots).await?;
        }
        if !self.0.enqueue(slots, priority, began, deadline)? {
            tokio::select! {
                biased;
                woken = &mut self.0.woken => {
                    if let Ok(Wake::Evicted) = woken {
                        self.0.stage = Stage::Rejected;
                        return Err(evicted());
                    }
                }
                () = sleep_until(deadline) => return Err(Error::deadline()),
            }
            self.0.stage = Stage::InFlight(Instant::now(), slots);
        }
        self.0.shared.waited.observe(began.elapsed());
        let (shared, aborted) = (self.0.shared.clone(), self.0.shared.aborted.subscribe());
        Ok(InFlightPermit { slots: HeldSlots(Arc::new(tokio::sync::Mutex::new(self.0))), shared, aborted })
    }
}

impl RequestSlot {
    fn await_engine(&mut self) -> Result<(), Error> {
        let mut state = self.shared.state();
        if self.woken.try_recv().is_ok() {
            self.stage = Stage::Rejected;
            return Err(evicted());
        }
        state.queue.await_engine(&self.caller, self.number);
        self.stage = Stage::Unserved;
        Ok(())
    }

    /// Enters the queue. True: the request is in flight. False: it waits until it is woken.
    fn enqueue(&mut self, slots: usize, priority: i64, now: Instant, deadline: Instant) -> Result<bool, Error> {
        let mut state = self.shared.state();
        if self.woken.try_recv().is_ok() {
            self.stage = Stage::Rejected;
            return Err(evicted());
        }
        match state.queue.enqueue(&self.caller, self.number, slots, priority, now, deadline) {
            EnqueueOutcome::Admitted => {
                state.wakers.remove(&self.number);
                self.stage = Stage::InFlight(now, slots);
                Ok(true)
            }
            EnqueueOutcome::Waiting(ticket) => {
                self.stage = Stage::Waiting(ticket, slots);
                Ok(false)
            }
            EnqueueOutcome::TooLate(after) => {
                state.wakers.remove(&self.number);
                self.stage = Stage::Rejected;
                self.shared.late.fetch_add(1, Ordering::Relaxed);
                let message = "this request would wait in the queue until after its deadline; try again later";
                Err(Error {
                    retry_after: Some(retry_after(Some(after))),
                    code: Some("deadline_unreachable"),
                    ..Error::full(message)
                })
            }
        }
    }

    fn park(&mut self) {
        let Stage::InFlight(_, slots) = self.stage else { return };
        let mut state = self.shared.state();
        let Some(admitted) = state.queue.park(&self.caller, slots, Instant::now()) else { return };
        self.stage = Stage::Parked(slots);
        state.wake_admitted(admitted);
    }

    /// Enters the queue again.
    fn unpark(&mut self) {
        let Stage::Parked(slots) = self.stage else { return };
        let now = Instant::now();
        let mut state = self.shared.state();
        self.stage = match state.queue.unpark(&self.caller, self.number, slots, now) {
            None => Stage::InFlight(now, slots),
            Some(ticket) => {
                let (waker, woken) = oneshot::channel();
                state.wakers.insert(self.number, waker);
                self.woken = woken;
                Stage::Waiting(ticket, slots)
            }
        };
    }
}

impl Drop for RequestSlot {
    fn drop(&mut self) {
        let (mut state, now) = (self.shared.state(), Instant::now());
        let admitted = match self.stage {
            Stage::Pending => {
                state.queue.leave_pending(&self.caller, self.number);
                state.wakers.remove(&self.number);
                Vec::new()
            }
            Stage::Unserved => {
                state.queue.leave_unserved(&self.caller, self.number);
                state.wakers.remove(&self.number);
                Vec::new()
            }
            Stage::Waiting(ticket, slots) => match state.queue.cancel(&self.caller, ticket, now) {
                Some(admitted) => {
                    state.wakers.remove(&self.number);
                    admitted
                }
                // It was admitted or evicted, but dropped before it was woken.
                None => match self.woken.try_recv() {
                    Ok(Wake::Evicted) => Vec::new(),
                    _ => state.queue.finish(&self.caller, slots, None, now),
                },
            },
            Stage::InFlight(since, slots) => {
                state.queue.finish(&self.caller, slots, Some(now.saturating_duration_since(since)), now)
            }
            Stage::Parked(_) => {
                state.queue.leave_parked(&self.caller);
                Vec::new()
            }
            Stage::Rejected => Vec::new(),
        };
        state.wake_admitted(admitted);
        self.shared.publish_present(&state);
    }
}

impl State {
    fn wake_admitted(&mut self, admitted: Vec<RequestNumber>) {
        for number in admitted {
            self.wake(number, Wake::Admitted);
        }
    }

    fn wake(&mut self, number: RequestNumber, wake: Wake) {
        if let Some(waker) = self.wakers.remove(&number) {
            // If the receiver is gone, that request is about to be dropped, and frees its place.
            let _ = waker.send(wake);
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn publish_present(&self, state: &State) {
        self.present.send_replace(state.queue.present());
    }
}

/// The error of a request that left the full queue for another one.
fn evicted() -> Error {
    let seconds = limits::PENDING_TIME.as_secs();
    let message = format!(
        "the queue is full, and this request left it for another one: its key has the most requests in the queue, or its \
         body had not arrived after {seconds} seconds; try again later"
    );
    Error { retry_after: Some(limits::RETRY_AFTER), ..Error::full(message) }
}

/// The value of `Retry-After`: the estimate within the limits, or the shortest if there is none.
fn retry_after(estimate: Option<Duration>) -> Duration {
    estimate.unwrap_or(limits::RETRY_AFTER).clamp(limits::RETRY_AFTER, limits::MAX_RETRY_AFTER)
}

impl Shared {
    fn write(&self, samples: &mut Samples<'_>) -> fmt::Result {
        let (waiting, in_flight, held, parked) = {
            let State { queue, .. } = &*self.state();
            (queue.waiting(), queue.in_flight(), queue.held(), queue.parked())
        };
        for (name, help, value) in [
            ("rein_requests_in_flight", "Admitted requests", in_flight),
            ("rein_in_flight_slots", "In-flight slots that admitted requests hold, one for each choice", held),
            ("rein_requests_in_flight_limit", "In-flight slots", self.limit as usize),
            ("rein_requests_parked", "Requests that hold no slot because their clients do not read", parked),
            ("rein_requests_waiting", "Requests in the router's queue", waiting),
            (
                "rein_requests_waiting_limit",
                "Most requests in the router's queue; further requests get 429",
                self.queue as usize,
            ),
        ] {
            samples.gauge(name, help, [(NO_LABELS, value)])?;
        }
        let help = "Requests that were refused because the queue was `full`, because they would miss their `deadline`, or that \
             were `evicted` from the full queue for another one";
        let shed = [("full", &self.full), ("deadline", &self.late), ("evicted", &self.evicted)];
        let shed = shed.map(|(reason, count)| ([("reason", reason)], count.load(Ordering::Relaxed)));
        samples.counter("rein_requests_shed", help, shed)
    }
}

impl Admission {
    /// `limit`: in-flight slots. `queue`: most requests that wait or whose bodies are being read.
    pub fn new(limit: u32, queue: u32) -> Self {
        Admission(Arc::new(Shared {
            limit,
            queue,
            state: Mutex::new(State {
                queue: WaitQueue::new(limit as usize, queue as usize, Instant::now()),
                wakers: HashMap::new(),
            }),
            draining: AtomicBool::new(false),
            aborted: watch::Sender::new(false),
            present: watch::Sender::new(0),
            waited: Durations::default(),
            full: AtomicU64::new(0),
            late: AtomicU64::new(0),
            evicted: AtomicU64::new(0),
        }))
    }

    /// Registers a new request before its body is read. Err: the queue is full, or the router drains.
    pub fn enter(&self, caller: CallerName, key_permit: Option<KeyPermit>) -> Result<PendingRequest, Error> {
        if self.draining() {
            return Err(Error::unavailable("this server is draining and takes no new requests"));
        }
        let mut state = self.0.state();
        let Entered { number, evicted, admitted } = state.queue.enter(&caller, Instant::now()).map_err(|after| {
            self.0.full.fetch_add(1, Ordering::Relaxed);
            let (limit, queue) = (self.0.limit, self.0.queue);
            let message = format!(
                "this server is full: its {limit} in-flight slots are in use, and {queue} requests are in its queue; try \
                 again later"
            );
            Error { retry_after: Some(retry_after(after)), ..Error::full(message) }
        })?;
        if let Some(evicted) = evicted {
            state.wake(evicted, Wake::Evicted);
            self.0.evicted.fetch_add(1, Ordering::Relaxed);
        }
        state.wake_admitted(admitted);
        let (waker, woken) = oneshot::channel();
        state.wakers.insert(number, waker);
        self.0.publish_present(&state);
        drop(state);
        let (shared, stage) = (self.0.clone(), Stage::Pending);
        Ok(PendingRequest(RequestSlot { shared, caller, number, stage, woken, key_permit }))
    }

    pub fn draining(&self) -> bool {
        self.0.draining.load(Ordering::Acquire)
    }

    pub fn in_flight(&self) -> usize {
        self.0.state().queue.in_flight()
    }

    /// Rejects new requests and returns when the last open one is done.
    pub async fn drain(&self) {
        self.0.draining.store(true, Ordering::Release);
        // The sender lives as long as `self`: this never fails.
        let _ = self.0.present.subscribe().wait_for(|present| *present == 0).await;
    }

    /// Rejects new requests and aborts the open ones.
    pub fn abort(&self) {
        self.0.draining.store(true, Ordering::Release);
        self.0.aborted.send_replace(true);
    }

    /// Runs `work`. Err: the router aborted before it was done.
    pub async fn unless_aborted<T>(&self, work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        let mut aborted = self.0.aborted.subscribe();
        tokio::select! {
            biased;
            result = work => result,
            () = wait_until_set(&mut aborted) => Err(Error::shutting_down()),
        }
    }

    pub fn register(&self, registry: &mut Registry) {
        let help = "Time of admitted requests in the router's queue";
        self.0.waited.register(registry, "rein_request_wait_seconds", help);
        let shared = self.0.clone();
        on_scrape(registry, move |samples| shared.write(samples));
    }
}

async fn wait_until_set(flag: &mut watch::Receiver<bool>) {
    if flag.wait_for(|set| *set).await.is_err() {
        // The sender is dropped: the flag is never set.
        std::future::pending().await
    }
}

#[cfg(test)]
mod tests;
