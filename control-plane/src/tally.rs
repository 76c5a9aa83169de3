//! What a controller process has done and sees, for whoever watches it.

use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use crate::{decide::Kind, mirror::Mirror, records::Keys, view::View};

/// By kind of decision.
const KINDS: [(Kind, &str); 6] = [
    (Kind::Form, "form"),
    (Kind::Reform, "reform"),
    (Kind::Dissolve, "dissolve"),
    (Kind::Drain, "drain"),
    (Kind::Relayout, "relayout"),
    (Kind::Seat, "seat"),
];

#[derive(Debug, Default)]
pub struct Tally {
    active: AtomicBool,
    /// Decisions that the store took, by kind.
    decided: [AtomicU64; KINDS.len()],
    sight: Mutex<Option<Sight>>,
}

#[derive(Debug)]
struct Sight {
    keys: Keys,
    mirror: Mirror,
    view: View,
}

impl Tally {
    pub(crate) fn follows(&self, keys: &Keys, mirror: &Mirror) {
        let sight = Sight { keys: keys.clone(), mirror: mirror.clone(), view: View::default() };
        *self.sight.lock().unwrap_or_else(PoisonError::into_inner) = Some(sight);
    }

    pub(crate) fn stands(&self, active: bool) {
        self.active.store(active, Ordering::Relaxed);
    }

    pub(crate) fn decided(&self, kind: Kind) {
        if let Some(kind) = KINDS.iter().position(|(known, _)| *known == kind) {
            self.decided[kind].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Whether this controller is the one that decides.
    pub fn active(&self) -> bool {
        self.active.load(Ordering::Relaxed)
    }

    pub fn decisions(&self) -> [(&'static str, u64); KINDS.len()] {
        std::array::from_fn(|i| (KINDS[i].1, self.decided[i].load(Ordering::Relaxed)))
    }

    /// The cluster as this process last knew it; None: it has not read the store.
    pub fn view<T>(&self, of: impl FnOnce(&View) -> T) -> Option<T> {
        let mut sight = self.sight.lock().unwrap_or_else(PoisonError::into_inner);
        let Sight { keys, mirror, view } = sight.as_mut()?;
        let snapshot = mirror.view();
        if snapshot.revision == 0 {
            return None;
        }
        view.update(keys, &snapshot);
        Some(of(view))
    }
}
