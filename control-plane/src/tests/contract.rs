//! The contract of a store, tested on both implementations.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use futures::StreamExt;

use super::{etcd::Server, intercepted_store::InterceptedStore, values};
use crate::{
    Changes, ClusterView, KeyCondition, Keys, MemoryStore, Mirror, Patience, Snapshot, Store, StoreError, Transaction,
    store::{ChangeStream, Entry, Revision, StorePoint},
};

fn put(key: &str, value: &'static str) -> Transaction {
    Transaction::default().put(key, value, None)
}

/// The next change; fails the test if there is none.
async fn next(watch: &mut ChangeStream) -> Changes {
    let next = tokio::time::timeout(Duration::from_secs(20), watch.next()).await;
    next.expect("a change in time").expect("the watch goes on").expect("no error")
}

async fn keeps_its_promises(store: Arc<dyn Store>) {
    let first = store.commit(put("/a/1", "one")).await.expect("reachable").expect("no condition");
    store.commit(put("/b/1", "other")).await.expect("reachable").expect("no condition");
    let snapshot = store.read("/a/").await.expect("reachable");
    assert_eq!(values(&snapshot), [("/a/1".into(), "one".into())].into());
    assert_eq!(snapshot.entries["/a/1"].revision, first);
    assert!(snapshot.revision > first);

    // Conditions: all or nothing.
    let both = put("/a/2", "two").put("/a/3", "three", None);
    let stale = both.clone().when(KeyCondition::Absent("/a/2".into())).when(KeyCondition::At("/a/1".into(), first + 1));
    assert_eq!(store.commit(stale).await, Ok(None));
    assert_eq!(store.read("/a/").await.expect("reachable").entries.len(), 1);
    let fresh = both.when(KeyCondition::Absent("/a/2".into())).when(KeyCondition::At("/a/1".into(), first));
    let written = store.commit(fresh).await.expect("reachable").expect("the conditions hold");
    let question = |key: &str| Transaction::default().when(KeyCondition::Present(key.into()));
    assert!(store.commit(question("/a/1")).await.expect("reachable").is_some());
    assert_eq!(store.commit(question("/a/none")).await, Ok(None));
    let taken = put("/a/2", "again").when(KeyCondition::Absent("/a/2".into()));
    assert_eq!(store.commit(taken).await, Ok(None));

    // A watch returns later changes under its prefix only.
    let mut watch = store.watch("/a/", first).await.expect("not compacted");
    let Changes { revision, keys } = next(&mut watch).await;
    let keys: Vec<_> = keys.iter().map(|(key, entry)| (key.as_str(), entry.as_ref().map(|e| e.revision))).collect();
    assert_eq!((revision, keys), (written, vec![("/a/2", Some(written)), ("/a/3", Some(written))]));
    store.commit(put("/b/2", "unseen")).await.expect("reachable");
    store.commit(Transaction::default().delete("/a/3")).await.expect("reachable");
    assert_eq!(next(&mut watch).await.keys, [("/a/3".to_owned(), None)]);

    // A lease deletes its keys when it is revoked, and when it is not renewed.
    let lease = store.grant(Duration::from_secs(60)).await.expect("reachable");
    store.commit(Transaction::default().put("/a/leased", "x", Some(lease))).await.expect("reachable");
    assert_eq!(next(&mut watch).await.keys.len(), 1);
    store.renew(lease).await.expect("alive");
    store.revoke(lease).await.expect("reachable");
    assert_eq!(next(&mut watch).await.keys, [("/a/leased".to_owned(), None)]);
    assert_eq!(store.renew(lease).await, Err(StoreError::LeaseLost));
    assert_eq!(store.revoke(lease).await, Ok(()));
    let dead = Transaction::default().put("/a/leased", "y", Some(lease));
    assert_eq!(store.commit(dead).await, Err(StoreError::LeaseLost));

    let short = store.grant(Duration::from_secs(2)).await.expect("reachable");
    store.commit(Transaction::default().put("/a/brief", "z", Some(short))).await.expect("reachable");
    assert_eq!(next(&mut watch).await.keys.len(), 1);
    assert_eq!(next(&mut watch).await.keys, [("/a/brief".to_owned(), None)]);
    assert_eq!(store.renew(short).await, Err(StoreError::LeaseLost));
}

