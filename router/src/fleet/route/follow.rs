//! Follows one engine's events, and updates the index with them.

use std::sync::Arc;
use std::time::Duration;

use futures::{FutureExt, future::BoxFuture};
use rein_proto::block_hash;
use rein_proto::internal::{EngineEvents, EventsRequest, engine_client::EngineClient};
use tokio::time::{sleep, timeout};
use tonic::{Code, Response, Status, Streaming};

use super::index::EngineSlot;
use crate::{fleet::transport::EngineTransport, limits};

/// The interval of each engine's events. It grows with the number of engines, which bounds the router's load.
pub fn interval(engines: usize) -> Duration {
    let many = limits::EVENTS_INTERVAL_PER_ENGINE * u32::try_from(engines).unwrap_or(u32::MAX);
    many.clamp(limits::EVENTS_INTERVAL.0, limits::EVENTS_INTERVAL.1)
}

/// Updates the engine's entries in the index from its events, and clears them while there are no events. `open` is the
/// number of sequences that this router has open there. Returns only if the engine does not support events; otherwise
/// the caller drops it together with the engine.
pub async fn follow_events(
    client: EngineClient<EngineTransport>,
    slot: Arc<EngineSlot>,
    interval: Duration,
    open: impl Fn() -> u32 + Send,
) {
    let interval_ms = interval.clamp(limits::EVENTS_INTERVAL.0, limits::EVENTS_INTERVAL.1).as_millis() as u32;
    let mut retry = limits::EVENTS_RETRY.0;
    loop {
        let (status, any_event) = read_events(&client, &slot, interval_ms, &open).await;
        slot.forget();
        if status.code() == Code::Unimplemented {
            tracing::info!("an engine does not report its cache; it is chosen by load alone");
            return;
        }
        tracing::debug!(%status, "the event stream of an engine ended");
        if any_event {
            retry = limits::EVENTS_RETRY.0;
        }
        sleep(retry).await;
        retry = (retry * 2).min(limits::EVENTS_RETRY.1);
    }
}

/// Reads events until the stream ends. Returns why it ended, and whether there was any event.
async fn read_events(
    client: &EngineClient<EngineTransport>,
    slot: &EngineSlot,
    interval_ms: u32,
    open: &(impl Fn() -> u32 + Send),
) -> (Status, bool) {
    let mut any_event = false;
    let mut events = match within(call(client.clone(), interval_ms)).await {
        Ok(response) => response.into_inner(),
        Err(status) => return (status, any_event),
    };
    loop {
        let message = match within(events.message()).await {
            Ok(Some(message)) => message,
            Ok(None) => return (Status::unavailable("the engine closed the stream"), any_event),
            Err(status) => return (status, any_event),
        };
        if !slot.apply(&message, open()) && !any_event {
            let (theirs, ours) = (message.hash_version, block_hash::VERSION);
            tracing::warn!(theirs, ours, "an engine uses other block hashes; it is chosen by load alone");
        }
        any_event = true;
    }
}

/// Boxed, because the compiler cannot infer through the transport that the future is `Send`.
fn call(
    mut client: EngineClient<EngineTransport>,
    interval_ms: u32,
) -> BoxFuture<'static, Result<Response<Streaming<EngineEvents>>, Status>> {
    async move { client.events(EventsRequest { interval_ms }).await }.boxed()
}

/// Bounds the wait for an event by `EVENTS_SILENCE`. Engines send at least one event per second.
async fn within<T>(answer: impl Future<Output = Result<T, Status>>) -> Result<T, Status> {
    let silent = || Status::deadline_exceeded("the engine sent no event in time");
    timeout(limits::EVENTS_SILENCE, answer).await.unwrap_or_else(|_| Err(silent()))
}
