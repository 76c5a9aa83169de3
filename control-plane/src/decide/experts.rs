//! Decides when the experts of a group move. It does not know how a layout is computed, see [`crate::rebalance`].

use std::{sync::Arc, time::Duration};

use super::{Controller, Decision, DecisionKind, Round};
use crate::{
    epoch, limits,
    rebalance::relayout,
    records::{GroupRecord, encode},
    store::{KeyCondition, Revision, Transaction},
    view::GroupState,
};

impl Controller {
    /// Moves experts of a group where that balances the work of its ranks. The epoch stays.
    pub(super) fn rebalance(
        &mut self,
        round: &mut Round,
        id: &str,
        group: &GroupState,
        record: &Arc<GroupRecord>,
        at: Revision,
        now: Duration,
    ) {
        let (Some(settings), Some(load)) = (self.settings.rebalance, &group.experts) else { return };
        if !group.uses_current_layout() || record.group_size < 2 {
            return;
        }
        let since = self.epochs.get(id).map_or(now, |(_, series, _)| series.since());
        let due = self.next_relayout.get(id).map_or(since + settings.every, |due| *due);
        if now < due {
            return self.wake_at(due);
        }
        if std::mem::replace(&mut round.relayout_checked, true) {
            return self.wake_at(now + limits::CHANGE_BURST);
        }
        let workers = record.members.iter().map(|member| round.view.workers.get(&member.worker));
        let redundant = workers.map(|worker| worker.map_or(0, |worker| worker.redundant_experts)).min().unwrap_or(0);
        // The number is never reused, even if the store has lost a placement: ranks identify layouts by it.
        let number = round.next_epoch(record.placement.layout);
        let change = relayout(&record.placement, &load.rows, redundant, settings.above, number);
        let more = change.as_ref().is_some_and(|change| change.more);
        let again = now + if more { settings.every.min(limits::EXPERT_LAYOUT_PAUSE) } else { settings.every };
        self.next_relayout.insert(id.to_owned(), again);
        self.wake_at(again);
        let Some(change) = change else { return };
        let why = format!(
            "{id}: expert layout {} moves {} experts in {} layers; load of the busiest rank over the mean: {:.2}, then {:.2}",
            epoch::number(number),
            change.copies,
            change.layers,
            change.before,
            change.after
        );
        let record = GroupRecord { placement: change.placement, ..(**record).clone() };
        let key = self.keys.placement(id);
        let transaction = Transaction::default().when(KeyCondition::At(key.clone(), at));
        let transaction = transaction.put(key, encode(&record), None);
        round.decisions.push(Decision { kind: DecisionKind::Relayout, why, transaction });
    }
}
