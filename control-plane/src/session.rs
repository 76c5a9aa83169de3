//! A node's registration: keys under one lease, put again under a new lease whenever the old one is lost. One key may
//! be the node's name: it never overwrites another node's, and while it is not held, no other key is written.
//!
//! This module does not know what the keys mean.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::{
    sync::watch,
    task::JoinHandle,
    time::{Instant, sleep_until, timeout_at},
};

use crate::{
    backoff::Backoff,
    limits,
    mirror::{Mirror, Renewal, Renewals},
    store::{Entry, KeyCondition, LeaseId, Revision, Store, StoreError, Transaction},
};

/// What this node has in the store, as far as it knows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SessionState {
    pub lease: Option<LeaseId>,
    /// Until then no other process can have seen the keys expire.
    pub until: Option<Instant>,
    /// Number of leases so far. If it has grown, all keys were missing for a while.
    pub leases: u64,
    /// Updates up to this one are in the store.
    pub applied: u64,
    /// Another process holds this session's name.
    pub name_holder: Option<NameHolder>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NameHolder {
    pub value: Bytes,
    revision: Revision,
    /// The lease under which the name is held.
    lease: Option<LeaseId>,
    /// Since then, the store has answered every check, and the lease held the name.
    since: Instant,
    checked: Instant,
}

impl SessionState {
    /// The holder's value, if it has held the name for more than three lease TTLs without an outage of the store: then
    /// it is alive. A store extends leases when it restarts, by at most one TTL each time.
    pub fn name_taken_by(&self, ttl: Duration) -> Option<&Bytes> {
        let held = |taken: &&NameHolder| taken.checked.duration_since(taken.since) > 3 * ttl;
        self.name_holder.as_ref().filter(held).map(|taken| &taken.value)
    }
}

#[derive(Debug, Clone, Default)]
struct Desired {
    keys: BTreeMap<String, Bytes>,
    /// The name may overwrite the value of this revision.
    over: Option<Revision>,
    count: u64,
    leave: bool,
}

/// Renews its lease after half the TTL, and retries at half of the remaining time. If it is dropped without `leave`,
/// its keys stay until the lease expires.
pub struct Session {
    desired: watch::Sender<Desired>,
    held: watch::Receiver<SessionState>,
    ttl: Duration,
    task: JoinHandle<()>,
}

impl Session {
    pub fn new(store: Arc<dyn Store>, who: &str, ttl: Duration) -> Self {
        Session::begin(store, who, ttl, None)
    }

    /// A session whose node is identified by the key `name`. If another process holds the name, it waits until the name
    /// is free. If the name disappears, all keys are put again.
    pub fn named(store: Arc<dyn Store>, who: &str, ttl: Duration, name: impl Into<String>) -> Self {
        Session::begin(store, who, ttl, Some((name.into(), |_| true)))
    }

    /// The same for a name whose values can be told from garbage: what is none, and no other process's lease protects,
    /// is written over.
    pub fn of_record(
        store: Arc<dyn Store>,
        who: &str,
        ttl: Duration,
        name: impl Into<String>,
        is_record: IsRecord,
    ) -> Self {
        Session::begin(store, who, ttl, Some((name.into(), is_record)))
    }

    fn begin(store: Arc<dyn Store>, who: &str, ttl: Duration, name: Option<(String, IsRecord)>) -> Self {
        let (desired, desired_changes) = watch::channel(Desired::default());
        let (state, held) = watch::channel(SessionState::default());
        let name = name.map(|(key, is_record)| {
            let mirror = Mirror::new(store.clone(), who, key.clone());
            Name { key, mirror, is_record }
        });
        let keeper = SessionTask {
            store,
            ttl,
            name,
            desired_changes,
            state,
            stored: BTreeMap::new(),
            put: BTreeMap::new(),
            wait: None,
            stray: None,
        };
        let task = tokio::spawn(keeper.run(Backoff::new(who)));
        Session { desired, held, ttl, task }
    }

    /// Sets the key to this value, as soon as the store accepts it.
    pub fn put(&self, key: impl Into<String>, value: impl Into<Bytes>) {
        self.update(|keys| {
            keys.insert(key.into(), value.into());
        });
    }

