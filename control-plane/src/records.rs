//! The keys under `/rein/<cluster>/`, and their values as JSON.
//!
//! This module does not know who reads or writes them.

use std::borrow::Borrow;
use std::collections::BTreeMap;

use bytes::Bytes;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::placement::{ModelShape, Placement, RankPlacement};

/// The keys of one cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Keys {
    root: String,
}

impl Keys {
    /// None: invalid name, see [`is_valid_name`].
    pub fn new(cluster: &str) -> Option<Self> {
        is_valid_name(cluster).then(|| Keys { root: format!("/rein/{cluster}/") })
    }

    pub fn root(&self) -> &str {
        &self.root
    }

    /// Prefix of the keys of all workers.
    pub fn workers(&self) -> String {
        format!("{}workers/", self.root)
    }

    /// Leased by the worker.
    pub fn worker(&self, id: &str) -> String {
        format!("{}workers/{id}", self.root)
    }

    /// The seat that a worker must take. The controller writes it together with the group's placement.
    pub fn seat(&self, worker: &str) -> String {
        format!("{}seats/{worker}", self.root)
    }

    pub fn groups(&self) -> String {
        format!("{}groups/", self.root)
    }

    /// Prefix of all keys of a group.
    pub fn group(&self, group: &str) -> String {
        format!("{}groups/{group}/", self.root)
    }

    pub fn placement(&self, group: &str) -> String {
        format!("{}groups/{group}/placement", self.root)
    }

    /// Leased by the worker of that rank. Present while its links in the group are up.
    pub fn ready(&self, group: &str, rank: usize) -> String {
        format!("{}groups/{group}/ready/{rank}", self.root)
    }

    /// Leased by the worker of that rank: why it left the current epoch of its group.
    pub fn trouble(&self, group: &str, rank: usize) -> String {
        format!("{}groups/{group}/trouble/{rank}", self.root)
    }

    /// Leased by the leader. Not under `groups/`, because it changes often and followers of groups do not need it.
    pub fn load(&self, group: &str) -> String {
        format!("{}loads/{group}", self.root)
    }

    /// The LoRA adapters that a group has. Leased by the leader.
    pub fn group_loras(&self, group: &str) -> String {
        format!("{}groups/{group}/loras", self.root)
    }

    /// Prefix of the LoRA adapters that groups shall have.
    pub fn loras(&self) -> String {
        format!("{}loras/", self.root)
    }

    /// A LoRA adapter that every group of a model shall have. A router writes it. The names may have any characters.
    pub fn lora(&self, model: &str, name: &str) -> String {
        let hex = |text: &str| text.bytes().map(|byte| format!("{byte:02x}")).collect::<String>();
        format!("{}loras/{}/{}", self.root, hex(model), hex(name))
    }

    /// How much each expert of a group is used. Leased by the leader. Not under `groups/`, because it is large.
    pub fn experts(&self, group: &str) -> String {
        format!("{}experts/{group}", self.root)
    }

    /// Prefix of the keys of all routers.
    pub fn routers(&self) -> String {
        format!("{}routers/", self.root)
    }

    /// Leased by the router.
    pub fn router(&self, id: &str) -> String {
        format!("{}routers/{id}", self.root)
    }

    /// Prefix of the keys of all engines behind adapters.
    pub fn engines(&self) -> String {
        format!("{}engines/", self.root)
    }

    /// Leased by the adapter. Controllers place nothing there.
    pub fn engine(&self, id: &str) -> String {
        format!("{}engines/{id}", self.root)
    }

    /// Leased by the active controller.
    pub fn controller(&self) -> String {
        format!("{}controller", self.root)
    }

    /// The peers with which the worker can link. Leased by the worker.
    pub fn links(&self, worker: &str) -> String {
        format!("{}links/{worker}", self.root)
    }

    /// The key with which routers seal what clients keep between requests. The first router creates it.
    pub fn seal(&self) -> String {
        format!("{}seal", self.root)
    }

    /// A worker that was lost. Written by the controller.
    pub fn lost(&self, worker: &str) -> String {
        format!("{}lost/{worker}", self.root)
    }

