//! One connection to the store for all nodes of a process: one read and one watch of all keys, whatever the number of
//! nodes. Each node is told only of the keys that it watches, so that the cost of a change does not grow with the
//! number of nodes. Concurrent writes are combined, and all nodes share one [`lease`].
//!
//! This module does not know what the keys mean.

mod lease;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    convert::Infallible,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use futures::{StreamExt, future::join_all, stream};
use tokio::{
    sync::{mpsc, oneshot, watch},
    task::JoinSet,
    time::timeout,
};

use crate::{
    backoff::Backoff,
    limits, mirror,
    store::{
        ChangeStream, Changes, Entry, KeyCondition, LeaseId, Revision, Snapshot, Store, StoreError, Transaction, Write,
    },
};

/// Writes go to the store itself. Reads under `root` are as new as the newest change that any watch has delivered;
/// while the store is unreachable, reads fail as well. Snapshots and changes have revisions of their own, which only
/// grow: after a reset of the store, no reader can watch from an older revision by accident. Entries keep the store's
/// revisions.
pub struct SharedStore {
    store: Arc<dyn Store>,
    root: String,
    shared: Arc<Shared>,
    writes: mpsc::Sender<PendingWrite>,
    leases: mpsc::Sender<lease::LeaseRequest>,
    _tasks: JoinSet<()>,
}

/// A transaction, and where its result goes.
struct PendingWrite {
    transaction: Transaction,
    done: oneshot::Sender<Result<Option<Revision>, StoreError>>,
}

struct Shared {
    state: Mutex<State>,
    /// Whether the state matches the store.
    synced: watch::Sender<bool>,
}

#[derive(Default)]
struct State {
    snapshot: Snapshot,
    /// The changes after revision `forgotten`.
    history: VecDeque<Changes>,
    forgotten: Revision,
    /// By prefix.
    watchers: HashMap<String, Vec<mpsc::Sender<Changes>>>,
}

impl SharedStore {
    /// Must be called inside a runtime.
    pub fn new(store: Arc<dyn Store>, who: &str, root: impl Into<String>) -> Self {
        let root = root.into();
        let shared = Arc::new(Shared { state: Mutex::default(), synced: watch::Sender::new(false) });
        let (writes, wanted) = mpsc::channel(limits::SHARED_STORE_WRITES);
        let (leases, asked) = mpsc::channel(limits::SHARED_STORE_WRITES);
        // They end with this store.
        let mut tasks = JoinSet::new();
        tasks.spawn(follow(store.clone(), Backoff::new(who), root.clone(), shared.clone()));
        tasks.spawn(write(store.clone(), wanted));
        tasks.spawn(lease::keep(store.clone(), asked));
        SharedStore { store, root, shared, writes, leases, _tasks: tasks }
    }

    async fn request<T>(
        &self,
        wanted: impl FnOnce(oneshot::Sender<Result<T, StoreError>>) -> lease::LeaseRequest,
    ) -> Result<T, StoreError> {
        let (reply, answer) = oneshot::channel();
        let asking = async {
            self.leases.send(wanted(reply)).await.ok()?;
            answer.await.ok()
        };
        let late = || StoreError::Unavailable("no answer in time".into());
        timeout(limits::STORE_CALL, asking).await.ok().flatten().ok_or_else(late)?
    }

