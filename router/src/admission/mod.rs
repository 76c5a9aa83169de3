//! Admission control: bounds the requests in flight and the requests that wait, and drains or aborts them. It does not
//! know models or engines.

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
    limits,
    metrics::{Durations, NO_LABELS, Samples, on_scrape},
};
use queue::{EnqueueOutcome, Ticket, WaitQueue};

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
}

struct State {
    queue: WaitQueue,
    /// Wakes waiting requests when they are admitted.
    wakers: HashMap<Ticket, oneshot::Sender<()>>,
}

/// A request whose body may be read. It enters the queue with [`PendingRequest::admit`], and leaves when dropped.
pub struct PendingRequest(RequestSlot);

/// One request in flight, until dropped.
pub struct InFlightPermit {
    slot: RequestSlot,
    aborted: watch::Receiver<bool>,
}

/// The place of one request in the queue or in flight. It is freed when dropped.
struct RequestSlot {
    shared: Arc<Shared>,
    stage: Stage,
    /// The request's share of its key's `max_in_flight`.
    _key_permit: Option<KeyPermit>,
}

enum Stage {
    Pending,
    Waiting(Ticket),
    InFlight(Instant),
    Rejected,
}

impl InFlightPermit {
    /// Sets `Retry-After` of an engine's refusal to the mean time that a request is in flight.
    pub fn with_retry_after(&self, error: Error) -> Error {
        match error.kind {
            ErrorKind::Full => {
                Error { retry_after: Some(retry_after(self.slot.shared.state().queue.mean_time_in_flight())), ..error }
            }
            _ => error,
        }
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
    /// Waits for an in-flight slot. Lower priorities are admitted earlier. A request that would wait until after its
    /// deadline is rejected at once.
    pub async fn admit(mut self, priority: i64, deadline: Instant) -> Result<InFlightPermit, Error> {
        let began = Instant::now();
        if let Some(woken) = self.0.enqueue(priority, began, deadline)? {
            tokio::select! {
                biased;
                // The sender lives in the shared state until it is used: this never fails.
                _ = woken => {}
                () = sleep_until(deadline) => return Err(Error::deadline()),
            }
            self.0.stage = Stage::InFlight(Instant::now());
        }
        self.0.shared.waited.observe(began.elapsed());
        let aborted = self.0.shared.aborted.subscribe();
        Ok(InFlightPermit { slot: self.0, aborted })
    }
}

impl RequestSlot {
    /// Enters the queue. None: the request is in flight. Some: it is when this receiver returns.
    fn enqueue(
        &mut self,
        priority: i64,
        now: Instant,
        deadline: Instant,
    ) -> Result<Option<oneshot::Receiver<()>>, Error> {
        let mut state = self.shared.state();
        match state.queue.enqueue(priority, now, deadline) {
            EnqueueOutcome::Admitted => {
                self.stage = Stage::InFlight(now);
                Ok(None)
            }
            EnqueueOutcome::Waiting(ticket) => {
                let (waker, woken) = oneshot::channel();
                state.wakers.insert(ticket, waker);
                self.stage = Stage::Waiting(ticket);
                Ok(Some(woken))
            }
            EnqueueOutcome::TooLate(after) => {
                self.stage = Stage::Rejected;
                self.shared.publish_present(&state);
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
}

impl Drop for RequestSlot {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        let next = match self.stage {
            Stage::Pending => {
                state.queue.leave_pending();
                None
            }
            Stage::Waiting(ticket) if state.queue.cancel(ticket) => {
                state.wakers.remove(&ticket);
                None
            }
            // It was admitted, but dropped before it was woken.
            Stage::Waiting(_) => state.queue.finish(None),
            Stage::InFlight(since) => state.queue.finish(Some(since.elapsed())),
            Stage::Rejected => return,
        };
        if let Some(waker) = next.and_then(|ticket| state.wakers.remove(&ticket)) {
            // If the receiver is gone, that request is about to be dropped, and admits the next one.
            let _ = waker.send(());
        }
        self.shared.publish_present(&state);
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

/// The value of `Retry-After`: the estimate within the limits, or the shortest if there is none.
fn retry_after(estimate: Option<Duration>) -> Duration {
    estimate.unwrap_or(limits::RETRY_AFTER).clamp(limits::RETRY_AFTER, limits::MAX_RETRY_AFTER)
}

impl Shared {
    fn write(&self, samples: &mut Samples<'_>) -> fmt::Result {
        let (waiting, in_flight) = {
            let state = self.state();
            (state.queue.waiting(), state.queue.in_flight())
        };
        for (name, help, value) in [
            ("rein_requests_in_flight", "Admitted requests", in_flight),
            ("rein_requests_in_flight_limit", "Most requests in flight", self.limit as usize),
            ("rein_requests_waiting", "Requests in the router's queue", waiting),
            (
                "rein_requests_waiting_limit",
                "Most requests in the router's queue; further requests get 429",
                self.queue as usize,
            ),
        ] {
            samples.gauge(name, help, [(NO_LABELS, value)])?;
        }
        let help =
            "Requests that were refused because the queue was `full` or because they would miss their `deadline`";
        let shed = [("full", &self.full), ("deadline", &self.late)];
        let shed = shed.map(|(reason, count)| ([("reason", reason)], count.load(Ordering::Relaxed)));
        samples.counter("rein_requests_shed", help, shed)
    }
}

impl Admission {
    /// `limit`: most requests in flight. `queue`: most requests that wait or whose bodies are being read.
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
        }))
    }

    /// Registers a new request before its body is read. Err: the queue is full, or the router drains.
    pub fn enter(&self, key_permit: Option<KeyPermit>) -> Result<PendingRequest, Error> {
        if self.draining() {
            return Err(Error::unavailable("this server is draining and takes no new requests"));
        }
        let mut state = self.0.state();
        state.queue.enter().map_err(|after| {
            self.0.full.fetch_add(1, Ordering::Relaxed);
            let (limit, queue) = (self.0.limit, self.0.queue);
            let message = format!(
                "this server is full: it has {limit} requests in flight and {queue} in its queue; try again later"
            );
            Error { retry_after: Some(retry_after(after)), ..Error::full(message) }
        })?;
        self.0.publish_present(&state);
        drop(state);
        Ok(PendingRequest(RequestSlot { shared: self.0.clone(), stage: Stage::Pending, _key_permit: key_permit }))
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
