//! How the ranks of a group give each other numbers on their devices: in the stream, without the host. Ranks of one
//! process read each other's memory; others use NCCL. This module does not know what is computed.

use std::ops::Range;
use std::sync::Arc;

use super::arena::ArenaBlock;
use super::args::{MAX_RANKS, WriteTableArgs};
use super::backend::{Cuda, shape};
use super::draw::DrawPlan;
use super::graphs::Mode;
use super::plan::LaunchPlan;
use super::step::StepShape;
use super::tensor::DeviceTensor;
use crate::backend::Backend;
use crate::error::{KernelError, Result};

mod experts;
mod library;
mod nccl;
mod peer;
mod sums;
mod watchdog;

pub(super) use experts::{ExpertCounters, HolderTable, LayerRoutes};
pub(super) use nccl::JOIN_TIME;
use nccl::NcclLink;
use peer::PeerLink;
pub(super) use peer::PeerRegistry;
pub(super) use sums::{VocabularyParts, WHOLE_SUM};

/// Threads of the kernels that work rank by rank.
const RANK_THREADS: u32 = MAX_RANKS as u32;

/// The way to the other ranks' devices.
#[derive(Default)]
pub(super) enum DataLink {
    /// There are no others, or `connect` was not called yet.
    #[default]
    None,
    Peer(PeerLink),
    Nccl(NcclLink),
}

/// A matrix or array of this rank that others read.
pub(super) struct Offer<'a> {
    pub block: &'a Arc<ArenaBlock>,
    pub address: u64,
    /// The bytes that a rank (the first) reads of what another (the second) offers. They begin at the same byte of all.
    pub reads: &'a dyn Fn(usize, usize) -> Range<usize>,
}

impl<'a> Offer<'a> {
    pub fn of(x: &'a DeviceTensor, reads: &'a dyn Fn(usize, usize) -> Range<usize>) -> Self {
        Offer { block: &x.block, address: x.address, reads }
    }
}

/// Where the parts of all ranks are: on the device, an array of addresses for each of at most two offers.
pub(super) struct PartTable {
    memory: ArenaBlock,
    ranks: usize,
    /// Parts that came from other processes.
    _received: Vec<ArenaBlock>,
}

impl PartTable {
    /// The array of an offer.
    pub fn of(&self, offer: usize) -> u64 {
        self.memory.address + (8 * self.ranks * offer) as u64
    }
}

/// What a rank says before a step. Ranks that disagree run the step without graphs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct StepIntent {
    /// It has to move or free memory that its kernels use.
    moves: bool,
    mode: Mode,
}

impl StepIntent {
    fn byte(self) -> u8 {
        let mode = match self.mode {
            Mode::Plain => 0,
            Mode::Recording => 1,
            Mode::Repeating => 2,
        };
        u8::from(self.moves) << 7 | mode
    }
}

impl Cuda {
    /// Opens the ways to the devices of the other ranks. `here`: the ranks of this process.
    pub(super) fn connect_ranks(&mut self, here: usize) -> Result<()> {
        let ranks = self.ranks();
        self.leave_group();
        if ranks == 1 {
            return Ok(());
        }
        if ranks > MAX_RANKS {
            return Err(shape("connect", format!("a group has at most {MAX_RANKS} ranks on GPUs, got {ranks}")));
        }
        self.data = match here < ranks {
            true => DataLink::Nccl(NcclLink::open(&self.device, &*self.link, self.join_time)?),
            false => DataLink::Peer(PeerLink::open(&self.device, &*self.link, &self.peers)?),
        };
        Ok(())
    }

    /// Ends this rank's part of the group. Its weights and caches stay; what others may still read is freed when all
    /// have left.
    pub(super) fn leave_group(&mut self) {
        let data = std::mem::take(&mut self.data);
        if !matches!(data, DataLink::None) {
            // What is recorded uses the link.
            self.graphs.get_mut().clear();
            self.link.abort(&format!("rank {} left the group", self.rank()));
        }
        match &data {
            DataLink::None => return,
            DataLink::Peer(link) => link.leave(),
            DataLink::Nccl(link) => link.leave(),
        }
        // A device that has failed says so when it is used the next time.
        let _ = self.device.enter().and_then(|()| self.device.wait());
    }

