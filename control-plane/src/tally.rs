//! What a controller process has done and sees, for whoever watches it.

use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use crate::{
    decide::Decision,
    mirror::Mirror,
    records::Keys,
    store::{Condition, Write},
    view::View,
};

/// Kinds of decisions.
const KINDS: [&str; 5] = ["form", "reform", "dissolve", "drain", "seat"];

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

    pub(crate) fn decided(&self, keys: &Keys, decision: &Decision) {
        if let Some(kind) = KINDS.iter().position(|kind| *kind == kind_of(keys, decision)) {
            self.decided[kind].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Whether this controller is the one that decides.
    pub fn active(&self) -> bool {
        self.active.load(Ordering::Relaxed)
    }

    pub fn decisions(&self) -> [(&'static str, u64); KINDS.len()] {
        std::array::from_fn(|i| (KINDS[i], self.decided[i].load(Ordering::Relaxed)))
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

/// By what it writes: placements that are new, come anew, end, or only say that a member leaves; or nothing but seats.
fn kind_of(keys: &Keys, decision: &Decision) -> &'static str {
    let transaction = &decision.transaction;
    let is_placement = |key: &str| key.starts_with(&keys.groups()) && key.ends_with("/placement");
    let put = |write: &Write| matches!(write, Write::Put { key, .. } if is_placement(key));
    let deleted = |write: &Write| matches!(write, Write::Delete { key } if is_placement(key));
    let new = |condition: &Condition| matches!(condition, Condition::Absent(key) if is_placement(key));
    if transaction.writes.iter().any(deleted) {
        "dissolve"
    } else if !transaction.writes.iter().any(put) {
        "seat"
    } else if transaction.conditions.iter().any(new) {
        "form"
    } else if transaction.writes.len() == 1 {
        "drain"
    } else {
        "reform"
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Transaction;

    #[test]
    fn a_decision_is_what_it_writes() {
        let keys = Keys::new("test").unwrap();
        let (placement, seat) = (keys.placement("g"), keys.seat("w"));
        let at = || Transaction::default().when(Condition::At(placement.clone(), 3));
        let put = |transaction: Transaction, key: &str| transaction.put(key, "", None);
        let tally = Tally::default();
        for (transaction, times) in [
            (put(put(Transaction::default().when(Condition::Absent(placement.clone())), &seat), &placement), 1),
            (put(put(at(), &seat), &placement), 2),
            (put(at(), &seat).delete(placement.clone()), 3),
            (put(at(), &placement), 4),
            (put(Transaction::default(), &seat).delete(keys.seat("gone")), 5),
        ] {
            for _ in 0..times {
                tally.decided(&keys, &Decision { why: String::new(), transaction: transaction.clone() });
            }
        }
        assert_eq!(tally.decisions(), [("form", 1), ("reform", 2), ("dissolve", 3), ("drain", 4), ("seat", 5)]);
        assert_eq!(tally.view(|_| ()), None);
    }
}
