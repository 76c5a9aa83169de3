//! A store with seeded faults: slow calls, outages, lost answers, broken watches.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use futures::StreamExt;
use rand::{Rng, SeedableRng, rngs::StdRng};
use tokio::{sync::watch, time::Instant};

use crate::store::{ChangeStream, LeaseId, Revision, Snapshot, Store, StoreError, Transaction};

#[derive(Debug, Clone)]
pub struct Faulty<S> {
    store: S,
    rng: Arc<Mutex<StdRng>>,
    /// Percentage of calls that fail, half of them after they took effect.
    percent: Arc<AtomicU32>,
    /// Unreachable until then.
    out: watch::Sender<Option<Instant>>,
}

fn unavailable(what: &str) -> StoreError {
    StoreError::Unavailable(what.to_owned())
}

impl<S: Store + Clone> Faulty<S> {
    pub fn new(store: S, seed: u64, percent: u32) -> Self {
        let rng = Arc::new(Mutex::new(StdRng::seed_from_u64(seed)));
        let percent = Arc::new(AtomicU32::new(percent));
        Faulty { store, rng, percent, out: watch::Sender::new(None) }
    }

    pub fn outage(&self, time: Duration) {
        self.out.send_replace(Some(Instant::now() + time));
    }

    /// No more faults from now on, except a current outage.
    pub fn heal(&self) {
        self.percent.store(0, Ordering::Relaxed);
    }

    fn percent(&self) -> u32 {
        self.percent.load(Ordering::Relaxed)
    }

    fn random(&self, range: std::ops::Range<u32>) -> u32 {
        self.rng.lock().unwrap_or_else(PoisonError::into_inner).random_range(range)
    }

    fn is_out(&self) -> bool {
        self.out.borrow().is_some_and(|until| Instant::now() < until)
    }

    async fn call<T>(&self, call: impl Future<Output = Result<T, StoreError>> + Send) -> Result<T, StoreError> {
        tokio::time::sleep(Duration::from_millis(self.random(0..40).into())).await;
        if self.is_out() {
            tokio::time::sleep(Duration::from_millis(self.random(0..2000).into())).await;
            return Err(unavailable("an outage"));
        }
        let fault = self.random(0..200);
        if fault < self.percent() {
            return Err(unavailable("the call was lost"));
        }
        let answer = call.await;
        tokio::time::sleep(Duration::from_millis(self.random(0..40).into())).await;
        if fault < 2 * self.percent() { Err(unavailable("the answer was lost")) } else { answer }
    }
}

#[async_trait]
impl<S: Store + Clone> Store for Faulty<S> {
    async fn read(&self, prefix: &str) -> Result<Snapshot, StoreError> {
        self.call(self.store.read(prefix)).await
    }

    async fn watch(&self, prefix: &str, after: Revision) -> Result<ChangeStream, StoreError> {
        let inner = self.call(self.store.watch(prefix, after)).await?;
        let mut out = self.out.subscribe();
        let torn = async move {
            let now = Instant::now();
            let _ = out.wait_for(|until| until.is_some_and(|until| now < until)).await;
        };
        let this = self.clone();
        let inner = inner.then(move |changes| {
            let this = this.clone();
            async move {
                tokio::time::sleep(Duration::from_millis(this.random(0..40).into())).await;
                if this.random(0..200) < this.percent() { Err(unavailable("the watch broke")) } else { changes }
            }
        });
        Ok(Box::pin(inner.take_until(Box::pin(torn))))
    }

    async fn commit(&self, transaction: Transaction) -> Result<Option<Revision>, StoreError> {
        self.call(self.store.commit(transaction)).await
    }

    async fn grant(&self, ttl: Duration) -> Result<LeaseId, StoreError> {
        self.call(self.store.grant(ttl)).await
    }

    async fn renew(&self, lease: LeaseId) -> Result<(), StoreError> {
        self.call(self.store.renew(lease)).await
    }

    async fn revoke(&self, lease: LeaseId) -> Result<(), StoreError> {
        self.call(self.store.revoke(lease)).await
    }
}
