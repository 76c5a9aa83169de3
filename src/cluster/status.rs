//! The command `rein status`: shows the cluster as a table or as JSON. It changes nothing.

mod reasons;

use std::collections::BTreeMap;
use std::error::Error;
use std::io::Write;

use rein_control_plane::connectivity::Connectivity;
use rein_control_plane::epoch;
use rein_control_plane::rebalance::worst;
use rein_control_plane::records::{
    EngineRecord, Load, LoraRecord, LostCalls, RankFailure, Release, WorkerRecord, WorkerState,
};
use rein_control_plane::view::GroupState;
use rein_control_plane::{ClusterView, Mirror};
use serde_json::{Value, json};

use self::reasons::{DeadWorker, Ungrouped};
use super::{keep_alive, keys, seconds_since_1970, store, store_error};
use crate::args::StatusArgs;

pub fn run(args: StatusArgs) -> Result<(), Box<dyn Error>> {
    let (keys, store) = (keys(&args.cluster)?, store(&args.cluster)?);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let show = |view: &ClusterView| match args.json {
            true => format!("{}\n", json(view)),
            false => table(&args.cluster.cluster, view),
        };
        let mut out = std::io::stdout();
        if !args.watch {
            let snapshot = store.read(keys.root()).await.map_err(|error| store_error(&args.cluster, error))?;
            if snapshot.entries.is_empty() {
                let cluster = &args.cluster.cluster;
                return Err(
                    format!("--cluster: etcd has no cluster {cluster}: none of its processes is running").into()
                );
            }
            out.write_all(show(&ClusterView::read(&keys, &snapshot)).as_bytes())?;
            return Ok(());
        }
        let _alive = keep_alive(store.clone(), keys.controller());
        let mut mirror = Mirror::new(store, "status", keys.root());
        let mut snapshot = mirror.read().await;
        loop {
            let shown = show(&ClusterView::read(&keys, &snapshot));
            // Moves the cursor home and clears the screen.
            let before = if args.json { "" } else { "\x1b[H\x1b[2J" };
            out.write_all(format!("{before}{shown}").as_bytes()).and_then(|()| out.flush())?;
            snapshot = mirror.changed().await;
        }
    })
}

/// The column with the time until the first certificate of a process expires.
const CERTIFICATE: &str = "CERTIFICATE";

/// How long a certificate is valid.
fn validity(expires: Option<u64>) -> String {
    match expires.map(|expires| expires.saturating_sub(seconds_since_1970())) {
        None => "-".into(),
        Some(0) => "expired".into(),
        Some(left) => duration(left),
    }
}

/// The state of a group.
pub fn state(group: &GroupState) -> &'static str {
    match group.record() {
        None => "over",
        Some(record) if group.trouble.values().any(|trouble| trouble.epoch == record.epoch()) => "broken",
        Some(_) if !group.serves() => "loading",
        Some(record) if record.draining => "draining",
        Some(_) => "serving",
    }
}

/// The state of a worker.
pub fn worker_state(view: &ClusterView, id: &str, worker: &WorkerRecord) -> &'static str {
    let record = worker.seat.group.as_deref().and_then(|group| view.groups.get(group)?.record());
    match (worker.state, record.and_then(|record| record.member(id, worker.incarnation))) {
        (WorkerState::Draining, _) => "draining",
        (WorkerState::Ready, Some(_)) => "seated",
        (WorkerState::Ready, None) => "spare",
    }
}

/// The state of an engine behind an adapter.
pub fn engine_state(engine: &EngineRecord) -> &'static str {
    match (&engine.lost, engine.draining) {
        (Some(_), _) => "lost",
        (None, true) => "draining",
        (None, false) => "serving",
    }
}

fn json(view: &ClusterView) -> Value {
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
                "epoch": record.map(|record| epoch::number(record.epoch())),
                "protocol": record.map(|record| record.protocol),
                "group_size": record.map(|record| record.group_size),
                "domain": record.and_then(|record| record.domain.clone()),
                "ranks": ranks,
                "load": group.load.as_ref().map(|load| Load { epoch: epoch::number(load.epoch), ..load.clone() }),
                "layout": record.map(|record| epoch::number(record.placement.layout)),
                "experts": experts(group),
                "trouble": trouble(group),
                "loras": group.loras().iter().map(lora).collect::<Vec<_>>(),
            });
            (id.clone(), value)
        })
        .collect();
    let connectivity = Connectivity::new(view);
    let workers: serde_json::Map<String, Value> = view
        .workers
        .iter()
        .map(|(id, worker)| {
            let faults = |inbound| -> serde_json::Map<String, Value> {
                let faults = connectivity.faults(id).into_iter().filter(move |fault| fault.inbound == inbound);
                faults.map(|fault| (fault.other.to_owned(), fault.why.into())).collect()
            };
            let value = json!({
                "reason": reasons::of_worker(view, &connectivity, id, worker),
                "missed_by": faults(true), "cannot_reach": faults(false), "certificate_expires": worker.expires,
                "model": worker.model, "address": worker.address, "mesh": worker.mesh, "device": worker.device,
                "state": worker.state, "ranks": worker.ranks, "group_size": worker.group_size,
                "domain": worker.domain, "group": worker.seat.group, "epoch": epoch::number(worker.seat.epoch), "incarnation": worker.incarnation,
                "version": worker.release.version, "protocol": worker.release.protocol,
                "started": worker.release.started,
            });
            (id.clone(), value)
        })
        .collect();
    let engines: BTreeMap<&String, &EngineRecord> = view.engines.iter().map(|(id, engine)| (id, &**engine)).collect();
    let release = view.controller.as_ref().map(|_| &view.controller_release);
    let without: BTreeMap<&str, String> =
        reasons::models_without_group(view).into_iter().map(|(model, ungrouped)| (model, ungrouped.why)).collect();
    let dead: BTreeMap<&str, Value> = reasons::dead(view)
        .into_iter()
        .map(|(id, DeadWorker { address, device, why })| {
            let since = view.lost.get(id).map(|lost| lost.at);
            (id, json!({"address": address, "device": device, "since": since, "reason": why}))
        })
        .collect();
    json!({"controller": view.controller, "controller_release": release, "routers": view.routers, "groups": groups,
           "models_without_group": without, "workers": workers, "dead": dead, "engines": engines, "draining": view.drains})
}

