//! A node's presence: keys under one lease, put again under a new one whenever the old one is lost. One of them may be the
//! node's name: it is never put over somebody else's, and while it is not there, nothing is.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::{
    sync::watch,
    task::JoinHandle,
    time::{Instant, sleep_until, timeout_at},
};

use crate::{
    limits,
    mirror::Mirror,
    retry::Backoff,
    store::{Condition, Entry, LeaseId, Revision, Store, StoreError, Transaction},
};

/// What this node has in the store, as far as it knows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Held {
    pub lease: Option<LeaseId>,
    /// Until then no one else can have seen the keys vanish.
    pub until: Option<Instant>,
    /// Leases so far. A higher number than before: all keys were gone for a while.
    pub leases: u64,
    /// The wishes up to this one are in the store.
    pub carried_out: u64,
    /// Somebody else has this session's name.
    pub taken: Option<Rival>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rival {
    pub value: Bytes,
    revision: Revision,
    /// Whoever has it, has it with this.
    lease: Option<LeaseId>,
    since: Instant,
}

impl Held {
    /// Whoever has had the name for so long is no dead node whose lease has not run out yet.
    pub fn is_taken(&self, ttl: Duration) -> Option<&Bytes> {
        self.taken.as_ref().filter(|taken| taken.since.elapsed() > 2 * ttl).map(|taken| &taken.value)
    }
}

#[derive(Debug, Clone, Default)]
struct Wishes {
    keys: BTreeMap<String, Bytes>,
    /// The name may be put over what was put at this revision.
    over: Option<Revision>,
    count: u64,
    leave: bool,
}

/// Renews its lease when half of its time is over, and tries again at half of what is left. Dropped without `leave`, its keys
/// stay until the lease expires.
pub struct Session {
    wishes: watch::Sender<Wishes>,
    held: watch::Receiver<Held>,
    task: JoinHandle<()>,
}

impl Session {
    pub fn new(store: Arc<dyn Store>, who: &str, ttl: Duration) -> Self {
        Session::begin(store, who, ttl, None)
    }

    /// One whose node goes by `name`, a key that is put like the others. Who finds it taken waits until it is free; when it
    /// vanishes, all keys are put again.
    pub fn named(store: Arc<dyn Store>, who: &str, ttl: Duration, name: impl Into<String>) -> Self {
        Session::begin(store, who, ttl, Some(name.into()))
    }

    fn begin(store: Arc<dyn Store>, who: &str, ttl: Duration, name: Option<String>) -> Self {
        let (wishes, wished) = watch::channel(Wishes::default());
        let (holds, held) = watch::channel(Held::default());
        let name = name.map(|key| Name { mirror: Mirror::new(store.clone(), who, key.clone()), key });
        let keeper = Keeper { store, ttl, name, wished, holds, has: BTreeMap::new(), put: BTreeMap::new(), wait: None };
        let task = tokio::spawn(keeper.run(Backoff::new(who)));
        Session { wishes, held, task }
    }

    /// From now on the key has this value, as soon as the store takes it.
    pub fn put(&self, key: impl Into<String>, value: impl Into<Bytes>) {
        self.wish(|keys| {
            keys.insert(key.into(), value.into());
        });
    }

    /// Whoever had the name is known to be gone: it is not waited for their lease to run out.
    pub fn replace(&self, taken: &Rival) {
        self.wishes.send_modify(|wishes| wishes.over = Some(taken.revision));
    }

    pub fn remove(&self, key: &str) {
        self.wish(|keys| {
            keys.remove(key);
        });
    }

    fn wish(&self, change: impl FnOnce(&mut BTreeMap<String, Bytes>)) {
        self.wishes.send_modify(|wishes| {
            change(&mut wishes.keys);
            wishes.count += 1;
        });
    }

    pub fn held(&self) -> watch::Receiver<Held> {
        self.held.clone()
    }

    /// Returns when everything wished so far is in the store.
    pub async fn settled(&self) {
        let count = self.wishes.borrow().count;
        let mut held = self.held.clone();
        // The sender lives as long as this session.
        let _ = held.wait_for(|held| held.lease.is_some() && held.carried_out >= count).await;
    }

