//! The command `rein worker`: runs one worker, or several simulated ones. It does not compute.

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use rein_control_plane::epoch;
use rein_control_plane::limits::LEASE;
use rein_control_plane::records::{Locality, Seat, WorkerRecord, WorkerState};
use rein_control_plane::{Keys, ModelShape, SharedStore, Store};
use rein_kernels::collective::tcp;
use rein_proto::internal::loras_server::LorasServer;
use rein_proto::internal::worker_server::WorkerServer;
use rein_router::metrics::{Samples, on_scrape};
use rein_text::model_text::{self, ModelOverrides, ModelText};
use rein_worker::EngineOptions;
use rein_worker::executor::Executor;
use rein_worker::node::{self, EngineSwitch, NamedLora, NodeOptions, Readiness, TextFiles, WorkerReport, Workload};
use rein_worker::rank::{DeviceChoice, ModelLoader, ModelOptions};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tonic::service::Routes;

use super::page::{MetricsSocket, StatusPage};
use super::{advertised, keys, store, warn_if_open};
use crate::args::{EngineKind, LoraArgs, WorkerArgs};
use crate::ending::{self, EXIT_TIME};
use crate::listen::{CLOSE_TIME, StopSignals, WriteTimeout, bind, serve_grpc, wait_until_true};
use crate::terminal;
use crate::tls::{self, Certificate, Peers, ServerTls};
use crate::{fingerprint, load, metrics, serve};

pub fn run(args: WorkerArgs) -> Result<(), Box<dyn Error>> {
    let (keys, store) = (keys(&args.cluster)?, store(&args.cluster)?);
    let peers = Peers::open(&args.peer)?;
    let devices = load::devices(&args.engine.on, 1)?;
    args.engine.loras.check(false)?;
    args.engine.host.check(args.engine.on.engine)?;
    // Each device has one rank.
    let (ranks, group_size) = (args.engine.on.devices.len().max(1), usize::from(args.group.group_size));
    if !group_size.is_multiple_of(ranks) {
        return Err(format!(
            "--group-size: must be a multiple of {ranks}, the number of devices of this worker, got {group_size}"
        )
        .into());
    }
    if args.group.replicas > 1 && args.engine.on.engine != EngineKind::Sim {
        return Err("--replicas: needs --engine sim; start one process per worker of a real model".into());
    }
    let files = load::text_files(&args.weights, args.engine.task)?;
    let (work, shape, most_ranks, name) = work(&args, &devices)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let ran = runtime.block_on(async {
        super::check_access(&args.cluster, &*store, &keys).await?;
        let mesh = args.network.mesh.clone().unwrap_or_else(|| args.network.listen.any_port());
        let secure = peers.as_ref().map_or_else(tcp::plain, Peers::secure);
        let failed = |e: std::io::Error| format!("--mesh: cannot listen on {mesh}: {e}");
        let addresses = mesh.resolve().await.map_err(failed)?;
        let listener = tcp::RankListener::bind(addresses.as_slice(), secure).map_err(failed)?;
        if peers.is_none() {
            warn_if_open("--mesh", listener.address(), OPEN_MESH);
        }
        let started = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        let model = match &work {
            Workload::Model(model) => Some(&**model),
            Workload::Sim(_) => None,
        };
        let fingerprint = fingerprint::of(&args.weights, &args.engine, &devices, ranks, model, &files)?;
        let record = WorkerRecord {
            model: name,
            fingerprint: fingerprint.whole,
            text: fingerprint.text,
            revision: model_text::revision(&args.weights.model),
            address: String::new(),
            mesh: advertised(&args.network.advertise, listener.address())?,
            locality: model.and_then(ModelLoader::locality),
            device: (0..ranks).map(|rank| devices.name(rank)).collect::<Vec<_>>().join(","),
            shape,
            ranks,
            most_ranks,
            group_size,
            redundant_experts: args.group.redundant_experts.into(),
            domain: args.group.domain.clone(),
            incarnation: started.as_millis() as u64,
            state: WorkerState::Ready,
            seat: Seat::default(),
            release: super::release(),
            expires: None,
        };
        if let Some(locality) = &record.locality {
            terminal::out(gpus(&record.device, devices.kernels().unwrap_or("none"), locality, std::env::vars()));
        }
        let http = MetricsSocket::new(args.network.http.as_ref()).await?;
        let (leave, leaving) = watch::channel(false);
        // Many workers in one process share one connection to etcd.
        let store = match (args.group.replicas, &args.id) {
            (..2, _) => store,
            (_, id) => Arc::new(SharedStore::new(store, &super::id(id, "replicas")?, keys.root())) as Arc<dyn Store>,
        };
        let tls = peers.as_ref().map(Peers::server);
        let certificates: Vec<Certificate> =
            peers.iter().map(Peers::certificate).chain(super::etcd_certificate(&args.cluster)?).collect();
        let expires = tls::watch(certificates.clone());
        let listener = Arc::new(listener);
        let engine = serve::engine_options(&args.engine, &devices);
        let shared = Shared { args: &args, engine, tls, keys, store, work, files, listener, record, leaving, expires };
        let (mut workers, mut shown) = (JoinSet::new(), Vec::new());
        for replica in 0..args.group.replicas {
            let (worker, runs) = shared.worker(replica).await?;
            workers.spawn(runs);
            shown.push(worker);
        }
        let http = http.open(page(shown, certificates))?;
        let ended = async {
            while let Some(ended) = workers.join_next().await {
                ended??;
            }
            Ok::<(), Box<dyn Error>>(())
        };
        tokio::pin!(ended);
        let mut stop = StopSignals::new()?;
        tokio::select! {
            ended = &mut ended => ended?,
            signal = stop.next() => {
                tracing::info!(signal, "draining: open sequences finish, or resume on another engine");
                leave.send_replace(true);
                tokio::select! {
                    ended = &mut ended => ended?,
                    _ = stop.next() => tracing::warn!("second signal: stopping at once"),
                }
            }
        }
        if let Some(http) = http {
            http.close().await;
        }
        terminal::out("rein: stopped");
        Ok(())
    });
    // Hung threads do not keep the process alive, nor does a driver that waits for them.
    ending::kill_after(EXIT_TIME);
    runtime.shutdown_timeout(CLOSE_TIME);
    ran
}

