//! Sessions, mirrors and elections under faults; each run is a function of its seed.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use rand::{Rng, SeedableRng, rngs::StdRng};
use tokio::time::Instant;

use super::{etcd::Server, faulty_store::Faulty, intercepted_store::InterceptedStore, seeds, values};
use crate::{
    MemoryStore, Mirror, Session, SharedStore, Store, StoreError, Transaction, campaign, records::Release,
    store::LeaseId,
};

const TTL: Duration = Duration::from_secs(5);

/// Waits on the simulation's clock.
async fn seconds(n: f64) {
    tokio::time::sleep(Duration::from_secs_f64(n)).await;
}

#[tokio::test(start_paused = true)]
async fn keys_exist_as_long_as_their_node() {
    let store = Arc::new(MemoryStore::default());
    let node = Session::new(store.clone(), "node", TTL);
    node.put("/workers/1", "here");
    node.settled().await;
    seconds(60.0).await;
    assert_eq!(values(&store.read("/").await.unwrap())["/workers/1"], "here");
    node.put("/workers/1", "draining");
    node.put("/groups/1/ready/0", "yes");
    node.settled().await;
    node.remove("/workers/1");
    node.settled().await;
    assert_eq!(values(&store.read("/").await.unwrap()), [("/groups/1/ready/0".into(), "yes".into())].into());
    // Dropped without leaving, it stays registered until its lease expires.
    drop(node);
    seconds(1.0).await;
    assert_eq!(store.read("/").await.unwrap().entries.len(), 1);
    seconds(5.0).await;
    assert!(store.read("/").await.unwrap().entries.is_empty());
    // Leaving takes effect at once.
    let node = Session::new(store.clone(), "node", TTL);
    node.put("/workers/1", "here");
    node.settled().await;
    node.leave().await;
    assert!(store.read("/").await.unwrap().entries.is_empty());
}

/// Records renewals, and lets calls fail.
#[derive(Clone, Default)]
struct Renewals {
    store: MemoryStore,
    at: Arc<Mutex<Vec<Instant>>>,
    fail: Arc<AtomicUsize>,
}

#[async_trait]
impl InterceptedStore for Renewals {
    fn inner(&self) -> &dyn Store {
        &self.store
    }