    /// Offers arrays to all ranks, at most two, and finds theirs. Kernels that are launched before the next exchange
    /// may read them. All ranks call it, in the same order.
    pub(super) fn exchange(&self, offers: &[Offer]) -> PartTable {
        let ranks = self.ranks();
        assert!(offers.len() <= 2, "at most two offers");
        let mut table = PartTable { memory: self.take(2 * 8 * ranks), ranks, _received: Vec::new() };
        match &self.data {
            DataLink::Peer(link) => link.meet(self, offers, &table),
            DataLink::Nccl(link) => table._received = link.exchange(self, offers, &table),
            DataLink::None => {
                let mut addresses = [[0; MAX_RANKS]; 2];
                let own = self.rank();
                for (addresses, offer) in addresses.iter_mut().zip(offers) {
                    addresses[own] = offer.address + (offer.reads)(own, own).start as u64;
                }
                self.write_table(&table, addresses);
            }
        }
        table
    }

    fn write_table(&self, table: &PartTable, addresses: [[u64; MAX_RANKS]; 2]) {
        let args = WriteTableArgs { table: table.memory.address, addresses, ranks: table.ranks as i32 };
        // SAFETY: the table has room for two arrays of all ranks.
        unsafe { self.launch(&LaunchPlan::new("write_table", [1, 1, 1], RANK_THREADS), &args) };
    }

    /// Before a step of several ranks: all work of the last one has ended, on this rank. Nothing that a rank left
    /// behind is read any more when `agree` returns.
    fn quiesce(&mut self) -> Result<()> {
        self.device.wait()?;
        self.steps.arrived();
        self.check_group()?;
        match &self.data {
            DataLink::None => {
                Err(shape("begin", "the ranks of a group must be connected before their first step".into()))
            }
            DataLink::Peer(link) => {
                link.forget_offers();
                Ok(())
            }
            DataLink::Nccl(link) => {
                link.forget_offers();
                Ok(())
            }
        }
    }

    /// What all ranks intend. None: they do not intend the same.
    fn agree(&self, intent: StepIntent) -> Result<Option<StepIntent>> {
        let all = self.link.gather_bytes(&[intent.byte()])?;
        let moves = all.iter().any(|byte| byte.first().is_some_and(|byte| byte >> 7 == 1));
        let same = all.iter().all(|byte| byte[..] == [intent.byte()]);
        Ok(match (moves, same) {
            (true, _) => Some(StepIntent { moves: true, mode: Mode::Plain }),
            (false, true) => Some(intent),
            (false, false) => None,
        })
    }

    /// Waits until all ranks are here.
    pub(super) fn meet_on_hosts(&self) -> Result<()> {
        self.link.gather_bytes(&[]).map(drop)
    }

    /// An error if the group has ended: then kernels had no parts of other ranks.
    pub(super) fn check_group(&self) -> Result<()> {
        match &self.data {
            DataLink::None => Ok(()),
            DataLink::Peer(_) | DataLink::Nccl(_) => match self.link.abort_watch().reason() {
                Some(reason) => Err(KernelError::Aborted(reason)),
                None => Ok(()),
            },
        }
    }

    /// All ranks begin a step of one shape: they make room at the same time, while no device works, and record or
    /// repeat the step together or not at all.
    pub(super) fn begin_together(&mut self, shape: &StepShape, draws: &DrawPlan, last: usize) -> Result<()> {
        self.quiesce()?;
        let moves = self.experts_moved.get()
            || !self.ring.get_mut().is_empty()
            || self.arena.wants_room()
            || self.angles.get_mut().wants_room(last)
            || self.steps.wants_room(shape, draws)
            || (self.rank() == 0 && !self.stash.has(draws.slots))
            || self.device.context().has_retired();
        let mode = self.graphs.get_mut().mode_of(&self.device, shape, self.arena.is_empty());
        let agreed = self.agree(StepIntent { moves, mode })?;
        if agreed != Some(StepIntent { moves: false, mode }) {
            self.graphs.get_mut().clear();
        }
        if agreed.is_some_and(|agreed| agreed.moves) {
            self.make_room(shape, draws, last)?;
            let context = self.device.context();
            context.free_retired(context.take_retired());
            // The driver may wait for the device when it frees memory, and ranks may share it.
            self.meet_on_hosts()?;
        }
        Ok(())
    }
}
