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

#[test]
fn engines_behind_adapters_serve_while_they_answer() {
    let keys = Keys::new("test").unwrap();
    let mut snapshot = Snapshot::default();
    let engine = |incarnation, lost: Option<&str>, number| EngineRecord {
        model: "m".into(),
        kind: "vllm 0.11.0, m".into(),
        engine: "vllm".into(),
        url: "http://vllm:8000".into(),
        text: "t".into(),
        revision: None,
        address: "a0:1".into(),
        context: 100,
        slots: 4,
        prefix_cache: true,
        incarnation,
        draining: incarnation == 2,
        lost: lost.map(str::to_owned),
        release: rein_control_plane::records::Release { protocol: number, ..Default::default() },
    };
    let number = protocol::NUMBER;
    let records = [
        engine(1, None, number),
        engine(2, None, number),
        engine(3, Some("gone"), number),
        engine(4, None, number + 2),
    ];
    for (i, record) in records.iter().enumerate() {
        let entry = rein_control_plane::Entry { value: encode(record), revision: i as u64 + 1, lease: None };
        snapshot.entries.insert(keys.engine(&format!("e{i}")), entry);
        snapshot.revision += 1;
    }
    let view = ClusterView::read(&keys, &snapshot);
    let listed: Vec<(String, EngineListing)> =
        serving_engines(&view).map(|(model, group)| (model, group.listing)).collect();
    let listing = |i: u64| EngineListing {
        group: format!("engines/e{i}"),
        epoch: i + 1,
        kind: "vllm 0.11.0, m".into(),
        revision: None,
        address: "a0:1".into(),
        draining: i == 1,
        loras: Vec::new(),
    };
    assert_eq!(listed, [("m".to_owned(), listing(0)), ("m".to_owned(), listing(1))]);
}