    async fn on_renew(&self, lease: LeaseId) -> Result<(), StoreError> {
        self.at.lock().unwrap().push(Instant::now());
        if self.fail.load(Ordering::Relaxed) > 0 {
            self.fail.fetch_sub(1, Ordering::Relaxed);
            return Err(StoreError::Unavailable("the call was lost".into()));
        }
        self.store.renew(lease).await
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_renewed_after_half_its_ttl_regardless_of_other_updates() {
    let store = Renewals::default();
    // The runtime's timers have a resolution of a millisecond.
    let is = |time: Duration, wanted: Duration| time.abs_diff(wanted) < Duration::from_millis(5);
    for wishes in [0, 1, 20] {
        let began = Instant::now();
        let node = Session::new(Arc::new(store.clone()), "node", TTL);
        node.put("/loads/1", "0");
        node.settled().await;
        for i in 0..20 * wishes {
            node.put("/loads/1", i.to_string());
            seconds(1.0 / wishes as f64).await;
        }
        tokio::time::sleep_until(began + 4 * TTL + TTL / 4).await;
        let at = std::mem::take(&mut *store.at.lock().unwrap());
        assert_eq!(at.len(), 8, "{wishes} wishes a second");
        for (i, at) in (1..).zip(at) {
            assert!(is(at - began, i * TTL / 2), "{wishes} wishes a second: renewal {i} after {:?}", at - began);
        }
        // Retried after half of the remaining time, as long as some remains.
        store.fail.store(4, Ordering::Relaxed);
        seconds(TTL.as_secs_f64()).await;
        let at = std::mem::take(&mut *store.at.lock().unwrap());
        let until = began + 4 * TTL + TTL;
        assert!(at.len() >= 5 && at[4] < until, "{:?}", at.iter().map(|at| *at - began).collect::<Vec<_>>());
        for pair in at[..5].windows(2) {
            assert!(pair[1] - pair[0] <= (until - pair[0]) / 2 + Duration::from_millis(5));
        }
        assert_eq!(node.held().borrow().leases, 1);
        node.leave().await;
    }
}

#[tokio::test(start_paused = true)]
async fn all_keys_are_put_again_after_the_store_lost_its_data() {
    let store = Arc::new(MemoryStore::default());
    let mut mirror = Mirror::new(store.clone(), "router", "/workers/");
    let nodes: Vec<Session> = (0..5).map(|i| Session::new(store.clone(), &format!("node {i}"), TTL)).collect();
    for (i, node) in nodes.iter().enumerate() {
        node.put(format!("/workers/{i}"), "here");
        node.settled().await;
    }
    mirror.read().await;
    seconds(0.5).await;
    assert_eq!(mirror.view().entries.len(), 5);
    store.lose_everything();
    seconds(6.0).await;
    assert_eq!(mirror.view().entries.len(), 5);
    assert_eq!(store.read("/workers/").await.unwrap().entries.len(), 5);
    assert!(nodes.iter().all(|node| node.held().borrow().leases == 2));
}

#[tokio::test(start_paused = true)]
async fn a_deleted_name_is_put_again_with_all_other_keys() {
    let store = Arc::new(MemoryStore::default());
    let node = Session::named(store.clone(), "node", TTL, "/workers/1");
    node.put("/workers/1", "here");
    node.put("/ready/1", "yes");
    node.settled().await;
    store.commit(Transaction::default().delete("/workers/1").delete("/ready/1")).await.unwrap();
    seconds(0.5).await;
    assert_eq!(values(&store.read("/").await.unwrap()).len(), 2);
    assert_eq!(node.held().borrow().leases, 1);
    // Keys that the node has removed meanwhile stay removed, and later values replace its own.
    store.commit(Transaction::default().delete("/workers/1")).await.unwrap();
    node.remove("/ready/1");
    node.put("/workers/1", "draining");
    node.settled().await;
    seconds(0.5).await;
    assert_eq!(values(&store.read("/").await.unwrap()), [("/workers/1".into(), "draining".into())].into());
}

#[tokio::test(start_paused = true)]
async fn a_second_session_waits_for_the_name() {
    let store = Arc::new(MemoryStore::default());
    let [first, second] = ["first", "second"].map(|who| {
        let node = Session::named(store.clone(), who, TTL, "/workers/1");
        node.put("/workers/1", who);
        node
    });
    // A longer name is another name.
    let other = Session::named(store.clone(), "other", TTL, "/workers/10");
    other.put("/workers/10", "other");
    let there = async || values(&store.read("/workers/1").await.unwrap())["/workers/1"].clone();
    second.put("/ready/1", "of the second");
    // However often the first session's value changes.
    for i in 0..30 {
        first.put("/workers/1", format!("first {i}"));
        seconds(1.0).await;
    }
    assert_eq!(there().await, "first 29");
    assert!(store.read("/ready/").await.unwrap().entries.is_empty());
    assert_eq!(second.held().borrow().name_taken_by(TTL).unwrap(), "first 29");
    assert_eq!(first.held().borrow().name_holder, None);
    assert_eq!(other.held().borrow().name_holder, None);
    // After the first session dies, the name is free when its lease expires, and not before.
    drop(first);
    seconds(1.0).await;
    assert_eq!(there().await, "first 29");
    seconds(5.0).await;
    assert_eq!(there().await, "second");
    assert_eq!(second.held().borrow().name_holder, None);
    assert_eq!(values(&store.read("/ready/").await.unwrap())["/ready/1"], "of the second");
    // A holder that is known to be dead is replaced at once; when it returns, it finds the name taken.
    let third = Session::named(store.clone(), "third", TTL, "/workers/1");
    third.put("/workers/1", "third");
    seconds(1.0).await;
    let taken = third.held().borrow().name_holder.clone().unwrap();
    third.replace(&taken);
    seconds(0.1).await;
    assert_eq!(there().await, "third");
    seconds(1.0).await;
    assert_eq!(second.held().borrow().name_holder.as_ref().unwrap().value, "third");
    // That applied only to the value it had seen.
    store.commit(Transaction::default().put("/workers/1", "again", None)).await.unwrap();
    seconds(3.0).await;
    assert_eq!(there().await, "again");
    third.leave().await;
    store.commit(Transaction::default().delete("/workers/1")).await.unwrap();
    seconds(2.0).await;
    assert_eq!(there().await, "second");
    // Overwritten by force, it waits again.
    store.commit(Transaction::default().put("/workers/1", "force", None)).await.unwrap();
    seconds(3.0 * TTL.as_secs_f64() + 2.0).await;
    assert_eq!(second.held().borrow().name_taken_by(TTL).unwrap(), "force");
    assert_eq!(there().await, "force");
    store.commit(Transaction::default().delete("/workers/1")).await.unwrap();
    seconds(0.5).await;
    assert_eq!(there().await, "second");
}

/// A person's or a broken tool's write is no holder. What another process holds under its lease stays, whatever it is.
#[tokio::test(start_paused = true)]
async fn garbage_is_written_over() {
    let store = Arc::new(MemoryStore::default());
    let is_record = |value: &[u8]| value.starts_with(b"node");
    let node = Session::of_record(store.clone(), "node", TTL, "/workers/1", is_record);
    node.put("/workers/1", "node");
    node.put("/ready/1", "ready");
    seconds(1.0).await;
    let value = async |key: &str| values(&store.read("/").await.unwrap()).get(key).cloned().unwrap_or_default();
    let lease = node.held().borrow().lease;
    for lease in [None, lease] {
        for key in ["/workers/1", "/ready/1"] {
            store.commit(Transaction::default().put(key, "x", lease)).await.unwrap();
        }
        seconds(TTL.as_secs_f64()).await;
        assert_eq!((value("/workers/1").await.as_str(), value("/ready/1").await.as_str()), ("node", "ready"));
        assert_eq!(node.held().borrow().name_holder, None);
    }
    let other = store.grant(TTL * 100).await.unwrap();
    for key in ["/workers/1", "/ready/1"] {
        store.commit(Transaction::default().put(key, "x", Some(other))).await.unwrap();
    }
    seconds(2.0 * TTL.as_secs_f64()).await;
    assert_eq!((value("/workers/1").await.as_str(), value("/ready/1").await.as_str()), ("x", "x"));
    assert_eq!(node.held().borrow().name_holder.as_ref().unwrap().value, "x");
}

#[tokio::test(start_paused = true)]
async fn a_holder_counts_as_alive_only_while_the_store_answers() {
    // A stopped store does not expire leases: the holder may have died.
    let memory = MemoryStore::default();
    memory.commit(Transaction::default().put("/workers/1", "before the outage", None)).await.unwrap();
    let store = Arc::new(Faulty::new(memory, 1, 0));
    let node = Session::named(store.clone(), "node", TTL, "/workers/1");
    node.put("/workers/1", "node");
    let held = node.held();
    for _ in 0..6 {
        seconds(2.0 * TTL.as_secs_f64()).await;
        assert_eq!(held.borrow().name_holder.as_ref().unwrap().value, "before the outage");
        assert_eq!(held.borrow().name_taken_by(TTL), None);
        store.outage(TTL);
        seconds(TTL.as_secs_f64()).await;
    }
    seconds(3.0 * TTL.as_secs_f64() + 4.0).await;
    assert_eq!(held.borrow().name_taken_by(TTL).unwrap(), "before the outage");
}

/// Nodes change their keys at random over a faulty store: in the end the store and every mirror have exactly the nodes'
/// keys.
async fn everything_settles(seed: u64) {
    let mut rng = StdRng::seed_from_u64(seed);
    let memory = MemoryStore::default();
    let faulty = Arc::new(Faulty::new(memory.clone(), seed, rng.random_range(0..60)));
    let store: Arc<dyn Store> = match seed % 2 {
        0 => faulty.clone(),
        _ => Arc::new(SharedStore::new(faulty.clone(), "fan", "/k/")),
    };
    let mirrors: Vec<Mirror> = (0..2).map(|i| Mirror::new(store.clone(), &format!("mirror {i}"), "/k/")).collect();
    let name = |i: usize| format!("/k/{i}");
    let node = |i| Session::named(store.clone(), &format!("node {i}"), TTL, name(i));
    let nodes: Vec<Session> = (0..2).map(node).collect();
    let mut rival = None;
    let mut wishes = BTreeMap::new();
    for (i, node) in nodes.iter().enumerate() {
        node.put(name(i), "mine");
        wishes.insert(name(i), "mine".to_owned());
    }
    for _ in 0..rng.random_range(5..40) {
        let node = rng.random_range(0..nodes.len());
        let key = format!("{}/{}", name(node), rng.random_range(0..2));
        if rng.random_bool(0.3) {
            nodes[node].remove(&key);
            wishes.remove(&key);
        } else {
            let value = rng.random_range(0..2).to_string();
            nodes[node].put(key.clone(), value.clone());
            wishes.insert(key, value);
        }
        match rng.random_range(0..20) {
            0 => faulty.outage(Duration::from_secs_f64(rng.random_range(0.1..60.0))),
            1 => memory.lose_everything(),
            2 => memory.compact(memory.read("/").await.unwrap().revision),
            3 => _ = memory.commit(Transaction::default().delete(name(node))).await,
            7 => _ = memory.commit(Transaction::default().delete(format!("{}/0", name(node)))).await,
            4 => _ = memory.commit(Transaction::default().put(name(node), "force", None)).await,
            6 => {
                let held = nodes[node].held();
                if let Some(taken) = &held.borrow().name_holder {
                    nodes[node].replace(taken);
                }
            }
            5 => {
                // Not shared within a process: those nodes share a lease.
                let store =
                    if rng.random_bool(0.5) { faulty.clone() } else { Arc::new(memory.clone()) as Arc<dyn Store> };
                let session = Session::named(store, "rival", TTL, name(node));
                session.put(name(node), "rival");
                session.put(format!("{}/rival", name(node)), "rival");
                rival = Some(session);
            }
            _ => {}
        }
        let pause = if rng.random_bool(0.6) { rng.random_range(0.0..0.2) } else { rng.random_range(0.0..4.0) };
        seconds(pause).await;
    }
    drop(rival);
    for i in 0..nodes.len() {
        let there = values(&memory.read("/").await.unwrap()).remove(&name(i));
        if there.is_some_and(|value| value == "force") {
            memory.commit(Transaction::default().delete(name(i))).await.unwrap();
        }
    }
    // With faults, a lease may expire and a mirror may fall behind at any moment, including the last.
    faulty.heal();
    seconds(120.0).await;
    assert_eq!(values(&memory.read("/k/").await.unwrap()), wishes, "seed {seed}: the store");
    for mirror in &mirrors {
        assert_eq!(values(&mirror.view()), wishes, "seed {seed}: a mirror");
    }
}

/// Candidates over a faulty store: writes of different leaders never interleave, and one leads in the end.
async fn one_leads(seed: u64) {
    let mut rng = StdRng::seed_from_u64(seed);
    let memory = MemoryStore::default();
    let store = Arc::new(Faulty::new(memory.clone(), seed, rng.random_range(0..20)));
    let written = Arc::new(AtomicUsize::new(0));
    let candidates: Vec<_> = (0..3)
        .map(|i| {
            let (store, written) = (store.clone(), written.clone());
            tokio::spawn(async move {
                let name = format!("c{i}");
                let session = Session::new(store.clone(), &name, TTL);
                let (mirror, held) = (Mirror::new(store.clone(), &name, "/"), session.held());
                loop {
                    let leader =
                        campaign(store.clone(), &mirror, &held, "/controller", &name, &Release::default()).await;
                    let rule = async {
                        loop {
                            // A counter that only the current leader may write.
                            let snapshot = store.read("/count").await;
                            if let Ok(snapshot) = snapshot {
                                let count = values(&snapshot).get("/count").map_or(0, |n| n.parse::<u64>().unwrap());
                                let next = format!("{} {name}", count + 1);
                                let write = Transaction::default()
                                    .when(leader.condition())
                                    .put("/count", (count + 1).to_string(), None)
                                    .put(format!("/log/{:06}", count + 1), next, None);
                                match store.commit(write).await {
                                    Ok(Some(_)) => _ = written.fetch_add(1, Ordering::Relaxed),
                                    Ok(None) => return,
                                    Err(_) => {}
                                }
                            }
                            seconds(0.2).await;
                        }
                    };
                    tokio::select! {
                        biased;
                        () = leader.lost(&mirror, &held) => {}
                        () = rule => {}
                    }
                }
            })
        })
        .collect();
    for _ in 0..5 {
        seconds(rng.random_range(1.0..20.0)).await;
        match rng.random_range(0..4) {
            0 => candidates[rng.random_range(0..2)].abort(),
            1 => store.outage(Duration::from_secs_f64(rng.random_range(1.0..30.0))),
            _ => {}
        }
    }
    seconds(60.0).await;
    let before = written.load(Ordering::Relaxed);
    seconds(20.0).await;
    assert!(written.load(Ordering::Relaxed) > before, "seed {seed}: nobody leads");
    let log = memory.read("/log/").await.unwrap();
    let count = memory.read("/count").await.unwrap();
    assert_eq!(log.entries.len().to_string(), values(&count)["/count"], "seed {seed}: an entry was written twice");
}

#[tokio::test(start_paused = true)]
async fn a_leader_leads_until_it_leaves() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let name = |i: usize| format!("c{i}");
    let sessions: Vec<Session> = (0..3).map(|i| Session::new(store.clone(), &name(i), TTL)).collect();
    let mirror = Mirror::new(store.clone(), "observer", "/controller");
    let mut elected = tokio::task::JoinSet::new();
    for (i, session) in sessions.iter().enumerate() {
        let (store, mirror, held) = (store.clone(), mirror.clone(), session.held());
        elected.spawn(async move {
            (i, campaign(store, &mirror, &held, "/controller", &name(i), &Release::default()).await)
        });
    }
    let (first, leadership) = elected.join_next().await.unwrap().unwrap();
    let held = sessions[first].held();
    let lost = tokio::time::timeout(Duration::from_secs(60), leadership.lost(&mirror, &held));
    assert!(lost.await.is_err(), "nobody takes it from one who holds it");
    assert!(elected.try_join_next().is_none());
    let mut sessions: Vec<Option<Session>> = sessions.into_iter().map(Some).collect();
    sessions[first].take().unwrap().leave().await;
    let next = tokio::time::timeout(Duration::from_secs(2), elected.join_next()).await;
    let (second, _) = next.expect("it is taken up at once").unwrap().unwrap();
    assert_ne!(first, second);
}

#[tokio::test(start_paused = true)]
async fn a_campaign_without_a_lease_waits_without_spinning() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let sessions = [0, 1].map(|i| Session::new(store.clone(), &format!("c{i}"), TTL));
    let mirror = Mirror::new(store.clone(), "observer", "/controller");
    let held = sessions[0].held();
    campaign(store.clone(), &mirror, &held, "/controller", "c0", &Release::default()).await;
    let [_first, second] = sessions;
    second.settled().await;
    let held = second.held();
    drop(second);
    // A spinning task would stop the simulation's clock.
    let won =
        tokio::time::timeout(TTL, campaign(store, &mirror, &held, "/controller", "c1", &Release::default())).await;
    assert!(won.is_err(), "{won:?}");
}

