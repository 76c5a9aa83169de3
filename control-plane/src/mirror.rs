//! A local copy of all keys under a prefix. While the store is unreachable, the last known state stays.
//!
//! This module does not know what the keys mean.

use std::{collections::BTreeMap, convert::Infallible, sync::Arc, time::Duration};

use futures::StreamExt;
use tokio::{
    sync::watch,
    task::AbortHandle,
    time::{Instant, sleep_until},
};

use crate::{
    backoff::Backoff,
    store::{ChangeStream, Entry, Snapshot, Store, StoreError},
};

/// Follows the store until the last clone is dropped.
#[derive(Debug, Clone)]
pub struct Mirror {
    view: watch::Receiver<Arc<Snapshot>>,
    _task: Arc<Following>,
}

#[derive(Debug)]
struct Following(AbortHandle);

impl Drop for Following {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Mirror {
    /// Empty at revision 0 until the store has been read. `who` seeds the retry jitter.
    pub fn new(store: Arc<dyn Store>, who: &str, prefix: impl Into<String>) -> Self {
        Self::lasting(store, who, prefix, Duration::ZERO)
    }

    /// What a store has lost that was reset stays for this time, unless it is written or deleted: nobody has said that
    /// it is gone, and its owners write it again.
    pub fn lasting(store: Arc<dyn Store>, who: &str, prefix: impl Into<String>, lost_stays: Duration) -> Self {
        let (sender, view) = watch::channel(Arc::new(Snapshot::default()));
        let following = Follower { store, prefix: prefix.into(), view: sender, lost_stays, lost: None };
        let task = tokio::spawn(following.run(Backoff::new(who)));
        Mirror { view, _task: Arc::new(Following(task.abort_handle())) }
    }

    pub fn view(&self) -> Arc<Snapshot> {
        self.view.borrow().clone()
    }

    /// Waits for a state that this clone's `changed` has not returned before.
    pub async fn changed(&mut self) -> Arc<Snapshot> {
        match self.view.changed().await {
            Ok(()) => self.view.borrow_and_update().clone(),
            // The task ends only with the last clone.
            Err(_) => std::future::pending().await,
        }
    }

    /// Waits until the store has been read.
    pub async fn read(&mut self) -> Arc<Snapshot> {
        loop {
            let view = self.view.borrow_and_update().clone();
            if view.revision > 0 {
                return view;
            }
            self.changed().await;
        }
    }
}

/// All keys under a prefix, and a stream of every later change.
///
/// The keys are read again once the watch exists. If the store was reset between the read and the watch, its revisions
/// start over, and the watch would wait for a far revision. After that point, a reset ends the watch.
pub(crate) async fn read_and_watch(store: &dyn Store, prefix: &str) -> Result<(Snapshot, ChangeStream), StoreError> {
    let before = store.read(prefix).await?.revision;
    let changes = store.watch(prefix, before).await?;
    let snapshot = store.read(prefix).await?;
    if snapshot.revision < before {
        return Err(StoreError::Unavailable("the store was reset during the read".into()));
    }
    let known = snapshot.revision;
    let later = changes.filter(move |changes| {
        let seen = changes.as_ref().is_ok_and(|changes| changes.revision <= known);
        async move { !seen }
    });
    Ok((snapshot, later.boxed()))
}

struct Follower {
    store: Arc<dyn Store>,
    prefix: String,
    view: watch::Sender<Arc<Snapshot>>,
    lost_stays: Duration,
    /// What a reset store has lost, and until when it stays.
    lost: Option<(BTreeMap<String, Entry>, Instant)>,
}

impl Follower {
    async fn run(mut self, mut backoff: Backoff) {
        loop {
            let error = match self.watch_once(&mut backoff).await {
                Err(error) => error,
                Ok(never) => match never {},
            };
            let message = match self.view.borrow().revision {
                0 => "cannot reach the store",
                _ => "lost the watch of the store; keeping the last known state",
            };
            backoff.failed(message, &error);
            backoff.wait().await;
        }
    }

    /// Reads everything, then watches. A broken watch is not resumed at its revision: a store that was reset may reuse
    /// revisions for other changes, so a read is needed anyway. A mirror promises the current state, not each change
    /// on the way.
    async fn watch_once(&mut self, backoff: &mut Backoff) -> Result<Infallible, StoreError> {
        let (mut snapshot, mut changes) = read_and_watch(&*self.store, &self.prefix).await?;
        backoff.reset();
        self.add_lost(&mut snapshot);
        // Published even if it looks the same: keys may have been deleted and put again meanwhile.
        self.view.send_replace(Arc::new(snapshot));
        loop {
            let until = self.lost.as_ref().map(|(_, until)| *until);
            let changes = tokio::select! {
                changes = changes.next() => changes,
                () = sleep_until(until.unwrap_or_else(Instant::now)), if until.is_some() => {
                    self.forget_lost();
                    continue;
                }
            };
            let Some(changes) = changes else { return Err(StoreError::Unavailable("the watch ended".into())) };
            let changes = changes?;
            if let Some((lost, _)) = &mut self.lost {
                lost.retain(|key, _| !changes.keys.iter().any(|(changed, _)| changed == key));
            }
            self.view.send_modify(|known| Arc::make_mut(known).apply(changes));
        }
    }

    /// Adds to what was read what the store has lost.
    fn add_lost(&mut self, snapshot: &mut Snapshot) {
        let known = self.view.borrow().clone();
        if !self.lost_stays.is_zero() && snapshot.point().is_after_reset(known.point()) {
            let until = Instant::now() + self.lost_stays;
            let missing = known.entries.iter().filter(|(key, _)| !snapshot.entries.contains_key(*key));
            // Whatever is written in their place has another revision.
            let unwritten = |entry: &Entry| Entry { revision: 0, ..entry.clone() };
            let lost: BTreeMap<String, Entry> = missing.map(|(key, entry)| (key.clone(), unwritten(entry))).collect();
            if !lost.is_empty() {
                let (keys, seconds) = (lost.len(), self.lost_stays.as_secs());
                tracing::warn!(
                    prefix = self.prefix,
                    keys,
                    seconds,
                    "the store was reset; what it has lost stays for a while"
                );
                self.lost = Some((lost, until));
            }
        }
        if let Some((lost, until)) = &mut self.lost {
            lost.retain(|key, _| !snapshot.entries.contains_key(key));
            if Instant::now() < *until {
                snapshot.entries.extend(lost.iter().map(|(key, entry)| (key.clone(), entry.clone())));
            }
        }
    }

    fn forget_lost(&mut self) {
        let Some((lost, _)) = self.lost.take() else { return };
        if !lost.is_empty() {
            tracing::warn!(prefix = self.prefix, keys = lost.len(), "nobody has written again what the store had lost");
            self.view.send_modify(|known| Arc::make_mut(known).entries.retain(|key, _| !lost.contains_key(key)));
        }
    }
}
