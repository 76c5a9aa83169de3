//! Whether a worker is of use to its cluster now, for whoever restarts workers one after the other. docs/operations.md says
//! what counts.

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use rein_control_plane::records::{GroupRecord, Keys, Ready, RouterRecord, decode};
use rein_control_plane::{Mirror, Snapshot, Store};
use rein_proto::internal::engine_server;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep};
use tonic_health::ServingStatus;
use tonic_health::pb::health_server::HealthServer;
use tonic_health::server::{HealthReporter, HealthService};

use super::{Membership, Node, Switch};

/// How often it is looked who follows the engine: nothing tells.
const LOOK: Duration = Duration::from_millis(200);
/// A worker without a seat is a spare once it has waited so long: a controller that has just been elected gives seats after
/// `LEASE` and `SETTLE`, and a worker that is about to load must not pass for one that is ready.
const SPARE_WAIT: Duration = Duration::from_secs(10);

/// What a worker is, as it knows itself.
#[derive(Debug, Clone, Default)]
pub enum Standing {
    /// The store does not know it yet, or does not know it any more.
    #[default]
    Unknown,
    /// The store has another worker under its id.
    Displaced,
    Spare,
    /// It could not load, and keeps away for a while.
    Away,
    /// It takes a seat, or waits for what becomes of a group that is over.
    Seating,
    Leads,
    Follows {
        group: String,
        record: Arc<GroupRecord>,
    },
    Leaving,
}

impl Standing {
    pub fn name(&self) -> &'static str {
        match self {
            Standing::Unknown => "unknown",
            Standing::Displaced => "displaced",
            Standing::Spare => "spare",
            Standing::Away => "away",
            Standing::Seating => "seating",
            Standing::Leads => "leads",
            Standing::Follows { .. } => "follows",
            Standing::Leaving => "leaving",
        }
    }

    fn is_like(&self, other: &Standing) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }
}

/// Of which kind it is since when, and the last epoch in which it had a seat.
#[derive(Debug, Clone)]
pub struct Stood {
    pub standing: Standing,
    pub since: Instant,
    pub epoch: u64,
}

impl Default for Stood {
    fn default() -> Self {
        Stood { standing: Standing::Unknown, since: Instant::now(), epoch: 0 }
    }
}

impl Stood {
    pub fn becomes(&mut self, standing: Standing, epoch: u64) {
        if !self.standing.is_like(&standing) {
            self.since = Instant::now();
        }
        (self.standing, self.epoch) = (standing, epoch);
    }
}

impl Node {
    /// Tells what the worker is now.
    pub(super) fn stand(&self, leaving: bool) {
        let standing = match &self.now {
            _ if leaving => Standing::Leaving,
            _ if self.session.held().borrow().taken.is_some() => Standing::Displaced,
            Some(Membership { taken: Some(_), rank: 0, .. }) => Standing::Leads,
            Some(Membership { taken: Some(_), group, record, .. }) => {
                Standing::Follows { group: group.clone(), record: record.clone() }
            }
            Some(_) => Standing::Seating,
            None if self.taking.is_some() || self.pending.is_some() => Standing::Seating,
            None if self.quiet.is_some() => Standing::Away,
            None if self.session.held().borrow().lease.is_none() => Standing::Unknown,
            None => Standing::Spare,
        };
        self.switch.stand(standing, self.record.seat.epoch);
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verdict {
    pub ready: bool,
    pub why: &'static str,
}

/// What else a verdict rests on.
#[derive(Debug, Clone, Copy, Default)]
struct Sight {
    /// Time since it is what it is.
    waited: Duration,
    /// Routers that hear the events of the engine it leads with.
    listeners: Option<usize>,
    /// Routers of the cluster that take requests; None: the store has not been read.
    routers: Option<usize>,
    /// All ranks of its group are ready.
    whole: bool,
}

fn judge(standing: &Standing, sight: Sight) -> Verdict {
    let (ready, why) = match standing {
        Standing::Leaving => (false, "it leaves"),
        Standing::Unknown => (false, "the store does not know it"),
        Standing::Displaced => (false, "another worker has its id"),
        Standing::Away => (false, "it could not load and keeps away for a while"),
        Standing::Seating => (false, "it takes a seat, or waits for what becomes of its group"),
        Standing::Spare if sight.waited < SPARE_WAIT => (false, "it waits for a seat"),
        Standing::Spare => (true, "a spare"),
        Standing::Follows { .. } if sight.whole => (true, "it follows in a group that is whole"),
        Standing::Follows { .. } => (false, "other ranks of its group are not ready"),
        Standing::Leads => match (sight.listeners, sight.routers) {
            (None, _) => (false, "the engine that it leads with is gone"),
            (Some(1..), _) => (true, "it leads, and routers follow"),
            (Some(0), Some(0)) => (true, "it leads, and no router is there"),
            (Some(0), _) => (false, "it leads, and no router follows yet"),
        },
    };
    Verdict { ready, why }
}

/// Routers that take requests. One whose record cannot be read counts: it is there.
fn routers(snapshot: &Snapshot) -> Option<usize> {
    let drains = |value: &[u8]| decode::<RouterRecord>(value).is_ok_and(|router| router.draining);
    let take = || snapshot.entries.values().filter(|entry| !drains(&entry.value)).count();
    (snapshot.revision > 0).then(take)
}

/// What a group's members say under their first ranks.
pub(super) fn said<'a>(keys: &'a Keys, group: &'a str, snapshot: &'a Snapshot) -> impl Fn(usize) -> Option<Ready> + 'a {
    move |rank| decode(&snapshot.entries.get(&keys.ready(group, rank))?.value).ok()
}

