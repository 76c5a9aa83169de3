//! What the active controller decides: which worker holds which rank of which group. A pure function of the cluster's
//! records, the time and what it has observed before.
//!
//! This module does no I/O and never waits.

mod cooldown;
mod domains;
mod experts;
mod lost;
mod names;
mod reform;
mod seats;
mod suspects;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use cooldown::Cooldown;
use lost::SeenWorkers;
use names::GroupNames;

use crate::{
    connectivity::{Connectivity, needs_links},
    epoch, limits,
    placement::{Placement, place},
    rebalance::Rebalance,
    records::{GroupMember, GroupRecord, Keys, Seat, WorkerClass, WorkerRecord, WorkerState, class_of_worker, encode},
    store::{KeyCondition, Revision, StorePoint, Transaction},
    view::{ClusterView, GroupState},
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DecisionKind {
    /// A new group is formed.
    Form,
    /// The members of a group change.
    Reform,
    /// A group ends.
    Dissolve,
    /// A group accepts no new sequences, or accepts them again.
    Drain,
    /// The experts of a group move between its ranks.
    Relayout,
    /// Seats are corrected to match the placements.
    Seat,
    /// A record that can no longer be decoded is written again.
    Repair,
    /// Workers are lost.
    Lost,
    /// They are back, or lost for long.
    Forget,
}

/// One change, written in one transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    pub kind: DecisionKind,
    pub why: String,
    pub transaction: Transaction,
}

/// Policy of the controller, from its flags.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ControllerSettings {
    /// Workers per model that stay spare instead of forming one more group.
    pub spares: usize,
    /// None: experts are not moved.
    pub rebalance: Option<Rebalance>,
}

/// What an active controller remembers. A new one starts empty and waits `limits::MEMBER_SETTLE_TIME` for workers to
/// register again.
#[derive(Debug)]
pub struct Controller {
    keys: Keys,
    settings: ControllerSettings,
    /// Milliseconds since 1970 at the time `now` = 0.
    epoch_base: u64,
    began: Option<Duration>,
    point: StorePoint,
    /// Workers that have been seen. If one of them is missing from the store, it is lost; one that was never seen may
    /// still register.
    known: BTreeSet<String>,
    seen: SeenWorkers,
    /// Per group: its epoch, the cooldown of its changes, and the class of its workers.
    epochs: BTreeMap<String, (u64, Cooldown, WorkerClass)>,
    /// Cooldowns of groups that ended, by class.
    ended: BTreeMap<WorkerClass, Cooldown>,
    /// When a group began to drain.
    draining: BTreeMap<String, Duration>,
    /// When a worker first claimed to be in a group that the store does not have.
    orphans: BTreeMap<String, Duration>,
    /// When each incarnation of a worker was first seen.
    first_seen: BTreeMap<String, (u64, Duration)>,
    /// Per group: the last epoch in which it served, and its members then, by incarnation.
    last_served: BTreeMap<String, (u64, BTreeSet<(String, u64)>)>,
    /// Workers that were replaced because their ranks did not join the group.
    blamed: BTreeMap<String, Cooldown>,
    /// Per group: the epoch that did not form, and when its first member reported that.
    first_reports: BTreeMap<String, (u64, Duration)>,
    /// Per worker: the last logged reason why it gets no seat.
    logged_refusals: BTreeMap<String, String>,
    /// Classes whose spares would fill a group, but not within one domain.
    scattered: BTreeSet<WorkerClass>,
    /// When to check the expert layout of a group next.
    next_relayout: BTreeMap<String, Duration>,
    names: GroupNames,
    /// When to decide again if nothing changes before.
    wake: Option<Duration>,
}

/// Workers that can be given a seat, ordered by name; blamed ones are last.
type Free<'a> = Vec<(&'a str, &'a Arc<WorkerRecord>)>;

struct Round<'a> {
    view: &'a ClusterView,
    connectivity: Connectivity<'a>,
    free: BTreeMap<WorkerClass, Free<'a>>,
    /// The time part of the last epoch: at least now, and at least that of every known epoch.
    epoch_time: u64,
    /// Only one group's expert layout is computed in a round, because that takes up to a second.
    relayout_checked: bool,
    decisions: Vec<Decision>,
}

