//! The typed view of the cluster's keys. Only changed keys are decoded again.
//!
//! This module does not decide anything.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use serde::de::DeserializeOwned;

use crate::{
    records::{
        EngineRecord, ExpertLoad, GroupLoras, GroupRecord, Keys, LinkReport, Load, LoraRecord, LostWorker, RankFailure,
        Ready, Release, RouterRecord, Seat, WorkerRecord, decode,
    },
    store::{Entry, KeyCondition, Revision, Snapshot, StorePoint},
};

#[derive(Debug, Clone, Default)]
pub struct ClusterView {
    pub point: StorePoint,
    pub workers: BTreeMap<String, Arc<WorkerRecord>>,
    pub seats: BTreeMap<String, Seat>,
    pub groups: BTreeMap<String, GroupState>,
    pub routers: BTreeMap<String, RouterRecord>,
    /// Engines behind adapters.
    pub engines: BTreeMap<String, Arc<EngineRecord>>,
    /// By worker: the peers with which it can link.
    pub links: BTreeMap<String, Arc<LinkReport>>,
    /// The active controller.
    pub controller: Option<String>,
    pub controller_release: Release,
    /// Workers that are asked to leave.
    pub drains: Vec<String>,
    pub lost: BTreeMap<String, LostWorker>,
    /// The revision of each key that was read.
    seen: BTreeMap<String, Revision>,
    /// Placements whose record can no longer be decoded: the last one that could is still in use.
    damaged: BTreeSet<String>,
}

#[derive(Debug, Clone, Default)]
pub struct GroupState {
    /// With the revision of its key. None: only other keys of the group exist.
    pub placement: Option<(Arc<GroupRecord>, Revision)>,
    pub ready: BTreeMap<usize, Ready>,
    pub trouble: BTreeMap<usize, RankFailure>,
    pub load: Option<Load>,
    pub experts: Option<Arc<ExpertLoad>>,
    pub loras: Option<Arc<GroupLoras>>,
}

impl GroupState {
    pub fn record(&self) -> Option<&Arc<GroupRecord>> {
        self.placement.as_ref().map(|(record, _)| record)
    }

    /// All ranks have loaded and linked in the current epoch.
    pub fn serves(&self) -> bool {
        self.record().is_some_and(|record| record.is_ready(None, |rank| self.ready.get(&rank)))
    }

    /// The LoRA adapters that it has in its current epoch.
    pub fn loras(&self) -> &[LoraRecord] {
        let epoch = self.record().map(|record| record.epoch());
        self.loras.as_ref().filter(|loras| Some(loras.epoch) == epoch).map_or(&[], |loras| &loras.loras)
    }

    /// All ranks have loaded the placement's expert layout, and steps use it.
    pub fn uses_current_layout(&self) -> bool {
        let Some(record) = self.record() else { return false };
        let layout = record.placement.layout;
        let used = self.experts.as_ref().is_some_and(|load| (load.epoch, load.layout) == (record.epoch(), layout));
        used && record.is_ready(Some(layout), |rank| self.ready.get(&rank))
    }

    fn is_empty(&self) -> bool {
        let leased = self.ready.is_empty() && self.trouble.is_empty() && self.load.is_none() && self.experts.is_none();
        self.placement.is_none() && leased && self.loras.is_none()
    }
}

impl ClusterView {
    pub fn read(keys: &Keys, snapshot: &Snapshot) -> ClusterView {
        let mut view = ClusterView::default();
        view.update(keys, snapshot);
        view
    }

    /// Updates to the snapshot. A value that cannot be decoded changes nothing: the last one that could stays, as its
    /// process does. False: only loads and what is left of limits have changed.
    pub fn update(&mut self, keys: &Keys, snapshot: &Snapshot) -> bool {
        let is_reset = snapshot.point().is_after_reset(self.point);
        self.point = snapshot.point();
        let mut news = false;
        let is_load = |key: &str| {
            let path = key.strip_prefix(keys.root()).unwrap_or_default();
            path.starts_with("loads/") || path.starts_with("limits/")
        };
        let gone: Vec<String> = self.seen.keys().filter(|key| !snapshot.entries.contains_key(*key)).cloned().collect();
        for key in gone {
            news |= !is_load(&key);
            self.seen.remove(&key);
            self.take(keys, &key, None);
        }
        if is_reset {
            // Revisions start over, so an equal one says nothing.
            self.seen.clear();
        }
        for (key, entry) in &snapshot.entries {
            if self.seen.get(key) != Some(&entry.revision) {
                news |= !is_load(key);
                self.seen.insert(key.clone(), entry.revision);
                self.take(keys, key, Some(entry));
            }
        }
        self.groups.retain(|_, group| !group.is_empty());
        news
    }

