//! Whether this worker's ranks could link with those of its peers: tried again and again, so that the controller knows before
//! it gives anybody a seat.

use std::collections::BTreeMap;
use std::sync::Arc;

use rein_control_plane::limits::BURST;
use rein_control_plane::reach::{Attempt, LinkReport, peers};
use rein_control_plane::records::{Keys, WorkerRecord};
use rein_control_plane::{Mirror, Snapshot, Store, View};
use rein_kernels::collective::tcp::{Listener, ProbeError};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::limits::{PROBE_AGAIN, PROBE_LATE, PROBE_RETRY, PROBE_TIME, PROBE_WORDS};

/// Tries until it is dropped.
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
    pub fn start(store: Arc<dyn Store>, keys: &Keys, id: &str, listener: Arc<Listener>) -> Self {
        listener.introduce(&keys.worker(id));
        let (says, report) = watch::channel(LinkReport::default());
        let workers = Mirror::new(store, id, keys.workers());
        let prober = Prober {
            keys: keys.clone(),
            id: id.to_owned(),
            listener,
            view: View::default(),
            known: BTreeMap::new(),
            says,
        };
        Probing { report, task: tokio::spawn(prober.run(workers)).abort_handle() }
    }

    /// The next report that differs from the last one.
    pub async fn changed(&mut self) -> LinkReport {
        match self.report.changed().await {
            Ok(()) => self.report.borrow_and_update().clone(),
            // It tries as long as this is there.
            Err(_) => std::future::pending().await,
        }
    }
}

/// A peer, and what was found.
struct Peer {
    incarnation: u64,
    mesh: String,
    /// None: it has not been tried yet.
    found: Option<Result<(), String>>,
    trying: bool,
    due: Instant,
}

struct Prober {
    keys: Keys,
    id: String,
    listener: Arc<Listener>,
    view: View,
    known: BTreeMap<String, Peer>,
    says: watch::Sender<LinkReport>,
}

/// What came of trying the peer of this id and incarnation.
type Tried = (String, u64, Result<(), String>);

impl Prober {
    async fn run(mut self, mut workers: Mirror) {
        let mut trying: JoinSet<Tried> = JoinSet::new();
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
            let due = waiting.map(|peer| peer.due).min().unwrap_or(now + PROBE_AGAIN);
            tokio::select! {
                _ = workers.changed() => {
                    // A burst of changes is looked at once.
                    sleep(BURST).await;
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

    /// Forgets peers that are gone, or are others now.
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

    fn take(&mut self, (id, incarnation, found): Tried) {
        let Some(peer) = self.known.get_mut(&id).filter(|peer| peer.incarnation == incarnation) else { return };
        match (&peer.found, &found) {
            (Some(Err(before)), Err(why)) if before == why => {}
            (_, Err(why)) => tracing::warn!(peer = id, why, "cannot link with a peer"),
            (Some(Err(_)), Ok(())) => tracing::info!(peer = id, "can link with a peer again"),
            _ => {}
        }
        peer.due = Instant::now() + if found.is_ok() { PROBE_AGAIN } else { PROBE_RETRY };
        (peer.trying, peer.found) = (false, Some(found));
    }

    fn report(&self) {
        let tried = self.known.iter().filter_map(|(id, peer)| {
            let found = peer.found.as_ref()?;
            Some((id.clone(), Attempt { incarnation: peer.incarnation, failure: found.as_ref().err().cloned() }))
        });
        let report = LinkReport { tried: tried.collect() };
        self.says.send_if_modified(|said| {
            let news = *said != report;
            *said = report;
            news
        });
    }
}

async fn attempt(listener: Arc<Listener>, name: String, id: String, incarnation: u64, mesh: String) -> Tried {
    let probe = {
        let mesh = mesh.clone();
        tokio::task::spawn_blocking(move || listener.probe(&mesh, &name, PROBE_TIME))
    };
    // Only the name of a host takes longer.
    let found = match timeout(PROBE_TIME + PROBE_LATE, probe).await {
        Ok(Ok(found)) => found.map_err(|error: ProbeError| error.to_string()),
        Ok(Err(panic)) => Err(format!("trying {mesh} failed: {panic}")),
        Err(_) => Err(format!("the host of {mesh} is not found in time")),
    };
    (id, incarnation, found.map_err(|why| why.chars().take(PROBE_WORDS).collect()))
}
