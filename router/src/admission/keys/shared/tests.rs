use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use rein_control_plane::{MemoryStore, Session, limits::LEASE, records::RouterRecord};
use tokio::task::{JoinHandle, JoinSet};

use chrono::Utc;

use super::super::{ApiCaller, key_hash, parse_clients};
use super::*;
use crate::error::ErrorKind;

/// The tests' time.
fn clock() -> u64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    1_000_000 + START.elapsed().as_millis() as u64
}

struct TestRouter {
    caller: ApiCaller,
    session: Session,
    sharing: JoinHandle<()>,
}

impl TestRouter {
    async fn start(store: &Arc<dyn Store>, id: usize, keys: ApiKeys) -> TestRouter {
        let (cluster, id) = (Keys::new("test").unwrap(), format!("r{id}"));
        let caller = keys.authenticate(Some(b"a"), Utc::now()).unwrap();
        let session = Session::new(store.clone(), &id, LEASE);
        let record = RouterRecord {
            http: String::new(),
            grpc: String::new(),
            in_flight: 0,
            draining: false,
            expects: Vec::new(),
            expires: None,
            lost_calls: Default::default(),
            release: Default::default(),
        };
        session.put(cluster.router(&id), encode(&record));
        session.settled().await;
        let with = LimitStore { store: store.clone(), keys: cluster, router: id, session: session.held(), clock };
        let sharing = tokio::spawn(async move {
            keys.share(with).await;
        });
        TestRouter { caller, session, sharing }
    }

    async fn several(store: &Arc<dyn Store>, routers: usize, limits: &str) -> Vec<TestRouter> {
        let file = format!("[[key]]\nname = \"a\"\nhash = \"{}\"\n{limits}\n", key_hash("a"));
        let path = std::env::temp_dir().join(format!("rein-limits-{}.toml", uuid::Uuid::new_v4().simple()));
        std::fs::write(&path, file).unwrap();
        let mut all = Vec::new();
        for id in 0..routers {
            let keys = ApiKeys::open("--api-keys", path.clone()).unwrap();
            all.push(TestRouter::start(store, id, keys).await);
        }
        std::fs::remove_file(path).unwrap();
        // All have counted one another.
        sleep(2 * COUNT_INTERVAL).await;
        all
    }
}

/// Sends requests to these routers for a while, one after the other at each of `clients` of each router. Returns how
/// many were accepted.
async fn accepted(routers: &[TestRouter], clients: usize, time: Duration) -> usize {
    let mut tasks = JoinSet::new();
    let end = Instant::now() + time;
    for router in routers {
        for _ in 0..clients {
            let caller = router.caller.clone();
            tasks.spawn(async move {
                let mut accepted = 0;
                while Instant::now() < end {
                    match caller.begin().await {
                        Ok(()) => accepted += 1,
                        Err(error) => assert_eq!(error.code, Some("rate_limit_exceeded")),
                    }
                    sleep(Duration::from_millis(7)).await;
                }
                accepted
            });
        }
    }
    tasks.join_all().await.into_iter().sum()
}

fn is_within_ten_percent(got: usize, limit: usize) -> bool {
    10 * got.abs_diff(limit) <= limit
}

