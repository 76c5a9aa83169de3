//! The command `rein controller`: runs a controller and its metrics page. It does not decide.

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use prometheus_client::registry::Registry;
use rein_control_plane::decide::ControllerSettings;
use rein_control_plane::rebalance::Rebalance;
use rein_control_plane::{ClusterView, ControllerOptions, ControllerStats, controller};
use rein_router::metrics::{NO_LABELS, on_scrape};

use super::page::{MetricsSocket, StatusPage};
use super::status::{state, worker_state};
use super::{id, keys, store};
use crate::args::ControllerArgs;
use crate::listen::StopSignals;
use crate::tls::{self, Certificate};
use crate::{metrics, terminal};

pub fn run(args: ControllerArgs) -> Result<(), Box<dyn Error>> {
    let (keys, store) = (keys(&args.cluster)?, store(&args.cluster)?);
    let every = Duration::from_secs(args.rebalance_every);
    let rebalance = (!every.is_zero()).then_some(Rebalance { above: args.rebalance_above, every });
    let settings = ControllerSettings { spares: args.spares, rebalance };
    let stats = Arc::new(ControllerStats::default());
    let options = ControllerOptions {
        id: id(&args.id, std::process::id())?,
        release: super::release(),
        settings,
        stats: stats.clone(),
    };
    let certificates: Vec<Certificate> = super::etcd_certificate(&args.cluster)?.into_iter().collect();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        super::check_access(&args.cluster, &*store, &keys).await?;
        let mut stop = StopSignals::new()?;
        drop(tls::watch(certificates.clone()));
        let http = MetricsSocket::new(args.http.as_ref()).await?;
        let page = StatusPage {
            metrics: metrics(&stats, certificates.clone()),
            // A standby is ready too, so that a rolling update can continue.
            ready: Box::new(move || match (stats.view(|_| ()), stats.active()) {
                (None, _) => Err("the store has not been read yet"),
                (Some(()), true) => Ok("active"),
                (Some(()), false) => Ok("standby"),
            }),
        };
        let http = http.open(page)?;
        terminal::out(format_args!("rein: controller {} of cluster {}", options.id, args.cluster.cluster));
        let (leave, left) = tokio::sync::oneshot::channel::<()>();
        let mut running = tokio::spawn(controller::run(store, keys, options, async {
            // The sender lives until then.
            let _ = left.await;
        }));
        tokio::select! {
            ended = &mut running => ended?,
            _ = stop.next() => {
                drop(leave);
                running.await?;
            }
        }
        if let Some(http) = http {
            http.close().await;
        }
        terminal::out("rein: stopped");
        Ok(())
    })
}

const GROUPS: [&str; 4] = ["serving", "loading", "broken", "draining"];
const WORKERS: [&str; 3] = ["seated", "spare", "draining"];

fn metrics(stats: &Arc<ControllerStats>, certificates: Vec<Certificate>) -> Registry {
    let mut registry = Registry::default();
    metrics::register(&mut registry, certificates);
    stats.register(&mut registry);
    let stats = stats.clone();
    on_scrape(&mut registry, move |samples| {
        let (groups, workers, routers) = stats.view(seen).unwrap_or_default();
        let states = |states: &'static [&'static str], seen: Counts| {
            states.iter().map(move |state| ([("state", *state)], seen.get(state).copied().unwrap_or(0)))
        };
        let help = "Groups by state: `serving`, `loading`, `broken`, `draining`";
        samples.gauge("rein_controller_groups", help, states(&GROUPS, groups))?;
        let help = "Workers by state: `seated`, `spare`, `draining`";
        samples.gauge("rein_controller_workers", help, states(&WORKERS, workers))?;
        samples.gauge("rein_controller_routers", "Registered routers", [(NO_LABELS, routers)])
    });
    registry
}

type Counts = BTreeMap<&'static str, usize>;

/// Counts of groups and workers by state, and of routers.
fn seen(view: &ClusterView) -> (Counts, Counts, usize) {
    let (mut groups, mut workers) = (Counts::new(), Counts::new());
    for group in view.groups.values() {
        *groups.entry(state(group)).or_default() += 1;
    }
    for (id, worker) in &view.workers {
        *workers.entry(worker_state(view, id, worker)).or_default() += 1;
    }
    (groups, workers, view.routers.len())
}

#[cfg(test)]
mod tests;
