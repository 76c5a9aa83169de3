//! Workers that cannot link with others: they register, stay spare, and block no group.

use super::*;
use crate::connectivity::{Connectivity, peers};
use crate::records::{LinkAttempt, LinkReport};

/// Duration of a failed probe.
const TRY: Duration = Duration::from_secs(2);

/// The links of a worker.
pub struct Links {
    /// Others can link with it, and it with them.
    pub open: bool,
    /// It and its peers report the truth; otherwise they all report that the link is open.
    honest: bool,
    /// It reports that its group did not form before its peers do.
    pub hasty: bool,
    /// Its peers, by incarnation, and since when it knows them.
    met: BTreeMap<String, (u64, bool, Duration)>,
    said: Option<LinkReport>,
}

impl Default for Links {
    fn default() -> Self {
        Links { open: true, honest: true, hasty: false, met: BTreeMap::new(), said: None }
    }
}

impl Cluster {
    pub fn registered(&self) -> BTreeMap<String, WorkerRecord> {
        let read = |(key, entry): (&String, &Entry)| {
            let name = key.strip_prefix(self.keys.root())?.strip_prefix("workers/")?;
            Some((name.to_owned(), serde_json::from_slice(&entry.value).expect("a worker")))
        };
        self.store.entries.iter().filter_map(read).collect()
    }

    /// A worker probes its peers: a success is known at once, a failure after `TRY`.
    pub fn report(&mut self, id: &str) {
        let seen = &self.known;
        let me = &self.workers[id];
        let mut met = BTreeMap::new();
        let mut report = LinkReport::default();
        for peer in peers(id, seen) {
            let (other, incarnation) = (&self.workers[peer], seen[peer].incarnation);
            let honest = me.links.honest && other.links.honest;
            let open = !honest || me.links.open && other.links.open && other.alive && !other.stopped;
            let known = me.links.met.get(peer).filter(|(n, was, _)| (*n, *was) == (incarnation, open));
            let since = known.map_or(self.now, |(_, _, since)| *since);
            met.insert(peer.to_owned(), (incarnation, open, since));
            if open || self.now >= since + TRY {
                let failure = (!open).then(|| "no answer".to_owned());
                report.tried.insert(peer.to_owned(), LinkAttempt { incarnation, failure });
            }
        }
        let key = self.keys.links(id);
        let me = self.workers.get_mut(id).expect("known");
        me.links.met = met;
        if me.record.ranks < me.record.group_size && me.links.said.as_ref() != Some(&report) {
            me.keys.insert(key, encode(&report).to_vec());
            me.links.said = Some(report);
        }
    }

    fn add(&mut self, id: &str, links: Links) {
        let mut added = worker(id, self.size, 1);
        (added.links, added.heard) = (links, self.now);
        self.workers.insert(id.to_owned(), added);
    }

    fn add_bad(&mut self, id: &str) {
        self.add(id, Links { open: false, ..Links::default() });
    }

    fn kill(&mut self, id: &str) {
        self.workers.get_mut(id).expect("known").alive = false;
    }

    fn members(&self) -> Vec<String> {
        let placements = self.placements();
        placements.values().flat_map(|record| record.members.iter().map(|member| member.worker.clone())).collect()
    }

    fn only_good(&self) {
        let members = self.members();
        let bad: Vec<&String> = members.iter().filter(|id| !self.workers[*id].links.open).collect();
        assert!(bad.is_empty() || members.len() == 1, "{bad:?} have seats");
    }
}

#[test]
fn an_unreachable_spare_gets_no_seat() {
    // Its name sorts before or after the good spare's; it registered earlier or just now.
    for (bad, before) in [("a", 8.0), ("z", 8.0), ("a", 0.1), ("z", 0.1)] {
        let mut cluster = Cluster::new(3, 2, 1);
        cluster.run(8.0);
        cluster.add_bad(bad);
        cluster.run(before);
        let lost = cluster.members().remove(1);
        cluster.kill(&lost);
        cluster.run(1.9);
        assert_eq!(cluster.full(), 1, "{bad}, {before} s before: a good spare takes the seat at once");
        cluster.only_good();
    }
}

#[test]
fn with_only_unreachable_spares_survivors_take_the_lost_rank() {
    let mut cluster = Cluster::new(2, 2, 1);
    cluster.run(8.0);
    for bad in ["a", "b", "z"] {
        cluster.add_bad(bad);
    }
    cluster.run(8.0);
    cluster.kill("w1");
    cluster.run(2.0);
    assert_eq!((cluster.serving(), cluster.full()), (1, 0));
    cluster.run(8.0);
    let decisions = cluster.decisions;
    cluster.run(120.0);
    assert_eq!((cluster.serving(), cluster.members()), (1, vec!["w0".to_owned()]));
    assert_eq!(cluster.decisions, decisions, "the group changes for unreachable spares");
    // A reachable spare is used at once.
    cluster.add("w5", Links::default());
    cluster.run(1.0);
    assert_eq!(cluster.full(), 1);
    cluster.only_good();
    // And so is a repaired one.
    cluster.kill("w5");
    cluster.run(5.0);
    cluster.workers.get_mut("z").expect("known").links.open = true;
    cluster.run(5.0);
    assert_eq!(cluster.full(), 1);
}

