//! Leader election: the holder of a leased key is the leader, and all its writes are conditional on that key.
//!
//! This module does not know what the leader does.

use std::sync::Arc;

use tokio::sync::watch;

use crate::{
    backoff::Backoff,
    mirror::Mirror,
    records::Release,
    session::SessionState,
    store::{KeyCondition, LeaseId, Revision, Store, StoreError, Transaction},
};

/// Proof of leadership.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leadership {
    key: String,
    lease: LeaseId,
    revision: Revision,
}

impl Leadership {
    /// Must be part of every transaction of the leader.
    pub fn condition(&self) -> KeyCondition {
        KeyCondition::At(self.key.clone(), self.revision)
    }

    /// Returns when the key is no longer held, or the session has another lease.
    pub async fn lost(&self, mirror: &Mirror, held: &watch::Receiver<SessionState>) {
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

/// Never returns once the session has ended. The caller then ends as well.
async fn session_changed(held: &mut watch::Receiver<SessionState>) {
    if held.changed().await.is_err() {
        std::future::pending().await
    }
}

/// Waits until no other candidate holds `key`, then takes it under the session's lease. `mirror` must cover the key.
pub async fn campaign(
    store: Arc<dyn Store>,
    mirror: &Mirror,
    held: &watch::Receiver<SessionState>,
    key: &str,
    candidate: &str,
    release: &Release,
) -> Leadership {
    let (mut mirror, mut held, mut backoff) = (mirror.clone(), held.clone(), Backoff::new(candidate));
    loop {
        let lease = held.borrow_and_update().lease;
        let Some(lease) = lease else {
            session_changed(&mut held).await;
            continue;
        };
        let Release { protocol, version, started } = release;
        let leader_value = format!("{candidate} {} {protocol} {version} {started}", lease.0);
        let mut free = KeyCondition::Absent(key.to_owned());
        if let Some(entry) = mirror.read().await.entries.get(key) {
            if entry.value == leader_value.as_bytes() {
                // Our own write, whose answer was lost.
                return Leadership { key: key.to_owned(), lease, revision: entry.revision };
            }
            // No candidate writes without a lease, or under ours.
            if entry.lease.is_some_and(|other| other != lease) {
                tokio::select! {
                    biased;
                    () = session_changed(&mut held) => {}
                    _ = mirror.changed() => {}
                }
                continue;
            }
            free = KeyCondition::At(key.to_owned(), entry.revision);
        }
        let transaction = Transaction::default().when(free).put(key, leader_value, Some(lease));
        match store.commit(transaction).await {
            Ok(Some(revision)) => {
                backoff.reset();
                return Leadership { key: key.to_owned(), lease, revision };
            }
            // Another candidate was faster.
            Ok(None) | Err(StoreError::LeaseLost) => backoff.answered(),
            Err(error) => backoff.failed("cannot write the candidacy", &error),
        }
        backoff.wait().await;
    }
}
