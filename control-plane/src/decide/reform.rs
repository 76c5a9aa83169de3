//! Reforms a group: chooses the members that stay and the workers that take the ranks of lost ones.
//!
//! This module does not know why a member is lost.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use super::{Controller, Decision, DecisionKind, Free, Round, class_of_group, cooldown::Cooldown, member};
use crate::{
    connectivity::Link,
    epoch, limits,
    placement::Placement,
    records::{GroupMember, GroupRecord, Locality, Seat, WorkerRecord, WorkerState, encode},
    store::{KeyCondition, Revision, Transaction},
    view::ClusterView,
};

/// The members for all ranks of a group.
enum Members {
    Complete(Vec<GroupMember>),
    /// Too few workers can link with each other.
    Insufficient,
    /// Workers that registered recently may fit; their probes are not reported yet.
    AwaitingProbes,
}

impl Controller {
    /// Reforms the group without the lost members. Their ranks go to free workers, or to other members that have room;
    /// otherwise the group ends. The number of ranks stays the same, so results stay bit-identical.
    #[expect(clippy::too_many_arguments)]
    pub(super) fn reform(
        &mut self,
        round: &mut Round,
        id: &str,
        record: &GroupRecord,
        at: Revision,
        lost: &BTreeSet<usize>,
        why: &str,
        now: Duration,
    ) {
        let view = round.view;
        let survivors = record.members.iter().enumerate().filter(|(i, _)| !lost.contains(i));
        let survivors = survivors.map(|(_, member)| member.clone()).collect();
        let mut members = match self.choose_members(round, record, survivors, now) {
            Members::Complete(members) => members,
            Members::Insufficient => Vec::new(),
            // Decides again when probes are reported, or when their time is over.
            Members::AwaitingProbes => return,
        };
        self.blame(view, id, record, lost, now);
        let epoch = round.next_epoch(record.epoch());
        // Experts stay in place, so that survivors keep their loaded weights.
        let placement = (!members.is_empty()).then(|| Placement { epoch, ..record.placement.clone() });
        members.sort_by(|a, b| a.ranks.cmp(&b.ranks));
        if let Some(free) = round.free.get_mut(&class_of_group(record)) {
            free.retain(|(id, _)| !members.iter().any(|member| member.worker == *id));
        }
        let key = self.keys.placement(id);
        let mut transaction = Transaction::default().when(KeyCondition::At(key.clone(), at));
        let stays = |worker: &str| members.iter().any(|member| member.worker == worker);
        let gone: Vec<&GroupMember> = record.members.iter().filter(|member| !stays(&member.worker)).collect();
        let free_seat = encode(&Seat { group: None, epoch });
        for member in &gone {
            transaction = transaction.put(self.keys.seat(&member.worker), free_seat.clone(), None);
        }
        let (kind, why) = match placement {
            Some(placement) => {
                let same = |(worker, n): &(String, u64)| view.workers.get(worker).is_some_and(|w| w.incarnation == *n);
                let mut out: Vec<(String, u64)> = record.out.iter().filter(|out| same(out)).cloned().collect();
                out.extend(gone.iter().map(|member| (member.worker.clone(), member.incarnation)).filter(same));
                let names: Vec<&str> = members.iter().map(|member| member.worker.as_str()).collect();
                let why = format!("{id}: {why}; epoch {} on {}", epoch::number(epoch), names.join(", "));
                let seat = encode(&Seat { group: Some(id.to_owned()), epoch });
                for member in &members {
                    let at = self.keys.seat(&member.worker);
                    if record.member(&member.worker, member.incarnation).is_none() {
                        // As in `form_groups`: the write fails if the worker's seat has changed since this view.
                        transaction = transaction.when(view.unchanged(at.clone()));
                    }
                    transaction = transaction.put(at, seat.clone(), None);
                }
                let draining = false;
                let record = GroupRecord { members, placement, draining, out, ..record.clone() };
                transaction = transaction.put(key, encode(&record), None);
                (DecisionKind::Reform, why)
            }
            None => {
                transaction = transaction.delete(key);
                (DecisionKind::Dissolve, format!("{id}: {why}; not enough workers for all ranks, the group ends"))
            }
        };
        round.decisions.push(Decision { kind, why, transaction });
    }

