//! Keeps in the store which workers were lost, for people who ask. Nothing depends on it.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use super::{Controller, Decision, DecisionKind};
use crate::{
    limits,
    records::{LostWorker, WorkerRecord, WorkerState, encode},
    store::Transaction,
    view::ClusterView,
};

/// The workers that a controller has seen.
#[derive(Debug, Default)]
pub(super) struct SeenWorkers {
    present: BTreeMap<String, Arc<WorkerRecord>>,
    /// Lost, and not in the store yet.
    lost: BTreeMap<String, LostWorker>,
}

impl Controller {
    /// Workers that were lost, or that are back. A worker that said that it leaves is not lost.
    pub(super) fn note_lost(&mut self, view: &ClusterView, now: Duration) -> Option<Decision> {
        let at = (self.epoch_base + now.as_millis() as u64) / 1000;
        let SeenWorkers { present, lost } = &mut self.seen;
        let before = std::mem::replace(present, view.workers.clone());
        for (id, worker) in before {
            if worker.state == WorkerState::Ready && !view.workers.contains_key(&id) {
                let WorkerRecord { model, address, device, .. } = (*worker).clone();
                lost.insert(id, LostWorker { model, address, device, at });
            }
        }
        lost.retain(|id, worker| !view.workers.contains_key(id) && view.lost.get(id) != Some(worker));
        let mut all: Vec<(&String, u64)> = view.lost.iter().map(|(id, worker)| (id, worker.at)).collect();
        all.sort_by_key(|(_, at)| std::cmp::Reverse(*at));
        let mut transaction = Transaction::default();
        let seconds = limits::LOST_WORKER_TIME.as_secs();
        for (older, (id, since)) in all.into_iter().enumerate() {
            let is_over = older >= limits::LOST_WORKERS || since + seconds <= at;
            if (is_over || view.workers.contains_key(id)) && transaction.writes.len() < limits::WRITES {
                transaction = transaction.delete(self.keys.lost(id));
            }
        }
        for (id, worker) in lost.iter() {
            if transaction.writes.len() < limits::WRITES {
                transaction = transaction.put(self.keys.lost(id), encode(worker), None);
            }
        }
        let names: Vec<&str> = lost.keys().map(String::as_str).collect();
        let (kind, why) = match names.is_empty() {
            true => (DecisionKind::Forget, "forgetting lost workers that are back, or lost for long".to_owned()),
            false => (DecisionKind::Lost, format!("lost, as their leases expired: {}", names.join(", "))),
        };
        if let Some(first) = view.lost.values().map(|worker| worker.at).min() {
            let until = Duration::from_secs(first.saturating_sub(self.epoch_base / 1000) + seconds + 1);
            if until > now {
                self.wake_at(until);
            }
        }
        (!transaction.writes.is_empty()).then_some(Decision { kind, why, transaction })
    }
}
