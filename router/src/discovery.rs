//! Keeps the models of a router in a cluster, and their engines, as membership says.

use std::{
    collections::{BTreeMap, HashMap},
    path::PathBuf,
    sync::Arc,
};

use futures::{FutureExt, future::BoxFuture};
use rein_control_plane::{Keys, Store};
use rein_text::model_text::{ModelOverrides, ModelText, TextError};
use tokio::{sync::mpsc, time::sleep};

use crate::{
    fleet::{
        membership::{Dial, DownloadError, Membership, ServingGroup, download},
        pool::{EngineListing, EnginePool},
    },
    limits,
    request::model::{ModelPolicy, ServedModel},
    state::RouterState,
};

/// How a router in a cluster comes by its models.
pub struct FleetConfig {
    pub store: Arc<dyn Store>,
    pub keys: Keys,
    /// Among the routers of the cluster.
    pub id: String,
    pub dial: Dial,
    pub policy: ModelPolicy,
    /// Text files on this machine, by served name: others come from the model's workers.
    pub texts: HashMap<String, PathBuf>,
    pub overrides: ModelOverrides,
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

/// Never returns.
pub async fn follow(state: Arc<RouterState>, fleet: FleetConfig) {
    let fleet = Arc::new(fleet);
    let mut membership = Membership::new(fleet.store.clone(), fleet.keys.clone(), &fleet.id);
    let mut fetching: BTreeMap<String, ()> = BTreeMap::new();
    let (done, mut fetched) = mpsc::channel::<(String, Option<(ServedModel, String)>)>(1);
    // By model: of its text files, as they were fetched.
    let mut texts = BTreeMap::<String, String>::new();
    loop {
        tokio::select! {
            biased;
            Some((name, model)) = fetched.recv() => {
                fetching.remove(&name);
                if let Some((model, text)) = model {
                    tracing::info!(model = name, text, "a new model");
                    state.add(Arc::new(model));
                    texts.insert(name, text);
                }
            }
            () = membership.changed() => {}
        }
        let serving = membership.serving();
        for (name, groups) in &serving {
            let known = texts.get(name).filter(|_| state.named(name).is_some());
            // One whose groups all have other text files by now is another model under the same name.
            let strange = known.is_none_or(|known| groups.iter().all(|group| group.text != *known));
            if strange
                && !(known.is_some() && fleet.texts.contains_key(name))
                && let Some(first) = groups.first()
                && fetching.insert(name.clone(), ()).is_none()
            {
                let fetch = fetch(fleet.clone(), state.clone(), name.clone(), first.listing.address.clone());
                let (done, name, text) = (done.clone(), name.clone(), first.text.clone());
                tokio::spawn(async move {
                    let model = fetch.await;
                    if model.is_none() {
                        sleep(limits::FILES_AGAIN).await;
                    }
                    // The router is being dropped otherwise.
                    let _ = done.send((name, model.map(|model| (model, text)))).await;
                });
            }
        }
        for model in state.models().iter().filter(|model| !model.pool.is_fixed()) {
            let groups = serving.get(model.name()).map_or(&[][..], Vec::as_slice);
            let ours = |group: &&ServingGroup| {
                let known = texts.get(model.name()).filter(|_| !fleet.texts.contains_key(model.name()));
                known.is_none_or(|known| group.text == *known)
            };
            let listings: Vec<EngineListing> = groups.iter().filter(ours).map(|group| group.listing.clone()).collect();
            model.pool.list(&listings, |engine| membership.is_superseded(engine), |address| (fleet.dial)(address));
        }
    }
}

/// (Boxed, as in `pool`.)
fn fetch(
    fleet: Arc<FleetConfig>,
    state: Arc<RouterState>,
    name: String,
    address: String,
) -> BoxFuture<'static, Option<ServedModel>> {
    async move {
        match text(&fleet, &name, &address).await {
            Ok(text) => match ServedModel::new(text, EnginePool::open(state.config.policy), &fleet.policy) {
                Ok(model) => Some(model),
                Err(error) => {
                    tracing::error!(model = name, %error, "the model cannot be served");
                    None
                }
            },
            Err(error) => {
                tracing::warn!(model = name, %error, "cannot get the model's text files; trying again");
                None
            }
        }
    }
    .boxed()
}

async fn text(fleet: &FleetConfig, name: &str, address: &str) -> Result<ModelText, FilesError> {
    let overrides = ModelOverrides { name: Some(name.to_owned()), ..fleet.overrides.clone() };
    let own = fleet.texts.get(name).cloned();
    let files = match own {
        Some(_) => BTreeMap::new(),
        None => download(&fleet.dial, address).await?,
    };
    let load = move || match own {
        Some(dir) => Ok(ModelText::load(&dir, &overrides)?),
        None => load(files, &overrides),
    };
    tokio::task::spawn_blocking(load).await?
}

/// From a directory that is there for so long.
fn load(files: BTreeMap<PathBuf, Vec<u8>>, overrides: &ModelOverrides) -> Result<ModelText, FilesError> {
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
        tracing::warn!(dir = %dir.display(), %error, "cannot be removed");
    }
    loaded
}