    /// Prefix of what the routers share of the limits of an API key.
    pub fn limits(&self, key: &str) -> String {
        format!("{}limits/{key}/", self.root)
    }

    /// What is left of the limits per minute of an API key.
    pub fn limit_levels(&self, key: &str) -> String {
        format!("{}levels", self.limits(key))
    }

    /// How many of an API key's slots a router has taken. Leased by the router.
    pub fn limit_slots(&self, key: &str, router: &str) -> String {
        format!("{}slots/{router}", self.limits(key))
    }

    /// A request that the worker leaves. `rein drain` writes it, the worker deletes it.
    pub fn drain(&self, worker: &str) -> String {
        format!("{}drains/{worker}", self.root)
    }
}

/// Length limit for the name of a cluster, worker or router.
const NAME_BYTES: usize = 63;

/// 1 to 63 letters, digits, `-`, `_` and `.`; the first is a letter or digit.
pub fn is_valid_name(name: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    name.len() <= NAME_BYTES && name.starts_with(|c: char| c.is_ascii_alphanumeric()) && name.chars().all(allowed)
}

/// The store's value of a record.
pub fn encode(record: &impl Serialize) -> Bytes {
    serde_json::to_vec(record).expect("a record is a struct of strings and numbers").into()
}

pub fn decode<T: DeserializeOwned>(value: &[u8]) -> Result<T, serde_json::Error> {
    serde_json::from_slice(value)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkerState {
    Ready,
    /// It leaves as soon as its group can do without it.
    Draining,
}

/// The release of a process. Records of releases without a protocol number have protocol 0.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Release {
    /// The wire protocol: see `protocol.rs` in the `proto` crate.
    #[serde(default)]
    pub protocol: u32,
    #[serde(default)]
    pub version: String,
    /// When the process started, in seconds since 1970; 0: older releases do not say.
    #[serde(default)]
    pub started: u64,
}

/// A LoRA adapter of a group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoraRecord {
    pub name: String,
    /// Of its files.
    pub digest: u64,
    /// As it was given.
    pub path: String,
    pub rank: u32,
}

/// The LoRA adapters that a group has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupLoras {
    pub epoch: u64,
    pub loras: Vec<LoraRecord>,
}

/// A LoRA adapter that every group of a model shall have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WantedLora {
    pub model: String,
    pub name: String,
    /// A directory on the machine of each group's leader.
    pub path: String,
}

/// Where a worker's GPUs are. Sums over ranks are faster the closer the ranks are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Locality {
    /// Equal for processes on one host.
    pub host: String,
    /// Equal for GPUs that NVLink connects. None: NVLink connects them with no others, or this is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nvlink: Option<String>,
    /// Network adapters on the GPUs' side of the host, by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub adapters: Vec<String>,
}

/// How far two workers are apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Distance {
    /// NVLink connects their GPUs, or they have none.
    Near,
    SameHost,
    OtherHost,
}

impl Locality {
    /// Workers that do not say where they are count as near.
    pub fn distance(a: Option<&Locality>, b: Option<&Locality>) -> Distance {
        let (Some(a), Some(b)) = (a, b) else { return Distance::Near };
        match (a.nvlink.is_some() && a.nvlink == b.nvlink, a.host == b.host) {
            (true, _) => Distance::Near,
            (false, true) => Distance::SameHost,
            (false, false) => Distance::OtherHost,
        }
    }
}

