//! What lies under `/rein/<cluster>/`: the keys, and their values as JSON.

use std::borrow::Borrow;

use bytes::Bytes;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::placement::{ModelShape, Placement, RankPlacement};

/// Where a cluster's keys are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Keys {
    root: String,
}

impl Keys {
    /// None: it is no name, see [`is_name`].
    pub fn new(cluster: &str) -> Option<Self> {
        is_name(cluster).then(|| Keys { root: format!("/rein/{cluster}/") })
    }

    pub fn root(&self) -> &str {
        &self.root
    }

    /// Before the keys of all workers.
    pub fn workers(&self) -> String {
        format!("{}workers/", self.root)
    }

    /// Leased by the worker.
    pub fn worker(&self, id: &str) -> String {
        format!("{}workers/{id}", self.root)
    }

    /// What a worker is to do. Written by the controller, with the group's placement.
    pub fn seat(&self, worker: &str) -> String {
        format!("{}seats/{worker}", self.root)
    }

    pub fn groups(&self) -> String {
        format!("{}groups/", self.root)
    }

    /// Before all keys of a group.
    pub fn group(&self, group: &str) -> String {
        format!("{}groups/{group}/", self.root)
    }

    pub fn placement(&self, group: &str) -> String {
        format!("{}groups/{group}/placement", self.root)
    }

    /// Leased by the worker of that rank; there while the group's links are whole.
    pub fn ready(&self, group: &str, rank: usize) -> String {
        format!("{}groups/{group}/ready/{rank}", self.root)
    }

    /// Leased by the worker of that rank; why it left its group's present epoch.
    pub fn trouble(&self, group: &str, rank: usize) -> String {
        format!("{}groups/{group}/trouble/{rank}", self.root)
    }

    /// Leased by the leader. It changes often, and those who follow groups need it not.
    pub fn load(&self, group: &str) -> String {
        format!("{}loads/{group}", self.root)
    }

    /// How much each expert of a group is used. Leased by the leader. It is large; otherwise as `load`.
    pub fn experts(&self, group: &str) -> String {
        format!("{}experts/{group}", self.root)
    }

    /// Leased by the router.
    pub fn router(&self, id: &str) -> String {
        format!("{}routers/{id}", self.root)
    }

    /// Leased by the active controller.
    pub fn controller(&self) -> String {
        format!("{}controller", self.root)
    }

    /// With which peers the worker can link. Leased by the worker.
    pub fn links(&self, worker: &str) -> String {
        format!("{}links/{worker}", self.root)
    }

    /// A worker that is asked to leave. Written by `rein drain`, taken away by the worker.
    pub fn drain(&self, worker: &str) -> String {
        format!("{}drains/{worker}", self.root)
    }
}

/// Longest name of a cluster, worker or router.
const NAME_BYTES: usize = 63;

/// 1 to 63 letters, digits, `-`, `_` and `.`; the first is a letter or digit.
pub fn is_name(name: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    name.len() <= NAME_BYTES && name.starts_with(|c: char| c.is_ascii_alphanumeric()) && name.chars().all(allowed)
}

/// The store's value of a record.
pub fn encode(record: &impl Serialize) -> Bytes {
    // Records are structs of strings and numbers, which JSON can always say.
    serde_json::to_vec(record).unwrap_or_default().into()
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

/// What a process is of. Records from before there was a number say nothing: protocol 0.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Release {
    /// What it speaks: see `protocol.rs` of the protocol's crate.
    #[serde(default)]
    pub protocol: u32,
    #[serde(default)]
    pub version: String,
}

/// A worker process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerRecord {
    pub model: String,
    /// Of what must be the same for all workers of a group: checkpoint, types, block size, text files.
    pub fingerprint: String,
    /// Of the text files alone: what a router reads and writes tokens with.
    pub text: String,
    /// The commit of the checkpoint's repository, if its directory names one. Older releases neither write nor read it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
    /// `host:port` of its gRPC services.
    pub address: String,
    /// `host:port` at which other ranks link with its own.
    pub mesh: String,
    pub device: String,
    pub shape: ModelShape,
    /// Ranks that this process is to hold, all in one group: one for each device.
    pub ranks: usize,
    /// Ranks that it could hold in place of lost workers, as far as its memory goes.
    pub most_ranks: usize,
    /// Ranks of a group.
    pub group_size: usize,
    /// Copies of experts that each of its ranks has room for, in each layer, beyond an even share of all.
    pub redundant_experts: usize,
    /// Another one after each start, and after each time that the worker had to leave a group that went on without it.
    pub incarnation: u64,
    pub state: WorkerState,
    /// The seat it has taken.
    pub seat: Seat,
    #[serde(default, flatten)]
    pub release: Release,
    /// When its peers take its certificate no more, in seconds since 1970; None: it has none, or none that ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<u64>,
}