impl Round<'_> {
    /// A new epoch, higher than all others, with the number after that of `last`.
    fn next_epoch(&mut self, last: u64) -> u64 {
        self.epoch_time += 1;
        epoch::new(self.epoch_time, epoch::number(last) + 1)
    }
}

fn member(id: &str, worker: &WorkerRecord, ranks: Vec<usize>) -> GroupMember {
    GroupMember {
        worker: id.to_owned(),
        incarnation: worker.incarnation,
        address: worker.address.clone(),
        mesh: worker.mesh.clone(),
        ranks,
    }
}

impl Controller {
    pub fn new(keys: Keys, settings: ControllerSettings, epoch_base: u64) -> Self {
        Controller {
            keys,
            settings,
            epoch_base,
            began: None,
            point: StorePoint::default(),
            known: BTreeSet::new(),
            seen: SeenWorkers::default(),
            epochs: BTreeMap::new(),
            ended: BTreeMap::new(),
            draining: BTreeMap::new(),
            orphans: BTreeMap::new(),
            first_seen: BTreeMap::new(),
            last_served: BTreeMap::new(),
            blamed: BTreeMap::new(),
            first_reports: BTreeMap::new(),
            logged_refusals: BTreeMap::new(),
            scattered: BTreeSet::new(),
            next_relayout: BTreeMap::new(),
            names: GroupNames::default(),
            wake: None,
        }
    }

    /// When to call `decide` again if nothing changes before.
    pub fn wake(&self) -> Option<Duration> {
        self.wake
    }

    /// The changes to make now. Call it again with a view in which these changes are visible, or could not be made.
    pub fn decide(&mut self, view: &ClusterView, now: Duration) -> Vec<Decision> {
        if view.point.is_after_reset(self.point) {
            tracing::warn!("the store was reset; waiting for workers to register again");
            let names = std::mem::take(&mut self.names);
            *self = Controller { names, ..Controller::new(self.keys.clone(), self.settings, self.epoch_base) };
        }
        self.point = view.point;
        self.wake = None;
        self.began.get_or_insert(now);
        self.known.extend(view.workers.keys().cloned());
        self.observe(view, now);
        let connectivity = Connectivity::new(view);
        let free = self.free_workers(view, &connectivity, now);
        let epoch_time = epoch::time(view.last_epoch()).max(self.epoch_base + now.as_millis() as u64);
        // A placement without a reader would end its group.
        let repairs = view.damaged_placements().map(|(id, record)| {
            let key = self.keys.placement(id);
            let transaction =
                Transaction::default().when(view.unchanged(key.clone())).put(key, encode(&**record), None);
            let why = format!("{id}: its placement could not be decoded; writing it again");
            Decision { kind: DecisionKind::Repair, why, transaction }
        });
        let repairs: Vec<_> = repairs.collect();
        if !repairs.is_empty() {
            return repairs;
        }
        let mut round = Round { view, connectivity, free, epoch_time, relayout_checked: false, decisions: Vec::new() };
        for (id, group) in &view.groups {
            if let Some((record, revision)) = &group.placement {
                self.review_group(&mut round, id, group, record, *revision, now);
            }
        }
        if self.has_settled(now) {
            self.form_groups(&mut round, now);
        }
        self.repair_seats(&mut round, now);
        round.decisions.extend(self.note_lost(view, now));
        round.decisions
    }

