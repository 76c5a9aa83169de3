//! Bounded requests in flight and in line, and the end of them.

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
    error::{Error, Kind},
    limits,
    metrics::{Durations, NO_LABELS, Samples, on_scrape},
};
use queue::{QueueStep, Ticket, WaitQueue};

pub struct Admission(Arc<Shared>);

struct Shared {
    limit: u32,
    queue: u32,
    state: Mutex<State>,
    draining: AtomicBool,
    aborted: watch::Sender<bool>,
    /// Requests that are here in any way.
    present: watch::Sender<usize>,
    waited: Durations,
    full: AtomicU64,
    late: AtomicU64,
}

struct State {
    queue: WaitQueue,
    /// To whoever waits.
    calls: HashMap<Ticket, oneshot::Sender<()>>,
}

/// A request that may be read and then line up. Dropped, it is gone.
pub struct PendingRequest(RequestSlot);

/// One request in flight, until dropped.
pub struct InFlightPermit {
    slot: RequestSlot,
    aborted: watch::Receiver<bool>,
}

/// One request's part of the hall.
struct RequestSlot {
    shared: Arc<Shared>,
    stage: Stage,
    /// What it takes of its key's limit.
    _of_key: Option<KeyPermit>,
}

enum Stage {
    Coming,
    Waiting(Ticket),
    Served(Instant),
    Gone,
}

impl InFlightPermit {
    /// An engine's refusal, with the time after which requests that are here now will be done.
    pub fn in_line(&self, error: Error) -> Error {
        match error.kind {
            Kind::Full => Error { retry_after: Some(retry_after(self.slot.shared.state().queue.service())), ..error },
            _ => error,
        }
    }

    /// Returns when the request has to end now. Cancel-safe.
    pub async fn aborted(&mut self) {
        raised(&mut self.aborted).await;
    }

    /// The same without borrowing the permit.
    pub fn when_aborted(&self) -> impl Future<Output = ()> + use<> {
        let mut aborted = self.aborted.clone();
        async move { raised(&mut aborted).await }
    }
}

impl PendingRequest {
    /// Waits for this request's turn; lower priorities are earlier. Who could only be served late is sent away at once.
    pub async fn admit(mut self, priority: i64, deadline: Instant) -> Result<InFlightPermit, Error> {
        let began = Instant::now();
        if let Some(called) = self.0.line_up(priority, began, deadline)? {
            tokio::select! {
                biased;
                // The hall lives as long as this place, and with it who calls.
                _ = called => {}
                () = sleep_until(deadline) => return Err(Error::deadline()),
            }
            self.0.stage = Stage::Served(Instant::now());
        }
        self.0.shared.waited.observe(began.elapsed());
        let aborted = self.0.shared.aborted.subscribe();
        Ok(InFlightPermit { slot: self.0, aborted })
    }
}