    /// Prefers other workers for a while over members whose ranks did not join. Members that were lost after the group
    /// had served are not blamed: they may have been restarted.
    fn blame(&mut self, view: &ClusterView, id: &str, record: &GroupRecord, lost: &BTreeSet<usize>, now: Duration) {
        if self.last_served.get(id).is_some_and(|(epoch, _)| *epoch == record.epoch()) {
            return;
        }
        for member in lost.iter().map(|&i| &record.members[i]) {
            let there = |worker: &Arc<WorkerRecord>| {
                worker.incarnation == member.incarnation && worker.state == WorkerState::Ready
            };
            let worker = view.workers.get(&member.worker);
            if worker.is_some_and(there) && !worker.is_some_and(|worker| self.is_expired(worker, now)) {
                let blamed = self.blamed.entry(member.worker.clone()).or_insert(Cooldown::for_blame(now));
                *blamed = blamed.after_change(now);
            }
        }
    }

    /// Whether two workers can link, as far as is known. Links not reported in time count as open.
    fn link(&self, round: &Round, a: &str, b: &str, now: Duration) -> Link {
        let is_new = |id| self.first_seen.get(id).is_some_and(|(_, since)| now < *since + limits::PROBE_PATIENCE);
        match round.connectivity.link(a, b) {
            Link::Unknown if !(is_new(a) || is_new(b)) => Link::Open,
            link => link,
        }
    }

    /// Workers from `first` on, of the same domain, that can all link with each other and fill a group. Those whose
    /// GPUs are near those of `first` come before others.
    pub(super) fn linked(
        &self,
        round: &Round,
        free: &Free,
        first: usize,
        size: usize,
        now: Duration,
    ) -> Option<Vec<usize>> {
        let (mut chosen, mut ranks) = (Vec::<usize>::new(), 0);
        let at = |i: usize| free[i].1.locality.as_ref();
        let mut order: Vec<usize> = (first..free.len()).collect();
        order.sort_by_key(|&i| Locality::distance(at(first), at(i)));
        for i in order {
            let (id, worker) = &free[i];
            let open = |&other: &usize| self.link(round, id, free[other].0, now) == Link::Open;
            let same_domain = worker.domain == free[first].1.domain;
            if same_domain && ranks + worker.ranks <= size && chosen.iter().all(open) {
                chosen.push(i);
                ranks += worker.ranks;
            }
        }
        chosen.sort_unstable();
        (ranks == size).then_some(chosen)
    }