pub const OPEN_GRPC: &str = "anyone who can reach it can generate, read the model's text files and load LoRA adapters";
const OPEN_MESH: &str = "anyone who can reach it and knows a group, its epoch and a rank can impersonate that rank";

/// What the workers of a process share.
struct Shared<'a> {
    args: &'a WorkerArgs,
    engine: EngineOptions,
    tls: Option<ServerTls>,
    keys: Keys,
    store: Arc<dyn Store>,
    work: Workload,
    files: TextFiles,
    listener: Arc<tcp::RankListener>,
    record: WorkerRecord,
    leaving: watch::Receiver<bool>,
    expires: watch::Receiver<Option<u64>>,
}

impl Shared<'_> {
    /// Binds a worker's own port. Returns the worker and the future that runs it.
    async fn worker(
        &self,
        replica: u16,
    ) -> Result<(Shown, impl Future<Output = Result<(), String>> + use<>), Box<dyn Error>> {
        let args = self.args;
        let listen = if replica == 0 { args.network.listen.clone() } else { args.network.listen.any_port() };
        let socket = bind("--listen", &listen).await?;
        let address = socket.local_addr()?;
        if self.tls.is_none() && replica == 0 {
            warn_if_open("--listen", address, OPEN_GRPC);
        }
        let id = match (&args.id, args.group.replicas) {
            (Some(id), 2..) => Some(format!("{id}-{replica}")),
            (id, _) => id.clone(),
        };
        let id = super::id(&id, address.port())?;
        let address = advertised(&args.network.advertise, address)?;
        let options = NodeOptions {
            keys: self.keys.clone(),
            id: id.clone(),
            record: WorkerRecord { address: address.clone(), ..self.record.clone() },
            engine: self.engine.clone(),
            loras: named(&args.engine.loras),
            step_deadline: Duration::from_secs_f64(args.engine.step_deadline),
            lease: LEASE,
            expires: self.expires.clone(),
        };
        let switch = EngineSwitch::default();
        let (closing, closed) = watch::channel(false);
        let files = WorkerServer::new(self.files.clone());
        let readiness = Readiness::of(self.store.clone(), self.keys.clone(), &id, switch.clone());
        let health = readiness.clone().into_server();
        let loras = LorasServer::new(switch.clone());
        let routes =
            Routes::new(switch.clone().into_server()).add_service(files).add_service(health).add_service(loras);
        let shown = Shown { id: id.clone(), switch: switch.clone(), readiness: readiness.clone() };
        let server = tokio::spawn(serve_grpc(
            routes,
            socket,
            self.tls.clone(),
            WriteTimeout::default(),
            wait_until_true(closed),
        ));
        terminal::out(format_args!("rein: worker {id} listening on {address}"));
        let (store, work) = (self.store.clone(), self.work.clone());
        let (listener, leaving) = (self.listener.clone(), self.leaving.clone());
        let runs = async move {
            // Readiness is updated while this handle lives.
            let _readiness = readiness;
            let ran = node::run(store, options, work, listener, switch, leaving).await;
            closing.send_replace(true);
            let closed = match tokio::time::timeout(CLOSE_TIME, server).await {
                Ok(served) => served.map_err(|panic| panic.to_string())?,
                // Its connections are closed when the process ends.
                Err(_) => Ok(()),
            };
            ran.map_err(|error| error.to_string()).and(closed)
        };
        Ok((shown, runs))
    }
}

