//! What the active controller does: who is which rank of which group. A pure function of the cluster's records, the time
//! and what it has seen before; nothing here waits or writes.

mod experts;
mod pace;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use pace::Series;

use crate::{
    limits,
    placement::{Placement, place},
    rebalance::Rebalance,
    records::{GroupRecord, Keys, Member, Seat, WorkerRecord, WorkerState, encode},
    store::{Condition, Revision, Transaction},
    view::{Group, View},
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A new group.
    Form,
    /// A group's members anew.
    Reform,
    /// A group is over.
    Dissolve,
    /// A group takes no new sequences.
    Drain,
    /// A group's experts lie elsewhere.
    Relayout,
    /// Seats as the placements say.
    Seat,
}

/// One change, to be written as a whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    pub kind: Kind,
    pub why: String,
    pub transaction: Transaction,
}

/// What a controller is told to do.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Settings {
    /// Workers per model that are kept aside rather than made into one more group.
    pub spares: usize,
    /// None: experts stay where they are.
    pub rebalance: Option<Rebalance>,
}

/// What an active controller remembers. A new one begins with nothing and gives everybody time to come back.
#[derive(Debug)]
pub struct Controller {
    keys: Keys,
    settings: Settings,
    /// Milliseconds since 1970 when `now` is zero.
    epoch_base: u64,
    began: Option<Duration>,
    revision: Revision,
    /// Workers that have been seen: when one of these is gone, it is gone.
    known: BTreeSet<String>,
    /// Of each group: its epoch, how fast epochs follow each other, and of which sort it is.
    epochs: BTreeMap<String, (u64, Series, Sort)>,
    /// Groups that ended, by their sort.
    ended: BTreeMap<Sort, Series>,
    /// Since when a group drains.
    draining: BTreeMap<String, Duration>,
    /// Workers that say they are in a group that is not there, since when.
    orphans: BTreeMap<String, Duration>,
    /// When a group's layout of experts is to be judged again.
    judge: BTreeMap<String, Duration>,
    /// When to look again though nothing has changed.
    wake: Option<Duration>,
}

/// Workers that can be in one group: model, fingerprint, size of the group and protocol.
type Sort = (String, String, usize, u32);

fn sort(worker: &WorkerRecord) -> Sort {
    (worker.model.clone(), worker.fingerprint.clone(), worker.group_size, worker.release.protocol)
}

struct Round<'a> {
    view: &'a View,
    /// By sort, in the order of their names.
    free: BTreeMap<Sort, Vec<(&'a str, &'a Arc<WorkerRecord>)>>,
    epoch: u64,
    /// One group's layout of experts is judged in a round: it takes up to a second.
    judged: bool,
    decisions: Vec<Decision>,
}

impl Round<'_> {
    fn next_epoch(&mut self) -> u64 {
        self.epoch += 1;
        self.epoch
    }
}

fn member(id: &str, worker: &WorkerRecord, ranks: Vec<usize>) -> Member {
    Member {
        worker: id.to_owned(),
        incarnation: worker.incarnation,
        address: worker.address.clone(),
        mesh: worker.mesh.clone(),
        ranks,
    }
}

impl Controller {
    pub fn new(keys: Keys, settings: Settings, epoch_base: u64) -> Self {
        Controller {
            keys,
            settings,
            epoch_base,
            began: None,
            revision: 0,
            known: BTreeSet::new(),
            epochs: BTreeMap::new(),
            ended: BTreeMap::new(),
            draining: BTreeMap::new(),
            orphans: BTreeMap::new(),
            judge: BTreeMap::new(),
            wake: None,
        }
    }

    /// When `decide` has to be asked again at the latest.
    pub fn wake(&self) -> Option<Duration> {
        self.wake
    }

