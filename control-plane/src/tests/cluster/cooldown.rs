//! Groups that break repeatedly: the controller changes them less and less often, whatever the reason.

use super::*;

/// The number of epochs in this time, with `spoil` breaking each.
fn epochs(cluster: &mut Cluster, time: Duration, mut spoil: impl FnMut(&mut Cluster, &str, &GroupRecord)) -> usize {
    let until = cluster.now + time;
    let mut seen = BTreeSet::new();
    while cluster.now < until {
        for (id, record) in cluster.placements() {
            seen.insert(record.epoch());
            spoil(cluster, &id, &record);
        }
        cluster.tick();
    }
    seen.len()
}

fn trouble(cluster: &mut Cluster, group: &str, record: &GroupRecord, by: usize, suspect: Option<usize>) {
    let trouble = RankFailure { epoch: record.epoch(), suspect, reason: "it broke".into() };
    let (key, value) = (cluster.keys.trouble(group, by), encode(&trouble).to_vec());
    cluster.put(&key, Some(value));
}

/// Changes are 1, 2, 4, 8 and then 16 s apart.
const MINUTE: Duration = Duration::from_secs(60);
const IN_A_MINUTE: usize = 8;

#[test]
fn a_group_that_always_breaks_is_reformed_less_and_less_often() {
    for suspect in [None, Some(0), Some(1)] {
        let mut cluster = Cluster::new(4, 2, 2);
        cluster.run(8.0);
        let count = epochs(&mut cluster, MINUTE, |cluster, id, record| trouble(cluster, id, record, 0, suspect));
        assert!((3..=IN_A_MINUTE).contains(&count), "{count} epochs, suspect {suspect:?}");
    }
}

#[test]
fn a_group_whose_members_always_die_is_reformed_less_and_less_often() {
    let mut cluster = Cluster::new(4, 2, 2);
    cluster.run(8.0);
    // Each worker returns at once with another incarnation.
    let count = epochs(&mut cluster, MINUTE, |cluster, _, record| cluster.restart(&record.members[1].worker));
    assert!((3..=IN_A_MINUTE).contains(&count), "{count} epochs");
}

#[test]
fn a_group_that_always_ends_is_formed_less_and_less_often() {
    let mut cluster = Cluster::new(2, 2, 0);
    cluster.workers.values_mut().for_each(|worker| worker.record.most_ranks = 1);
    cluster.run(8.0);
    let count = epochs(&mut cluster, MINUTE, |cluster, id, record| trouble(cluster, id, record, 0, Some(1)));
    assert!((3..=IN_A_MINUTE).contains(&count), "{count} epochs");
}

#[test]
fn after_a_time_without_changes_the_next_loss_is_repaired_at_once() {
    let mut cluster = Cluster::new(4, 2, 2);
    cluster.run(8.0);
    epochs(&mut cluster, MINUTE, |cluster, id, record| trouble(cluster, id, record, 0, Some(1)));
    cluster.run(60.0);
    assert_eq!(cluster.full(), 1);
    let before = cluster.placements().into_values().next().expect("a group");
    cluster.restart(&before.members[1].worker);
    cluster.run(0.5);
    let after = cluster.placements().into_values().next().expect("a group");
    assert!(after.epoch() > before.epoch() && cluster.full() == 1);
}

#[test]
fn groups_that_served_and_end_together_are_formed_again_at_once() {
    let mut cluster = Cluster::new(24, 1, 0);
    cluster.run(20.0);
    assert_eq!(cluster.serving(), 24);
    (0..24).for_each(|i| cluster.restart(&format!("w{i}")));
    cluster.run(2.0);
    assert_eq!(cluster.serving(), 24);
}
