//! The controller with simulated workers that die, hang, lose connections, return and leave, and a store that may lose
//! all data. Each run is a function of its seed.

mod competing;
mod connectivity;
mod cooldown;
mod domains;
mod layouts;
mod locality;
mod releases;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use rand::{Rng, SeedableRng, rngs::StdRng};

use super::seeds;
use crate::{
    ClusterView, Keys, ModelShape, Placement, Snapshot,
    decide::{Controller, ControllerSettings},
    rebalance::Rebalance,
    records::{ExpertLoad, GroupRecord, Load, RankFailure, Ready, Release, Seat, WorkerRecord, WorkerState, encode},
    store::{Entry, KeyCondition, Transaction, Write},
};

const TICK: Duration = Duration::from_millis(100);
const LEASE: Duration = Duration::from_secs(3);
const SILENCE: Duration = Duration::from_millis(1200);
const JOIN: Duration = Duration::from_secs(10);
const EXPERTS: usize = 8;

fn settings(spares: usize) -> ControllerSettings {
    ControllerSettings { spares, rebalance: Some(Rebalance { above: 1.1, every: Duration::from_secs(5) }) }
}

struct Worker {
    alive: bool,
    stopped: bool,
    /// It cannot reach the store.
    cut: bool,
    record: WorkerRecord,
    links: connectivity::Links,
    member: Option<Membership>,
    heard: Duration,
    /// The keys that it has in the store, or would have.
    keys: BTreeMap<String, Vec<u8>>,
}

struct Membership {
    group: String,
    record: Arc<GroupRecord>,
    rank: usize,
    since: Duration,
    linked: bool,
    over: bool,
    /// Layouts that it has loaded, by number.
    loaded: BTreeMap<u64, Placement>,
    loading: Option<(Duration, Arc<GroupRecord>)>,
    /// The layout that the leader uses.
    used: u64,
}

impl Membership {
    fn new(group: String, record: Arc<GroupRecord>, rank: usize, since: Duration) -> Self {
        let (used, placement) = (record.placement.layout, record.placement.clone());
        let loaded = BTreeMap::from([(used, placement)]);
        Membership { group, record, rank, since, linked: false, over: false, loaded, loading: None, used }
    }

    /// The number of the layout that it loaded last.
    fn layout(&self) -> u64 {
        self.record.placement.layout
    }
}

struct Cluster {
    keys: Keys,
    store: Snapshot,
    workers: BTreeMap<String, Worker>,
    controller: Option<Controller>,
    view: ClusterView,
    now: Duration,
    /// Workers in the store at the beginning of this tick.
    known: BTreeMap<String, WorkerRecord>,
    size: usize,
    /// The last epoch of each group.
    epochs: BTreeMap<String, u64>,
    decisions: usize,
}

fn worker(id: &str, size: usize, incarnation: u64) -> Worker {
    let record = WorkerRecord {
        model: "m".into(),
        fingerprint: "f".into(),
        text: "t".into(),
        revision: None,
        address: format!("{id}:1"),
        mesh: format!("{id}:2"),
        device: "cpu".into(),
        locality: None,
        shape: ModelShape { attention_heads: 12, kv_heads: 12, experts: vec![0, EXPERTS] },
        ranks: 1,
        most_ranks: 2,
        group_size: size,
        redundant_experts: 1,
        domain: None,
        incarnation,
        state: WorkerState::Ready,
        seat: Seat::default(),
        release: Release::default(),
        expires: None,
    };
    Worker {
        alive: true,
        stopped: false,
        cut: false,
        record,
        links: connectivity::Links::default(),
        member: None,
        heard: Duration::ZERO,
        keys: BTreeMap::new(),
    }
}

impl Cluster {
    fn new(workers: usize, size: usize, spares: usize) -> Self {
        let keys = Keys::new("test").expect("a name");
        Cluster {
            store: Snapshot::default(),
            workers: (0..workers).map(|i| (format!("w{i}"), worker(&format!("w{i}"), size, 1))).collect(),
            controller: Some(Controller::new(keys.clone(), settings(spares), 0)),
            view: ClusterView::default(),
            now: Duration::ZERO,
            known: BTreeMap::new(),
            size,
            epochs: BTreeMap::new(),
            decisions: 0,
            keys,
        }
    }