    /// Takes all keys away at once, if the store can be reached.
    pub async fn leave(mut self) {
        self.wishes.send_modify(|wishes| wishes.leave = true);
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

struct Name {
    key: String,
    mirror: Mirror,
}

impl Name {
    async fn changed(name: &mut Option<Name>) {
        match name {
            Some(name) => drop(name.mirror.changed().await),
            None => std::future::pending().await,
        }
    }
}

struct Keeper {
    store: Arc<dyn Store>,
    ttl: Duration,
    name: Option<Name>,
    wished: watch::Receiver<Wishes>,
    holds: watch::Sender<Held>,
    /// What the store holds under the present lease; None: a write was sent, and no answer came.
    has: BTreeMap<String, Option<Bytes>>,
    /// When these were put.
    put: BTreeMap<String, Revision>,
    /// Before the next attempt to put the name.
    wait: Option<Duration>,
}

impl Keeper {
    async fn run(mut self, mut backoff: Backoff) {
        loop {
            let held = self.holds.borrow().clone();
            let wishes = self.wished.borrow_and_update().clone();
            if wishes.leave {
                return self.end(held.lease).await;
            }
            let done = match (held.lease, self.wait.take()) {
                (None, _) => self.begin().await,
                (Some(lease), Some(wait)) => self.rest(lease, held.until, wait).await,
                (Some(lease), None) if !self.is_so(&wishes.keys) => self.carry_out(lease, &wishes).await,
                (Some(lease), None) => {
                    self.holds.send_modify(|held| held.carried_out = wishes.count);
                    self.rest(lease, held.until, Duration::MAX).await
                }
            };
            match done {
                Ok(()) => backoff.reset(),
                Err(StoreError::LeaseLost) => {
                    tracing::warn!("the lease is lost; everything is put again under a new one");
                    self.holds.send_modify(|held| (held.lease, held.until) = (None, None));
                }
                Err(error) => {
                    backoff.failed("cannot reach the store", &error);
                    self.pause(backoff.next(), held.lease, held.until).await;
                }
            }
        }
    }

    async fn begin(&mut self) -> Result<(), StoreError> {
        let now = Instant::now();
        let lease = self.store.grant(self.ttl).await?;
        (self.has, self.put) = Default::default();
        self.holds.send_modify(|held| {
            (held.lease, held.until) = (Some(lease), Some(now + self.ttl));
            held.leases += 1;
            held.carried_out = 0;
        });
        Ok(())
    }

    async fn carry_out(&mut self, lease: LeaseId, wishes: &Wishes) -> Result<(), StoreError> {
        let mut transaction = Transaction::default();
        let gone: Vec<String> = self.has.keys().filter(|key| !wishes.keys.contains_key(*key)).cloned().collect();
        for key in &gone {
            self.has.insert(key.clone(), None);
            transaction = transaction.delete(key.clone());
        }
        for (key, value) in &wishes.keys {
            if self.has.get(key).and_then(Option::as_ref) != Some(value) {
                self.has.insert(key.clone(), None);
                transaction = transaction.put(key.clone(), value.clone(), Some(lease));
            }
        }
        let put: Vec<String> =
            wishes.keys.keys().filter(|key| self.has.get(*key).is_none_or(Option::is_none)).cloned().collect();
        if let Some(name) = self.name.as_ref().filter(|name| put.contains(&name.key)) {
            // What may be put over is what is there now, or there is nothing: else it is contested again.
            let over =
                self.holds.borrow().taken.as_ref().map(|taken| taken.revision).filter(|at| wishes.over == Some(*at));
            transaction = transaction.when(match self.put.get(&name.key).copied().or(over) {
                Some(at) => Condition::At(name.key.clone(), at),
                None => Condition::Absent(name.key.clone()),
            });
        }
        let Some(revision) = self.store.commit(transaction).await? else {
            return self.contest(lease).await;
        };
        self.put.retain(|key, _| wishes.keys.contains_key(key));
        self.put.extend(put.into_iter().map(|key| (key, revision)));
        self.has = wishes.keys.iter().map(|(key, value)| (key.clone(), Some(value.clone()))).collect();
        self.holds.send_if_modified(|held| held.taken.take().is_some());
        Ok(())
    }

    /// The name is not there as it was put last.
    async fn contest(&mut self, lease: LeaseId) -> Result<(), StoreError> {
        let Some(key) = self.name.as_ref().map(|name| name.key.clone()) else { return Ok(()) };
        let entry = self.store.read(&key).await?.entries.remove(&key);
        match entry {
            // A write of ours whose answer was lost.
            Some(entry) if entry.lease == Some(lease) => {
                self.put.insert(key.clone(), entry.revision);
                self.has.insert(key, Some(entry.value));
                self.holds.send_if_modified(|held| held.taken.take().is_some());
            }
            Some(entry) => {
                self.doubt();
                let Entry { value, revision, lease } = entry;
                self.holds.send_if_modified(|held| {
                    let before = held.taken.take();
                    let since = before.as_ref().filter(|taken| taken.lease == lease).map(|taken| taken.since);
                    held.taken = Some(Rival { value, revision, lease, since: since.unwrap_or_else(Instant::now) });
                    held.taken != before
                });
                self.wait = Some(limits::RETRY_LONGEST);
            }
            None => {
                self.doubt();
                self.holds.send_if_modified(|held| held.taken.take().is_some());
                self.wait = Some(limits::RETRY_FIRST);
            }
        }
        Ok(())
    }

    /// Whatever was put may be gone, the name is.
    fn doubt(&mut self) {
        self.has.values_mut().for_each(|value| *value = None);
        if let Some(name) = &self.name {
            self.put.remove(&name.key);
        }
    }

    /// At what the mirror says of the name. It may lag behind what was put: the store has the last word.
    async fn look(&mut self, lease: LeaseId) -> Result<(), StoreError> {
        let Some(name) = &self.name else { return Ok(()) };
        let ours = |entry: &Entry| entry.lease == Some(lease);
        let put = self.has.get(&name.key).is_some_and(Option::is_some);
        if put && !name.mirror.view().entries.get(&name.key).is_some_and(ours) {
            // So that it is asked again if the store does not answer.
            self.has.insert(name.key.clone(), None);
            return self.contest(lease).await;
        }
        Ok(())
    }

    fn is_so(&self, wishes: &BTreeMap<String, Bytes>) -> bool {
        self.has.len() == wishes.len()
            && self.has.iter().zip(wishes).all(|(has, wish)| (has.0, has.1.as_ref()) == (wish.0, Some(wish.1)))
    }

    /// Until there is a new wish or news of the name, or the lease has to be renewed, which is then done, with a look
    /// whether all is there; no longer than `most`.
    async fn rest(&mut self, lease: LeaseId, until: Option<Instant>, most: Duration) -> Result<(), StoreError> {
        let now = Instant::now();
        // Not at half of what is left now: each wish would put it off.
        let due = until.and_then(|until| until.checked_sub(self.ttl / 2)).unwrap_or(now);
        let wake = now.checked_add(most).map_or(due, |most| due.min(most));
        tokio::select! {
            biased;
            wished = self.wished.changed(), if now < due => match wished {
                Ok(()) => return Ok(()),
                // The session is gone, and this task with it.
                Err(_) => std::future::pending().await,
            },
            () = Name::changed(&mut self.name), if now < due => return self.look(lease).await,
            () = sleep_until(wake) => {}
        }
        if wake < due {
            return Ok(());
        }
        let now = Instant::now();
        self.store.renew(lease).await?;
        self.holds.send_modify(|held| held.until = Some(now + self.ttl));
        self.miss().await
    }

    /// What somebody has taken away is put again. Not what is somebody else's now: two that have the same seat for a moment
    /// would never end.
    async fn miss(&mut self) -> Result<(), StoreError> {
        let there = |transaction: Transaction, key: &String| transaction.when(Condition::Present(key.clone()));
        let all = self.put.keys().fold(Transaction::default(), there);
        if self.put.is_empty() || self.store.commit(all).await?.is_some() {
            return Ok(());
        }
        for key in self.put.keys() {
            if !self.store.read(key).await?.entries.contains_key(key) {
                self.has.insert(key.clone(), None);
            }
        }
        Ok(())
    }

    /// Between attempts: no longer than half of what the lease has left, and not deaf.
    async fn pause(&mut self, wait: Duration, lease: Option<LeaseId>, until: Option<Instant>) {
        let now = Instant::now();
        let left = until.filter(|_| lease.is_some()).map(|until| until.saturating_duration_since(now) / 2);
        let wait = left.map_or(wait, |left| wait.min(left.max(limits::RETRY_FIRST)));
        // Whatever comes, the next round looks at everything.
        let _ = timeout_at(now + wait, self.wished.changed()).await;
    }

    async fn end(&self, lease: Option<LeaseId>) {
        let Some(lease) = lease else { return };
        let gone = |transaction: Transaction, (key, at): (&String, &Revision)| {
            transaction.when(Condition::At(key.clone(), *at)).delete(key.clone())
        };
        let ended = async {
            // The lease may be that of others, too. What somebody else has put since is theirs.
            if self.store.commit(self.put.iter().fold(Transaction::default(), gone)).await?.is_none() {
                for key in &self.put {
                    self.store.commit(gone(Transaction::default(), key)).await?;
                }
            }
            self.store.revoke(lease).await
        };
        if let Err(error) = ended.await {
            tracing::warn!(%error, "could not take the keys away; they expire with the lease");
        }
    }
}
