//! `rein router --engine`: a router in front of engines that are already there, without a cluster. Each engine's
//! adapter runs in this process; the router finds it in a store in memory, as it finds worker groups in etcd.

use std::collections::{BTreeSet, HashMap};
use std::error::Error;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use rein_adapter::{AdapterOptions, AdapterService, Deployment, EngineHttp, Joined};
use rein_control_plane::limits::LEASE;
use rein_control_plane::{Keys, MemoryStore, Session, Store};
use rein_router::fleet::membership::Dial;
use rein_router::metrics::on_scrape;
use rein_router::{EngineTransport, FleetConfig, OwnTexts, ProcessMetrics, ResponsesStoreMode, Router, RouterConfig};
use rein_text::model_text::ModelOverrides;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::engines::{self, EngineIdentity, FrontedModel, ObservedEngine};
use crate::api_server::{self, Listeners};
use crate::args::{EngineAddress, RouterArgs};
use crate::banner::Banner;
use crate::metrics;
use crate::tls;

/// The name of the cluster in memory.
const CLUSTER: &str = "engines";
/// Time until an engine that does not fit is asked again.
const UNFIT_RETRY: Duration = Duration::from_secs(10);

/// The adapters of this process that have joined, by the address in their record.
#[derive(Clone, Default)]
struct Adapters(Arc<Mutex<HashMap<String, AdapterService>>>);

impl Adapters {
    fn insert(&self, address: &str, service: AdapterService) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(address.to_owned(), service);
    }

    fn transport(&self, address: &str) -> Option<EngineTransport> {
        let service = self.0.lock().unwrap_or_else(PoisonError::into_inner).get(address).cloned();
        service.map(|service| rein_router::transport(service.into_server()))
    }

    fn observed(&self) -> Vec<ObservedEngine> {
        let adapters = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut observed: Vec<ObservedEngine> = adapters
            .iter()
            .map(|(name, service)| ObservedEngine { service: service.clone(), name: format!("engines/{name}") })
            .collect();
        observed.sort_by(|a, b| a.name.cmp(&b.name));
        observed
    }
}

pub fn run(args: RouterArgs) -> Result<(), Box<dyn Error>> {
    let [dir] = args.model.as_slice() else {
        return Err(
            "--engine: needs exactly one --model, the directory with the text files of the engines' model".into()
        );
    };
    let tool_calls = &args.api.tool_calls;
    let policy = api_server::policy(tool_calls)?;
    let overrides = ModelOverrides { template: tool_calls.chat_template.clone(), ..ModelOverrides::from_env()? };
    let dir = dir.canonicalize().map_err(|error| format!("--model: {}: {error}", dir.display()))?;
    let (name, aliases) = match args.front.served_name.split_first() {
        None => (None, &[][..]),
        Some((name, aliases)) => (Some(name.clone()), aliases),
    };
    let model = FrontedModel::load(&dir, name.clone(), None, overrides.clone())?;
    let mut clients = Vec::new();
    for address in &args.front.engine {
        if clients.iter().any(|(known, _): &(EngineAddress, EngineHttp)| known.url == address.url) {
            return Err(format!("--engine: {} is given twice", address.url.as_str()).into());
        }
        clients.push((address.clone(), engines::client(address, &args.front.client)?));
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let listeners = Listeners::bind(&args.api).await?;
        let keys = Keys::new(CLUSTER).ok_or("the cluster's name is invalid")?;
        let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
        let adapters = Adapters::default();
        let mut base = api_server::config(&args.api, ResponsesStoreMode::Memory)?;
        let of_name = |alias: &String| Some((alias.clone(), name.clone()?));
        base.aliases.extend(aliases.iter().filter_map(of_name));
        let process_metrics = front_metrics(&listeners, adapters.clone());
        let hedge_after = args.hedge_after.map(Duration::from_millis);
        let config = RouterConfig {
            policy: args.policy,
            expected_models: name.iter().cloned().collect(),
            fixed_engines: true,
            hedge_after,
            process_metrics,
            memory: api_server::memory(&args.api.admission, 0),
            ..base
        };
        let router = Router::open(config)?;
        let dial: Dial = {
            let adapters = adapters.clone();
            Arc::new(move |address| adapters.transport(address))
        };
        let fleet = FleetConfig {
            renewals: None,
            store: store.clone(),
            keys: keys.clone(),
            id: "router".into(),
            dial,
            policy,
            texts: OwnTexts::Only(dir.clone()),
            overrides,
        };
        let mut tasks = JoinSet::new();
        {
            let router = router.clone();
            tasks.spawn(async move {
                router.follow(fleet).await;
                String::new()
            });
        }
        let unfit = Arc::new(UnfitEngines { all: clients.len(), found: Mutex::default() });
        // None has answered yet.
        let engines = "is in front of its engines";
        let title = name.as_ref().map_or_else(|| engines.to_owned(), |name| format!("{engines} as {name}"));
        let name = Arc::new(name.map_or_else(OnceLock::new, OnceLock::from));
        for (number, (address, http)) in clients.into_iter().enumerate() {
            let options = engines::adapter_options(&address, &args.front.client);
            let engine = Engine {
                id: number.to_string(),
                address,
                http,
                deployment: model.deployment.clone(),
                name: name.clone(),
                revision: model.text.revision.clone(),
                options,
                unfit: unfit.clone(),
            };
            tasks.spawn(engine.run(store.clone(), keys.clone(), adapters.clone()));
        }
        // None of the tasks ends but with an error.
        let failed = async {
            match tasks.join_next().await {
                Some(Ok(why)) => why,
                Some(Err(panic)) => panic.to_string(),
                None => std::future::pending().await,
            }
        };
        let drain = Duration::from_secs(args.api.network.drain_seconds);
        let urls: Vec<String> = args.front.engine.iter().map(|engine| engine.url.as_str().to_owned()).collect();
        let banner = Banner::new(&title)
            .row("model", format_args!("{} ({})", dir.display(), model.text.architecture))
            .row("engines", urls.join(", "));
        let (cut, lost) = (std::future::ready(()), std::future::pending());
        tokio::select! {
            served = listeners.serve(&router, banner, drain, router.drain(), cut, lost) => served,
            why = failed => Err(why.into()),
        }
    })
}

