//! Real controllers over a store whose writes take effect late, or never.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use tokio::{sync::watch, task::JoinHandle, time::timeout};

use super::intercepted_store::InterceptedStore;
use crate::{
    Keys, MemoryStore, ModelShape, Store,
    controller::{ControllerOptions, run},
    decide::ControllerSettings,
    limits,
    records::{GroupRecord, Release, Seat, WorkerRecord, WorkerState, decode, encode},
    stats::ControllerStats,
    store::{Revision, StoreError, Transaction},
};

/// A write and its result.
type Sent = (Transaction, JoinHandle<Option<Revision>>);

/// Holds back writes of placements until the gate opens; their callers get no answer in time.
#[derive(Clone)]
struct Late {
    store: MemoryStore,
    open: watch::Sender<bool>,
    sent: Arc<Mutex<Vec<Sent>>>,
}

impl Late {
    fn over(store: &MemoryStore) -> Late {
        Late { store: store.clone(), open: watch::Sender::new(false), sent: Arc::default() }
    }

    fn sent(&self) -> usize {
        self.sent.lock().unwrap().len()
    }
}

#[async_trait]
impl InterceptedStore for Late {
    fn inner(&self) -> &dyn Store {
        &self.store
    }

    async fn on_commit(&self, transaction: Transaction) -> Result<Option<Revision>, StoreError> {
        if !transaction.writes.iter().any(|write| write.key().ends_with("/placement")) || *self.open.borrow() {
            return self.store.commit(transaction).await;
        }
        let (store, mut open, write) = (self.store.clone(), self.open.subscribe(), transaction.clone());
        let lands = tokio::spawn(async move {
            open.wait_for(|open| *open).await.unwrap();
            store.commit(write).await.unwrap()
        });
        self.sent.lock().unwrap().push((transaction, lands));
        tokio::time::sleep(limits::STORE_CALL).await;
        Err(StoreError::Unavailable("no answer in time".into()))
    }
}

fn controller(store: Arc<dyn Store>, keys: &Keys, id: &str) -> JoinHandle<()> {
    let options = ControllerOptions {
        id: id.into(),
        release: Release::default(),
        settings: ControllerSettings::default(),
        stats: Arc::new(ControllerStats::default()),
    };
    tokio::spawn(run(store, keys.clone(), options, std::future::pending()))
}

async fn workers(store: &MemoryStore, keys: &Keys, count: usize) {
    for i in 0..count {
        let record = WorkerRecord {
            model: "m".into(),
            fingerprint: "f".into(),
            text: "t".into(),
            revision: None,
            address: format!("w{i}:1"),
            mesh: format!("w{i}:2"),
            device: "cpu".into(),
            locality: None,
            shape: ModelShape { attention_heads: 1, kv_heads: 1, experts: Vec::new() },
            ranks: 1,
            most_ranks: 1,
            group_size: 1,
            redundant_experts: 0,
            domain: None,
            incarnation: 1,
            state: WorkerState::Ready,
            seat: Seat::default(),
            release: Release::default(),
            expires: None,
        };
        let put = Transaction::default().put(keys.worker(&format!("w{i}")), encode(&record), None);
        store.commit(put).await.unwrap().unwrap();
    }
}

/// The workers in the placements, once per seat.
async fn seated(store: &MemoryStore, keys: &Keys) -> Vec<String> {
    let groups = store.read(&keys.groups()).await.unwrap();
    let mut seated: Vec<String> = Vec::new();
    for entry in groups.entries.iter().filter(|(key, _)| key.ends_with("/placement")).map(|(_, entry)| entry) {
        let record: GroupRecord = decode(&entry.value).unwrap();
        seated.extend(record.members.into_iter().map(|member| member.worker));
    }
    seated.sort_unstable();
    seated
}

/// Polls for a minute at most.
async fn until(mut is_so: impl AsyncFnMut() -> bool) {
    let looks = async {
        while !is_so().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(Duration::from_secs(60), looks).await.expect("it comes");
}

#[tokio::test(start_paused = true)]
async fn no_write_of_a_former_controller_takes_effect() {
    let (memory, keys) = (MemoryStore::default(), Keys::new("test").unwrap());
    let late = Late::over(&memory);
    workers(&memory, &keys, 3).await;
    let active = async || memory.read(&keys.controller()).await.unwrap().entries.remove(&keys.controller());
    let first = controller(Arc::new(late.clone()), &keys, "a");
    until(async || late.sent() > 0).await;
    let second = controller(Arc::new(memory.clone()), &keys, "b");
    tokio::time::sleep(Duration::from_millis(100)).await;
    let held = active().await.expect("the first one is elected");
    assert!(held.value.starts_with(b"a "));
    memory.revoke(held.lease.unwrap()).await.unwrap();
    until(async || active().await.is_some_and(|entry| entry.value.starts_with(b"b "))).await;
    // The second controller waits for workers; the first one's decisions would be executed now.
    assert_eq!(seated(&memory, &keys).await, [""; 0]);
    late.open.send_replace(true);
    let sent = std::mem::take(&mut *late.sent.lock().unwrap());
    for (transaction, lands) in sent {
        assert_eq!(lands.await.unwrap(), None, "{transaction:?}");
    }
    assert_eq!(seated(&memory, &keys).await, [""; 0]);
    until(async || seated(&memory, &keys).await == ["w0", "w1", "w2"]).await;
    first.abort();
    second.abort();
}

#[tokio::test(start_paused = true)]
async fn a_round_ends_after_a_write_without_an_answer() {
    const WORKERS: usize = 8;
    let (memory, keys) = (MemoryStore::default(), Keys::new("test").unwrap());
    let late = Late::over(&memory);
    workers(&memory, &keys, WORKERS).await;
    let only = controller(Arc::new(late.clone()), &keys, "a");
    until(async || late.sent() > 5).await;
    let tried = |sent: &[Sent]| -> BTreeSet<String> {
        let all =
            sent.iter().flat_map(|(transaction, _)| transaction.writes.iter().map(|write| write.key().to_owned()));
        all.filter(|key| key.starts_with(&keys.seat(""))).collect()
    };
    assert_eq!(tried(&late.sent.lock().unwrap()).len(), 1, "a round continues after a write without an answer");
    // All attempts are executed in the end: one takes effect.
    late.open.send_replace(true);
    let all: Vec<String> = (0..WORKERS).map(|i| format!("w{i}")).collect();
    until(async || seated(&memory, &keys).await.len() >= WORKERS).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(seated(&memory, &keys).await, all);
    only.abort();
}