/// The digest is text, as readers of JSON round such large numbers.
fn lora(LoraRecord { name, digest, path, rank }: &LoraRecord) -> Value {
    json!({"name": name, "path": path, "rank": rank, "digest": format!("{digest:016x}")})
}

/// Why ranks left an epoch, by rank.
fn trouble(group: &GroupState) -> BTreeMap<usize, RankFailure> {
    let shown = |trouble: &RankFailure| RankFailure { epoch: epoch::number(trouble.epoch), ..trouble.clone() };
    group.trouble.iter().map(|(&rank, trouble)| (rank, shown(trouble))).collect()
}

/// The expert layout in use and its imbalance. None: nothing has been counted.
fn experts(group: &GroupState) -> Option<Value> {
    let (record, load) = (group.record()?, group.experts.as_ref()?);
    // Counts of another layout or epoch do not apply.
    let same = load.epoch == record.epoch() && load.layout == record.placement.layout;
    Some(json!({"layout": epoch::number(load.layout), "imbalance": same.then(|| worst(&record.placement, &load.rows))}))
}

fn table(cluster: &str, view: &ClusterView) -> String {
    let controller = match &view.controller {
        Some(id) => format!(
            "{id} (age {}, version {}, protocol {})",
            age(&view.controller_release),
            version(&view.controller_release),
            view.controller_release.protocol
        ),
        None => "none".to_owned(),
    };
    let mut out = format!("cluster {cluster}   controller {controller}\n\n");
    let mut rows = vec![row([
        "GROUP",
        "MODEL",
        "STATE",
        "EPOCH",
        "RANKS",
        "WORKERS",
        "RUNNING",
        "WAITING",
        "TOK/S",
        "KV",
        "IMBALANCE",
    ])];
    for (id, group) in &view.groups {
        let Some(record) = group.record() else { continue };
        let load = group.load.clone().unwrap_or_default();
        let kv = (100 * load.used_blocks).checked_div(load.total_blocks).unwrap_or(0);
        let ranks = record.group_size.to_string();
        let (epoch, workers) = (epoch::number(record.epoch()).to_string(), record.members.len().to_string());
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
            &load.tokens_per_second.to_string(),
            &format!("{kv} %"),
            &experts(group).and_then(|e| e["imbalance"].as_f64()).map_or("-".into(), |worst| format!("{worst:.2}")),
        ]));
    }
    let without = reasons::models_without_group(view);
    for (model, Ungrouped { ranks, .. }) in &without {
        let ranks = ranks.map_or_else(|| "0".to_owned(), |(there, all)| format!("{there} of {all}"));
        let workers = view.workers.values().filter(|worker| worker.model == **model).count().to_string();
        rows.push(row(["-", model, "no group", "-", &ranks, &workers, "-", "-", "-", "-", "-"]));
    }
    out.push_str(&aligned(&rows));
    let said = |out: &mut String, who: &str, why: &str| out.push_str(&format!("{who}: {why}\n"));
    view.groups
        .iter()
        .filter_map(|(id, group)| Some((id, reasons::of_group(view, group)?)))
        .for_each(|(id, why)| said(&mut out, id, &why));
    without.iter().for_each(|(model, ungrouped)| said(&mut out, model, &ungrouped.why));
    for (id, group) in view.groups.iter().filter(|(_, group)| !group.loras().is_empty()) {
        let names: Vec<&str> = group.loras().iter().map(|lora| lora.name.as_str()).collect();
        said(&mut out, id, &format!("LoRA adapters: {}", names.join(", ")));
    }
    let mut rows = vec![row([
        "WORKER",
        "ADDRESS",
        "DOMAIN",
        "DEVICE",
        "STATE",
        "GROUP",
        "RANK",
        "EXPERTS",
        "AGE",
        "VERSION",
        "PROTOCOL",
        CERTIFICATE,
    ])];
    for (id, worker) in &view.workers {
        let group = worker.seat.group.as_deref();
        let record = group.and_then(|group| view.groups.get(group)?.record());
        let member = record.and_then(|record| Some((record, record.member(id, worker.incarnation)?)));
        let asked = worker.state == WorkerState::Ready && view.drains.contains(id);
        let state = if asked { "drain requested" } else { worker_state(view, id, worker) };
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
        let (age, version) = (age(&worker.release), version(&worker.release));
        let domain = worker.domain.as_deref().unwrap_or("-");
        let (address, device) = (&worker.address, &worker.device);
        let valid = validity(worker.expires);
        rows.push(row([id, address, domain, device, state, group, &rank, &experts, &age, version, &protocol, &valid]));
    }
    let dead = reasons::dead(view);
    for (id, DeadWorker { address, device, .. }) in &dead {
        rows.push(row([id, address, "-", device, "dead", "-", "-", "-", "-", "-", "-", "-"]));
    }
    out.push('\n');
    out.push_str(&aligned(&rows));
    let connectivity = Connectivity::new(view);
    for (id, worker) in &view.workers {
        reasons::of_worker(view, &connectivity, id, worker).iter().for_each(|why| said(&mut out, id, why));
    }
    dead.iter().for_each(|(id, worker)| said(&mut out, id, &worker.why));
    if !view.engines.is_empty() {
        let mut rows = vec![row([
            "ENGINE", "MODEL", "KIND", "STATE", "URL", "ADAPTER", "CONTEXT", "SLOTS", "CACHE", "AGE", "VERSION",
            "PROTOCOL",
        ])];
        for (id, engine) in &view.engines {
            let state = engine_state(engine);
            let cache = if engine.prefix_cache { "yes" } else { "no" };
            let (context, slots) = (engine.context.to_string(), engine.slots.to_string());
            let (age, protocol) = (age(&engine.release), engine.release.protocol.to_string());
            let version = version(&engine.release);
            let EngineRecord { model, kind, url, address, .. } = &**engine;
            rows.push(row([id, model, kind, state, url, address, &context, &slots, cache, &age, version, &protocol]));
        }
        out.push('\n');
        out.push_str(&aligned(&rows));
        for (id, engine) in &view.engines {
            if let Some(why) = &engine.lost {
                out.push_str(&format!("{id}: {why}\n"));
            }
        }
    }
    let mut rows =
        vec![row(["ROUTER", "HTTP", "GRPC", "STATE", "IN FLIGHT", "AGE", "VERSION", "PROTOCOL", CERTIFICATE])];
    for (id, router) in &view.routers {
        let state = if router.draining { "draining" } else { "serving" };
        let (in_flight, protocol) = (router.in_flight.to_string(), router.release.protocol.to_string());
        let (age, version) = (age(&router.release), version(&router.release));
        let valid = validity(router.expires);
        rows.push(row([id, &router.http, &router.grpc, state, &in_flight, &age, version, &protocol, &valid]));
    }
    out.push('\n');
    out.push_str(&aligned(&rows));
    view.routers.iter().for_each(|(id, router)| {
        reasons::expires_soon(router.expires).iter().for_each(|why| said(&mut out, id, why));
    });
    for (id, router) in &view.routers {
        for (model, LostCalls { answers, format }) in &router.lost_calls {
            let hint = format.as_ref().map(|format| format!("; --format {format} reads them")).unwrap_or_default();
            out.push_str(&format!(
                "{id}: {answers} answers of {model} had calls as text that its format does not read{hint}\n"
            ));
        }
    }
    out
}

