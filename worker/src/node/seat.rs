//! A seat being taken: the ranks link with the others of their group, load what the placement says, and serve.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crossbeam_channel::Sender;
use rein_control_plane::records::GroupRecord;
use rein_kernels::collective::tcp::{Abort, Fate, JoinError, Listener, Member};
use rein_kernels::collective::{AbortHandle, Collective, threads};
use rein_proto::protocol;
use tokio::sync::oneshot;

use super::limits::{JOIN_TIME, LOOK};
use crate::executor::Executor;
use crate::rank::{Layouts, Model, Resident, Seated};
use crate::scheduler::EngineOptions;
use crate::service::{self, EngineService};

/// Why a seat could not be taken, and by whose fault if that is known.
#[derive(Debug, thiserror::Error)]
#[error("{reason}")]
pub struct Refused {
    pub reason: String,
    pub suspect: Option<usize>,
    /// This process can take no other seat either.
    pub is_final: bool,
}

impl Refused {
    pub fn because(reason: String, suspect: Option<usize>) -> Self {
        Refused { reason, suspect, is_final: false }
    }
}

/// What executes a worker's steps.
#[derive(Clone)]
pub enum Work {
    Model(Arc<Model>),
    /// One rank, made anew for each epoch.
    Sim(Arc<dyn Fn() -> Box<dyn Executor> + Send + Sync>),
}

/// A seat that has been taken.
pub struct Taken {
    pub engine: Option<EngineService>,
    /// None: there are no experts that could lie elsewhere.
    pub layouts: Option<Arc<Layouts>>,
    /// Ranks that follow.
    _followers: Option<Seated>,
}

/// A group's links on their way into being, or out of it.
#[derive(Default)]
pub struct Links {
    given_up: AtomicBool,
    fates: std::sync::Mutex<Vec<(Fate, AbortHandle)>>,
}

impl Links {
    fn add(&self, fate: Fate, abort: AbortHandle) {
        self.fates.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push((fate, abort));
    }

    fn fates(&self) -> Vec<(Fate, AbortHandle)> {
        self.fates.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }

    /// Ends the group, for all its members.
    pub fn cut(&self, reason: &str) {
        self.given_up.store(true, Ordering::SeqCst);
        self.fates().iter().for_each(|(_, abort)| abort.abort(reason));
    }

    /// As `cut`, by the fault of the rank that is being waited for. False: there is nothing to cut, all ranks are here.
    pub fn give_up(&self, reason: &str) -> bool {
        let fates = self.fates();
        if let Some((fate, _)) = fates.first() {
            fate.give_up(reason);
        }
        !fates.is_empty()
    }

    /// Waits, on its own thread, for the end of the group. None: all its ranks are here, and nothing links them with others.
    pub fn watch(self: &Arc<Self>) -> Option<oneshot::Receiver<Abort>> {
        let (fate, _) = self.fates().into_iter().next()?;
        let (tell, told) = oneshot::channel();
        let watch = move || {
            while !tell.is_closed() {
                if let Some(abort) = fate.wait(LOOK) {
                    // Whoever asked may have gone.
                    let _ = tell.send(abort);
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("fate".into()).spawn(watch);
        thread.inspect_err(|error| tracing::error!(%error, "no thread to watch the group's links")).ok()?;
        Some(told)
    }
}

pub struct Taking {
    pub work: Work,
    pub group: String,
    pub record: Arc<GroupRecord>,
    pub member: usize,
    pub listener: Arc<Listener>,
    pub residents: Vec<Resident>,
    pub home: Sender<Resident>,
    pub links: Arc<Links>,
    pub options: EngineOptions,
}

impl Taking {
    /// Blocks until the whole group has loaded, or it has failed to. A fence of the listener, or a cut of the links, ends it.
    pub fn take(self) -> Result<Taken, Refused> {
        let model = match &self.work {
            Work::Sim(make) => {
                let engine = service::start(make(), self.options.clone());
                return Ok(Taken { engine: Some(engine), layouts: None, _followers: None });
            }
            Work::Model(model) => model.clone(),
        };
        let links = self.link()?;
        let own = Some(self.record.first_rank(self.member));
        let seated = model
            .seat(&Arc::new(self.record.placement.clone()), links, self.residents, Some(self.home), &mut |_, _| ())
            .map_err(|error| match error {
                crate::checkpoint::LoadError::Kernel(rein_kernels::Error::Aborted(reason)) => {
                    let suspect = self.links.fates().first().and_then(|(fate, _)| fate.abort()?.suspect);
                    Refused::because(reason, suspect)
                }
                error => {
                    Refused { is_final: error.is_final(), ..Refused::because(format!("cannot load: {error}"), own) }
                }
            })?;
        tracing::info!("{}", seated.plan);
        let placement = &self.record.placement;
        let experts = placement.ranks.len() > 1 && placement.ranks[0].experts.iter().any(|layer| !layer.is_empty());
        let layouts = experts.then(|| seated.layouts().clone());
        if !seated.leads() {
            return Ok(Taken { engine: None, layouts, _followers: Some(seated) });
        }
        let group = seated.executor().map(|group| service::start(Box::new(group), self.options));
        Ok(Taken { engine: group, layouts, _followers: None })
    }

    /// Each own rank joins the others.
    fn link(&self) -> Result<Vec<Box<dyn Collective>>, Refused> {
        let size = self.record.placement.ranks.len();
        let (first, ranks) = (self.record.first_rank(self.member), &self.record.members[self.member].ranks);
        if ranks.len() == size {
            return Ok(threads::group(size).into_iter().map(|link| Box::new(link) as Box<dyn Collective>).collect());
        }
        let (group, epoch, addresses, listener) =
            (&self.group, self.record.epoch(), &self.record.mesh(), &*self.listener);
        let join = move |rank| {
            let member =
                Member { group: group.clone(), epoch, rank, protocol: protocol::NUMBER, addresses: addresses.clone() };
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
                    return Err(Refused::because(error.to_string(), suspect));
                }
                Err(_) => {
                    return Err(Refused::because("a rank panicked while it joined".into(), Some(first)));
                }
            };
            self.links.add(link.fate(), link.abort_handle());
            links.push(Box::new(link));
        }
        if self.links.given_up.load(Ordering::SeqCst) {
            return Err(Refused::because("given up while joining".into(), None));
        }
        Ok(links)
    }
}

/// Longest wait for weights to come back from a group that is over; they are read again otherwise.
pub const HOMECOMING: Duration = Duration::from_secs(5);
