use std::collections::BTreeMap;

use rein_control_plane::records::{GroupMember, GroupRecord, Release, encode};
use rein_control_plane::{MemoryStore, Placement, RankPlacement, Transaction};
use rein_proto::internal::EventsRequest;
use rein_proto::internal::engine_client::EngineClient;
use tokio::time::timeout;
use tonic::Code;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use super::*;
use crate::service::{self, EngineService};
use crate::sim::{Sim, SimOptions};

/// A worker whose state the test sets.
struct Worker {
    store: Arc<dyn Store>,
    keys: Keys,
    switch: EngineSwitch,
    readiness: Readiness,
}

impl Worker {
    fn new() -> Self {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
        let (keys, switch) = (Keys::new("test").unwrap(), EngineSwitch::default());
        let readiness = Readiness::of(store.clone(), keys.clone(), "w", switch.clone());
        Worker { store, keys, switch, readiness }
    }

    async fn put(&self, key: String, value: impl serde::Serialize) {
        let put = Transaction::default().put(key, encode(&value), None);
        self.store.commit(put).await.unwrap().unwrap();
    }

    async fn delete(&self, key: String) {
        self.store.commit(Transaction::default().delete(key)).await.unwrap().unwrap();
    }

    async fn router(&self, draining: bool) {
        let record = RouterRecord {
            http: String::new(),
            grpc: String::new(),
            in_flight: 0,
            draining,
            expects: Vec::new(),
            expires: None,
            lost_calls: BTreeMap::new(),
            release: Release::default(),
        };
        self.put(self.keys.router("r"), record).await;
    }

    fn leads(&self) -> EngineService {
        let sim = Sim::new(SimOptions { blocks: 10, block_size: 4, ..SimOptions::default() });
        let engine = service::start(Box::new(sim), Default::default());
        self.switch.set(Some(engine.clone()));
        self.switch.publish_standing(WorkerStanding::Leads, 7);
        engine
    }

    /// Waits for this verdict, and checks that the health service agrees.
    async fn becomes(&self, ready: bool, why: &str) {
        let mut verdict = self.readiness.verdict.clone();
        let wait = timeout(Duration::from_secs(5), verdict.wait_for(|v| (v.ready, v.why) == (ready, why)));
        // Drops the borrow, which would block the readiness task.
        let came = wait.await.is_ok();
        assert!(came, "{:?} and not {:?}", self.readiness.verdict(), (ready, why));
        // The health service is updated after the verdict.
        tokio::task::yield_now().await;
        let status = if ready { ServingStatus::Serving } else { ServingStatus::NotServing };
        for service in ["", "rein.internal.v1.Engine"] {
            assert_eq!(self.asked(service).await, Ok(status as i32));
        }
    }

    async fn asked(&self, service: &str) -> Result<i32, Code> {
        let mut client = HealthClient::new(self.readiness.clone().into_server());
        let answer = client.check(HealthCheckRequest { service: service.into() }).await;
        answer.map(|answer| answer.into_inner().status).map_err(|status| status.code())
    }
}

#[tokio::test(start_paused = true)]
async fn a_spare_is_ready_after_the_controller_could_have_assigned_a_seat() {
    let worker = Worker::new();
    worker.becomes(false, "not registered in the store").await;
    assert_eq!(worker.asked("another").await, Err(Code::NotFound));
    worker.switch.publish_standing(WorkerStanding::Spare, 0);
    worker.becomes(false, "waiting for a seat").await;
    // Setting the same state again does not restart the wait.
    tokio::time::advance(SPARE_WAIT / 2).await;
    worker.switch.publish_standing(WorkerStanding::Spare, 0);
    tokio::time::advance(SPARE_WAIT / 2 + CHECK_INTERVAL).await;
    worker.becomes(true, "a spare").await;
    worker.switch.publish_standing(WorkerStanding::Seating, 1);
    worker.becomes(false, "taking a seat, or waiting for the controller after its group ended").await;
    worker.switch.publish_standing(WorkerStanding::Spare, 1);
    worker.becomes(false, "waiting for a seat").await;
    for (standing, why) in [
        (WorkerStanding::Away, "loading failed; the worker is unavailable for a while"),
        (WorkerStanding::Leaving, "the worker is leaving"),
    ] {
        worker.switch.publish_standing(standing, 1);
        tokio::time::advance(SPARE_WAIT * 2).await;
        worker.becomes(false, why).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_leader_is_ready_with_a_connected_router_or_in_a_cluster_without_routers() {
    let worker = Worker::new();
    let engine = worker.leads();
    worker.becomes(true, "leader; the cluster has no routers").await;
    worker.router(true).await;
    worker.becomes(true, "leader; the cluster has no routers").await;
    worker.router(false).await;
    worker.becomes(false, "leader, but no router is connected yet").await;
    let mut client = EngineClient::new(engine.clone().into_server());
    let events = client.events(EventsRequest { interval_ms: 1000 }).await.unwrap();
    worker.becomes(true, "leader, and routers are connected").await;
    // A router that is missing from the store but connected counts.
    worker.delete(worker.keys.router("r")).await;
    worker.becomes(true, "leader, and routers are connected").await;
    worker.router(false).await;
    drop(events);
    worker.becomes(false, "leader, but no router is connected yet").await;
    worker.switch.set(None);
    worker.becomes(false, "the engine is lost").await;
}

#[tokio::test(start_paused = true)]
async fn a_follower_is_ready_while_all_ranks_of_its_group_are() {
    let worker = Worker::new();
    let member = |rank: usize| GroupMember {
        worker: format!("w{rank}"),
        incarnation: 1,
        address: String::new(),
        mesh: String::new(),
        ranks: vec![rank],
    };
    let rank = |rank| RankPlacement { rank, heads: 0..1, kv_heads: 0..1, experts: Vec::new() };
    let record = Arc::new(GroupRecord {
        model: "m".into(),
        fingerprint: String::new(),
        text: String::new(),
        revision: None,
        group_size: 2,
        domain: None,
        members: vec![member(0), member(1)],
        placement: Placement { epoch: 5, layout: 0, ranks: vec![rank(0), rank(1)] },
        draining: false,
        out: Vec::new(),
        protocol: 0,
    });
    let (waits, whole) = ("waiting for other ranks of its group", "follower in a complete group");
    worker.switch.publish_standing(WorkerStanding::Follows { group: "g".into(), record }, 5);
    worker.becomes(false, waits).await;
    let ready = |epoch| Ready { epoch, layout: 0, worker: String::new() };
    worker.put(worker.keys.ready("g", 1), ready(5)).await;
    worker.put(worker.keys.ready("g", 0), ready(4)).await;
    worker.put(worker.keys.ready("other", 0), ready(5)).await;
    worker.becomes(false, waits).await;
    worker.put(worker.keys.ready("g", 0), ready(5)).await;
    worker.becomes(true, whole).await;
    worker.delete(worker.keys.ready("g", 1)).await;
    worker.becomes(false, waits).await;
}
