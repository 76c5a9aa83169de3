//! Follows which worker groups and engines serve which model, from the cluster's records, and downloads a model's text
//! files from its workers. It does not know what the files contain.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Component, Path, PathBuf},
    sync::Arc,
};

use futures::FutureExt;
use rein_control_plane::{
    ClusterView, Keys, Mirror, Patience, Renewals, Store,
    limits::LOST_STAYS,
    records::{EngineRecord, GroupRecord, LoraRecord},
};
use rein_proto::{
    internal::{LoraInfo, TextFilesRequest, worker_client::WorkerClient},
    protocol,
};
use tokio::time::{sleep, timeout};

use crate::{
    fleet::{
        engine_error::status_text,
        pool::{EngineHandle, EngineListing},
        transport::EngineTransport,
    },
    limits,
};

/// Makes a transport to a worker's address. None: the address is invalid, which was logged.
pub type Dial = Arc<dyn Fn(&str) -> Option<EngineTransport> + Send + Sync>;

/// Why a model's text files could not be fetched from a worker.
#[derive(Debug, thiserror::Error)]
pub enum DownloadError {
    #[error("{}", status_text(.0))]
    Call(#[from] tonic::Status),
    #[error("the worker sent a file outside the model's directory: '{0}'")]
    Path(String),
    #[error("the model's text files must have at most {} bytes, got more", limits::TEXT_FILES)]
    TooLarge,
    #[error("the worker did not send the text files within {} s", limits::BODY_TIME.as_secs())]
    TooLate,
    #[error("the worker's address '{0}' is invalid")]
    Address(String),
}

/// A serving group, and its text files.
#[derive(Debug, Clone)]
pub struct ServingGroup {
    pub listing: EngineListing,
    /// The hash of its text files. Groups of one model with different text files render prompts differently.
    pub text: String,
}

/// The cluster's worker groups, followed as they come and go.
pub struct Membership {
    keys: Keys,
    groups: Mirror,
    view: ClusterView,
    /// Engines behind adapters.
    engines: Mirror,
    engines_view: ClusterView,
    /// What has been logged: incompatible groups, and the kinds of each model's groups.
    incompatible: BTreeSet<String>,
    kinds: BTreeMap<String, BTreeSet<String>>,
}

impl Membership {
    /// `id`: this router's id, unique among the routers of the cluster.
    pub fn new(store: Arc<dyn Store>, keys: Keys, id: &str, renewals: Option<Renewals>) -> Self {
        let patience = Patience { stays: LOST_STAYS, renewals };
        let groups = Mirror::lasting(store.clone(), id, keys.groups(), patience.clone());
        let engines = Mirror::lasting(store, id, keys.engines(), patience);
        let (view, engines_view) = (ClusterView::default(), ClusterView::default());
        let (incompatible, kinds) = (BTreeSet::new(), BTreeMap::new());
        Membership { keys, groups, view, engines, engines_view, incompatible, kinds }
    }

    /// Waits for a change, and then `MEMBERSHIP_BURST` for more changes. Cancel-safe.
    pub async fn changed(&mut self) {
        tokio::select! {
            _ = self.groups.changed() => {}
            _ = self.engines.changed() => {}
        }
        sleep(limits::MEMBERSHIP_BURST).await;
    }

    /// The serving groups and engines by model.
    pub fn serving(&mut self) -> BTreeMap<String, Vec<ServingGroup>> {
        self.view.update(&self.keys, &self.groups.view());
        self.engines_view.update(&self.keys, &self.engines.view());
        log_incompatible(&self.view, &mut self.incompatible);
        let mut serving = serving(&self.view);
        for (model, engine) in serving_engines(&self.engines_view) {
            serving.entry(model).or_default().push(engine);
        }
        for (name, groups) in &serving {
            log_differences(name, groups, &mut self.kinds);
        }
        serving
    }

