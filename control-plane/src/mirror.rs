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
    store::{ChangeStream, Changes, Entry, LeaseId, Snapshot, Store, StoreError},
};

/// How often what is doubted is looked at again.
const DOUBT_CHECK: Duration = Duration::from_millis(100);

const LAPSED: &str = "leases expired that the store did not renew; their keys stay for a while";

/// The last time that the store renewed the lease of this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Renewal {
    pub lease: LeaseId,
    pub at: Instant,
    /// Of the lease, as all processes of a cluster have it.
    pub ttl: Duration,
}

/// None: this process has no lease.
pub type Renewals = Arc<dyn Fn() -> Option<Renewal> + Send + Sync>;

/// What stays in a mirror although it has left the store without anybody's decision.
#[derive(Clone, Default)]
pub struct Patience {
    /// How long it stays, unless it is written or deleted.
    pub stays: Duration,
    /// By this, leases that expire because their owners are gone are told from those that a store which stops or hangs
    /// does not renew for anybody: then this process's own is overdue.
    pub renewals: Option<Renewals>,
}

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
        Self::lasting(store, who, prefix, Patience::default())
    }

    /// What a store has lost that was reset, and what expired while it renewed no leases, stays for a while: nobody has
    /// said that it is gone, and its owners write it again.
    pub fn lasting(store: Arc<dyn Store>, who: &str, prefix: impl Into<String>, patience: Patience) -> Self {
        let (sender, view) = watch::channel(Arc::new(Snapshot::default()));
        let following = Follower { store, prefix: prefix.into(), view: sender, patience, lost: None, lease: None };
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
    patience: Patience,
    lost: Option<Lost>,
    /// Of this process, when the store was heard last.
    lease: Option<LeaseId>,
}

