//! The Engine service of a worker: that of the group it leads, if it leads one, and the worker's state. It does not
//! know how seats are taken.

use std::sync::{Arc, PoisonError, RwLock};

use prometheus_client::metrics::histogram::Histogram;
use rein_proto::internal::engine_server::{self, EngineServer};
use rein_proto::internal::{
    EngineInfo, EngineStats, EventsRequest, HoldRequest, HoldResponse, InfoRequest, LoadLoraRequest, LoraInfo,
    StatsRequest, ToEngine, UnloadLoraRequest, UnloadLoraResponse, loras_server,
};
use tokio::sync::watch;
use tonic::{Request, Response, Status, Streaming};

use super::standing::{CurrentStanding, WorkerStanding};
use crate::limits;
use crate::service::{EngineService, Outputs};

#[derive(Debug, Clone, Default)]
pub struct EngineSwitch {
    engine: Arc<RwLock<Option<EngineService>>>,
    standing: Arc<watch::Sender<CurrentStanding>>,
}

/// The state of a worker for metrics.
#[derive(Debug, Clone)]
pub struct WorkerReport {
    pub standing: &'static str,
    /// The epoch of its seat. 0: it has had none.
    pub epoch: u64,
    /// Present while it leads a group.
    pub engine: Option<(EngineStats, Histogram)>,
    /// Routers that listen to that engine.
    pub routers: usize,
}

impl EngineSwitch {
    pub fn set(&self, engine: Option<EngineService>) -> Option<EngineService> {
        let mut current = self.engine.write().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *current, engine)
    }

    fn current(&self) -> Option<EngineService> {
        self.engine.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The engine, unless it is lost.
    pub fn serving(&self) -> Option<EngineService> {
        self.current().filter(|engine| engine.lost().is_none())
    }

    fn engine(&self) -> Result<EngineService, Status> {
        self.current().ok_or_else(|| Status::unavailable("this worker does not lead a group"))
    }

    pub(super) fn publish_standing(&self, standing: WorkerStanding, epoch: u64) {
        self.standing.send_modify(|current| current.becomes(standing, epoch));
    }

    pub(super) fn standing_updates(&self) -> watch::Receiver<CurrentStanding> {
        self.standing.subscribe()
    }

    pub fn report(&self) -> WorkerReport {
        let engine = self.current();
        let current = self.standing.borrow();
        WorkerReport {
            standing: current.standing.name(),
            epoch: current.epoch,
            routers: engine.as_ref().map_or(0, EngineService::listeners),
            engine: engine.map(|engine| (engine.engine_stats(), engine.step_times())),
        }
    }

    pub fn into_server(self) -> EngineServer<Self> {
        EngineServer::new(self)
            .max_decoding_message_size(limits::MAX_MESSAGE_BYTES)
            .max_encoding_message_size(limits::MAX_MESSAGE_BYTES)
    }
}

#[tonic::async_trait]
impl engine_server::Engine for EngineSwitch {
    type GenerateStream = Outputs;
    type EventsStream = <EngineService as engine_server::Engine>::EventsStream;

    async fn generate(&self, request: Request<Streaming<ToEngine>>) -> Result<Response<Outputs>, Status> {
        self.engine()?.generate(request).await
    }

    async fn info(&self, request: Request<InfoRequest>) -> Result<Response<EngineInfo>, Status> {
        self.engine()?.info(request).await
    }

    async fn stats(&self, request: Request<StatsRequest>) -> Result<Response<EngineStats>, Status> {
        self.engine()?.stats(request).await
    }

    async fn hold(&self, request: Request<HoldRequest>) -> Result<Response<HoldResponse>, Status> {
        self.engine()?.hold(request).await
    }

    async fn events(&self, request: Request<EventsRequest>) -> Result<Response<Self::EventsStream>, Status> {
        self.engine()?.events(request).await
    }
}

#[tonic::async_trait]
impl loras_server::Loras for EngineSwitch {
    async fn load(&self, request: Request<LoadLoraRequest>) -> Result<Response<LoraInfo>, Status> {
        loras_server::Loras::load(&self.engine()?, request).await
    }

    async fn unload(&self, request: Request<UnloadLoraRequest>) -> Result<Response<UnloadLoraResponse>, Status> {
        loras_server::Loras::unload(&self.engine()?, request).await
    }
}
