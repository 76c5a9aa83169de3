use std::sync::Arc;

use rein_control_plane::records::{
    ExpertLoad, GroupLoras, GroupMember, GroupRecord, LinkAttempt, LinkReport, LoraRecord, LostCalls, LostWorker,
    Ready, RouterRecord, Seat,
};
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
        expects: Vec::new(),
        expires: None,
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
fn lora_adapters_of_a_group_are_named() {
    let mut view = view();
    let lora = |name: &str| LoraRecord { name: name.into(), digest: 7, path: "/loras".into(), rank: 8 };
    let loras = GroupLoras { epoch: EPOCH, loras: ["fr", "sql"].map(lora).into() };
    view.groups.get_mut("demo-1").expect("a group").loras = Some(Arc::new(loras));
    assert!(table("test", &view).contains("\ndemo-1: LoRA adapters: fr, sql\n"), "{}", table("test", &view));
    assert_eq!(json(&view)["groups"]["demo-1"]["loras"][1]["name"], "sql");
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

/// The lines below the tables.
fn said(view: &ClusterView) -> Vec<String> {
    table("test", view).lines().filter(|line| line.contains(": ")).map(str::to_owned).collect()
}

#[test]
fn a_model_without_a_group_is_shown_with_what_it_lacks() {
    let mut view = ClusterView::default();
    let of = |id: &str, change: &dyn Fn(&mut WorkerRecord)| {
        let mut record = WorkerRecord { group_size: 4, ..(*worker(id, None)).clone() };
        change(&mut record);
        (id.to_owned(), Arc::new(record))
    };
    view.workers = [of("w0", &|_| ()), of("w1", &|_| ()), of("w2", &|worker| worker.fingerprint = "g".into())].into();
    let shown = table("test", &view);
    let why = "2 of a group's 4 ranks are there; start 2 more";
    let others = "; 1 more have another checkpoint, other options or another release";
    assert_eq!(cells(&shown)[1], ["-", "demo", "no group", "-", "2 of 4", "3", "-", "-", "-", "-", "-"], "{shown}");
    let one = "1 of a group's 4 ranks are there; start 3 more";
    let lines = [format!("demo: {why}{others}"), format!("w0: {why}"), format!("w1: {why}"), format!("w2: {one}")];
    assert_eq!(said(&view), lines);
    assert_eq!(json(&view)["models_without_group"]["demo"], format!("{why}{others}"));
    assert_eq!(json(&view)["workers"]["w0"]["reason"], why);

    let domain = |name: &'static str| move |worker: &mut WorkerRecord| worker.domain = Some(name.into());
    view.workers =
        [of("w0", &domain("a")), of("w1", &domain("a")), of("w2", &domain("b")), of("w3", &domain("b"))].into();
    assert_eq!(said(&view)[0], "demo: no domain has the 4 ranks of a group: a, b");
    view.workers = ["w0", "w1", "w2", "w3"].map(|id| of(id, &|_| ())).into();
    assert_eq!(said(&view)[0], "demo: no controller runs that could form a group");
    view.controller = Some("c0".into());
    assert_eq!(said(&view)[0], "demo: a group is being formed");

    // A router waits for it.
    let router = RouterRecord { expects: vec!["demo".into(), "other".into()], ..self::view().routers["r0"].clone() };
    view.routers = [("r0".to_owned(), router)].into();
    assert_eq!(said(&view)[1], "other: a router expects it, and no worker and no engine has it");
    let mut served = self::view();
    served.routers = view.routers;
    assert_eq!(json(&served)["models_without_group"].as_object().map(|models| models.len()), Some(1));
}

#[test]
fn dead_workers_are_shown_as_dead() {
    let mut view = view();
    view.workers.remove("w1");
    let row = |view: &ClusterView, id: &str| {
        let shown = table("test", view);
        cells(&shown)
            .into_iter()
            .find(|row| row[0] == id)
            .map(|row| row.into_iter().map(str::to_owned).collect::<Vec<_>>())
    };
    let dead = ["w1", "w1:1", "-", "-", "dead", "-", "-", "-", "-", "-", "-"].map(str::to_owned).to_vec();
    assert_eq!(row(&view, "w1"), Some(dead.clone()));
    assert!(said(&view).contains(&"w1: its lease has expired, and nobody has taken its ranks".to_owned()));
    let lost = |at| LostWorker { model: "demo".into(), address: "w1:1".into(), device: "cuda:0".into(), at };
    view.lost = [("w1".to_owned(), lost(seconds_since_1970() - 7205)), ("w2".to_owned(), lost(0))].into();
    assert_eq!(row(&view, "w1").map(|row| row[3].clone()), Some("cuda:0".to_owned()));
    assert!(said(&view).contains(&"w1: its lease expired 2 h ago, and nobody has taken its ranks".to_owned()));
    // It is back.
    assert_eq!(row(&view, "w2").map(|row| row[4].clone()), Some("drain requested".to_owned()));
    assert_eq!(json(&view)["dead"].as_object().map(|dead| dead.len()), Some(1));
    let mut gone = ClusterView::default();
    gone.lost.clone_from(&view.lost);
    assert_eq!(said(&gone)[0], "demo: its 2 workers are dead");
    // Its group goes on without it.
    view.groups.clear();
    assert_eq!(row(&view, "w1").map(|row| row[4].clone()), Some("dead".to_owned()));
    assert!(said(&view).contains(&"w1: its lease expired 2 h ago".to_owned()));
}

#[test]
fn the_validity_of_certificates_has_a_column_if_there_are_any() {
    let mut view = view();
    assert!(!table("test", &view).contains(CERTIFICATE));
    let with = |view: &mut ClusterView, id: &str, left: i64| {
        let expires = Some(seconds_since_1970().saturating_add_signed(left));
        let record = WorkerRecord { expires, ..(*view.workers[id]).clone() };
        view.workers.insert(id.into(), Arc::new(record));
    };
    with(&mut view, "w0", 30 * 86_400 + 5);
    with(&mut view, "w2", -1);
    view.routers.get_mut("r0").expect("a router").expires = Some(seconds_since_1970() + 3605);
    let shown = table("test", &view);
    let last = |id: &str| cells(&shown).into_iter().find(|row| row[0] == id).and_then(|row| row.last().copied());
    assert_eq!(["w0", "w1", "w2", "r0"].map(last), [Some("30 d"), Some("-"), Some("expired"), Some("60 min")]);
    assert!(said(&view).contains(&"w2: its certificate has expired".to_owned()), "{shown}");
}

#[test]
fn a_group_that_has_lost_workers_says_so() {
    let mut view = view();
    let group = view.groups.get_mut("demo-1").expect("a group");
    let (record, revision) = group.placement.clone().expect("a record");
    let mut record = (*record).clone();
    record.members.truncate(1);
    record.members[0].ranks = vec![0, 1];
    group.placement = Some((Arc::new(record), revision));
    let why = "demo-1: worker w0 also holds 1 ranks of lost workers; as soon as a spare is there, it takes them over";
    assert!(said(&view).contains(&why.to_owned()), "{:?}", said(&view));
}

#[test]
fn a_worker_has_one_short_reason() {
    let mut view = view();
    let failure = Some(format!("the peer's certificate\nis of another authority {}", "x".repeat(300)));
    let tried = ["w0", "w1"].map(|id| (id.to_owned(), LinkAttempt { incarnation: 1, failure: failure.clone() })).into();
    view.links = [("w2".to_owned(), Arc::new(LinkReport { tried }))].into();
    let all = said(&view);
    let of_w2: Vec<&String> = all.iter().filter(|line| line.starts_with("w2: ")).collect();
    let [one] = of_w2[..] else { panic!("{of_w2:?}") };
    let why = "it cannot link with workers w0 and w1: the peer's certificate is of another authority";
    assert!(one.starts_with(&format!("w2: {why}")) && one.chars().count() <= 150, "{one}");
    // A group's trouble in its current epoch.
    let trouble = |epoch| RankFailure { epoch, suspect: Some(1), reason: "rank 1 does not answer".into() };
    let group = view.groups.get_mut("demo-1").expect("a group");
    group.trouble = [(0, trouble(EPOCH)), (1, trouble(EPOCH - 1))].into();
    assert!(said(&view).contains(&"demo-1: rank 0: rank 1 does not answer".to_owned()));
}
