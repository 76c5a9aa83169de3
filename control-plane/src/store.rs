//! The interface to the store: keys with leases, conditional writes and watches. `Memory` and `Etcd` implement it.
//!
//! This module does not know what the keys mean.

use std::{collections::BTreeMap, pin::Pin, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use futures::Stream;
use thiserror::Error;

/// Counts the store's writes. The revision of a key is that of its last write.
pub type Revision = u64;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId(pub i64);

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub value: Bytes,
    pub revision: Revision,
    /// The key is deleted when this lease expires.
    pub lease: Option<LeaseId>,
}

/// All keys under a prefix at one revision.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Of the store itself. 0: it has none.
    pub cluster: u64,
    pub revision: Revision,
    pub entries: BTreeMap<String, Entry>,
}

/// The changes of one or more writes. None: the key was deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Changes {
    pub revision: Revision,
    pub keys: Vec<(String, Option<Entry>)>,
}

/// Where a store is in its history.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StorePoint {
    pub cluster: u64,
    pub revision: Revision,
}

impl StorePoint {
    /// Whether the store has lost its history since an earlier point: it came back empty, or from a backup.
    pub fn is_after_reset(self, earlier: StorePoint) -> bool {
        earlier.revision > 0 && (self.revision < earlier.revision || self.cluster != earlier.cluster)
    }
}

impl Snapshot {
    pub fn point(&self) -> StorePoint {
        StorePoint { cluster: self.cluster, revision: self.revision }
    }

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

/// What must hold for a transaction to be executed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyCondition {
    Absent(String),
    Present(String),
    /// The key was last written at this revision.
    At(String, Revision),
}

impl KeyCondition {
    /// Whether it holds, where `now` is the current entry of its key.
    pub fn holds(&self, now: Option<&Entry>) -> bool {
        match self {
            KeyCondition::Absent(_) => now.is_none(),
            KeyCondition::Present(_) => now.is_some(),
            KeyCondition::At(_, revision) => now.is_some_and(|entry| entry.revision == *revision),
        }
    }

    pub fn key(&self) -> &str {
        match self {
            KeyCondition::Absent(key) | KeyCondition::Present(key) | KeyCondition::At(key, _) => key,
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

/// Writes that take effect together, and only if all conditions hold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Transaction {
    pub conditions: Vec<KeyCondition>,
    pub writes: Vec<Write>,
}

impl Transaction {
    pub fn when(mut self, condition: KeyCondition) -> Self {
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
    /// It is unknown whether a write took effect. A retry may help.
    #[error("the store is unavailable: {0}")]
    Unavailable(String),
    #[error("the store no longer keeps the changes after revision {0}")]
    Compacted(Revision),
    #[error("the lease has expired")]
    LeaseLost,
    /// A retry does not help: bad credentials, missing permissions, or an invalid request.
    #[error("the store rejected the request: {0}")]
    Refused(String),
}

/// Ends when the store can no longer be watched, for example after an error.
pub type ChangeStream = Pin<Box<dyn Stream<Item = Result<Changes, StoreError>> + Send>>;

/// Every call returns within `limits::STORE_CALL`.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    async fn read(&self, prefix: &str) -> Result<Snapshot, StoreError>;
    /// Every change of a key under the prefix after a revision, in order.
    async fn watch(&self, prefix: &str, after: Revision) -> Result<ChangeStream, StoreError>;
    /// None: a condition did not hold, and nothing was written.
    async fn commit(&self, transaction: Transaction) -> Result<Option<Revision>, StoreError>;
    /// A lease that expires, with its keys, when it has not been renewed for `ttl` (at least a second).
    async fn grant(&self, ttl: Duration) -> Result<LeaseId, StoreError>;
    async fn renew(&self, lease: LeaseId) -> Result<(), StoreError>;
    /// Expires the lease now. It is no error if the lease does not exist.
    async fn revoke(&self, lease: LeaseId) -> Result<(), StoreError>;
}
