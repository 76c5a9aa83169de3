//! The engines of one model, reached through any transport that speaks HTTP/2 frames or pretends to.

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicUsize, Ordering},
};

use futures::{FutureExt, future::BoxFuture};
use rein_proto::internal::{EngineInfo, EngineStats, InfoRequest, StatsRequest, engine_client::EngineClient};
use tokio::{
    sync::OnceCell,
    time::{Instant, timeout},
};
use tonic::{Response, Status, body::Body};
use tower::{Service, ServiceExt, util::BoxCloneSyncService};

use crate::{error::Error, limits, pick};

/// Why an engine could not be called.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct TransportError(Box<dyn std::error::Error + Send + Sync>);

/// A tonic `Channel`, or the generated `EngineServer` itself, called without a socket: the wire path is the only path.
pub type EngineTransport = BoxCloneSyncService<http::Request<Body>, http::Response<Body>, TransportError>;

/// Wraps a `Channel` or an `EngineServer`.
pub fn transport<S>(service: S) -> EngineTransport
where
    S: Service<http::Request<Body>, Response = http::Response<Body>> + Clone + Send + Sync + 'static,
    S::Error: Into<Box<dyn std::error::Error + Send + Sync>> + 'static,
    S::Future: Send + 'static,
{
    let wrap: fn(S::Error) -> TransportError = |error| TransportError(error.into());
    BoxCloneSyncService::new(service.map_err(wrap))
}

pub struct Engine {
    client: EngineClient<EngineTransport>,
    open: AtomicUsize,
    info: OnceCell<EngineInfo>,
    /// A sequence failed here: others are tried first until then.
    avoided: Mutex<Option<Instant>>,
}

impl Engine {
    fn new(transport: EngineTransport) -> Self {
        let client = EngineClient::new(transport).max_decoding_message_size(limits::ENGINE_MESSAGE_BYTES);
        Engine { client, open: AtomicUsize::new(0), info: OnceCell::new(), avoided: Mutex::new(None) }
    }

    /// A sequence failed here for no fault of its own.
    pub fn failed(&self) {
        let until = Instant::now() + limits::ENGINE_AVOIDED;
        *self.avoided.lock().unwrap_or_else(PoisonError::into_inner) = Some(until);
    }

    fn is_avoided(&self) -> bool {
        let avoided = self.avoided.lock().unwrap_or_else(PoisonError::into_inner);
        avoided.is_some_and(|until| Instant::now() < until)
    }

    pub fn client(&self) -> EngineClient<EngineTransport> {
        self.client.clone()
    }

    /// What the engine is. Asked once.
    pub async fn info(&self) -> Result<&EngineInfo, Error> {
        let mut client = self.client();
        self.info.get_or_try_init(|| answer(async move { client.info(InfoRequest {}).await }.boxed())).await
    }

    pub async fn stats(&self) -> Result<EngineStats, Error> {
        let mut client = self.client();
        answer(async move { client.stats(StatsRequest {}).await }.boxed()).await
    }
}

/// Waits for an engine, not for long. (Boxed: the compiler cannot see through the transport that the future is `Send`.)
async fn answer<T>(call: BoxFuture<'static, Result<Response<T>, Status>>) -> Result<T, Error> {
    match timeout(limits::ENGINE_CALL_TIME, call).await {
        Ok(Ok(response)) => Ok(response.into_inner()),
        Ok(Err(status)) => Err(Error::from_engine(&status)),
        Err(_) => Err(Error::unavailable("the engine does not answer")),
    }
}

pub struct Pool {
    engines: Vec<Arc<Engine>>,
    turn: AtomicUsize,
}

impl Pool {
    pub fn new(transports: Vec<EngineTransport>) -> Self {
        let engines = transports.into_iter().map(|transport| Arc::new(Engine::new(transport))).collect();
        Pool { engines, turn: AtomicUsize::new(0) }
    }

    pub fn engines(&self) -> &[Arc<Engine>] {
        &self.engines
    }

    /// Whether any engine answers now: one that once did may have lost its workers since.
    pub async fn answers(&self) -> Result<(), Error> {
        let mut why = Error::unavailable("this model has no engine");
        for engine in &self.engines {
            match engine.stats().await {
                Ok(_) => return Ok(()),
                Err(error) => why = Error { cause: error.cause, ..Error::unavailable(error.message) },
            }
        }
        Err(why)
    }

    /// The engine for one more sequence, which counts as open there until the lease is dropped.
    pub fn lease(&self) -> Result<Lease, Error> {
        let healthy: Vec<&Arc<Engine>> = self.engines.iter().filter(|engine| !engine.is_avoided()).collect();
        let engines = if healthy.is_empty() { self.engines.iter().collect() } else { healthy };
        let open: Vec<usize> = engines.iter().map(|engine| engine.open.load(Ordering::Relaxed)).collect();
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let index = pick::least_loaded(&open, turn).ok_or_else(|| Error::unavailable("this model has no engine"))?;
        Ok(Lease::on(engines[index]))
    }
}

/// One open sequence on an engine.
pub struct Lease(Arc<Engine>);

impl Lease {
    fn on(engine: &Arc<Engine>) -> Self {
        engine.open.fetch_add(1, Ordering::Relaxed);
        Lease(engine.clone())
    }

    pub fn engine(&self) -> &Engine {
        &self.0
    }

    /// A second sequence on the same engine, where the prompt they share is cached.
    pub fn again(&self) -> Self {
        Lease::on(&self.0)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}
