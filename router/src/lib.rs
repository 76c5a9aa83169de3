//! The router: serves the OpenAI HTTP API and gRPC, with one engine stream per sequence.
//!
//! Modules import only from the layers below theirs. From top to bottom:
//!
//! 1. This file and `discovery`: build the router of one process.
//! 2. [`api`]: HTTP and gRPC, status codes.
//! 3. `state`, `config`, `report` and `surface_metrics`: what all requests share, and what an operator sets and sees.
//! 4. [`request`]: one request, from the prompt to the answer.
//! 5. [`admission`] and [`fleet`]: queue and API keys; engines.
//! 6. The other files of this folder (`error`, `limits`, `metrics`, `response_store` and more), which know none of the
//!    above.
//!
//! docs/architecture.md walks a request through them.

pub mod admission;
mod api;
mod blocking_pool;
mod client_state;
mod config;
mod discovery;
pub mod error;
mod fair;
pub mod fleet;
pub mod hot_reload;
pub mod limits;
mod memory;
pub mod metrics;
mod report;
mod request;
mod request_trace;
mod response_store;
pub mod seal;
mod state;
mod surface_metrics;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use prometheus_client::metrics::counter::Counter;
use rein_control_plane::records::LostCalls;
use rein_proto::{internal::LoraInfo, v1::inference_server::SERVICE_NAME};
use rein_text::model_text::{ModelText, TextError};
use tonic_health::{ServingStatus, server::HealthReporter};

use crate::{
    admission::keys::LimitStore,
    api::{grpc, http},
    fleet::pool::EnginePool,
    request::model::ServedModel,
    state::RouterState,
};
pub use crate::{
    config::{Origin, ProcessMetrics, RouterConfig},
    discovery::{FleetConfig, OwnTexts},
    error::{Error, ErrorKind},
    fleet::{
        route::RoutePolicy,
        transport::{EngineTransport, transport},
    },
    memory::MemoryLimits,
    request::model::ModelPolicy,
    response_store::ResponsesStoreMode,
};

/// Converts a body of the Messages API to a job, as `POST /v1/messages` does. Returns the number of its tools. For
/// benchmarks.
#[doc(hidden)]
pub fn convert_messages(body: &[u8], seal: &seal::Seal) -> Result<usize, Error> {
    let seal = api::anthropic::ThinkingSeal::new(seal, None);
    Ok(api::anthropic::messages(body, &seal, &api::known_tools::KnownTools::new(limits::KNOWN_TOOLS_BYTES).messages)?
        .value
        .job
        .tools
        .len())
}

/// A model and one engine that runs it. Entries with the same name are engines of one model.
pub struct ModelEntry {
    pub text: ModelText,
    pub engine: EngineTransport,
    /// Engines of one kind generate the same tokens. `system_fingerprint` depends on it.
    pub kind: String,
    /// The LoRA adapters that it has.
    pub loras: Vec<LoraInfo>,
    pub policy: ModelPolicy,
}

#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    #[error("a router needs at least one model")]
    NoModel,
    #[error("max_in_flight must be at least 1")]
    NoRequests,
    #[error(transparent)]
    Text(#[from] TextError),
    #[error("gRPC reflection: {0}")]
    Reflection(#[from] tonic_reflection::server::Error),
}

/// The router of one process. Clones share their state.
#[derive(Clone)]
pub struct Router {
    state: Arc<RouterState>,
    grpc: tonic::service::Routes,
}

impl Router {
    pub fn new(config: RouterConfig, entries: Vec<ModelEntry>) -> Result<Self, BuildError> {
        /// Engines with their kinds and adapters.
        type Engines = Vec<(EngineTransport, String, Vec<LoraInfo>)>;
        let mut groups: Vec<(ModelText, ModelPolicy, Engines)> = Vec::new();
        for entry in entries {
            let engine = (entry.engine, entry.kind, entry.loras);
            match groups.iter_mut().find(|(text, ..)| text.name == entry.text.name) {
                Some((.., engines)) => engines.push(engine),
                None => groups.push((entry.text, entry.policy, vec![engine])),
            }
        }
        if groups.is_empty() {
            return Err(BuildError::NoModel);
        }
        let model = |(text, policy, engines)| {
            ServedModel::new(text, EnginePool::fixed(engines), &policy, &config.memory).map(Arc::new)
        };
        let models = groups.into_iter().map(model).collect::<Result<_, _>>()?;
        Router::of(config, models)
    }

    /// A router without models. [`Router::follow`] adds them.
    pub fn open(config: RouterConfig) -> Result<Self, BuildError> {
        Router::of(config, Vec::new())
    }

    fn of(config: RouterConfig, models: Vec<Arc<ServedModel>>) -> Result<Self, BuildError> {
        if config.max_in_flight == 0 {
            return Err(BuildError::NoRequests);
        }
        let health = HealthReporter::new();
        let state = Arc::new(RouterState::new(config, models, health.clone()));
        let grpc = grpc::routes(state.clone(), health)?;
        Ok(Router { state, grpc })
    }

    /// The OpenAI API.
    pub fn http(&self) -> axum::Router {
        http::routes(self.state.clone())
    }

    /// `rein.v1.Inference`, health and reflection.
    pub fn grpc(&self) -> tonic::service::Routes {
        self.grpc.clone()
    }

    /// Follows the models and engines of a cluster. Never returns.
    pub async fn follow(&self, fleet: FleetConfig) {
        discovery::follow(self.state.clone(), fleet).await;
    }

    /// Shares the limits of API keys with the other routers of a cluster. Never returns.
    pub async fn share_limits(&self, with: LimitStore) {
        if let Some(keys) = &self.state.config.keys {
            keys.share(with).await;
        }
    }

    /// Err: requests cannot be answered now.
    pub async fn ready(&self) -> Result<(), Error> {
        self.state.ready().await
    }

    /// Rejects new requests, and returns when the open ones are done. Health services report NOT_SERVING at once.
    pub async fn drain(&self) {
        for service in ["", SERVICE_NAME] {
            self.state.health.set_service_status(service, ServingStatus::NotServing).await;
        }
        self.state.admission.drain().await;
    }

    /// Rejects new requests, and ends every open one with the error "the server is shutting down". Call it when the
    /// time limit of `drain` is over.
    pub fn abort(&self) {
        self.state.admission.abort();
    }

    /// The client stall timeout, and the counter of connections that are closed because of it.
    pub fn client_stalls(&self) -> (Duration, Counter) {
        (self.state.config.client_stall, self.state.surfaces.connections_cut.clone())
    }

    /// The models whose calls were delivered as text, because their format does not read them.
    pub fn lost_calls(&self) -> BTreeMap<String, LostCalls> {
        self.state.metrics.outcomes.lost_calls()
    }

    /// Number of requests in flight.
    pub fn in_flight(&self) -> usize {
        self.state.admission.in_flight()
    }
}

#[cfg(test)]
mod tests;