    /// Free workers that can link with these members and with each other: either the blamed ones or the others. Those
    /// of the group's domain are first.
    fn linkable<'a>(
        &self,
        round: &Round<'a>,
        record: &GroupRecord,
        members: &[GroupMember],
        blamed: bool,
        now: Duration,
    ) -> Free<'a> {
        let mut able = Free::new();
        let at = |id: &str| round.view.workers.get(id).and_then(|worker| worker.locality.as_ref());
        let mut free: Free = round.free.get(&class_of_group(record)).cloned().unwrap_or_default();
        // The farthest member decides: all ranks wait for it.
        let far = |id: &str| members.iter().map(|member| Locality::distance(at(&member.worker), at(id))).max();
        free.sort_by_key(|(id, worker)| (worker.domain != record.domain, far(id)));
        for (id, worker) in free {
            let is_blamed = self.blamed.get(id).is_some_and(|series| now < series.due());
            let names = members.iter().map(|member| member.worker.as_str()).chain(able.iter().map(|(id, _)| *id));
            if is_blamed == blamed && names.into_iter().all(|other| self.link(round, id, other, now) == Link::Open) {
                able.push((id, worker));
            }
        }
        able
    }

    /// Free workers that may take seats beside these members.
    pub(super) fn replacements<'a>(
        &mut self,
        round: &Round<'a>,
        record: &GroupRecord,
        members: &[GroupMember],
        now: Duration,
    ) -> Free<'a> {
        let blamed =
            round.free.get(&class_of_group(record)).into_iter().flatten().filter_map(|(id, _)| self.blamed.get(*id));
        let due = blamed.map(|series| series.due()).filter(|due| now < *due).min();
        due.into_iter().for_each(|due| self.wake_at(due));
        self.linkable(round, record, members, false, now)
    }

    /// Survivors keep their ranks as far as they can link with each other. Free workers take the other ranks.
    fn choose_members(
        &mut self,
        round: &Round,
        record: &GroupRecord,
        mut kept: Vec<GroupMember>,
        now: Duration,
    ) -> Members {
        let names = |members: &[GroupMember]| members.iter().map(|member| member.worker.clone()).collect::<Vec<_>>();
        while let Some(worst) = self.least_reachable(round, &kept, &names(&kept)) {
            kept.remove(worst);
        }
        let free: Vec<&str> =
            round.free.get(&class_of_group(record)).into_iter().flatten().map(|(id, _)| *id).collect();
        loop {
            if let Some(members) = self.assign_ranks(round, record, &kept, now) {
                return Members::Complete(members);
            }
            let awaited = |id: &str| {
                let mut links = kept.iter().map(|member| self.link(round, id, &member.worker, now)).peekable();
                let links: Vec<Link> = links.by_ref().collect();
                links.contains(&Link::Unknown) && !links.contains(&Link::Cut)
            };
            if free.iter().any(|id| awaited(id)) {
                return Members::AwaitingProbes;
            }
            // Drops the member that the fewest workers can link with.
            let among: Vec<String> = free.iter().map(|id| (*id).to_owned()).chain(names(&kept)).collect();
            match self.least_reachable(round, &kept, &among) {
                Some(worst) => kept.remove(worst),
                None => return Members::Insufficient,
            };
        }
    }

    /// The member with which most of `among` cannot link.
    fn least_reachable(&self, round: &Round, members: &[GroupMember], among: &[String]) -> Option<usize> {
        let cut = |id: &str| among.iter().filter(|other| round.connectivity.link(id, other) == Link::Cut).count();
        let missed =
            |&i: &usize| (cut(&members[i].worker), round.connectivity.unreachable_peers(&members[i].worker), i);
        (0..members.len()).filter(|&i| cut(&members[i].worker) > 0).max_by_key(missed)
    }

    /// Assigns all ranks; these members keep theirs. None: there are too few workers.
    fn assign_ranks(
        &self,
        round: &Round,
        record: &GroupRecord,
        kept: &[GroupMember],
        now: Duration,
    ) -> Option<Vec<GroupMember>> {
        let worker = |member: &GroupMember| round.view.workers.get(&member.worker);
        let mut members = kept.to_vec();
        let is_open = |rank: &usize| !kept.iter().any(|member| member.ranks.contains(rank));
        let mut open: Vec<usize> = (0..record.group_size).filter(is_open).collect();
        let able = self.linkable(round, record, kept, false, now);
        // Members that hold ranks of lost workers hand over those that a free worker can take. The others keep their
        // ranks and loaded weights.
        let room: usize = able.iter().map(|(_, worker)| worker.ranks).sum();
        for member in &mut members {
            let regular = worker(member).map_or(0, |worker| worker.ranks);
            while member.ranks.len() > regular.max(1) && open.len() < room {
                open.extend(member.ranks.pop());
            }
        }
        open.sort_unstable();
        seat(&mut members, &mut open, able);
        for rank in std::mem::take(&mut open) {
            let most = |member: &GroupMember| worker(member).map_or(0, |worker| worker.most_ranks);
            let able = members.iter_mut().filter(|member| member.ranks.len() < most(member));
            match able.min_by_key(|member| member.ranks.len()) {
                Some(member) => {
                    member.ranks.push(rank);
                    member.ranks.sort_unstable();
                }
                None => open.push(rank),
            }
        }
        let blamed = self.linkable(round, record, &members, true, now);
        seat(&mut members, &mut open, blamed);
        open.is_empty().then_some(members)
    }
}

/// Assigns open ranks to workers that have room.
fn seat(members: &mut Vec<GroupMember>, open: &mut Vec<usize>, able: Free) {
    for (id, worker) in able {
        if open.is_empty() {
            return;
        }
        members.push(member(id, worker, open.drain(..open.len().min(worker.ranks)).collect()));
    }
}
