//! The state that all requests of one router share: models, admission, budgets and metrics. It does not know the APIs.

use std::sync::{Arc, PoisonError, RwLock};

use prometheus_client::registry::Registry;
use tonic_health::server::HealthReporter;

use crate::{
    admission::Admission,
    config::RouterConfig,
    error::Error,
    fleet::{metrics::FleetMetrics, retry_budget::RetryBudget},
    request::{memory::RequestMemory, metrics::RequestMetrics, model::ServedModel},
    response_store::{ResponseLimits, ResponseStore},
    surface_metrics::SurfaceMetrics,
};

/// The state that all requests share.
pub struct RouterState {
    pub config: RouterConfig,
    models: RwLock<Arc<Vec<Arc<ServedModel>>>>,
    pub admission: Admission,
    pub memory: RequestMemory,
    pub responses: ResponseStore,
    pub retry_budget: Arc<RetryBudget>,
    pub metrics: Arc<RequestMetrics>,
    pub fleet_metrics: Arc<FleetMetrics>,
    pub surfaces: SurfaceMetrics,
    /// All metrics except those of engines, which are asked at each scrape.
    pub registry: Registry,
    pub health: HealthReporter,
}

impl RouterState {
    pub fn new(config: RouterConfig, models: Vec<Arc<ServedModel>>, health: HealthReporter) -> Self {
        let admission = Admission::new(config.max_in_flight, config.max_queued);
        let retry_budget = Arc::new(RetryBudget::new(config.hedge_after));
        let (metrics, fleet_metrics) = (Arc::new(RequestMetrics::default()), Arc::new(FleetMetrics::default()));
        let surfaces = SurfaceMetrics::default();
        let mut registry = Registry::default();
        config.process_metrics.register(&mut registry);
        surfaces.register(&mut registry);
        admission.register(&mut registry);
        if let Some(keys) = &config.keys {
            keys.register(&mut registry);
        }
        metrics.register(&mut registry);
        retry_budget.register(&mut registry);
        fleet_metrics.register(&mut registry);
        RouterState {
            admission,
            retry_budget,
            memory: RequestMemory::new(config.body_bytes, config.matcher_bytes),
            responses: ResponseStore::new(&config.responses_store, ResponseLimits::default()),
            config,
            models: RwLock::new(Arc::new(models)),
            metrics,
            fleet_metrics,
            surfaces,
            registry,
            health,
        }
    }

    pub fn models(&self) -> Arc<Vec<Arc<ServedModel>>> {
        self.models.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn named(&self, name: &str) -> Option<Arc<ServedModel>> {
        self.models().iter().find(|model| model.name() == name).cloned()
    }

    pub fn add(&self, model: Arc<ServedModel>) {
        let mut models = self.models.write().unwrap_or_else(PoisonError::into_inner);
        let mut with: Vec<Arc<ServedModel>> =
            models.iter().filter(|known| known.name() != model.name()).cloned().collect();
        with.push(model);
        with.sort_by(|a, b| a.name().cmp(b.name()));
        *models = Arc::new(with);
    }

    pub fn model(&self, name: Option<&str>) -> Result<Arc<ServedModel>, Error> {
        let models = self.models();
        let Some(first) = models.first() else { return Err(Error::unavailable("this router serves no model yet")) };
        let Some(name) = name.filter(|name| !name.is_empty()) else {
            return Err(Error::missing("model", &format!("the name of a model, such as '{}'", first.name())));
        };
        models.iter().find(|model| model.name() == name).cloned().ok_or_else(|| {
            let served: Vec<&str> = models.iter().map(|model| model.name()).collect();
            Error::model_not_found(name, &served)
        })
    }

    /// The named model. The name may be omitted if there is only one model.
    pub fn model_or_only(&self, name: Option<&str>) -> Result<Arc<ServedModel>, Error> {
        match (name.filter(|name| !name.is_empty()), self.models().as_slice()) {
            (None, [only]) => Ok(only.clone()),
            (name, _) => self.model(name),
        }
    }

    /// Err: requests cannot be answered now, because the router drains or an engine does not answer. Every model with
    /// the best standing must have an engine that answers. A model whose engines all drain matters only if all do.
    pub async fn ready(&self) -> Result<(), Error> {
        if self.admission.draining() {
            return Err(Error::unavailable("this server is draining and takes no new requests"));
        }
        let models = self.models();
        let served: Vec<_> = models.iter().filter_map(|model| Some((model.pool.standing()?, model))).collect();
        let Some(best) = served.iter().map(|(standing, _)| *standing).min() else {
            return Err(Error::unavailable("no engine serves a model now; try again later"));
        };
        for (_, model) in served.iter().filter(|(standing, _)| *standing == best) {
            model.bounds().await?;
            model.pool.check_available().await?;
        }
        Ok(())
    }
}