/// A worker is asked to leave: as it was then, or since; not one that is started later.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drain {
    pub incarnation: u64,
}

/// What a worker is to do.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seat {
    /// None: nothing, a spare.
    pub group: Option<String>,
    pub epoch: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    pub worker: String,
    pub incarnation: u64,
    pub address: String,
    pub mesh: String,
    /// Ascending. A member that stands in for a lost one has more than it has devices.
    pub ranks: Vec<usize>,
}

/// Who is which rank of a group, and what each holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupRecord {
    pub model: String,
    pub fingerprint: String,
    pub text: String,
    /// That of the members' checkpoint; see [`WorkerRecord::revision`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
    pub group_size: usize,
    pub members: Vec<Member>,
    pub placement: Placement,
    /// A member wants to leave: no new sequences.
    pub draining: bool,
    /// Workers, by incarnation, that were members and have not said since that they know.
    pub out: Vec<(String, u64)>,
    /// That all members speak.
    #[serde(default)]
    pub protocol: u32,
}

impl GroupRecord {
    pub fn epoch(&self) -> u64 {
        self.placement.epoch
    }

    /// Groups of one kind give the same answers to the token.
    pub fn kind(&self) -> String {
        format!("{} x {}, protocol {}", self.fingerprint, self.group_size, self.protocol)
    }

    /// The member that holds rank 0.
    pub fn leader(&self) -> Option<&Member> {
        self.member_of(0).map(|member| &self.members[member])
    }

    /// Under which a member is ready or in trouble.
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

    /// Whether all members have loaded and are linked in this epoch, with this layout of experts if one is asked for. `said`
    /// is what there is under a member's first rank.
    pub fn is_ready<R: Borrow<Ready>>(&self, layout: Option<u64>, said: impl Fn(usize) -> Option<R>) -> bool {
        let is_so = |ready: &Ready| ready.epoch == self.epoch() && layout.is_none_or(|layout| layout == ready.layout);
        let ready = |member| said(self.first_rank(member)).is_some_and(|ready| is_so(ready.borrow()));
        !self.members.is_empty() && (0..self.members.len()).all(ready)
    }

    pub fn ranks_of(&self, member: usize) -> impl Iterator<Item = &RankPlacement> {
        self.members[member].ranks.iter().filter_map(|&rank| self.placement.ranks.get(rank))
    }

    /// Where each rank links.
    pub fn mesh(&self) -> Vec<String> {
        let of = |rank| self.member_of(rank).map_or(String::new(), |member| self.members[member].mesh.clone());
        (0..self.placement.ranks.len()).map(of).collect()
    }
}

/// A rank has loaded what the placement of this epoch says, and is linked with all others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ready {
    pub epoch: u64,
    /// The layout of experts that it has loaded last.
    pub layout: u64,
    pub worker: String,
}

/// A rank's group of this epoch is over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trouble {
    pub epoch: u64,
    /// The rank that failed, where it is known.
    pub suspect: Option<usize>,
    pub reason: String,
}

/// What a group has to do, as its leader says.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Load {
    pub epoch: u64,
    pub running: u32,
    pub waiting: u32,
    pub used_blocks: u32,
    pub total_blocks: u32,
}

/// How much each expert of a group is used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpertLoad {
    pub epoch: u64,
    /// The layout in use.
    pub layout: u64,
    /// By layer (none in dense ones) and expert: rows, where older ones count less.
    pub rows: Vec<Vec<u32>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouterRecord {
    pub http: String,
    pub grpc: String,
    pub in_flight: usize,
    pub draining: bool,
    #[serde(default, flatten)]
    pub release: Release,
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn records_of_releases_without_a_revision_are_read_and_written_as_before() {
        let old = json!({
            "model": "m", "fingerprint": "f", "text": "t", "address": "a:1", "mesh": "a:2", "device": "cpu",
            "shape": {"attention_heads": 1, "kv_heads": 1, "experts": []}, "ranks": 1, "most_ranks": 1, "group_size": 1,
            "redundant_experts": 0, "incarnation": 1, "state": "ready", "seat": {"group": null, "epoch": 0},
            "protocol": 1, "version": "0.1.0",
        });
        let record: WorkerRecord = decode(old.to_string().as_bytes()).expect("a record");
        assert_eq!(record.revision, None);
        assert_eq!(decode::<Value>(&encode(&record)).expect("JSON"), old);
        let new = WorkerRecord { revision: Some("c0ffee".into()), ..record };
        let written: Value = decode(&encode(&new)).expect("JSON");
        assert_eq!(written["revision"], "c0ffee");
        // A release that does not know a field skips it.
        let mut later = written;
        later["field_of_a_later_release"] = 1.into();
        assert_eq!(decode::<WorkerRecord>(later.to_string().as_bytes()).expect("a record"), new);
    }
}
