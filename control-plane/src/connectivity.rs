//! Which workers can link with which, from the probes that workers report, and who is to blame for a failed link.
//!
//! This module does not know how links are probed, nor who holds which seat.

use std::{
    borrow::Borrow,
    collections::{BTreeMap, HashMap},
};

use crate::{
    limits,
    records::{LinkAttempt, WorkerClass, WorkerRecord, class_of_worker},
    view::ClusterView,
};

/// Whether two workers can link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Link {
    Open,
    /// Not reported yet.
    Unknown,
    /// At least one of them could not reach the other.
    Cut,
}

/// Whether this worker's ranks must link with ranks of other workers.
pub fn needs_links(worker: &WorkerRecord) -> bool {
    worker.ranks < worker.group_size
}

/// The workers of one class, ordered by name and treated as a ring.
struct ProbeRing<'a>(Vec<&'a str>);

impl<'a> ProbeRing<'a> {
    fn new(mut names: Vec<&'a str>) -> Self {
        names.sort_unstable();
        ProbeRing(names)
    }

    fn are_neighbors(&self, a: usize, b: usize) -> bool {
        let apart = a.abs_diff(b);
        apart.min(self.0.len() - apart) <= limits::PROBED_PEERS / 2
    }

    fn neighbors(&self, place: usize) -> Vec<&'a str> {
        let near = |other: &usize| *other != place && self.are_neighbors(place, *other);
        (0..self.0.len()).filter(near).map(|other| self.0[other]).collect()
    }
}

/// The peers that a worker probes: its neighbors in the ring. They probe it as well.
pub fn peers<'a, W: Borrow<WorkerRecord>>(id: &str, workers: &'a BTreeMap<String, W>) -> Vec<&'a str> {
    let Some(own) = workers.get(id).map(W::borrow).filter(|own| needs_links(own)) else { return Vec::new() };
    let same = class_of_worker(own);
    let like = workers.iter().filter(|(_, worker)| class_of_worker((*worker).borrow()) == same);
    let circle = ProbeRing::new(like.map(|(id, _)| id.as_str()).collect());
    circle.0.iter().position(|name| *name == id).map_or(Vec::new(), |place| circle.neighbors(place))
}

/// All link reports together.
pub struct Connectivity<'a> {
    view: &'a ClusterView,
    circles: Vec<ProbeRing<'a>>,
    /// For each worker that needs links: its ring, and its place in the ring.
    places: HashMap<&'a str, (usize, usize)>,
}

impl<'a> Connectivity<'a> {
    pub fn new(view: &'a ClusterView) -> Self {
        let mut classes: BTreeMap<WorkerClass, Vec<&str>> = BTreeMap::new();
        for (id, worker) in view.workers.iter().filter(|(_, worker)| needs_links(worker)) {
            classes.entry(class_of_worker(worker)).or_default().push(id);
        }
        let circles: Vec<ProbeRing> = classes.into_values().map(ProbeRing::new).collect();
        let placed = |(circle, names): (usize, &ProbeRing<'a>)| {
            names.0.clone().into_iter().enumerate().map(move |(place, id)| (id, (circle, place)))
        };
        let places = circles.iter().enumerate().flat_map(placed).collect();
        Connectivity { view, circles, places }
    }

    /// What `by` found when it last probed `of`.
    fn found(&self, by: &str, of: &str) -> Option<&'a LinkAttempt> {
        let attempt = self.view.links.get(by)?.tried.get(of)?;
        let worker = self.view.workers.get(of)?;
        (self.view.workers.contains_key(by) && attempt.incarnation == worker.incarnation).then_some(attempt)
    }

    fn one_way(&self, by: &str, of: &str) -> Link {
        let due = || {
            let (Some(&(circle, a)), Some(&(same, b))) = (self.places.get(by), self.places.get(of)) else {
                return false;
            };
            // A worker without any report runs a release that does not probe.
            circle == same && self.circles[circle].are_neighbors(a, b) && self.view.links.contains_key(by)
        };
        match self.found(by, of) {
            Some(LinkAttempt { failure: Some(_), .. }) => Link::Cut,
            Some(_) => Link::Open,
            None if by != of && due() => Link::Unknown,
            None => Link::Open,
        }
    }

    pub fn link(&self, a: &str, b: &str) -> Link {
        match (self.one_way(a, b), self.one_way(b, a)) {
            (Link::Cut, _) | (_, Link::Cut) => Link::Cut,
            (Link::Unknown, _) | (_, Link::Unknown) => Link::Unknown,
            (Link::Open, Link::Open) => Link::Open,
        }
    }

    fn peers(&self, id: &str) -> Vec<&'a str> {
        self.places.get(id).map_or(Vec::new(), |&(circle, place)| self.circles[circle].neighbors(place))
    }

    /// The number of peers with which it cannot link.
    pub fn unreachable_peers(&self, id: &str) -> usize {
        self.peers(id).into_iter().filter(|other| self.link(id, other) == Link::Cut).count()
    }

    /// It has been probed and can link with no peer.
    pub fn is_isolated(&self, id: &str) -> bool {
        let peers = self.peers(id);
        !peers.is_empty() && peers.into_iter().all(|other| self.link(id, other) == Link::Cut)
    }

    /// Failed probes of this worker by its peers, and of its peers by this worker.
    pub fn faults(&self, id: &str) -> Vec<LinkFault<'a>> {
        let fault = |other, inbound| {
            let attempt = if inbound { self.found(other, id) } else { self.found(id, other) };
            Some(LinkFault { other, inbound, why: attempt?.failure.as_deref()? })
        };
        let both = |other| [fault(other, true), fault(other, false)];
        self.peers(id).into_iter().flat_map(both).flatten().collect()
    }

    /// The failed probes for which this worker cannot be seated with some of its peers. Of two workers that cannot
    /// link, the one with more unreachable peers is to blame.
    pub fn own_faults(&self, id: &str) -> Vec<LinkFault<'a>> {
        let missed = self.unreachable_peers(id);
        self.faults(id).into_iter().filter(|fault| self.unreachable_peers(fault.other) <= missed).collect()
    }
}

impl Connectivity<'_> {
    /// The same, one sentence per failed probe.
    pub fn seat_refusal_reasons(&self, id: &str) -> Vec<String> {
        let describe = |fault: LinkFault| match fault.inbound {
            true => format!("worker {} cannot link with it: {}", fault.other, fault.why),
            false => format!("it cannot link with worker {}: {}", fault.other, fault.why),
        };
        self.own_faults(id).into_iter().map(describe).collect()
    }
}

/// A failed probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkFault<'a> {
    pub other: &'a str,
    /// The other worker probed this one.
    pub inbound: bool,
    pub why: &'a str,
}
