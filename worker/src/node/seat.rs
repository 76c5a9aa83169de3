//! Takes a seat: links the ranks with the others of their group, loads the placement's weights, and starts the engine.
//! It does not know the store.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crossbeam_channel::Sender;
use rein_control_plane::records::GroupRecord;
use rein_kernels::collective::tcp::{Abort, GroupEnd, JoinError, JoinRequest, RankListener};
use rein_kernels::collective::{AbortHandle, Collective, ControlLink, threads};
use rein_proto::protocol;
use tokio::sync::oneshot;

use super::NodeError;
use super::limits::{JOIN_TIME, STOP_CHECK_INTERVAL};
use crate::executor::Executor;
use crate::load_log::LoadLog;
use crate::rank::{Layouts, ModelLoader, ResidentWeights, Seated};
use crate::scheduler::EngineOptions;
use crate::service::{self, EngineService};

/// Why a seat could not be taken, and which rank failed if that is known.
#[derive(Debug, thiserror::Error)]
#[error("{reason}")]
pub struct SeatError {
    pub reason: String,
    pub suspect: Option<usize>,
    /// Why this process cannot take any other seat either.
    pub fatal: Option<NodeError>,
}

impl SeatError {
    pub fn because(reason: String, suspect: Option<usize>) -> Self {
        SeatError { reason, suspect, fatal: None }
    }
}

/// What executes a worker's steps.
#[derive(Clone)]
pub enum Workload {
    Model(Arc<ModelLoader>),
    /// One rank, created for each epoch.
    Sim(Arc<dyn Fn() -> Box<dyn Executor> + Send + Sync>),
}

/// A taken seat.
pub struct TakenSeat {
    pub engine: Option<EngineService>,
    /// None: there are no experts that could move.
    pub layouts: Option<Arc<Layouts>>,
    /// Ranks that follow.
    _followers: Option<Seated>,
}

/// The links of a group, while they are set up and torn down.
#[derive(Default)]
pub struct GroupLinks {
    given_up: AtomicBool,
    ends: std::sync::Mutex<Vec<(GroupEnd, AbortHandle)>>,
}

impl GroupLinks {
    fn add(&self, group_end: GroupEnd, abort: AbortHandle) {
        self.ends.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push((group_end, abort));
    }

    fn ends(&self) -> Vec<(GroupEnd, AbortHandle)> {
        self.ends.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }

    /// Ends the group for all its members.
    pub fn cut(&self, reason: &str) {
        self.given_up.store(true, Ordering::SeqCst);
        self.ends().iter().for_each(|(_, abort)| abort.abort(reason));
    }

    /// As `cut`, blaming the rank that is being waited for. False: there are no links, because all ranks are in this
    /// process.
    pub fn give_up(&self, reason: &str) -> bool {
        let ends = self.ends();
        if let Some((group_end, _)) = ends.first() {
            group_end.give_up(reason);
        }
        !ends.is_empty()
    }

