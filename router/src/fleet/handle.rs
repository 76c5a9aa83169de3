//! One engine as the router sees it: its client, load, breaker and LoRA adapters. It does not know other engines.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::{FutureExt, future::BoxFuture};
use rein_proto::{
    internal::{
        EngineInfo, EngineStats, HoldRequest, InfoRequest, LoadLoraRequest, LoraInfo, StatsRequest, UnloadLoraRequest,
        engine_client::EngineClient, loras_client::LorasClient,
    },
    protocol,
};
use tokio::{sync::OnceCell, task::AbortHandle, time::timeout};
use tonic::{Response, Status};

use crate::{
    error::{Error, ErrorKind},
    fleet::{
        breaker::CircuitBreaker,
        loras::EngineLoras,
        route::{
            self, EngineSlot, Routing,
            follow::{follow_events, interval},
        },
        transport::EngineTransport,
    },
    limits,
};

/// A serving group, as membership lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineListing {
    pub group: String,
    pub epoch: u64,
    /// [`EngineHandle::kind`].
    pub kind: String,
    /// The repository commit of its checkpoint, if it is known.
    pub revision: Option<String>,
    pub address: String,
    pub draining: bool,
    /// The LoRA adapters that its sequences can have.
    pub loras: Vec<LoraInfo>,
}

/// An engine, with its client, its last reported load and the content of its cache.
pub struct EngineHandle {
    /// The group that it leads, and the group's epoch.
    pub group: String,
    pub epoch: u64,
    /// Engines of one kind generate the same tokens.
    pub kind: Arc<str>,
    /// The repository commit of its checkpoint, if it is known.
    pub(super) revision: Option<String>,
    /// [`route::key`] of the group.
    pub(super) key: u64,
    client: EngineClient<EngineTransport>,
    loras_client: LorasClient<EngineTransport>,
    pub(super) loras: EngineLoras,
    pub(super) open: Arc<AtomicUsize>,
    pub(super) info: OnceCell<EngineInfo>,
    breaker: Mutex<CircuitBreaker>,
    /// What it has cached and its load, as it reports them.
    pub(super) index_slot: Arc<EngineSlot>,
    following: OnceLock<AbortHandle>,
}

impl Drop for EngineHandle {
    fn drop(&mut self) {
        if let Some(following) = self.following.get() {
            following.abort();
        }
    }
}

impl EngineHandle {
    pub(super) fn new(listing: &EngineListing, transport: EngineTransport, routing: &Routing) -> Self {
        let loras_client = LorasClient::new(transport.clone());
        let client = EngineClient::new(transport).max_decoding_message_size(limits::ENGINE_MESSAGE_BYTES);
        let breaker = Mutex::new(CircuitBreaker::new(&listing.group));
        EngineHandle {
            key: route::key(&listing.group),
            group: listing.group.clone(),
            epoch: listing.epoch,
            kind: listing.kind.as_str().into(),
            revision: listing.revision.clone(),
            client,
            loras_client,
            loras: EngineLoras::new(listing.loras.clone()),
            open: Arc::default(),
            info: OnceCell::new(),
            breaker,
            index_slot: Arc::new(routing.index().add_engine()),
            following: OnceLock::new(),
        }
    }

    /// Starts a task that follows the engine's load and cache until the engine is dropped. `engines` is the number of
    /// engines of the model.
    pub(super) fn start_following(self: &Arc<Self>, engines: usize) {
        let (engine, client) = (Arc::downgrade(self), self.client());
        let (index_slot, open) = (self.index_slot.clone(), self.open.clone());
        let following = tokio::spawn(async move {
            if let Some(engine) = engine.upgrade()
                && let Err(error) = engine.info().await
            {
                tracing::debug!(%error, "reading the engine's info failed");
            }
            let open = move || open.load(Ordering::Relaxed) as u32;
            follow_events(client, index_slot, interval(engines), open).await;
        });
        // This is called once per engine, so the cell is empty.
        let _ = self.following.set(following.abort_handle());
    }

    /// Sequences that it computes at once, if it has reported this.
    pub fn max_sequences(&self) -> Option<u32> {
        self.info.get().map(|info| info.max_sequences)
    }

