//! Keeps the slot of a request until its client has read the answer, so that answers that nobody reads are bounded in
//! number; and drops an answer that a client leaves unread for too long.

use std::{
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use axum::body::{Body, HttpBody};
use bytes::Bytes;
use http::Response;
use http_body::{Frame, SizeHint};
use tokio::{
    task::AbortHandle,
    time::{Instant, sleep_until},
};

use crate::{admission::InFlightPermit, error::Error, limits, memory::MemoryCharge};

/// What an answer keeps until it has been read.
#[derive(Clone)]
pub struct AnswerHold(
    #[expect(dead_code, reason = "kept until it is dropped")] Arc<(Option<InFlightPermit>, Option<MemoryCharge>)>,
);

impl AnswerHold {
    pub fn new(permit: Option<InFlightPermit>, charge: Option<MemoryCharge>) -> Self {
        AnswerHold(Arc::new((permit, charge)))
    }
}

/// Keeps `kept` until the body has been read, or the client has left it unread for `stall`.
pub fn hold(response: Response<Body>, kept: AnswerHold, stall: Duration) -> Response<Body> {
    response.map(|body| Body::new(HeldBody::new(body, kept, stall)))
}

struct HeldBody {
    shared: Arc<Mutex<Held>>,
    size: SizeHint,
    stall: Duration,
    watcher: AbortHandle,
}

struct Held {
    /// None: the client has not read for too long.
    answer: Option<(Body, AnswerHold)>,
    /// Data that the client has not asked for.
    rest: Bytes,
    last_read: Instant,
}

impl HeldBody {
    fn new(body: Body, kept: AnswerHold, stall: Duration) -> Self {
        let size = body.size_hint();
        let held = Held { answer: Some((body, kept)), rest: Bytes::new(), last_read: Instant::now() };
        let shared = Arc::new(Mutex::new(held));
        let watcher = tokio::spawn(drop_unread(shared.clone(), stall)).abort_handle();
        HeldBody { shared, size, stall, watcher }
    }
}

fn locked(held: &Mutex<Held>) -> MutexGuard<'_, Held> {
    held.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn drop_unread(shared: Arc<Mutex<Held>>, stall: Duration) {
    loop {
        let until = locked(&shared).last_read + stall;
        if until <= Instant::now() {
            let mut held = locked(&shared);
            (held.answer, held.rest) = (None, Bytes::new());
            return;
        }
        sleep_until(until).await;
    }
}

impl HttpBody for HeldBody {
    type Data = Bytes;
    type Error = axum::Error;

    /// In pieces: the transport keeps what it was given until the client reads it.
    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let mut held = locked(&self.shared);
        held.last_read = Instant::now();
        if held.rest.is_empty() {
            let Some((body, _)) = &mut held.answer else {
                return Poll::Ready(Some(Err(axum::Error::new(Error::client_stalled(self.stall)))));
            };
            match std::task::ready!(Pin::new(body).poll_frame(cx)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => held.rest = data,
                    Err(other) => return Poll::Ready(Some(Ok(other))),
                },
                end => return Poll::Ready(end),
            }
        }
        let piece = held.rest.len().min(limits::UNREAD_PIECE_BYTES);
        Poll::Ready(Some(Ok(Frame::data(held.rest.split_to(piece)))))
    }

    fn is_end_stream(&self) -> bool {
        let held = locked(&self.shared);
        held.rest.is_empty() && held.answer.as_ref().is_some_and(|(body, _)| body.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        self.size
    }
}

impl Drop for HeldBody {
    fn drop(&mut self) {
        self.watcher.abort();
        // The task may end later, so the slot is freed here.
        locked(&self.shared).answer = None;
    }
}
