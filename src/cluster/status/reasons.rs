//! Why a worker has no seat and why a model has no group, each in one short sentence.

use std::collections::{BTreeMap, BTreeSet};

use rein_control_plane::ClusterView;
use rein_control_plane::connectivity::Connectivity;
use rein_control_plane::records::{GroupMember, GroupRecord, WorkerRecord, WorkerState};
use rein_control_plane::view::GroupState;

use super::duration;
use crate::cluster::seconds_since_1970;

/// Certificates that expire within so many seconds are named.
const EXPIRES_SOON: u64 = 7 * 86_400;
/// Longest reason, in characters.
const SHORT: usize = 140;

/// Workers that can form a group together.
type Class<'a> = (&'a str, &'a str, usize, u32);

fn class_of(worker: &WorkerRecord) -> Class<'_> {
    (&worker.model, &worker.fingerprint, worker.group_size, worker.release.protocol)
}

fn class_of_group(record: &GroupRecord) -> Class<'_> {
    (&record.model, &record.fingerprint, record.group_size, record.protocol)
}

/// The workers of a class that take seats.
struct Crew<'a> {
    group_size: usize,
    ranks: usize,
    /// Ranks by domain.
    domains: BTreeMap<Option<&'a str>, usize>,
    linked: bool,
    has_controller: bool,
}

impl<'a> Crew<'a> {
    fn of(view: &'a ClusterView, connectivity: &Connectivity, class: Class<'a>) -> Crew<'a> {
        let has_controller = view.controller.is_some();
        let mut crew = Crew { group_size: class.2, ranks: 0, domains: BTreeMap::new(), linked: true, has_controller };
        for (id, worker) in view.workers.iter().filter(|(_, worker)| class_of(worker) == class) {
            if worker.state == WorkerState::Ready {
                crew.ranks += worker.ranks;
                *crew.domains.entry(worker.domain.as_deref()).or_default() += worker.ranks;
                crew.linked &= connectivity.unreachable_peers(id) == 0;
            }
        }
        crew
    }

    /// What it lacks for a group.
    fn lacks(&self) -> String {
        let Crew { group_size, ranks, .. } = self;
        match group_size.checked_sub(*ranks) {
            Some(more @ 1..) => format!("{ranks} of a group's {group_size} ranks are there; start {more} more"),
            _ if self.domains.values().all(|ranks| ranks < group_size) => {
                let names: Vec<&str> = self.domains.keys().map(|domain| domain.unwrap_or("none")).collect();
                format!("no domain has the {group_size} ranks of a group: {}", names.join(", "))
            }
            _ if !self.linked => "its workers cannot all link with one another".into(),
            _ if !self.has_controller => "no controller runs that could form a group".into(),
            _ => "a group is being formed".into(),
        }
    }
}

fn records(view: &ClusterView) -> impl Iterator<Item = &GroupRecord> {
    view.groups.values().filter_map(GroupState::record).map(|record| &**record)
}

/// A model that has no group.
pub struct Ungrouped {
    /// Of the best crew, and of a group. None: it has no workers.
    pub ranks: Option<(usize, usize)>,
    pub why: String,
}

/// A worker that is gone without a farewell.
pub struct DeadWorker<'a> {
    pub address: &'a str,
    pub device: &'a str,
    pub why: String,
}

/// Models that workers have or had, or routers expect, and that no group and no engine serves.
pub fn models_without_group(view: &ClusterView) -> BTreeMap<&str, Ungrouped> {
    let connectivity = Connectivity::new(view);
    let served: BTreeSet<&str> = records(view)
        .map(|record| record.model.as_str())
        .chain(view.engines.values().map(|engine| engine.model.as_str()))
        .collect();
    let expected = view.routers.values().flat_map(|router| &router.expects).map(String::as_str);
    let offered = view.workers.values().map(|worker| worker.model.as_str());
    let dead = view.lost.values().map(|worker| worker.model.as_str());
    let models: BTreeSet<&str> =
        offered.chain(expected).chain(dead.clone()).filter(|model| !served.contains(model)).collect();
    let mut without = BTreeMap::new();
    for model in models {
        let classes: BTreeSet<Class> =
            view.workers.values().map(|worker| class_of(worker)).filter(|class| class.0 == model).collect();
        let crews: Vec<Crew> = classes.into_iter().map(|class| Crew::of(view, &connectivity, class)).collect();
        let all: usize = crews.iter().map(|crew| crew.ranks).sum();
        let Some(best) = crews.iter().max_by_key(|crew| crew.ranks) else {
            let why = match dead.clone().filter(|lost| *lost == model).count() {
                0 => "a router expects it, and no worker and no engine has it".to_owned(),
                1 => "its worker is dead".to_owned(),
                several => format!("its {several} workers are dead"),
            };
            without.insert(model, Ungrouped { ranks: None, why });
            continue;
        };
        let mut why = best.lacks();
        if all > best.ranks {
            let others = all - best.ranks;
            why += &format!("; {others} more have another checkpoint, other options or another release");
        }
        without.insert(model, Ungrouped { ranks: Some((best.ranks, best.group_size)), why });
    }
    without
}