    /// The holder of the name is known to be gone: its lease need not expire first.
    pub fn replace(&self, taken: &NameHolder) {
        self.desired.send_modify(|desired| desired.over = Some(taken.revision));
    }

    pub fn remove(&self, key: &str) {
        self.update(|keys| {
            keys.remove(key);
        });
    }

    fn update(&self, change: impl FnOnce(&mut BTreeMap<String, Bytes>)) {
        self.desired.send_modify(|desired| {
            change(&mut desired.keys);
            desired.count += 1;
        });
    }

    pub fn held(&self) -> watch::Receiver<SessionState> {
        self.held.clone()
    }

    /// When the store last renewed the lease.
    pub fn renewals(&self) -> Renewals {
        let (held, ttl) = (self.held.clone(), self.ttl);
        Arc::new(move || {
            let held = held.borrow();
            Some(Renewal { lease: held.lease?, at: held.until?.checked_sub(ttl)?, ttl })
        })
    }

    /// Returns when all updates so far are in the store.
    pub async fn settled(&self) {
        let count = self.desired.borrow().count;
        let mut held = self.held.clone();
        // The sender lives as long as this session.
        let _ = held.wait_for(|held| held.lease.is_some() && held.applied >= count).await;
    }

    /// Deletes all keys at once, if the store is reachable.
    pub async fn leave(mut self) {
        self.desired.send_modify(|desired| desired.leave = true);
        if let Err(error) = (&mut self.task).await {
            tracing::error!(%error, "the session's task failed");
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Whether a value is one that a process writes.
pub type IsRecord = fn(&[u8]) -> bool;

struct Name {
    key: String,
    mirror: Mirror,
    is_record: IsRecord,
}

impl Name {
    async fn changed(name: &mut Option<Name>) {
        match name {
            Some(name) => drop(name.mirror.changed().await),
            None => std::future::pending().await,
        }
    }
}

struct SessionTask {
    store: Arc<dyn Store>,
    ttl: Duration,
    name: Option<Name>,
    desired_changes: watch::Receiver<Desired>,
    state: watch::Sender<SessionState>,
    /// What the store holds under the current lease. None: a write was sent and not answered.
    stored: BTreeMap<String, Option<Bytes>>,
    /// The revisions of our writes.
    put: BTreeMap<String, Revision>,
    /// Pause before the next attempt to put the name.
    wait: Option<Duration>,
    /// The revision of a value that is no record: the name may overwrite it.
    stray: Option<Revision>,
}

impl SessionTask {
    async fn run(mut self, mut backoff: Backoff) {
        loop {
            let held = self.state.borrow().clone();
            let desired = self.desired_changes.borrow_and_update().clone();
            if desired.leave {
                return self.release(held.lease).await;
            }
            let done = match (held.lease, self.wait.take()) {
                (None, _) => self.begin().await,
                (Some(lease), Some(wait)) => self.wait_for_work(lease, held.until, wait).await,
                (Some(lease), None) if !self.is_applied(&desired.keys) => self.apply(lease, &desired).await,
                (Some(lease), None) => {
                    self.state.send_modify(|held| held.applied = desired.count);
                    self.wait_for_work(lease, held.until, Duration::MAX).await
                }
            };
            match done {
                Ok(()) => backoff.reset(),
                Err(StoreError::LeaseLost) => {
                    tracing::warn!("the lease expired; registering again under a new one");
                    self.state.send_modify(|held| (held.lease, held.until) = (None, None));
                }
                Err(error) => {
                    backoff.failed("cannot reach the store", &error);
                    self.back_off(backoff.next(), held.lease, held.until).await;
                }
            }
        }
    }

    async fn begin(&mut self) -> Result<(), StoreError> {
        let now = Instant::now();
        let lease = self.store.grant(self.ttl).await?;
        (self.stored, self.put) = Default::default();
        self.state.send_modify(|held| {
            (held.lease, held.until) = (Some(lease), Some(now + self.ttl));
            held.leases += 1;
            held.applied = 0;
        });
        Ok(())
    }

    async fn apply(&mut self, lease: LeaseId, desired: &Desired) -> Result<(), StoreError> {
        let mut transaction = Transaction::default();
        let gone: Vec<String> = self.stored.keys().filter(|key| !desired.keys.contains_key(*key)).cloned().collect();
        for key in &gone {
            self.stored.insert(key.clone(), None);
            transaction = transaction.delete(key.clone());
        }
        for (key, value) in &desired.keys {
            if self.stored.get(key).and_then(Option::as_ref) != Some(value) {
                self.stored.insert(key.clone(), None);
                transaction = transaction.put(key.clone(), value.clone(), Some(lease));
            }
        }
        let put: Vec<String> =
            desired.keys.keys().filter(|key| self.stored.get(*key).is_none_or(Option::is_none)).cloned().collect();
        if let Some(name) = self.name.as_ref().filter(|name| put.contains(&name.key)) {
            // The name may overwrite only the value that the caller saw, or nothing. Otherwise the conflict is resolved
            // again.
            let over = self.state.borrow().name_holder.as_ref().map(|taken| taken.revision);
            let over = over.filter(|at| desired.over == Some(*at)).or(self.stray.take());
            transaction = transaction.when(match self.put.get(&name.key).copied().or(over) {
                Some(at) => KeyCondition::At(name.key.clone(), at),
                None => KeyCondition::Absent(name.key.clone()),
            });
        }
        let Some(revision) = self.store.commit(transaction).await? else {
            return self.resolve_name_conflict(lease).await;
        };
        self.put.retain(|key, _| desired.keys.contains_key(key));
        self.put.extend(put.into_iter().map(|key| (key, revision)));
        self.stored = desired.keys.iter().map(|(key, value)| (key.clone(), Some(value.clone()))).collect();
        self.state.send_if_modified(|held| held.name_holder.take().is_some());
        Ok(())
    }

    /// The name in the store is not what this session wrote last.
    async fn resolve_name_conflict(&mut self, lease: LeaseId) -> Result<(), StoreError> {
        let Some((key, is_record)) = self.name.as_ref().map(|name| (name.key.clone(), name.is_record)) else {
            return Ok(());
        };
        let entry = self.store.read(&key).await?.entries.remove(&key);
        match entry {
            Some(entry) if !is_record(&entry.value) && entry.lease.is_none_or(|holder| holder == lease) => {
                tracing::warn!(key, bytes = entry.value.len(), "writing over a value that is no record");
                self.invalidate();
                self.stray = Some(entry.revision);
                self.state.send_if_modified(|held| held.name_holder.take().is_some());
            }
            // Our own write, whose answer was lost, or a value that somebody put in its place: that is written over.
            Some(entry) if entry.lease == Some(lease) => {
                self.put.insert(key.clone(), entry.revision);
                self.stored.insert(key, Some(entry.value));
                self.state.send_if_modified(|held| held.name_holder.take().is_some());
            }
            Some(entry) => {
                self.invalidate();
                let Entry { value, revision, lease } = entry;
                self.state.send_if_modified(|held| {
                    let (before, checked) = (held.name_holder.take(), Instant::now());
                    // During an outage, a store does not expire the leases of dead processes.
                    let same = |taken: &&NameHolder| {
                        taken.lease == lease && checked.duration_since(taken.checked) < limits::NAME_CHECK_GAP
                    };
                    let since = before.as_ref().filter(same).map_or(checked, |taken| taken.since);
                    let now = NameHolder { value, revision, lease, since, checked };
                    let news = before.is_none_or(|before| NameHolder { checked, ..before } != now);
                    held.name_holder = Some(now);
                    news
                });
                self.wait = Some(limits::MAX_RETRY_WAIT);
            }
            None => {
                self.invalidate();
                self.state.send_if_modified(|held| held.name_holder.take().is_some());
                self.wait = Some(limits::MIN_RETRY_WAIT);
            }
        }
        Ok(())
    }

    /// The name is gone, so all other keys may be gone too.
    fn invalidate(&mut self) {
        self.stored.values_mut().for_each(|value| *value = None);
        if let Some(name) = &self.name {
            self.put.remove(&name.key);
        }
    }

    /// Compares the mirror with the name. The mirror may lag behind our write, so the store decides.
    async fn check_name(&mut self, lease: LeaseId) -> Result<(), StoreError> {
        let Some(name) = &self.name else { return Ok(()) };
        let last = self.put.get(&name.key).copied().unwrap_or_default();
        let stored = self.stored.get(&name.key).and_then(Option::as_ref);
        let ours = |entry: &Entry| {
            // The mirror may lag behind our write.
            entry.lease == Some(lease) && (entry.revision <= last || Some(&entry.value) == stored)
        };
        let put = stored.is_some();
        if put && !name.mirror.view().entries.get(&name.key).is_some_and(ours) {
            // So that it is checked again if the store does not answer.
            self.stored.insert(name.key.clone(), None);
            return self.resolve_name_conflict(lease).await;
        }
        Ok(())
    }

    fn is_applied(&self, desired: &BTreeMap<String, Bytes>) -> bool {
        self.stored.len() == desired.len()
            && self
                .stored
                .iter()
                .zip(desired)
                .all(|(stored, desired)| (stored.0, stored.1.as_ref()) == (desired.0, Some(desired.1)))
    }

    /// Waits for an update or a change of the name, at most `most`. When the lease is due, renews it and checks that
    /// all keys are there.
    async fn wait_for_work(
        &mut self,
        lease: LeaseId,
        until: Option<Instant>,
        most: Duration,
    ) -> Result<(), StoreError> {
        let now = Instant::now();
        // Not half of the time left now: each update would postpone the renewal.
        let due = until.and_then(|until| until.checked_sub(self.ttl / 2)).unwrap_or(now);
        let wake = now.checked_add(most).map_or(due, |most| due.min(most));
        tokio::select! {
            biased;
            desired_changes = self.desired_changes.changed(), if now < due => match desired_changes {
                Ok(()) => return Ok(()),
                // The session is dropped, and this task with it.
                Err(_) => std::future::pending().await,
            },
            () = Name::changed(&mut self.name), if now < due => return self.check_name(lease).await,
            () = sleep_until(wake) => {}
        }
        if wake < due {
            return Ok(());
        }
        let now = Instant::now();
        self.store.renew(lease).await?;
        self.state.send_modify(|held| held.until = Some(now + self.ttl));
        self.restore_missing(lease).await
    }

    /// Puts keys again that were deleted, or that somebody overwrote who is no process. What another process wrote
    /// stays: two processes that hold the same seat for a moment would overwrite each other forever.
    async fn restore_missing(&mut self, lease: LeaseId) -> Result<(), StoreError> {
        let unchanged = |transaction: Transaction, (key, at): (&String, &Revision)| {
            transaction.when(KeyCondition::At(key.clone(), *at))
        };
        let all = self.put.iter().fold(Transaction::default(), unchanged);
        if self.put.is_empty() || self.store.commit(all).await?.is_some() {
            return Ok(());
        }
        for key in self.put.keys() {
            let entry = self.store.read(key).await?.entries.remove(key);
            let ours =
                |entry: &Entry| entry.lease == Some(lease) && self.stored.get(key) == Some(&Some(entry.value.clone()));
            let another = |entry: &Entry| entry.lease.is_some_and(|other| other != lease);
            if !entry.is_some_and(|entry| ours(&entry) || another(&entry)) {
                self.stored.insert(key.clone(), None);
            }
        }
        Ok(())
    }

    /// Waits between attempts: at most half of the lease's remaining time, or until there is an update.
    async fn back_off(&mut self, wait: Duration, lease: Option<LeaseId>, until: Option<Instant>) {
        let now = Instant::now();
        let left = until.filter(|_| lease.is_some()).map(|until| until.saturating_duration_since(now) / 2);
        let wait = left.map_or(wait, |left| wait.min(left.max(limits::MIN_RETRY_WAIT)));
        // The next round checks everything in any case.
        let _ = timeout_at(now + wait, self.desired_changes.changed()).await;
    }

    async fn release(&self, lease: Option<LeaseId>) {
        let Some(lease) = lease else { return };
        let gone = |transaction: Transaction, (key, at): (&String, &Revision)| {
            transaction.when(KeyCondition::At(key.clone(), *at)).delete(key.clone())
        };
        let ended = async {
            // The lease may be shared. Keys that another process has overwritten since are not ours.
            if self.store.commit(self.put.iter().fold(Transaction::default(), gone)).await?.is_none() {
                for key in &self.put {
                    self.store.commit(gone(Transaction::default(), key)).await?;
                }
            }
            self.store.revoke(lease).await
        };
        if let Err(error) = ended.await {
            tracing::warn!(%error, "cannot delete the keys; they expire with the lease");
        }
    }
}