fn paused(run: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("a runtime").block_on(run);
}

#[test]
fn sessions_settle_under_any_store_faults_for_all_seeds() {
    seeds(1000, |seed| paused(everything_settles(seed)));
}

#[test]
fn elections_have_one_winner_under_any_store_faults_for_all_seeds() {
    seeds(300, |seed| paused(one_leads(seed)));
}

#[tokio::test]
async fn sessions_survive_an_etcd_that_stops_and_one_that_loses_its_data() {
    let mut server = Server::start();
    let store = server.store();
    let node = Session::new(store.clone(), "node", Duration::from_secs(3));
    node.put("/rein/test/workers/1", "here");
    node.settled().await;
    let mut mirror = Mirror::new(store.clone(), "router", "/rein/test/");
    assert_eq!(mirror.read().await.entries.len(), 1);
    // Stopped for longer than the lease: the last known state stays.
    server.stop();
    let forgot = tokio::time::timeout(Duration::from_secs(4), mirror.changed()).await;
    assert!(forgot.is_err(), "{forgot:?}");
    server.resume();
    node.put("/rein/test/workers/1", "still here");
    node.settled().await;
    while values(&mirror.view())["/rein/test/workers/1"] != "still here" {
        mirror.changed().await;
    }
    // Restarted without data: keys are put again under a new lease, and the mirror follows although revisions start
    // over.
    let leases = node.held().borrow().leases;
    server.lose_everything();
    server.resume();
    let mut held = node.held();
    held.wait_for(|held| held.leases > leases && held.applied > 0).await.unwrap();
    node.put("/rein/test/workers/1", "again");
    node.settled().await;
    while mirror.view().entries.get("/rein/test/workers/1").is_none_or(|entry| entry.value != "again") {
        mirror.changed().await;
    }
}
