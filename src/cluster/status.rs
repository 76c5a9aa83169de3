//! `rein status`.

use std::error::Error;
use std::io::Write;
use std::time::{SystemTime, UNIX_EPOCH};

use rein_control_plane::reach::Reach;
use rein_control_plane::rebalance::worst;
use rein_control_plane::records::{Keys, Release, WorkerRecord, WorkerState};
use rein_control_plane::view::Group;
use rein_control_plane::{Mirror, View};
use serde_json::{Value, json};

use super::{keep_alive, keys, store};
use crate::args::StatusArgs;

pub fn run(args: StatusArgs) -> Result<(), Box<dyn Error>> {
    let (keys, store) = (keys(&args.cluster)?, store(&args.cluster)?);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let show = |view: &View| match args.json {
            true => format!("{}\n", json(view)),
            false => table(&args.cluster.cluster, view),
        };
        let mut out = std::io::stdout();
        if !args.watch {
            let snapshot = store.read(keys.root()).await?;
            if snapshot.entries.is_empty() {
                let cluster = &args.cluster.cluster;
                return Err(
                    format!("--cluster: etcd knows nothing of a cluster {cluster}: no process of it is there").into()
                );
            }
            out.write_all(show(&View::read(&keys, &snapshot)).as_bytes())?;
            return Ok(());
        }
        let _alive = keep_alive(store.clone(), keys.controller());
        let mut mirror = Mirror::new(store, "status", keys.root());
        let mut snapshot = mirror.read().await;
        loop {
            let shown = show(&read(&keys, &snapshot));
            // Home, and erase what was there: a table that stays in its place.
            let before = if args.json { "" } else { "\x1b[H\x1b[2J" };
            out.write_all(format!("{before}{shown}").as_bytes()).and_then(|()| out.flush())?;
            snapshot = mirror.changed().await;
        }
    })
}

fn read(keys: &Keys, snapshot: &rein_control_plane::Snapshot) -> View {
    View::read(keys, snapshot)
}

/// What a group is doing, in a word.
pub fn state(group: &Group) -> &'static str {
    match group.record() {
        None => "over",
        Some(record) if group.trouble.values().any(|trouble| trouble.epoch == record.epoch()) => "broken",
        Some(_) if !group.serves() => "loading",
        Some(record) if record.draining => "draining",
        Some(_) => "serving",
    }
}

/// Why a worker would not be given a seat beside some of its peers, or by nobody; empty: nothing is known against it.
fn against(reach: &Reach, id: &str, worker: &WorkerRecord) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
    match worker.expires {
        Some(expires) if expires <= now => "its certificate has expired".into(),
        _ => reach.why(id).join("; "),
    }
}

/// What a worker is doing, in a word.
pub fn worker_state(view: &View, id: &str, worker: &WorkerRecord) -> &'static str {
    let record = worker.seat.group.as_deref().and_then(|group| view.groups.get(group)?.record());
    match (worker.state, record.and_then(|record| record.member(id, worker.incarnation))) {
        (WorkerState::Draining, _) => "draining",
        (WorkerState::Ready, Some(_)) => "seated",
        (WorkerState::Ready, None) => "spare",
    }
}

fn json(view: &View) -> Value {
    let groups: serde_json::Map<String, Value> = view
        .groups
        .iter()
        .map(|(id, group)| {
            let ranks: Vec<Value> = group.record().map_or(Vec::new(), |record| {
                let rank = |member: usize| {
                    let first = record.first_rank(member);
                    let ready = group.ready.get(&first).is_some_and(|ready| ready.epoch == record.epoch());
                    let of = &record.members[member];
                    record.ranks_of(member).map(move |rank| {
                        json!({"rank": rank.rank, "worker": of.worker, "address": of.address, "ready": ready,
                               "heads": [rank.heads.start, rank.heads.end], "kv_heads": [rank.kv_heads.start, rank.kv_heads.end],
                               "experts": rank.experts})
                    }).collect::<Vec<_>>()
                };
                (0..record.members.len()).flat_map(rank).collect()
            });
            let record = group.record();
            let value = json!({
                "state": state(group),
                "model": record.map(|record| record.model.clone()),
                "epoch": record.map(|record| record.epoch()),
                "protocol": record.map(|record| record.protocol),
                "group_size": record.map(|record| record.group_size),
                "ranks": ranks,
                "load": group.load,
                "layout": record.map(|record| record.placement.layout),
                "experts": experts(group),
                "trouble": group.trouble,
            });
            (id.clone(), value)
        })
        .collect();
    let reach = Reach::new(view);
    let workers: serde_json::Map<String, Value> = view
        .workers
        .iter()
        .map(|(id, worker)| {
            let faults = |inbound| -> serde_json::Map<String, Value> {
                let faults = reach.faults(id).into_iter().filter(move |fault| fault.inbound == inbound);
                faults.map(|fault| (fault.other.to_owned(), fault.why.into())).collect()
            };
            let value = json!({
                "missed_by": faults(true), "cannot_reach": faults(false), "certificate_expires": worker.expires,
                "model": worker.model, "address": worker.address, "mesh": worker.mesh, "device": worker.device,
                "state": worker.state, "ranks": worker.ranks, "group_size": worker.group_size,
                "group": worker.seat.group, "epoch": worker.seat.epoch, "incarnation": worker.incarnation,
                "version": worker.release.version, "protocol": worker.release.protocol,
            });
            (id.clone(), value)
        })
        .collect();
    let release = view.controller.as_ref().map(|_| &view.controller_release);
    json!({"controller": view.controller, "controller_release": release, "routers": view.routers, "groups": groups, "workers": workers, "draining": view.drains})
}