    /// Waits on its own thread for the end of the group. None: there are no links, because all ranks are in this
    /// process.
    pub fn watch(self: &Arc<Self>) -> Option<oneshot::Receiver<Abort>> {
        let (group_end, _) = self.ends().into_iter().next()?;
        let (tell, told) = oneshot::channel();
        let watch = move || {
            while !tell.is_closed() {
                if let Some(abort) = group_end.wait(STOP_CHECK_INTERVAL) {
                    // The caller may have given up.
                    let _ = tell.send(abort);
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("group end".into()).spawn(watch);
        thread.inspect_err(|error| tracing::error!(%error, "cannot start a thread to watch the group's links")).ok()?;
        Some(told)
    }
}

pub struct SeatTask {
    pub work: Workload,
    pub group: String,
    pub record: Arc<GroupRecord>,
    pub member: usize,
    pub listener: Arc<RankListener>,
    pub resident_weights: Vec<ResidentWeights>,
    pub return_weights: Sender<ResidentWeights>,
    pub links: Arc<GroupLinks>,
    pub options: EngineOptions,
}

impl SeatTask {
    /// Blocks until the whole group has loaded or has failed to. A fence of the listener, or a cut of the links, ends
    /// it.
    pub fn take(self) -> Result<TakenSeat, SeatError> {
        let model = match &self.work {
            Workload::Sim(make) => {
                let engine = service::start(make(), self.options.clone());
                return Ok(TakenSeat { engine: Some(engine), layouts: None, _followers: None });
            }
            Workload::Model(model) => model.clone(),
        };
        let links = self.link()?;
        let own = Some(self.record.first_rank(self.member));
        let placement = Arc::new(self.record.placement.clone());
        let mut log = LoadLog::start();
        let seated = model
            .seat(&placement, links, self.resident_weights, Some(self.return_weights), &mut |done, total| {
                log.report(done, total)
            })
            .map_err(|error| match error {
                crate::checkpoint::LoadError::Kernel(rein_kernels::KernelError::Aborted(reason)) => {
                    let suspect = self.links.ends().first().and_then(|(group_end, _)| group_end.abort()?.suspect);
                    SeatError::because(reason, suspect)
                }
                error => SeatError {
                    fatal: NodeError::of(&error),
                    ..SeatError::because(format!("cannot load: {error}"), own)
                },
            })?;
        tracing::info!("{}", seated.plan);
        let experts = placement.ranks.len() > 1 && placement.ranks[0].experts.iter().any(|layer| !layer.is_empty());
        let layouts = experts.then(|| seated.layouts().clone());
        if !seated.leads() {
            return Ok(TakenSeat { engine: None, layouts, _followers: Some(seated) });
        }
        let group = seated.executor().map(|group| service::start(Box::new(group), self.options));
        Ok(TakenSeat { engine: group, layouts, _followers: None })
    }

    /// Links each of this member's ranks with the other ranks.
    fn link(&self) -> Result<Vec<Box<dyn Collective>>, SeatError> {
        let size = self.record.placement.ranks.len();
        let (first, ranks) = (self.record.first_rank(self.member), &self.record.members[self.member].ranks);
        if ranks.len() == size {
            return Ok(threads::group(size).into_iter().map(|link| Box::new(link) as Box<dyn Collective>).collect());
        }
        let (group, epoch, addresses, listener) =
            (&self.group, self.record.epoch(), &self.record.mesh(), &*self.listener);
        let join = move |rank| {
            let member = JoinRequest {
                group: group.clone(),
                epoch,
                rank,
                protocol: protocol::NUMBER,
                addresses: addresses.clone(),
            };
            listener.join(&member, JOIN_TIME)
        };
        let joined: Vec<_> = std::thread::scope(|scope| {
            let joins: Vec<_> = ranks.iter().map(|&rank| scope.spawn(move || join(rank))).collect();
            joins.into_iter().map(|join| join.join()).collect()
        });
        let mut links: Vec<Box<dyn Collective>> = Vec::new();
        for link in joined {
            let link = match link {
                Ok(Ok(link)) => link,
                Ok(Err(error)) => {
                    let suspect = match &error {
                        JoinError::Missing { missing, .. } => missing.first().copied(),
                        JoinError::Foreign { rank, .. } => Some(*rank),
                        _ => None,
                    };
                    return Err(SeatError::because(error.to_string(), suspect));
                }
                Err(_) => {
                    return Err(SeatError::because("a rank panicked while linking".into(), Some(first)));
                }
            };
            self.links.add(link.group_end(), link.abort_handle());
            links.push(Box::new(link));
        }
        if self.links.given_up.load(Ordering::SeqCst) {
            return Err(SeatError::because("the group ended while linking".into(), None));
        }
        Ok(links)
    }
}

/// Time limit for weights to come back from a group that ended; after it they are read again.
pub const RETURN_TIME: Duration = Duration::from_secs(5);