    /// What is to be changed now. The next question is for a view in which these changes are, or could not be made.
    pub fn decide(&mut self, view: &View, now: Duration) -> Vec<Decision> {
        if view.revision < self.revision {
            tracing::warn!("the store has begun anew; everybody gets time to come back");
            *self = Controller::new(self.keys.clone(), self.settings, self.epoch_base);
        }
        self.revision = view.revision;
        self.wake = None;
        self.began.get_or_insert(now);
        self.known.extend(view.workers.keys().cloned());
        self.remember(view, now);
        let free = self.free(view, now);
        // At least the time: so an epoch is a new one also where the store has forgotten those that there were.
        let epoch = view.last_epoch().max(self.epoch_base + now.as_millis() as u64);
        let mut round = Round { view, free, epoch, judged: false, decisions: Vec::new() };
        for (id, group) in &view.groups {
            if let Some((record, revision)) = &group.placement {
                self.tend(&mut round, id, group, record, *revision, now);
            }
        }
        if self.settled(now) {
            self.form(&mut round, now);
        }
        self.seat(&mut round, now);
        round.decisions
    }

    fn remember(&mut self, view: &View, now: Duration) {
        let record = |id: &String| view.groups.get(id).and_then(Group::record);
        self.ended.retain(|_, ended| now < ended.calm());
        for (_, (_, _, sort)) in self.epochs.iter().filter(|(id, _)| record(id).is_none()) {
            let ended = self.ended.entry(sort.clone()).or_insert_with(|| Series::begin(now));
            *ended = ended.next(now);
        }
        self.epochs.retain(|id, _| record(id).is_some());
        self.draining.retain(|id, _| record(id).is_some_and(|record| record.draining));
        self.judge.retain(|id, _| record(id).is_some());
        for (id, record) in view.groups.iter().filter_map(|(id, group)| Some((id, group.record()?))) {
            let seen = || (record.epoch(), Series::begin(now), of(record));
            let (epoch, series, _) = self.epochs.entry(id.clone()).or_insert_with(seen);
            if *epoch != record.epoch() {
                (*epoch, *series) = (record.epoch(), series.next(now));
            }
            if record.draining {
                self.draining.entry(id.clone()).or_insert(now);
            }
        }
        let orphaned = |id: &String| view.workers.get(id).is_some_and(|worker| orphan(view, worker));
        self.orphans.retain(|id, _| orphaned(id));
        for (id, worker) in &view.workers {
            if orphan(view, worker) {
                self.orphans.entry(id.clone()).or_insert(now);
            }
        }
    }

    fn wake_at(&mut self, at: Duration) {
        self.wake = Some(self.wake.map_or(at, |wake| wake.min(at)));
    }

    /// Whether whoever was there before has had time to say so.
    fn settled(&mut self, now: Duration) -> bool {
        let until = self.began.unwrap_or(now) + limits::SETTLE;
        if now < until {
            self.wake_at(until);
        }
        now >= until
    }

