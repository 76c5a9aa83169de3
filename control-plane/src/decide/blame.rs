//! Whose fault it is that a group broke, and why a worker is given no seat.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::{Controller, Round};
use crate::{
    reach::Reach,
    records::{GroupRecord, Member},
    view::{Group, View},
};

impl Controller {
    /// Members that are not there any more.
    pub(super) fn lost(
        &mut self,
        round: &Round,
        id: &str,
        group: &Group,
        record: &GroupRecord,
        now: Duration,
    ) -> BTreeSet<usize> {
        let (view, mut lost) = (round.view, BTreeSet::new());
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
        // Two that cannot hear each other suspect each other. The one goes whom more others cannot reach either, or who was
        // not there when the group served last, or else the later one.
        let proven = self.proven.get(id);
        let is_proven = |member: &Member| {
            proven.is_some_and(|(_, proven)| proven.contains(&(member.worker.clone(), member.incarnation)))
        };
        let guilt = |&i: &usize| {
            let member = &record.members[i];
            (votes[i], round.reach.missed(&member.worker), !is_proven(member), i)
        };
        lost.extend((0..votes.len()).filter(|&i| votes[i] > 0).max_by_key(guilt));
        lost
    }

    /// Logs why a worker without a seat is given none, when the first reason changes. `rein status` has them all.
    pub(super) fn tell(
        &mut self,
        told: &BTreeMap<String, String>,
        id: &str,
        view: &View,
        reach: &Reach,
        now: Duration,
    ) {
        let expired = view.workers.get(id).is_some_and(|worker| self.is_expired(worker, now));
        let all = if expired { vec!["its certificate has expired".to_owned()] } else { reach.why(id) };
        let more = all.len().saturating_sub(1);
        match (told.get(id), all.into_iter().next()) {
            (None, None) => {}
            (Some(_), None) => tracing::info!(worker = id, "it can link with its peers"),
            (before, Some(why)) => {
                if before != Some(&why) {
                    tracing::warn!(worker = id, why, more, "no seat beside those with which it cannot link");
                }
                self.told.insert(id.to_owned(), why);
            }
        }
    }
}
