//! The readiness of a worker, for rolling restarts. docs/howto/upgrade.md lists the states. It does not know why a
//! group changes.

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use rein_control_plane::records::{Keys, Ready, RouterRecord, decode};
use rein_control_plane::{Mirror, Snapshot, Store};
use rein_proto::internal::engine_server;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::sleep;
use tonic_health::ServingStatus;
use tonic_health::pb::health_server::HealthServer;
use tonic_health::server::{HealthReporter, HealthService};

use super::standing::{CurrentStanding, WorkerStanding};
use super::{EngineSwitch, Membership, Node};

/// How often the listeners of the engine are checked: no event announces them.
const CHECK_INTERVAL: Duration = Duration::from_millis(200);
/// A worker without a seat counts as a ready spare after this time: a new controller assigns seats after `LEASE` and
/// `MEMBER_SETTLE_TIME`, and a worker that is about to load must not look ready.
const SPARE_WAIT: Duration = Duration::from_secs(10);

impl Node {
    /// Publishes the worker's state.
    pub(super) fn publish_standing(&self, leaving: bool) {
        let standing = match &self.now {
            _ if leaving => WorkerStanding::Leaving,
            _ if self.session.held().borrow().name_holder.is_some() => WorkerStanding::Displaced,
            Some(Membership { taken: Some(_), rank: 0, .. }) => WorkerStanding::Leads,
            Some(Membership { taken: Some(_), group, record, .. }) => {
                WorkerStanding::Follows { group: group.clone(), record: record.clone() }
            }
            Some(_) => WorkerStanding::Seating,
            None if self.taking.is_some() || self.pending.is_some() => WorkerStanding::Seating,
            None if self.unavailable_until.is_some() => WorkerStanding::Away,
            None if self.session.held().borrow().lease.is_none() => WorkerStanding::Unknown,
            None => WorkerStanding::Spare,
        };
        self.switch.publish_standing(standing, self.record.seat.epoch);
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadinessVerdict {
    pub ready: bool,
    pub why: &'static str,
}

/// Other inputs of the verdict.
#[derive(Debug, Clone, Copy, Default)]
struct ReadinessInputs {
    /// Time in the current state.
    waited: Duration,
    /// Routers that listen to the engine that it leads.
    listeners: Option<usize>,
    /// Routers of the cluster that accept requests. None: the store has not been read.
    routers: Option<usize>,
    /// Whether all ranks of its group are ready.
    whole: bool,
}

fn assess(standing: &WorkerStanding, sight: ReadinessInputs) -> ReadinessVerdict {
    let (ready, why) = match standing {
        WorkerStanding::Leaving => (false, "the worker is leaving"),
        WorkerStanding::Unknown => (false, "not registered in the store"),
        WorkerStanding::Displaced => (false, "another worker uses its id"),
        WorkerStanding::Away => (false, "loading failed; the worker is unavailable for a while"),
        WorkerStanding::Seating => (false, "taking a seat, or waiting for the controller after its group ended"),
        WorkerStanding::Spare if sight.waited < SPARE_WAIT => (false, "waiting for a seat"),
        WorkerStanding::Spare => (true, "a spare"),
        WorkerStanding::Follows { .. } if sight.whole => (true, "follower in a complete group"),
        WorkerStanding::Follows { .. } => (false, "waiting for other ranks of its group"),
        WorkerStanding::Leads => match (sight.listeners, sight.routers) {
            (None, _) => (false, "the engine is lost"),
            (Some(1..), _) => (true, "leader, and routers are connected"),
            (Some(0), Some(0)) => (true, "leader; the cluster has no routers"),
            (Some(0), _) => (false, "leader, but no router is connected yet"),
        },
    };
    ReadinessVerdict { ready, why }
}

/// Routers that accept requests. A router whose record cannot be decoded counts.
fn routers(snapshot: &Snapshot) -> Option<usize> {
    let drains = |value: &[u8]| decode::<RouterRecord>(value).is_ok_and(|router| router.draining);
    let take = || snapshot.entries.values().filter(|entry| !drains(&entry.value)).count();
    (snapshot.revision > 0).then(take)
}

/// The readiness that a group's members report under their first ranks.
pub(super) fn member_readiness<'a>(
    keys: &'a Keys,
    group: &'a str,
    snapshot: &'a Snapshot,
) -> impl Fn(usize) -> Option<Ready> + 'a {
    move |rank| decode(&snapshot.entries.get(&keys.ready(group, rank))?.value).ok()
}