    fn put(&mut self, key: &str, value: Option<Vec<u8>>) {
        let known = self.store.entries.get(key).map(|entry| entry.value.to_vec());
        if known == value {
            return;
        }
        self.store.revision += 1;
        let revision = self.store.revision;
        match value {
            Some(value) => {
                self.store.entries.insert(key.to_owned(), Entry { value: value.into(), revision, lease: None })
            }
            None => self.store.entries.remove(key),
        };
    }

    fn commit(&mut self, transaction: Transaction) -> bool {
        let holds = |condition: &KeyCondition| condition.holds(self.store.entries.get(condition.key()));
        if !transaction.conditions.iter().all(holds) {
            return false;
        }
        assert!(transaction.writes.len() <= 128, "more than etcd takes");
        for write in transaction.writes {
            match write {
                Write::Put { key, value, .. } => self.put(&key, Some(value.to_vec())),
                Write::Delete { key } => self.put(&key, None),
            }
        }
        true
    }

    fn tick(&mut self) {
        self.now += TICK;
        self.known = self.registered();
        let ids: Vec<String> = self.workers.keys().cloned().collect();
        for id in &ids {
            self.link(id);
            self.hear(id);
        }
        for id in &ids {
            let worker = &self.workers[id];
            if self.now > worker.heard + LEASE {
                let is_own = |(key, value): &(&String, &Vec<u8>)| {
                    self.store.entries.get(*key).is_some_and(|entry| entry.value == **value)
                };
                for key in worker.keys.iter().filter(is_own).map(|(key, _)| key.clone()).collect::<Vec<_>>() {
                    self.put(&key, None);
                }
            }
        }
        self.decide();
        self.check();
    }

    /// What the ranks of a group notice of each other.
    fn link(&mut self, id: &str) {
        let now = self.now;
        let runs = |worker: &Worker| worker.alive && !worker.stopped;
        let Some(me) = self.workers.get(id).filter(|me| runs(me)) else { return };
        let Some(member) = me.member.as_ref().filter(|member| !member.over) else { return };
        let with = |other: &crate::records::GroupMember| {
            self.workers.get(&other.worker).filter(|other_worker| {
                let same = other_worker.member.as_ref().is_some_and(|theirs| {
                    // One that gave up waiting for another member was there.
                    let there = !theirs.over || !(theirs.linked || member.linked);
                    there && (&theirs.group, theirs.record.epoch()) == (&member.group, member.record.epoch())
                });
                // An established link stays.
                let open = member.linked || me.links.open && other_worker.links.open;
                (open || other.worker == id)
                    && runs(other_worker)
                    && other_worker.record.incarnation == other.incarnation
                    && same
            })
        };
        let missing = member.record.members.iter().position(|other| with(other).is_none());
        // All members get the first report of why the group ended.
        let told = member.record.members.iter().find_map(|other| {
            let other = self.workers.get(&other.worker).filter(|other| runs(other))?;
            let theirs = other.member.as_ref().filter(|theirs| theirs.over && theirs.linked)?;
            let same = (&theirs.group, theirs.record.epoch()) == (&member.group, member.record.epoch());
            let said = other.keys.get(&self.keys.trouble(&theirs.group, theirs.rank)).filter(|_| same)?;
            let trouble: RankFailure = serde_json::from_slice(said).expect("trouble");
            Some(trouble.suspect)
        });
        let mut end: Option<Option<usize>> = None;
        let join = if me.links.hasty { JOIN.mul_f64(0.98) } else { JOIN };
        let mut linked = member.linked;
        match missing {
            _ if member.linked && told.is_some() => end = told,
            None => linked = true,
            Some(missing) if member.linked && now > member.since + SILENCE => end = Some(Some(missing)),
            Some(missing) if !member.linked && now > member.since + join => end = Some(Some(missing)),
            Some(_) => {}
        }
        let me = self.workers.get_mut(id).expect("known");
        let member = me.member.as_mut().expect("a member");
        if linked && !member.linked {
            (member.linked, member.since) = (true, now);
        }
        let keys = [self.keys.ready(&member.group, member.rank), self.keys.trouble(&member.group, member.rank)];
        let epoch = member.record.epoch();
        if let Some(suspect) = end {
            member.over = true;
            me.keys.remove(&keys[0]);
            let trouble = RankFailure { epoch, suspect, reason: "silent".into() };
            me.keys.insert(keys[1].clone(), encode(&trouble).to_vec());
            self.put(&keys[0], None);
        } else if member.linked {
            let ready = Ready { epoch, layout: member.layout(), worker: id.to_owned() };
            let load = Load { epoch, ..Load::default() };
            if member.rank == 0 {
                me.keys.insert(self.keys.load(&member.group), encode(&load).to_vec());
                let hot = |expert: usize| {
                    100 + 4000 / (1 + (expert as u32 + 3 * crate::epoch::number(epoch) as u32) % EXPERTS as u32)
                };
                let rows = vec![Vec::new(), (0..EXPERTS).map(hot).collect()];
                let load = ExpertLoad { epoch, layout: member.used, rows };
                me.keys.insert(self.keys.experts(&member.group), encode(&load).to_vec());
            }
            me.keys.insert(keys[0].clone(), encode(&ready).to_vec());
        }
    }