#[tokio::test(start_paused = true)]
async fn a_rate_holds_over_all_routers_however_requests_are_spread() {
    for (limit, routers) in [(6_000, 3), (600, 3), (600, 10), (60, 3), (10, 2), (100, 1)] {
        for used in [routers, 1] {
            let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
            let all = TestRouter::several(&store, routers, &format!("requests_per_minute = {limit}")).await;
            // A minute's worth that was saved, and two minutes.
            let got = accepted(&all[..used], 4, Duration::from_secs(120)).await;
            let expected = if limit > 5_000 && used == 1 { got } else { 3 * limit };
            assert!(is_within_ten_percent(got, expected), "{got} at {used} of {routers} routers, limit {limit}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_burst_at_one_router_gets_the_whole_minute_and_not_more() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let routers = TestRouter::several(&store, 3, "requests_per_minute = 60").await;
    let one = &routers[..1];
    assert!(is_within_ten_percent(accepted(one, 60, Duration::from_millis(1)).await, 60));
    assert!(accepted(&routers, 60, Duration::from_millis(1)).await <= 6);
    let error = routers[2].caller.begin().await.expect_err("used up");
    assert!(error.retry_after.is_some_and(|wait| wait <= Duration::from_secs(2)), "{error:?}");
    assert_eq!(error.message, "the key 'a' is limited to 60 requests per minute; try again later");
}

#[tokio::test(start_paused = true)]
async fn tokens_count_at_all_routers() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let routers = TestRouter::several(&store, 3, "tokens_per_minute = 6000").await;
    let (mut used, end) = (0, Instant::now() + Duration::from_secs(300));
    while Instant::now() < end {
        for router in &routers {
            if router.caller.begin().await.is_ok() {
                router.caller.charge(50, Instant::now());
                used += 50;
            }
        }
        sleep(Duration::from_millis(20)).await;
    }
    assert!(is_within_ten_percent(used, 6000 * 6), "{used}");
    let [_, tokens] = routers[0].caller.rates(Instant::now());
    assert!(tokens.is_some_and(|rate| rate.limit == 6000 && rate.remaining < 600), "{tokens:?}");
}

#[tokio::test(start_paused = true)]
async fn slots_move_to_where_they_are_needed_and_never_exceed_the_limit() {
    for (limit, routers) in [(1, 3), (4, 3), (100, 3)] {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
        let all = TestRouter::several(&store, routers, &format!("max_in_flight = {limit}")).await;
        // All that one router can have.
        let mut held = Vec::new();
        for _ in 0..2 {
            for router in &all {
                held.clear();
                while let Ok(permit) = router.caller.enter().await {
                    held.push(permit);
                }
                assert!(held.len() <= limit && is_within_ten_percent(held.len(), limit), "{} of {limit}", held.len());
            }
        }
        let error = all[routers - 1].caller.enter().await.err().expect("all are taken");
        assert_eq!(error.kind, ErrorKind::Full);
        held.clear();
        // All at once, at all routers.
        let mut entering = JoinSet::new();
        for caller in (0..2 * limit).flat_map(|_| all.iter().map(|router| router.caller.clone())) {
            entering.spawn(async move { caller.enter().await });
        }
        let got: Vec<_> = entering.join_all().await.into_iter().filter_map(Result::ok).collect();
        assert!(got.len() <= limit && is_within_ten_percent(got.len(), limit), "{} of {limit}", got.len());
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_goes_from_router_to_router_is_not_refused() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let routers = TestRouter::several(&store, 3, "max_in_flight = 1").await;
    for i in 0..30 {
        let permit = routers[i % 3].caller.enter().await;
        sleep(Duration::from_millis(i as u64)).await;
        drop(permit.unwrap_or_else(|error| panic!("request {i}: {error}")));
    }
}

#[tokio::test(start_paused = true)]
async fn a_lost_router_gives_its_slots_back() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let mut routers = TestRouter::several(&store, 2, "max_in_flight = 2").await;
    let lost = routers.remove(0);
    let _held = [lost.caller.enter().await.unwrap(), lost.caller.enter().await.unwrap()];
    assert!(routers[0].caller.enter().await.is_err());
    lost.sharing.abort();
    drop(lost.session);
    sleep(LEASE + Duration::from_secs(1)).await;
    routers[0].caller.enter().await.map(drop).unwrap();
}

/// Routers never use more than the limit together, not while one gives back what it needs a moment later either.
#[tokio::test(start_paused = true)]
async fn slots_that_are_given_back_are_not_used_meanwhile() {
    const LIMIT: usize = 10;
    let store: Arc<dyn Store> = Arc::new(Unreachable { delay: Duration::from_millis(20), ..Unreachable::default() });
    let routers = TestRouter::several(&store, 2, &format!("max_in_flight = {LIMIT}")).await;
    let (used, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let mut clients = JoinSet::new();
    let end = Instant::now() + Duration::from_secs(60);
    for client in 0..40_u64 {
        let caller = routers[client as usize % 2].caller.clone();
        let (used, most) = (used.clone(), most.clone());
        clients.spawn(async move {
            let mut state = client;
            while Instant::now() < end {
                state = rein_proto::splitmix::mix(state);
                if let Ok(permit) = caller.enter().await {
                    most.fetch_max(used.fetch_add(1, Relaxed) + 1, Relaxed);
                    sleep(Duration::from_millis(state % 200)).await;
                    used.fetch_sub(1, Relaxed);
                    drop(permit);
                }
                sleep(Duration::from_millis(state % 300)).await;
            }
        });
    }
    clients.join_all().await;
    assert_eq!(most.load(Relaxed), LIMIT);
}

#[tokio::test(start_paused = true)]
async fn a_router_that_starts_has_no_more_than_is_left() {
    let store: Arc<dyn Store> = Arc::new(Unreachable { delay: Duration::from_millis(20), ..Unreachable::default() });
    let first = TestRouter::several(&store, 1, "max_in_flight = 4").await.remove(0);
    let mut held = Vec::new();
    while let Ok(permit) = first.caller.enter().await {
        held.push(permit);
    }
    assert_eq!(held.len(), 4);
    let file = format!("[[key]]\nname = \"a\"\nhash = \"{}\"\nmax_in_flight = 4\n", key_hash("a"));
    let path = std::env::temp_dir().join(format!("rein-limits-{}.toml", uuid::Uuid::new_v4().simple()));
    std::fs::write(&path, file).unwrap();
    let keys = Arc::new(ApiKeys::open("--api-keys", path.clone()).unwrap());
    std::fs::remove_file(path).unwrap();
    let caller = keys.authenticate(Some(b"a"), Utc::now()).unwrap();
    let session = Session::new(store.clone(), "r1", LEASE);
    let (cluster, id) = (Keys::new("test").unwrap(), "r1".to_owned());
    // Its session has no lease yet.
    let with = LimitStore { store: store.clone(), keys: cluster.clone(), router: id, session: session.held(), clock };
    let shared = keys.clone();
    tokio::spawn(async move { shared.share(with).await });
    tokio::task::yield_now().await;
    assert!(caller.enter().await.is_err());
    drop(held);
    let one = caller.enter().await.unwrap();
    // A key that leaves the file leaves the store.
    let limits = async || store.read(&cluster.limits("a")).await.unwrap().entries;
    assert!(limits().await.contains_key(&cluster.limit_slots("a", "r1")));
    first.sharing.abort();
    drop((first, one));
    let other = format!("[[key]]\nname = \"b\"\nhash = \"{}\"\n", key_hash("b"));
    parse_clients(other.as_bytes(), &mut locked(&keys.usages), Instant::now()).unwrap();
    sleep(2 * TICK).await;
    assert!(!limits().await.contains_key(&cluster.limit_slots("a", "r1")));
}

#[tokio::test(start_paused = true)]
async fn an_idle_router_keeps_nothing_in_reserve() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let routers = TestRouter::several(&store, 3, "max_in_flight = 100").await;
    for router in &routers {
        drop(router.caller.enter().await.unwrap());
    }
    sleep(Duration::from_secs(3)).await;
    let mut all = routers[0].caller.enter().await.unwrap();
    all.extend_to(100).await.unwrap();
}

/// A store that can be out of reach, or slow.
#[derive(Default)]
struct Unreachable {
    store: MemoryStore,
    is_lost: std::sync::atomic::AtomicBool,
    delay: Duration,
}

impl Unreachable {
    fn reached(&self) -> Result<&MemoryStore, StoreError> {
        match self.is_lost.load(std::sync::atomic::Ordering::Relaxed) {
            true => Err(StoreError::Unavailable("the test".into())),
            false => Ok(&self.store),
        }
    }

    fn set(&self, is_lost: bool) {
        self.is_lost.store(is_lost, std::sync::atomic::Ordering::Relaxed);
    }
}

#[async_trait::async_trait]
impl Store for Unreachable {
    async fn read(&self, prefix: &str) -> Result<rein_control_plane::Snapshot, StoreError> {
        self.reached()?.read(prefix).await
    }
    async fn watch(
        &self,
        prefix: &str,
        after: rein_control_plane::Revision,
    ) -> Result<rein_control_plane::store::ChangeStream, StoreError> {
        self.reached()?.watch(prefix, after).await
    }
    async fn commit(&self, transaction: Transaction) -> Result<Option<rein_control_plane::Revision>, StoreError> {
        sleep(self.delay).await;
        let done = self.reached()?.commit(transaction).await;
        sleep(self.delay).await;
        done
    }
    async fn grant(&self, ttl: Duration) -> Result<LeaseId, StoreError> {
        sleep(self.delay).await;
        self.reached()?.grant(ttl).await
    }
    async fn renew(&self, lease: LeaseId) -> Result<(), StoreError> {
        self.reached()?.renew(lease).await
    }
    async fn revoke(&self, lease: LeaseId) -> Result<(), StoreError> {
        self.reached()?.revoke(lease).await
    }
}

#[tokio::test(start_paused = true)]
async fn without_the_store_each_router_has_an_equal_part() {
    let memory = Arc::new(Unreachable::default());
    let store: Arc<dyn Store> = memory.clone();
    let routers = TestRouter::several(&store, 3, "requests_per_minute = 600\nmax_in_flight = 6").await;
    let held = [routers[0].caller.enter().await.unwrap(), routers[0].caller.enter().await.unwrap()];
    // Until it is used up.
    accepted(&routers, 4, Duration::from_secs(60)).await;
    memory.set(true);
    let during = accepted(&routers, 4, Duration::from_secs(120)).await;
    assert!(is_within_ten_percent(during, 1200), "{during}");
    let two = |router: &TestRouter| router.caller.clone();
    for (router, free) in [(0, 0), (1, 2), (2, 2)] {
        let mut got = Vec::new();
        while let Ok(permit) = two(&routers[router]).enter().await {
            got.push(permit);
        }
        assert_eq!(got.len(), free, "router {router}");
    }
    memory.set(false);
    for lost in [20, 0] {
        let after = accepted(&routers, 4, Duration::from_secs(120)).await;
        assert!(is_within_ten_percent(after, 1200), "{after}");
        // A short loss costs nothing either.
        memory.set(true);
        accepted(&routers, 4, Duration::from_secs(lost)).await;
        memory.set(false);
    }
    drop(held);
    // What the store says of a limit, and is no level, is written over.
    let levels = Keys::new("test").unwrap().limit_levels("a");
    memory.commit(Transaction::default().put(levels, "garbage", None)).await.unwrap();
    assert!(accepted(&routers, 4, Duration::from_secs(10)).await > 0);
}