    fn observe(&mut self, view: &ClusterView, now: Duration) {
        let record = |id: &String| view.groups.get(id).and_then(GroupState::record);
        self.names.observe(view);
        self.ended.retain(|_, ended| now < ended.expires());
        // A group whose cooldown has expired was stable, so its end does not delay new groups of its class, not even
        // when many groups end at once.
        let ended = |(id, (_, cooldown, _)): &(&String, &(u64, Cooldown, WorkerClass))| {
            record(id).is_none() && now < cooldown.expires()
        };
        for (_, (_, _, class)) in self.epochs.iter().filter(ended) {
            let ended = self.ended.entry(class.clone()).or_insert_with(|| Cooldown::new(now));
            *ended = ended.after_change(now);
        }
        self.epochs.retain(|id, _| record(id).is_some());
        self.draining.retain(|id, _| record(id).is_some_and(|record| record.draining));
        self.next_relayout.retain(|id, _| record(id).is_some());
        self.last_served.retain(|id, _| record(id).is_some());
        self.first_reports.retain(|id, _| record(id).is_some());
        self.blamed.retain(|_, blamed| now < blamed.expires());
        self.first_seen.retain(|id, _| view.workers.contains_key(id));
        for (id, worker) in &view.workers {
            let seen = self.first_seen.entry(id.clone()).or_insert((worker.incarnation, now));
            if seen.0 != worker.incarnation {
                *seen = (worker.incarnation, now);
            }
            let heard = seen.1 + limits::PROBE_PATIENCE;
            if needs_links(worker) && now < heard {
                self.wake = Some(self.wake.map_or(heard, |wake| wake.min(heard)));
            }
        }
        let serving = |(id, group): (&'_ String, &'_ GroupState)| {
            group.record().filter(|_| group.serves()).map(|r| (id.clone(), r.clone()))
        };
        for (id, record) in view.groups.iter().filter_map(serving) {
            let members = record.members.iter().map(|member| (member.worker.clone(), member.incarnation)).collect();
            self.last_served.insert(id, (record.epoch(), members));
        }
        for (id, record) in view.groups.iter().filter_map(|(id, group)| Some((id, group.record()?))) {
            let seen = || (record.epoch(), Cooldown::new(now), class_of_group(record));
            let (epoch, series, _) = self.epochs.entry(id.clone()).or_insert_with(seen);
            if *epoch != record.epoch() {
                (*epoch, *series) = (record.epoch(), series.after_change(now));
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

    /// Whether workers have had time to register since this controller became active.
    fn has_settled(&mut self, now: Duration) -> bool {
        let until = self.began.unwrap_or(now) + limits::MEMBER_SETTLE_TIME;
        if now < until {
            self.wake_at(until);
        }
        now >= until
    }

    fn free_workers<'a>(
        &mut self,
        view: &'a ClusterView,
        connectivity: &Connectivity,
        now: Duration,
    ) -> BTreeMap<WorkerClass, Free<'a>> {
        let mut free: BTreeMap<WorkerClass, Free> = BTreeMap::new();
        let told = std::mem::take(&mut self.logged_refusals);
        let records = || view.groups.values().filter_map(GroupState::record);
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
            self.log_seat_refusal(&told, id, view, connectivity, now);
            if !self.is_expired(worker, now) {
                free.entry(class_of_worker(worker)).or_default().push((id.as_str(), worker));
            }
        }
        for free in free.values_mut() {
            free.sort_by_key(|(id, _)| self.blamed.contains_key(*id));
        }
        free
    }

    /// Whether its certificate has expired, so that peers refuse it.
    fn is_expired(&mut self, worker: &WorkerRecord, now: Duration) -> bool {
        let Some(expires) = worker.expires else { return false };
        let at = Duration::from_secs(expires).saturating_sub(Duration::from_millis(self.epoch_base));
        if now < at {
            self.wake_at(at);
        }
        now >= at
    }

