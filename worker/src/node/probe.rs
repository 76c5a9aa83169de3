//! Probes repeatedly whether this worker's ranks could link with those of its peers, so that the controller knows
//! before it assigns seats. It does not know seats.

use std::collections::BTreeMap;
use std::sync::Arc;

use rein_control_plane::connectivity::peers;
use rein_control_plane::limits::CHANGE_BURST;
use rein_control_plane::records::{Keys, WorkerRecord};
use rein_control_plane::records::{LinkAttempt, LinkReport};
use rein_control_plane::{ClusterView, Mirror, Snapshot, Store};
use rein_kernels::collective::tcp::{ProbeError, RankListener};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::limits::{PROBE_INTERVAL, PROBE_LATE, PROBE_RETRY, PROBE_TIME, PROBE_WORDS};

/// Probes until it is dropped.
pub struct Probing {
    report: watch::Receiver<LinkReport>,
    task: AbortHandle,
}

impl Drop for Probing {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Probing {
    pub fn start(store: Arc<dyn Store>, keys: &Keys, id: &str, listener: Arc<RankListener>) -> Self {
        listener.register(&keys.worker(id));
        let (says, report) = watch::channel(LinkReport::default());
        let workers = Mirror::new(store, id, keys.workers());
        let prober = Prober {
            keys: keys.clone(),
            id: id.to_owned(),
            listener,
            view: ClusterView::default(),
            known: BTreeMap::new(),
            says,
        };
        Probing { report, task: tokio::spawn(prober.run(workers)).abort_handle() }
    }

    /// The next report that differs from the last one.
    pub async fn changed(&mut self) -> LinkReport {
        match self.report.changed().await {
            Ok(()) => self.report.borrow_and_update().clone(),
            // The task lives as long as this handle.
            Err(_) => std::future::pending().await,
        }
    }
}

/// A peer and the result of its last probe.
struct Peer {
    incarnation: u64,
    mesh: String,
    /// None: not probed yet.
    found: Option<Result<(), String>>,
    trying: bool,
    due: Instant,
}

struct Prober {
    keys: Keys,
    id: String,
    listener: Arc<RankListener>,
    view: ClusterView,
    known: BTreeMap<String, Peer>,
    says: watch::Sender<LinkReport>,
}

/// The result of a probe: id, incarnation, outcome.
type ProbeResult = (String, u64, Result<(), String>);

impl Prober {
    async fn run(mut self, mut workers: Mirror) {
        let mut trying: JoinSet<ProbeResult> = JoinSet::new();
        loop {
            let now = Instant::now();
            for (id, peer) in self.known.iter_mut().filter(|(_, peer)| !peer.trying && peer.due <= now) {
                peer.trying = true;
                trying.spawn(attempt(
                    self.listener.clone(),
                    self.keys.worker(id),
                    id.clone(),
                    peer.incarnation,
                    peer.mesh.clone(),
                ));
            }
            let waiting = self.known.values().filter(|peer| !peer.trying);
            let due = waiting.map(|peer| peer.due).min().unwrap_or(now + PROBE_INTERVAL);
            tokio::select! {
                _ = workers.changed() => {
                    // Handles a burst of changes as one.
                    sleep(CHANGE_BURST).await;
                    self.follow(&workers.view());
                }
                Some(tried) = trying.join_next() => {
                    if let Ok(tried) = tried {
                        self.take(tried);
                        self.report();
                    }
                }
                () = sleep_until(due) => {}
            }
        }
    }

    /// Forgets peers that are gone or have been replaced.
    fn follow(&mut self, view: &Snapshot) {
        self.view.update(&self.keys, view);
        let workers = &self.view.workers;
        let peers = peers(&self.id, workers);
        self.known.retain(|id, peer| {
            let same = |worker: &WorkerRecord| (worker.incarnation, &worker.mesh) == (peer.incarnation, &peer.mesh);
            peers.contains(&id.as_str()) && workers.get(id).map(Arc::as_ref).is_some_and(same)
        });
        for (id, worker) in peers.into_iter().filter_map(|id| workers.get_key_value(id)) {
            self.known.entry(id.clone()).or_insert_with(|| Peer {
                incarnation: worker.incarnation,
                mesh: worker.mesh.clone(),
                found: None,
                trying: false,
                due: Instant::now(),
            });
        }
        self.report();
    }

    fn take(&mut self, (id, incarnation, found): ProbeResult) {
        let Some(peer) = self.known.get_mut(&id).filter(|peer| peer.incarnation == incarnation) else { return };
        match (&peer.found, &found) {
            (Some(Err(before)), Err(why)) if before == why => {}
            (_, Err(why)) => tracing::warn!(peer = id, why, "cannot link with peer"),
            (Some(Err(_)), Ok(())) => tracing::info!(peer = id, "can link with peer again"),
            _ => {}
        }
        peer.due = Instant::now() + if found.is_ok() { PROBE_INTERVAL } else { PROBE_RETRY };
        (peer.trying, peer.found) = (false, Some(found));
    }

    fn report(&self) {
        let tried = self.known.iter().filter_map(|(id, peer)| {
            let found = peer.found.as_ref()?;
            Some((id.clone(), LinkAttempt { incarnation: peer.incarnation, failure: found.as_ref().err().cloned() }))
        });
        let report = LinkReport { tried: tried.collect() };
        self.says.send_if_modified(|said| {
            let news = *said != report;
            *said = report;
            news
        });
    }
}

async fn attempt(listener: Arc<RankListener>, name: String, id: String, incarnation: u64, mesh: String) -> ProbeResult {
    let probe = {
        let mesh = mesh.clone();
        tokio::task::spawn_blocking(move || listener.probe(&mesh, &name, PROBE_TIME))
    };
    // Only the resolution of a host name takes longer.
    let found = match timeout(PROBE_TIME + PROBE_LATE, probe).await {
        Ok(Ok(found)) => found.map_err(|error: ProbeError| error.to_string()),
        Ok(Err(panic)) => Err(format!("the probe of {mesh} panicked: {panic}")),
        Err(_) => Err(format!("cannot resolve the host of {mesh} in time")),
    };
    (id, incarnation, found.map_err(|why| why.chars().take(PROBE_WORDS).collect()))
}
