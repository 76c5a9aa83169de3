//! New expert layouts for running ranks: loaded beside the steps, applied between two of them. It does not know why
//! experts move.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use rein_control_plane::Placement;
use rein_kernels::{Backend, Devices, ExpertCounts, KernelError, Result as KernelResult};

use super::Checkpoint;
use crate::checkpoint::LoadError;
use crate::model::{LayoutSwap, Network};

/// Maximum number of pending layouts of a rank, which no step has used yet. An idle group applies none.
const AHEAD: usize = 2;

/// Pending layouts of a rank, in order.
pub struct LayoutInbox<B: Backend>(Mutex<VecDeque<LayoutSwap<B>>>);

impl<B: Backend> Default for LayoutInbox<B> {
    fn default() -> Self {
        LayoutInbox(Mutex::default())
    }
}

impl<B: Backend> LayoutInbox<B> {
    fn lock(&self) -> MutexGuard<'_, VecDeque<LayoutSwap<B>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the network to this layout.
    pub fn take_up(&self, network: &mut Network<B>, layout: u64) -> KernelResult<()> {
        while network.placement().layout != layout {
            let Some(swap) = self.lock().pop_front() else {
                let known = network.placement().layout;
                return Err(KernelError::Aborted(format!("step of layout {layout}, but layout {known} is loaded")));
            };
            network.relayout(swap)?;
        }
        Ok(())
    }
}

/// The inboxes of the ranks in this process, and their devices.
pub struct Inboxes<D: Devices> {
    pub devices: D,
    pub ranks: Vec<RankInbox<D::Backend>>,
}

pub struct RankInbox<B: Backend> {
    pub rank: usize,
    pub device: usize,
    pub inbox: Arc<LayoutInbox<B>>,
}

/// Loads a layout for ranks on any kind of device.
pub trait LoadLayout: Send + Sync {
    /// Whether a rank has too many pending layouts.
    fn is_full(&self) -> bool;
    /// Loads the experts that `placement` gives to these ranks and `before` does not, until `stop`. False: stopped.
    fn load(
        &self,
        checkpoint: &Checkpoint,
        placement: &Arc<Placement>,
        before: &Placement,
        stop: &AtomicBool,
    ) -> Result<bool, LoadError>;
}

impl<D: Devices> LoadLayout for Inboxes<D> {
    fn is_full(&self) -> bool {
        self.ranks.iter().any(|rank| rank.inbox.lock().len() >= AHEAD)
    }

    fn load(
        &self,
        checkpoint: &Checkpoint,
        placement: &Arc<Placement>,
        before: &Placement,
        stop: &AtomicBool,
    ) -> Result<bool, LoadError> {
        let fetch = |to: &RankInbox<D::Backend>| {
            let (backend, source) = (self.devices.open_beside(to.device)?, checkpoint.source(&self.devices));
            Network::fetch(&backend, source, (placement, to.rank), &before.ranks[to.rank], stop)
        };
        let swaps: Result<Vec<_>, LoadError> = self.ranks.iter().map(|to| Ok((&to.inbox, fetch(to)?))).collect();
        // Checked even if the read failed, because a changed file may be the reason.
        checkpoint.weights.verify_reads()?;
        let swaps = swaps?;
        if stop.load(Ordering::Relaxed) {
            return Ok(false);
        }
        for (inbox, swap) in swaps {
            inbox.lock().push_back(swap);
        }
        Ok(true)
    }
}

/// The expert layouts of the ranks in this process.
pub struct Layouts {
    pub(super) checkpoint: Arc<Checkpoint>,
    pub(super) ranks: Box<dyn LoadLayout>,
    /// What the ranks have, or have in their inboxes.
    pub(super) given: Mutex<Arc<Placement>>,
    /// The layout of the next steps. Set by the leader.
    pub(super) wanted: Arc<AtomicU64>,
    /// The layout of the last step. Set by the leader.
    pub(super) used: Arc<AtomicU64>,
    pub(super) counts: Option<Arc<OnceLock<ExpertCounts>>>,
}

impl Layouts {
    fn given(&self) -> MutexGuard<'_, Arc<Placement>> {
        self.given.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Loads the experts that these ranks lack, beside running steps, until `stop`. False: earlier layouts are still
    /// pending.
    pub fn load(&self, placement: &Arc<Placement>, stop: &AtomicBool) -> Result<bool, LoadError> {
        if self.ranks.is_full() {
            return Ok(false);
        }
        let before = self.given().clone();
        if !self.ranks.load(&self.checkpoint, placement, &before, stop)? {
            return Ok(false);
        }
        *self.given() = placement.clone();
        Ok(true)
    }

    /// The error of a stalled read of the checkpoint.
    pub fn stalled(&self) -> Option<LoadError> {
        self.checkpoint.reads.stalled()
    }

    /// All ranks of the group have loaded this layout: the next steps use it.
    pub fn switch(&self, layout: u64) {
        self.wanted.store(layout, Ordering::Release);
    }

    /// The layout of the last step.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Acquire)
    }

    /// Rows per layer and expert since the group began. None: another process counts.
    pub fn counts(&self) -> Option<Vec<Vec<u64>>> {
        self.counts.as_ref()?.get().map(|read| read())
    }
}
