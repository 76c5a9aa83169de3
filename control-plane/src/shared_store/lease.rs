//! One lease for all nodes of a process, which live and die together. With a lease each, a busy process could miss the
//! renewal of some of a thousand leases, and each loss would be a change to the whole cluster.
//!
//! This module does not know the keys under the lease.

use std::{sync::Arc, time::Duration};

use tokio::sync::{mpsc, oneshot};

use crate::store::{LeaseId, Store, StoreError};

type Reply<T> = oneshot::Sender<Result<T, StoreError>>;

pub enum LeaseRequest {
    Grant(Duration, Reply<LeaseId>),
    Renew(LeaseId, Reply<()>),
    Revoke(LeaseId, Reply<()>),
}

struct Shared {
    lease: LeaseId,
    ttl: Duration,
    holders: usize,
}

struct Leases {
    store: Arc<dyn Store>,
    shared: Option<Shared>,
    /// The previous shared lease. Not all its holders know that it is lost.
    lost: Option<LeaseId>,
    /// The result of this round's renewal.
    renewed: Option<Result<(), StoreError>>,
}

/// Answers all requests that arrived meanwhile with one renewal. A caller that gave up holds no lease.
pub async fn keep(store: Arc<dyn Store>, mut wanted: mpsc::Receiver<LeaseRequest>) {
    let mut leases = Leases { store, shared: None, lost: None, renewed: None };
    while let Some(first) = wanted.recv().await {
        leases.renewed = None;
        let mut next = Some(first);
        // A renewal must begin after it was requested: requests that arrive during a call wait for the next round.
        let mut round: Vec<LeaseRequest> = Vec::new();
        while let Some(one) = next {
            round.push(one);
            next = wanted.try_recv().ok();
        }
        for one in round {
            leases.answer(one).await;
        }
    }
}

impl Leases {
    async fn answer(&mut self, wanted: LeaseRequest) {
        // The caller may have given up.
        match wanted {
            LeaseRequest::Grant(_, reply) if reply.is_closed() => {}
            LeaseRequest::Grant(ttl, reply) => {
                let granted = self.grant(ttl).await;
                let shared = self.shared.as_mut().filter(|shared| granted == Ok(shared.lease));
                if reply.send(granted).is_ok()
                    && let Some(shared) = shared
                {
                    shared.holders += 1;
                }
            }
            LeaseRequest::Renew(lease, reply) => {
                let _ = reply.send(self.renew(lease).await);
            }
            LeaseRequest::Revoke(lease, reply) => {
                let _ = reply.send(self.revoke(lease).await);
            }
        }
    }

    async fn grant(&mut self, ttl: Duration) -> Result<LeaseId, StoreError> {
        match &self.shared {
            Some(shared) if shared.ttl != ttl => return self.store.grant(ttl).await,
            Some(shared) => {
                let lease = shared.lease;
                match self.renew(lease).await {
                    Err(StoreError::LeaseLost) => {}
                    renewed => return renewed.map(|()| lease),
                }
            }
            None => {}
        }
        let lease = self.store.grant(ttl).await?;
        self.shared = Some(Shared { lease, ttl, holders: 0 });
        self.renewed = Some(Ok(()));
        Ok(lease)
    }

    async fn renew(&mut self, lease: LeaseId) -> Result<(), StoreError> {
        if self.lost == Some(lease) {
            return Err(StoreError::LeaseLost);
        }
        if self.shared.as_ref().is_none_or(|shared| shared.lease != lease) {
            return self.store.renew(lease).await;
        }
        if self.renewed.is_none() {
            self.renewed = Some(self.store.renew(lease).await);
        }
        let renewed = self.renewed.clone().unwrap_or(Ok(()));
        if renewed == Err(StoreError::LeaseLost) {
            (self.shared, self.lost, self.renewed) = (None, Some(lease), None);
        }
        renewed
    }

    /// Each holder deletes its own keys. The last one revokes the lease.
    async fn revoke(&mut self, lease: LeaseId) -> Result<(), StoreError> {
        match self.shared.as_mut().filter(|shared| shared.lease == lease) {
            Some(shared) if shared.holders > 1 => {
                shared.holders -= 1;
                Ok(())
            }
            shared => {
                if shared.is_some() {
                    (self.shared, self.lost) = (None, Some(lease));
                }
                self.store.revoke(lease).await
            }
        }
    }
}