#[tokio::test(start_paused = true)]
async fn memory_fulfills_the_contract() {
    keeps_its_promises(Arc::new(MemoryStore::default())).await;
}

#[tokio::test]
async fn etcd_fulfills_the_contract() {
    let server = Server::start();
    let store = server.store();
    // Waits until etcd answers.
    let up =
        tokio::time::timeout(Duration::from_secs(30), async { Mirror::new(store.clone(), "test", "/").read().await });
    up.await.expect("etcd comes up");
    keeps_its_promises(store).await;
}

#[tokio::test(start_paused = true)]
async fn compacted_revisions_cannot_be_watched() {
    let store = MemoryStore::default();
    let first = store.commit(put("/a", "1")).await.expect("in memory").expect("no condition");
    let second = store.commit(put("/a", "2")).await.expect("in memory").expect("no condition");
    store.compact(second);
    assert_eq!(store.watch("/", first).await.err(), Some(StoreError::Compacted(first)));
    assert!(store.watch("/", second).await.is_ok());
}

/// An etcd that is compacted once, between a mirror's read and its watch.
struct Compacted {
    store: Arc<dyn Store>,
    server: Server,
    watches: AtomicUsize,
}

#[async_trait]
impl InterceptedStore for Compacted {
    fn inner(&self) -> &dyn Store {
        &*self.store
    }

    async fn on_watch(&self, prefix: &str, after: Revision) -> Result<ChangeStream, StoreError> {
        if self.watches.fetch_add(1, Ordering::SeqCst) == 0 {
            self.store.commit(Transaction::default().delete("/a/gone")).await?.expect("no condition");
            let last = self.store.commit(put("/a/1", "again")).await?.expect("no condition");
            self.server.compact(last).await;
        }
        self.store.watch(prefix, after).await
    }
}

#[tokio::test]
async fn a_mirror_watches_a_compacted_etcd_again_and_loses_nothing() {
    let server = Server::start();
    let store = server.store();
    let up = async { Mirror::new(store.clone(), "test", "/").read().await };
    tokio::time::timeout(Duration::from_secs(30), up).await.expect("etcd comes up");
    let first = store.commit(put("/a/1", "one")).await.expect("reachable").expect("no condition");
    for _ in 0..3 {
        store.commit(put("/a/gone", "for now")).await.expect("reachable").expect("no condition");
    }
    let last = store.commit(put("/a/2", "two")).await.expect("reachable").expect("no condition");
    server.compact(last).await;
    // The contract allows the error from the call or from the watch.
    let told = match store.watch("/a/", first).await {
        Ok(mut watch) => tokio::time::timeout(Duration::from_secs(20), watch.next()).await.expect("in time"),
        Err(error) => Some(Err(error)),
    };
    assert_eq!(told, Some(Err(StoreError::Compacted(last))));
    // From there on nothing is missing.
    let mut watch = store.watch("/a/", last).await.expect("not compacted");
    store.commit(put("/a/3", "three")).await.expect("reachable").expect("no condition");
    assert_eq!(next(&mut watch).await.keys.len(), 1);

    let compacted = Arc::new(Compacted { store: store.clone(), server, watches: AtomicUsize::new(0) });
    let mut mirror = Mirror::new(compacted.clone(), "test", "/a/");
    let becomes = async |mirror: &mut Mirror, wanted: &[(&str, &str)]| {
        let wanted = wanted.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let wait = async {
            while values(&mirror.view()) != wanted {
                mirror.changed().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), wait).await.expect("the mirror follows");
    };
    becomes(&mut mirror, &[("/a/1", "again"), ("/a/2", "two"), ("/a/3", "three")]).await;
    store.commit(put("/a/2", "later").delete("/a/3")).await.expect("reachable").expect("no condition");
    becomes(&mut mirror, &[("/a/1", "again"), ("/a/2", "later")]).await;
    assert_eq!(compacted.watches.load(Ordering::SeqCst), 2, "the first watch was compacted away");
}

