//! Between a generation and its client: events wait for the client to read them, and a client that does not read loses
//! first its places on engines, then its request.

use std::{
    collections::VecDeque,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use futures::{Stream, StreamExt, stream::BoxStream};
use rein_proto::v1;
use tokio::{
    sync::watch,
    task::AbortHandle,
    time::{Instant, sleep_until},
};

use crate::{
    client_state::{ClientState, becomes},
    error::Error,
    limits,
};

type Item = Result<v1::ChatEvent, Error>;

/// A generation's events. Dropping it frees all slots.
pub struct ChatEvents(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    client: watch::Sender<ClientState>,
    stall: Duration,
}

struct State {
    /// None: ended.
    events: Option<BoxStream<'static, Item>>,
    /// Came while the client was away.
    ready: VecDeque<Item>,
    /// Since when the client could read and does not.
    unread_since: Option<Instant>,
}

impl ChatEvents {
    /// `client` tells the generation how its client is; it counts as gone after `stall`.
    pub fn new(events: BoxStream<'static, Item>, client: watch::Sender<ClientState>, stall: Duration) -> Self {
        let state = State { events: Some(events), ready: VecDeque::new(), unread_since: None };
        ChatEvents(Arc::new(Shared { state: Mutex::new(state), client, stall }))
    }

    /// For watching the client that reads what a surface makes of the events.
    pub fn watch(&self) -> Watch {
        Watch(self.0.clone())
    }
}

/// The link between what a client reads and the events that it is made of.
#[derive(Clone)]
pub struct Watch(Arc<Shared>);

impl Watch {
    /// The stream as its client reads it: the outermost one, which is polled when the client has room. From here on the
    /// client is watched.
    pub fn over<S>(self, stream: S) -> WatchedStream<S> {
        let shared = self.0;
        shared.state().unread_since = Some(Instant::now());
        let watcher = tokio::spawn(watch(shared.clone())).abort_handle();
        WatchedStream { stream, shared, watcher }
    }
}

impl Stream for ChatEvents {
    type Item = Item;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Item>> {
        let mut state = self.0.state();
        match state.ready.pop_front() {
            Some(item) => Poll::Ready(Some(item)),
            None => state.poll(cx),
        }
    }
}

impl Drop for ChatEvents {
    fn drop(&mut self) {
        // The watcher may still be about to end.
        let events = self.0.state().events.take();
        drop(events);
    }
}

impl State {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Item>> {
        let Some(events) = &mut self.events else { return Poll::Ready(None) };
        let polled = events.poll_next_unpin(cx);
        if let Poll::Ready(None | Some(Err(_))) = &polled {
            self.events = None;
        }
        polled
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_client(&self, client: ClientState) {
        self.client.send_if_modified(|known| *known != ClientState::Gone && std::mem::replace(known, client) != client);
    }

    /// Lets a generation whose client is away do what it does then. Ready when it has ended.
    fn poll_away(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.state();
        // A client that has come back polls by itself.
        let away = *self.client.borrow() != ClientState::Reads && state.unread_since.is_some();
        while away && state.ready.len() < limits::UNREAD_EVENTS {
            match state.poll(cx) {
                Poll::Ready(Some(item)) => state.ready.push_back(item),
                Poll::Ready(None) => return Poll::Ready(()),
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Pending
    }
}

/// A stream whose reader is watched.
pub struct WatchedStream<S> {
    stream: S,
    shared: Arc<Shared>,
    watcher: AbortHandle,
}

impl<S: Stream + Unpin> Stream for WatchedStream<S> {
    type Item = S::Item;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<S::Item>> {
        self.shared.state().unread_since = None;
        self.shared.set_client(ClientState::Reads);
        let polled = self.stream.poll_next_unpin(cx);
        if polled.is_ready() {
            self.shared.state().unread_since = Some(Instant::now());
        }
        polled
    }
}

impl<S> Drop for WatchedStream<S> {
    fn drop(&mut self) {
        self.watcher.abort();
    }
}

/// Until the generation is over.
async fn watch(shared: Arc<Shared>) {
    let grace = limits::STALL_GRACE.min(shared.stall / 2);
    let mut next = Instant::now() + grace;
    loop {
        sleep_until(next).await;
        let now = Instant::now();
        let since = shared.state().unread_since;
        match since {
            None => next = now + grace,
            Some(since) if now < since + grace => next = since + grace,
            Some(since) => {
                shared.set_client(ClientState::Away);
                let mut client = shared.client.subscribe();
                tokio::select! {
                    () = becomes(&mut client, ClientState::Reads) => next = Instant::now() + grace,
                    () = std::future::poll_fn(|cx| shared.poll_away(cx)) => return,
                    () = sleep_until(since + shared.stall) => {
                        shared.set_client(ClientState::Gone);
                        return std::future::poll_fn(|cx| shared.poll_away(cx)).await;
                    }
                }
            }
        }
    }
}
