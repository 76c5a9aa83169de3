//! The Engine service of a worker: that of the group it leads, if it leads one now.

use std::sync::{Arc, PoisonError, RwLock};

use rein_proto::internal::engine_server::{self, EngineServer};
use rein_proto::internal::{EngineInfo, EngineStats, EventsRequest, InfoRequest, StatsRequest, ToEngine};
use tonic::{Request, Response, Status, Streaming};

use crate::limits;
use crate::service::{EngineService, Outputs};

#[derive(Debug, Clone, Default)]
pub struct Switch(Arc<RwLock<Option<EngineService>>>);

impl Switch {
    pub fn set(&self, engine: Option<EngineService>) -> Option<EngineService> {
        let mut current = self.0.write().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *current, engine)
    }

    fn engine(&self) -> Result<EngineService, Status> {
        let current = self.0.read().unwrap_or_else(PoisonError::into_inner).clone();
        current.ok_or_else(|| Status::unavailable("this worker leads no group now"))
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
