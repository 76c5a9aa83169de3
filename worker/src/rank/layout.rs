//! New layouts of experts for ranks that run: loaded beside the steps, taken up between two of them.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rein_control_plane::Placement;
use rein_kernels::collective::threads;
use rein_kernels::cpu::Cpu;
use rein_kernels::{Error, Result as KernelResult};

use super::Checkpoint;
use crate::checkpoint::LoadError;
use crate::model::{ExpertCounts, Network, Swap};

/// Layouts that a rank has been given and no step has asked for; an idle group takes none up.
const AHEAD: usize = 2;

/// What a rank is to become, in order.
#[derive(Default)]
pub struct Inbox(Mutex<VecDeque<Swap<Cpu>>>);

impl Inbox {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Swap<Cpu>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the network that of this layout.
    pub fn take_up(&self, network: &mut Network<Cpu>, layout: u64) -> KernelResult<()> {
        while network.placement().layout != layout {
            let Some(swap) = self.lock().pop_front() else {
                let known = network.placement().layout;
                return Err(Error::Aborted(format!(
                    "a step of layout {layout}; layout {known} is what has been loaded"
                )));
            };
            network.relayout(swap)?;
        }
        Ok(())
    }
}

/// Of the ranks in this process.
pub struct Layouts {
    pub(super) checkpoint: Arc<Checkpoint>,
    pub(super) ranks: Vec<(usize, Arc<Inbox>)>,
    /// What the ranks have, or have in their inboxes.
    pub(super) given: Mutex<Arc<Placement>>,
    /// Of the steps to come. The leader's.
    pub(super) wanted: Arc<AtomicU64>,
    /// Of the last step. The leader's.
    pub(super) used: Arc<AtomicU64>,
    pub(super) counts: Option<Arc<ExpertCounts>>,
}

impl Layouts {
    fn given(&self) -> MutexGuard<'_, Arc<Placement>> {
        self.given.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Loads what these ranks lack of a layout, beside what runs, until `stop`. False: not now; earlier ones are still
    /// to be taken up.
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
        // Also where they could not be read: this may be why.
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

    /// A read of the checkpoint that hangs.
    pub fn stalled(&self) -> Option<LoadError> {
        self.checkpoint.reads.stalled()
    }

    /// All ranks of the group have loaded this layout: steps are of it from now on.
    pub fn switch(&self, layout: u64) {
        self.wanted.store(layout, Ordering::Release);
    }

    /// The layout of the last step.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Acquire)
    }

    /// How many rows each expert has had since the group began, by layer. None: somebody else counts.
    pub fn counts(&self) -> Option<Vec<Vec<u64>>> {
        self.counts.as_ref().map(|counts| counts.read())
    }
}