    /// Workers that can be given a seat.
    fn free<'a>(&mut self, view: &'a View, now: Duration) -> BTreeMap<Sort, Vec<(&'a str, &'a Arc<WorkerRecord>)>> {
        let mut free: BTreeMap<Sort, Vec<_>> = BTreeMap::new();
        let records = || view.groups.values().filter_map(Group::record);
        let taken: BTreeSet<&str> =
            records().flat_map(|record| record.members.iter().map(|member| member.worker.as_str())).collect();
        let dismissed: BTreeSet<(&str, u64)> =
            records().flat_map(|record| record.out.iter().map(|(out, n)| (out.as_str(), *n))).collect();
        for (id, worker) in &view.workers {
            let gone = taken.contains(id.as_str()) || dismissed.contains(&(id.as_str(), worker.incarnation));
            if gone || worker.state != WorkerState::Ready {
                continue;
            }
            if let Some(&since) = self.orphans.get(id)
                && now < since + limits::ORPHAN_TIME
            {
                self.wake_at(since + limits::ORPHAN_TIME);
                continue;
            }
            free.entry(sort(worker)).or_default().push((id.as_str(), worker));
        }
        free
    }

    /// One group: whether its members are there, and what is to be done if not.
    fn tend(
        &mut self,
        round: &mut Round,
        id: &str,
        group: &Group,
        record: &Arc<GroupRecord>,
        at: Revision,
        now: Duration,
    ) {
        let view = round.view;
        let mut lost = self.lost(view, group, record, now);
        let of_epoch = |trouble: &&crate::records::Trouble| trouble.epoch == record.epoch();
        let broken = group.trouble.values().find(of_epoch);
        let mut why = match (lost.first(), broken) {
            (Some(&i), trouble) => {
                let reason = trouble.map_or(String::new(), |trouble| format!(" ({})", trouble.reason));
                format!("{} is lost{reason}", record.members[i].worker)
            }
            (None, Some(trouble)) => trouble.reason.clone(),
            (None, None) => String::new(),
        };
        let series = self.epochs.get(id).map_or(Series::begin(now), |(_, series, _)| *series);
        let due = if lost.is_empty() && broken.is_some() { series.due_later() } else { series.due() };
        let mut change = !lost.is_empty() || broken.is_some();
        let state = |member: &Member| view.workers.get(&member.worker).map(|worker| worker.state);
        let leaving: Vec<usize> =
            (0..record.members.len()).filter(|&i| state(&record.members[i]) == Some(WorkerState::Draining)).collect();
        if change {
            // They do not come along.
            lost.extend(&leaving);
        } else if !leaving.is_empty() {
            if self.may_leave(round, id, group, record, now) {
                why = format!("{} drains", record.members[leaving[0]].worker);
                lost.extend(&leaving);
                change = true;
            } else if !record.draining {
                let flagged = GroupRecord { draining: true, ..(**record).clone() };
                let key = self.keys.placement(id);
                let transaction = Transaction::default().when(Condition::At(key.clone(), at));
                let why = format!("{id}: {} drains; no new sequences", record.members[leaving[0]].worker);
                let transaction = transaction.put(key, encode(&flagged), None);
                round.decisions.push(Decision { kind: Kind::Drain, why, transaction });
            }
        }
        let overloaded =
            |member: &Member| view.workers.get(&member.worker).is_some_and(|w| member.ranks.len() > w.ranks);
        if !change
            && record.members.iter().any(overloaded)
            && self.settled(now)
            && round.free.get(&of(record)).is_some_and(|free| !free.is_empty())
        {
            (why, change) = ("there are workers again for ranks that others stood in for".into(), true);
        }
        if change && now < due {
            self.wake_at(due);
        } else if change {
            self.reform(round, id, record, at, &lost, &why);
        } else if leaving.is_empty() && !record.draining {
            self.rebalance(round, id, group, record, at, now);
        }
    }

    /// Members that are not there any more.
    fn lost(&mut self, view: &View, group: &Group, record: &GroupRecord, now: Duration) -> BTreeSet<usize> {
        let mut lost = BTreeSet::new();
        let here =
            |member: &Member| view.workers.get(&member.worker).is_some_and(|w| w.incarnation == member.incarnation);
        for (i, member) in record.members.iter().enumerate() {
            if here(member) {
                continue;
            }
            let replaced = view.workers.contains_key(&member.worker);
            // A worker that the store does not hear, but its group does, goes on.
            let heard = |other: usize| {
                other != i
                    && here(&record.members[other])
                    && group.ready.get(&record.first_rank(other)).is_some_and(|ready| ready.epoch == record.epoch())
            };
            let witnessed = (0..record.members.len()).any(heard);
            let unknown = !self.known.contains(&member.worker) && !self.settled(now);
            if replaced || !(witnessed || unknown) {
                lost.insert(i);
            }
        }
        if !lost.is_empty() {
            return lost;
        }
        let mut votes = vec![0usize; record.members.len()];
        for (&rank, trouble) in group.trouble.iter().filter(|(_, trouble)| trouble.epoch == record.epoch()) {
            let suspect = trouble.suspect.and_then(|suspect| record.member_of(suspect));
            // A member that cannot load suspects itself.
            if let (Some(by), Some(suspect)) = (record.member_of(rank), suspect)
                && here(&record.members[by])
            {
                votes[suspect] += 1;
            }
        }
        // Two that cannot hear each other suspect each other: one goes, the later one.
        let most = (0..votes.len()).filter(|&i| votes[i] > 0).max_by_key(|&i| (votes[i], i));
        lost.extend(most);
        lost
    }

    /// Whether a member that wants to leave can: nobody needs it, or it has waited for long.
    fn may_leave(&mut self, round: &Round, id: &str, group: &Group, record: &GroupRecord, now: Duration) -> bool {
        let mut others =
            round.view.groups.iter().filter(|(other, _)| *other != id).filter_map(|(_, g)| g.record().map(|r| (g, r)));
        let elsewhere = others.any(|(g, r)| r.model == record.model && !r.draining && g.serves());
        let free: usize =
            round.free.get(&of(record)).map_or(0, |free| free.iter().map(|(_, worker)| worker.ranks).sum());
        let replaceable = free > 0;
        if !elsewhere && replaceable || !group.serves() {
            return true;
        }
        let Some(&since) = self.draining.get(id) else { return false };
        let idle =
            group.load.as_ref().is_some_and(|load| load.epoch == record.epoch() && load.running + load.waiting == 0);
        let quiet = since + limits::DRAIN_QUIET;
        let over = since + limits::DRAIN_TIME;
        if now < quiet {
            self.wake_at(quiet);
            return false;
        }
        if !idle && now < over {
            self.wake_at(over);
            return false;
        }
        true
    }

    /// The group again without those that are lost: their ranks go to others, or to its own members as far as these have
    /// room, or the group is over. There are as many ranks as before, so what is computed stays the same to the bit.
    fn reform(
        &mut self,
        round: &mut Round,
        id: &str,
        record: &GroupRecord,
        at: Revision,
        lost: &BTreeSet<usize>,
        why: &str,
    ) {
        let view = round.view;
        let mut free = round.free.remove(&of(record)).unwrap_or_default();
        let mut members: Vec<Member> = record
            .members
            .iter()
            .enumerate()
            .filter(|(i, _)| !lost.contains(i))
            .map(|(_, known)| known.clone())
            .collect();
        let mut open: Vec<usize> =
            (0..record.group_size).filter(|rank| !members.iter().any(|member| member.ranks.contains(rank))).collect();
        // Those who stand in for others give back what somebody can take. The others keep theirs, and so their weights.
        let room: usize = free.iter().map(|(_, worker)| worker.ranks).sum();
        for member in &mut members {
            let regular = view.workers.get(&member.worker).map_or(0, |worker| worker.ranks);
            while member.ranks.len() > regular.max(1) && open.len() < room {
                open.extend(member.ranks.pop());
            }
        }
        open.sort_unstable();
        while !open.is_empty() && !free.is_empty() {
            let (name, worker) = free.remove(0);
            members.push(member(name, worker, open.drain(..open.len().min(worker.ranks)).collect()));
        }
        for rank in std::mem::take(&mut open) {
            let most = |member: &Member| view.workers.get(&member.worker).map_or(0, |worker| worker.most_ranks);
            let able = members.iter_mut().filter(|member| member.ranks.len() < most(member));
            match able.min_by_key(|member| member.ranks.len()) {
                Some(member) => {
                    member.ranks.push(rank);
                    member.ranks.sort_unstable();
                }
                None => open.push(rank),
            }
        }
        let epoch = round.next_epoch();
        // Experts stay where they are, and so the survivors' weights do.
        let placement = open.is_empty().then(|| Placement { epoch, ..record.placement.clone() });
        if placement.is_none() {
            // Whoever was to take the lost ranks stays free.
            let new = |member: &&Member| record.member(&member.worker, member.incarnation).is_none();
            let again = members.iter().filter(new).filter_map(|member| view.workers.get_key_value(&member.worker));
            free.extend(again.map(|(id, worker)| (id.as_str(), worker)));
            members.clear();
        }
        members.sort_by(|a, b| a.ranks.cmp(&b.ranks));
        round.free.insert(of(record), free);
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

    /// New groups of workers that have none.
    fn form(&mut self, round: &mut Round, now: Duration) {
        let all_free = std::mem::take(&mut round.free);
        if all_free.values().all(Vec::is_empty) {
            return;
        }
        let groups = round.view.groups.values().filter_map(Group::record);
        let sorts: BTreeSet<Sort> = groups.map(|record| of(record)).collect();
        for (sort, mut free) in all_free {
            if let Some(due) = self.ended.get(&sort).map(|ended| ended.due())
                && now < due
            {
                self.wake_at(due);
                continue;
            }
            // A spare is of use beside a group only.
            let mut spares = if sorts.contains(&sort) { self.settings.spares } else { 0 };
            let (model, fingerprint, group_size, protocol) = sort;
            while free.len() > spares {
                let (mut chosen, mut ranks) = (Vec::new(), 0);
                for (i, (_, worker)) in free.iter().enumerate() {
                    if ranks + worker.ranks <= group_size {
                        chosen.push(i);
                        ranks += worker.ranks;
                    }
                }
                if ranks < group_size || free.len() < chosen.len() + spares {
                    break;
                }
                let mut next = 0;
                let seat = |&i: &usize| {
                    let (name, worker) = free[i];
                    next += worker.ranks;
                    member(name, worker, (next - worker.ranks..next).collect())
                };
                let members: Vec<Member> = chosen.iter().map(seat).collect();
                let text = chosen.first().map(|&i| free[i].1.text.clone()).unwrap_or_default();
                for &i in chosen.iter().rev() {
                    free.remove(i);
                }
                let epoch = round.next_epoch();
                let Some(placement) = placed(round.view, &members, group_size, epoch) else {
                    tracing::warn!(model, group_size, "the model cannot be shared by so many ranks");
                    break;
                };
                let id = format!("{}-{epoch}", plain(&model));
                let workers: Vec<&str> = members.iter().map(|member| member.worker.as_str()).collect();
                let why = format!("{id}: new, epoch {epoch} on {}", workers.join(", "));
                let key = self.keys.placement(&id);
                let mut transaction = Transaction::default().when(Condition::Absent(key.clone()));
                for worker in workers {
                    let seat = Seat { group: Some(id.clone()), epoch };
                    let at = self.keys.seat(worker);
                    // A write whose answer was lost may have given it another one, or still do.
                    transaction = transaction.when(round.view.unchanged(at.clone())).put(at, encode(&seat), None);
                }
                let record = GroupRecord {
                    model: model.clone(),
                    fingerprint: fingerprint.clone(),
                    text,
                    group_size,
                    members,
                    placement,
                    draining: false,
                    out: Vec::new(),
                    protocol,
                };
                transaction = transaction.put(key, encode(&record), None);
                round.decisions.push(Decision { kind: Kind::Form, why, transaction });
                spares = self.settings.spares;
            }
        }
    }

    /// Seats that do not say what the placements say: after a loss of data, or of a worker that is gone.
    fn seat(&mut self, round: &mut Round, now: Duration) {
        let view = round.view;
        let mut wanted: BTreeMap<&str, Seat> = BTreeMap::new();
        for (id, worker) in &view.workers {
            if self.orphans.get(id).is_some_and(|&since| now >= since + limits::ORPHAN_TIME) {
                wanted.insert(id, Seat { group: None, epoch: worker.seat.epoch });
            }
            // It was not there when its group went on without it.
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
        // Groups that change in this round get their seats with it.
        if round.decisions.is_empty() && !transaction.writes.is_empty() {
            round.decisions.push(Decision { kind: Kind::Seat, why: "seats as the placements say".into(), transaction });
        }
    }
}

fn of(record: &GroupRecord) -> Sort {
    (record.model.clone(), record.fingerprint.clone(), record.group_size, record.protocol)
}

/// Says it is in a group that is not there, or not yet of that epoch: the store has forgotten something.
fn orphan(view: &View, worker: &WorkerRecord) -> bool {
    let epoch = |group: &String| view.groups.get(group).and_then(Group::record).map(|record| record.epoch());
    worker.seat.group.as_ref().is_some_and(|group| epoch(group).is_none_or(|epoch| epoch < worker.seat.epoch))
}

/// The model over these members; None: it cannot be shared so.
fn placed(view: &View, members: &[Member], ranks: usize, epoch: u64) -> Option<Placement> {
    let shape = &members.iter().find_map(|member| view.workers.get(&member.worker))?.shape;
    place(shape, ranks, epoch).ok()
}

/// What of a model's name can be in that of a group; with an epoch behind it, no two groups ever have the same.
fn plain(model: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.') { c } else { '-' };
    model.chars().map(plain).take(limits::GROUP_NAME).collect()
}
