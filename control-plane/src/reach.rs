//! Which workers of a model can link with which: what each has found when it tried, and what that means for seats. It does
//! not know how links are tried, nor who has which seat.

use std::{
    borrow::Borrow,
    collections::{BTreeMap, HashMap},
};

use serde::{Deserialize, Serialize};

use crate::{
    decide::{Sort, sort},
    limits,
    records::WorkerRecord,
    view::View,
};

/// What a worker found when it last tried to link with its peers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkReport {
    /// By the peer's id.
    pub tried: BTreeMap<String, Attempt>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempt {
    /// Of the peer. What was found of an older one says nothing.
    pub incarnation: u64,
    /// Why they cannot link; None: they can.
    pub failure: Option<String>,
}

/// Whether two workers can link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Link {
    Open,
    /// It has not been reported yet.
    Unknown,
    /// At least one of them could not reach the other.
    Cut,
}

/// Whether this worker's ranks need links with those of other workers.
pub fn needs_links(worker: &WorkerRecord) -> bool {
    worker.ranks < worker.group_size
}

/// Workers that can be in one group, in the order of their names, which is taken for a circle.
struct Circle<'a>(Vec<&'a str>);

impl<'a> Circle<'a> {
    fn new(mut names: Vec<&'a str>) -> Self {
        names.sort_unstable();
        Circle(names)
    }

    fn are_near(&self, a: usize, b: usize) -> bool {
        let apart = a.abs_diff(b);
        apart.min(self.0.len() - apart) <= limits::PROBED / 2
    }

    fn near(&self, place: usize) -> Vec<&'a str> {
        let near = |other: &usize| *other != place && self.are_near(place, *other);
        (0..self.0.len()).filter(near).map(|other| self.0[other]).collect()
    }
}

/// The peers that a worker tries to link with: the nearest ones in its circle. Each of them tries this one, too.
pub fn peers<'a, W: Borrow<WorkerRecord>>(id: &str, workers: &'a BTreeMap<String, W>) -> Vec<&'a str> {
    let Some(own) = workers.get(id).map(W::borrow).filter(|own| needs_links(own)) else { return Vec::new() };
    let same = sort(own);
    let like = workers.iter().filter(|(_, worker)| sort((*worker).borrow()) == same);
    let circle = Circle::new(like.map(|(id, _)| id.as_str()).collect());
    circle.0.iter().position(|name| *name == id).map_or(Vec::new(), |place| circle.near(place))
}

/// What all reports say together.
pub struct Reach<'a> {
    view: &'a View,
    circles: Vec<Circle<'a>>,
    /// Of each worker that needs links: its circle, and its place in that.
    places: HashMap<&'a str, (usize, usize)>,
}

impl<'a> Reach<'a> {
    pub fn new(view: &'a View) -> Self {
        let mut sorts: BTreeMap<Sort, Vec<&str>> = BTreeMap::new();
        for (id, worker) in view.workers.iter().filter(|(_, worker)| needs_links(worker)) {
            sorts.entry(sort(worker)).or_default().push(id);
        }
        let circles: Vec<Circle> = sorts.into_values().map(Circle::new).collect();
        let placed = |(circle, names): (usize, &Circle<'a>)| {
            names.0.clone().into_iter().enumerate().map(move |(place, id)| (id, (circle, place)))
        };
        let places = circles.iter().enumerate().flat_map(placed).collect();
        Reach { view, circles, places }
    }

    /// What one found when it last tried the other.
    fn found(&self, by: &str, of: &str) -> Option<&'a Attempt> {
        let attempt = self.view.links.get(by)?.tried.get(of)?;
        let worker = self.view.workers.get(of)?;
        (self.view.workers.contains_key(by) && attempt.incarnation == worker.incarnation).then_some(attempt)
    }

    fn one_way(&self, by: &str, of: &str) -> Link {
        let due = || {
            let (Some(&(circle, a)), Some(&(same, b))) = (self.places.get(by), self.places.get(of)) else {
                return false;
            };
            // A worker that reports nothing at all is of a release that does not.
            circle == same && self.circles[circle].are_near(a, b) && self.view.links.contains_key(by)
        };
        match self.found(by, of) {
            Some(Attempt { failure: Some(_), .. }) => Link::Cut,
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
        self.places.get(id).map_or(Vec::new(), |&(circle, place)| self.circles[circle].near(place))
    }

    /// With how many others it cannot link.
    pub fn missed(&self, id: &str) -> usize {
        self.peers(id).into_iter().filter(|other| self.link(id, other) == Link::Cut).count()
    }

    /// It has been tried, and can link with nobody.
    pub fn is_alone(&self, id: &str) -> bool {
        let peers = self.peers(id);
        !peers.is_empty() && peers.into_iter().all(|other| self.link(id, other) == Link::Cut)
    }

    /// Attempts of others to link with this worker, and of this one with others, that failed.
    pub fn faults(&self, id: &str) -> Vec<Fault<'a>> {
        let fault = |other, inbound| {
            let attempt = if inbound { self.found(other, id) } else { self.found(id, other) };
            Some(Fault { other, inbound, why: attempt?.failure.as_deref()? })
        };
        let both = |other| [fault(other, true), fault(other, false)];
        self.peers(id).into_iter().flat_map(both).flatten().collect()
    }
}

impl Reach<'_> {
    /// Why a worker cannot be seated beside some of its peers, a sentence for each failed attempt; empty: nothing is known
    /// against it. Where two cannot link, the one that more peers miss is at fault.
    pub fn why(&self, id: &str) -> Vec<String> {
        let missed = self.missed(id);
        let say = |fault: Fault| match fault.inbound {
            true => format!("{} cannot link with it: {}", fault.other, fault.why),
            false => format!("it cannot link with {}: {}", fault.other, fault.why),
        };
        let own = self.faults(id).into_iter().filter(|fault| self.missed(fault.other) <= missed);
        own.map(say).collect()
    }
}

/// Two workers that cannot link, as one of them found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault<'a> {
    pub other: &'a str,
    /// The other one tried.
    pub inbound: bool,
    pub why: &'a str,
}