/// The worker's readiness, as `grpc.health.v1` and for /ready. It is updated while a clone exists; the server alone
/// does not update it.
#[derive(Clone)]
pub struct Readiness {
    verdict: watch::Receiver<ReadinessVerdict>,
    reporter: HealthReporter,
    _task: Arc<ReadinessTask>,
}

struct ReadinessTask(AbortHandle);

impl Drop for ReadinessTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Readiness {
    /// For the worker `id` whose node holds this switch.
    pub fn of(store: Arc<dyn Store>, keys: Keys, id: &str, switch: EngineSwitch) -> Self {
        let reporter = HealthReporter::new();
        // No other task holds the reporter's lock yet, so this does not wait.
        let _ = report(&reporter, false).now_or_never();
        let (verdicts, verdict) = watch::channel(assess(&WorkerStanding::Unknown, ReadinessInputs::default()));
        let check = ReadinessCheck {
            routers: Mirror::new(store.clone(), id, keys.router("")),
            group: None,
            id: id.to_owned(),
            store,
            keys,
            switch,
        };
        let task = tokio::spawn(check.run(verdicts, reporter.clone()));
        Readiness { verdict, reporter, _task: Arc::new(ReadinessTask(task.abort_handle())) }
    }

    pub fn verdict(&self) -> ReadinessVerdict {
        *self.verdict.borrow()
    }

    /// The standard health service. The process and its engine have the same health.
    pub fn into_server(self) -> HealthServer<HealthService> {
        HealthServer::new(HealthService::from_health_reporter(self.reporter))
    }
}

async fn report(reporter: &HealthReporter, ready: bool) {
    let status = if ready { ServingStatus::Serving } else { ServingStatus::NotServing };
    for service in ["", engine_server::SERVICE_NAME] {
        reporter.set_service_status(service, status).await;
    }
}

struct ReadinessCheck {
    store: Arc<dyn Store>,
    keys: Keys,
    id: String,
    switch: EngineSwitch,
    routers: Mirror,
    /// The readiness of the group in which it follows.
    group: Option<(String, Mirror)>,
}

impl ReadinessCheck {
    async fn run(mut self, verdicts: watch::Sender<ReadinessVerdict>, reporter: HealthReporter) {
        let mut standing_updates = self.switch.standing_updates();
        loop {
            let now = standing_updates.borrow_and_update().clone();
            self.follow(&now.standing);
            let verdict = assess(&now.standing, self.look(&now));
            let before = verdicts.send_replace(verdict);
            if before.ready != verdict.ready {
                report(&reporter, verdict.ready).await;
                tracing::info!(ready = verdict.ready, "{}", verdict.why);
            }
            tokio::select! {
                _ = standing_updates.changed() => {}
                _ = self.routers.changed() => {}
                () = group_changed(&mut self.group) => {}
                () = sleep(CHECK_INTERVAL) => {}
            }
        }
    }

    /// Watches the group in which it follows, and no other.
    fn follow(&mut self, standing: &WorkerStanding) {
        let WorkerStanding::Follows { group, .. } = standing else {
            self.group = None;
            return;
        };
        if self.group.as_ref().is_none_or(|(known, _)| known != group) {
            let prefix = format!("{}{group}/ready/", self.keys.groups());
            self.group = Some((group.clone(), Mirror::new(self.store.clone(), &self.id, prefix)));
        }
    }

    fn look(&self, now: &CurrentStanding) -> ReadinessInputs {
        let whole = match (&now.standing, &self.group) {
            (WorkerStanding::Follows { group, record }, Some((_, mirror))) => {
                record.is_ready(None, member_readiness(&self.keys, group, &mirror.view()))
            }
            _ => false,
        };
        ReadinessInputs {
            waited: now.since.elapsed(),
            listeners: self.switch.serving().map(|engine| engine.listeners()),
            routers: routers(&self.routers.view()),
            whole,
        }
    }
}

async fn group_changed(group: &mut Option<(String, Mirror)>) {
    match group {
        Some((_, mirror)) => drop(mirror.changed().await),
        None => std::future::pending().await,
    }
}