    /// A worker that reaches the store publishes its keys and follows its seat.
    fn hear(&mut self, id: &str) {
        let now = self.now;
        let worker = self.workers.get_mut(id).expect("known");
        if !worker.alive || worker.stopped || worker.cut {
            return;
        }
        worker.heard = now;
        let seat: Option<Seat> =
            self.store.entries.get(&self.keys.seat(id)).and_then(|entry| serde_json::from_slice(&entry.value).ok());
        let taken = &worker.record.seat;
        let newer = |seat: &Seat| {
            seat.epoch > taken.epoch || seat.group.is_none() && taken.group.is_some() && seat.epoch == taken.epoch
        };
        if let Some(seat) = seat.filter(newer) {
            let leave = worker.member.take();
            if let Some(member) = leave {
                for key in [
                    self.keys.ready(&member.group, member.rank),
                    self.keys.trouble(&member.group, member.rank),
                    self.keys.load(&member.group),
                    self.keys.experts(&member.group),
                ] {
                    if worker.keys.remove(&key).is_some() {
                        let revision = self.store.revision + 1;
                        if self.store.entries.remove(&key).is_some() {
                            self.store.revision = revision;
                        }
                    }
                }
            }
            match &seat.group {
                None => {
                    worker.record.incarnation += 1;
                    worker.record.seat = seat;
                }
                Some(group) => {
                    let entry = self.store.entries.get(&self.keys.placement(group));
                    let record: Option<GroupRecord> = entry.and_then(|e| serde_json::from_slice(&e.value).ok());
                    if let Some(record) = record.filter(|record| record.epoch() == seat.epoch)
                        && let Some(member) = record.member(id, worker.record.incarnation)
                    {
                        let rank = record.first_rank(member);
                        let (group, record) = (group.clone(), Arc::new(record));
                        worker.member = Some(Membership::new(group, record, rank, now));
                        worker.record.seat = seat;
                    }
                }
            }
        }
        if let Some(member) = worker.member.as_mut().filter(|member| member.linked && !member.over) {
            layouts::lay_out(member, &self.store, &self.keys, now);
        }
        let leaves = worker.record.state == WorkerState::Draining && worker.member.is_none();
        if leaves {
            worker.alive = false;
            for key in std::mem::take(&mut worker.keys).into_keys() {
                self.put(&key, None);
            }
            return;
        }
        worker.keys.insert(self.keys.worker(id), encode(&worker.record).to_vec());
        let leader = worker.member.as_ref().filter(|member| member.rank == 0 && member.linked && !member.over);
        let restored = leader.map(|member| (self.keys.placement(&member.group), member.record.clone()));
        self.report(id);
        for (key, value) in self.workers[id].keys.clone() {
            self.put(&key, Some(value));
        }
        if let Some((key, record)) = restored
            && self.store.entries.get(&key).is_none_or(|entry| {
                serde_json::from_slice::<GroupRecord>(&entry.value).is_ok_and(|stored| stored.epoch() < record.epoch())
            })
        {
            self.put(&key, Some(encode(&*record).to_vec()));
        }
    }

