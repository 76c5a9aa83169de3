//! The command `rein router`: runs a router in a cluster. It does not route.

use std::collections::HashMap;
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use rein_control_plane::records::{RouterRecord, decode, encode};
use rein_control_plane::{Session, SessionState, limits::LEASE};
use rein_router::admission::keys::LimitStore;
use rein_router::fleet::membership::Dial;
use rein_router::seal::Seal;
use rein_router::{FleetConfig, OwnTexts, ResponsesStoreMode, Router, RouterConfig};
use rein_text::model_text::ModelOverrides;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{interval, timeout};

use super::links::WorkerLinks;
use super::{id, keys, milliseconds_since_1970, store};
use crate::api_server::{self, Listeners};
use crate::args::RouterArgs;
use crate::banner::Banner;
use crate::listen::CLOSE_TIME;
use crate::model_dir;
use crate::tls::{Certificate, Peers};

/// How often the router publishes its record.
const PUBLISH_INTERVAL: Duration = Duration::from_secs(2);

/// Returns if another router holds this one's id from the start. Later a conflict is only logged, so that open requests
/// are not lost.
async fn id_conflict(id: String, mut held: watch::Receiver<SessionState>) -> String {
    let (mut registered, mut logged) = (false, false);
    loop {
        let now = held.borrow_and_update().clone();
        registered = registered || now.applied > 0;
        if let Some(value) = now.name_taken_by(LEASE) {
            let address =
                decode::<RouterRecord>(value).map_or_else(|_| "an unknown address".into(), |record| record.http);
            let why = format!("--id: router id {id} is in use at {address}; choose a unique id");
            if !registered {
                return why;
            }
            if !std::mem::replace(&mut logged, true) {
                tracing::error!("{why}");
            }
        }
        // The duration for which the id has been held changes without an event.
        let _ = timeout(PUBLISH_INTERVAL, held.changed()).await;
    }
}

pub fn run(args: RouterArgs) -> Result<(), Box<dyn Error>> {
    if !args.front.engine.is_empty() {
        return super::front::run(args);
    }
    let (keys, store) = (keys(&args.cluster)?, store(&args.cluster)?);
    let peers = Peers::open(&args.peer)?;
    let links = WorkerLinks::new(peers.clone())?;
    let etcd_certificate = super::etcd_certificate(&args.cluster)?;
    let tool_calls = &args.api.tool_calls;
    let policy = api_server::policy(tool_calls)?;
    let overrides = ModelOverrides { template: tool_calls.chat_template.clone(), ..ModelOverrides::from_env()? };
    let mut texts = HashMap::new();
    for dir in &args.model {
        model_dir::check(dir)?;
        let whole = dir.canonicalize().map_err(|e| format!("--model: {}: {e}", dir.display()))?;
        let last = || whole.file_name().map(|name| name.to_string_lossy().into_owned());
        let name = rein_hub::name_of(&whole).or_else(last);
        let name = name.ok_or_else(|| format!("--model: {} has no directory name", dir.display()))?;
        if texts.insert(name.clone(), whole).is_some() {
            return Err(format!("--model: two directories have the name {name}; names must be unique").into());
        }
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        super::check_access(&args.cluster, &*store, &keys).await?;
        let listeners = Listeners::bind(&args.api).await?;
        let (http, grpc) = (listeners.http.local_addr()?, listeners.grpc.local_addr()?);
        let id = id(&args.id, http.port())?;
        let dial: Dial = Arc::new(move |address| links.dial(address));
        let hedge_after = args.hedge_after.map(Duration::from_millis);
        let certificates: Vec<Certificate> = peers.iter().map(Peers::certificate).chain(listeners.certificate()).chain(etcd_certificate).collect();
        let process_metrics = api_server::process_metrics(certificates.clone());
        let seal = Seal::default();
        let sealing = tokio::spawn(super::seal::share(seal.clone(), store.clone(), keys.seal()));
        let base = api_server::config(&args.api, ResponsesStoreMode::Off)?;
        let expected_models = args.expect;
        let expects = expected_models.clone();
        let memory = api_server::memory(&args.api.admission, 0);
        let config = RouterConfig { policy: args.policy, expected_models, hedge_after, process_metrics, seal, memory, ..base };
        let router = Router::open(config)?;
        let session = Arc::new(Session::of_record(store.clone(), &id, LEASE, keys.router(&id), |value| decode::<RouterRecord>(value).is_ok()));
        let renewals = Some(session.renewals());
        let fleet = FleetConfig { store: store.clone(), keys: keys.clone(), id: id.clone(), renewals, dial, policy, texts: OwnTexts::Named(texts), overrides };
        let sharing = args.api.admission.api_keys.is_some().then(|| {
            let (router, session) = (router.clone(), session.held());
            let with = LimitStore { store: store.clone(), keys: keys.clone(), router: id.clone(), session, clock: milliseconds_since_1970 };
            tokio::spawn(async move { router.share_limits(with).await })
        });
        let following = {
            let router = router.clone();
            tokio::spawn(async move { router.follow(fleet).await })
        };
        let conflict = id_conflict(id.clone(), session.held());
        let publish = {
            let (router, session, key) = (router.clone(), session.clone(), keys.router(&id));
            move |draining| {
                let (in_flight, lost_calls) = (router.in_flight(), router.lost_calls());
                let (http, grpc) = (http.to_string(), grpc.to_string());
                let expires = certificates.iter().filter_map(Certificate::until).min();
                let (expects, release) = (expects.clone(), super::release());
                let record = RouterRecord { http, grpc, in_flight, draining, expects, expires, lost_calls, release };
                session.put(key.clone(), encode(&record));
            }
        };
        let publishing = {
            let publish = publish.clone();
            tokio::spawn(async move {
                let mut ticks = interval(PUBLISH_INTERVAL);
                loop {
                    ticks.tick().await;
                    publish(false);
                }
            })
        };
        let leaving = async {
            publishing.abort();
            publish(true);
            router.drain().await;
        };
        let drain = Duration::from_secs(args.api.network.drain_seconds);
        let banner = Banner::new(&format!("is router {id} of cluster {}", args.cluster.cluster));
        let served = tokio::select! {
            served = listeners.serve(&router, banner, drain, leaving, std::future::ready(()), std::future::pending()) => served,
            why = conflict => Err(why.into()),
        };
        following.abort();
        sealing.abort();
        sharing.inspect(JoinHandle::abort);
        publishing.abort();
        drop(publish);
        // An aborted task may still hold the session. Then its keys are not deleted but expire.
        if let Ok(session) = Arc::try_unwrap(session) {
            let _ = tokio::time::timeout(CLOSE_TIME, session.leave()).await;
        }
        served
    })
}