/// One engine of this router.
struct Engine {
    id: String,
    address: EngineAddress,
    http: EngineHttp,
    deployment: Deployment,
    /// The model's name in the API. Empty: that of the engine that joins first.
    name: Arc<OnceLock<String>>,
    revision: Option<String>,
    options: AdapterOptions,
    unfit: Arc<UnfitEngines>,
}

/// The engines that do not fit, with the reasons.
struct UnfitEngines {
    all: usize,
    found: Mutex<HashMap<String, String>>,
}

impl UnfitEngines {
    /// An engine fits, or why it does not. Some: no engine fits, and all reasons.
    fn set(&self, id: &str, why: Option<String>) -> Option<String> {
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        match why {
            Some(why) => found.insert(id.to_owned(), why),
            None => found.remove(id),
        };
        let all: BTreeSet<&str> = found.values().map(String::as_str).collect();
        (found.len() == self.all).then(|| Vec::from_iter(all).join("\n"))
    }
}

impl Engine {
    /// Waits until the engine fits. Err: neither it nor any other one does.
    async fn join(&self) -> Result<Joined, String> {
        let mut logged = None;
        loop {
            let error = match engines::wait_for_engine(&self.http, &self.address, &self.deployment).await {
                Ok(joined) => {
                    self.unfit.set(&self.id, None);
                    return Ok(joined);
                }
                Err(error) => error.to_string(),
            };
            if let Some(why) = self.unfit.set(&self.id, Some(format!("--engine: {error}"))) {
                return Err(why);
            }
            if logged.as_ref() != Some(&error) {
                tracing::error!(engine = self.address.url.as_str(), error, "an engine does not fit; asking it again");
                logged = Some(error);
            }
            tokio::time::sleep(UNFIT_RETRY).await;
        }
    }

    /// Runs the engine's adapter. Returns only if no engine fits.
    async fn run(mut self, store: Arc<dyn Store>, keys: Keys, adapters: Adapters) -> String {
        let mut joined = match self.join().await {
            Ok(joined) => joined,
            Err(why) => return why,
        };
        let name = self.name.get_or_init(|| joined.served_name.clone()).clone();
        if joined.served_name != name {
            let (engine, own) = (self.address.url.as_str(), &joined.served_name);
            tracing::warn!(engine, own, name, "the engines have several names of the model; set --served-name");
        }
        joined.served_name.clone_from(&name);
        self.deployment.served_name = Some(name);
        engines::warn_without_cache(&joined, self.address.url.as_str());
        let kind = joined.kind(self.address.dialect);
        tracing::info!(engine = self.address.url.as_str(), kind, context = joined.context, "an engine joined");
        let service = AdapterService::start(self.http, self.address.dialect, self.deployment, joined, self.options);
        adapters.insert(&self.id, service.clone());
        let identity = EngineIdentity {
            key: keys.engine(&self.id),
            address: self.id.clone(),
            text: String::new(),
            revision: self.revision,
        };
        let session = Arc::new(Session::new(store, &self.id, LEASE));
        // The adapter drains with the router, which still opens sequences for open requests.
        let (_drain, draining) = watch::channel(false);
        engines::publish(service, session, identity, draining).await;
        String::new()
    }
}

fn front_metrics(listeners: &Listeners, adapters: Adapters) -> ProcessMetrics {
    let certificates: Vec<tls::Certificate> = listeners.certificate().into_iter().collect();
    drop(tls::watch(certificates.clone()));
    ProcessMetrics::new(move |registry| {
        metrics::register(registry, certificates.clone());
        let adapters = adapters.clone();
        on_scrape(registry, move |samples| engines::write_metrics(samples, &adapters.observed()));
    })
}
