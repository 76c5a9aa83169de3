//! Expert layouts in the simulated cluster.

use super::*;

/// Time that a member needs to load an expert layout.
const LOAD: Duration = Duration::from_millis(700);

/// As in worker/src/node: a member loads the stored layout, and the leader switches to one that all have loaded.
pub fn lay_out(member: &mut Membership, store: &Snapshot, keys: &Keys, now: Duration) {
    let entry = store.entries.get(&keys.placement(&member.group));
    let known: Option<GroupRecord> = entry.and_then(|e| serde_json::from_slice(&e.value).ok());
    let Some(known) = known.filter(|known| known.epoch() == member.record.epoch()) else { return };
    let layout = known.placement.layout;
    match &member.loading {
        Some((since, record)) if now >= *since + LOAD => {
            member.loaded.insert(record.placement.layout, record.placement.clone());
            member.record = record.clone();
            member.loading = None;
        }
        Some(_) => {}
        None if layout != member.layout() => member.loading = Some((now, Arc::new(known.clone()))),
        None => {}
    }
    if member.rank == 0 && layout == member.layout() {
        let ready = |other| {
            let entry = store.entries.get(&keys.ready(&member.group, known.first_rank(other)));
            let ready: Option<Ready> = entry.map(|e| serde_json::from_slice(&e.value).expect("ready"));
            ready.is_some_and(|ready| (ready.epoch, ready.layout) == (known.epoch(), layout))
        };
        if (0..known.members.len()).all(ready) {
            member.used = layout;
        }
    }
}

impl Cluster {
    /// Ranks that compute together use layouts with equal contents, and all of them have loaded theirs.
    pub fn layouts_agree(&self) {
        let together = |worker: &&Worker| worker.alive && worker.member.as_ref().is_some_and(|m| m.linked && !m.over);
        for leader in self.workers.values().filter(together).filter_map(|worker| worker.member.as_ref()) {
            if leader.rank != 0 {
                continue;
            }
            let wanted = &leader.loaded[&leader.used];
            for worker in self.workers.values().filter(together) {
                let Some(member) = &worker.member else { continue };
                if (&member.group, member.record.epoch()) == (&leader.group, leader.record.epoch()) {
                    let theirs = member.loaded.get(&leader.used).map(|placement| &placement.ranks);
                    assert_eq!(theirs, Some(&wanted.ranks), "layout {} of {}", leader.used, leader.group);
                }
            }
        }
    }
}

#[test]
fn a_skewed_load_gets_a_new_layout_which_survives_a_replaced_rank() {
    let mut cluster = Cluster::new(3, 2, 1);
    cluster.run(8.0);
    let worst = |cluster: &Cluster| {
        let view = ClusterView::read(&cluster.keys, &cluster.store);
        let group = view.groups.values().next().expect("a group").clone();
        let load = group.experts.clone().expect("its load");
        (crate::rebalance::worst(&group.record().expect("a record").placement, &load.rows), group)
    };
    let (before, first) = worst(&cluster);
    cluster.run(10.0);
    let (after, second) = worst(&cluster);
    assert!(before > 1.2 && after < 1.1, "{before} -> {after}");
    let record = |group: &crate::view::GroupState| group.record().expect("a record").clone();
    assert_eq!(record(&first).epoch(), record(&second).epoch());
    assert!(second.uses_current_layout());
    cluster.workers.get_mut("w1").expect("known").alive = false;
    cluster.run(3.0);
    let (_, third) = worst(&cluster);
    assert!(third.serves() && record(&third).epoch() > record(&second).epoch());
    assert_eq!(record(&third).placement.ranks, record(&second).placement.ranks);
}
