//! The state that all requests of one router share: models, admission, budgets and metrics. It does not know the APIs.

use std::{
    collections::BTreeSet,
    sync::{Arc, OnceLock, PoisonError, RwLock},
};

use prometheus_client::registry::Registry;
use rein_proto::internal::{LoadLoraRequest, LoraInfo};
use tokio::sync::watch;
use tonic_health::server::HealthReporter;

use crate::{
    admission::{Admission, keys::ApiCaller},
    config::RouterConfig,
    error::{Error, ErrorKind},
    fleet::{metrics::FleetMetrics, pool::Standing, retry_budget::RetryBudget, tool_holds::ToolHolds},
    memory::RequestMemory,
    request::{
        demand::ModelDemand,
        loras::{self, LoraStore},
        metrics::RequestMetrics,
        model::ServedModel,
    },
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
    pub demand: ModelDemand,
    /// Changes each time engines come or go.
    pub fleet_changes: watch::Sender<()>,
    pub metrics: Arc<RequestMetrics>,
    pub fleet_metrics: Arc<FleetMetrics>,
    pub tool_holds: Arc<ToolHolds>,
    pub surfaces: SurfaceMetrics,
    /// All metrics except those of engines, which are asked at each scrape.
    pub registry: Registry,
    pub health: HealthReporter,
    /// Empty: there is no cluster.
    pub lora_store: OnceLock<LoraStore>,
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
        let tool_holds = Arc::new(ToolHolds::new(config.tool_hold));
        tool_holds.register(&mut registry);
        let responses = ResponseStore::new(&config.responses_store, ResponseLimits::within(config.memory.responses));
        responses.register(&mut registry);
        RouterState {
            admission,
            retry_budget,
            memory: RequestMemory::new(&config.memory),
            responses,
            config,
            models: RwLock::new(Arc::new(models)),
            demand: ModelDemand::default(),
            fleet_changes: watch::Sender::new(()),
            metrics,
            fleet_metrics,
            tool_holds,
            surfaces,
            registry,
            health,
            lora_store: OnceLock::new(),
        }
    }

    pub fn models(&self) -> Arc<Vec<Arc<ServedModel>>> {
        self.models.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The model of this name, or with the LoRA adapter of this name.
    pub fn named(&self, name: &str) -> Option<Arc<ServedModel>> {
        let models = self.models();
        let with_lora = || {
            let adapted = |model: &Arc<ServedModel>| Some(model.with_lora(model.pool.loras().remove(name)?));
            models.iter().find_map(adapted).map(Arc::new)
        };
        models.iter().find(|model| model.name() == name).cloned().or_else(with_lora)
    }

    pub fn add(&self, model: Arc<ServedModel>) {
        let mut models = self.models.write().unwrap_or_else(PoisonError::into_inner);
        let mut with: Vec<Arc<ServedModel>> =
            models.iter().filter(|known| known.name() != model.name()).cloned().collect();
        with.push(model);
        with.sort_by(|a, b| a.name().cmp(b.name()));
        *models = Arc::new(with);
    }

    /// The names of all served and expected models.
    pub fn model_names(&self) -> BTreeSet<String> {
        let models = self.models();
        models.iter().map(|model| model.name().to_owned()).chain(self.config.expected_models.iter().cloned()).collect()
    }

    /// The names of the models and LoRA adapters that a key may use. Whoever may use a model may use its adapters; a
    /// key may also be for some of them alone.
    pub fn names_for(&self, caller: Option<&ApiCaller>) -> BTreeSet<String> {
        let may_use = |name: &str| caller.is_none_or(|caller| caller.may_use(name));
        let mut names = self.model_names();
        names.retain(|name| may_use(name));
        for model in self.models().iter() {
            let of_model = may_use(model.name());
            names.extend(model.pool.loras().into_keys().filter(|name| of_model || may_use(name)));
        }
        names
    }

    /// The further names of these models, with the models' own.
    pub fn aliases(&self, names: &BTreeSet<String>) -> Vec<(&str, &str)> {
        let all = self.config.aliases.iter().map(|(alias, model)| (alias.as_str(), model.as_str()));
        all.filter(|(alias, model)| names.contains(*model) && !names.contains(*alias)).collect()
    }

    /// The name of the served or expected model, or LoRA adapter, that a request names, also by an alias. The name may
    /// be omitted if there is only one model. A model that the key may not use does not exist for it.
    pub fn known(&self, name: Option<&str>, caller: Option<&ApiCaller>) -> Result<String, Error> {
        let names = self.names_for(caller);
        let own = self.model_names();
        let mut models = names.iter().filter(|name| own.contains(*name));
        let Some(first) = models.next().or(names.first()) else {
            return Err(match own.is_empty() {
                true => Error::unavailable("this router serves no model yet"),
                false => Error::model_not_found(name.unwrap_or_default(), &[]),
            });
        };
        let Some(name) = name.filter(|name| !name.is_empty()) else {
            let asked = format!("the name of a model, such as '{first}'");
            return if models.next().is_none() { Ok(first.clone()) } else { Err(Error::missing("model", &asked)) };
        };
        let own = if names.contains(name) { name } else { self.config.aliases.get(name).map_or(name, String::as_str) };
        if names.contains(own) {
            return Ok(own.to_owned());
        }
        let aliases = self.aliases(&names);
        let known: Vec<&str> =
            names.iter().map(String::as_str).chain(aliases.iter().map(|(alias, _)| *alias)).collect();
        Err(Error::model_not_found(name, &known))
    }

    /// The model of this name, see [`Self::known`].
    pub fn model(&self, name: &str) -> Result<Arc<ServedModel>, Error> {
        self.named(name).ok_or_else(|| Error::unavailable(format!("no engine serves '{name}' now; try again later")))
    }

    /// Whether requests of this model wait until an engine serves it. Fixed engines are waited for until the first has
    /// joined. One that is lost later may not come back: then a request has the time of a sequence without an engine.
    pub fn awaits_engine(&self, name: &str) -> bool {
        let expected = || self.config.expected_models.iter().any(|expected| expected == name);
        match self.named(name) {
            None => self.config.fixed_engines || expected(),
            Some(_) if self.config.fixed_engines => false,
            Some(model) => expected() && model.pool.standing() != Some(Standing::Serving),
        }
    }

    /// Returns when an engine serves the model.
    pub async fn served(&self, name: &str) {
        self.fleet_changes_while(|| self.awaits_engine(name)).await;
    }

    /// Whether the name of the model is still to come, with the first of fixed engines.
    pub fn awaits_first_model(&self) -> bool {
        self.config.fixed_engines && self.model_names().is_empty()
    }

    /// Returns when there is a model.
    pub async fn first_model(&self) {
        self.fleet_changes_while(|| self.awaits_first_model()).await;
    }

    /// Loads a LoRA adapter for a model, whose name may be omitted if there is only one.
    pub async fn load_lora(
        &self,
        request: LoadLoraRequest,
        model: Option<&str>,
        caller: Option<&ApiCaller>,
    ) -> Result<LoraInfo, Error> {
        let model = self.model_of_loras(model, caller)?;
        loras::check_name(&request.name)?;
        if request.path.is_empty() {
            return Err(Error::missing("lora_path", "a directory with PEFT's files on the engine's machine"));
        }
        let name = request.name.as_str();
        let of_other = || {
            let models = self.models();
            models.iter().any(|other| other.name() != model.name() && other.pool.loras().contains_key(name))
        };
        if self.model_names().contains(name) || self.config.aliases.contains_key(name) || of_other() {
            let message = format!("'lora_name' must not be the name of another model, got '{name}'");
            return Err(Error::invalid("lora_name", message));
        }
        loras::load(&model, request, self.lora_store.get()).await
    }

    /// Unloads a LoRA adapter.
    pub async fn unload_lora(&self, name: &str, caller: Option<&ApiCaller>) -> Result<(), Error> {
        self.check_lora_api()?;
        let models = self.models();
        let may_use = |model: &&Arc<ServedModel>| caller.is_none_or(|caller| caller.may_use(model.name()));
        let has = |model: &&Arc<ServedModel>| model.pool.loras().contains_key(name);
        let model = models.iter().filter(may_use).find(has).ok_or_else(|| loras::not_loaded(name))?;
        loras::unload(model, name, self.lora_store.get()).await
    }

    fn check_lora_api(&self) -> Result<(), Error> {
        match self.config.lora_api {
            true => Ok(()),
            false => {
                let message = "this server does not load LoRA adapters over the API: start it with --lora-api";
                Err(Error { code: Some("lora_off"), ..Error::new(ErrorKind::NotFound, message) })
            }
        }
    }

    /// The model whose adapters a key may change.
    fn model_of_loras(&self, name: Option<&str>, caller: Option<&ApiCaller>) -> Result<Arc<ServedModel>, Error> {
        self.check_lora_api()?;
        let name = self.known(name, caller)?;
        let model = self.model(&name)?;
        match &model.lora {
            Some(lora) => {
                let message = format!("'model' must be a model of its own, got the LoRA adapter '{}'", lora.name);
                Err(Error::invalid("model", message))
            }
            None => Ok(model),
        }
    }

    async fn fleet_changes_while(&self, awaits: impl Fn() -> bool) {
        let mut changes = self.fleet_changes.subscribe();
        while awaits() {
            // The sender lives as long as this state.
            let _ = changes.changed().await;
        }
    }

    /// Err: requests cannot be answered now, because the router drains or an engine does not answer. Every model with
    /// the best standing must have an engine that answers. A model whose engines all drain matters only if all do. An
    /// expected model may need no engine.
    pub async fn ready(&self) -> Result<(), Error> {
        if self.admission.draining() {
            return Err(Error::unavailable("this server is draining and takes no new requests"));
        }
        let models = self.models();
        let served: Vec<_> = models.iter().filter_map(|model| Some((model.pool.standing()?, model))).collect();
        let Some(best) = served.iter().map(|(standing, _)| *standing).min() else {
            if !self.config.fixed_engines && !self.config.expected_models.is_empty() {
                return Ok(());
            }
            return Err(Error::unavailable("no engine serves a model now; try again later"));
        };
        for (_, model) in served.iter().filter(|(standing, _)| *standing == best) {
            model.bounds().await?;
            model.pool.check_available().await?;
        }
        Ok(())
    }
}