    fn decide(&mut self) {
        self.view.update(&self.keys, &self.store);
        let Some(controller) = &mut self.controller else { return };
        let decisions = controller.decide(&self.view, self.now);
        self.decisions += decisions.len();
        for decision in decisions {
            assert!(self.commit(decision.transaction), "nobody else writes: {}", decision.why);
        }
    }

    fn placements(&self) -> BTreeMap<String, GroupRecord> {
        let read = |(key, entry): (&String, &Entry)| {
            let group = key.strip_prefix(&self.keys.groups())?.strip_suffix("/placement")?;
            Some((group.to_owned(), serde_json::from_slice(&entry.value).expect("a placement")))
        };
        self.store.entries.iter().filter_map(read).collect()
    }

    /// Epoch and members of each group.
    fn seating(&self) -> BTreeMap<String, (u64, Vec<crate::records::GroupMember>)> {
        self.placements().into_iter().map(|(id, record)| (id, (record.epoch(), record.members))).collect()
    }

    /// Invariants of every state.
    fn check(&mut self) {
        self.layouts_agree();
        let placements = self.placements();
        let mut seats: Vec<&str> =
            placements.values().flat_map(|record| record.members.iter().map(|member| member.worker.as_str())).collect();
        let all = seats.len();
        seats.sort_unstable();
        seats.dedup();
        assert_eq!(seats.len(), all, "a worker has two seats: {placements:#?}");
        let mut epochs: Vec<u64> = placements.values().map(GroupRecord::epoch).collect();
        epochs.sort_unstable();
        epochs.dedup();
        assert_eq!(epochs.len(), placements.len(), "two groups have the same epoch");
        // A leader that has not noticed the end of its group may restore its record.
        self.epochs.retain(|id, _| placements.contains_key(id));
        for (id, record) in &placements {
            let mut ranks: Vec<usize> = record.members.iter().flat_map(|member| member.ranks.clone()).collect();
            ranks.sort_unstable();
            assert_eq!(ranks, (0..self.size).collect::<Vec<_>>(), "each rank has one member");
            let room = EXPERTS.div_ceil(self.size) + 1;
            let held: BTreeSet<u32> = record.placement.ranks.iter().flat_map(|rank| rank.experts[1].clone()).collect();
            assert_eq!(held.len(), EXPERTS, "an expert nowhere");
            assert!(self.size == 1 || record.placement.ranks.iter().all(|rank| rank.experts[1].len() <= room));
            assert!(record.members.iter().all(|member| (1..=2).contains(&member.ranks.len())));
            for member in &record.members {
                let worker = self.workers.get(&member.worker).map(|worker| &worker.record);
                let same = worker.filter(|worker| worker.incarnation == member.incarnation);
                assert!(same.is_none_or(|worker| worker.release.protocol == record.protocol), "two releases in {id}");
            }
            let before = self.epochs.insert(id.clone(), record.epoch());
            assert!(
                before.is_none_or(|before| before <= record.epoch()),
                "the epoch of {id} went from {before:?} back to {}",
                record.epoch()
            );
        }
    }

    fn serving(&self) -> usize {
        let view = ClusterView::read(&self.keys, &self.store);
        view.groups.values().filter(|group| group.serves()).count()
    }

