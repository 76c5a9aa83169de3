//! Rein's edge: OpenAI HTTP and gRPC in, one engine stream per sequence out.
//!
//! A request's way: [`http`] or [`grpc`] decode it into a [`job`], [`chat`] or [`complete`] turn that into tokens,
//! [`generate`] starts a sequence per choice on an engine ([`pool`], [`steer`]), [`stream`] reads the tokens into typed
//! events, and the surface encodes these.

pub mod accept;
mod admit;
mod arrival;
pub mod breaker;
mod chat;
pub mod check;
mod choice;
mod compiling;
mod complete;
mod conversation;
mod delivery;
mod effort;
pub mod error;
mod gate;
mod generate;
mod grpc;
mod guide;
mod hash;
mod history;
mod http;
mod intake;
mod job;
pub mod keys;
pub mod limits;
pub mod members;
mod metrics;
mod model;
mod offload;
mod openai;
mod openapi;
mod outcomes;
pub mod parse;
pub mod pool;
mod rate;
pub mod render;
pub mod reread;
pub mod route;
pub mod scrape;
pub mod steer;
mod stop;
mod stream;
pub mod template;
pub mod textmodel;
pub mod tokenize;
mod trace;

use std::{
    sync::{Arc, PoisonError, RwLock, atomic::AtomicU64},
    time::Duration,
};

use rein_proto::v1::inference_server::SERVICE_NAME;
use tonic_health::{ServingStatus, server::HealthReporter};

use crate::{
    admit::Admission,
    effort::Effort,
    intake::Intake,
    members::Fleet,
    metrics::{EngineReport, Metrics, PoolReport},
    model::Model,
    pool::Pool,
    textmodel::{TextError, TextModel},
};
pub use crate::{
    error::{Error, Kind},
    http::cors::Origin,
    model::Policy,
    pool::{EngineTransport, transport},
    route::RoutePolicy,
};

/// What an operator may set.
#[derive(Debug, Clone)]
pub struct RouterConfig {
    /// Requests in flight; more wait. At least 1.
    pub max_in_flight: u32,
    /// Requests that may wait, above which 429 is answered.
    pub max_queued: u32,
    /// Pages of these origins may use the HTTP interface.
    pub cors_origins: Vec<Origin>,
    /// Who may ask. None: everybody.
    pub keys: Option<keys::ApiKeys>,
    /// Longest life of a request that brings no deadline of its own.
    pub request_time: Duration,
    /// How long a client may leave its answer unread until the request ends.
    pub client_stall: Duration,
    /// Bytes of a request body.
    pub body_bytes: usize,
    /// Control tokens that messages spell become control tokens. False: they stay text.
    pub allow_control_tokens: bool,
    /// Requests with tools are answered though the model's template does not show these to the model.
    pub allow_dropped_tools: bool,
    /// How a sequence gets its engine, where engines come and go.
    pub policy: RoutePolicy,
    /// Silence of an engine before a sequence's first token after which another one gets the sequence, too. None: never.
    pub hedge_after: Option<Duration>,
    /// What `/metrics` shows beside the router's own.
    pub process_metrics: ProcessMetrics,
}

/// Metrics of the process around a router, in the Prometheus text format.
#[derive(Clone, Default)]
pub struct ProcessMetrics(Option<Arc<dyn Fn() -> String + Send + Sync>>);

impl ProcessMetrics {
    pub fn new(write: impl Fn() -> String + Send + Sync + 'static) -> Self {
        ProcessMetrics(Some(Arc::new(write)))
    }

    fn write(&self) -> String {
        self.0.as_ref().map_or_else(String::new, |write| write())
    }
}

impl std::fmt::Debug for ProcessMetrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ProcessMetrics")
    }
}

