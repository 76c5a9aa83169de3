//! How the ranks of a group give each other numbers on their devices: in the stream, without the host. Ranks of one
//! process read each other's memory, and use NCCL for much data if it is there; others use NCCL. This module does not
//! know what is computed.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::{Duration, Instant};

use super::CudaDevice;
use super::arena::ArenaBlock;
use super::args::{MAX_RANKS, WriteTableArgs};
use super::error::{CudaError, shape};
use super::graphs::{Graphs, Mode};
use super::op_stream::OpStream;
use super::plan::LaunchPlan;
use super::tensor::DeviceTensor;
use crate::collective::Collective;
use crate::error::{KernelError, Result};

mod experts;
mod library;
mod nccl;
mod peer;
mod progress;
mod sums;
#[cfg(test)]
mod tests;
mod watchdog;

pub(super) use experts::{ExpertCounters, HolderTable, LayerRoutes};
pub use nccl::nccl_shares_gpus;
pub(super) use nccl::{JOIN_TIME, NcclLink, links_on_one_gpu};
use peer::PeerLink;
pub(super) use peer::PeerRegistry;
pub(super) use progress::hang_time;
use progress::{ExchangeCount, HangWatch};
use sums::VocabularyParts;
pub(super) use sums::WHOLE_SUM;
use watchdog::Watchdog;

/// Threads of the kernels that work rank by rank.
const RANK_THREADS: u32 = MAX_RANKS as u32;

/// Ranks that can do both read up to this many bytes of each other's memory, and exchange more over NCCL. Not measured
/// on a GPU yet.
pub(super) const MOST_BY_PEERS: usize = 1 << 20;

/// What moves the bytes of an exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ExchangeWay {
    /// The ranks read each other's memory.
    Peers,
    Nccl,
}

impl ExchangeWay {
    /// For ranks that can do both. `bytes`: the most that a rank reads of the others. None: that is known on the
    /// devices only, where peers read just that.
    fn of(bytes: Option<usize>, most_by_peers: usize) -> ExchangeWay {
        match bytes {
            Some(bytes) if bytes > most_by_peers => ExchangeWay::Nccl,
            Some(_) | None => ExchangeWay::Peers,
        }
    }
}

/// The ways to the other ranks' devices.
pub(super) struct DataLinks {
    ways: Ways,
    count: Arc<ExchangeCount>,
    _watchdog: Watchdog,
}

enum Ways {
    Peers(PeerLink),
    Nccl(NcclLink),
    Both(PeerLink, NcclLink),
}

impl DataLinks {
    fn peers(&self) -> Option<&PeerLink> {
        match &self.ways {
            Ways::Peers(link) | Ways::Both(link, _) => Some(link),
            Ways::Nccl(_) => None,
        }
    }

    pub fn nccl(&self) -> Option<&NcclLink> {
        match &self.ways {
            Ways::Nccl(link) | Ways::Both(_, link) => Some(link),
            Ways::Peers(_) => None,
        }
    }

    fn has_offers(&self) -> bool {
        self.peers().is_some_and(PeerLink::has_offers) || self.nccl().is_some_and(NcclLink::has_offers)
    }

    fn forget_offers(&self) {
        self.peers().into_iter().for_each(PeerLink::forget_offers);
        self.nccl().into_iter().for_each(NcclLink::forget_offers);
    }
}

/// A matrix or array of this rank that others read.
pub(super) struct Offer<'a> {
    pub block: &'a Arc<ArenaBlock>,
    pub address: u64,
    /// The bytes that a rank (the first) reads of what another (the second) offers. They begin at the same byte of all.
    pub reads: &'a dyn Fn(usize, usize) -> Range<usize>,
    /// A rank reads only some of these bytes; its device knows which.
    pub partly: bool,
}

impl<'a> Offer<'a> {
    pub fn of(x: &'a DeviceTensor, reads: &'a dyn Fn(usize, usize) -> Range<usize>) -> Self {
        Offer { block: &x.block, address: x.address, reads, partly: false }
    }
}

