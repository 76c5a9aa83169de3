//! A group's members anew: who stays, and who takes the ranks of those that are lost.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use super::{Controller, Decision, Free, Kind, Round, member, of, pace::Series};
use crate::{
    limits,
    placement::Placement,
    reach::Link,
    records::{GroupRecord, Member, Seat, WorkerRecord, WorkerState, encode},
    store::{Condition, Revision, Transaction},
    view::View,
};

/// Who is to hold a group's ranks.
enum Crew {
    Whole(Vec<Member>),
    /// There are not enough that can link with each other.
    None,
    /// Workers that have just come may do.
    Awaited,
}

impl Controller {
    /// The group again without those that are lost: their ranks go to others, or to its own members as far as these have
    /// room, or the group is over. There are as many ranks as before, so what is computed stays the same to the bit.
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
        let mut members = match self.crew(round, record, survivors, now) {
            Crew::Whole(members) => members,
            Crew::None => Vec::new(),
            // Their reports are news, and without them it is looked again when the time is over.
            Crew::Awaited => return,
        };
        self.blame(view, id, record, lost, now);
        let epoch = round.next_epoch();
        // Experts stay where they are, and so the survivors' weights do.
        let placement = (!members.is_empty()).then(|| Placement { epoch, ..record.placement.clone() });
        members.sort_by(|a, b| a.ranks.cmp(&b.ranks));
        if let Some(free) = round.free.get_mut(&of(record)) {
            free.retain(|(id, _)| !members.iter().any(|member| member.worker == *id));
        }
        let key = self.keys.placement(id);
        let mut transaction = Transaction::default().when(Condition::At(key.clone(), at));
        let stays = |worker: &str| members.iter().any(|member| member.worker == worker);
        let gone: Vec<&Member> = record.members.iter().filter(|member| !stays(&member.worker)).collect();
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
                let why = format!("{id}: {why}; epoch {epoch} on {}", names.join(", "));
                let seat = encode(&Seat { group: Some(id.to_owned()), epoch });
                for member in &members {
                    let at = self.keys.seat(&member.worker);
                    if record.member(&member.worker, member.incarnation).is_none() {
                        // As for a new group.
                        transaction = transaction.when(view.unchanged(at.clone()));
                    }
                    transaction = transaction.put(at, seat.clone(), None);
                }
                let draining = false;
                let record = GroupRecord { members, placement, draining, out, ..record.clone() };
                transaction = transaction.put(key, encode(&record), None);
                (Kind::Reform, why)
            }
            None => {
                transaction = transaction.delete(key);
                (Kind::Dissolve, format!("{id}: {why}; the others cannot hold all ranks, the group is over"))
            }
        };
        round.decisions.push(Decision { kind, why, transaction });
    }

    /// They did not come to the group: others come first for a while. Not those that were lost after it had served: they may
    /// have been started again.
    fn blame(&mut self, view: &View, id: &str, record: &GroupRecord, lost: &BTreeSet<usize>, now: Duration) {
        if self.proven.get(id).is_some_and(|(epoch, _)| *epoch == record.epoch()) {
            return;
        }
        for member in lost.iter().map(|&i| &record.members[i]) {
            let there = |worker: &Arc<WorkerRecord>| {
                worker.incarnation == member.incarnation && worker.state == WorkerState::Ready
            };
            let worker = view.workers.get(&member.worker);
            if worker.is_some_and(there) && !worker.is_some_and(|worker| self.is_expired(worker, now)) {
                let blamed = self.blamed.entry(member.worker.clone()).or_insert(Series::blameless(now));
                *blamed = blamed.next(now);
            }
        }
    }

    /// Whether two workers can link, as far as is known. What has not been reported in time is taken for open.
    fn link(&self, round: &Round, a: &str, b: &str, now: Duration) -> Link {
        let is_new = |id| self.seen.get(id).is_some_and(|(_, since)| now < *since + limits::PROBE_PATIENCE);
        match round.reach.link(a, b) {
            Link::Unknown if !(is_new(a) || is_new(b)) => Link::Open,
            link => link,
        }
    }

    /// The first workers from `first` on that can all link with each other and make up a group.
    pub(super) fn linked(
        &self,
        round: &Round,
        free: &Free,
        first: usize,
        size: usize,
        now: Duration,
    ) -> Option<Vec<usize>> {
        let (mut chosen, mut ranks) = (Vec::<usize>::new(), 0);
        for (i, (id, worker)) in free.iter().enumerate().skip(first) {
            let open = |&other: &usize| self.link(round, id, free[other].0, now) == Link::Open;
            if ranks + worker.ranks <= size && chosen.iter().all(open) {
                chosen.push(i);
                ranks += worker.ranks;
            }
        }
        (ranks == size).then_some(chosen)
    }

    /// Free workers that can link with these members and with each other. `blamed`: those that a group can do better without
    /// for now, instead of all others.
    fn able<'a>(
        &self,
        round: &Round<'a>,
        record: &GroupRecord,
        members: &[Member],
        blamed: bool,
        now: Duration,
    ) -> Free<'a> {
        let mut able = Free::new();
        for &(id, worker) in round.free.get(&of(record)).into_iter().flatten() {
            let is_blamed = self.blamed.get(id).is_some_and(|series| now < series.due());
            let names = members.iter().map(|member| member.worker.as_str()).chain(able.iter().map(|(id, _)| *id));
            if is_blamed == blamed && names.into_iter().all(|other| self.link(round, id, other, now) == Link::Open) {
                able.push((id, worker));
            }
        }
        able
    }

    /// Free workers that may take seats beside these members.
    pub(super) fn successors<'a>(
        &mut self,
        round: &Round<'a>,
        record: &GroupRecord,
        members: &[Member],
        now: Duration,
    ) -> Free<'a> {
        let blamed = round.free.get(&of(record)).into_iter().flatten().filter_map(|(id, _)| self.blamed.get(*id));
        let due = blamed.map(|series| series.due()).filter(|due| now < *due).min();
        due.into_iter().for_each(|due| self.wake_at(due));
        self.able(round, record, members, false, now)
    }

    /// Survivors keep their ranks as far as they can link with each other; others take the rest.
    fn crew(&mut self, round: &Round, record: &GroupRecord, mut kept: Vec<Member>, now: Duration) -> Crew {
        let names = |members: &[Member]| members.iter().map(|member| member.worker.clone()).collect::<Vec<_>>();
        while let Some(worst) = self.most_missed(round, &kept, &names(&kept)) {
            kept.remove(worst);
        }
        let free: Vec<&str> = round.free.get(&of(record)).into_iter().flatten().map(|(id, _)| *id).collect();
        loop {
            if let Some(members) = self.fill(round, record, &kept, now) {
                return Crew::Whole(members);
            }
            let awaited = |id: &str| {
                let mut links = kept.iter().map(|member| self.link(round, id, &member.worker, now)).peekable();
                let links: Vec<Link> = links.by_ref().collect();
                links.contains(&Link::Unknown) && !links.contains(&Link::Cut)
            };
            if free.iter().any(|id| awaited(id)) {
                return Crew::Awaited;
            }
            // Whoever is missed by most makes room for those.
            let among: Vec<String> = free.iter().map(|id| (*id).to_owned()).chain(names(&kept)).collect();
            match self.most_missed(round, &kept, &among) {
                Some(worst) => kept.remove(worst),
                None => return Crew::None,
            };
        }
    }

    /// The member with which most of these cannot link.
    fn most_missed(&self, round: &Round, members: &[Member], among: &[String]) -> Option<usize> {
        let cut = |id: &str| among.iter().filter(|other| round.reach.link(id, other) == Link::Cut).count();
        let missed = |&i: &usize| (cut(&members[i].worker), round.reach.missed(&members[i].worker), i);
        (0..members.len()).filter(|&i| cut(&members[i].worker) > 0).max_by_key(missed)
    }

    /// All ranks have somebody, and these members keep theirs. None: there are not enough workers.
    fn fill(&self, round: &Round, record: &GroupRecord, kept: &[Member], now: Duration) -> Option<Vec<Member>> {
        let worker = |member: &Member| round.view.workers.get(&member.worker);
        let mut members = kept.to_vec();
        let is_open = |rank: &usize| !kept.iter().any(|member| member.ranks.contains(rank));
        let mut open: Vec<usize> = (0..record.group_size).filter(is_open).collect();
        let able = self.able(round, record, kept, false, now);
        // Members that hold ranks of lost workers give up those that a free worker can take. All others keep their ranks, so
        // that their weights stay loaded.
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
            let most = |member: &Member| worker(member).map_or(0, |worker| worker.most_ranks);
            let able = members.iter_mut().filter(|member| member.ranks.len() < most(member));
            match able.min_by_key(|member| member.ranks.len()) {
                Some(member) => {
                    member.ranks.push(rank);
                    member.ranks.sort_unstable();
                }
                None => open.push(rank),
            }
        }
        let blamed = self.able(round, record, &members, true, now);
        seat(&mut members, &mut open, blamed);
        open.is_empty().then_some(members)
    }
}

/// Open ranks to workers that can take them.
fn seat(members: &mut Vec<Member>, open: &mut Vec<usize>, able: Free) {
    for (id, worker) in able {
        if open.is_empty() {
            return;
        }
        members.push(member(id, worker, open.drain(..open.len().min(worker.ranks)).collect()));
    }
}
