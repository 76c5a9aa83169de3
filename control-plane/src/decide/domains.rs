//! Keeps groups within one domain. A spare of another domain that took a lost rank may leave both domains one worker
//! short of a group; then it gives the rank back.
//!
//! This module does not form groups.

use std::{collections::BTreeSet, time::Duration};

use super::{Controller, Free, Round, class_of_group};
use crate::records::{Distance, GroupMember, GroupRecord, Locality, WorkerClass};

impl Controller {
    /// Notes, and logs once, whether spare workers would fill a group if they were in one domain.
    pub(super) fn note_scattered(&mut self, class: WorkerClass, free: &Free, spares: usize, now: Duration) {
        let domains: BTreeSet<Option<&str>> = free.iter().map(|(_, worker)| worker.domain.as_deref()).collect();
        let ranks: usize = free.iter().skip(spares).map(|(_, worker)| worker.ranks).sum();
        let (model, .., group_size, _) = &class;
        if domains.len() < 2 || ranks < *group_size {
            self.scattered.remove(&class);
        } else if !self.scattered.contains(&class) {
            let names: Vec<&str> = domains.into_iter().map(|domain| domain.unwrap_or("none")).collect();
            let domains = names.join(", ");
            tracing::warn!(model, group_size, domains, "no domain has enough spare workers for a group");
            self.scattered.insert(class);
            self.wake_at(now);
        }
    }

    /// Members of other domains that spares of the group's domain can replace. Empty if that would form no group.
    pub(super) fn foreign_members(&mut self, round: &Round, record: &GroupRecord, now: Duration) -> Vec<usize> {
        if !self.scattered.contains(&class_of_group(record)) {
            return Vec::new();
        }
        let is_foreign = |member: &&GroupMember| {
            round.view.workers.get(&member.worker).is_some_and(|worker| worker.domain != record.domain)
        };
        let (foreign, near): (Vec<_>, Vec<_>) = record.members.iter().cloned().partition(|member| is_foreign(&member));
        let able = self.replacements(round, record, &near, now);
        let able = able.iter().filter(|(_, worker)| worker.domain == record.domain);
        let mut room: usize = able.map(|(_, worker)| worker.ranks).sum();
        let replaced = foreign.iter().filter(|member| {
            let fits = member.ranks.len() <= room;
            room -= if fits { member.ranks.len() } else { 0 };
            fits
        });
        replaced.filter_map(|member| record.member(&member.worker, member.incarnation)).collect()
    }
}

/// The largest distance between two of these places.
pub fn spread<'a>(places: impl Iterator<Item = Option<&'a Locality>>) -> Distance {
    let places: Vec<_> = places.collect();
    let pairs = places.iter().enumerate().flat_map(|(i, a)| places[i + 1..].iter().map(|b| Locality::distance(*a, *b)));
    // A worker's own GPUs count as near.
    pairs.max().unwrap_or(Distance::Near)
}

/// What the log says of a group whose workers are so far apart.
pub fn note(distance: Distance) -> &'static str {
    match distance {
        Distance::Near => "",
        Distance::SameHost => "; NVLink does not connect all its GPUs",
        Distance::OtherHost => "; its GPUs are on several hosts without NVLink between them",
    }
}
