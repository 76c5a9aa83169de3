//! Groups are formed of workers whose GPUs are close together, and a lost rank goes to a close worker.

use super::*;
use crate::records::{Distance, Locality};

/// Worker i is at `places[i]`: a host, and an NVLink domain.
fn at(places: &[(&str, Option<&str>)], size: usize, spares: usize) -> Cluster {
    let mut cluster = Cluster::new(places.len(), size, spares);
    for (i, (host, nvlink)) in places.iter().enumerate() {
        let record = &mut cluster.workers.get_mut(&format!("w{i}")).expect("known").record;
        let nvlink = nvlink.map(str::to_owned);
        record.locality = Some(Locality { host: (*host).to_owned(), nvlink, adapters: Vec::new() });
    }
    cluster
}

fn crews(cluster: &Cluster) -> BTreeSet<Vec<String>> {
    let names = |record: GroupRecord| record.members.into_iter().map(|member| member.worker).collect();
    cluster.placements().into_values().map(names).collect()
}

fn sets(crews: &[&[&str]]) -> BTreeSet<Vec<String>> {
    crews.iter().map(|crew| crew.iter().map(|name| (*name).to_owned()).collect()).collect()
}

#[test]
fn a_group_is_on_one_host_if_one_has_room() {
    let mut cluster = at(&[("a", None), ("b", None), ("c", None), ("b", None), ("a", None)], 2, 0);
    cluster.run(20.0);
    assert_eq!(crews(&cluster), sets(&[&["w0", "w4"], &["w1", "w3"]]));
}

#[test]
fn nvlink_counts_more_than_the_host() {
    // A domain may span hosts.
    let mut cluster = at(&[("a", Some("x")), ("a", Some("y")), ("b", Some("y")), ("b", Some("x"))], 2, 0);
    cluster.run(20.0);
    assert_eq!(crews(&cluster), sets(&[&["w0", "w3"], &["w1", "w2"]]));
}

#[test]
fn a_group_over_hosts_is_better_than_none() {
    let mut cluster = at(&[("a", None), ("b", None)], 2, 0);
    cluster.run(20.0);
    assert_eq!(crews(&cluster), sets(&[&["w0", "w1"]]));
}

#[test]
fn a_lost_rank_goes_to_a_close_spare() {
    let mut cluster = at(&[("a", None), ("a", None), ("b", None), ("a", None)], 2, 2);
    cluster.run(20.0);
    assert_eq!(crews(&cluster), sets(&[&["w0", "w1"]]));
    cluster.workers.get_mut("w1").expect("known").alive = false;
    cluster.run(30.0);
    assert_eq!(crews(&cluster), sets(&[&["w0", "w3"]]));
}

#[test]
fn workers_without_a_place_are_near() {
    let place = |host: &str, nvlink: Option<&str>| {
        Some(Locality { host: host.into(), nvlink: nvlink.map(str::to_owned), adapters: Vec::new() })
    };
    let distance = |a: &Option<Locality>, b: &Option<Locality>| Locality::distance(a.as_ref(), b.as_ref());
    assert_eq!(distance(&None, &place("a", None)), Distance::Near);
    assert_eq!(distance(&place("a", None), &place("a", None)), Distance::SameHost);
    assert_eq!(distance(&place("a", Some("x")), &place("b", Some("x"))), Distance::Near);
    assert_eq!(distance(&place("a", Some("x")), &place("a", Some("y"))), Distance::SameHost);
    assert_eq!(distance(&place("a", None), &place("b", None)), Distance::OtherHost);
}
