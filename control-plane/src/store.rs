//! The store under the control plane: keys with leases, conditional writes and watches. Two kinds: `Memory` and `Etcd`.

use std::{collections::BTreeMap, pin::Pin, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use futures::Stream;
use thiserror::Error;

/// Counts the store's writes. A key's revision is that of the write that put it.
pub type Revision = u64;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId(pub i64);

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub value: Bytes,
    pub revision: Revision,
    /// The key goes with it.
    pub lease: Option<LeaseId>,
}

/// All keys under a prefix, as they were at one revision.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Snapshot {
    pub revision: Revision,
    pub entries: BTreeMap<String, Entry>,
}

/// What one or more writes changed; None: the key is gone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Changes {
    pub revision: Revision,
    pub keys: Vec<(String, Option<Entry>)>,
}

impl Snapshot {
    pub fn apply(&mut self, changes: Changes) {
        self.revision = changes.revision;
        for (key, entry) in changes.keys {
            match entry {
                Some(entry) => self.entries.insert(key, entry),
                None => self.entries.remove(&key),
            };
        }
    }
}

/// What must hold for a transaction to be carried out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Condition {
    Absent(String),
    Present(String),
    /// The key was last written at this revision.
    At(String, Revision),
}

impl Condition {
    /// Where this is what its key has now.
    pub fn holds(&self, now: Option<&Entry>) -> bool {
        match self {
            Condition::Absent(_) => now.is_none(),
            Condition::Present(_) => now.is_some(),
            Condition::At(_, revision) => now.is_some_and(|entry| entry.revision == *revision),
        }
    }

    pub fn key(&self) -> &str {
        match self {
            Condition::Absent(key) | Condition::Present(key) | Condition::At(key, _) => key,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Write {
    Put { key: String, value: Bytes, lease: Option<LeaseId> },
    Delete { key: String },
}

impl Write {
    pub fn key(&self) -> &str {
        match self {
            Write::Put { key, .. } | Write::Delete { key } => key,
        }
    }
}

/// Writes that happen all together, and only if all conditions hold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Transaction {
    pub conditions: Vec<Condition>,
    pub writes: Vec<Write>,
}

impl Transaction {
    pub fn when(mut self, condition: Condition) -> Self {
        self.conditions.push(condition);
        self
    }

    pub fn put(mut self, key: impl Into<String>, value: impl Into<Bytes>, lease: Option<LeaseId>) -> Self {
        self.writes.push(Write::Put { key: key.into(), value: value.into(), lease });
        self
    }

    pub fn delete(mut self, key: impl Into<String>) -> Self {
        self.writes.push(Write::Delete { key: key.into() });
        self
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum StoreError {
    /// Whether a write took place is then unknown. Trying again may help.
    #[error("the store cannot be reached: {0}")]
    Unavailable(String),
    #[error("the changes after revision {0} are no longer kept")]
    Compacted(Revision),
    #[error("the lease has expired")]
    LeaseLost,
    /// Trying again does not help: credentials, permissions, a request the store does not take.
    #[error("the store refused: {0}")]
    Refused(String),
}

/// Ends when the store cannot be heard any more, for example after an error.
pub type Watch = Pin<Box<dyn Stream<Item = Result<Changes, StoreError>> + Send>>;

/// Every call returns within `limits::STORE_CALL`.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    async fn read(&self, prefix: &str) -> Result<Snapshot, StoreError>;
    /// Every change of a key under the prefix after a revision, in order.
    async fn watch(&self, prefix: &str, after: Revision) -> Result<Watch, StoreError>;
    /// None: a condition did not hold, and nothing was written.
    async fn commit(&self, transaction: Transaction) -> Result<Option<Revision>, StoreError>;
    /// A lease that expires, and its keys with it, when it has not been renewed for `ttl` (at least a second).
    async fn grant(&self, ttl: Duration) -> Result<LeaseId, StoreError>;
    async fn renew(&self, lease: LeaseId) -> Result<(), StoreError>;
    /// Expires it now. One that is gone already is no error.
    async fn revoke(&self, lease: LeaseId) -> Result<(), StoreError>;
}
