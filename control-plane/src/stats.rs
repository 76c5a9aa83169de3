//! Counters of a controller process and its view of the cluster, for its metrics page.
//!
//! This module does not know how they are shown.

use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use crate::{decide::DecisionKind, mirror::Mirror, records::Keys, view::ClusterView};

/// By kind of decision.
const KINDS: [(DecisionKind, &str); 6] = [
    (DecisionKind::Form, "form"),
    (DecisionKind::Reform, "reform"),
    (DecisionKind::Dissolve, "dissolve"),
    (DecisionKind::Drain, "drain"),
    (DecisionKind::Relayout, "relayout"),
    (DecisionKind::Seat, "seat"),
];

#[derive(Debug, Default)]
pub struct ControllerStats {
    active: AtomicBool,
    /// Decisions that were written, by kind.
    decided: [AtomicU64; KINDS.len()],
    observed: Mutex<Option<Observed>>,
}

#[derive(Debug)]
struct Observed {
    keys: Keys,
    mirror: Mirror,
    view: ClusterView,
}

impl ControllerStats {
    pub(crate) fn observe(&self, keys: &Keys, mirror: &Mirror) {
        let observed = Observed { keys: keys.clone(), mirror: mirror.clone(), view: ClusterView::default() };
        *self.observed.lock().unwrap_or_else(PoisonError::into_inner) = Some(observed);
    }

    pub(crate) fn set_active(&self, active: bool) {
        self.active.store(active, Ordering::Relaxed);
    }

    pub(crate) fn decided(&self, kind: DecisionKind) {
        if let Some(kind) = KINDS.iter().position(|(known, _)| *known == kind) {
            self.decided[kind].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Whether this controller is the elected one.
    pub fn active(&self) -> bool {
        self.active.load(Ordering::Relaxed)
    }

    pub fn decisions(&self) -> [(&'static str, u64); KINDS.len()] {
        std::array::from_fn(|i| (KINDS[i].1, self.decided[i].load(Ordering::Relaxed)))
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