impl Default for RouterConfig {
    fn default() -> Self {
        RouterConfig {
            max_in_flight: limits::IN_FLIGHT,
            max_queued: limits::QUEUED,
            cors_origins: Vec::new(),
            keys: None,
            request_time: limits::REQUEST_TIME,
            client_stall: limits::CLIENT_STALL,
            body_bytes: limits::BODY_BYTES,
            allow_control_tokens: false,
            allow_dropped_tools: false,
            policy: RoutePolicy::CacheAware,
            hedge_after: None,
            process_metrics: ProcessMetrics::default(),
        }
    }
}

/// A model and one engine that runs it. Entries of the same name share their load.
pub struct ModelEntry {
    pub text: TextModel,
    pub engine: EngineTransport,
    /// Engines of one kind give the same answers to the token; `system_fingerprint` depends on it.
    pub kind: String,
    pub policy: Policy,
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

/// The edge of one process. Clones share everything.
#[derive(Clone)]
pub struct Router {
    core: Arc<Core>,
    grpc: tonic::service::Routes,
}

/// What all requests share.
pub(crate) struct Core {
    config: RouterConfig,
    models: RwLock<Arc<Vec<Arc<Model>>>>,
    admission: Admission,
    intake: Intake,
    effort: Arc<Effort>,
    metrics: Arc<Metrics>,
    health: HealthReporter,
}

impl Router {
    pub fn new(config: RouterConfig, entries: Vec<ModelEntry>) -> Result<Self, BuildError> {
        /// Each with its kind.
        type Engines = Vec<(EngineTransport, String)>;
        let mut groups: Vec<(TextModel, Policy, Engines)> = Vec::new();
        for entry in entries {
            let engine = (entry.engine, entry.kind);
            match groups.iter_mut().find(|(text, ..)| text.name == entry.text.name) {
                Some((.., engines)) => engines.push(engine),
                None => groups.push((entry.text, entry.policy, vec![engine])),
            }
        }
        if groups.is_empty() {
            return Err(BuildError::NoModel);
        }
        let model = |(text, policy, engines)| Model::new(text, Pool::fixed(engines), &policy, &config).map(Arc::new);
        let models = groups.into_iter().map(model).collect::<Result<_, _>>()?;
        Router::of(config, models)
    }

    /// A router that has no models until it follows a fleet.
    pub fn open(config: RouterConfig) -> Result<Self, BuildError> {
        Router::of(config, Vec::new())
    }

    fn of(config: RouterConfig, models: Vec<Arc<Model>>) -> Result<Self, BuildError> {
        if config.max_in_flight == 0 {
            return Err(BuildError::NoRequests);
        }
        let health = HealthReporter::new();
        let core = Arc::new(Core {
            admission: Admission::new(config.max_in_flight, config.max_queued),
            effort: Arc::new(Effort::new(config.hedge_after)),
            intake: Intake::new(config.body_bytes),
            config,
            models: RwLock::new(Arc::new(models)),
            metrics: Arc::default(),
            health: health.clone(),
        });
        let grpc = grpc::routes(core.clone(), health)?;
        Ok(Router { core, grpc })
    }

    /// The OpenAI API.
    pub fn http(&self) -> axum::Router {
        http::routes(self.core.clone())
    }

    /// `rein.v1.Inference`, health and reflection.
    pub fn grpc(&self) -> tonic::service::Routes {
        self.grpc.clone()
    }

    /// Serves the models of a fleet, as they come and go. Never returns.
    pub async fn follow(&self, fleet: Fleet) {
        members::follow(self.core.clone(), fleet).await;
    }

    /// Whether requests can be answered.
    pub async fn ready(&self) -> Result<(), Error> {
        self.core.ready().await
    }

    /// Takes no new requests and returns when the open ones are done. Health says so at once.
    pub async fn drain(&self) {
        for service in ["", SERVICE_NAME] {
            self.core.health.set_service_status(service, ServingStatus::NotServing).await;
        }
        self.core.admission.drain().await;
    }

