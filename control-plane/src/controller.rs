//! The controller's process: of several one is active, and what that one decides it writes on the condition that it
//! still is.

use std::{
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use tokio::time::{Instant, sleep, sleep_until};

use crate::{
    decide::{Controller, Settings},
    election::campaign,
    limits,
    mirror::Mirror,
    records::{Keys, Release},
    retry::Backoff,
    session::Session,
    store::{Snapshot, Store, StoreError},
    tally::Tally,
    view::View,
};

#[derive(Debug, Clone)]
pub struct ControllerOptions {
    /// Among the controllers of the cluster.
    pub id: String,
    pub release: Release,
    pub settings: Settings,
    /// What it does is told here.
    pub tally: Arc<Tally>,
}

/// Stands for election, and decides while elected, until `left`: then another one can take over at once.
pub async fn run(store: Arc<dyn Store>, keys: Keys, options: ControllerOptions, left: impl Future<Output = ()>) {
    let session = Session::new(store.clone(), &options.id, limits::LEASE);
    let mirror = Mirror::new(store.clone(), &options.id, keys.root());
    options.tally.follows(&keys, &mirror);
    tokio::select! {
        () = left => {}
        () = reign(store, &keys, &options, &session, &mirror) => {}
    }
    session.leave().await;
}

async fn reign(store: Arc<dyn Store>, keys: &Keys, options: &ControllerOptions, session: &Session, mirror: &Mirror) {
    loop {
        let held = session.held();
        let leadership =
            campaign(store.clone(), mirror, &held, &keys.controller(), &options.id, &options.release).await;
        options.tally.stands(true);
        tracing::info!(id = options.id, "this controller is the active one");
        let decide = async {
            let mut backoff = Backoff::new(&options.id);
            let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            let mut controller = Controller::new(keys.clone(), options.settings, since_1970.as_millis() as u64);
            let (mut view, mut mirror) = (View::default(), mirror.clone());
            let began = Instant::now();
            // What has been written and not been seen yet.
            let mut written = 0;
            let mut snapshot: Arc<Snapshot> = mirror.read().await;
            let mut tried = false;
            loop {
                if snapshot.revision < view.revision {
                    // The store has begun anew.
                    written = 0;
                }
                if snapshot.revision >= written {
                    let news = view.update(keys, &snapshot);
                    let now = began.elapsed();
                    let due = controller.wake().is_some_and(|wake| wake <= now);
                    // Load changes all the time; it counts where somebody waits for sequences to end.
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
                                options.tally.decided(decision.kind);
                                written = revision;
                                backoff.reset();
                            }
                            Ok(None) => tracing::debug!(decision.why, "overtaken"),
                            Err(error) => {
                                tracing::warn!(decision.why, %error, "cannot be written");
                                if let StoreError::Unavailable(_) = error {
                                    // The others would wait as long, one after the other, and be of an old view by then.
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
                    // What could not be written is tried again also if nothing changes.
                    () = backoff.wait(), if tried => {}
                }
                // A burst of changes is looked at once.
                sleep(limits::BURST).await;
                snapshot = mirror.read().await;
            }
        };
        tokio::select! {
            () = leadership.lost(mirror, &held) => {}
            () = decide => {}
        }
        options.tally.stands(false);
        tracing::warn!(id = options.id, "this controller is no longer the active one");
    }
}

async fn wake_at(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}