/// The worker's verdict on itself, as `grpc.health.v1` and for whoever asks. It is kept up to date while a clone is there; the
/// server alone keeps none.
#[derive(Clone)]
pub struct Readiness {
    verdict: watch::Receiver<Verdict>,
    reporter: HealthReporter,
    _judging: Arc<Judging>,
}

struct Judging(AbortHandle);

impl Drop for Judging {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Readiness {
    /// Of the worker `id` whose node holds this switch.
    pub fn of(store: Arc<dyn Store>, keys: Keys, id: &str, switch: Switch) -> Self {
        let reporter = HealthReporter::new();
        // Nobody else holds the reporter's lock yet, so this does not wait.
        let _ = report(&reporter, false).now_or_never();
        let (says, verdict) = watch::channel(judge(&Standing::Unknown, Sight::default()));
        let judging = Judge {
            routers: Mirror::new(store.clone(), id, keys.router("")),
            group: None,
            id: id.to_owned(),
            store,
            keys,
            switch,
        };
        let task = tokio::spawn(judging.run(says, reporter.clone()));
        Readiness { verdict, reporter, _judging: Arc::new(Judging(task.abort_handle())) }
    }

    pub fn verdict(&self) -> Verdict {
        *self.verdict.borrow()
    }

    /// The standard health service: the process as a whole, and its engine, are of the same health.
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

struct Judge {
    store: Arc<dyn Store>,
    keys: Keys,
    id: String,
    switch: Switch,
    routers: Mirror,
    /// Who is ready of the group that it follows in.
    group: Option<(String, Mirror)>,
}

impl Judge {
    async fn run(mut self, says: watch::Sender<Verdict>, reporter: HealthReporter) {
        let mut stood = self.switch.stood();
        loop {
            let now = stood.borrow_and_update().clone();
            self.follow(&now.standing);
            let verdict = judge(&now.standing, self.look(&now));
            let before = says.send_replace(verdict);
            if before.ready != verdict.ready {
                report(&reporter, verdict.ready).await;
                tracing::info!(ready = verdict.ready, "{}", verdict.why);
            }
            tokio::select! {
                _ = stood.changed() => {}
                _ = self.routers.changed() => {}
                () = heard(&mut self.group) => {}
                () = sleep(LOOK) => {}
            }
        }
    }

    /// Watches the group that it follows in, and no other.
    fn follow(&mut self, standing: &Standing) {
        let Standing::Follows { group, .. } = standing else {
            self.group = None;
            return;
        };
        if self.group.as_ref().is_none_or(|(known, _)| known != group) {
            let prefix = format!("{}{group}/ready/", self.keys.groups());
            self.group = Some((group.clone(), Mirror::new(self.store.clone(), &self.id, prefix)));
        }
    }

    fn look(&self, now: &Stood) -> Sight {
        let whole = match (&now.standing, &self.group) {
            (Standing::Follows { group, record }, Some((_, mirror))) => {
                record.is_ready(None, said(&self.keys, group, &mirror.view()))
            }
            _ => false,
        };
        Sight {
            waited: now.since.elapsed(),
            listeners: self.switch.serving().map(|engine| engine.listeners()),
            routers: routers(&self.routers.view()),
            whole,
        }
    }
}

async fn heard(group: &mut Option<(String, Mirror)>) {
    match group {
        Some((_, mirror)) => drop(mirror.changed().await),
        None => std::future::pending().await,
    }
}
