//! Somebody else writes between what the controller has seen and what it writes: then its write does not take place.

use super::*;
use crate::decide::{Decision, Kind};

impl Cluster {
    /// Everybody goes on until the controller decides this, which is not written yet.
    fn next(&mut self, kind: Kind) -> Decision {
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
        let trouble = Trouble { epoch: record.epoch(), suspect: Some(0), reason: "cannot load".into() };
        self.put(&self.keys.trouble(&group, 0), Some(encode(&trouble).to_vec()));
    }

    /// The placement was forgotten, and its leader has put it back: the same words, at another time.
    fn put_back(&mut self) {
        let key = self.keys.placement(self.placements().keys().next().expect("a group"));
        let value = self.store.entries[&key].value.to_vec();
        self.put(&key, None);
        self.put(&key, Some(value));
    }

    /// Another controller has put a newer one.
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
fn what_was_decided_on_an_older_placement_is_not_written() {
    type Prepare = fn(&mut Cluster);
    let cases: [(Kind, (usize, usize, usize), Prepare); 4] = [
        (Kind::Reform, (3, 2, 1), Cluster::in_trouble),
        (Kind::Dissolve, (1, 1, 0), Cluster::in_trouble),
        (Kind::Drain, (2, 1, 0), |cluster| cluster.drain("w0")),
        (Kind::Relayout, (2, 2, 0), |_| ()),
    ];
    for (kind, (workers, size, spares), prepare) in cases {
        let mut cluster = Cluster::new(workers, size, spares);
        if kind != Kind::Relayout {
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

/// Each of two decisions on the same view may still be carried out, when the first one's answer was lost.
#[test]
fn a_worker_gets_one_seat_however_late_a_write_lands() {
    let mut cluster = Cluster::new(2, 2, 0);
    let first = cluster.next(Kind::Form);
    cluster.now += TICK;
    let second = cluster.decided().remove(0);
    assert_eq!(second.kind, Kind::Form);
    assert!(cluster.commit(second.transaction));
    assert!(!cluster.commit(first.transaction), "both are written");
    cluster.check();

    let mut cluster = Cluster::new(3, 2, 1);
    cluster.run(8.0);
    cluster.in_trouble();
    let reform = cluster.next(Kind::Reform);
    let seat = Seat { group: Some("another".into()), epoch: 1 };
    cluster.put(&cluster.keys.seat("w2"), Some(encode(&seat).to_vec()));
    assert!(!cluster.commit(reform.transaction), "the spare has two seats");
}
