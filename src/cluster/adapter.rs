//! The command `rein adapter`: joins a cluster with an engine that is already there. It does not compute.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use prometheus_client::registry::Registry;
use rein_adapter::AdapterService;
use rein_control_plane::Session;
use rein_control_plane::limits::LEASE;
use rein_control_plane::records::{EngineRecord, decode};
use rein_proto::internal::worker_server::WorkerServer;
use rein_router::metrics::on_scrape;
use rein_text::model_text::ModelOverrides;
use rein_worker::checkpoint::content_hash;
use rein_worker::limits::READ_TIMEOUT;
use rein_worker::node::TextFiles;
use tokio::sync::watch;
use tokio::time::timeout;
use tonic::service::Routes;

use super::engines::{self, EngineIdentity, FrontedModel, ObservedEngine};
use super::page::{MetricsSocket, StatusPage};
use super::worker::OPEN_GRPC;
use super::{advertised, id, keys, store, warn_if_open};
use crate::args::AdapterArgs;
use crate::listen::{CLOSE_TIME, StopSignals, WriteTimeout, bind, serve_grpc, wait_until_true};
use crate::tls::{self, Certificate, Peers};
use crate::{metrics, terminal};

/// How often the store is asked who holds this adapter's id.
const CONFLICT_INTERVAL: Duration = Duration::from_secs(1);

pub fn run(args: AdapterArgs) -> Result<(), Box<dyn Error>> {
    let (keys, store) = (keys(&args.cluster)?, store(&args.cluster)?);
    let peers = Peers::open(&args.peer)?;
    let engine = &args.fronted;
    let model =
        FrontedModel::load(&engine.model, engine.served_name.clone(), engine.max_context, ModelOverrides::from_env()?)?;
    let files = TextFiles::read(&engine.model, READ_TIMEOUT).map_err(|error| format!("--model: {error}"))?;
    let http = engines::client(&engine.engine, &engine.client)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let page = MetricsSocket::new(args.network.http.as_ref()).await?;
        let socket = bind("--listen", &args.network.listen).await?;
        let address = socket.local_addr()?;
        if peers.is_none() {
            warn_if_open("--listen", address, OPEN_GRPC);
        }
        let id = id(&args.id, address.port())?;
        let mut stop = StopSignals::new()?;
        let joined = tokio::select! {
            joined = engines::wait_for_engine(&http, &engine.engine, &model.deployment) => joined?,
            _ = stop.next() => return Ok(()),
        };
        engines::warn_without_cache(&joined, engine.engine.url.as_str());
        let kind = joined.kind(engine.engine.dialect);
        let options = engines::adapter_options(&engine.engine, &engine.client);
        let service = AdapterService::start(http, engine.engine.dialect, model.deployment, joined, options);
        let identity = EngineIdentity {
            key: keys.engine(&id),
            address: advertised(&args.network.advertise, address)?,
            text: text_hash(&files),
            revision: model.text.revision.clone(),
        };
        let (closing, closed) = watch::channel(false);
        let routes = Routes::new(service.clone().into_server()).add_service(WorkerServer::new(files));
        let server = tokio::spawn(serve_grpc(
            routes,
            socket,
            peers.as_ref().map(Peers::server),
            WriteTimeout::default(),
            wait_until_true(closed),
        ));
        let certificates: Vec<Certificate> =
            peers.iter().map(Peers::certificate).chain(super::etcd_certificate(&args.cluster)?).collect();
        let page = page.open(status_page(service.clone(), &id, certificates))?;
        terminal::out(format_args!("rein: adapter {id} listening on {address}, for {kind}"));
        let session = Arc::new(Session::of_record(store, &id, LEASE, keys.engine(&id), |value| {
            decode::<EngineRecord>(value).is_ok()
        }));
        let (drain, draining) = watch::channel(false);
        let publishing = tokio::spawn(engines::publish(service.clone(), session.clone(), identity, draining));
        let ended: Result<(), Box<dyn Error>> = tokio::select! {
            why = id_conflict(&id, &session) => Err(why.into()),
            signal = stop.next() => {
                tracing::info!(signal, "draining: open sequences finish, or resume on another engine");
                drain.send_replace(true);
                tokio::select! {
                    () = service.drain() => {}
                    () = tokio::time::sleep(Duration::from_secs(args.network.drain_seconds)) => {
                        tracing::warn!("the drain time is over; open sequences resume on another engine");
                    }
                    _ = stop.next() => tracing::warn!("second signal: stopping at once"),
                }
                Ok(())
            }
        };
        publishing.abort();
        // An aborted task may still hold the session. Then its keys are not deleted but expire.
        let _ = publishing.await;
        if let Ok(session) = Arc::try_unwrap(session) {
            let _ = timeout(CLOSE_TIME, session.leave()).await;
        }
        closing.send_replace(true);
        let _ = timeout(CLOSE_TIME, server).await;
        if let Some(page) = page {
            page.close().await;
        }
        terminal::out("rein: stopped");
        ended
    })
}

/// Routers that know the text files of one group know those of all with the same hash.
fn text_hash(files: &TextFiles) -> String {
    let parts = files.iter().flat_map(|(path, bytes)| [path.as_bytes(), bytes]);
    let hashes: Vec<u8> = parts
        .flat_map(|part| [(part.len() as u64).to_le_bytes(), content_hash(part).to_le_bytes()])
        .flatten()
        .collect();
    format!("{:016x}", content_hash(&hashes))
}

/// Returns if another adapter holds this one's id.
async fn id_conflict(id: &str, session: &Session) -> String {
    let mut held = session.held();
    loop {
        if let Some(value) = held.borrow_and_update().name_taken_by(LEASE) {
            let address =
                decode::<EngineRecord>(value).map_or_else(|_| "an unknown address".into(), |record| record.address);
            return format!("--id: adapter id {id} is in use at {address}; choose a unique id");
        }
        // The duration for which the id has been held changes without an event.
        let _ = timeout(CONFLICT_INTERVAL, held.changed()).await;
    }
}

fn status_page(service: AdapterService, id: &str, certificates: Vec<Certificate>) -> StatusPage {
    drop(tls::watch(certificates.clone()));
    let mut registry = Registry::default();
    metrics::register(&mut registry, certificates);
    let observed = [ObservedEngine { service: service.clone(), name: format!("engines/{id}") }];
    on_scrape(&mut registry, move |samples| {
        engines::write_metrics(samples, &observed)?;
        let labels = || {
            observed.iter().map(|engine| {
                let model = engine.service.joined().served_name.clone();
                ([("model", model), ("engine", engine.name.clone())], engine.service.engine_stats())
            })
        };
        samples.engines("rein_engine", labels)
    });
    let ready = move || match &*service.lost().borrow() {
        None => Ok("the engine answers"),
        Some(_) => Err("the engine does not answer"),
    };
    StatusPage { metrics: registry, ready: Box::new(ready) }
}