/// If no member has room for a second rank, the group waits for a worker that it can link with.
#[test]
fn without_room_a_group_ends_until_a_worker_registers() {
    let mut cluster = Cluster::new(2, 2, 0);
    cluster.workers.values_mut().for_each(|worker| worker.record.most_ranks = 1);
    cluster.run(8.0);
    cluster.add_bad("a");
    cluster.workers.get_mut("a").expect("known").record.most_ranks = 1;
    cluster.run(8.0);
    cluster.kill("w1");
    cluster.run(20.0);
    assert_eq!(cluster.members(), Vec::<String>::new());
    cluster.add("x", Links::default());
    cluster.run(2.0);
    assert_eq!(cluster.full(), 1);
    cluster.only_good();
}

/// A member that is cut off after its group has linked keeps its seat until the group changes for another reason.
#[test]
fn a_member_that_no_spare_can_link_with_is_replaced() {
    let mut cluster = Cluster::new(4, 2, 2);
    cluster.workers.values_mut().for_each(|worker| worker.record.most_ranks = 1);
    cluster.run(8.0);
    let members = cluster.members();
    // Established links stay in this epoch, so no member is silent.
    cluster.workers.get_mut(&members[0]).expect("known").links.open = false;
    cluster.run(TRY.as_secs_f64() + 1.0);
    assert_eq!(cluster.members(), members);
    cluster.kill(&members[1]);
    cluster.run(2.0);
    assert_eq!(cluster.full(), 1);
    cluster.only_good();
}

/// It answers probes but never joins a group.
#[test]
fn a_spare_that_never_joins_is_tried_last_and_less_and_less_often() {
    let mut cluster = Cluster::new(3, 2, 1);
    cluster.run(8.0);
    cluster.add("a", Links { open: false, honest: false, ..Links::default() });
    cluster.run(8.0);
    let lost = cluster.members().remove(1);
    cluster.kill(&lost);
    cluster.run(30.0);
    assert_eq!(cluster.full(), 1, "the good spare has its turn");
    cluster.only_good();
    let lost = cluster.members().into_iter().find(|id| id != "w0").expect("another");
    cluster.kill(&lost);
    let (mut serves, minutes) = (0, 20 * 60);
    for _ in 0..minutes {
        cluster.run(1.0);
        serves += cluster.serving();
    }
    // The survivor serves alone, except for 10 s now and then.
    assert!(serves > minutes * 9 / 10, "{serves} of {minutes} s");
}

/// At rank 0 it reports another rank first, and then all others report it.
#[test]
fn a_newcomer_that_nobody_can_link_with_costs_no_good_member() {
    for size in [2, 3, 4] {
        let mut cluster = Cluster::new(size, size, 1);
        cluster.run(8.0);
        cluster.add("a", Links { open: false, honest: false, hasty: true, ..Links::default() });
        cluster.run(8.0);
        cluster.kill("w0");
        let good: Vec<String> = (1..size).map(|i| format!("w{i}")).collect();
        let mut first = None;
        for second in 0..60 {
            cluster.run(1.0);
            let members = cluster.members();
            assert!(good.iter().all(|id| members.contains(id)), "{size}, {second} s: {members:?}");
            first = first.or((cluster.serving() == 1 && members == good).then_some(second));
        }
        // One attempt takes `JOIN`.
        assert!(first.is_some_and(|first| first < 15), "{size}: {first:?}");
    }
}

#[test]
fn a_member_with_an_expired_certificate_is_replaced_if_a_spare_exists() {
    let mut cluster = Cluster::new(2, 2, 0);
    cluster.run(8.0);
    let before = cluster.seating();
    cluster.workers.get_mut("w1").expect("known").record.expires = Some(20);
    cluster.run(30.0);
    assert_eq!(cluster.seating(), before, "it keeps serving over open connections");
    cluster.add("w2", Links::default());
    cluster.run(3.0);
    assert_eq!((cluster.full(), cluster.members()), (1, vec!["w0".to_owned(), "w2".to_owned()]));
    // It cannot be a spare.
    cluster.kill("w2");
    cluster.run(20.0);
    assert_eq!((cluster.serving(), cluster.members()), (1, vec!["w0".to_owned()]));
    cluster.workers.get_mut("w1").expect("known").record.expires = Some(1000);
    cluster.run(3.0);
    assert_eq!(cluster.full(), 1, "it has a new one");
}