    fn full(&self) -> usize {
        let view = ClusterView::read(&self.keys, &self.store);
        let full = |record: &GroupRecord| record.members.len() == self.size;
        view.groups.values().filter(|group| group.serves() && group.record().is_some_and(|record| full(record))).count()
    }

    fn restart(&mut self, id: &str) {
        let incarnation = self.workers[id].record.incarnation + 1000;
        self.workers.insert(id.to_owned(), Worker { heard: self.now, ..worker(id, self.size, incarnation) });
    }

    fn run(&mut self, time: f64) {
        for _ in 0..(time / TICK.as_secs_f64()) as usize {
            self.tick();
        }
    }
}

/// After any sequence of faults, once they are over, all workers serve and nothing changes any more.
fn all_serve_in_the_end(seed: u64) {
    let mut rng = StdRng::seed_from_u64(seed);
    let size = rng.random_range(1..=4);
    let (count, spares) = (rng.random_range(1..=9), rng.random_range(0..=1));
    let mut cluster = Cluster::new(count, size, spares);
    let ids: Vec<String> = cluster.workers.keys().cloned().collect();
    for _ in 0..rng.random_range(1..30) {
        cluster.run(f64::from(rng.random_range(1..80)) / 10.0);
        let id = ids[rng.random_range(0..ids.len())].clone();
        let worker = cluster.workers.get_mut(&id).expect("known");
        match rng.random_range(0..16) {
            0..3 => worker.alive = false,
            3..6 => cluster.restart(&id),
            6..8 => worker.stopped = true,
            8..10 => worker.stopped = false,
            10 => worker.cut = true,
            11 => worker.cut = false,
            12 => worker.record.state = WorkerState::Draining,
            13 => {
                // The store loses its data and restarts its revisions.
                cluster.store = Snapshot { revision: 1, ..Snapshot::default() };
            }
            14 => cluster.controller = None,
            _ => cluster.controller = Some(Controller::new(cluster.keys.clone(), settings(spares), 0)),
        }
    }
    for id in &ids {
        let worker = cluster.workers.get_mut(id).expect("known");
        (worker.stopped, worker.cut) = (false, false);
        if !worker.alive || worker.record.state == WorkerState::Draining {
            cluster.restart(id);
        }
    }
    cluster.controller.get_or_insert(Controller::new(cluster.keys.clone(), settings(spares), 0));
    cluster.run(90.0);
    // The first group may use all workers, without leaving spares.
    let possible = |groups: &usize| *groups <= 1 || groups * size + spares <= count;
    let expected = (0..=count / size).rev().find(possible).expect("0");
    // Spares that replaced lost members may have allowed one more group.
    let most = count / size;
    let state = || ClusterView::read(&cluster.keys, &cluster.store);
    assert!(
        (expected..=most).contains(&cluster.full()),
        "{} of {expected} groups of {size}, {count} workers: {:#?}",
        cluster.full(),
        state()
    );
    assert!(cluster.serving() >= cluster.full());
    let before = cluster.decisions;
    cluster.run(30.0);
    assert_eq!(cluster.decisions, before, "the controller does not stop deciding");
}

#[test]
fn all_workers_serve_after_any_faults_for_all_seeds() {
    seeds(120, all_serve_in_the_end);
}

#[test]
fn a_spare_replaces_a_lost_rank_and_the_others_keep_theirs() {
    let mut cluster = Cluster::new(5, 4, 1);
    cluster.run(8.0);
    assert_eq!(cluster.full(), 1);
    let before = cluster.placements().into_values().next().expect("a group");
    let lost = before.members[2].worker.clone();
    cluster.workers.get_mut(&lost).expect("known").alive = false;
    cluster.run(2.0);
    let after = cluster.placements().into_values().next().expect("a group");
    assert!(after.epoch() > before.epoch() && cluster.full() == 1);
    let names = |record: &GroupRecord| record.members.iter().map(|m| m.worker.clone()).collect::<Vec<_>>();
    assert_eq!(names(&before)[..2], names(&after)[..2]);
    assert_eq!(names(&before)[3], names(&after)[3]);
    assert!(!names(&after).contains(&lost));
}

