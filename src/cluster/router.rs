//! `rein router`.

use std::collections::HashMap;
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use rein_control_plane::records::{RouterRecord, encode};
use rein_control_plane::{Session, limits::LEASE};
use rein_router::members::{Dial, Fleet};
use rein_router::textmodel::Overrides;
use rein_router::{Router, RouterConfig};
use tokio::time::interval;

use super::links::Links;
use super::{id, keys, store};
use crate::args::RouterArgs;
use crate::edge::{self, Listeners};
use crate::listen::CLOSE_TIME;
use crate::tls::Peers;

/// How often the router tells the cluster what it has to do.
const TELL: Duration = Duration::from_secs(2);

pub fn run(args: RouterArgs) -> Result<(), Box<dyn Error>> {
    let (keys, store) = (keys(&args.cluster)?, store(&args.cluster)?);
    let links = Links::new(Peers::open(&args.peer)?)?;
    let policy = edge::policy(&args.edge)?;
    let overrides = Overrides { template: args.edge.chat_template.clone(), ..Overrides::from_env()? };
    let mut texts = HashMap::new();
    for dir in &args.model {
        let whole = dir.canonicalize().map_err(|e| format!("--model: {}: {e}", dir.display()))?;
        let name = whole.file_name().ok_or_else(|| format!("--model: {} has no name", dir.display()))?;
        texts.insert(name.to_string_lossy().into_owned(), whole);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let listeners = Listeners::bind(&args.edge).await?;
        let (http, grpc) = (listeners.http.local_addr()?, listeners.grpc.local_addr()?);
        let id = id(&args.id, http.port())?;
        let dial: Dial = Arc::new(move |address| links.dial(address));
        let hedge_after = args.hedge_after.map(Duration::from_millis);
        let router = Router::open(RouterConfig { policy: args.policy, hedge_after, ..edge::config(&args.edge)? })?;
        let fleet = Fleet { store: store.clone(), keys: keys.clone(), id: id.clone(), dial, policy, texts, overrides };
        let following = {
            let router = router.clone();
            tokio::spawn(async move { router.follow(fleet).await })
        };
        let session = Arc::new(Session::new(store, &id, LEASE));
        let tell = {
            let (router, session, key) = (router.clone(), session.clone(), keys.router(&id));
            move |draining| {
                let in_flight = router.in_flight();
                let record = RouterRecord { http: http.to_string(), grpc: grpc.to_string(), in_flight, draining };
                session.put(key.clone(), encode(&record));
            }
        };
        let telling = {
            let tell = tell.clone();
            tokio::spawn(async move {
                let mut ticks = interval(TELL);
                loop {
                    ticks.tick().await;
                    tell(false);
                }
            })
        };
        let leaving = async {
            telling.abort();
            tell(true);
        };
        let served = listeners
            .serve(&router, Duration::from_secs(args.edge.drain_seconds), leaving, std::future::ready(()))
            .await;
        following.abort();
        telling.abort();
        drop(tell);
        // Nobody else holds it now, but for a task that has not noticed yet: then the keys expire.
        if let Ok(session) = Arc::try_unwrap(session) {
            let _ = tokio::time::timeout(CLOSE_TIME, session.leave()).await;
        }
        served
    })
}