    /// Tokens of its KV blocks, if it has reported this.
    pub fn block_size(&self) -> Option<u32> {
        self.info.get().map(|info| info.block_size).filter(|size| *size > 0)
    }

    /// Whether it has reported that it takes the ids of a prompt as bytes.
    pub fn takes_packed_prompt(&self) -> bool {
        self.info.get().is_some_and(|info| info.takes_packed_prompt)
    }

    /// The LoRA adapters that its sequences can have.
    pub fn loras(&self) -> Arc<Vec<LoraInfo>> {
        self.loras.get()
    }

    /// Whether it has the adapter with this digest; 0: any engine does.
    pub(super) fn has_lora(&self, digest: u64) -> bool {
        digest == 0 || self.loras().iter().any(|lora| lora.digest == digest)
    }

    /// Returns when its sequences can have the adapter.
    pub(super) async fn load_lora(&self, request: LoadLoraRequest) -> Result<LoraInfo, Error> {
        let mut client = self.loras_client.clone();
        let call = async move { client.load(request).await }.boxed();
        let lora = within(limits::LORA_LOAD_TIME, call, Error::from_loras).await?;
        self.loras.changed(&lora.name, Some(lora.clone()));
        Ok(lora)
    }

    /// No error if it does not have it.
    pub(super) async fn unload_lora(&self, name: &str) -> Result<(), Error> {
        let mut client = self.loras_client.clone();
        let request = UnloadLoraRequest { name: name.to_owned() };
        let call = async move { client.unload(request).await }.boxed();
        match within(limits::ENGINE_CALL_TIME, call, Error::from_loras).await {
            Err(error) if error.kind != ErrorKind::NotFound => return Err(error),
            Ok(_) | Err(_) => {}
        }
        self.loras.changed(name, None);
        Ok(())
    }

    pub(super) fn breaker(&self) -> MutexGuard<'_, CircuitBreaker> {
        self.breaker.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    pub fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    #[cfg(test)]
    pub fn allows(&self, now: tokio::time::Instant) -> bool {
        self.breaker().allows(now)
    }

    pub fn client(&self) -> EngineClient<EngineTransport> {
        self.client.clone()
    }

    /// What the engine is. It is asked until it has answered once.
    pub async fn info(&self) -> Result<&EngineInfo, Error> {
        let mut client = self.client();
        let request = InfoRequest { protocol: protocol::NUMBER, version: protocol::VERSION.into() };
        let ask = || async {
            let info = answer(async move { client.info(request).await }.boxed()).await?;
            if protocol::understands(info.protocol, protocol::NUMBER) {
                return Ok(info);
            }
            let cause = protocol::refusal(&format!("engine {}", self.group), info.protocol, &info.version);
            Err(Error {
                cause: Some(cause),
                ..Error::unavailable("the engine's release is incompatible with this router's")
            })
        };
        self.info.get_or_try_init(ask).await
    }

    /// Asks it to hold blocks.
    pub async fn hold(&self, hashes: Vec<u64>, time: Duration) {
        let mut client = self.client();
        let request = HoldRequest { hashes, milliseconds: time.as_millis() as u32 };
        // An engine of an older release does not know it.
        if let Err(error) = answer(async move { client.hold(request).await }.boxed()).await {
            tracing::debug!(%error, "an engine does not hold blocks");
        }
    }

    pub async fn stats(&self) -> Result<EngineStats, Error> {
        let mut client = self.client();
        answer(async move { client.stats(StatsRequest {}).await }.boxed()).await
    }
}

/// Waits for an engine's answer, at most `ENGINE_CALL_TIME`. (The future is boxed because the compiler cannot infer
/// through the transport that it is `Send`.)
async fn answer<T>(call: BoxFuture<'static, Result<Response<T>, Status>>) -> Result<T, Error> {
    within(limits::ENGINE_CALL_TIME, call, Error::from_engine).await
}

async fn within<T>(
    time: Duration,
    call: BoxFuture<'static, Result<Response<T>, Status>>,
    error: fn(&Status) -> Error,
) -> Result<T, Error> {
    match timeout(time, call).await {
        Ok(Ok(response)) => Ok(response.into_inner()),
        Ok(Err(status)) => Err(error(&status)),
        Err(_) => Err(Error::unavailable(format!("the engine did not answer within {} s", time.as_secs()))),
    }
}
