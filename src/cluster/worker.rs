//! `rein worker`.

use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rein_control_plane::ModelShape;
use rein_control_plane::limits::LEASE;
use rein_control_plane::records::{Seat, WorkerRecord, WorkerState};
use rein_kernels::collective::tcp;
use rein_proto::internal::worker_server::WorkerServer;
use rein_router::textmodel::{Overrides, TextModel};
use rein_worker::executor::Executor;
use rein_worker::node::{self, Files, NodeOptions, Switch, Work};
use rein_worker::rank::Model;
use tokio::sync::watch;
use tonic::service::Routes;

use super::{id, keys, store};
use crate::args::{EngineKind, WorkerArgs};
use crate::listen::{CLOSE_TIME, StopSignals, bind, serve_grpc, turned};
use crate::{load, serve};

pub fn run(args: WorkerArgs) -> Result<(), Box<dyn Error>> {
    let (keys, store) = (keys(&args.cluster)?, store(&args.cluster)?);
    let (ranks, group_size) = (args.devices.len(), usize::from(args.group_size));
    if !group_size.is_multiple_of(ranks) {
        return Err(
            format!("--group-size: {group_size} ranks cannot be made of workers with {ranks} devices each").into()
        );
    }
    let (work, shape, most_ranks, name) = work(&args)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let socket = bind("--listen", args.listen).await?;
        let listening = socket.local_addr()?;
        let mesh = args.mesh.unwrap_or_else(|| SocketAddr::new(args.listen.ip(), 0));
        let listener =
            tcp::Listener::bind(mesh, tcp::plain()).map_err(|e| format!("--mesh: cannot listen on {mesh}: {e}"))?;
        let host = match &args.advertise {
            Some(host) => host.clone(),
            None if listening.ip().is_unspecified() => {
                return Err("--advertise: others cannot reach 0.0.0.0; name this machine's host or address".into());
            }
            None => listening.ip().to_string(),
        };
        let at = |port: u16| if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
        let id = id(&args.id, listening.port())?;
        let started = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let record = WorkerRecord {
            model: name,
            fingerprint: fingerprint(&args)?,
            address: at(listening.port()),
            mesh: at(listener.address().port()),
            device: vec!["cpu"; ranks].join(","),
            shape,
            ranks,
            most_ranks,
            group_size,
            incarnation: started.as_millis() as u64,
            state: WorkerState::Ready,
            seat: Seat::default(),
        };
        let options = NodeOptions {
            keys,
            id: id.clone(),
            record,
            engine: serve::engine_options(&args.engine),
            step_deadline: Duration::from_secs_f64(args.step_deadline),
            lease: LEASE,
        };
        let switch = Switch::default();
        let (status, _) = watch::channel(node::Status::default());
        let (leave, leaving) = watch::channel(false);
        let (closing, closed) = watch::channel(false);
        let files = WorkerServer::new(Files::of(&args.weights.model));
        let routes = Routes::new(switch.clone().into_server()).add_service(files);
        let server = tokio::spawn(serve_grpc(routes, socket, turned(closed)));
        println!("rein: worker {id} listening on {}", at(listening.port()));
        let mut stop = StopSignals::new()?;
        let mut node = tokio::spawn(node::run(store, options, work, Arc::new(listener), switch, status, leaving));
        tokio::select! {
            ended = &mut node => ended?,
            signal = stop.next() => {
                tracing::info!(signal, "leaving: open sequences finish or go on elsewhere");
                leave.send_replace(true);
                tokio::select! {
                    ended = &mut node => ended?,
                    _ = stop.next() => tracing::warn!("told twice: leaving at once"),
                }
            }
        }
        closing.send_replace(true);
        if let Ok(served) = tokio::time::timeout(CLOSE_TIME, server).await {
            served??;
        }
        println!("rein: stopped");
        Ok(())
    })
}

/// What executes steps, the model's shape, the ranks that there is room for, and the served name.
fn work(args: &WorkerArgs) -> Result<(Work, ModelShape, usize, String), Box<dyn Error>> {
    let dir = &args.weights.model;
    match args.engine.engine {
        EngineKind::Cpu => {
            let model = Model::open(dir, &load::engine_options(&args.weights, &args.engine))?;
            let (shape, group_size) = (model.shape(), usize::from(args.group_size));
            let most = model.most_ranks(args.devices.len(), group_size)?;
            let name = args.engine.served_name.clone().unwrap_or_else(|| model.name());
            Ok((Work::Model(Arc::new(model)), shape, most, name))
        }
        EngineKind::Sim => {
            if !args.weights.is_default() || args.group_size != 1 {
                let what = "--dtype, --quantize, --threads and --group-size do not go with it";
                return Err(format!("--engine sim loads no weights and has one rank: {what}").into());
            }
            let overrides = Overrides {
                name: args.engine.served_name.clone(),
                max_context: args.engine.max_context.map(|n| n as usize),
                ..Overrides::default()
            };
            let text = TextModel::load(dir, &overrides)?;
            let (name, engine) = (text.name.clone(), args.engine.clone());
            let make = move || Box::new(serve::sim(&engine, &text)) as Box<dyn Executor>;
            let shape = ModelShape { attention_heads: 1, kv_heads: 1, experts: Vec::new() };
            Ok((Work::Sim(Arc::new(make)), shape, 1, name))
        }
    }
}

/// Of all that the workers of a group must have in common.
fn fingerprint(args: &WorkerArgs) -> Result<String, Box<dyn Error>> {
    let dir = &args.weights.model;
    let config = dir.join("config.json");
    let mut text = std::fs::read(&config).map_err(|e| format!("{}: {e}", config.display()))?;
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(|e| format!("{}: {e}", dir.display()))? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.ends_with(".safetensors") || name.starts_with("tokenizer") || name.starts_with("tiktoken") {
            files.push(format!("{name} {}", entry.metadata()?.len()));
        }
    }
    files.sort();
    let WorkerArgs { weights, engine, .. } = args;
    let how = (weights.dtype, weights.quantize, engine.engine, engine.block_size, engine.max_context);
    text.extend(format!("{files:?} {how:?} {}", args.devices.len()).bytes());
    // FNV-1a, which is the same in every build.
    let hash = text.iter().fold(0xcbf2_9ce4_8422_2325u64, |h, &b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
    Ok(format!("{hash:016x}"))
}
