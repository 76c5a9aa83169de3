//! Finds the member whose failure ended a group, and the reason why a worker gets no seat.
//!
//! This module does not choose replacements.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::{Controller, Round};
use crate::{
    connectivity::Connectivity,
    limits,
    records::{GroupMember, GroupRecord},
    view::{ClusterView, GroupState},
};

impl Controller {
    /// The members that are lost. None: the members are still reporting which of them did not join.
    pub(super) fn lost(
        &mut self,
        round: &Round,
        id: &str,
        group: &GroupState,
        record: &GroupRecord,
        now: Duration,
    ) -> Option<BTreeSet<usize>> {
        let (view, mut lost) = (round.view, BTreeSet::new());
        let here = |member: &GroupMember| {
            view.workers.get(&member.worker).is_some_and(|w| w.incarnation == member.incarnation)
        };
        for (i, member) in record.members.iter().enumerate() {
            if here(member) {
                continue;
            }
            let replaced = view.workers.contains_key(&member.worker);
            // A worker that cannot reach the store but is linked with its group stays a member.
            let heard = |other: usize| {
                other != i
                    && here(&record.members[other])
                    && group.ready.get(&record.first_rank(other)).is_some_and(|ready| ready.epoch == record.epoch())
            };
            let witnessed = (0..record.members.len()).any(heard);
            let unknown = !self.known.contains(&member.worker) && !self.has_settled(now);
            if replaced || !(witnessed || unknown) {
                lost.insert(i);
            }
        }
        if !lost.is_empty() {
            return Some(lost);
        }
        let has_reported =
            |i: usize| group.trouble.get(&record.first_rank(i)).is_some_and(|t| t.epoch == record.epoch());
        let mut members = (0..).zip(&record.members);
        let outstanding = members.any(|(i, member)| here(member) && !has_reported(i));
        if outstanding && self.awaits_reports(id, group, record, now) {
            return None;
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
        // Two members that cannot reach each other suspect each other. The controller replaces the one that more peers
        // cannot reach, else the one that was no member when the group served last, else the one with the higher rank.
        let last_served = self.last_served.get(id);
        let served_last = |member: &GroupMember| {
            last_served
                .is_some_and(|(_, last_served)| last_served.contains(&(member.worker.clone(), member.incarnation)))
        };
        let guilt = |&i: &usize| {
            let member = &record.members[i];
            (votes[i], round.connectivity.unreachable_peers(&member.worker), !served_last(member), i)
        };
        lost.extend((0..votes.len()).filter(|&i| votes[i] > 0).max_by_key(guilt));
        Some(lost)
    }

    /// Whether to wait for the reports of other members. Members that could not join report at about the same time, and
    /// the first report may be that of the member that all others miss. A group that has served does not wait: a rank
    /// that is lost then never reports.
    fn awaits_reports(&mut self, id: &str, group: &GroupState, record: &GroupRecord, now: Duration) -> bool {
        let epoch = record.epoch();
        let served = self.last_served.get(id).is_some_and(|(served, _)| *served == epoch);
        if served || !group.trouble.values().any(|trouble| trouble.epoch == epoch) {
            return false;
        }
        let first = self.first_reports.entry(id.to_owned()).or_insert((epoch, now));
        if first.0 != epoch {
            *first = (epoch, now);
        }
        let until = first.1 + limits::REPORT_PATIENCE;
        if now < until {
            self.wake_at(until);
        }
        now < until
    }

    /// Logs why a worker gets no seat when the first reason changes. `rein status` shows all reasons.
    pub(super) fn log_seat_refusal(
        &mut self,
        told: &BTreeMap<String, String>,
        id: &str,
        view: &ClusterView,
        connectivity: &Connectivity,
        now: Duration,
    ) {
        let expired = view.workers.get(id).is_some_and(|worker| self.is_expired(worker, now));
        let all = if expired {
            vec!["its certificate has expired".to_owned()]
        } else {
            connectivity.seat_refusal_reasons(id)
        };
        let more = all.len().saturating_sub(1);
        match (told.get(id), all.into_iter().next()) {
            (None, None) => {}
            (Some(_), None) => tracing::info!(worker = id, "worker can get a seat again"),
            (before, Some(why)) => {
                if before != Some(&why) {
                    tracing::warn!(worker = id, why, more, "worker gets no seat");
                }
                self.logged_refusals.insert(id.to_owned(), why);
            }
        }
    }
}