/// Why a worker has no seat, or might lose it. None: it has one, or is a spare beside a group.
pub fn of_worker(view: &ClusterView, connectivity: &Connectivity, id: &str, worker: &WorkerRecord) -> Option<String> {
    if worker.expires.is_some_and(|expires| expires <= seconds_since_1970()) {
        return Some("its certificate has expired".into());
    }
    if let Some(why) = cannot_link(view, connectivity, id).or_else(|| expires_soon(worker.expires)) {
        return Some(why);
    }
    if worker.state == WorkerState::Draining || view.drains.iter().any(|drained| drained == id) {
        return None;
    }
    let class = class_of(worker);
    if records(view).any(|record| class_of_group(record) == class) {
        return None;
    }
    let lacks = Crew::of(view, connectivity, class).lacks();
    let others = records(view).any(|record| record.model == worker.model);
    Some(if others {
        short(&format!("its checkpoint, options or release differ from the model's groups: {lacks}"), SHORT)
    } else {
        short(&lacks, SHORT)
    })
}

/// When a certificate expires, if that is soon.
pub fn expires_soon(expires: Option<u64>) -> Option<String> {
    let left = expires?.saturating_sub(seconds_since_1970());
    (left < EXPIRES_SOON).then(|| match left {
        0 => "its certificate has expired".into(),
        left => format!("its certificate expires in {}", duration(left)),
    })
}

/// Which peers a worker cannot link with, and why not with the first. Peers that are in groups come first.
fn cannot_link(view: &ClusterView, connectivity: &Connectivity, id: &str) -> Option<String> {
    let mut faults = connectivity.own_faults(id);
    let seated = |id: &str| view.workers.get(id).is_some_and(|worker| worker.seat.group.is_some());
    faults.sort_by_key(|fault| (!seated(fault.other), !fault.inbound));
    let first = *faults.first()?;
    let peers: Vec<&str> =
        faults.iter().filter(|fault| fault.inbound == first.inbound).map(|fault| fault.other).collect();
    let names = match peers[..] {
        [one] => format!("worker {one}"),
        [one, other] => format!("workers {one} and {other}"),
        [one, other, ref more @ ..] => format!("workers {one}, {other} and {} more", more.len()),
        [] => return None,
    };
    let who =
        if first.inbound { format!("{names} cannot link with it") } else { format!("it cannot link with {names}") };
    Some(short(&format!("{who}: {}", first.why), SHORT))
}

/// Workers that are gone without a farewell.
pub fn dead(view: &ClusterView) -> BTreeMap<&str, DeadWorker<'_>> {
    let mut dead = BTreeMap::new();
    // A member that no controller has replaced.
    for member in records(view).flat_map(|record| &record.members) {
        if !view.workers.contains_key(&member.worker) {
            let why = "its lease has expired, and nobody has taken its ranks".to_owned();
            dead.insert(member.worker.as_str(), DeadWorker { address: &member.address, device: "-", why });
        }
    }
    for (id, lost) in view.lost.iter().filter(|(id, _)| !view.workers.contains_key(*id)) {
        let since = duration(seconds_since_1970().saturating_sub(lost.at));
        let of_group = dead.contains_key(id.as_str());
        let ranks = if of_group { ", and nobody has taken its ranks" } else { "" };
        let why = format!("its lease expired {since} ago{ranks}");
        dead.insert(id.as_str(), DeadWorker { address: &lost.address, device: &lost.device, why });
    }
    dead
}

/// Why a group is broken, or has fewer workers than it should.
pub fn of_group(view: &ClusterView, group: &GroupState) -> Option<String> {
    let record = group.record()?;
    if let Some((rank, trouble)) = group.trouble.iter().find(|(_, trouble)| trouble.epoch == record.epoch()) {
        return Some(short(&format!("rank {rank}: {}", trouble.reason), SHORT));
    }
    let extra = |member: &GroupMember| {
        let devices = view.workers.get(&member.worker).map_or(member.ranks.len(), |worker| worker.ranks);
        member.ranks.len().saturating_sub(devices)
    };
    let taken: usize = record.members.iter().map(extra).sum();
    let holder = record.members.iter().find(|member| extra(member) > 0)?;
    let spares = "as soon as a spare is there, it takes them over";
    Some(format!("worker {} also holds {taken} ranks of lost workers; {spares}", holder.worker))
}

/// A text in one line of at most this many characters.
fn short(text: &str, most: usize) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(most) {
        None => line,
        Some(_) => line.chars().take(most - 1).chain(['…']).collect(),
    }
}