#[test]
fn without_a_spare_another_member_takes_the_lost_rank() {
    let mut cluster = Cluster::new(4, 4, 0);
    cluster.run(8.0);
    cluster.workers.get_mut("w3").expect("known").stopped = true;
    cluster.run(8.0);
    assert_eq!((cluster.serving(), cluster.full()), (1, 0));
    cluster.workers.get_mut("w3").expect("known").stopped = false;
    cluster.run(8.0);
    assert_eq!((cluster.serving(), cluster.full()), (1, 1));
}

#[test]
fn a_worker_that_only_loses_the_store_keeps_its_seat() {
    let mut cluster = Cluster::new(2, 2, 0);
    cluster.run(8.0);
    let before = cluster.seating();
    for cut in [true, false] {
        cluster.workers.get_mut("w1").expect("known").cut = cut;
        cluster.run(20.0);
        assert_eq!(cluster.seating(), before);
    }
    assert_eq!(cluster.full(), 1);
}

#[test]
fn a_store_that_lost_its_data_is_restored_and_no_seat_changes() {
    let mut cluster = Cluster::new(6, 2, 0);
    cluster.run(8.0);
    let before = cluster.seating();
    assert_eq!(before.len(), 3);
    cluster.store = Snapshot { revision: 1, ..Snapshot::default() };
    for _ in 0..200 {
        cluster.tick();
    }
    assert_eq!(cluster.seating(), before);
    assert_eq!(cluster.full(), 3);
}

/// Routers and workers go on with the last record that could be decoded, and the controller writes it again.
#[test]
fn placements_and_seats_that_cannot_be_decoded_are_written_again() {
    let mut cluster = Cluster::new(4, 2, 0);
    cluster.run(20.0);
    let (seating, serving) = (cluster.seating(), cluster.serving());
    assert_eq!(serving, 2);
    let written = |key: &&String| key.contains("/placement") || key.contains("/seats/");
    let keys: Vec<String> = cluster.store.entries.keys().filter(written).cloned().collect();
    assert_eq!(keys.len(), 2 + 4);
    for key in keys {
        for garbage in ["x", "{}", ""] {
            let before = cluster.store.entries[&key].value.clone();
            cluster.put(&key, Some(garbage.into()));
            cluster.view.update(&cluster.keys, &cluster.store);
            assert_eq!(cluster.view.groups.values().filter(|group| group.serves()).count(), serving, "{key}");
            cluster.run(2.0);
            assert_eq!(cluster.store.entries[&key].value, before, "{key}");
            assert_eq!((cluster.seating(), cluster.serving()), (seating.clone(), serving), "{key}");
        }
    }
}

#[test]
fn a_worker_that_leaves_is_replaced_or_its_group_ends() {
    let mut cluster = Cluster::new(3, 2, 1);
    cluster.run(8.0);
    cluster.workers.get_mut("w0").expect("known").record.state = WorkerState::Draining;
    cluster.run(5.0);
    assert!(!cluster.workers["w0"].alive, "it has not left");
    assert_eq!(cluster.full(), 1);
    cluster.workers.get_mut("w1").expect("known").record.state = WorkerState::Draining;
    cluster.run(40.0);
    assert!(!cluster.workers["w1"].alive, "it has not left");
    // One worker has room for both ranks.
    assert_eq!((cluster.serving(), cluster.full()), (1, 0));
}

#[test]
fn a_worker_that_cannot_load_is_replaced() {
    let mut cluster = Cluster::new(2, 1, 1);
    cluster.run(8.0);
    let (group, before) = cluster.placements().into_iter().next().expect("a group");
    let trouble = RankFailure { epoch: before.epoch(), suspect: Some(0), reason: "cannot load".into() };
    cluster.put(&cluster.keys.trouble(&group, 0), Some(encode(&trouble).to_vec()));
    cluster.run(2.0);
    let after = cluster.placements().remove(&group).expect("the group");
    assert_ne!(after.members[0].worker, before.members[0].worker);
}