/// What stays although the store lacks it.
struct Lost {
    entries: BTreeMap<String, Entry>,
    until: Instant,
    /// The renewal that was overdue when it expired. None: the store had no lease of this process any more.
    overdue: Option<Renewal>,
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
            let wake = self.lost.as_ref().map(|lost| match lost.overdue {
                Some(_) => lost.until.min(Instant::now() + DOUBT_CHECK),
                None => lost.until,
            });
            let changes = tokio::select! {
                changes = changes.next() => changes,
                () = sleep_until(wake.unwrap_or_else(Instant::now)), if wake.is_some() => {
                    self.check_lost();
                    continue;
                }
            };
            let Some(changes) = changes else { return Err(StoreError::Unavailable("the watch ended".into())) };
            let mut changes = changes?;
            self.lease = self.own_lease();
            if let Some(lost) = &mut self.lost {
                lost.entries.retain(|key, _| !changes.keys.iter().any(|(changed, _)| changed == key));
            }
            self.keep_doubted(&mut changes);
            self.view.send_modify(|known| Arc::make_mut(known).apply(changes));
        }
    }

    /// The renewal of this process's lease, if it is overdue: the store renews none. A lease is renewed after half its
    /// TTL, so those that expire have not been renewed for half of it after any other was.
    fn overdue(&self) -> Option<Option<Renewal>> {
        let renewal = self.patience.renewals.as_ref()?();
        let is_recent = |renewal: &Renewal| renewal.at.elapsed() < renewal.ttl * 9 / 20;
        (!renewal.as_ref().is_some_and(is_recent)).then_some(renewal)
    }

    fn own_lease(&self) -> Option<LeaseId> {
        let renewal = self.patience.renewals.as_ref()?();
        renewal.map(|renewal| renewal.lease)
    }

    /// Whether what was read is of a store that has lost its history. Its revisions may have passed the old ones when
    /// it is read; but then it has neither this process's lease nor anything that has no lease.
    fn is_reset(&self, known: &Snapshot, snapshot: &Snapshot) -> bool {
        let survives = |(key, entry): (&String, &Entry)| {
            snapshot.entries.get(key).is_some_and(|now| now.revision == entry.revision)
        };
        let mut lasting = known.entries.iter().filter(|(_, entry)| entry.lease.is_none()).peekable();
        let lost_lease = self.overdue().is_some() || self.lease.is_some() && self.own_lease() != self.lease;
        snapshot.point().is_after_reset(known.point())
            || lost_lease && lasting.peek().is_some() && !lasting.any(survives)
    }

    fn keep(&mut self, entries: BTreeMap<String, Entry>, overdue: Option<Renewal>, why: &str) {
        if entries.is_empty() {
            return;
        }
        let (keys, seconds) = (entries.len(), self.patience.stays.as_secs());
        tracing::warn!(prefix = self.prefix, keys, seconds, "{why}");
        let until = Instant::now() + self.patience.stays;
        let lost = self.lost.get_or_insert_with(|| Lost { entries: BTreeMap::new(), until, overdue });
        lost.until = until;
        // Whatever is written in their place has another revision.
        lost.entries.extend(entries.into_iter().map(|(key, entry)| (key, Entry { revision: 0, ..entry })));
    }

    /// Takes keys out of these changes that have expired while the store renewed no leases.
    fn keep_doubted(&mut self, changes: &mut Changes) {
        let Some(overdue) = self.overdue() else { return };
        let known = self.view.borrow().clone();
        let mut expired = BTreeMap::new();
        changes.keys.retain(|(key, entry)| {
            let leased = known.entries.get(key).filter(|known| entry.is_none() && known.lease.is_some());
            leased.map(|known| expired.insert(key.clone(), known.clone())).is_none()
        });
        // The view keeps them as they were.
        self.keep(expired, overdue, LAPSED);
    }

    /// Adds to what was read what the store has lost.
    fn add_lost(&mut self, snapshot: &mut Snapshot) {
        let known = self.view.borrow().clone();
        let missing = known.entries.iter().filter(|(key, _)| !snapshot.entries.contains_key(*key));
        let missing = missing.map(|(key, entry)| (key.clone(), entry.clone()));
        if !self.patience.stays.is_zero() && self.is_reset(&known, snapshot) {
            self.keep(missing.collect(), None, "the store was reset; what it has lost stays for a while");
        } else if let Some(overdue) = self.overdue() {
            let stays = |key: &String| self.lost.as_ref().is_some_and(|lost| lost.entries.contains_key(key));
            let expired = missing.filter(|(key, entry)| entry.lease.is_some() && !stays(key)).collect();
            self.keep(expired, overdue, LAPSED);
        }
        self.lease = self.own_lease();
        if let Some(lost) = &mut self.lost {
            lost.entries.retain(|key, _| !snapshot.entries.contains_key(key));
            if Instant::now() < lost.until {
                snapshot.entries.extend(lost.entries.iter().map(|(key, entry)| (key.clone(), entry.clone())));
            }
        }
    }

    /// Forgets what has stayed long enough. If the store has renewed the same lease of this process again, owners of
    /// other leases have until their next renewal.
    fn check_lost(&mut self) {
        let Some(lost) = &mut self.lost else { return };
        let now = Instant::now();
        if let Some(overdue) = lost.overdue
            && let Some(renewal) = self.patience.renewals.as_ref().and_then(|renewals| renewals())
            && renewal != overdue
        {
            lost.overdue = None;
            if renewal.lease == overdue.lease {
                lost.until = lost.until.min(now + renewal.ttl / 2);
            }
        }
        if now < lost.until {
            return;
        }
        let Some(Lost { entries, .. }) = self.lost.take().filter(|lost| !lost.entries.is_empty()) else { return };
        tracing::warn!(prefix = self.prefix, keys = entries.len(), "nobody has written again what the store had lost");
        self.view.send_modify(|known| Arc::make_mut(known).entries.retain(|key, _| !entries.contains_key(key)));
    }
}

#[cfg(test)]
mod tests;