    /// Whether the engine's group has another epoch now, or the engine has joined again.
    pub fn is_superseded(&self, engine: &EngineHandle) -> bool {
        if let Some(id) = engine.group.strip_prefix(ENGINE_GROUP) {
            let record = self.engines_view.engines.get(id);
            return record.is_some_and(|record| record.incarnation != engine.epoch);
        }
        let group = self.view.groups.get(&engine.group).and_then(|group| group.record());
        group.is_some_and(|record| record.epoch() != engine.epoch)
    }
}

/// The serving groups of this view, by model.
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
                loras: group.loras().iter().map(lora_info).collect(),
            };
            let group = ServingGroup { listing, text: record.text.clone() };
            models.entry(record.model.clone()).or_default().push(group);
        }
    }
    models
}

/// Engines behind adapters count as groups whose names begin with this: no group's name has a slash.
const ENGINE_GROUP: &str = "engines/";

/// The engines behind adapters of this view, each with its model.
fn serving_engines(view: &ClusterView) -> impl Iterator<Item = (String, ServingGroup)> {
    let serves = |record: &EngineRecord| {
        record.lost.is_none() && protocol::understands(record.release.protocol, protocol::NUMBER)
    };
    view.engines.iter().filter(move |(_, record)| serves(record)).map(|(id, record)| {
        let listing = EngineListing {
            group: format!("{ENGINE_GROUP}{id}"),
            epoch: record.incarnation,
            kind: record.kind.clone(),
            revision: record.revision.clone(),
            address: record.address.clone(),
            draining: record.draining,
            loras: Vec::new(),
        };
        (record.model.clone(), ServingGroup { listing, text: record.text.clone() })
    })
}

fn lora_info(record: &LoraRecord) -> LoraInfo {
    let LoraRecord { name, digest, path, rank } = record.clone();
    LoraInfo { name, digest, path, rank }
}

fn is_understood(record: &GroupRecord) -> bool {
    protocol::understands(record.protocol, protocol::NUMBER)
}

/// Logs each group of an incompatible release once. Such groups get no sequences.
fn log_incompatible(view: &ClusterView, logged: &mut BTreeSet<String>) {
    let records = view.groups.iter().filter_map(|(id, group)| Some((id, group.record()?)));
    let incompatible: BTreeMap<&String, u32> =
        records.filter(|(_, record)| !is_understood(record)).map(|(id, record)| (id, record.protocol)).collect();
    logged.retain(|id| incompatible.contains_key(id));
    for (id, number) in incompatible {
        if logged.insert(id.clone()) {
            tracing::error!("{}", protocol::refusal(&format!("group {id}"), number, ""));
        }
    }
}

/// Logs a model whose groups differ, once for each set of kinds.
fn log_differences(model: &str, groups: &[ServingGroup], logged: &mut BTreeMap<String, BTreeSet<String>>) {
    let kinds: BTreeSet<String> = groups.iter().map(|group| group.listing.kind.clone()).collect();
    let texts: BTreeSet<String> = groups.iter().map(|group| group.text.clone()).collect();
    let listed = |values: &BTreeSet<String>| values.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
    if logged.get(model) == Some(&kinds) {
        return;
    }
    if texts.len() > 1 {
        let why = "groups of one model have different text files; only groups with the files that were loaded first get sequences";
        tracing::error!(model, texts = listed(&texts), "{why}");
    } else if kinds.len() > 1 {
        let why = "groups of one model differ in checkpoint, data types or group size; answers depend on the group";
        tracing::warn!(model, kinds = listed(&kinds), "{why}");
    }
    logged.insert(model.to_owned(), kinds);
}

/// A model's text files from one of its workers, by their paths in the model's directory.
pub async fn download(dial: &Dial, address: &str) -> Result<BTreeMap<PathBuf, Vec<u8>>, DownloadError> {
    timeout(limits::BODY_TIME, download_all(dial, address)).await.unwrap_or(Err(DownloadError::TooLate))
}

/// Every path must stay inside the model's directory.
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
