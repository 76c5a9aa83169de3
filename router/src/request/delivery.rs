//! Delivers a generation's events to its client. If the client stops reading, the generation first loses its engine
//! slots and then ends. This module must not know what the events mean.

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
    client_state::{ClientState, wait_for_state},
    error::Error,
    limits,
};

type Item = Result<v1::ChatEvent, Error>;

/// A generation's events. Dropping them ends the generation and frees its slots.
pub struct ChatEvents(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    client: watch::Sender<ClientState>,
    stall: Duration,
}

struct State {
    /// None: the generation has ended.
    events: Option<BoxStream<'static, Item>>,
    /// Events that were produced while the client did not read.
    buffered: VecDeque<Item>,
    /// When the client got its last item, if it has not asked for the next one. None: it waits for an item.
    unread_since: Option<Instant>,
}

impl ChatEvents {
    /// `client` tells the generation whether its client reads. A client that has not read for `stall` counts as gone.
    pub fn new(events: BoxStream<'static, Item>, client: watch::Sender<ClientState>, stall: Duration) -> Self {
        let state = State { events: Some(events), buffered: VecDeque::new(), unread_since: None };
        ChatEvents(Arc::new(Shared { state: Mutex::new(state), client, stall }))
    }

    /// A handle for watching the client that reads these events in an encoded form.
    pub fn watch(&self) -> ClientWatch {
        ClientWatch(self.0.clone())
    }
}

/// Links the stream that a client reads to the events that it is made from.
#[derive(Clone)]
pub struct ClientWatch(Arc<Shared>);

impl ClientWatch {
    /// Wraps the outermost stream, which is polled when the client has room, and starts watching the client.
    pub fn wrap<S>(self, stream: S) -> WatchedStream<S> {
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
        match state.buffered.pop_front() {
            Some(item) => Poll::Ready(Some(item)),
            None => state.poll(cx),
        }
    }
}

impl Drop for ChatEvents {
    fn drop(&mut self) {
        // The watcher task shares this state and may end later, so the events are dropped here.
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
        self.client
            .send_if_modified(|known| *known != ClientState::TimedOut && std::mem::replace(known, client) != client);
    }

    /// Drives the generation of a client that does not read. Ready when the generation has ended.
    fn poll_while_unread(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.state();
        // A client that reads again polls by itself.
        let away = *self.client.borrow() != ClientState::Reading && state.unread_since.is_some();
        while away && state.buffered.len() < limits::UNREAD_EVENTS {
            match state.poll(cx) {
                Poll::Ready(Some(item)) => state.buffered.push_back(item),
                Poll::Ready(None) => return Poll::Ready(()),
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Pending
    }
}

/// A stream that records when its client reads.
pub struct WatchedStream<S> {
    stream: S,
    shared: Arc<Shared>,
    watcher: AbortHandle,
}

impl<S: Stream + Unpin> Stream for WatchedStream<S> {
    type Item = S::Item;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<S::Item>> {
        self.shared.state().unread_since = None;
        self.shared.set_client(ClientState::Reading);
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

/// Updates the client's state until the generation ends.
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
                shared.set_client(ClientState::Stalled);
                let mut client = shared.client.subscribe();
                tokio::select! {
                    () = wait_for_state(&mut client, ClientState::Reading) => next = Instant::now() + grace,
                    () = std::future::poll_fn(|cx| shared.poll_while_unread(cx)) => return,
                    () = sleep_until(since + shared.stall) => {
                        shared.set_client(ClientState::TimedOut);
                        return std::future::poll_fn(|cx| shared.poll_while_unread(cx)).await;
                    }
                }
            }
        }
    }
}
