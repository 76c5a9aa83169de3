use std::sync::Arc;

use rein_control_plane::records::{ExpertLoad, GroupMember, GroupRecord, LostCalls, Ready, RouterRecord, Seat};
use rein_control_plane::{ModelShape, place};

use super::*;

#[test]
fn durations_are_shown_in_one_unit() {
    let shown = [0, 119, 120, 7199, 7200, 172_799, 172_800, 8_640_000].map(duration);
    assert_eq!(shown, ["0 s", "119 s", "2 min", "119 min", "2 h", "47 h", "2 d", "100 d"]);
    assert_eq!(age(&Release::default()), "-");
}

const EPOCH: u64 = 3;

fn shape() -> ModelShape {
    ModelShape { attention_heads: 2, kv_heads: 2, experts: vec![2] }
}

fn release() -> Release {
    Release { protocol: 7, version: "1.2.3".into(), started: seconds_since_1970() - 7205 }
}

fn worker(id: &str, group: Option<&str>) -> Arc<WorkerRecord> {
    Arc::new(WorkerRecord {
        model: "demo".into(),
        fingerprint: "f".into(),
        text: "t".into(),
        revision: None,
        address: format!("{id}:1"),
        mesh: format!("{id}:2"),
        device: "cpu".into(),
        locality: None,
        shape: shape(),
        ranks: 1,
        most_ranks: 1,
        group_size: 2,
        redundant_experts: 0,
        domain: group.map(|_| "rack-1".to_owned()),
        incarnation: 1,
        state: WorkerState::Ready,
        seat: Seat { group: group.map(str::to_owned), epoch: EPOCH },
        release: release(),
        expires: None,
    })
}

/// A group of two workers, a spare that is asked to leave, a draining router and a controller.
fn view() -> ClusterView {
    let member = |(rank, id): (usize, &str)| GroupMember {
        worker: id.into(),
        incarnation: 1,
        address: format!("{id}:1"),
        mesh: format!("{id}:2"),
        ranks: vec![rank],
    };
    let record = GroupRecord {
        model: "demo".into(),
        fingerprint: "f".into(),
        text: "t".into(),
        revision: None,
        group_size: 2,
        domain: None,
        members: [(0, "w0"), (1, "w1")].map(member).to_vec(),
        placement: place(&shape(), 2, EPOCH).expect("two heads on two ranks"),
        draining: false,
        out: Vec::new(),
        protocol: 7,
    };
    let ready = |(rank, id): (usize, &str)| (rank, Ready { epoch: EPOCH, layout: 0, worker: id.into() });
    let load = Load { epoch: EPOCH, running: 5, waiting: 4, used_blocks: 30, total_blocks: 40, tokens_per_second: 123 };
    let group = GroupState {
        placement: Some((Arc::new(record), 1)),
        ready: [(0, "w0"), (1, "w1")].map(ready).into(),
        load: Some(load),
        experts: Some(Arc::new(ExpertLoad { epoch: EPOCH, layout: 0, rows: vec![vec![30, 10]] })),
        ..GroupState::default()
    };
    let router = RouterRecord {
        http: "r0:8000".into(),
        grpc: "r0:9000".into(),
        in_flight: 6,
        draining: true,
        lost_calls: [("demo".to_owned(), LostCalls { answers: 3, format: Some("hermes_json".into()) })].into(),
        release: release(),
    };
    let workers = [("w0", Some("demo-1")), ("w1", Some("demo-1")), ("w2", None)];
    let mut view = ClusterView::default();
    view.workers = workers.map(|(id, group)| (id.to_owned(), worker(id, group))).into();
    view.groups = [("demo-1".to_owned(), group)].into();
    view.routers = [("r0".to_owned(), router)].into();
    view.controller = Some("c0".into());
    view.controller_release = release();
    view.drains = vec!["w2".into()];
    view
}

/// The cells of each row below the first line, headers included.
fn cells(table: &str) -> Vec<Vec<&str>> {
    let split = |line| str::split(line, "  ").map(str::trim).filter(|cell| !cell.is_empty()).collect::<Vec<&str>>();
    table.lines().skip(1).map(split).filter(|row| !row.is_empty()).collect()
}

#[test]
fn every_column_of_the_table_has_its_value() {
    let shown = table("test", &view());
    assert!(shown.starts_with("cluster test   controller c0 (age 2 h, version 1.2.3, protocol 7)\n\n"), "{shown}");
    let expected: [&[&str]; 7] = [
        &["GROUP", "MODEL", "STATE", "EPOCH", "RANKS", "WORKERS", "RUNNING", "WAITING", "TOK/S", "KV", "IMBALANCE"],
        &["demo-1", "demo", "serving", "3", "2", "2", "5", "4", "123", "75 %", "1.50"],
        &["WORKER", "ADDRESS", "DOMAIN", "DEVICE", "STATE", "GROUP", "RANK", "EXPERTS", "AGE", "VERSION", "PROTOCOL"],
        &["w0", "w0:1", "rack-1", "cpu", "seated", "demo-1", "0", "1", "2 h", "1.2.3", "7"],
        &["w1", "w1:1", "rack-1", "cpu", "seated", "demo-1", "1", "1", "2 h", "1.2.3", "7"],
        &["w2", "w2:1", "-", "cpu", "drain requested", "-", "-", "0", "2 h", "1.2.3", "7"],
        &["ROUTER", "HTTP", "GRPC", "STATE", "IN FLIGHT", "AGE", "VERSION", "PROTOCOL"],
    ];
    let rows = cells(&shown);
    assert_eq!(rows[..7], expected, "{shown}");
    assert_eq!(rows[7], ["r0", "r0:8000", "r0:9000", "draining", "6", "2 h", "1.2.3", "7"], "{shown}");
    let lost = "r0: 3 answers of demo had calls as text that its format does not read; --format hermes_json reads them";
    assert_eq!(rows[8..], [[lost]], "{shown}");
}

#[test]
fn engines_behind_adapters_have_a_table_of_their_own() {
    let engine = |lost: Option<&str>, draining| {
        Arc::new(EngineRecord {
            model: "demo".into(),
            kind: "vllm 0.11.0, demo".into(),
            engine: "vllm".into(),
            url: "http://vllm:8000".into(),
            text: "t".into(),
            revision: None,
            address: "a0:1".into(),
            context: 8192,
            slots: 64,
            prefix_cache: lost.is_none(),
            incarnation: 1,
            draining,
            lost: lost.map(str::to_owned),
            release: release(),
        })
    };
    let mut view = view();
    view.engines = [
        ("a0".to_owned(), engine(None, false)),
        ("a1".to_owned(), engine(None, true)),
        ("a2".to_owned(), engine(Some("no answer within 5 s"), false)),
    ]
    .into();
    let shown = table("test", &view);
    let row = |id, state, cache| {
        let kind = "vllm 0.11.0, demo";
        vec![id, "demo", kind, state, "http://vllm:8000", "a0:1", "8192", "64", cache, "2 h", "1.2.3", "7"]
    };
    let rows = cells(&shown);
    assert_eq!(
        rows[7..10],
        [row("a0", "serving", "yes"), row("a1", "draining", "yes"), row("a2", "lost", "no")],
        "{shown}"
    );
    assert!(shown.contains("a2: no answer within 5 s"), "{shown}");
    assert_eq!(json(&view)["engines"]["a2"]["lost"], "no answer within 5 s");
}