/// The most bytes that one of the ranks reads of the others. None: their devices know.
fn most_read(offers: &[Offer], ranks: usize) -> Option<usize> {
    if offers.iter().any(|offer| offer.partly) {
        return None;
    }
    let others = |reader: usize| (0..ranks).filter(move |&owner| owner != reader);
    let of = |reader, offer: &Offer| others(reader).map(|owner| (offer.reads)(reader, owner).len()).sum::<usize>();
    (0..ranks).map(|reader| offers.iter().map(|offer| of(reader, offer)).sum()).max()
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
pub(super) struct StepIntent {
    /// It has to move or free memory that its kernels use.
    pub moves: bool,
    pub mode: Mode,
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

/// This rank's part in its group.
pub(super) struct DeviceGroup {
    pub link: Box<dyn Collective>,
    /// None: it is alone, or not connected yet.
    pub data: Option<DataLinks>,
    peers: Arc<PeerRegistry>,
    /// [`WHOLE_SUM`].
    pub whole_sum: Cell<usize>,
    /// [`MOST_BY_PEERS`].
    pub most_by_peers: Cell<usize>,
    /// [`JOIN_TIME`].
    pub join_time: Duration,
    /// [`hang_time`].
    pub hang_time: Duration,
    /// Of the logits, once they were drawn from.
    vocabulary: Option<VocabularyParts>,
    pub counters: Option<ExpertCounters>,
}

impl DeviceGroup {
    pub fn new(link: Box<dyn Collective>, peers: Arc<PeerRegistry>, hang_time: Duration) -> DeviceGroup {
        DeviceGroup {
            link,
            data: None,
            peers,
            whole_sum: Cell::new(WHOLE_SUM),
            most_by_peers: Cell::new(MOST_BY_PEERS),
            join_time: JOIN_TIME,
            hang_time,
            vocabulary: None,
            counters: None,
        }
    }

    pub fn rank(&self) -> usize {
        self.link.rank()
    }

    pub fn ranks(&self) -> usize {
        self.link.size()
    }

    /// Opens the ways to the devices of the other ranks. `here`: the ranks of this process. `exchanges`: those that
    /// this rank puts into its stream.
    pub fn connect(&mut self, device: &CudaDevice, exchanges: Arc<AtomicU32>, here: usize) -> Result<()> {
        let ranks = self.ranks();
        if ranks == 1 {
            return Ok(());
        }
        if ranks > MAX_RANKS {
            return Err(shape("connect", format!("a group has at most {MAX_RANKS} ranks on GPUs, got {ranks}")));
        }
        let link = &*self.link;
        let ways = if here < ranks {
            Ways::Nccl(NcclLink::open(device, link, self.join_time)?)
        } else {
            let peers = PeerLink::open(device, link, &self.peers)?;
            match NcclLink::open_beside_peers(device, link, self.join_time)? {
                Some(nccl) => Ways::Both(peers, nccl),
                None => Ways::Peers(peers),
            }
        };
        let count = Arc::new(ExchangeCount::new(device, exchanges)?);
        let (limit, watched) = (self.hang_time, Arc::clone(&count));
        let (rank, abort) = (self.link.rank(), self.link.give_up_handle());
        let mut watch = HangWatch::new(limit, Instant::now());
        let look = move || {
            if watch.look(&watched) {
                abort.abort(&format!("rank {rank}: its device has passed no exchange between ranks for {limit:?}"));
            }
        };
        let watchdog = Watchdog::start(self.link.abort_watch(), look, |_: &str| ())?;
        self.data = Some(DataLinks { ways, count, _watchdog: watchdog });
        Ok(())
    }

    /// Ends this rank's part of the group. Its weights and caches stay; what others may still read is freed when all
    /// have left.
    pub fn leave(&mut self, device: &CudaDevice, graphs: &mut Graphs) {
        let Some(data) = self.data.take() else { return };
        // What is recorded uses the links.
        graphs.clear();
        self.link.abort(&format!("rank {} left the group", self.rank()));
        data.peers().into_iter().for_each(PeerLink::leave);
        data.nccl().into_iter().for_each(NcclLink::leave);
        // A device that has failed says so when it is used the next time.
        let _ = device.enter().and_then(|()| device.wait());
    }

    /// The link of another group.
    pub fn relink(&mut self, link: Box<dyn Collective>) {
        self.link = link;
        self.vocabulary = None;
        self.counters = None;
    }

    /// Whether others may still read what this rank offered: a step has failed midway.
    pub fn has_offers(&self) -> Result<bool> {
        self.check()?;
        match &self.data {
            Some(data) => Ok(data.has_offers()),
            None => Err(shape("begin", "the ranks of a group must be connected before their first step".into())),
        }
    }

    /// Nothing that was offered before is read by what the stream does next: all ranks have met since.
    pub fn forget_offers(&self) {
        self.data.iter().for_each(DataLinks::forget_offers);
    }

    /// What all ranks intend. None: they do not intend the same.
    pub fn agree(&self, intent: StepIntent) -> Result<Option<StepIntent>> {
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
    pub fn meet_on_hosts(&self) -> Result<()> {
        self.link.gather_bytes(&[]).map(drop)
    }

    /// An error if the group has ended: then kernels had no parts of other ranks.
    pub fn check(&self) -> Result<()> {
        let reason = self.data.as_ref().and_then(|_| self.link.abort_watch().reason());
        reason.map_or(Ok(()), |reason| Err(KernelError::Aborted(reason)))
    }
}

/// What ops of several ranks need.
#[derive(Clone, Copy)]
pub(super) struct RankOps<'a> {
    pub ops: &'a OpStream,
    pub group: &'a DeviceGroup,
    pub graphs: &'a RefCell<Graphs>,
}

impl RankOps<'_> {
    /// Offers arrays to all ranks, at most two, and finds theirs. Kernels that are launched before the next exchange
    /// may read them. All ranks call it, in the same order.
    pub fn exchange(self, offers: &[Offer]) -> PartTable {
        let ranks = self.group.ranks();
        assert!(offers.len() <= 2, "at most two offers");
        let mut table = PartTable { memory: self.ops.take(2 * 8 * ranks), ranks, _received: Vec::new() };
        let Some(data) = &self.group.data else {
            self.ops.keep::<()>(Err(CudaError::NotConnected));
            return table;
        };
        self.graphs.borrow_mut().count_exchange();
        let by_nccl = |link: &NcclLink, table: &mut PartTable| table._received = link.exchange(self, offers, table);
        match &data.ways {
            Ways::Peers(link) => link.meet(self, offers, &table),
            Ways::Nccl(link) => by_nccl(link, &mut table),
            Ways::Both(peers, nccl) => {
                match ExchangeWay::of(most_read(offers, ranks), self.group.most_by_peers.get()) {
                    ExchangeWay::Peers => peers.meet(self, offers, &table),
                    ExchangeWay::Nccl => by_nccl(nccl, &mut table),
                }
            }
        }
        table
    }

    /// Where kernels count this rank's exchanges.
    fn count_arguments(self) -> Option<[u64; 2]> {
        let count = self.group.data.as_ref().map_or(Err(CudaError::NotConnected), |data| data.count.arguments());
        self.ops.keep(count)
    }

    fn write_table(self, table: &PartTable, addresses: [[u64; MAX_RANKS]; 2]) {
        let Some(count) = self.count_arguments() else { return };
        let args = WriteTableArgs { table: table.memory.address, addresses, count, ranks: table.ranks as i32 };
        // SAFETY: the table has room for two arrays of all ranks; the counts live as long as the links.
        unsafe { self.ops.launch(&LaunchPlan::new("write_table", [1, 1, 1], RANK_THREADS), &args) };
    }
}
