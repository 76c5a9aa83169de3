//! Keeps the workers' seats in line with the placements.

use std::{collections::BTreeMap, time::Duration};

use super::{Controller, Decision, DecisionKind, Round, limits};
use crate::{
    records::{Seat, encode},
    store::Transaction,
};

impl Controller {
    /// Corrects seats that differ from the placements, after the store lost data or a worker was lost.
    pub(super) fn repair_seats(&mut self, round: &mut Round, now: Duration) {
        let view = round.view;
        let mut wanted: BTreeMap<&str, Seat> = BTreeMap::new();
        for (id, worker) in &view.workers {
            if self.orphans.get(id).is_some_and(|&since| now >= since + limits::ORPHAN_TIME) {
                wanted.insert(id, Seat { group: None, epoch: worker.seat.epoch });
            }
            // Its group was reformed while this worker was away.
            let group = worker.seat.group.as_ref().and_then(|group| view.groups.get(group)?.record());
            if let Some(record) = group.filter(|record| record.epoch() > worker.seat.epoch) {
                wanted.insert(id, Seat { group: None, epoch: record.epoch() });
            }
        }
        for (id, record) in view.groups.iter().filter_map(|(id, group)| Some((id, group.record()?))) {
            for (worker, incarnation) in &record.out {
                if view.workers.get(worker).is_some_and(|w| w.incarnation == *incarnation) {
                    wanted.entry(worker).or_insert(Seat { group: None, epoch: record.epoch() });
                }
            }
            for member in &record.members {
                wanted.insert(&member.worker, Seat { group: Some(id.clone()), epoch: record.epoch() });
            }
        }
        let mut transaction = Transaction::default();
        for (worker, seat) in &wanted {
            if view.seats.get(*worker) != Some(seat) && transaction.writes.len() < limits::WRITES {
                transaction = transaction.put(self.keys.seat(worker), encode(seat), None);
            }
        }
        for worker in view.seats.keys() {
            let needed = wanted.contains_key(worker.as_str()) || view.workers.contains_key(worker);
            if !needed && transaction.writes.len() < limits::WRITES {
                transaction = transaction.delete(self.keys.seat(worker));
            }
        }
        // Groups that change in this round write their seats themselves.
        if round.decisions.is_empty() && !transaction.writes.is_empty() {
            round.decisions.push(Decision {
                kind: DecisionKind::Seat,
                why: "correcting seats to match the placements".into(),
                transaction,
            });
        }
    }
}
