//! Who of several is the active one: the holder of a key under its lease. Whatever the active one writes, it writes on
//! the condition that it still is.

use std::sync::Arc;

use tokio::sync::watch;

use crate::{
    mirror::Mirror,
    records::Release,
    retry::Backoff,
    session::Held,
    store::{Condition, LeaseId, Revision, Store, StoreError, Transaction},
};

/// Proof of having won.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leadership {
    key: String,
    lease: LeaseId,
    revision: Revision,
}

impl Leadership {
    /// To be part of every transaction of the active one.
    pub fn condition(&self) -> Condition {
        Condition::At(self.key.clone(), self.revision)
    }

    /// Returns when the key is no longer held, or the lease is another one.
    pub async fn lost(&self, mirror: &Mirror, held: &watch::Receiver<Held>) {
        let (mut mirror, mut held) = (mirror.clone(), held.clone());
        let kept = |view: &crate::Snapshot| match view.entries.get(&self.key) {
            Some(entry) => entry.revision == self.revision,
            // The mirror may lag behind our own write.
            None => view.revision < self.revision,
        };
        loop {
            if !kept(&mirror.view()) || held.borrow_and_update().lease != Some(self.lease) {
                return;
            }
            tokio::select! {
                biased;
                changed = held.changed() => if changed.is_err() { return },
                _ = mirror.changed() => {}
            }
        }
    }
}

/// Never returns once the session is over: so is then whatever waits here, as soon as its caller notices.
async fn news(held: &mut watch::Receiver<Held>) {
    if held.changed().await.is_err() {
        std::future::pending().await
    }
}

/// Waits until nobody holds `key`, and takes it under the session's lease. `mirror` must see the key.
pub async fn campaign(
    store: Arc<dyn Store>,
    mirror: &Mirror,
    held: &watch::Receiver<Held>,
    key: &str,
    candidate: &str,
    release: &Release,
) -> Leadership {
    let (mut mirror, mut held, mut backoff) = (mirror.clone(), held.clone(), Backoff::new(candidate));
    loop {
        let lease = held.borrow_and_update().lease;
        let Some(lease) = lease else {
            news(&mut held).await;
            continue;
        };
        let ballot = format!("{candidate} {} {} {}", lease.0, release.protocol, release.version);
        if let Some(entry) = mirror.read().await.entries.get(key) {
            if entry.value == ballot.as_bytes() {
                // A write of ours whose answer was lost.
                return Leadership { key: key.to_owned(), lease, revision: entry.revision };
            }
            tokio::select! {
                biased;
                () = news(&mut held) => {}
                _ = mirror.changed() => {}
            }
            continue;
        }
        let transaction = Transaction::default().when(Condition::Absent(key.to_owned())).put(key, ballot, Some(lease));
        match store.commit(transaction).await {
            Ok(Some(revision)) => return Leadership { key: key.to_owned(), lease, revision },
            // Somebody was faster.
            Ok(None) | Err(StoreError::LeaseLost) => {}
            Err(error) => backoff.failed("cannot stand for election", &error),
        }
        backoff.wait().await;
    }
}
