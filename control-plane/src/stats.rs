//! Counters of a controller process and its view of the cluster, for its metrics page.
//!
//! This module does not know how they are shown.

use std::sync::{Mutex, PoisonError};

use prometheus_client::{
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

use crate::{decide::DecisionKind, mirror::Mirror, records::Keys, view::ClusterView};

/// By kind of decision.
const KINDS: [(DecisionKind, &str); 9] = [
    (DecisionKind::Form, "form"),
    (DecisionKind::Reform, "reform"),
    (DecisionKind::Dissolve, "dissolve"),
    (DecisionKind::Drain, "drain"),
    (DecisionKind::Relayout, "relayout"),
    (DecisionKind::Seat, "seat"),
    (DecisionKind::Repair, "repair"),
    (DecisionKind::Lost, "lost"),
    (DecisionKind::Forget, "forget"),
];

#[derive(Debug, Default)]
pub struct ControllerStats {
    /// 1: this controller is the elected one.
    active: Gauge,
    /// Decisions that were written, by kind.
    decided: Family<[(&'static str, &'static str); 1], Counter>,
    observed: Mutex<Option<Observed>>,
}

#[derive(Debug)]
struct Observed {
    keys: Keys,
    mirror: Mirror,
    view: ClusterView,
}

impl ControllerStats {
    pub fn register(&self, registry: &mut Registry) {
        let help = "1: this controller is the elected one. The sum over all controllers is 1, or 0 for a few seconds";
        registry.register("rein_controller_active", help, self.active.clone());
        for (_, kind) in KINDS {
            // An alarm sees a counter rise only if it was there before.
            drop(self.decided.get_or_create(&[("kind", kind)]));
        }
        let help = "Changes that this controller has made: `form` (a new group), `reform` (new members of a group), \
            `dissolve` (the end of a group), `drain` (a group takes no new sequences), `relayout` (the experts of a \
            group move), `seat` (seats repaired to match the placements), `repair` (a placement that could not be \
            decoded is written again), `lost` (workers are lost), `forget` (they are back, or lost for an hour)";
        registry.register("rein_controller_decisions", help, self.decided.clone());
    }

    pub(crate) fn observe(&self, keys: &Keys, mirror: &Mirror) {
        let observed = Observed { keys: keys.clone(), mirror: mirror.clone(), view: ClusterView::default() };
        *self.observed.lock().unwrap_or_else(PoisonError::into_inner) = Some(observed);
    }

    pub(crate) fn set_active(&self, active: bool) {
        self.active.set(active.into());
    }

    pub(crate) fn decided(&self, kind: DecisionKind) {
        if let Some((_, kind)) = KINDS.iter().find(|(known, _)| *known == kind) {
            self.decided.get_or_create(&[("kind", *kind)]).inc();
        }
    }

    /// Whether this controller is the elected one.
    pub fn active(&self) -> bool {
        self.active.get() == 1
    }

    /// The cluster as last seen. None: the store has not been read yet.
    pub fn view<T>(&self, of: impl FnOnce(&ClusterView) -> T) -> Option<T> {
        let mut observed = self.observed.lock().unwrap_or_else(PoisonError::into_inner);
        let Observed { keys, mirror, view } = observed.as_mut()?;
        let snapshot = mirror.view();
        if snapshot.revision == 0 {
            return None;
        }
        view.update(keys, &snapshot);
        Some(of(view))
    }
}
