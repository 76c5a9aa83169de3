//! Pools of many engines, some of which never answer.

use std::{convert::Infallible, future::pending, time::Duration};

use rein_proto::internal::engine_server::EngineServer;
use tokio::time::{Instant, sleep};
use tonic::body::Body;

use super::fake::Fake;
use crate::{
    RoutePolicy,
    fleet::{
        pool::{EngineHandle, EngineListing, EnginePool, EngineRequest, Standing},
        transport::{EngineTransport, transport},
    },
    limits,
};

/// An engine at this address accepts calls and never answers.
const SILENT: &str = "silent";

fn dial(address: &str) -> Option<EngineTransport> {
    let silent = |_: http::Request<Body>| pending::<Result<http::Response<Body>, Infallible>>();
    Some(match address {
        SILENT => transport(tower::service_fn(silent)),
        _ => transport(EngineServer::new(Fake::default())),
    })
}

fn listing(group: &str, epoch: u64, address: &str) -> EngineListing {
    let (group, address) = (group.into(), address.into());
    EngineListing { group, epoch, kind: "k".into(), revision: None, address, draining: false, loras: Vec::new() }
}

#[tokio::test(start_paused = true)]
async fn a_silent_engine_delays_neither_metrics_nor_requests() {
    let pool = EnginePool::open(RoutePolicy::CacheAware, limits::ROUTE_INDEX_BYTES);
    let mut listings = vec![listing("a", 1, SILENT)];
    listings.extend((0..200).map(|i| listing(&format!("b{i}"), 1, "there")));
    pool.list(&listings, |_| false, dial);
    let began = Instant::now();
    let answers = pool.stats().await;
    assert!(began.elapsed() <= limits::STATS_TIME);
    assert_eq!(answers.len(), listings.len());
    for (engine, stats) in answers {
        assert_eq!(stats.is_some(), engine.group != "a", "{}", engine.group);
    }
    // All were asked for their info when they were listed. The first answer is enough.
    sleep(Duration::from_millis(1)).await;
    let began = Instant::now();
    pool.info().await.expect("one has said it");
    assert_eq!(began.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn an_engine_is_identified_by_group_and_epoch() {
    let pool = EnginePool::open(RoutePolicy::CacheAware, limits::ROUTE_INDEX_BYTES);
    let mut dialled = Vec::new();
    let mut list = |listings: &[EngineListing]| {
        let dial = |address: &str| {
            dialled.push(address.to_owned());
            dial(address)
        };
        pool.list(listings, |engine| engine.group == "a" && engine.epoch == 1, dial);
        let known = pool.engines();
        known.iter().map(|engine| format!("{}{}", engine.group, engine.epoch)).collect::<Vec<_>>()
    };
    assert_eq!(list(&[listing("a", 1, "1"), listing("b", 1, "2")]), ["a1", "b1"]);
    assert_eq!(list(&[listing("b", 1, "2"), listing("a", 1, "1")]), ["b1", "a1"]);
    // Superseded engines are removed; engines that are only unlisted move to the end.
    assert_eq!(list(&[listing("c", 1, "3"), listing("a", 2, "4")]), ["c1", "a2", "b1"]);
    assert_eq!(dialled, ["1", "2", "3", "4"]);
    assert_eq!(pool.standings(), [("serving", 2), ("draining", 0), ("unlisted", 1)]);
    // Unlisted engines are only asked for stats while they have sequences.
    let asked = async || pool.stats().await.into_iter().map(|(engine, _)| engine.group.clone()).collect::<Vec<_>>();
    assert_eq!(asked().await, ["c", "a"]);
    let wanted = EngineRequest { salt: "", lora: 0, tokens: &[], session: None, kind: None, refused: &[] };
    let leases = [pool.lease_elsewhere(&wanted, "a"), pool.lease_elsewhere(&wanted, "c")];
    assert!(leases.iter().all(Option::is_some));
    pool.list(&[listing("d", 1, "5")], |_| false, dial);
    assert_eq!(asked().await, ["d", "c", "a"]);
}

#[tokio::test(start_paused = true)]
async fn a_sequence_resumes_on_an_engine_of_its_kind() {
    let pool = EnginePool::open(RoutePolicy::LeastLoad, limits::ROUTE_INDEX_BYTES);
    let other = |group: &str| EngineListing { kind: "other".into(), ..listing(group, 1, "there") };
    pool.list(&[other("x"), listing("a", 1, "there")], |_| false, dial);
    assert_eq!(pool.kinds(), 2);
    let wanted = || EngineRequest {
        salt: "",
        lora: 0,
        tokens: &[1],
        session: None,
        kind: Some(("k", Instant::now() + limits::KIND_WAIT)),
        refused: &[],
    };
    let until = Instant::now() + Duration::from_secs(60);
    // Load does not matter.
    let mut leases = Vec::new();
    for _ in 0..3 {
        leases.push(pool.lease(&wanted(), until, until).await.expect("one is there"));
        assert_eq!(leases.last().expect("a lease").engine().group, "a");
    }
    assert!(pool.lease_elsewhere(&wanted(), "a").is_none());
    assert_eq!(pool.lease_elsewhere(&EngineRequest { kind: None, ..wanted() }, "a").expect("x").engine().group, "x");
    // The sequence waits for an engine of its kind for `KIND_WAIT`, then it uses any.
    let gone = |engine: &EngineHandle| engine.group == "a";
    drop(leases);
    pool.list(&[other("x")], gone, dial);
    let began = Instant::now();
    let join = async {
        sleep(limits::KIND_WAIT / 2).await;
        pool.list(&[other("x"), listing("b", 1, "there")], |_| false, dial);
    };
    let waiting = wanted();
    let (lease, ()) = tokio::join!(pool.lease(&waiting, until, until), join);
    assert_eq!(lease.expect("one has joined").engine().group, "b");
    assert!(began.elapsed() < limits::KIND_WAIT);
    pool.list(&[other("x")], |engine| engine.group == "b", dial);
    let began = Instant::now();
    assert_eq!(pool.lease(&wanted(), until, until).await.expect("any").engine().group, "x");
    assert!((limits::KIND_WAIT..limits::KIND_WAIT * 2).contains(&began.elapsed()));
    assert_eq!(pool.kinds(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_draining_engine_gets_no_sequences_while_another_serves() {
    for policy in [RoutePolicy::CacheAware, RoutePolicy::LeastLoad, RoutePolicy::RoundRobin, RoutePolicy::PowerOfTwo] {
        let pool = EnginePool::open(policy, limits::ROUTE_INDEX_BYTES);
        let drains = EngineListing { draining: true, ..listing("a", 1, "there") };
        pool.list(&[drains.clone(), listing("b", 1, "there"), listing("c", 1, "there")], |_| false, dial);
        let until = Instant::now() + Duration::from_secs(1);
        let wanted = EngineRequest { salt: "", lora: 0, tokens: &[1], session: Some(7), kind: None, refused: &[] };
        for _ in 0..20 {
            assert_ne!(pool.lease(&wanted, until, until).await.expect("one serves").engine().group, "a");
        }
        // Without a serving engine, it gets them.
        pool.list(&[drains], |engine| engine.group != "a", dial);
        assert_eq!(pool.lease(&wanted, until, until).await.expect("it drains").engine().group, "a");
    }
}

#[tokio::test(start_paused = true)]
async fn one_answer_is_enough_and_a_model_without_engines_is_not_asked() {
    let pool = EnginePool::open(RoutePolicy::CacheAware, limits::ROUTE_INDEX_BYTES);
    assert_eq!(pool.standing(), None);
    pool.list(&[listing("a", 1, SILENT), listing("b", 1, "there")], |_| false, dial);
    let began = Instant::now();
    assert!(pool.check_available().await.is_ok() && pool.info().await.is_ok());
    assert_eq!(pool.standing(), Some(Standing::Serving));
    assert_eq!(began.elapsed(), Duration::ZERO);
    pool.list(&[EngineListing { draining: true, ..listing("a", 1, SILENT) }], |engine| engine.group == "b", dial);
    assert_eq!(pool.standing(), Some(Standing::Draining));
    assert!(pool.check_available().await.is_err());
    pool.list(&[], |_| false, dial);
    assert_eq!(pool.standing(), None);
}

#[tokio::test(start_paused = true)]
async fn an_engine_that_refused_a_sequence_is_its_last_choice() {
    let pool = EnginePool::open(RoutePolicy::CacheAware, limits::ROUTE_INDEX_BYTES);
    pool.list(&[listing("a", 1, "there"), listing("b", 1, "there")], |_| false, dial);
    let until = Instant::now() + Duration::from_secs(1);
    let lease = async |refused: &[_]| {
        let wanted = EngineRequest { salt: "", lora: 0, tokens: &[1], session: Some(7), kind: None, refused };
        pool.lease(&wanted, until, until).await.expect("one").engine().clone()
    };
    let home = lease(&[]).await;
    let other = lease(std::slice::from_ref(&home)).await;
    assert_ne!(other.group, home.group);
    assert_eq!(lease(&[home.clone(), other]).await.group, home.group);
}