/// A registered worker process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerRecord {
    pub model: String,
    /// Hash of what must be equal for all workers of a group: checkpoint, types, block size, text files.
    pub fingerprint: String,
    /// Hash of the text files alone, which routers tokenize and render with.
    pub text: String,
    /// The commit of the checkpoint's repository, if its directory names one. Older releases neither write nor read it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
    /// `host:port` of its gRPC services.
    pub address: String,
    /// `host:port` at which other ranks link with its ranks.
    pub mesh: String,
    pub device: String,
    /// Where its GPUs are; CPU workers have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub locality: Option<Locality>,
    pub shape: ModelShape,
    /// Ranks of this process, all in one group: one per device.
    pub ranks: usize,
    /// Ranks that fit in its memory if it has to take over those of lost workers.
    pub most_ranks: usize,
    /// Ranks of a group.
    pub group_size: usize,
    /// Experts per layer and rank that fit in memory beyond an even share.
    pub redundant_experts: usize,
    /// Where it runs: a rack, an NVLink domain, a set of pods. Groups form within one domain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    /// Changes with each start, and each time the worker had to leave a group that continued without it.
    pub incarnation: u64,
    pub state: WorkerState,
    /// The seat it has taken.
    pub seat: Seat,
    #[serde(default, flatten)]
    pub release: Release,
    /// When its certificate expires, in seconds since 1970. None: it has no certificate, or one that never expires.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<u64>,
}

/// A worker whose lease expired.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LostWorker {
    pub model: String,
    pub address: String,
    pub device: String,
    /// When the controller noticed, in seconds since 1970.
    pub at: u64,
}

/// A request that a worker leaves. It applies to this incarnation and later ones of the process, not to a later start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drain {
    pub incarnation: u64,
}

/// The seat that a worker must take: its place in a group.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seat {
    /// None: it is a spare.
    pub group: Option<String>,
    pub epoch: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupMember {
    pub worker: String,
    pub incarnation: u64,
    pub address: String,
    pub mesh: String,
    /// Ascending. A member that took over ranks of a lost one has more ranks than devices.
    pub ranks: Vec<usize>,
}

/// Which worker holds which rank of a group, and what each rank loads.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupRecord {
    pub model: String,
    pub fingerprint: String,
    pub text: String,
    /// That of the members' checkpoint; see [`WorkerRecord::revision`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
    pub group_size: usize,
    /// The domain in which it formed. Spares of other domains take the ranks of lost members only if this one has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    pub members: Vec<GroupMember>,
    pub placement: Placement,
    /// A member wants to leave: the group accepts no new sequences.
    pub draining: bool,
    /// Former members, by incarnation, that have not acknowledged yet that they are out.
    pub out: Vec<(String, u64)>,
    /// The wire protocol of all members.
    #[serde(default)]
    pub protocol: u32,
}

impl GroupRecord {
    pub fn epoch(&self) -> u64 {
        self.placement.epoch
    }

    /// Groups of the same kind give the same tokens for the same request.
    pub fn kind(&self) -> String {
        format!("{} x {}, protocol {}", self.fingerprint, self.group_size, self.protocol)
    }

    /// The member that holds rank 0.
    pub fn leader(&self) -> Option<&GroupMember> {
        self.member_of(0).map(|member| &self.members[member])
    }

    /// The rank under which a member reports that it is ready or in trouble.
    pub fn first_rank(&self, member: usize) -> usize {
        self.members[member].ranks.first().copied().unwrap_or(usize::MAX)
    }

    /// The member that holds this rank.
    pub fn member_of(&self, rank: usize) -> Option<usize> {
        self.members.iter().position(|member| member.ranks.contains(&rank))
    }

    /// The member that is this worker.
    pub fn member(&self, worker: &str, incarnation: u64) -> Option<usize> {
        self.members.iter().position(|member| member.worker == worker && member.incarnation == incarnation)
    }

    /// Whether all members have loaded and linked in this epoch, and have loaded this expert layout if one is given.
    /// `stored` returns what is stored under a member's first rank.
    pub fn is_ready<R: Borrow<Ready>>(&self, layout: Option<u64>, stored: impl Fn(usize) -> Option<R>) -> bool {
        let is_so = |ready: &Ready| ready.epoch == self.epoch() && layout.is_none_or(|layout| layout == ready.layout);
        let ready = |member| stored(self.first_rank(member)).is_some_and(|ready| is_so(ready.borrow()));
        !self.members.is_empty() && (0..self.members.len()).all(ready)
    }

