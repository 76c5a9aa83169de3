//! The controller process. Several may run; one is elected, and each of its writes is conditional on still being the
//! elected one.
//!
//! This module does not know what is decided, see [`crate::decide`].

use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use tokio::time::{Instant, sleep, sleep_until};

use crate::{
    backoff::Backoff,
    decide::{Controller, ControllerSettings},
    election::campaign,
    limits,
    mirror::Mirror,
    records::{Keys, Release},
    session::Session,
    stats::ControllerStats,
    store::{Snapshot, Store, StoreError},
    view::ClusterView,
};

#[derive(Debug, Clone)]
pub struct ControllerOptions {
    /// Unique among the controllers of the cluster.
    pub id: String,
    pub release: Release,
    pub settings: ControllerSettings,
    /// Filled in while the controller runs.
    pub stats: Arc<ControllerStats>,
}

/// Stands for election and decides while elected. When `stop` completes, it gives up the leadership, so that another
/// controller can take over at once.
pub async fn run(store: Arc<dyn Store>, keys: Keys, options: ControllerOptions, stop: impl Future<Output = ()>) {
    let session = Session::new(store.clone(), &options.id, limits::LEASE);
    let mirror = Mirror::new(store.clone(), &options.id, keys.root());
    options.stats.observe(&keys, &mirror);
    tokio::select! {
        () = stop => {}
        () = run_elected(store, &keys, &options, &session, &mirror) => {}
    }
    session.leave().await;
}

async fn run_elected(
    store: Arc<dyn Store>,
    keys: &Keys,
    options: &ControllerOptions,
    session: &Session,
    mirror: &Mirror,
) {
    loop {
        let held = session.held();
        let leadership =
            campaign(store.clone(), mirror, &held, &keys.controller(), &options.id, &options.release).await;
        options.stats.set_active(true);
        tracing::info!(id = options.id, "this controller is active");
        let decide = async {
            let mut backoff = Backoff::new(&options.id);
            let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
            let mut controller = Controller::new(keys.clone(), options.settings, since_1970.as_millis() as u64);
            let (mut view, mut mirror) = (ClusterView::default(), mirror.clone());
            let began = Instant::now();
            // The revision of the last write, which the mirror may not have seen yet.
            let mut written = 0;
            let mut snapshot: Arc<Snapshot> = mirror.read().await;
            let mut tried = false;
            loop {
                if snapshot.point().is_after_reset(view.point) {
                    // The store was reset.
                    written = 0;
                }
                if snapshot.revision >= written {
                    let news = view.update(keys, &snapshot);
                    let now = began.elapsed();
                    let due = controller.wake().is_some_and(|wake| wake <= now);
                    // Load changes all the time. It matters only while a group drains.
                    let drains =
                        || view.groups.values().filter_map(|group| group.record()).any(|record| record.draining);
                    let decide = news || due || tried || drains();
                    let decisions = if decide { controller.decide(&view, now) } else { Vec::new() };
                    tried = false;
                    for decision in decisions {
                        tried = true;
                        let transaction = decision.transaction.when(leadership.condition());
                        match store.commit(transaction).await {
                            Ok(Some(revision)) => {
                                tracing::info!("{}", decision.why);
                                options.stats.decided(decision.kind);
                                written = revision;
                                backoff.reset();
                            }
                            Ok(None) => tracing::debug!(
                                decision.why,
                                "the decision was not written: a key that it depends on has changed"
                            ),
                            Err(error) => {
                                tracing::warn!(decision.why, %error, "cannot write the decision; trying again");
                                if let StoreError::Unavailable(_) = error {
                                    // The other writes would time out one after the other and be outdated by then.
                                    break;
                                }
                            }
                        }
                    }
                }
                let wake = controller.wake().map(|at| began + at);
                tokio::select! {
                    biased;
                    _ = mirror.changed() => {}
                    () = wake_at(wake) => {}
                    // Retries what could not be written, also if nothing changes.
                    () = backoff.wait(), if tried => {}
                }
                // Handles a burst of changes as one.
                sleep(limits::CHANGE_BURST).await;
                snapshot = mirror.read().await;
            }
        };
        // While the store is out of reach, nobody knows whether it still leads.
        let watched = async {
            loop {
                sleep(limits::ACTIVE_CHECK).await;
                let leads = held.borrow().until.is_some_and(|until| Instant::now() < until);
                options.stats.set_active(leads);
            }
        };
        tokio::select! {
            () = leadership.lost(mirror, &held) => {}
            () = decide => {}
            () = watched => {}
        }
        options.stats.set_active(false);
        tracing::warn!(id = options.id, "this controller is no longer active");
    }
}

async fn wake_at(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}