    async fn synced(&self) -> Result<(), StoreError> {
        let mut synced = self.shared.synced.subscribe();
        let waited = timeout(limits::STORE_CALL, synced.wait_for(|synced| *synced)).await;
        match waited {
            Ok(Ok(_)) => Ok(()),
            _ => Err(StoreError::Unavailable("the watch is broken".into())),
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn reset(&self, entries: BTreeMap<String, Entry>) {
        let mut state = self.state();
        let revision = state.snapshot.revision + 1;
        *state =
            State { forgotten: revision, snapshot: Snapshot { cluster: 0, revision, entries }, ..State::default() };
    }
}

impl State {
    /// The answer to a transaction without writes.
    fn answer(&self, conditions: &[KeyCondition]) -> Option<Revision> {
        let holds = |condition: &KeyCondition| condition.holds(self.snapshot.entries.get(condition.key()));
        conditions.iter().all(holds).then_some(self.snapshot.revision)
    }

    fn apply(&mut self, changes: Changes) {
        let changes = Changes { revision: self.snapshot.revision + 1, ..changes };
        let mut told: BTreeMap<&str, Vec<(String, Option<Entry>)>> = BTreeMap::new();
        for (key, entry) in &changes.keys {
            for end in (0..=key.len()).filter(|&end| key.is_char_boundary(end)) {
                if let Some((prefix, _)) = self.watchers.get_key_value(&key[..end]) {
                    told.entry(prefix).or_default().push((key.clone(), entry.clone()));
                }
            }
        }
        let told: Vec<(String, Changes)> = told
            .into_iter()
            .map(|(prefix, keys)| (prefix.to_owned(), Changes { revision: changes.revision, keys }))
            .collect();
        for (prefix, changes) in told {
            if let Some(watchers) = self.watchers.get_mut(&prefix) {
                // A watcher that is too slow, or gone, is dropped; it must read again.
                watchers.retain(|watcher| watcher.try_send(changes.clone()).is_ok());
                if watchers.is_empty() {
                    self.watchers.remove(&prefix);
                }
            }
        }
        self.history.push_back(changes.clone());
        if self.history.len() > limits::SHARED_STORE_HISTORY
            && let Some(oldest) = self.history.pop_front()
        {
            self.forgotten = oldest.revision;
        }
        self.snapshot.apply(changes);
    }

    fn watch(&mut self, prefix: &str, after: Revision) -> Result<mpsc::Receiver<Changes>, StoreError> {
        if after < self.forgotten {
            return Err(StoreError::Compacted(after));
        }
        let (sender, receiver) = mpsc::channel(limits::WATCH_BACKLOG);
        for changes in self.history.iter().filter(|changes| changes.revision > after) {
            let of_prefix = changes.keys.iter().filter(|(key, _)| key.starts_with(prefix)).cloned();
            let missed = Changes { revision: changes.revision, keys: of_prefix.collect() };
            if !missed.keys.is_empty() && sender.try_send(missed).is_err() {
                return Err(StoreError::Compacted(after));
            }
        }
        let watchers = self.watchers.entry(prefix.to_owned()).or_default();
        watchers.retain(|watcher| !watcher.is_closed());
        watchers.push(sender);
        Ok(receiver)
    }
}

async fn follow(store: Arc<dyn Store>, mut backoff: Backoff, root: String, shared: Arc<Shared>) {
    let mut watched = false;
    loop {
        let session = async {
            let (snapshot, mut changes) = mirror::read_and_watch(&*store, &root).await?;
            backoff.reset();
            shared.reset(snapshot.entries);
            shared.synced.send_replace(true);
            watched = true;
            while let Some(changes) = changes.next().await {
                shared.state().apply(changes?);
            }
            Err::<Infallible, _>(StoreError::Unavailable("the watch ended".into()))
        };
        let Err(error) = session.await;
        shared.synced.send_replace(false);
        // All watchers must read again.
        shared.state().watchers.clear();
        backoff.failed(if watched { "lost the watch of the store" } else { "cannot reach the store" }, &error);
        backoff.wait().await;
    }
}

async fn write(store: Arc<dyn Store>, mut wanted: mpsc::Receiver<PendingWrite>) {
    let mut next = None;
    loop {
        let first = match next.take() {
            Some(first) => first,
            None => match wanted.recv().await {
                Some(first) => first,
                None => return,
            },
        };
        let (mut together, mut keys) = (Vec::new(), BTreeSet::new());
        let mut candidate = Some(first);
        while let Some(one) = candidate {
            // The caller has given up, and the write has not been sent.
            if one.done.is_closed() {
                candidate = wanted.try_recv().ok();
                continue;
            }
            let Transaction { conditions, writes } = &one.transaction;
            let own = writes.iter().map(Write::key).chain(conditions.iter().map(KeyCondition::key));
            let own: BTreeSet<String> = own.map(str::to_owned).collect();
            let fits = keys.len() + own.len() <= limits::WRITES && keys.is_disjoint(&own);
            if !fits && !together.is_empty() {
                next = Some(one);
                break;
            }
            keys.extend(own);
            together.push(one);
            candidate = wanted.try_recv().ok();
        }
        let mut all = Transaction::default();
        for PendingWrite { transaction, .. } in &together {
            all.conditions.extend(transaction.conditions.iter().cloned());
            all.writes.extend(transaction.writes.iter().cloned());
        }
        let answer = store.commit(all).await;
        // If the combined write fails because of one lease or condition, each transaction is tried alone, and all at
        // once: one after the other could take longer than their leases last.
        let stuck = matches!(answer, Ok(None) | Err(StoreError::LeaseLost | StoreError::Refused(_)));
        let alone = together.len() > 1 && stuck;
        let answers = together.into_iter().map(async |PendingWrite { transaction, done }| {
            let answer = if alone { store.commit(transaction).await } else { answer.clone() };
            // The caller may have given up.
            let _ = done.send(answer);
        });
        join_all(answers).await;
    }
}

#[async_trait]
impl Store for SharedStore {
    async fn read(&self, prefix: &str) -> Result<Snapshot, StoreError> {
        if !prefix.starts_with(&self.root) {
            return self.store.read(prefix).await;
        }
        self.synced().await?;
        let state = self.shared.state();
        let from = state.snapshot.entries.range(prefix.to_owned()..);
        let entries = from.take_while(|(key, _)| key.starts_with(prefix));
        let entries = entries.map(|(key, entry)| (key.clone(), entry.clone())).collect();
        Ok(Snapshot { cluster: state.snapshot.cluster, revision: state.snapshot.revision, entries })
    }

    async fn watch(&self, prefix: &str, after: Revision) -> Result<ChangeStream, StoreError> {
        if !prefix.starts_with(&self.root) {
            return self.store.watch(prefix, after).await;
        }
        self.synced().await?;
        let watched = self.shared.state().watch(prefix, after)?;
        Ok(stream::unfold(watched, |mut watched| async { Some((Ok(watched.recv().await?), watched)) }).boxed())
    }

    async fn commit(&self, transaction: Transaction) -> Result<Option<Revision>, StoreError> {
        let ours = |condition: &KeyCondition| condition.key().starts_with(&self.root);
        if transaction.writes.is_empty() && transaction.conditions.iter().all(ours) {
            self.synced().await?;
            return Ok(self.shared.state().answer(&transaction.conditions));
        }
        let (done, answer) = oneshot::channel();
        let written = async {
            // Both ends live as long as this store.
            self.writes.send(PendingWrite { transaction, done }).await.ok()?;
            answer.await.ok()
        };
        let late = || StoreError::Unavailable("no answer in time".into());
        timeout(limits::STORE_CALL, written).await.ok().flatten().ok_or_else(late)?
    }

    async fn grant(&self, ttl: Duration) -> Result<LeaseId, StoreError> {
        self.request(|reply| lease::LeaseRequest::Grant(ttl, reply)).await
    }

    async fn renew(&self, lease: LeaseId) -> Result<(), StoreError> {
        self.request(|reply| lease::LeaseRequest::Renew(lease, reply)).await
    }

    async fn revoke(&self, lease: LeaseId) -> Result<(), StoreError> {
        self.request(|reply| lease::LeaseRequest::Revoke(lease, reply)).await
    }
}