/// Which layout of experts is in use, and how even it makes the ranks' work; None: nothing has been counted.
fn experts(group: &Group) -> Option<Value> {
    let (record, load) = (group.record()?, group.experts.as_ref()?);
    // Of another layout, or model, the rows say nothing.
    let same = load.epoch == record.epoch() && load.layout == record.placement.layout;
    Some(json!({"layout": load.layout, "imbalance": same.then(|| worst(&record.placement, &load.rows))}))
}

fn table(cluster: &str, view: &View) -> String {
    let controller = match &view.controller {
        Some(id) => format!(
            "{id} (version {}, protocol {})",
            version(&view.controller_release),
            view.controller_release.protocol
        ),
        None => "none".to_owned(),
    };
    let mut out = format!("cluster {cluster}   controller {controller}\n\n");
    let mut rows =
        vec![row(["GROUP", "MODEL", "STATE", "EPOCH", "RANKS", "WORKERS", "RUNNING", "WAITING", "KV", "IMBALANCE"])];
    for (id, group) in &view.groups {
        let Some(record) = group.record() else { continue };
        let load = group.load.clone().unwrap_or_default();
        let kv = (100 * load.used_blocks).checked_div(load.total_blocks).unwrap_or(0);
        let ranks = record.group_size.to_string();
        let (epoch, workers) = (record.epoch().to_string(), record.members.len().to_string());
        let (running, waiting) = (load.running.to_string(), load.waiting.to_string());
        rows.push(row([
            id,
            &record.model,
            state(group),
            &epoch,
            &ranks,
            &workers,
            &running,
            &waiting,
            &format!("{kv} %"),
            &experts(group).and_then(|e| e["imbalance"].as_f64()).map_or("-".into(), |worst| format!("{worst:.2}")),
        ]));
    }
    out.push_str(&aligned(&rows));
    let mut rows =
        vec![row(["WORKER", "ADDRESS", "DEVICE", "STATE", "GROUP", "RANK", "EXPERTS", "VERSION", "PROTOCOL"])];
    for (id, worker) in &view.workers {
        let group = worker.seat.group.as_deref();
        let record = group.and_then(|group| view.groups.get(group)?.record());
        let member = record.and_then(|record| Some((record, record.member(id, worker.incarnation)?)));
        let asked = worker.state == WorkerState::Ready && view.drains.contains(id);
        let state = if asked { "asked to leave" } else { worker_state(view, id, worker) };
        let rank = member.map_or_else(
            || "-".into(),
            |(record, member)| record.members[member].ranks.iter().map(usize::to_string).collect::<Vec<_>>().join(","),
        );
        let experts = member.map_or(0, |(record, member)| {
            let most = |rank: &rein_control_plane::RankPlacement| rank.experts.iter().map(Vec::len).max().unwrap_or(0);
            record.ranks_of(member).map(most).max().unwrap_or(0)
        });
        let group = member.and(group).unwrap_or("-");
        let (experts, protocol) = (experts.to_string(), worker.release.protocol.to_string());
        let version = version(&worker.release);
        rows.push(row([id, &worker.address, &worker.device, state, group, &rank, &experts, version, &protocol]));
    }
    out.push('\n');
    out.push_str(&aligned(&rows));
    let reach = Reach::new(view);
    for (id, worker) in &view.workers {
        let why = against(&reach, id, worker);
        if !why.is_empty() {
            out.push_str(&format!("{id}: {why}\n"));
        }
    }
    let mut rows = vec![row(["ROUTER", "HTTP", "GRPC", "STATE", "IN FLIGHT", "VERSION", "PROTOCOL"])];
    for (id, router) in &view.routers {
        let state = if router.draining { "draining" } else { "serving" };
        let (in_flight, protocol) = (router.in_flight.to_string(), router.release.protocol.to_string());
        rows.push(row([id, &router.http, &router.grpc, state, &in_flight, version(&router.release), &protocol]));
    }
    out.push('\n');
    out.push_str(&aligned(&rows));
    out
}

fn version(release: &Release) -> &str {
    if release.version.is_empty() { "-" } else { &release.version }
}

fn row<const N: usize>(cells: [&str; N]) -> Vec<String> {
    cells.map(str::to_owned).to_vec()
}

fn aligned(rows: &[Vec<String>]) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, &width)| format!("{cell:width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    rows.iter().map(line).collect()
}
