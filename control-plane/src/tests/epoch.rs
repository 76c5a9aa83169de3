//! Names of groups and epochs: short numbers for people, unique tokens for fencing.

use std::collections::BTreeMap;

use crate::{
    ClusterView, Keys, Snapshot,
    decide::{Controller, ControllerSettings, DecisionKind},
    epoch,
    records::{GroupRecord, Seat, WorkerRecord, WorkerState, decode, encode},
    store::{Entry, Write},
};

/// The controller over a snapshot, without processes: workers are records.
struct Store {
    keys: Keys,
    snapshot: Snapshot,
}

impl Store {
    fn new() -> Self {
        Store { keys: Keys::new("test").expect("a name"), snapshot: Snapshot::default() }
    }

    fn put(&mut self, key: String, value: bytes::Bytes) {
        self.snapshot.revision += 1;
        let entry = Entry { value, revision: self.snapshot.revision, lease: None };
        self.snapshot.entries.insert(key, entry);
    }

    fn register(&mut self, id: &str, model: &str, incarnation: u64, seat: Seat) {
        let record = WorkerRecord {
            model: model.into(),
            fingerprint: "f".into(),
            text: "t".into(),
            address: format!("{id}:1"),
            mesh: format!("{id}:2"),
            device: "cpu".into(),
            locality: None,
            shape: crate::ModelShape { attention_heads: 4, kv_heads: 4, experts: vec![] },
            ranks: 1,
            most_ranks: 1,
            group_size: 1,
            redundant_experts: 0,
            domain: None,
            incarnation,
            state: WorkerState::Ready,
            seat,
            release: crate::records::Release::default(),
            expires: None,
            revision: None,
        };
        self.put(self.keys.worker(id), encode(&record));
    }

    fn remove(&mut self, key: &str) {
        self.snapshot.revision += 1;
        self.snapshot.entries.remove(key);
    }

    /// Runs the controller at this time, and writes what it decides.
    fn decide(&mut self, controller: &mut Controller, seconds: u64) -> Vec<DecisionKind> {
        let view = ClusterView::read(&self.keys, &self.snapshot);
        let decisions = controller.decide(&view, std::time::Duration::from_secs(seconds));
        for write in decisions.iter().flat_map(|decision| decision.transaction.writes.clone()) {
            match write {
                Write::Put { key, value, .. } => self.put(key, value),
                Write::Delete { key } => self.remove(&key),
            }
        }
        decisions.into_iter().map(|decision| decision.kind).collect()
    }

    /// The epoch of each group.
    fn epochs(&self) -> BTreeMap<String, u64> {
        let view = ClusterView::read(&self.keys, &self.snapshot);
        let epoch = |record: &GroupRecord| record.epoch();
        view.groups.iter().filter_map(|(id, group)| Some((id.clone(), epoch(group.record()?)))).collect()
    }
}

const NOW: u64 = 1_800_000_000_000;

fn controller(since_1970: u64) -> Controller {
    Controller::new(Keys::new("test").expect("a name"), ControllerSettings::default(), since_1970)
}

#[test]
fn groups_are_numbered_per_model_and_epochs_count_from_one() {
    let mut store = Store::new();
    store.register("w0", "org/demo", 1, Seat::default());
    store.register("w1", "org/demo", 1, Seat::default());
    store.register("w2", "k2", 1, Seat::default());
    let mut controller = controller(NOW);
    store.decide(&mut controller, 0);
    store.decide(&mut controller, 10);
    let epochs = store.epochs();
    assert_eq!(epochs.keys().collect::<Vec<_>>(), ["k2-1", "org-demo-1", "org-demo-2"]);
    assert!(epochs.values().all(|&epoch| epoch::number(epoch) == 1), "{epochs:?}");
    // The group ends with its only worker; the next group of the model has a new name.
    store.remove(&store.keys.worker("w2"));
    store.decide(&mut controller, 20);
    assert!(!store.epochs().contains_key("k2-1"), "{:?}", store.epochs());
    store.register("w2", "k2", 2, Seat::default());
    store.decide(&mut controller, 40);
    store.decide(&mut controller, 60);
    assert!(store.epochs().contains_key("k2-2"), "{:?}", store.epochs());
}

#[test]
fn an_epoch_is_higher_after_the_store_was_lost_and_the_controller_replaced() {
    let mut store = Store::new();
    store.register("w0", "demo", 1, Seat::default());
    let mut first = controller(NOW);
    store.decide(&mut first, 0);
    store.decide(&mut first, 10);
    let before = store.epochs()["demo-1"];
    // Nothing is left, and the new controller sees no trace of the old group: the name returns, the epoch does not.
    let mut store = Store::new();
    store.register("w1", "demo", 1, Seat::default());
    let mut second = controller(NOW + 60_000);
    store.decide(&mut second, 0);
    store.decide(&mut second, 10);
    let after = store.epochs()["demo-1"];
    assert!(after > before && epoch::number(after) == epoch::number(before), "{before} {after}");
    // A worker that still claims the old group keeps its name out of use, whatever the clock says.
    let mut store = Store::new();
    store.register("w1", "demo", 1, Seat::default());
    store.register("w9", "demo", 1, Seat { group: Some("demo-7".into()), epoch: after });
    let mut slow = controller(NOW - 3_600_000);
    store.decide(&mut slow, 0);
    store.decide(&mut slow, 4);
    let later = store.epochs()["demo-8"];
    assert!(later > after, "{after} {later}");
}

#[test]
fn names_of_earlier_releases_do_not_raise_the_number() {
    let mut store = Store::new();
    store.register("w1", "demo", 1, Seat::default());
    store.register("w9", "demo", 1, Seat { group: Some(format!("demo-{NOW}")), epoch: NOW });
    let mut controller = controller(NOW);
    store.decide(&mut controller, 0);
    store.decide(&mut controller, 4);
    assert!(store.epochs().contains_key("demo-1"), "{:?}", store.epochs());
}

#[test]
fn the_next_epoch_of_a_group_has_the_next_number() {
    let mut store = Store::new();
    store.register("w0", "demo", 1, Seat::default());
    store.register("w1", "demo", 1, Seat::default());
    let spares = ControllerSettings { spares: 1, rebalance: None };
    let mut controller = Controller::new(store.keys.clone(), spares, NOW);
    store.decide(&mut controller, 0);
    store.decide(&mut controller, 10);
    // The first group needs no spare beside it yet: both workers may have formed one.
    let first = store.epochs()["demo-1"];
    let member = {
        let key = store.keys.placement("demo-1");
        let record: GroupRecord = decode(&store.snapshot.entries[&key].value).expect("a record");
        record.members[0].worker.clone()
    };
    assert_eq!(store.epochs().len(), 1, "one worker is kept as a spare");
    store.remove(&store.keys.worker(&member));
    store.decide(&mut controller, 20);
    let second = store.epochs()["demo-1"];
    assert_eq!((epoch::number(first), epoch::number(second)), (1, 2));
    assert!(second > first);
}
