use std::{sync::Arc, time::Duration};

use super::{Controller, Decision, Kind, Round};
use crate::{
    limits,
    rebalance::relayout,
    records::{GroupRecord, encode},
    store::{Condition, Revision, Transaction},
    view::Group,
};

impl Controller {
    /// Lays the experts of a group out anew where that makes its ranks' work more even. Its epoch stays.
    pub(super) fn rebalance(
        &mut self,
        round: &mut Round,
        id: &str,
        group: &Group,
        record: &Arc<GroupRecord>,
        at: Revision,
        now: Duration,
    ) {
        let (Some(settings), Some(load)) = (self.settings.rebalance, &group.experts) else { return };
        if !group.laid_out() || record.group_size < 2 {
            return;
        }
        let since = self.epochs.get(id).map_or(now, |(_, series, _)| series.since());
        let due = self.judge.get(id).map_or(since + settings.every, |due| *due);
        if now < due {
            return self.wake_at(due);
        }
        if std::mem::replace(&mut round.judged, true) {
            return self.wake_at(now + limits::BURST);
        }
        let workers = record.members.iter().map(|member| round.view.workers.get(&member.worker));
        let redundant = workers.map(|worker| worker.map_or(0, |worker| worker.redundant_experts)).min().unwrap_or(0);
        // Never used before, not even by a placement that the store has forgotten: ranks know layouts by it.
        let number = round.next_epoch();
        let change = relayout(&record.placement, &load.rows, redundant, settings.above, number);
        let more = change.as_ref().is_some_and(|change| change.more);
        let again = now + if more { settings.every.min(limits::EXPERTS_AGAIN) } else { settings.every };
        self.judge.insert(id.to_owned(), again);
        self.wake_at(again);
        let Some(change) = change else { return };
        let why = format!(
            "{id}: layout {number}, {} copies of experts in {} layers move; the busiest rank has {:.2} times the mean, then {:.2}",
            change.copies, change.layers, change.before, change.after
        );
        let record = GroupRecord { placement: change.placement, ..(**record).clone() };
        let key = self.keys.placement(id);
        let transaction = Transaction::default().when(Condition::At(key.clone(), at));
        let transaction = transaction.put(key, encode(&record), None);
        round.decisions.push(Decision { kind: Kind::Relayout, why, transaction });
    }
}
