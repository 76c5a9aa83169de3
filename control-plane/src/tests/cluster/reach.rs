//! Workers that cannot link with others: they come, are spares, and stop nobody.

use super::*;
use crate::reach::{Attempt, LinkReport, Reach, peers};

/// How long a worker tries before it gives up.
const TRY: Duration = Duration::from_secs(2);

/// How a worker is linked with others.
pub struct Links {
    /// Others can link with it, and it with them.
    pub open: bool,
    /// It and others report what is so; else they all report that it is open.
    honest: bool,
    /// Its peers, by incarnation, since when it has known them.
    met: BTreeMap<String, (u64, bool, Duration)>,
    said: Option<LinkReport>,
}

impl Default for Links {
    fn default() -> Self {
        Links { open: true, honest: true, met: BTreeMap::new(), said: None }
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

    /// A worker tries its peers: it knows at once that it can link with one, and later that it cannot.
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
                report.tried.insert(peer.to_owned(), Attempt { incarnation, failure });
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
fn a_spare_with_which_nobody_can_link_gets_no_seat() {
    // Its name comes before, and after, that of the good one; it has come before, or just now.
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
fn beside_bad_spares_only_the_survivors_stand_in() {
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
    assert_eq!(cluster.decisions, decisions, "it is put together anew for spares that are of no use");
    // A good one is taken at once.
    cluster.add("w5", Links::default());
    cluster.run(1.0);
    assert_eq!(cluster.full(), 1);
    cluster.only_good();
    // And so is one that has been mended.
    cluster.kill("w5");
    cluster.run(5.0);
    cluster.workers.get_mut("z").expect("known").links.open = true;
    cluster.run(5.0);
    assert_eq!(cluster.full(), 1);
}

/// Where no member has room for a second rank, the group waits for somebody it can link with.
#[test]
fn without_room_a_group_is_over_until_somebody_comes() {
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

/// A member that is cut off after its group has linked keeps its seat while nothing else happens; then others take over.
#[test]
fn a_member_with_which_no_spare_can_link_makes_room_for_them() {
    let mut cluster = Cluster::new(4, 2, 2);
    cluster.workers.values_mut().for_each(|worker| worker.record.most_ranks = 1);
    cluster.run(8.0);
    let members = cluster.members();
    // What is linked stays linked in this epoch: nobody is silent.
    cluster.workers.get_mut(&members[0]).expect("known").links.open = false;
    cluster.run(TRY.as_secs_f64() + 1.0);
    assert_eq!(cluster.members(), members);
    cluster.kill(&members[1]);
    cluster.run(2.0);
    assert_eq!(cluster.full(), 1);
    cluster.only_good();
}

/// It answers probes and never joins a group.
#[test]
fn a_spare_that_never_joins_comes_after_others_and_ever_more_rarely() {
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
    // The survivor serves alone, but for 10 s now and then.
    assert!(serves > minutes * 9 / 10, "{serves} of {minutes} s");
}

#[test]
fn a_member_whose_certificate_has_expired_is_replaced_if_somebody_can_take_its_place() {
    let mut cluster = Cluster::new(2, 2, 0);
    cluster.run(8.0);
    let before = cluster.seating();
    cluster.workers.get_mut("w1").expect("known").record.expires = Some(20);
    cluster.run(30.0);
    assert_eq!(cluster.seating(), before, "it serves on over what is open");
    cluster.add("w2", Links::default());
    cluster.run(3.0);
    assert_eq!((cluster.full(), cluster.members()), (1, vec!["w0".to_owned(), "w2".to_owned()]));
    // It is no spare.
    cluster.kill("w2");
    cluster.run(20.0);
    assert_eq!((cluster.serving(), cluster.members()), (1, vec!["w0".to_owned()]));
    cluster.workers.get_mut("w1").expect("known").record.expires = Some(1000);
    cluster.run(3.0);
    assert_eq!(cluster.full(), 1, "it has a new one");
}

/// It died, and its group had served: when it is back it is taken at once, however often that happens.
#[test]
fn a_worker_that_is_started_again_is_not_to_blame() {
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
fn a_drain_waits_for_no_spare_that_is_of_no_use() {
    let mut cluster = Cluster::new(2, 2, 1);
    cluster.run(8.0);
    cluster.add_bad("a");
    cluster.run(8.0);
    cluster.workers.get_mut("w1").expect("known").record.state = WorkerState::Draining;
    cluster.run(5.0);
    cluster.only_good();
    assert_eq!(cluster.serving(), 1);
}

/// Good workers die, hang and come back among bad ones: whenever it is calm, all good ones serve.
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
    // Longer than anybody is blamed for what has happened in so short a time.
    cluster.run(240.0);
    let view = View::read(&cluster.keys, &cluster.store);
    let reach = Reach::new(&view);
    let state = || ids.iter().map(|id| (id, reach.why(id))).collect::<Vec<_>>();
    let groups = cluster.full();
    assert!(groups >= 1, "no whole group of {size} among {good} good workers: {:?} {view:#?}", state());
    let before = cluster.decisions;
    cluster.run(30.0);
    assert_eq!(cluster.decisions, before, "the controller does not come to rest");
}

#[test]
fn whatever_happens_bad_members_stop_nobody() {
    seeds(40, bad_members_stop_nobody);
}

#[test]
fn each_worker_is_tried_by_a_bounded_number_of_peers_and_tries_the_same() {
    for count in [1, 2, 5, 17, 18, 40] {
        let workers: BTreeMap<String, WorkerRecord> =
            (0..count).map(|i| (format!("w{i:02}"), worker("w", 2, 1).record)).collect();
        for id in workers.keys() {
            let tried = peers(id, &workers);
            assert_eq!(tried.len(), (count - 1).min(crate::limits::PROBED));
            assert!(tried.iter().all(|peer| *peer != id && peers(peer, &workers).contains(&id.as_str())));
        }
    }
    // Whoever holds all ranks of its group links with nobody, and those of another model are no peers.
    let mut workers: BTreeMap<String, WorkerRecord> =
        (0..3).map(|i| (format!("w{i}"), worker("w", 1, 1).record)).collect();
    assert!(peers("w0", &workers).is_empty());
    workers.values_mut().for_each(|worker| worker.group_size = 2);
    workers.get_mut("w1").expect("known").model = "another".into();
    assert_eq!(peers("w0", &workers), ["w2"]);
}