    pub fn ranks_of(&self, member: usize) -> impl Iterator<Item = &RankPlacement> {
        self.members[member].ranks.iter().filter_map(|&rank| self.placement.ranks.get(rank))
    }

    /// For each rank, the address at which it accepts links.
    pub fn mesh(&self) -> Vec<String> {
        let of = |rank| self.member_of(rank).map_or(String::new(), |member| self.members[member].mesh.clone());
        (0..self.placement.ranks.len()).map(of).collect()
    }
}

/// A rank has loaded its part of this epoch's placement and is linked with all others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ready {
    pub epoch: u64,
    /// The expert layout that it loaded last.
    pub layout: u64,
    pub worker: String,
}

/// Why this epoch of a group has ended for a rank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankFailure {
    pub epoch: u64,
    /// The rank that failed, if known.
    pub suspect: Option<usize>,
    pub reason: String,
}

/// The load of a group, as its leader reports it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Load {
    pub epoch: u64,
    pub running: u32,
    pub waiting: u32,
    pub used_blocks: u32,
    pub total_blocks: u32,
    /// Generated since the last report. Older releases report none.
    #[serde(default)]
    pub tokens_per_second: u32,
}

/// How much each expert of a group is used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpertLoad {
    pub epoch: u64,
    /// The layout in use.
    pub layout: u64,
    /// Rows by layer (empty for dense layers) and expert; older rows count less.
    pub rows: Vec<Vec<u32>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouterRecord {
    pub http: String,
    pub grpc: String,
    pub in_flight: usize,
    pub draining: bool,
    /// The names of the models that it is told to expect.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub expects: Vec<String>,
    /// When the first of its certificates expires, in seconds since 1970. None: it has none, or none that expires.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<u64>,
    /// By model. Empty: no call was lost.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub lost_calls: BTreeMap<String, LostCalls>,
    #[serde(default, flatten)]
    pub release: Release,
}

/// Calls of declared tools that a router delivered as text, because the model's format does not read them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LostCalls {
    pub answers: u64,
    /// A format that reads the latest of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<String>,
}

/// What is left of the limits per minute of an API key, for all routers together.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct LimitLevels {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests: Option<Level>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<Level>,
}

/// The level of a token bucket at a time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Level {
    /// Negative: more was used than there was.
    pub level: f64,
    /// In milliseconds since 1970.
    pub at: u64,
}

/// An engine that was there before (vLLM, SGLang, llama-server), behind an adapter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineRecord {
    pub model: String,
    /// Engines of the same kind give the same tokens for the same request: engine, version and model.
    pub kind: String,
    /// `vllm`, `sglang` or `llama-server`.
    pub engine: String,
    /// Where the adapter reaches the engine.
    pub url: String,
    /// Hash of the text files with which routers tokenize and render.
    pub text: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
    /// `host:port` of the adapter's gRPC services.
    pub address: String,
    /// Prompt and generated tokens together.
    pub context: usize,
    /// Sequences that it computes at once.
    pub slots: u32,
    /// Whether it keeps a prefix cache. Without one, each refused token computes the whole prompt again.
    pub prefix_cache: bool,
    /// Changes each time the engine joins.
    pub incarnation: u64,
    /// The adapter leaves: it accepts no new sequences.
    pub draining: bool,
    /// Why the engine gets no sequences. None: it answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost: Option<String>,
    #[serde(default, flatten)]
    pub release: Release,
}

/// Workers of one class can form a group together: model, fingerprint, group size and protocol.
pub(crate) type WorkerClass = (String, String, usize, u32);

pub(crate) fn class_of_worker(worker: &WorkerRecord) -> WorkerClass {
    (worker.model.clone(), worker.fingerprint.clone(), worker.group_size, worker.release.protocol)
}

/// What a worker found when it last probed its peers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkReport {
    /// By the peer's id.
    pub tried: BTreeMap<String, LinkAttempt>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkAttempt {
    /// The peer's. Results for an older incarnation are ignored.
    pub incarnation: u64,
    /// Why they cannot link. None: they can.
    pub failure: Option<String>,
}

#[cfg(test)]
mod tests;
