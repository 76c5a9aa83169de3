//! Follows the cluster: which groups serve which model, and, for a model that is new, its text files.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    path::{Component, Path, PathBuf},
    sync::Arc,
};

use futures::{FutureExt, future::BoxFuture};
use rein_control_plane::{ClusterView, Keys, Mirror, Store, records::GroupRecord};
use rein_proto::{
    internal::{TextFilesRequest, worker_client::WorkerClient},
    protocol,
};
use tokio::{
    sync::mpsc,
    time::{sleep, timeout},
};

use crate::{
    Core, Policy, limits,
    model::Model,
    pool::{EngineTransport, Listing, Pool},
    textmodel::{Overrides, TextModel},
};

/// Reaches a worker at an address. None: the address is none; it is logged.
pub type Dial = Arc<dyn Fn(&str) -> Option<EngineTransport> + Send + Sync>;

/// How a router in a cluster comes by its models.
pub struct Fleet {
    pub store: Arc<dyn Store>,
    pub keys: Keys,
    /// Among the routers of the cluster.
    pub id: String,
    pub dial: Dial,
    pub policy: Policy,
    /// Text files on this machine, by served name: others come from the model's workers.
    pub texts: HashMap<String, PathBuf>,
    pub overrides: Overrides,
}

#[derive(Debug, thiserror::Error)]
enum FilesError {
    #[error(transparent)]
    Call(#[from] tonic::Status),
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: std::io::Error },
    #[error("the worker names a file '{0}'")]
    Path(String),
    #[error("the model's text files have more than {} bytes", limits::TEXT_FILES)]
    TooLarge,
    #[error(transparent)]
    Text(#[from] crate::textmodel::TextError),
    #[error("the worker took longer than {:?}", limits::BODY_TIME)]
    TooLate,
    #[error("{0} is no address")]
    Address(String),
}

/// Never returns.
pub(crate) async fn follow(core: Arc<Core>, fleet: Fleet) {
    let fleet = Arc::new(fleet);
    let mut mirror = Mirror::new(fleet.store.clone(), &fleet.id, fleet.keys.groups());
    let mut view = ClusterView::default();
    let mut fetching: BTreeMap<String, ()> = BTreeMap::new();
    let (done, mut fetched) = mpsc::channel::<(String, Option<(Model, String)>)>(1);
    // By model: of its text files, as they were fetched; and the kinds of its groups, as far as they have been told.
    let (mut texts, mut told) = (BTreeMap::<String, String>::new(), BTreeMap::<String, BTreeSet<String>>::new());
    let mut foreign = BTreeSet::new();
    loop {
        tokio::select! {
            biased;
            Some((name, model)) = fetched.recv() => {
                fetching.remove(&name);
                if let Some((model, text)) = model {
                    tracing::info!(model = name, text, "a new model");
                    core.add(Arc::new(model));
                    texts.insert(name, text);
                }
            }
            _ = mirror.changed() => {
                sleep(limits::MEMBERSHIP_BURST).await;
            }
        }
        view.update(&fleet.keys, &mirror.view());
        tell_foreign(&view, &mut foreign);
        let serving = serving(&view);
        for (name, groups) in &serving {
            tell_kinds(name, groups, &mut told);
            let known = texts.get(name).filter(|_| core.named(name).is_some());
            // One whose groups all have other text files by now is another model under the same name.
            let strange = known.is_none_or(|known| groups.iter().all(|group| group.text != *known));
            if strange
                && !(known.is_some() && fleet.texts.contains_key(name))
                && let Some(first) = groups.first()
                && fetching.insert(name.clone(), ()).is_none()
            {
                let fetch = fetch(fleet.clone(), core.clone(), name.clone(), first.listing.address.clone());
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
        for model in core.models().iter().filter(|model| !model.pool.is_fixed()) {
            let groups = serving.get(model.name()).map_or(&[][..], Vec::as_slice);
            let ours = |group: &&ServingGroup| {
                let known = texts.get(model.name()).filter(|_| !fleet.texts.contains_key(model.name()));
                known.is_none_or(|known| group.text == *known)
            };
            let listings: Vec<Listing> = groups.iter().filter(ours).map(|group| group.listing.clone()).collect();
            let superseded = |engine: &crate::pool::Engine| {
                let group = view.groups.get(&engine.group).and_then(|group| group.record());
                group.is_some_and(|record| record.epoch() != engine.epoch)
            };
            model.pool.list(&listings, superseded, |address| (fleet.dial)(address));
        }
    }
}

/// A group that serves, and of which text files.
struct ServingGroup {
    listing: Listing,
    text: String,
}

/// By model.
fn serving(view: &ClusterView) -> BTreeMap<String, Vec<ServingGroup>> {
    let mut models: BTreeMap<String, Vec<ServingGroup>> = BTreeMap::new();
    for (id, group) in view.groups.iter().filter(|(_, group)| group.serves()) {
        if let Some(record) = group.record().filter(|record| is_understood(record))
            && let Some(leader) = record.leader()
        {
            let listing = Listing {
                group: id.clone(),
                epoch: record.epoch(),
                kind: record.kind(),
                revision: record.revision.clone(),
                address: leader.address.clone(),
                draining: record.draining,
            };
            let group = ServingGroup { listing, text: record.text.clone() };
            models.entry(record.model.clone()).or_default().push(group);
        }
    }
    models
}

fn is_understood(record: &GroupRecord) -> bool {
    protocol::understands(record.protocol, protocol::NUMBER)
}

/// Groups of releases that this one does not understand get no sequences. Each is logged once.
fn tell_foreign(view: &ClusterView, told: &mut BTreeSet<String>) {
    let records = view.groups.iter().filter_map(|(id, group)| Some((id, group.record()?)));
    let foreign: BTreeMap<&String, u32> =
        records.filter(|(_, record)| !is_understood(record)).map(|(id, record)| (id, record.protocol)).collect();
    told.retain(|id| foreign.contains_key(id));
    for (id, number) in foreign {
        if told.insert(id.clone()) {
            tracing::error!("{}", protocol::refusal(&format!("group {id}"), number, ""));
        }
    }
}

/// A model that is served in several ways is logged, once for each set of them.
fn tell_kinds(model: &str, groups: &[ServingGroup], told: &mut BTreeMap<String, BTreeSet<String>>) {
    let kinds: BTreeSet<String> = groups.iter().map(|group| group.listing.kind.clone()).collect();
    let texts: BTreeSet<&str> = groups.iter().map(|group| group.text.as_str()).collect();
    if told.get(model) == Some(&kinds) {
        return;
    }
    if texts.len() > 1 {
        let why =
            "groups of one model have different text files: those that differ from the first wait until it is gone";
        tracing::error!(model, ?texts, "{why}");
    } else if kinds.len() > 1 {
        let why =
            "groups of one model differ in checkpoint, types or size: its answers depend on where they are computed";
        tracing::warn!(model, ?kinds, "{why}");
    }
    told.insert(model.to_owned(), kinds);
}

/// (Boxed, as in `pool`.)
fn fetch(fleet: Arc<Fleet>, core: Arc<Core>, name: String, address: String) -> BoxFuture<'static, Option<Model>> {
    async move {
        match text(&fleet, &name, &address).await {
            Ok(text) => match Model::new(text, Pool::open(core.config.policy), &fleet.policy, &core.config) {
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

async fn text(fleet: &Fleet, name: &str, address: &str) -> Result<TextModel, FilesError> {
    let overrides = Overrides { name: Some(name.to_owned()), ..fleet.overrides.clone() };
    let own = fleet.texts.get(name).cloned();
    let files = match own {
        Some(_) => BTreeMap::new(),
        None => timeout(limits::BODY_TIME, download(fleet, address)).await.unwrap_or(Err(FilesError::TooLate))?,
    };
    let load = move || match own {
        Some(dir) => Ok(TextModel::load(&dir, &overrides)?),
        None => load(files, &overrides),
    };
    let loaded = tokio::task::spawn_blocking(load).await;
    loaded.map_err(|panic| tonic::Status::internal(panic.to_string()))?
}

/// From a directory that is there for so long.
fn load(files: BTreeMap<PathBuf, Vec<u8>>, overrides: &Overrides) -> Result<TextModel, FilesError> {
    let dir = std::env::temp_dir().join(format!("rein-{}", uuid::Uuid::new_v4().simple()));
    let write = || {
        for (name, data) in &files {
            let path = dir.join(name);
            let parent = path.parent().unwrap_or(&dir);
            let written = std::fs::create_dir_all(parent).and_then(|()| std::fs::write(&path, data));
            written.map_err(|source| FilesError::Io { path, source })?;
        }
        Ok(TextModel::load(&dir, overrides)?)
    };
    let loaded = write();
    if let Err(error) = std::fs::remove_dir_all(&dir) {
        tracing::warn!(dir = %dir.display(), %error, "cannot be removed");
    }
    loaded
}

/// What the worker names must lie in its model's directory.
async fn download(fleet: &Fleet, address: &str) -> Result<BTreeMap<PathBuf, Vec<u8>>, FilesError> {
    let transport = (fleet.dial)(address).ok_or_else(|| FilesError::Address(address.to_owned()))?;
    let mut client = WorkerClient::new(transport).max_decoding_message_size(limits::ENGINE_MESSAGE_BYTES);
    let call = async move { client.text_files(TextFilesRequest {}).await }.boxed();
    let mut parts = call.await?.into_inner();
    let (mut files, mut room) = (BTreeMap::<PathBuf, Vec<u8>>::new(), limits::TEXT_FILES);
    while let Some(part) = parts.message().await? {
        room = room.checked_sub(part.data.len()).ok_or(FilesError::TooLarge)?;
        let path = Path::new(&part.path);
        if part.path.is_empty() || !path.components().all(|c| matches!(c, Component::Normal(_))) {
            return Err(FilesError::Path(part.path));
        }
        files.entry(path.to_owned()).or_default().extend_from_slice(&part.data);
    }
    Ok(files)
}

#[cfg(test)]
mod tests;
