//! Workers of several domains, such as racks.

use super::*;

/// Workers by the domain of each.
fn cluster_of(domains: &[&str], size: usize, spares: usize) -> Cluster {
    let mut cluster = Cluster::new(domains.len(), size, spares);
    for (i, domain) in domains.iter().enumerate() {
        cluster.workers.get_mut(&format!("w{i}")).expect("known").record.domain = Some((*domain).to_owned());
    }
    cluster
}

fn restart(cluster: &mut Cluster, id: &str) {
    let domain = cluster.workers[id].record.domain.clone();
    cluster.restart(id);
    cluster.workers.get_mut(id).expect("known").record.domain = domain;
}

/// The members of each group, by name.
fn groups(cluster: &Cluster) -> Vec<Vec<String>> {
    let names = |record: GroupRecord| record.members.into_iter().map(|member| member.worker).collect();
    cluster.placements().into_values().map(names).collect()
}

/// The number of domains of each group's members.
fn spread(cluster: &Cluster) -> Vec<usize> {
    let domain = |member: &crate::records::GroupMember| cluster.workers[&member.worker].record.domain.clone();
    let of = |record: GroupRecord| record.members.iter().map(domain).collect::<BTreeSet<_>>().len();
    cluster.placements().into_values().map(of).collect()
}

fn kill(cluster: &mut Cluster, id: &str) {
    cluster.workers.get_mut(id).expect("known").alive = false;
}

#[test]
fn groups_form_within_one_domain() {
    let mut cluster = cluster_of(&["a", "b", "a", "b", "c"], 2, 0);
    cluster.run(8.0);
    assert_eq!(groups(&cluster), [["w0", "w2"], ["w1", "w3"]]);
}

#[test]
fn no_group_forms_of_two_domains() {
    let mut cluster = cluster_of(&["a", "b", "c"], 2, 0);
    cluster.run(20.0);
    assert!(groups(&cluster).is_empty());
    cluster.workers.get_mut("w2").expect("known").record.domain = Some("b".into());
    restart(&mut cluster, "w2");
    cluster.run(8.0);
    assert_eq!(groups(&cluster), [["w1", "w2"]]);
}

#[test]
fn spares_of_the_same_domain_are_first() {
    let mut cluster = cluster_of(&["b", "b", "c", "b", "a"], 2, 3);
    // The spare of another domain has the first name.
    cluster.run(8.0);
    assert_eq!(groups(&cluster), [["w0", "w1"]]);
    kill(&mut cluster, "w1");
    cluster.run(8.0);
    assert_eq!(groups(&cluster), [["w0", "w3"]]);
    kill(&mut cluster, "w3");
    cluster.run(8.0);
    assert_eq!((groups(&cluster), spread(&cluster)), (vec![vec!["w0".to_owned(), "w2".to_owned()]], vec![2]));
}

/// A spare of domain b has replaced a member in a, and now each domain has one spare: no group could form of them.
#[test]
fn a_worker_returns_to_its_domain_if_that_completes_a_group() {
    let mut cluster = cluster_of(&["a", "a", "b", "b"], 2, 0);
    cluster.workers.get_mut("w3").expect("known").alive = false;
    cluster.run(8.0);
    kill(&mut cluster, "w1");
    cluster.run(8.0);
    assert_eq!(groups(&cluster), [["w0", "w2"]]);
    for id in ["w1", "w3"] {
        restart(&mut cluster, id);
    }
    cluster.run(30.0);
    assert_eq!((cluster.full(), spread(&cluster)), (2, vec![1, 1]), "{:?}", groups(&cluster));
}

#[test]
fn a_parallel_restart_of_two_domains_ends_with_their_groups() {
    let mut cluster = cluster_of(&["a", "a", "b", "b"], 2, 0);
    cluster.run(8.0);
    for pair in [["w1", "w3"], ["w0", "w2"]] {
        for id in pair {
            cluster.workers.get_mut(id).expect("known").record.state = WorkerState::Draining;
        }
        cluster.run(40.0);
        pair.iter().for_each(|id| restart(&mut cluster, id));
        cluster.run(40.0);
    }
    assert_eq!((cluster.full(), spread(&cluster)), (2, vec![1, 1]), "{:?}", groups(&cluster));
}

/// After any faults, each domain has the groups that its workers can form, and nothing changes any more.
fn all_domains_serve_in_the_end(seed: u64) {
    let mut rng = StdRng::seed_from_u64(seed);
    let (size, racks) = (rng.random_range(1..=3), rng.random_range(2..=3));
    let domains: Vec<&str> = (0..size * racks).map(|i| ["a", "b", "c"][i % racks]).collect();
    let mut cluster = cluster_of(&domains, size, 0);
    let ids: Vec<String> = cluster.workers.keys().cloned().collect();
    for _ in 0..rng.random_range(1..20) {
        let id = ids[rng.random_range(0..ids.len())].clone();
        match rng.random_range(0..5) {
            0 => kill(&mut cluster, &id),
            1 => cluster.workers.get_mut(&id).expect("known").record.state = WorkerState::Draining,
            2 => {
                // Epochs that no worker has heard of are lost, too.
                cluster.store = Snapshot { revision: 1, ..Snapshot::default() };
                cluster.epochs.clear();
            }
            _ => restart(&mut cluster, &id),
        }
        cluster.run(f64::from(rng.random_range(1..80)) / 10.0);
    }
    for id in &ids {
        let worker = &cluster.workers[id];
        if !worker.alive || worker.record.state == WorkerState::Draining {
            restart(&mut cluster, id);
        }
    }
    cluster.run(150.0);
    assert_eq!(cluster.full(), racks, "{:?}, groups of {size}", groups(&cluster));
    let before = cluster.decisions;
    cluster.run(30.0);
    assert_eq!(cluster.decisions, before, "the controller does not stop deciding");
}

#[test]
fn all_domains_serve_after_any_faults_for_all_seeds() {
    seeds(40, all_domains_serve_in_the_end);
}
