//! Listens to one engine's events for as long as the engine is wanted.

use std::sync::Arc;
use std::time::Duration;

use futures::{FutureExt, future::BoxFuture};
use rein_proto::block_hash;
use rein_proto::internal::{EngineEvents, EventsRequest, engine_client::EngineClient};
use tokio::time::{sleep, timeout};
use tonic::{Code, Response, Status, Streaming};

use super::index::EngineSlot;
use crate::{fleet::pool::EngineTransport, limits};

/// How often to hear from each of so many engines: news of many engines together come no more often than a router can
/// bear.
pub fn interval(engines: usize) -> Duration {
    let many = limits::EVENTS_EACH * u32::try_from(engines).unwrap_or(u32::MAX);
    many.clamp(limits::EVENTS_INTERVAL.0, limits::EVENTS_INTERVAL.1)
}

/// Keeps the seat as the engine says, and empty while it says nothing. `open` is how many of its sequences are this
/// router's. Returns only if the engine has no events; otherwise it is to be dropped when the engine is.
pub async fn follow_events(
    client: EngineClient<EngineTransport>,
    seat: Arc<EngineSlot>,
    interval: Duration,
    open: impl Fn() -> u32 + Send,
) {
    let interval_ms = interval.clamp(limits::EVENTS_INTERVAL.0, limits::EVENTS_INTERVAL.1).as_millis() as u32;
    let mut retry = limits::EVENTS_RETRY.0;
    loop {
        let (status, heard) = listen(&client, &seat, interval_ms, &open).await;
        seat.forget();
        if status.code() == Code::Unimplemented {
            tracing::info!("an engine tells nothing of its cache: sequences go there by load alone");
            return;
        }
        tracing::debug!(%status, "an engine's events have ended");
        if heard {
            retry = limits::EVENTS_RETRY.0;
        }
        sleep(retry).await;
        retry = (retry * 2).min(limits::EVENTS_RETRY.1);
    }
}

/// Until the stream ends; why, and whether anything was heard.
async fn listen(
    client: &EngineClient<EngineTransport>,
    seat: &EngineSlot,
    interval_ms: u32,
    open: &(impl Fn() -> u32 + Send),
) -> (Status, bool) {
    let mut heard = false;
    let mut events = match within(call(client.clone(), interval_ms)).await {
        Ok(response) => response.into_inner(),
        Err(status) => return (status, heard),
    };
    loop {
        let message = match within(events.message()).await {
            Ok(Some(message)) => message,
            Ok(None) => return (Status::unavailable("the stream has ended"), heard),
            Err(status) => return (status, heard),
        };
        if !seat.apply(&message, open()) && !heard {
            let (theirs, ours) = (message.hash_version, block_hash::VERSION);
            tracing::warn!(theirs, ours, "an engine hashes its blocks in another way: its cache is not known");
        }
        heard = true;
    }
}

/// Boxed: the compiler cannot see through the transport that the future is `Send`.
fn call(
    mut client: EngineClient<EngineTransport>,
    interval_ms: u32,
) -> BoxFuture<'static, Result<Response<Streaming<EngineEvents>>, Status>> {
    async move { client.events(EventsRequest { interval_ms }).await }.boxed()
}

/// An engine that is there says something each second.
async fn within<T>(answer: impl Future<Output = Result<T, Status>>) -> Result<T, Status> {
    let silent = || Status::deadline_exceeded("the engine says nothing");
    timeout(limits::EVENTS_SILENCE, answer).await.unwrap_or_else(|_| Err(silent()))
}
