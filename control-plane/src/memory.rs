//! The store of a single process and of tests: in memory, on tokio's clock.
//!
//! This module does not know what the keys mean.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use futures::StreamExt;
use tokio::{sync::broadcast, time::Instant};
use tokio_stream::wrappers::{BroadcastStream, errors::BroadcastStreamRecvError};

use crate::{
    limits,
    store::{ChangeStream, Changes, Entry, LeaseId, Revision, Snapshot, Store, StoreError, Transaction, Write},
};

#[derive(Debug, Clone, Default)]
pub struct MemoryStore(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    revision: Revision,
    entries: BTreeMap<String, Entry>,
    leases: BTreeMap<LeaseId, Lease>,
    next_lease: i64,
    /// The changes after revision `forgotten`.
    history: VecDeque<Changes>,
    forgotten: Revision,
    news: broadcast::Sender<Changes>,
}

#[derive(Debug)]
struct Lease {
    ttl: Duration,
    until: Instant,
    keys: BTreeSet<String>,
}

impl Default for State {
    fn default() -> Self {
        State {
            revision: 1,
            entries: BTreeMap::new(),
            leases: BTreeMap::new(),
            next_lease: 1,
            history: VecDeque::new(),
            forgotten: 1,
            news: broadcast::Sender::new(limits::WATCH_BACKLOG),
        }
    }
}

impl State {
    fn write(&mut self, writes: Vec<Write>) {
        let revision = self.revision + 1;
        let mut keys = Vec::new();
        for write in writes {
            match write {
                Write::Put { key, value, lease } => {
                    let entry = Entry { value, revision, lease };
                    self.unbind(&key);
                    if let Some(lease) = lease.and_then(|id| self.leases.get_mut(&id)) {
                        lease.keys.insert(key.clone());
                    }
                    self.entries.insert(key.clone(), entry.clone());
                    keys.push((key, Some(entry)));
                }
                Write::Delete { key } => {
                    self.unbind(&key);
                    if self.entries.remove(&key).is_some() {
                        keys.push((key, None));
                    }
                }
            }
        }
        if keys.is_empty() {
            return;
        }
        self.revision = revision;
        let changes = Changes { revision, keys };
        self.history.push_back(changes.clone());
        if self.history.len() > limits::MEMORY_HISTORY {
            self.compact(self.history[0].revision);
        }
        // There may be no watcher.
        let _ = self.news.send(changes);
    }

    fn unbind(&mut self, key: &str) {
        if let Some(lease) = self.entries.get(key).and_then(|entry| entry.lease)
            && let Some(lease) = self.leases.get_mut(&lease)
        {
            lease.keys.remove(key);
        }
    }

    fn compact(&mut self, revision: Revision) {
        while self.history.front().is_some_and(|changes| changes.revision <= revision) {
            self.history.pop_front();
        }
        self.forgotten = self.forgotten.max(revision);
    }

    fn end(&mut self, lease: LeaseId) {
        if let Some(lease) = self.leases.remove(&lease) {
            self.write(lease.keys.into_iter().map(|key| Write::Delete { key }).collect());
        }
    }
}

impl MemoryStore {
    /// The state, after dropping expired leases.
    fn state(&self) -> MutexGuard<'_, State> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let over: Vec<LeaseId> = state.leases.iter().filter(|(_, l)| l.until <= now).map(|(id, _)| *id).collect();
        over.into_iter().for_each(|lease| state.end(lease));
        state
    }

    /// Forgets the changes up to `revision`, like an etcd compaction.
    pub fn compact(&self, revision: Revision) {
        self.state().compact(revision);
    }

    /// Loses all data, like an etcd whose disk was lost.
    pub fn lose_everything(&self) {
        let mut state = self.state();
        *state = State { next_lease: state.next_lease, ..State::default() };
    }

    /// Ends the lease when it expires, so that watchers see it without another call.
    fn expire(&self, lease: LeaseId) {
        let store = Arc::downgrade(&self.0);
        tokio::spawn(async move {
            loop {
                let Some(store) = store.upgrade().map(MemoryStore) else { return };
                let Some(until) = store.state().leases.get(&lease).map(|lease| lease.until) else { return };
                drop(store);
                tokio::time::sleep_until(until).await;
            }
        });
    }
}

fn under(prefix: &str, mut changes: Changes) -> Option<Changes> {
    changes.keys.retain(|(key, _)| key.starts_with(prefix));
    (!changes.keys.is_empty()).then_some(changes)
}

#[async_trait]
impl Store for MemoryStore {
    async fn read(&self, prefix: &str) -> Result<Snapshot, StoreError> {
        let state = self.state();
        let under = state.entries.range(prefix.to_owned()..).take_while(|(key, _)| key.starts_with(prefix));
        let entries = under.map(|(key, entry)| (key.clone(), entry.clone())).collect();
        Ok(Snapshot { cluster: 0, revision: state.revision, entries })
    }

    async fn watch(&self, prefix: &str, after: Revision) -> Result<ChangeStream, StoreError> {
        let state = self.state();
        if after < state.forgotten {
            return Err(StoreError::Compacted(after));
        }
        let past: Vec<Changes> = state.history.iter().filter(|changes| changes.revision > after).cloned().collect();
        let news = BroadcastStream::new(state.news.subscribe()).map(|changes| {
            changes.map_err(|BroadcastStreamRecvError::Lagged(_)| {
                StoreError::Unavailable("the watcher is too slow".into())
            })
        });
        let all = futures::stream::iter(past).map(Ok).chain(news);
        let prefix = prefix.to_owned();
        let all = all.filter_map(move |changes| {
            let changes = changes.map(|changes| under(&prefix, changes)).transpose();
            async move { changes }
        });
        Ok(Box::pin(all))
    }

    async fn commit(&self, transaction: Transaction) -> Result<Option<Revision>, StoreError> {
        let mut state = self.state();
        if !transaction.conditions.iter().all(|condition| condition.holds(state.entries.get(condition.key()))) {
            return Ok(None);
        }
        let leases = transaction.writes.iter().filter_map(|write| match write {
            Write::Put { lease, .. } => *lease,
            Write::Delete { .. } => None,
        });
        if leases.into_iter().any(|lease| !state.leases.contains_key(&lease)) {
            return Err(StoreError::LeaseLost);
        }
        state.write(transaction.writes);
        Ok(Some(state.revision))
    }

    async fn grant(&self, ttl: Duration) -> Result<LeaseId, StoreError> {
        let id = {
            let mut state = self.state();
            let id = LeaseId(state.next_lease);
            state.next_lease += 1;
            state.leases.insert(id, Lease { ttl, until: Instant::now() + ttl, keys: BTreeSet::new() });
            id
        };
        self.expire(id);
        Ok(id)
    }

    async fn renew(&self, lease: LeaseId) -> Result<(), StoreError> {
        let mut state = self.state();
        let lease = state.leases.get_mut(&lease).ok_or(StoreError::LeaseLost)?;
        lease.until = Instant::now() + lease.ttl;
        Ok(())
    }

    async fn revoke(&self, lease: LeaseId) -> Result<(), StoreError> {
        self.state().end(lease);
        Ok(())
    }
}
