//! Follows cluster membership: loads models when their first group serves, and updates the engines of each model. It
//! does not know requests.

use std::{
    collections::{BTreeMap, HashMap},
    path::PathBuf,
    sync::Arc,
};

use futures::{FutureExt, future::BoxFuture};
use rein_control_plane::{Keys, Renewals, Store};
use rein_text::model_text::{ModelOverrides, ModelText, TextError};
use tokio::{sync::mpsc, time::sleep};

use crate::{
    fleet::{
        membership::{Dial, DownloadError, Membership, ServingGroup, download},
        pool::{EngineListing, EnginePool},
    },
    limits,
    request::{
        loras::LoraStore,
        model::{ModelPolicy, ServedModel},
    },
    state::RouterState,
};

/// How a router in a cluster discovers its models.
pub struct FleetConfig {
    pub store: Arc<dyn Store>,
    pub keys: Keys,
    /// This router's id, unique among the routers of the cluster.
    pub id: String,
    /// When the store last renewed this router's lease. None: it has none.
    pub renewals: Option<Renewals>,
    pub dial: Dial,
    pub policy: ModelPolicy,
    pub texts: OwnTexts,
    pub overrides: ModelOverrides,
}

/// Directories with text files on this machine. Other models' text files come from their workers.
pub enum OwnTexts {
    /// By served name.
    Named(HashMap<String, PathBuf>),
    /// Those of the only model, whatever its name.
    Only(PathBuf),
}

impl OwnTexts {
    fn get(&self, name: &str) -> Option<&PathBuf> {
        match self {
            OwnTexts::Named(dirs) => dirs.get(name),
            OwnTexts::Only(dir) => Some(dir),
        }
    }
}

#[derive(Debug, thiserror::Error)]
enum FilesError {
    #[error(transparent)]
    Download(#[from] DownloadError),
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: std::io::Error },
    #[error(transparent)]
    Text(#[from] TextError),
    #[error("loading the text files failed: {0}")]
    Panic(#[from] tokio::task::JoinError),
}

/// Updates the models in `state` as membership changes. Never returns.
pub async fn follow(state: Arc<RouterState>, fleet: FleetConfig) {
    let fleet = Arc::new(fleet);
    // Called once for each state.
    let _ = state.lora_store.set(LoraStore { store: fleet.store.clone(), keys: fleet.keys.clone() });
    let mut membership = Membership::new(fleet.store.clone(), fleet.keys.clone(), &fleet.id, fleet.renewals.clone());
    let mut loading: BTreeMap<String, ()> = BTreeMap::new();
    let (done, mut loaded_models) = mpsc::channel::<(String, Option<(ServedModel, String)>)>(1);
    // The hash of the text files that were loaded, by model.
    let mut texts = BTreeMap::<String, String>::new();
    loop {
        tokio::select! {
            biased;
            Some((name, model)) = loaded_models.recv() => {
                loading.remove(&name);
                if let Some((model, text)) = model {
                    tracing::info!(model = name, text, "serving a new model");
                    state.add(Arc::new(model));
                    texts.insert(name, text);
                }
            }
            () = membership.changed() => {}
        }
        let serving = membership.serving();
        for (name, groups) in &serving {
            let known = texts.get(name).filter(|_| state.named(name).is_some());
            // If no group has the known text files any more, the name stands for another model now.
            let must_load = known.is_none_or(|known| groups.iter().all(|group| group.text != *known));
            if must_load
                && !(known.is_some() && fleet.texts.get(name).is_some())
                && let Some(first) = groups.first()
                && loading.insert(name.clone(), ()).is_none()
            {
                let load_model = load_model(fleet.clone(), state.clone(), name.clone(), first.listing.address.clone());
                let (done, name, text) = (done.clone(), name.clone(), first.text.clone());
                tokio::spawn(async move {
                    let model = load_model.await;
                    if model.is_none() {
                        sleep(limits::FILES_RETRY_INTERVAL).await;
                    }
                    // Sending fails only while the router shuts down.
                    let _ = done.send((name, model.map(|model| (model, text)))).await;
                });
            }
        }
        for model in state.models().iter().filter(|model| !model.pool.is_fixed()) {
            let groups = serving.get(model.name()).map_or(&[][..], Vec::as_slice);
            let same_text = |group: &&ServingGroup| {
                let known = texts.get(model.name()).filter(|_| fleet.texts.get(model.name()).is_none());
                known.is_none_or(|known| group.text == *known)
            };
            let listings: Vec<EngineListing> =
                groups.iter().filter(same_text).map(|group| group.listing.clone()).collect();
            model.pool.list(&listings, |engine| membership.is_superseded(engine), |address| (fleet.dial)(address));
        }
        state.fleet_changes.send_replace(());
    }
}

/// Loads a model's text files. None: this failed, and was logged. (Boxed for the same reason as in `pool`.)
fn load_model(
    fleet: Arc<FleetConfig>,
    state: Arc<RouterState>,
    name: String,
    address: String,
) -> BoxFuture<'static, Option<ServedModel>> {
    async move {
        match load_text(&fleet, &name, &address).await {
            Ok(text) => {
                let crate::config::RouterConfig { policy, memory, .. } = &state.config;
                let pool = EnginePool::open(*policy, memory.routes);
                let model = ServedModel::new(text, pool, &fleet.policy, memory);
                let unserved = |error| tracing::error!(model = name, %error, "the model cannot be served");
                model.map_err(unserved).ok()
            }
            Err(error) => {
                tracing::warn!(model = name, %error, "loading the model's text files failed; retrying");
                None
            }
        }
    }
    .boxed()
}

async fn load_text(fleet: &FleetConfig, name: &str, address: &str) -> Result<ModelText, FilesError> {
    let overrides = ModelOverrides { name: Some(name.to_owned()), ..fleet.overrides.clone() };
    let own = fleet.texts.get(name).cloned();
    let files = match own {
        Some(_) => BTreeMap::new(),
        None => download(&fleet.dial, address).await?,
    };
    let load = move || match own {
        Some(dir) => Ok(ModelText::load(&dir, &overrides)?),
        None => load_files(files, &overrides),
    };
    tokio::task::spawn_blocking(load).await?
}

/// Loads text files from a temporary directory, which is removed afterwards.
fn load_files(files: BTreeMap<PathBuf, Vec<u8>>, overrides: &ModelOverrides) -> Result<ModelText, FilesError> {
    let dir = std::env::temp_dir().join(format!("rein-{}", uuid::Uuid::new_v4().simple()));
    let write = || {
        for (name, data) in &files {
            let path = dir.join(name);
            let parent = path.parent().unwrap_or(&dir);
            let written = std::fs::create_dir_all(parent).and_then(|()| std::fs::write(&path, data));
            written.map_err(|source| FilesError::Io { path, source })?;
        }
        Ok(ModelText::load(&dir, overrides)?)
    };
    let loaded = write();
    if let Err(error) = std::fs::remove_dir_all(&dir) {
        tracing::warn!(dir = %dir.display(), %error, "cannot remove the temporary directory");
    }
    loaded
}
