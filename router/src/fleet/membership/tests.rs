use bytes::Bytes;
use rein_control_plane::records::{GroupMember, Ready, encode};
use rein_control_plane::{ModelShape, Snapshot, place};

use super::*;

#[test]
fn groups_within_one_protocol_version_serve_and_others_are_logged() {
    let keys = Keys::new("test").unwrap();
    let mut snapshot = Snapshot::default();
    let mut put = |key: String, value: Bytes| {
        snapshot.revision += 1;
        let entry = rein_control_plane::Entry { value, revision: snapshot.revision, lease: None };
        snapshot.entries.insert(key, entry);
    };
    let shape = ModelShape { attention_heads: 1, kv_heads: 1, experts: Vec::new() };
    let numbers = [protocol::NUMBER - 1, protocol::NUMBER, protocol::NUMBER + 1, protocol::NUMBER + 2];
    for (i, number) in numbers.into_iter().enumerate() {
        let member = GroupMember {
            worker: "w".into(),
            incarnation: 1,
            address: format!("w{i}:1"),
            mesh: String::new(),
            ranks: vec![0],
        };
        let record = GroupRecord {
            model: "m".into(),
            fingerprint: "f".into(),
            text: "t".into(),
            revision: None,
            group_size: 1,
            domain: None,
            members: vec![member],
            placement: place(&shape, 1, 1).unwrap(),
            draining: false,
            out: Vec::new(),
            protocol: number,
        };
        put(keys.placement(&format!("g{i}")), encode(&record));
        put(keys.ready(&format!("g{i}"), 0), encode(&Ready { epoch: 1, layout: 0, worker: "w".into() }));
    }
    let view = ClusterView::read(&keys, &snapshot);
    let groups: Vec<String> = serving(&view)["m"].iter().map(|group| group.listing.group.clone()).collect();
    assert_eq!(groups, ["g0", "g1", "g2"]);
    let mut logged = BTreeSet::new();
    log_incompatible(&view, &mut logged);
    assert_eq!(logged, BTreeSet::from(["g3".to_owned()]));
}