fn version(release: &Release) -> &str {
    if release.version.is_empty() { "-" } else { &release.version }
}

/// Time since the process started; `-` for releases that do not report it.
fn age(release: &Release) -> String {
    match release.started {
        0 => "-".into(),
        started => duration(seconds_since_1970().saturating_sub(started)),
    }
}

/// The time in the largest unit in which it is at least 2.
fn duration(seconds: u64) -> String {
    let units = [(86_400, "d"), (3600, "h"), (60, "min")];
    let unit = units.into_iter().find(|(length, _)| seconds >= 2 * length);
    unit.map_or_else(|| format!("{seconds} s"), |(length, name)| format!("{} {name}", seconds / length))
}

fn row<const N: usize>(cells: [&str; N]) -> Vec<String> {
    cells.map(str::to_owned).to_vec()
}

/// The table. Its last column is left out if it is that of certificates, and there are none.
fn aligned(rows: &[Vec<String>]) -> String {
    let last = rows.iter().filter_map(|row| row.last()).collect::<Vec<_>>();
    if matches!(last[..], [first, ref rest @ ..] if first == CERTIFICATE && rest.iter().all(|cell| *cell == "-")) {
        let without = |row: &Vec<String>| row[..row.len() - 1].to_vec();
        return aligned(&rows.iter().map(without).collect::<Vec<_>>());
    }
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, &width)| format!("{cell:width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests;