/// It died after its group had served: when it returns it is used at once, however often that happens.
#[test]
fn a_restarted_worker_is_not_blamed() {
    let mut cluster = Cluster::new(2, 2, 0);
    cluster.run(8.0);
    for _ in 0..5 {
        cluster.kill("w1");
        cluster.run(2.0);
        assert_eq!((cluster.serving(), cluster.full()), (1, 0));
        cluster.restart("w1");
        cluster.run(18.0);
        assert_eq!(cluster.full(), 1);
        cluster.run(40.0);
    }
}

#[test]
fn a_drain_does_not_wait_for_an_unreachable_spare() {
    let mut cluster = Cluster::new(2, 2, 1);
    cluster.run(8.0);
    cluster.add_bad("a");
    cluster.run(8.0);
    cluster.workers.get_mut("w1").expect("known").record.state = WorkerState::Draining;
    cluster.run(5.0);
    cluster.only_good();
    assert_eq!(cluster.serving(), 1);
}

/// Good workers die, hang and return among bad ones: without faults, all good ones serve.
fn bad_members_stop_nobody(seed: u64) {
    let mut rng = StdRng::seed_from_u64(seed);
    let size = rng.random_range(2..=4);
    let (good, bad) = (size + rng.random_range(0..=4), rng.random_range(1..=4));
    let mut cluster = Cluster::new(good, size, rng.random_range(0..=1));
    let mut ids: Vec<String> = cluster.workers.keys().cloned().collect();
    // Among the good ones in the order of names.
    let names: Vec<String> = (0..bad).map(|i| format!("{}{i}", ["a", "w1", "z"][rng.random_range(0..3)])).collect();
    let names: Vec<String> = names.into_iter().filter(|name| !ids.contains(name)).collect();
    for _ in 0..rng.random_range(1..20) {
        cluster.run(f64::from(rng.random_range(1..80)) / 10.0);
        let id = ids[rng.random_range(0..ids.len())].clone();
        let worker = cluster.workers.get_mut(&id).expect("known");
        let is_good = worker.links.open;
        match rng.random_range(0..10) {
            0..3 => worker.alive = false,
            3..5 if is_good => cluster.restart(&id),
            5 => worker.stopped = true,
            6 => worker.stopped = false,
            7 => cluster.store = Snapshot { revision: 1, ..Snapshot::default() },
            8 => cluster.controller = Some(Controller::new(cluster.keys.clone(), settings(0), 0)),
            _ => {
                let name = names.get(rng.random_range(0..names.len().max(1)));
                if let Some(name) = name {
                    cluster.add_bad(name);
                    if !ids.contains(name) {
                        ids.push(name.clone());
                    }
                }
            }
        }
    }
    for id in &ids {
        let worker = cluster.workers.get_mut(id).expect("known");
        worker.stopped = false;
        if !worker.alive && worker.links.open {
            cluster.restart(id);
        }
    }
    // Longer than any worker stays blamed for faults in such a short time.
    cluster.run(240.0);
    let view = ClusterView::read(&cluster.keys, &cluster.store);
    let connectivity = Connectivity::new(&view);
    let state = || ids.iter().map(|id| (id, connectivity.seat_refusal_reasons(id))).collect::<Vec<_>>();
    let groups = cluster.full();
    assert!(groups >= 1, "no whole group of {size} among {good} good workers: {:?} {view:#?}", state());
    let before = cluster.decisions;
    cluster.run(30.0);
    assert_eq!(cluster.decisions, before, "the controller does not stop deciding");
}

#[test]
fn bad_members_never_block_good_ones_for_all_seeds() {
    seeds(40, bad_members_stop_nobody);
}

#[test]
fn each_worker_probes_a_bounded_number_of_peers_which_probe_it() {
    for count in [1, 2, 5, 17, 18, 40] {
        let workers: BTreeMap<String, WorkerRecord> =
            (0..count).map(|i| (format!("w{i:02}"), worker("w", 2, 1).record)).collect();
        for id in workers.keys() {
            let tried = peers(id, &workers);
            assert_eq!(tried.len(), (count - 1).min(crate::limits::PROBED_PEERS));
            assert!(tried.iter().all(|peer| *peer != id && peers(peer, &workers).contains(&id.as_str())));
        }
    }
    // A worker with all ranks of its group needs no links, and workers of another model are no peers.
    let mut workers: BTreeMap<String, WorkerRecord> =
        (0..3).map(|i| (format!("w{i}"), worker("w", 1, 1).record)).collect();
    assert!(peers("w0", &workers).is_empty());
    workers.values_mut().for_each(|worker| worker.group_size = 2);
    workers.get_mut("w1").expect("known").model = "another".into();
    assert_eq!(peers("w0", &workers), ["w2"]);
}