fn named(args: &LoraArgs) -> Vec<NamedLora> {
    let named = args.lora.iter().cloned();
    named.map(|(name, path)| NamedLora { name, path }).collect()
}

/// What a worker's page shows.
struct Shown {
    id: String,
    switch: EngineSwitch,
    readiness: Readiness,
}

fn page(workers: Vec<Shown>, certificates: Vec<Certificate>) -> StatusPage {
    let workers = Arc::new(workers);
    let shown = workers.clone();
    let report = |worker: &Shown| ReportedWorker {
        id: worker.id.clone(),
        ready: worker.readiness.verdict().ready,
        report: worker.switch.report(),
    };
    let metrics = metrics(move || shown.iter().map(report).collect(), certificates);
    // With several workers: the first one that is not ready, otherwise the last.
    let ready = move || {
        let verdict = |worker: &Shown| match worker.readiness.verdict() {
            verdict if verdict.ready => Ok(verdict.why),
            verdict => Err(verdict.why),
        };
        workers.iter().try_fold("", |_, worker| verdict(worker))
    };
    StatusPage { metrics, ready: Box::new(ready) }
}

/// A worker at a scrape.
struct ReportedWorker {
    id: String,
    ready: bool,
    report: WorkerReport,
}

fn metrics(read: impl Fn() -> Vec<ReportedWorker> + Send + Sync + 'static, certificates: Vec<Certificate>) -> Registry {
    let mut registry = Registry::default();
    metrics::register(&mut registry, certificates);
    on_scrape(&mut registry, move |samples| write(samples, &read()));
    registry
}

fn write(samples: &mut Samples<'_>, workers: &[ReportedWorker]) -> std::fmt::Result {
    let ready = |worker: &ReportedWorker| {
        let labels = [("worker", worker.id.clone()), ("standing", worker.report.standing.to_owned())];
        (labels, u32::from(worker.ready))
    };
    let help = "1: the worker is ready. `standing`: `leads`, `follows`, `spare`, `seating` (takes a seat, or waits for \
        its group), `away` (could not load, takes no seat for a while), `leaving`, `unknown` (the store does not know \
        it), `displaced` (the store has another worker under its id)";
    samples.gauge("rein_worker_ready", help, workers.iter().map(ready))?;
    let label = |worker: &ReportedWorker| [("worker", worker.id.clone())];
    let epochs = workers.iter().map(|worker| (label(worker), epoch::number(worker.report.epoch)));
    samples.gauge("rein_worker_epoch", "Epoch of the worker's last seat; 0: none yet", epochs)?;
    let routers = workers.iter().map(|worker| (label(worker), worker.report.routers));
    samples.gauge("rein_worker_routers", "Routers connected to the engine that the worker leads", routers)?;
    let engines = || workers.iter().filter_map(|worker| Some((label(worker), worker.report.engine.as_ref()?)));
    samples.engines("rein_worker", || engines().map(|(labels, (stats, _))| (labels, *stats)))?;
    let times = engines().map(|(labels, (_, times))| (labels, times.clone()));
    let help = "From the start of a step to its end, failed steps included";
    samples.metric("rein_worker_step_seconds", help, MetricType::Histogram, times)
}

