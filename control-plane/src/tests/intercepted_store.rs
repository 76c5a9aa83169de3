//! Stores that pass their calls on to another store. A test overrides the calls that it counts, delays or fails.

use std::time::Duration;

use async_trait::async_trait;

use crate::store::{ChangeStream, LeaseId, Revision, Snapshot, Store, StoreError, Transaction};

#[async_trait]
pub trait InterceptedStore: Send + Sync + 'static {
    fn inner(&self) -> &dyn Store;

    async fn on_read(&self, prefix: &str) -> Result<Snapshot, StoreError> {
        self.inner().read(prefix).await
    }

    async fn on_watch(&self, prefix: &str, after: Revision) -> Result<ChangeStream, StoreError> {
        self.inner().watch(prefix, after).await
    }

    async fn on_commit(&self, transaction: Transaction) -> Result<Option<Revision>, StoreError> {
        self.inner().commit(transaction).await
    }

    async fn on_grant(&self, ttl: Duration) -> Result<LeaseId, StoreError> {
        self.inner().grant(ttl).await
    }

    async fn on_renew(&self, lease: LeaseId) -> Result<(), StoreError> {
        self.inner().renew(lease).await
    }
}

#[async_trait]
impl<T: InterceptedStore> Store for T {
    async fn read(&self, prefix: &str) -> Result<Snapshot, StoreError> {
        self.on_read(prefix).await
    }

    async fn watch(&self, prefix: &str, after: Revision) -> Result<ChangeStream, StoreError> {
        self.on_watch(prefix, after).await
    }

    async fn commit(&self, transaction: Transaction) -> Result<Option<Revision>, StoreError> {
        self.on_commit(transaction).await
    }

    async fn grant(&self, ttl: Duration) -> Result<LeaseId, StoreError> {
        self.on_grant(ttl).await
    }

    async fn renew(&self, lease: LeaseId) -> Result<(), StoreError> {
        self.on_renew(lease).await
    }

    async fn revoke(&self, lease: LeaseId) -> Result<(), StoreError> {
        self.inner().revoke(lease).await
    }
}
