//! What the active controller does: who is which rank of which group. A pure function of the cluster's records, the time
//! and what it has seen before; nothing here waits or writes.

mod blame;
mod experts;
mod pace;
mod reform;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use pace::Series;

use crate::{
    limits,
    placement::{Placement, place},
    reach::{Reach, needs_links},
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
    /// Workers, by incarnation, since when they have been there.
    seen: BTreeMap<String, (u64, Duration)>,
    /// Of each group: the epoch in which it served last, and its members then, by incarnation.
    proven: BTreeMap<String, (u64, BTreeSet<(String, u64)>)>,
    /// Workers without which a group was put together anew because their ranks did not come to it.
    blamed: BTreeMap<String, Series>,
    /// Why a worker is given no seat, as the log has it.
    told: BTreeMap<String, String>,
    /// When a group's layout of experts is to be judged again.
    judge: BTreeMap<String, Duration>,
    /// When to look again though nothing has changed.
    wake: Option<Duration>,
}

/// Workers that can be in one group: model, fingerprint, size of the group and protocol.
pub(crate) type Sort = (String, String, usize, u32);

pub(crate) fn sort(worker: &WorkerRecord) -> Sort {
    (worker.model.clone(), worker.fingerprint.clone(), worker.group_size, worker.release.protocol)
}

/// Workers that can be given a seat, those that have been blamed last, and else in the order of their names.
type Free<'a> = Vec<(&'a str, &'a Arc<WorkerRecord>)>;

struct Round<'a> {
    view: &'a View,
    reach: Reach<'a>,
    free: BTreeMap<Sort, Free<'a>>,
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
            seen: BTreeMap::new(),
            proven: BTreeMap::new(),
            blamed: BTreeMap::new(),
            told: BTreeMap::new(),
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
        let reach = Reach::new(view);
        let free = self.free(view, &reach, now);
        // At least the time: so an epoch is a new one also where the store has forgotten those that there were.
        let epoch = view.last_epoch().max(self.epoch_base + now.as_millis() as u64);
        let mut round = Round { view, reach, free, epoch, judged: false, decisions: Vec::new() };
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
        self.proven.retain(|id, _| record(id).is_some());
        self.blamed.retain(|_, blamed| now < blamed.calm());
        self.seen.retain(|id, _| view.workers.contains_key(id));
        for (id, worker) in &view.workers {
            let seen = self.seen.entry(id.clone()).or_insert((worker.incarnation, now));
            if seen.0 != worker.incarnation {
                *seen = (worker.incarnation, now);
            }
            let heard = seen.1 + limits::PROBE_PATIENCE;
            if needs_links(worker) && now < heard {
                self.wake = Some(self.wake.map_or(heard, |wake| wake.min(heard)));
            }
        }
        let serving = |(id, group): (&'_ String, &'_ Group)| {
            group.record().filter(|_| group.serves()).map(|r| (id.clone(), r.clone()))
        };
        for (id, record) in view.groups.iter().filter_map(serving) {
            let members = record.members.iter().map(|member| (member.worker.clone(), member.incarnation)).collect();
            self.proven.insert(id, (record.epoch(), members));
        }
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

    fn free<'a>(&mut self, view: &'a View, reach: &Reach, now: Duration) -> BTreeMap<Sort, Free<'a>> {
        let mut free: BTreeMap<Sort, Free> = BTreeMap::new();
        let told = std::mem::take(&mut self.told);
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
            self.tell(&told, id, view, reach, now);
            if !self.is_expired(worker, now) {
                free.entry(sort(worker)).or_default().push((id.as_str(), worker));
            }
        }
        for free in free.values_mut() {
            free.sort_by_key(|(id, _)| self.blamed.contains_key(*id));
        }
        free
    }

    /// Whether its peers take its certificate no more.
    fn is_expired(&mut self, worker: &WorkerRecord, now: Duration) -> bool {
        let Some(expires) = worker.expires else { return false };
        let at = Duration::from_secs(expires).saturating_sub(Duration::from_millis(self.epoch_base));
        if now < at {
            self.wake_at(at);
        }
        now >= at
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
        let mut lost = self.lost(round, id, group, record, now);
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
        let expired = |controller: &mut Self, member: &Member| {
            view.workers.get(&member.worker).is_some_and(|worker| controller.is_expired(worker, now))
        };
        let expired: BTreeSet<usize> =
            (0..record.members.len()).filter(|&i| expired(self, &record.members[i])).collect();
        let without = |out: &BTreeSet<usize>| -> Vec<Member> {
            let members = record.members.iter().enumerate().filter(|(i, _)| !out.contains(i));
            members.map(|(_, member)| member.clone()).collect()
        };
        if change {
            // They do not come along: they leave, or nobody would link with them again.
            lost.extend(&leaving);
            lost.extend(&expired);
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
        let settled = self.settled(now);
        if !change
            && settled
            && !expired.is_empty()
            && !self.successors(round, record, &without(&expired), now).is_empty()
        {
            // Until somebody can take its ranks, it goes on over the connections that it has.
            why = format!(
                "the certificate of {} has expired",
                record.members[expired.iter().next().copied().unwrap_or(0)].worker
            );
            lost.extend(&expired);
            change = true;
        }
        if !change
            && settled
            && record.members.iter().any(overloaded)
            && !self.successors(round, record, &record.members, now).is_empty()
        {
            (why, change) = ("there are workers again for ranks that others stood in for".into(), true);
        }
        if change && now < due {
            self.wake_at(due);
        } else if change {
            self.reform(round, id, record, at, &lost, &why, now);
        } else if leaving.is_empty() && !record.draining {
            self.rebalance(round, id, group, record, at, now);
        }
    }

    /// Whether a member that wants to leave can: nobody needs it, or it has waited for long.
    fn may_leave(&mut self, round: &Round, id: &str, group: &Group, record: &GroupRecord, now: Duration) -> bool {
        let mut others =
            round.view.groups.iter().filter(|(other, _)| *other != id).filter_map(|(_, g)| g.record().map(|r| (g, r)));
        let elsewhere = others.any(|(g, r)| r.model == record.model && !r.draining && g.serves());
        let stays = |member: &&Member| {
            round.view.workers.get(&member.worker).is_none_or(|worker| worker.state != WorkerState::Draining)
        };
        let others: Vec<Member> = record.members.iter().filter(stays).cloned().collect();
        let replaceable = !self.successors(round, record, &others, now).is_empty();
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

    /// New groups of workers that have none.
    fn form(&mut self, round: &mut Round, now: Duration) {
        let mut all_free = std::mem::take(&mut round.free);
        if all_free.values().all(Vec::is_empty) {
            return;
        }
        for free in all_free.values_mut() {
            // Nor is one that can link with nobody a spare.
            free.retain(|(id, _)| !round.reach.is_alone(id));
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
                let crews = (0..free.len()).map(|first| self.linked(round, &free, first, group_size, now));
                let Some(chosen) = crews.flatten().next().filter(|chosen| free.len() >= chosen.len() + spares) else {
                    break;
                };
                let mut next = 0;
                let seat = |&i: &usize| {
                    let (name, worker) = free[i];
                    next += worker.ranks;
                    member(name, worker, (next - worker.ranks..next).collect())
                };
                let members: Vec<Member> = chosen.iter().map(seat).collect();
                let text = chosen.first().map(|&i| free[i].1.text.clone()).unwrap_or_default();
                // Members have the same checkpoint, but a directory may not name its revision.
                let revision = chosen.iter().find_map(|&i| free[i].1.revision.clone());
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
                    revision,
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
