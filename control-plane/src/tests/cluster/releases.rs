//! Workers of several releases in one cluster, as in a rolling upgrade. That no group mixes protocols is checked after
//! each step of the simulation.

use super::*;

/// Changes only the release of a worker.
fn upgrade(cluster: &mut Cluster, id: &str, protocol: u32) {
    cluster.restart(id);
    let record = &mut cluster.workers.get_mut(id).expect("known").record;
    record.release = Release { protocol, version: format!("0.{protocol}.0"), started: 0 };
}

fn protocols(cluster: &Cluster) -> Vec<u32> {
    let mut all: Vec<u32> = cluster.placements().values().map(|record| record.protocol).collect();
    all.sort_unstable();
    all
}

#[test]
fn spares_of_another_release_take_no_rank() {
    let mut cluster = Cluster::new(5, 4, 1);
    upgrade(&mut cluster, "w4", 2);
    cluster.run(8.0);
    assert_eq!(protocols(&cluster), [0]);
    cluster.workers.get_mut("w1").expect("known").alive = false;
    cluster.run(20.0);
    let seating = cluster.seating();
    let members = &seating.values().next().expect("a group").1;
    assert!(members.iter().all(|member| member.worker != "w4"), "{members:?}");
    assert_eq!((cluster.serving(), cluster.full()), (1, 0), "another member takes the rank");
    // A spare of the same release does.
    cluster.restart("w1");
    cluster.run(8.0);
    assert_eq!((cluster.serving(), cluster.full()), (1, 1));
}

#[test]
fn a_rolling_upgrade_ends_with_groups_of_the_new_release() {
    let mut cluster = Cluster::new(6, 2, 0);
    cluster.run(8.0);
    assert_eq!(protocols(&cluster), [0, 0, 0]);
    for i in 0..6 {
        cluster.workers.get_mut(&format!("w{i}")).expect("known").record.state = WorkerState::Draining;
        cluster.run(40.0);
        upgrade(&mut cluster, &format!("w{i}"), 1);
        cluster.run(20.0);
        assert!(cluster.serving() >= 2, "after w{i}: {:?}", cluster.seating());
    }
    cluster.run(60.0);
    assert_eq!((protocols(&cluster), cluster.full()), (vec![1, 1, 1], 3));
}

/// Restarts in any order, with any release.
fn a_mixed_fleet_is_never_mixed_up(seed: u64) {
    let mut rng = StdRng::seed_from_u64(seed);
    let (size, count) = (rng.random_range(1..=3), rng.random_range(2..=8));
    let mut cluster = Cluster::new(count, size, rng.random_range(0..=1));
    let ids: Vec<String> = cluster.workers.keys().cloned().collect();
    for _ in 0..rng.random_range(1..20) {
        let id = ids[rng.random_range(0..ids.len())].clone();
        match rng.random_range(0..4) {
            0 => cluster.workers.get_mut(&id).expect("known").alive = false,
            1 => cluster.store = Snapshot { revision: 1, ..Snapshot::default() },
            _ => upgrade(&mut cluster, &id, rng.random_range(0..3)),
        }
        cluster.run(f64::from(rng.random_range(1..80)) / 10.0);
    }
}

#[test]
fn groups_never_mix_releases_for_all_seeds() {
    seeds(40, a_mixed_fleet_is_never_mixed_up);
}

#[test]
fn records_without_a_protocol_have_protocol_0() {
    let record = worker("w0", 1, 1).record;
    let mut old: serde_json::Value = serde_json::from_slice(&encode(&record)).expect("JSON");
    let fields = old.as_object_mut().expect("an object");
    assert!(fields.remove("protocol").is_some() && fields.remove("version").is_some());
    assert_eq!(serde_json::from_value::<WorkerRecord>(old).expect("read"), record);
}