/// Routers keep the engines that a reset store has lost, until their owners have had time to write them again.
#[tokio::test]
async fn what_a_reset_store_has_lost_stays_for_a_while() {
    // All that is asked for meanwhile has to happen within it, on a busy machine too.
    const STAYS: Duration = Duration::from_secs(12);
    let mut server = Server::start();
    let store = server.store();
    let mut strict = Mirror::new(store.clone(), "test", "/a/");
    let mut lasting = Mirror::lasting(store.clone(), "test", "/a/", Patience { stays: STAYS, ..Patience::default() });
    let becomes = async |mirror: &mut Mirror, wanted: &[(&str, &str)]| {
        let wanted = wanted.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let wait = async {
            while values(&mirror.view()) != wanted {
                mirror.changed().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), wait).await.expect("the mirror follows");
    };
    tokio::time::timeout(Duration::from_secs(30), lasting.read()).await.expect("etcd comes up");
    for (key, value) in [("/a/1", "one"), ("/a/2", "two"), ("/a/3", "three"), ("/a/4", "four")] {
        store.commit(put(key, value)).await.expect("reachable").expect("no condition");
    }
    let all = [("/a/1", "one"), ("/a/2", "two"), ("/a/3", "three"), ("/a/4", "four")];
    becomes(&mut lasting, &all).await;
    server.lose_everything();
    server.resume();
    becomes(&mut strict, &[]).await;
    assert_eq!(values(&lasting.view()).len(), 4);
    // What is written again, and what is deleted, is as in the store.
    let write = async |writes: &[Transaction]| {
        for transaction in writes {
            let committed = async { while store.commit(transaction.clone()).await.is_err() {} };
            tokio::time::timeout(Duration::from_secs(20), committed).await.expect("reachable");
        }
    };
    write(&[put("/a/1", "again")]).await;
    becomes(&mut lasting, &[("/a/1", "again"), ("/a/2", "two"), ("/a/3", "three"), ("/a/4", "four")]).await;
    // It watches again: a delete that it reads as a missing key is one that the store has lost.
    write(&[put("/a/4", "again"), Transaction::default().delete("/a/4")]).await;
    becomes(&mut lasting, &[("/a/1", "again"), ("/a/2", "two"), ("/a/3", "three")]).await;
    becomes(&mut lasting, &[("/a/1", "again")]).await;
    assert_eq!(values(&strict.view()), values(&lasting.view()));
}

/// The revisions of a store that was reset start over, also in another cluster with higher ones.
#[test]
fn a_view_reads_all_of_a_reset_store() {
    let keys = Keys::new("test").expect("a name");
    let drain = |id: &str| keys.drain(id);
    let snapshot = |cluster, revision, controller: &str, more: &[String]| {
        let entry = |value: &str, revision| Entry { value: value.to_owned().into(), revision, lease: None };
        let more = more.iter().map(|key| (key.clone(), entry("", 3)));
        let entries = more.chain([(keys.controller(), entry(controller, 7))]).collect();
        Snapshot { cluster, revision, entries }
    };
    let mut view = ClusterView::default();
    view.update(&keys, &snapshot(1, 9, "a", &[drain("w")]));
    assert_eq!((view.controller.as_deref(), view.drains.len()), (Some("a"), 1));
    // The same revision of the key, and another value.
    for (cluster, revision, controller) in [(1, 8, "b"), (2, 20, "c")] {
        view.update(&keys, &snapshot(cluster, revision, controller, &[]));
        assert_eq!((view.controller.as_deref(), view.drains.len()), (Some(controller), 0));
    }
    let (first, later) = (StorePoint { cluster: 1, revision: 9 }, StorePoint { cluster: 1, revision: 10 });
    assert!(!later.is_after_reset(first) && first.is_after_reset(later));
    assert!(!first.is_after_reset(StorePoint::default()), "nothing was read before");
}