    /// Checks the members of one group and decides what to do if one is missing.
    fn review_group(
        &mut self,
        round: &mut Round,
        id: &str,
        group: &GroupState,
        record: &Arc<GroupRecord>,
        at: Revision,
        now: Duration,
    ) {
        let view = round.view;
        let Some(mut lost) = self.lost(round, id, group, record, now) else { return };
        let of_epoch = |trouble: &&crate::records::RankFailure| trouble.epoch == record.epoch();
        let broken = group.trouble.values().find(of_epoch);
        let mut why = match (lost.first(), broken) {
            (Some(&i), trouble) => {
                let reason = trouble.map_or(String::new(), |trouble| format!(" ({})", trouble.reason));
                format!("lost worker {}{reason}", record.members[i].worker)
            }
            (None, Some(trouble)) => trouble.reason.clone(),
            (None, None) => String::new(),
        };
        let series = self.epochs.get(id).map_or(Cooldown::new(now), |(_, series, _)| *series);
        let due = if lost.is_empty() && broken.is_some() { series.due_unforced() } else { series.due() };
        let mut change = !lost.is_empty() || broken.is_some();
        let state = |member: &GroupMember| view.workers.get(&member.worker).map(|worker| worker.state);
        let settled = self.has_settled(now);
        let mut leaving: Vec<usize> =
            (0..record.members.len()).filter(|&i| state(&record.members[i]) == Some(WorkerState::Draining)).collect();
        let expired = |controller: &mut Self, member: &GroupMember| {
            view.workers.get(&member.worker).is_some_and(|worker| controller.is_expired(worker, now))
        };
        let expired: BTreeSet<usize> =
            (0..record.members.len()).filter(|&i| expired(self, &record.members[i])).collect();
        let without = |out: &BTreeSet<usize>| -> Vec<GroupMember> {
            let members = record.members.iter().enumerate().filter(|(i, _)| !out.contains(i));
            members.map(|(_, member)| member.clone()).collect()
        };
        if change {
            // Draining members and those with an expired certificate leave in the same epoch. The former asked to, the
            // latter could not link again.
            lost.extend(&leaving);
            lost.extend(&expired);
        }
        let mut cause = "is draining";
        if !change && settled && leaving.is_empty() {
            leaving = self.foreign_members(round, record, now);
            cause = "returns to its domain";
        }
        if let (Some(&first), false) = (leaving.first(), change)
            && self.may_leave(round, id, group, record, now)
        {
            why = format!("worker {} {cause}", record.members[first].worker);
            lost.extend(&leaving);
            change = true;
        }
        let overloaded =
            |member: &GroupMember| view.workers.get(&member.worker).is_some_and(|w| member.ranks.len() > w.ranks);
        if !change
            && settled
            && !expired.is_empty()
            && !self.replacements(round, record, &without(&expired), now).is_empty()
        {
            // Until another worker can take its ranks, it keeps serving over its open connections.
            why = format!(
                "the certificate of worker {} has expired",
                record.members[expired.iter().next().copied().unwrap_or(0)].worker
            );
            lost.extend(&expired);
            change = true;
        }
        if !change
            && settled
            && record.members.iter().any(overloaded)
            && !self.replacements(round, record, &record.members, now).is_empty()
        {
            (why, change) = ("free workers can relieve members that hold extra ranks".into(), true);
        }
        if change && now < due {
            self.wake_at(due);
        } else if change {
            self.reform(round, id, record, at, &lost, &why, now);
        } else if leaving.is_empty() && !record.draining {
            self.rebalance(round, id, group, record, at, now);
        } else if let (Some(&first), false) = (leaving.first(), record.draining) {
            let worker = &record.members[first].worker;
            let why = format!("{id}: worker {worker} {cause}; the group accepts no new sequences");
            round.decisions.push(self.accepting(id, record, at, false, why));
        } else if leaving.is_empty() && settled {
            let why = format!("{id}: no worker leaves; the group accepts sequences again");
            round.decisions.push(self.accepting(id, record, at, true, why));
        }
    }

    /// Whether the group accepts new sequences from now on.
    fn accepting(&self, id: &str, record: &GroupRecord, at: Revision, accepts: bool, why: String) -> Decision {
        let key = self.keys.placement(id);
        let record = GroupRecord { draining: !accepts, ..record.clone() };
        let transaction = Transaction::default().when(KeyCondition::At(key.clone(), at));
        Decision { kind: DecisionKind::Drain, why, transaction: transaction.put(key, encode(&record), None) }
    }

