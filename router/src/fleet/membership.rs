//! Which worker groups serve which model, as the cluster's records say, and the text files of a model from its workers.
//! It knows the files as bytes only.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Component, Path, PathBuf},
    sync::Arc,
};

use futures::FutureExt;
use rein_control_plane::{ClusterView, Keys, Mirror, Store, records::GroupRecord};
use rein_proto::{
    internal::{TextFilesRequest, worker_client::WorkerClient},
    protocol,
};
use tokio::time::{sleep, timeout};

use crate::{
    fleet::pool::{EngineHandle, EngineListing, EngineTransport},
    limits,
};

/// Reaches a worker at an address. None: it is not an address; that is logged.
pub type Dial = Arc<dyn Fn(&str) -> Option<EngineTransport> + Send + Sync>;

/// Why a model's text files could not be fetched from a worker.
#[derive(Debug, thiserror::Error)]
pub enum DownloadError {
    #[error(transparent)]
    Call(#[from] tonic::Status),
    #[error("the worker names a file '{0}', which is not within the model's directory")]
    Path(String),
    #[error("the model's text files have more than {} bytes", limits::TEXT_FILES)]
    TooLarge,
    #[error("the worker took longer than {:?}", limits::BODY_TIME)]
    TooLate,
    #[error("{0} is not an address")]
    Address(String),
}

/// A group that serves, and of which text files.
#[derive(Debug, Clone)]
pub struct ServingGroup {
    pub listing: EngineListing,
    /// Of its model's text files: groups of one model with different ones differ in their prompts.
    pub text: String,
}

/// The cluster's worker groups, followed as they come and go.
pub struct Membership {
    keys: Keys,
    mirror: Mirror,
    view: ClusterView,
    /// What has been logged: groups of other releases, and by model the kinds of its groups.
    foreign: BTreeSet<String>,
    kinds: BTreeMap<String, BTreeSet<String>>,
}

impl Membership {
    /// `id`: this router's, among the routers of the cluster.
    pub fn new(store: Arc<dyn Store>, keys: Keys, id: &str) -> Self {
        let mirror = Mirror::new(store, id, keys.groups());
        Membership { keys, mirror, view: ClusterView::default(), foreign: BTreeSet::new(), kinds: BTreeMap::new() }
    }

    /// Waits for a change, and for others that come in the same burst. Cancel-safe.
    pub async fn changed(&mut self) {
        self.mirror.changed().await;
        sleep(limits::MEMBERSHIP_BURST).await;
    }

    /// The groups that serve now, by model.
    pub fn serving(&mut self) -> BTreeMap<String, Vec<ServingGroup>> {
        self.view.update(&self.keys, &self.mirror.view());
        tell_foreign(&self.view, &mut self.foreign);
        let serving = serving(&self.view);
        for (name, groups) in &serving {
            tell_kinds(name, groups, &mut self.kinds);
        }
        serving
    }

    /// Whether the engine's group has gone on to another epoch.
    pub fn is_superseded(&self, engine: &EngineHandle) -> bool {
        let group = self.view.groups.get(&engine.group).and_then(|group| group.record());
        group.is_some_and(|record| record.epoch() != engine.epoch)
    }
}

/// The groups that serve, by model.
fn serving(view: &ClusterView) -> BTreeMap<String, Vec<ServingGroup>> {
    let mut models: BTreeMap<String, Vec<ServingGroup>> = BTreeMap::new();
    for (id, group) in view.groups.iter().filter(|(_, group)| group.serves()) {
        if let Some(record) = group.record().filter(|record| is_understood(record))
            && let Some(leader) = record.leader()
        {
            let listing = EngineListing {
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

/// A model's text files from one of its workers, by their paths in the model's directory.
pub async fn download(dial: &Dial, address: &str) -> Result<BTreeMap<PathBuf, Vec<u8>>, DownloadError> {
    timeout(limits::BODY_TIME, download_all(dial, address)).await.unwrap_or(Err(DownloadError::TooLate))
}

/// What the worker names must lie in its model's directory.
async fn download_all(dial: &Dial, address: &str) -> Result<BTreeMap<PathBuf, Vec<u8>>, DownloadError> {
    let transport = dial(address).ok_or_else(|| DownloadError::Address(address.to_owned()))?;
    let mut client = WorkerClient::new(transport).max_decoding_message_size(limits::ENGINE_MESSAGE_BYTES);
    let call = async move { client.text_files(TextFilesRequest {}).await }.boxed();
    let mut parts = call.await?.into_inner();
    let (mut files, mut room) = (BTreeMap::<PathBuf, Vec<u8>>::new(), limits::TEXT_FILES);
    while let Some(part) = parts.message().await? {
        room = room.checked_sub(part.data.len()).ok_or(DownloadError::TooLarge)?;
        let path = Path::new(&part.path);
        if part.path.is_empty() || !path.components().all(|c| matches!(c, Component::Normal(_))) {
            return Err(DownloadError::Path(part.path));
        }
        files.entry(path.to_owned()).or_default().extend_from_slice(&part.data);
    }
    Ok(files)
}

#[cfg(test)]
mod tests;