/// A line of the banner: the kernels of the GPUs, where they are, and the variables that NCCL reads.
fn gpus(
    devices: &str,
    kernels: &str,
    locality: &Locality,
    variables: impl Iterator<Item = (String, String)>,
) -> String {
    let Locality { nvlink, adapters, .. } = locality;
    let nvlink = nvlink.as_ref().map_or("no NVLink".to_owned(), |domain| format!("NVLink domain {domain}"));
    let adapters = match adapters.is_empty() {
        true => "no RDMA adapter beside them".to_owned(),
        false => format!("adapters beside them: {}", adapters.join(", ")),
    };
    let mut set: Vec<String> = variables
        .filter(|(name, _)| name.starts_with("NCCL_"))
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    set.sort();
    let set = if set.is_empty() { "no NCCL variables".to_owned() } else { set.join(" ") };
    format!("rein: GPUs {devices}: kernels {kernels}; {nvlink}; {adapters}; {set}")
}

/// The executor, the model's shape, the number of ranks that fit, and the served name.
fn work(args: &WorkerArgs, devices: &DeviceChoice) -> Result<(Workload, ModelShape, usize, String), Box<dyn Error>> {
    let dir = &args.weights.model;
    let served_name = match args.engine.served_name.as_slice() {
        [] => None,
        [name] => Some(name.clone()),
        _ => {
            return Err("--served-name: a worker's model has one name; give routers --alias NAME=MODEL for more".into());
        }
    };
    match args.engine.on.engine {
        EngineKind::Cpu | EngineKind::Cuda => {
            let options = load::engine_options(&args.weights, &args.engine, devices.clone(), false);
            let flagged = |error| load::flagged(error, "--group-size");
            let (tp, redundant_experts) = (args.group.group_size.into(), args.group.redundant_experts.into());
            let options = ModelOptions { tp, redundant_experts, ..options };
            let model = ModelLoader::open(dir, &options).map_err(flagged)?;
            let (shape, group_size) = (model.shape(), usize::from(args.group.group_size));
            let most = model.most_ranks(args.engine.on.devices.len().max(1), group_size).map_err(flagged)?;
            let name = served_name.unwrap_or_else(|| model.name());
            Ok((Workload::Model(Arc::new(model)), shape, most, name))
        }
        EngineKind::Sim => {
            if !args.weights.is_default() || args.group.group_size != 1 || args.group.redundant_experts != 0 {
                let what = "remove --dtype, --kv-dtype, --quantize, --threads, --group-size and --redundant-experts";
                return Err(format!("--engine sim loads no weights and has one rank: {what}").into());
            }
            let overrides = ModelOverrides {
                name: served_name,
                max_context: args.engine.max_context.map(|n| n as usize),
                ..ModelOverrides::default()
            };
            let text = ModelText::load(dir, &overrides)?;
            let (name, engine, devices) = (text.name.clone(), args.engine.clone(), devices.clone());
            let make = move || Box::new(serve::sim(&engine, &devices, &text)) as Box<dyn Executor>;
            let shape = ModelShape { attention_heads: 1, kv_heads: 1, experts: Vec::new() };
            Ok((Workload::Sim(Arc::new(make)), shape, 1, name))
        }
    }
}

#[cfg(test)]
mod tests;