    fn take(&mut self, keys: &Keys, key: &str, entry: Option<&Entry>) {
        let Some(path) = key.strip_prefix(keys.root()) else { return };
        let parts: Vec<&str> = path.split('/').collect();
        match parts[..] {
            ["workers", id] => set(&mut self.workers, id.to_owned(), read(key, entry).map(Arc::new)),
            // The controller writes a seat that is missing again.
            ["seats", id] => set(&mut self.seats, id.to_owned(), read(key, entry).or_gone()),
            ["routers", id] => set(&mut self.routers, id.to_owned(), read(key, entry)),
            ["engines", id] => set(&mut self.engines, id.to_owned(), read(key, entry).map(Arc::new)),
            ["lost", id] => set(&mut self.lost, id.to_owned(), read(key, entry).or_gone()),
            ["links", id] => set(&mut self.links, id.to_owned(), read(key, entry).map(Arc::new)),
            ["controller"] => {
                // Id, lease, protocol, version and start time.
                let said = entry.map(|entry| String::from_utf8_lossy(&entry.value).into_owned()).unwrap_or_default();
                let part = |i| said.split(' ').nth(i).filter(|part| !part.is_empty()).map(str::to_owned);
                self.controller = part(0);
                let protocol = part(2).and_then(|number| number.parse().ok()).unwrap_or_default();
                let started = part(4).and_then(|seconds| seconds.parse().ok()).unwrap_or_default();
                self.controller_release = Release { protocol, version: part(3).unwrap_or_default(), started };
            }
            ["drains", id] => {
                self.drains.retain(|known| known != id);
                self.drains.extend(entry.map(|_| id.to_owned()));
            }
            ["experts", id] => {
                read(key, entry).map(Arc::new).replace(&mut self.groups.entry(id.to_owned()).or_default().experts);
            }
            ["loads", id] => read(key, entry).replace(&mut self.groups.entry(id.to_owned()).or_default().load),
            ["groups", id, "placement"] => {
                let revision = entry.map_or(0, |entry| entry.revision);
                let placement = &mut self.groups.entry(id.to_owned()).or_default().placement;
                match (read(key, entry), placement) {
                    (Change::Damaged, Some((_, at))) => {
                        *at = revision;
                        self.damaged.insert(id.to_owned());
                    }
                    (change, placement) => {
                        self.damaged.remove(id);
                        change.map(|record| (Arc::new(record), revision)).replace(placement);
                    }
                }
            }
            ["groups", id, "loras"] => {
                read(key, entry).map(Arc::new).replace(&mut self.groups.entry(id.to_owned()).or_default().loras);
            }
            ["groups", id, what, rank] => {
                let (Ok(rank), group) = (rank.parse(), self.groups.entry(id.to_owned()).or_default()) else { return };
                match what {
                    "ready" => set(&mut group.ready, rank, read(key, entry)),
                    "trouble" => set(&mut group.trouble, rank, read(key, entry)),
                    _ => {}
                }
            }
            _ => {}
        }
    }

    /// The condition that the key is as in this view.
    pub fn unchanged(&self, key: String) -> KeyCondition {
        match self.seen.get(&key) {
            Some(&revision) => KeyCondition::At(key, revision),
            None => KeyCondition::Absent(key),
        }
    }

    /// The groups whose placement must be written again, with the record to write.
    pub fn damaged_placements(&self) -> impl Iterator<Item = (&String, &Arc<GroupRecord>)> {
        self.damaged.iter().filter_map(|id| Some((id, self.groups.get(id)?.record()?)))
    }

    /// The highest epoch or layout number that is known.
    pub fn last_epoch(&self) -> u64 {
        let groups = self
            .groups
            .values()
            .filter_map(GroupState::record)
            .map(|record| record.epoch().max(record.placement.layout));
        let seats = self.seats.values().map(|seat| seat.epoch);
        let workers = self.workers.values().map(|worker| worker.seat.epoch);
        groups.chain(seats).chain(workers).max().unwrap_or(0)
    }
}

/// What became of a key.
enum Change<T> {
    Gone,
    /// Its value cannot be decoded.
    Damaged,
    Value(T),
}

impl<T> Change<T> {
    fn map<U>(self, change: impl FnOnce(T) -> U) -> Change<U> {
        match self {
            Change::Gone => Change::Gone,
            Change::Damaged => Change::Damaged,
            Change::Value(value) => Change::Value(change(value)),
        }
    }

    fn or_gone(self) -> Change<T> {
        if let Change::Damaged = self { Change::Gone } else { self }
    }

    fn replace(self, old: &mut Option<T>) {
        match self {
            Change::Gone => *old = None,
            Change::Damaged => {}
            Change::Value(value) => *old = Some(value),
        }
    }
}

fn set<K: Ord, T>(map: &mut BTreeMap<K, T>, key: K, change: Change<T>) {
    match change {
        Change::Gone => drop(map.remove(&key)),
        Change::Damaged => {}
        Change::Value(value) => drop(map.insert(key, value)),
    }
}

fn read<T: DeserializeOwned>(key: &str, entry: Option<&Entry>) -> Change<T> {
    let Some(entry) = entry else { return Change::Gone };
    // The error would quote the value, which may be long.
    decode(&entry.value).map_or_else(
        |_| {
            tracing::warn!(key, bytes = entry.value.len(), "ignoring a record that cannot be decoded");
            Change::Damaged
        },
        Change::Value,
    )
}
