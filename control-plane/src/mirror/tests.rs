use std::sync::Mutex;

use super::*;
use crate::{MemoryStore, Transaction};

const TTL: Duration = Duration::from_secs(2);
const STAYS: Duration = Duration::from_secs(20);
const OTHER: LeaseId = LeaseId(100);

/// A mirror of `/a/`, with a leased key and one without a lease. The test says when this process's lease was renewed.
struct Watched {
    store: Arc<MemoryStore>,
    mirror: Mirror,
    renewal: Arc<Mutex<Option<Renewal>>>,
    own: LeaseId,
}

impl Watched {
    async fn new() -> Self {
        let store = Arc::new(MemoryStore::default());
        let own = store.grant(3600 * TTL).await.expect("a lease");
        let renewal = Arc::new(Mutex::new(Some(Renewal { lease: own, at: Instant::now(), ttl: TTL })));
        let renewals: Renewals = {
            let renewal = renewal.clone();
            Arc::new(move || *renewal.lock().expect("not poisoned"))
        };
        let patience = Patience { stays: STAYS, renewals: Some(renewals) };
        let mut mirror = Mirror::lasting(store.clone(), "test", "/a/", patience);
        mirror.read().await;
        Watched { store, mirror, renewal, own }
    }

    /// Puts a key under a lease that is not renewed.
    async fn put(&self, key: &str, value: &'static str) {
        let lease = self.store.grant(TTL).await.expect("a lease");
        let put = Transaction::default().put(key, value, Some(lease));
        self.store.commit(put).await.expect("reachable").expect("no condition");
    }

    fn renewed(&self, lease: LeaseId) {
        *self.renewal.lock().expect("not poisoned") = Some(Renewal { lease, at: Instant::now(), ttl: TTL });
    }

    async fn after(&self, time: Duration) -> Vec<String> {
        tokio::time::sleep(time).await;
        self.mirror.view().entries.keys().cloned().collect()
    }
}

#[tokio::test(start_paused = true)]
async fn what_expires_leaves_while_the_store_renews_leases() {
    let watched = Watched::new().await;
    watched.put("/a/1", "one").await;
    assert_eq!(watched.after(TTL * 3 / 4).await, ["/a/1"]);
    watched.renewed(watched.own);
    assert!(watched.after(TTL / 2).await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn what_expires_while_the_store_renews_nothing_stays_until_it_renews_again() {
    let watched = Watched::new().await;
    watched.put("/a/1", "one").await;
    watched.put("/a/2", "two").await;
    let decided = Transaction::default().put("/a/3", "decided", None);
    watched.store.commit(decided).await.expect("reachable").expect("no condition");
    assert_eq!(watched.after(4 * TTL).await, ["/a/1", "/a/2", "/a/3"]);
    // What somebody deletes is gone, and what is written again has its new value.
    watched.store.commit(Transaction::default().delete("/a/3")).await.expect("reachable").expect("no condition");
    let again = Transaction::default().put("/a/2", "again", None);
    watched.store.commit(again).await.expect("reachable").expect("no condition");
    assert_eq!(watched.after(TTL / 4).await, ["/a/1", "/a/2"]);
    assert_eq!(watched.mirror.view().entries["/a/2"].value, "again");
    watched.renewed(watched.own);
    assert_eq!(watched.after(TTL / 4).await, ["/a/1", "/a/2"], "owners have until their next renewal");
    assert_eq!(watched.after(TTL / 2).await, ["/a/2"]);
}

/// The store lost all leases: owners take longer to write their keys again.
#[tokio::test(start_paused = true)]
async fn what_expired_with_this_processs_own_lease_stays_its_time() {
    let watched = Watched::new().await;
    watched.put("/a/1", "one").await;
    assert_eq!(watched.after(2 * TTL).await, ["/a/1"]);
    watched.renewed(OTHER);
    assert_eq!(watched.after(STAYS - 2 * TTL).await, ["/a/1"]);
    assert!(watched.after(2 * TTL).await.is_empty());
    // The lease is held no more when the next key expires.
    *watched.renewal.lock().expect("not poisoned") = None;
    watched.put("/a/4", "four").await;
    assert_eq!(watched.after(STAYS).await, ["/a/4"]);
    assert!(watched.after(2 * TTL).await.is_empty());
}

/// The revisions of a young store are low: one that has lost everything passes them while it is filled again.
#[tokio::test(start_paused = true)]
async fn a_reset_is_noticed_although_revisions_have_passed_the_old_ones() {
    let watched = Watched::new().await;
    let write = async |key: &str| {
        let put = Transaction::default().put(key, "decided", None);
        watched.store.commit(put).await.expect("reachable").expect("no condition");
    };
    write("/a/1").await;
    watched.put("/a/2", "two").await;
    assert_eq!(watched.after(TTL / 4).await, ["/a/1", "/a/2"]);
    watched.store.lose_everything();
    for _ in 0..20 {
        write("/b").await;
    }
    watched.renewed(OTHER);
    assert_eq!(watched.after(TTL / 4).await, ["/a/1", "/a/2"]);
    assert!(watched.mirror.view().revision >= 20, "it was read again");
    assert!(watched.after(STAYS).await.is_empty());
}
