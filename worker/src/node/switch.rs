//! What the node shows of itself: the Engine service of the group it leads, if it leads one now, and what it is.

use std::sync::{Arc, PoisonError, RwLock};

use rein_proto::internal::engine_server::{self, EngineServer};
use rein_proto::internal::{EngineInfo, EngineStats, EventsRequest, InfoRequest, StatsRequest, ToEngine};
use tokio::sync::watch;
use tonic::{Request, Response, Status, Streaming};

use super::ready::{Standing, Stood};
use crate::limits;
use crate::metrics::StepTimesSeen;
use crate::service::{EngineService, Outputs};

#[derive(Debug, Clone, Default)]
pub struct Switch {
    engine: Arc<RwLock<Option<EngineService>>>,
    stood: Arc<watch::Sender<Stood>>,
}

/// A worker in numbers.
#[derive(Debug, Clone)]
pub struct WorkerReport {
    pub standing: &'static str,
    /// Of its seat; 0: it has had none.
    pub epoch: u64,
    /// Where it leads.
    pub engine: Option<(EngineStats, StepTimesSeen)>,
    /// Routers that follow that engine.
    pub routers: usize,
}

impl Switch {
    pub fn set(&self, engine: Option<EngineService>) -> Option<EngineService> {
        let mut current = self.engine.write().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *current, engine)
    }

    fn current(&self) -> Option<EngineService> {
        self.engine.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The engine, unless it can execute no more.
    pub fn serving(&self) -> Option<EngineService> {
        self.current().filter(|engine| engine.lost().is_none())
    }

    fn engine(&self) -> Result<EngineService, Status> {
        self.current().ok_or_else(|| Status::unavailable("this worker leads no group now"))
    }

    pub(super) fn stand(&self, standing: Standing, epoch: u64) {
        self.stood.send_modify(|stood| stood.becomes(standing, epoch));
    }

    pub(super) fn stood(&self) -> watch::Receiver<Stood> {
        self.stood.subscribe()
    }

    pub fn report(&self) -> WorkerReport {
        let engine = self.current();
        let stood = self.stood.borrow();
        WorkerReport {
            standing: stood.standing.name(),
            epoch: stood.epoch,
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
impl engine_server::Engine for Switch {
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

    async fn events(&self, request: Request<EventsRequest>) -> Result<Response<Self::EventsStream>, Status> {
        self.engine()?.events(request).await
    }
}