    /// Ends every open request with one error, "the server is shutting down", and takes no new ones. For when the time
    /// for `drain` is over.
    pub fn abort(&self) {
        self.core.admission.abort();
    }

    /// When a client that does not read counts as stalled, and where connections that are cut for it are counted.
    pub fn client_stalls(&self) -> (Duration, Arc<AtomicU64>) {
        (self.core.config.client_stall, self.core.metrics.connections_cut.clone())
    }

    /// Requests that are being answered.
    pub fn in_flight(&self) -> usize {
        self.core.admission.in_flight()
    }
}

impl Core {
    fn models(&self) -> Arc<Vec<Arc<Model>>> {
        self.models.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn named(&self, name: &str) -> Option<Arc<Model>> {
        self.models().iter().find(|model| model.name() == name).cloned()
    }

    fn add(&self, model: Arc<Model>) {
        let mut models = self.models.write().unwrap_or_else(PoisonError::into_inner);
        let mut with: Vec<Arc<Model>> = models.iter().filter(|known| known.name() != model.name()).cloned().collect();
        with.push(model);
        with.sort_by(|a, b| a.name().cmp(b.name()));
        *models = Arc::new(with);
    }

    fn model(&self, name: Option<&str>) -> Result<Arc<Model>, Error> {
        let models = self.models();
        let Some(first) = models.first() else { return Err(Error::unavailable("no model is served here yet")) };
        let Some(name) = name.filter(|name| !name.is_empty()) else {
            return Err(Error::missing("model", &format!("the name of a model, such as '{}'", first.name())));
        };
        models.iter().find(|model| model.name() == name).cloned().ok_or_else(|| {
            let served: Vec<&str> = models.iter().map(|model| model.name()).collect();
            Error::model_not_found(name, &served)
        })
    }

    /// Where leaving the name out is not ambiguous, it may be.
    fn model_or_only(&self, name: Option<&str>) -> Result<Arc<Model>, Error> {
        match (name.filter(|name| !name.is_empty()), self.models().as_slice()) {
            (None, [only]) => Ok(only.clone()),
            (name, _) => self.model(name),
        }
    }

    /// Whether requests can be answered: not draining, and of every model that is served an engine answers now. One that is
    /// being retired, or has been, does not count where there are others.
    async fn ready(&self) -> Result<(), Error> {
        if self.admission.draining() {
            return Err(Error::unavailable("this server is draining and takes no new requests"));
        }
        let models = self.models();
        let served: Vec<_> = models.iter().filter_map(|model| Some((model.pool.standing()?, model))).collect();
        let Some(best) = served.iter().map(|(standing, _)| *standing).min() else {
            return Err(Error::unavailable("no model is served here now"));
        };
        for (_, model) in served.iter().filter(|(standing, _)| *standing == best) {
            model.bounds().await?;
            model.pool.answers().await?;
        }
        Ok(())
    }

    async fn report(&self) -> String {
        let (mut engines, mut pools) = (Vec::new(), Vec::new());
        for model in self.models().iter() {
            let all = model.pool.stats().await;
            engines.extend(all.into_iter().map(|(engine, stats)| {
                let (engine, epoch) = (engine.group.clone(), rein_control_plane::epoch::number(engine.epoch));
                EngineReport { model: model.name().into(), engine, epoch, stats }
            }));
            let (standings, kinds) = (model.pool.standings(), model.pool.kinds());
            pools.push(PoolReport { model: model.name().into(), format: model.format.name, standings, kinds });
        }
        let (in_flight, limit) = (self.admission.in_flight(), self.admission.limit());
        let mut report = self.metrics.write(in_flight, limit, &pools, &engines);
        self.admission.write_metrics(&mut report);
        self.effort.write_metrics(&mut report);
        if let Some(keys) = &self.config.keys {
            keys.write_metrics(&mut report);
        }
        report.push_str(&self.config.process_metrics.write());
        report
    }
}

#[cfg(test)]
mod tests;
