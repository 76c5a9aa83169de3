//! Ranks of one process, which read each other's memory: on devices that reach each other, or on one device. Each rank
//! has a letter box on its device, in which the others say where their data is (kernels/cuda/ranks.cu). This module
//! does not know what is computed.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use cudarc::driver::sys::CUdeviceptr;

use super::super::arena::ArenaBlock;
use super::super::args::{MeetArgs, RankLetter};
use super::super::device::Context;
use super::super::error::shape;
use super::super::plan::LaunchPlan;
use super::super::{CudaDevice, DeviceBuffer, PinnedBuffer};
use super::watchdog::Watchdog;
use super::{Offer, PartTable, RANK_THREADS, RankOps};
use crate::collective::Collective;
use crate::error::{KernelError, Result};

/// Groups whose ranks are linking, by a number that rank 0 chooses.
#[derive(Default)]
pub(in super::super) struct PeerRegistry(Mutex<Registered>);

#[derive(Default)]
struct Registered {
    last: u64,
    groups: HashMap<u64, Weak<PeerGroup>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl PeerRegistry {
    /// A number that no group has had.
    fn number(&self) -> u64 {
        let mut known = lock(&self.0);
        known.last += 1;
        known.last
    }

    fn group(&self, number: u64) -> Arc<PeerGroup> {
        let mut known = lock(&self.0);
        known.groups.retain(|_, group| group.strong_count() > 0);
        known.groups.get(&number).and_then(Weak::upgrade).unwrap_or_else(|| {
            let group = Arc::new(PeerGroup::default());
            known.groups.insert(number, Arc::downgrade(&group));
            group
        })
    }
}

/// What the ranks of a group use of each other. It lives until the last rank has left: so do the contexts, and with
/// them what ranks that end have retired.
#[derive(Default)]
struct PeerGroup {
    seats: Mutex<Vec<PeerSeat>>,
    /// Memory of ranks that have left. The others' kernels may not have ended.
    left: Mutex<Vec<(Arc<Context>, Vec<CUdeviceptr>)>>,
}

struct PeerSeat {
    rank: usize,
    letters: DeviceBuffer,
    context: Arc<Context>,
}

impl Drop for PeerGroup {
    fn drop(&mut self) {
        for (context, retired) in lock(&self.left).drain(..) {
            context.free_retired(retired);
        }
    }
}

/// One rank's end.
pub(in super::super) struct PeerLink {
    group: Arc<PeerGroup>,
    device: Arc<Context>,
    /// The addresses of all ranks' letter boxes.
    boxes: DeviceBuffer,
    /// The number of meetings so far, on the device.
    round: DeviceBuffer,
    /// Not 0: the group has ended.
    ended: Arc<PinnedBuffer>,
    /// What was offered in the last meeting. Others may read it until the next one.
    offered: RefCell<Vec<Arc<ArenaBlock>>>,
    _watchdog: Watchdog,
}

impl PeerLink {
    /// All ranks call it.
    pub fn open(device: &CudaDevice, link: &dyn Collective, registry: &PeerRegistry) -> Result<PeerLink> {
        let (rank, ranks) = (link.rank(), link.size());
        let mut number = registry.number().to_le_bytes().to_vec();
        link.share(0, &mut number)?;
        let number =
            <[u8; 8]>::try_from(&*number).map_err(|_| shape("connect", "a group's number has 8 bytes".into()))?;
        let group = registry.group(u64::from_le_bytes(number));
        let mut letters = device.allocate(2 * ranks * size_of::<RankLetter>())?;
        letters.fill(device, 0)?;
        let round = device.allocate(4)?;
        round.write(device, 0, &[0u32])?;
        let ended = Arc::new(PinnedBuffer::new(device, 4)?);
        lock(&group.seats).push(PeerSeat { rank, letters, context: Arc::clone(device.context()) });
        // All have their letter boxes.
        link.gather_bytes(&[])?;
        let mut boxes = vec![0u64; ranks];
        for seat in lock(&group.seats).iter() {
            if !device.context().reach(&seat.context)? {
                return Err(KernelError::Device(format!(
                    "device {} of rank {rank} cannot reach the memory of device {} of rank {}: ranks of one process need \
                     devices with peer access",
                    device.context().ordinal(),
                    seat.context.ordinal(),
                    seat.rank
                )));
            }
            boxes[seat.rank] = seat.letters.address();
        }
        if boxes.contains(&0) {
            return Err(shape("connect", "the ranks of this process are not all in one group".into()));
        }
        let table = device.allocate(8 * ranks)?;
        table.write(device, 0, &boxes)?;
        device.load_kernels()?;
        // The driver may wait for the device when it loads a kernel, and ranks may share it: none works before all did.
        link.gather_bytes(&[])?;
        device.context().retire_memory(true);
        let watched = Arc::clone(&ended);
        let end = move |_: &str| watched.flag().store(1, Ordering::Release);
        let watchdog = Watchdog::start(link.abort_watch(), || (), end)?;
        let offered = RefCell::default();
        let device = Arc::clone(device.context());
        Ok(PeerLink { group, device, boxes: table, round, ended, offered, _watchdog: watchdog })
    }

    /// Tells the others where the offers are, and fills the table.
    pub fn meet(&self, on: RankOps, offers: &[Offer], table: &PartTable) {
        let (rank, ranks) = (on.group.rank(), on.group.ranks());
        let (Some(aborted), Some(count)) = (on.ops.keep(self.ended.address()), on.count_arguments()) else { return };
        let mut args = MeetArgs {
            boxes: self.boxes.address(),
            round: self.round.address(),
            aborted,
            table: table.memory.address,
            offers: [0; 2],
            offsets: [0; 2],
            count,
            rank: rank as i32,
            ranks: ranks as i32,
        };
        for (i, offer) in offers.iter().enumerate() {
            let first = (offer.reads)(rank, 0).start;
            let same = (0..ranks).all(|owner| (offer.reads)(rank, owner).start == first);
            assert!(same, "a rank reads from the same byte of every rank");
            (args.offers[i], args.offsets[i]) = (offer.address, first as u64);
        }
        // SAFETY: the letter boxes live as long as the group, and have a letter of each rank for even and odd rounds;
        // the table has two addresses for each rank. What is offered stays until all have read it.
        unsafe { on.ops.launch(&LaunchPlan::new("meet_ranks", [1, 1, 1], RANK_THREADS), &args) };
        // All work that the others launched before this meeting has read what was offered in the last one.
        *self.offered.borrow_mut() = offers.iter().map(|offer| Arc::clone(offer.block)).collect();
    }

    pub fn has_offers(&self) -> bool {
        !self.offered.borrow().is_empty()
    }

    pub fn forget_offers(&self) {
        self.offered.borrow_mut().clear();
    }
}

impl PeerLink {
    /// From now on this rank's work waits for nobody. Others may go on reading its memory.
    pub fn leave(&self) {
        self.ended.flag().store(1, Ordering::Release);
    }
}

impl Drop for PeerLink {
    fn drop(&mut self) {
        lock(&self.group.left).push((Arc::clone(&self.device), self.device.take_retired()));
    }
}