impl RequestSlot {
    /// Some: to wait for.
    fn line_up(
        &mut self,
        priority: i64,
        now: Instant,
        deadline: Instant,
    ) -> Result<Option<oneshot::Receiver<()>>, Error> {
        let mut state = self.shared.state();
        match state.queue.line_up(priority, now, deadline) {
            QueueStep::Go => {
                self.stage = Stage::Served(now);
                Ok(None)
            }
            QueueStep::Wait(ticket) => {
                let (call, called) = oneshot::channel();
                state.calls.insert(ticket, call);
                self.stage = Stage::Waiting(ticket);
                Ok(Some(called))
            }
            QueueStep::Late(after) => {
                self.stage = Stage::Gone;
                self.shared.tell(&state);
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
            Stage::Coming => {
                state.queue.turn_back();
                None
            }
            Stage::Waiting(ticket) if state.queue.give_up(ticket) => {
                state.calls.remove(&ticket);
                None
            }
            // It was called and did not hear it any more.
            Stage::Waiting(_) => state.queue.done(None),
            Stage::Served(since) => state.queue.done(Some(since.elapsed())),
            Stage::Gone => return,
        };
        if let Some(call) = next.and_then(|ticket| state.calls.remove(&ticket)) {
            // One that does not hear it is about to be dropped, and passes it on.
            let _ = call.send(());
        }
        self.shared.tell(&state);
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, state: &State) {
        self.present.send_replace(state.queue.present());
    }
}

/// At least a second, and no longer than anybody would believe.
fn retry_after(estimate: Option<Duration>) -> Duration {
    estimate.unwrap_or(limits::RETRY_AFTER).clamp(limits::RETRY_AFTER, limits::RETRY_AFTER_MOST)
}

impl Shared {
    fn write(&self, samples: &mut Samples<'_>) -> fmt::Result {
        let (waiting, in_flight) = {
            let state = self.state();
            (state.queue.waiting(), state.queue.served())
        };
        for (name, help, value) in [
            ("rein_requests_in_flight", "Admitted requests", in_flight),
            ("rein_requests_in_flight_limit", "Requests in flight above which 429 is answered", self.limit as usize),
            ("rein_requests_waiting", "Requests in the router's queue", waiting),
            (
                "rein_requests_waiting_limit",
                "Requests beyond those in flight, above which 429 is answered",
                self.queue as usize,
            ),
        ] {
            samples.gauge(name, help, [(NO_LABELS, value)])?;
        }
        let help = "Requests that the queue refused: it was `full`, or their `deadline` could not be met";
        let shed = [("full", &self.full), ("deadline", &self.late)];
        let shed = shed.map(|(reason, count)| ([("reason", reason)], count.load(Ordering::Relaxed)));
        samples.counter("rein_requests_shed", help, shed)
    }
}

impl Admission {
    /// `queue`: requests that may be here beyond those in flight.
    pub fn new(limit: u32, queue: u32) -> Self {
        Admission(Arc::new(Shared {
            limit,
            queue,
            state: Mutex::new(State {
                queue: WaitQueue::new(limit as usize, queue as usize, Instant::now()),
                calls: HashMap::new(),
            }),
            draining: AtomicBool::new(false),
            aborted: watch::Sender::new(false),
            present: watch::Sender::new(0),
            waited: Durations::default(),
            full: AtomicU64::new(0),
            late: AtomicU64::new(0),
        }))
    }

    pub fn enter(&self, of_key: Option<KeyPermit>) -> Result<PendingRequest, Error> {
        if self.draining() {
            return Err(Error::unavailable("this server is draining and takes no new requests"));
        }
        let mut state = self.0.state();
        state.queue.come().map_err(|after| {
            self.0.full.fetch_add(1, Ordering::Relaxed);
            let (limit, queue) = (self.0.limit, self.0.queue);
            let message = format!(
                "this server has {limit} requests in flight and {queue} in its queue, which is its limit; try again later"
            );
            Error { retry_after: Some(retry_after(after)), ..Error::full(message) }
        })?;
        self.0.tell(&state);
        drop(state);
        Ok(PendingRequest(RequestSlot { shared: self.0.clone(), stage: Stage::Coming, _of_key: of_key }))
    }

    pub fn draining(&self) -> bool {
        self.0.draining.load(Ordering::Acquire)
    }

    pub fn in_flight(&self) -> usize {
        self.0.state().queue.served()
    }

    /// Admits nothing more and returns when the last request is done.
    pub async fn drain(&self) {
        self.0.draining.store(true, Ordering::Release);
        // An error means that the sender is gone, which lives as long as this.
        let _ = self.0.present.subscribe().wait_for(|present| *present == 0).await;
    }

    /// Admits nothing more and ends what is open.
    pub fn abort(&self) {
        self.0.draining.store(true, Ordering::Release);
        self.0.aborted.send_replace(true);
    }

    /// Does a request's work, unless the server stops before it is done.
    pub async fn unless_aborted<T>(&self, work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        let mut aborted = self.0.aborted.subscribe();
        tokio::select! {
            biased;
            result = work => result,
            () = raised(&mut aborted) => Err(Error::shutting_down()),
        }
    }

    pub fn register(&self, registry: &mut Registry) {
        let help = "Time of admitted requests in the router's queue";
        self.0.waited.register(registry, "rein_request_wait_seconds", help);
        let shared = self.0.clone();
        on_scrape(registry, move |samples| shared.write(samples));
    }
}

async fn raised(flag: &mut watch::Receiver<bool>) {
    if flag.wait_for(|raised| *raised).await.is_err() {
        // The router is gone, and with it who could raise it.
        std::future::pending().await
    }
}

#[cfg(test)]
mod tests;
