//! New expert layouts for running ranks: loaded beside the steps, applied between two of them. It does not know why
//! experts move.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use rein_control_plane::Placement;
use rein_kernels::collective::threads;
use rein_kernels::cpu::Cpu;
use rein_kernels::{ExpertCounts, KernelError, Result as KernelResult};

use super::Checkpoint;
use crate::checkpoint::LoadError;
use crate::model::{LayoutSwap, Network};

/// Layouts that a rank was given and no step has used yet; an idle group applies none.
const AHEAD: usize = 2;

/// Pending layouts of a rank, in order.
#[derive(Default)]
pub struct LayoutInbox(Mutex<VecDeque<LayoutSwap<Cpu>>>);

impl LayoutInbox {
    fn lock(&self) -> MutexGuard<'_, VecDeque<LayoutSwap<Cpu>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the network to this layout.
    pub fn take_up(&self, network: &mut Network<Cpu>, layout: u64) -> KernelResult<()> {
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

/// The expert layouts of the ranks in this process.
pub struct Layouts {
    pub(super) checkpoint: Arc<Checkpoint>,
    pub(super) ranks: Vec<(usize, Arc<LayoutInbox>)>,
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
        if self.ranks.iter().any(|(_, inbox)| inbox.lock().len() >= AHEAD) {
            return Ok(false);
        }
        let before = self.given().clone();
        let Checkpoint { spec, weights, precisions, .. } = &*self.checkpoint;
        let fetch = |rank: &usize| {
            let link = threads::group(1).pop().ok_or(LoadError::Rank { rank: *rank, what: "has no link".into() })?;
            let backend = Cpu::new(1, Box::new(link));
            let before = &before.ranks[*rank];
            Network::fetch(&backend, spec, weights, (placement, *rank), before, *precisions, stop)
        };
        let swaps: Result<Vec<_>, LoadError> =
            self.ranks.iter().map(|(rank, inbox)| Ok((inbox, fetch(rank)?))).collect();
        // Also if they could not be read: a changed file may be the reason.
        weights.prove()?;
        let swaps = swaps?;
        if stop.load(Ordering::Relaxed) {
            return Ok(false);
        }
        for (inbox, swap) in swaps {
            inbox.lock().push_back(swap);
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
