//! Writes of others between the controller's view and its own write: the controller's write is rejected.

use super::*;
use crate::decide::{Decision, DecisionKind};

impl Cluster {
    /// Runs until the controller decides this; the decision is not written yet.
    fn next(&mut self, kind: DecisionKind) -> Decision {
        for _ in 0..300 {
            self.now += TICK;
            for id in self.workers.keys().cloned().collect::<Vec<_>>() {
                self.link(&id);
                self.hear(&id);
            }
            for decision in self.decided() {
                if decision.kind == kind {
                    return decision;
                }
                assert!(self.commit(decision.transaction), "nobody else writes");
            }
        }
        panic!("no {kind:?} in 30 s");
    }

    fn decided(&mut self) -> Vec<Decision> {
        self.view.update(&self.keys, &self.store);
        let controller = self.controller.as_mut().expect("a controller");
        controller.decide(&self.view, self.now)
    }

    fn in_trouble(&mut self) {
        let (group, record) = self.placements().into_iter().next().expect("a group");
        let trouble = RankFailure { epoch: record.epoch(), suspect: Some(0), reason: "cannot load".into() };
        self.put(&self.keys.trouble(&group, 0), Some(encode(&trouble).to_vec()));
    }

    /// The placement was lost, and its leader restored it: the same value at another revision.
    fn put_back(&mut self) {
        let key = self.keys.placement(self.placements().keys().next().expect("a group"));
        let value = self.store.entries[&key].value.to_vec();
        self.put(&key, None);
        self.put(&key, Some(value));
    }

    /// Another controller has written a newer placement.
    fn overtaken(&mut self) {
        let (group, mut record) = self.placements().into_iter().next().expect("a group");
        record.placement.epoch += 1000;
        self.put(&self.keys.placement(&group), Some(encode(&record).to_vec()));
    }

    fn drain(&mut self, id: &str) {
        self.workers.get_mut(id).expect("known").record.state = WorkerState::Draining;
    }
}

#[test]
fn a_decision_on_an_older_placement_is_not_written() {
    type Prepare = fn(&mut Cluster);
    let cases: [(DecisionKind, (usize, usize, usize), Prepare); 4] = [
        (DecisionKind::Reform, (3, 2, 1), Cluster::in_trouble),
        (DecisionKind::Dissolve, (1, 1, 0), Cluster::in_trouble),
        (DecisionKind::Drain, (2, 1, 0), |cluster| cluster.drain("w0")),
        (DecisionKind::Relayout, (2, 2, 0), |_| ()),
    ];
    for (kind, (workers, size, spares), prepare) in cases {
        let mut cluster = Cluster::new(workers, size, spares);
        if kind != DecisionKind::Relayout {
            cluster.run(8.0);
        }
        prepare(&mut cluster);
        let decision = cluster.next(kind);
        for disturb in [Cluster::overtaken, Cluster::put_back] {
            let seen = cluster.store.clone();
            disturb(&mut cluster);
            let before = cluster.store.clone();
            assert!(!cluster.commit(decision.transaction.clone()), "{kind:?} is written");
            assert_eq!(cluster.store, before, "{kind:?}");
            cluster.store = seen;
        }
        assert!(cluster.commit(decision.transaction), "undisturbed, {kind:?} is written");
    }
}

/// Both of two decisions on the same view may still be written, if the first one's answer was lost.
#[test]
fn a_worker_gets_one_seat_however_late_a_write_is_executed() {
    let mut cluster = Cluster::new(2, 2, 0);
    let first = cluster.next(DecisionKind::Form);
    cluster.now += TICK;
    let second = cluster.decided().remove(0);
    assert_eq!(second.kind, DecisionKind::Form);
    assert!(cluster.commit(second.transaction));
    assert!(!cluster.commit(first.transaction), "both are written");
    cluster.check();

    let mut cluster = Cluster::new(3, 2, 1);
    cluster.run(8.0);
    cluster.in_trouble();
    let reform = cluster.next(DecisionKind::Reform);
    let seat = Seat { group: Some("another".into()), epoch: 1 };
    cluster.put(&cluster.keys.seat("w2"), Some(encode(&seat).to_vec()));
    assert!(!cluster.commit(reform.transaction), "the spare has two seats");
}
