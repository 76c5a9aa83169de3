//! Many nodes of one process that share one connection to the store.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use futures::{FutureExt, StreamExt};

use super::{intercepted_store::InterceptedStore, values};
use crate::{
    LeaseId, MemoryStore, Mirror, Revision, Session, SharedStore, Snapshot, Store, StoreError, Transaction, limits,
    store::{ChangeStream, Changes},
};

/// Counts calls.
#[derive(Default)]
struct Counting {
    store: MemoryStore,
    asked: AtomicUsize,
    written: AtomicUsize,
    leases: AtomicUsize,
}

#[async_trait]
impl InterceptedStore for Counting {
    fn inner(&self) -> &dyn Store {
        &self.store
    }

    async fn on_read(&self, prefix: &str) -> Result<Snapshot, StoreError> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        self.store.read(prefix).await
    }

    async fn on_watch(&self, prefix: &str, after: Revision) -> Result<ChangeStream, StoreError> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        self.store.watch(prefix, after).await
    }

    async fn on_commit(&self, transaction: Transaction) -> Result<Option<Revision>, StoreError> {
        self.written.fetch_add(1, Ordering::Relaxed);
        self.store.commit(transaction).await
    }

    async fn on_grant(&self, ttl: Duration) -> Result<LeaseId, StoreError> {
        self.leases.fetch_add(1, Ordering::Relaxed);
        self.store.grant(ttl).await
    }
}

async fn put(store: &dyn Store, key: &str, value: &str) -> Revision {
    let put = Transaction::default().put(key, value.to_owned(), None);
    store.commit(put).await.expect("in memory").expect("no condition")
}

async fn next(watch: &mut ChangeStream) -> Changes {
    watch.next().await.expect("the watch goes on").expect("no error")
}

/// Waits until all watches have got every committed change.
async fn heard() {
    tokio::time::sleep(Duration::from_millis(1)).await;
}

#[tokio::test(start_paused = true)]
async fn a_thousand_mirrors_read_the_store_once() {
    let counting = Arc::new(Counting::default());
    let shared: Arc<dyn Store> = Arc::new(SharedStore::new(counting.clone(), "shared", "/c/"));
    let mirrors: Vec<Mirror> =
        (0..1000).map(|i| Mirror::new(shared.clone(), "node", format!("/c/seats/{i:03}"))).collect();
    heard().await;
    put(&*shared, "/c/seats/007", "here").await;
    put(&*shared, "/other/seats/007", "elsewhere").await;
    heard().await;
    for (i, mirror) in mirrors.iter().enumerate() {
        assert_eq!(mirror.view().entries.len(), usize::from(i == 7));
    }
    // It reads again once the watch exists.
    assert_eq!(counting.asked.load(Ordering::Relaxed), 3);
    // What is not under the root is the store's own.
    assert_eq!(values(&shared.read("/other/").await.expect("in memory")).len(), 1);
    assert_eq!(counting.asked.load(Ordering::Relaxed), 4);
}

#[tokio::test(start_paused = true)]
async fn a_watch_starts_where_the_read_ended() {
    let memory = MemoryStore::default();
    let shared = SharedStore::new(Arc::new(memory.clone()), "shared", "/c/");
    let before = shared.read("/c/a").await.expect("in sight").revision;
    put(&memory, "/c/a", "1").await;
    put(&memory, "/c/b", "1").await;
    heard().await;
    let mut watch = shared.watch("/c/a", before).await.expect("not forgotten");
    assert_eq!(next(&mut watch).await.keys.len(), 1);
    // All keys of one transaction arrive together, in order.
    let both = Transaction::default().put("/c/ab", "2", None).delete("/c/a").delete("/c/b");
    memory.commit(both).await.expect("in memory");
    let keys: Vec<_> = next(&mut watch).await.keys.into_iter().map(|(key, entry)| (key, entry.is_some())).collect();
    assert_eq!(keys, [("/c/ab".to_owned(), true), ("/c/a".to_owned(), false)]);
    assert_eq!(watch.next().now_or_never(), None);
    for i in 0..=limits::SHARED_STORE_HISTORY {
        put(&memory, "/c/b", &i.to_string()).await;
        heard().await;
    }
    assert_eq!(shared.watch("/c/a", before).await.err(), Some(StoreError::Compacted(before)));
}

#[tokio::test(start_paused = true)]
async fn a_watcher_that_does_not_read_is_dropped() {
    let memory = MemoryStore::default();
    let shared = SharedStore::new(Arc::new(memory.clone()), "shared", "/c/");
    let after = shared.read("/c/a").await.expect("in sight").revision;
    let mut watch = shared.watch("/c/a", after).await.expect("not forgotten");
    for i in 0..=limits::WATCH_BACKLOG {
        put(&memory, "/c/a", &i.to_string()).await;
        heard().await;
    }
    for _ in 0..limits::WATCH_BACKLOG {
        next(&mut watch).await;
    }
    assert!(watch.next().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_thousand_nodes_have_one_lease_and_write_together() {
    let counting = Arc::new(Counting::default());
    let shared: Arc<dyn Store> = Arc::new(SharedStore::new(counting.clone(), "shared", "/c/"));
    let ttl = Duration::from_secs(5);
    let key = |i: usize| format!("/c/workers/{i}");
    let named = |i| Session::named(shared.clone(), &format!("node {i}"), ttl, key(i));
    let mut nodes: Vec<Session> = (0..1000).map(named).collect();
    for (i, node) in nodes.iter().enumerate() {
        node.put(key(i), "here");
    }
    tokio::time::sleep(ttl * 10).await;
    let there = async || counting.store.read("/c/").await.expect("in memory").entries;
    assert_eq!(there().await.len(), 1000);
    assert_eq!(counting.leases.load(Ordering::Relaxed), 1);
    let written = counting.written.load(Ordering::Relaxed);
    assert!(written <= 2 * 1000 / limits::WRITES, "{written} writes");
    // A leaving node deletes its own keys, but not those that another process has put there since.
    put(&counting.store, "/c/workers/998", "somebody").await;
    for _ in 0..2 {
        nodes.pop().expect("a thousand").leave().await;
    }
    tokio::time::sleep(ttl * 2).await;
    let left = there().await;
    assert!(!left.contains_key("/c/workers/999") && left.contains_key("/c/workers/998"));
    assert_eq!(left.len(), 999);
    // A lost lease is lost for all nodes, and all register again under one new lease.
    counting.store.lose_everything();
    tokio::time::sleep(ttl * 2).await;
    assert_eq!(there().await.len(), 998);
    assert_eq!(counting.leases.load(Ordering::Relaxed), 2);
    for node in nodes {
        node.leave().await;
    }
    assert!(there().await.is_empty());
}