    /// Whether a draining member may leave: another group or worker can replace it, or its time is over.
    fn may_leave(&mut self, round: &Round, id: &str, group: &GroupState, record: &GroupRecord, now: Duration) -> bool {
        let mut others =
            round.view.groups.iter().filter(|(other, _)| *other != id).filter_map(|(_, g)| g.record().map(|r| (g, r)));
        let elsewhere = others.any(|(g, r)| r.model == record.model && !r.draining && g.serves());
        let stays = |member: &&GroupMember| {
            round.view.workers.get(&member.worker).is_none_or(|worker| worker.state != WorkerState::Draining)
        };
        let others: Vec<GroupMember> = record.members.iter().filter(stays).cloned().collect();
        let replaceable = !self.replacements(round, record, &others, now).is_empty();
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

    /// Forms groups from free workers.
    fn form_groups(&mut self, round: &mut Round, now: Duration) {
        let mut all_free = std::mem::take(&mut round.free);
        if all_free.values().all(Vec::is_empty) {
            return;
        }
        for free in all_free.values_mut() {
            // A worker that can link with no peer cannot serve as a spare either.
            free.retain(|(id, _)| !round.connectivity.is_isolated(id));
        }
        let groups = round.view.groups.values().filter_map(GroupState::record);
        let classes: BTreeSet<WorkerClass> = groups.map(|record| class_of_group(record)).collect();
        for (class, mut free) in all_free {
            if let Some(due) = self.ended.get(&class).map(|ended| ended.due())
                && now < due
            {
                self.wake_at(due);
                continue;
            }
            // Spares are kept only where there is a group that they can join.
            let mut spares = if classes.contains(&class) { self.settings.spares } else { 0 };
            let (model, fingerprint, group_size, protocol) = class.clone();
            while free.len() > spares {
                let crews = (0..free.len()).filter_map(|first| self.linked(round, &free, first, group_size, now));
                let far = |chosen: &Vec<usize>| domains::spread(chosen.iter().map(|&i| free[i].1.locality.as_ref()));
                let closest = crews.min_by_key(far).filter(|chosen| free.len() >= chosen.len() + spares);
                let Some(chosen) = closest else {
                    break;
                };
                let far = domains::note(far(&chosen));
                let mut next = 0;
                let seat = |&i: &usize| {
                    let (name, worker) = free[i];
                    next += worker.ranks;
                    member(name, worker, (next - worker.ranks..next).collect())
                };
                let members: Vec<GroupMember> = chosen.iter().map(seat).collect();
                let text = chosen.first().map(|&i| free[i].1.text.clone()).unwrap_or_default();
                // Members have the same checkpoint, but a directory may not name its revision.
                let revision = chosen.iter().find_map(|&i| free[i].1.revision.clone());
                let domain = chosen.first().and_then(|&i| free[i].1.domain.clone());
                for &i in chosen.iter().rev() {
                    free.remove(i);
                }
                let epoch = round.next_epoch(0);
                let Some(placement) = place_model(round.view, &members, group_size, epoch) else {
                    tracing::warn!(
                        model,
                        group_size,
                        "cannot place the model: its heads cannot be split over this number of ranks"
                    );
                    break;
                };
                let id = self.names.next(&model);
                let workers: Vec<&str> = members.iter().map(|member| member.worker.as_str()).collect();
                let why = format!("{id}: formed, epoch 1 on {}{far}", workers.join(", "));
                let key = self.keys.placement(&id);
                let mut transaction = Transaction::default().when(KeyCondition::Absent(key.clone()));
                for worker in workers {
                    let seat = Seat { group: Some(id.clone()), epoch };
                    let at = self.keys.seat(worker);
                    // A write whose answer was lost may have assigned, or may still assign, another seat.
                    transaction = transaction.when(round.view.unchanged(at.clone())).put(at, encode(&seat), None);
                }
                let record = GroupRecord {
                    model: model.clone(),
                    fingerprint: fingerprint.clone(),
                    text,
                    revision,
                    group_size,
                    domain,
                    members,
                    placement,
                    draining: false,
                    out: Vec::new(),
                    protocol,
                };
                transaction = transaction.put(key, encode(&record), None);
                round.decisions.push(Decision { kind: DecisionKind::Form, why, transaction });
                spares = self.settings.spares;
            }
            self.note_scattered(class, &free, spares, now);
        }
    }
}

fn class_of_group(record: &GroupRecord) -> WorkerClass {
    (record.model.clone(), record.fingerprint.clone(), record.group_size, record.protocol)
}

/// Whether the worker claims a group, or an epoch of it, that the store does not have: the store has lost data.
fn orphan(view: &ClusterView, worker: &WorkerRecord) -> bool {
    let epoch = |group: &String| view.groups.get(group).and_then(GroupState::record).map(|record| record.epoch());
    worker.seat.group.as_ref().is_some_and(|group| epoch(group).is_none_or(|epoch| epoch < worker.seat.epoch))
}

/// Places the model on these members. None: its heads cannot be split over this number of ranks.
fn place_model(view: &ClusterView, members: &[GroupMember], ranks: usize, epoch: u64) -> Option<Placement> {
    let shape = &members.iter().find_map(|member| view.workers.get(&member.worker))?.shape;
    place(shape, ranks, epoch).ok()
}
