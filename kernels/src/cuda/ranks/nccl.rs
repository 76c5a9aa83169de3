//! Ranks of several processes, linked by NCCL. A communicator lives as long as the control link of its group: a
//! watchdog aborts it when the group ends, and ends the group when NCCL reports an error. This module does not know
//! what is computed.

use std::cell::RefCell;
use std::ffi::c_void;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use super::super::arena::ArenaBlock;
use super::super::args::MAX_RANKS;
use super::super::{CudaDevice, CudaError, DeviceBuffer};
use super::library::{CommunicatorId, NcclLibrary, NcclProgress, NcclVersion, SHARES_GPUS, Transfer};
use super::watchdog::Watchdog;
use super::{Offer, PartTable, RankOps};
use crate::collective::Collective;
use crate::error::{KernelError, Result};

/// Time for all ranks to join a communicator.
pub(in super::super) const JOIN_TIME: Duration = Duration::from_secs(60);
/// How long a rank that waits for a communicator in vain waits for the others to say the same.
const GRACE: Duration = Duration::from_secs(2);
/// How long an abort waits for a call that is in progress in another thread.
const ABORT_PATIENCE: Duration = Duration::from_secs(2);
/// Between two looks at a call that is in progress.
const POLL: Duration = Duration::from_micros(50);

/// What a rank says about itself before it joins.
struct RankFacts {
    version: NcclVersion,
    gpu: [u8; 16],
}

const FACTS: usize = 20;

impl RankFacts {
    fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.version.0.to_le_bytes().to_vec();
        bytes.extend(self.gpu);
        bytes
    }

    /// None: the rank said why it cannot join.
    fn read(bytes: &[u8]) -> Option<RankFacts> {
        let bytes = <&[u8; FACTS]>::try_from(bytes).ok()?;
        let (version, gpu) = bytes.split_at(4);
        let version = NcclVersion(u32::from_le_bytes(version.try_into().ok()?));
        Some(RankFacts { version, gpu: gpu.try_into().ok()? })
    }
}

fn ended(what: String) -> KernelError {
    KernelError::Aborted(what)
}

/// An error of NCCL ends the group, not the device.
fn of_group(error: KernelError) -> KernelError {
    match error {
        KernelError::Device(what) => ended(what),
        error => error,
    }
}

/// NCCL has no event for the end of a call.
fn pause() {
    std::thread::park_timeout(POLL);
}

/// A communicator that any thread may abort, once.
struct Communicator {
    library: Arc<NcclLibrary>,
    /// Null once it is aborted.
    raw: AtomicPtr<c_void>,
    /// Held during a call: NCCL allows one at a time.
    calls: Mutex<()>,
}

impl Communicator {
    fn lock(&self) -> MutexGuard<'_, ()> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// None: it is aborted.
    fn call<T>(&self, call: impl FnOnce(&NcclLibrary, *mut c_void) -> T) -> Option<T> {
        let _guard = self.lock();
        let raw = self.raw.load(Ordering::Acquire);
        (!raw.is_null()).then(|| call(&self.library, raw))
    }

    fn progress(&self) -> Option<Result<NcclProgress>> {
        // SAFETY: it is not aborted while the lock is held, but after `ABORT_PATIENCE`; NCCL then ends the call.
        self.call(|library, raw| unsafe { library.progress(raw) })
    }

    /// Returns when the last call has ended, or the communicator is aborted.
    fn settle(&self) -> Result<()> {
        loop {
            match self.progress() {
                Some(Ok(NcclProgress::Pending)) => pause(),
                Some(Ok(NcclProgress::Done)) => return Ok(()),
                Some(Err(error)) => return Err(error),
                None => return Err(ended("the communicator was aborted".into())),
            }
        }
    }

    /// Ends what devices wait for. A second abort does nothing.
    fn abort(&self) {
        let raw = self.raw.swap(std::ptr::null_mut(), Ordering::AcqRel);
        if raw.is_null() {
            return;
        }
        let until = Instant::now() + ABORT_PATIENCE;
        // A call that is in progress is waited for, but not forever: the abort may be what ends it.
        let _guard = loop {
            match self.calls.try_lock() {
                Ok(guard) => break Some(guard),
                Err(TryLockError::Poisoned(guard)) => break Some(guard.into_inner()),
                Err(TryLockError::WouldBlock) if Instant::now() > until => break None,
                Err(TryLockError::WouldBlock) => pause(),
            }
        };
        // SAFETY: made by `init`; the pointer was taken away above, so that nobody uses it afterwards.
        unsafe { self.library.abort(raw) };
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        self.abort();
    }
}

/// One rank's end.
pub(in super::super) struct NcclLink {
    communicator: Arc<Communicator>,
    /// What was sent in the last exchange, which the stream may not have done.
    offered: RefCell<Vec<Arc<ArenaBlock>>>,
    _watchdog: Watchdog,
}

impl NcclLink {
    /// All ranks call it.
    pub fn open(device: &CudaDevice, link: &dyn Collective, join_time: Duration) -> Result<NcclLink> {
        let (library, all) = tell_facts(device, link)?;
        let library = library?;
        check_facts(&all)?;
        Self::join(library, link, join_time)
    }

    /// For ranks that also read each other's memory. None: they have no NCCL, or one that cannot link their devices,
    /// such as a device that several ranks share. All ranks call it.
    pub fn open_beside_peers(
        device: &CudaDevice,
        link: &dyn Collective,
        join_time: Duration,
    ) -> Result<Option<NcclLink>> {
        let (library, all) = tell_facts(device, link)?;
        match library {
            Ok(library) if check_facts(&all).is_ok() => Self::join(library, link, join_time).map(Some),
            _ => Ok(None),
        }
    }

    fn join(library: NcclLibrary, link: &dyn Collective, join_time: Duration) -> Result<NcclLink> {
        let id = CommunicatorId(share_id(&library, link)?);
        let library = Arc::new(library);
        let raw = AtomicPtr::new(library.init(id, link.rank(), link.size()).map_err(of_group)?);
        let communicator = Arc::new(Communicator { library, raw, calls: Mutex::default() });
        wait_for_all(&communicator, link, join_time)?;

        let (watched, aborted) = (Arc::clone(&communicator), Arc::clone(&communicator));
        let (rank, abort) = (link.rank(), link.abort_handle());
        let look = move || {
            if let Some(Err(error)) = watched.progress() {
                abort.abort(&format!("rank {rank}: {error}"));
            }
        };
        let watchdog = Watchdog::start(link.abort_watch(), look, move |_: &str| aborted.abort())?;
        Ok(NcclLink { communicator, offered: RefCell::default(), _watchdog: watchdog })
    }

    /// Sends what others read of the offers, and receives what this rank reads of theirs.
    pub fn exchange(&self, on: RankOps, offers: &[Offer], table: &PartTable) -> Vec<ArenaBlock> {
        let (rank, ranks) = (on.group.rank(), on.group.ranks());
        let (mut transfers, mut received) = (Vec::new(), Vec::new());
        let mut addresses = [[0; MAX_RANKS]; 2];
        for (offer, addresses) in offers.iter().zip(&mut addresses) {
            let takes = |owner: usize| if owner == rank { 0 } else { (offer.reads)(rank, owner).len() };
            // Each part begins where kernels may read it in wide pieces.
            let room = |owner: usize| takes(owner).next_multiple_of(256);
            let block = on.ops.take((0..ranks).map(room).sum());
            let mut at = block.address;
            for other in 0..ranks {
                let own = (offer.reads)(other, rank);
                if other == rank {
                    addresses[rank] = offer.address + own.start as u64;
                    continue;
                }
                if !own.is_empty() {
                    let address = offer.address + own.start as u64;
                    transfers.push(Transfer { peer: other, address, bytes: own.len(), sends: true });
                }
                if takes(other) > 0 {
                    transfers.push(Transfer { peer: other, address: at, bytes: takes(other), sends: false });
                    addresses[other] = at;
                }
                at += room(other) as u64;
            }
            received.push(block);
        }
        if on.ops.check().is_ok() && !transfers.is_empty() {
            // SAFETY: the blocks stay until the stream has done it: those that were received live as long as the table,
            // those that are sent until the next exchange.
            let done = self.call(|library, raw| unsafe { library.exchange(raw, &transfers, on.ops.device.stream()) });
            // Why a group has ended is known to its control link.
            on.ops.keep(done.map_err(|error| match on.group.link.abort_watch().reason() {
                Some(reason) => CudaError::GroupEnded(reason),
                None => CudaError::Nccl(error.to_string()),
            }));
        }
        on.write_table(table, addresses);
        *self.offered.borrow_mut() = offers.iter().map(|offer| Arc::clone(offer.block)).collect();
        received
    }

    /// Returns when the call has put its work into the stream.
    fn call(&self, call: impl FnOnce(&NcclLibrary, *mut c_void) -> Result<NcclProgress>) -> Result<()> {
        match self.communicator.call(call) {
            Some(Ok(NcclProgress::Done)) => Ok(()),
            Some(Ok(NcclProgress::Pending)) => self.communicator.settle(),
            Some(Err(error)) => Err(error),
            None => Err(ended("the communicator was aborted".into())),
        }
    }

    /// NCCL's own sum over ranks of the first `count` bf16 numbers, in the stream.
    pub fn all_reduce(&self, device: &CudaDevice, from: &DeviceBuffer, to: &DeviceBuffer, count: usize) -> Result<()> {
        assert!(2 * count <= from.bytes().min(to.bytes()), "{count} numbers of both buffers");
        let addresses = [from.address(), to.address()];
        // SAFETY: both have that many numbers, and dropping either waits for the device.
        self.call(|library, raw| unsafe { library.all_reduce(raw, addresses, count, device.stream()) })
    }

    /// Sends all bytes of a buffer to this rank itself, in the stream.
    pub fn echo(&self, device: &CudaDevice, rank: usize, from: &DeviceBuffer, to: &DeviceBuffer) -> Result<()> {
        let bytes = from.bytes().min(to.bytes());
        let transfer = |buffer: &DeviceBuffer, sends| Transfer { peer: rank, address: buffer.address(), bytes, sends };
        let transfers = [transfer(from, true), transfer(to, false)];
        // SAFETY: both have that many bytes, and dropping either waits for the device.
        self.call(|library, raw| unsafe { library.exchange(raw, &transfers, device.stream()) })
    }

    pub fn version(&self) -> NcclVersion {
        self.communicator.library.version
    }

    pub fn has_offers(&self) -> bool {
        !self.offered.borrow().is_empty()
    }

    pub fn forget_offers(&self) {
        self.offered.borrow_mut().clear();
    }

    pub fn leave(&self) {
        self.communicator.abort();
    }

    /// The communicator's handle.
    #[cfg(test)]
    pub fn handle(&self) -> *mut c_void {
        self.communicator.raw.load(Ordering::Acquire)
    }
}

/// Opens the library, and tells all ranks what this one has; also what the others have.
fn tell_facts(device: &CudaDevice, link: &dyn Collective) -> Result<(Result<NcclLibrary>, Vec<Vec<u8>>)> {
    let library = NcclLibrary::open().and_then(|library| Ok((library, device.uuid()?)));
    let said = match &library {
        Ok((library, gpu)) => RankFacts { version: library.version, gpu: *gpu }.bytes(),
        // Never as long as facts.
        Err(error) => format!("it cannot join: {error}").into_bytes(),
    };
    let all = link.gather_bytes(&said)?;
    Ok((library.map(|(library, _)| library), all))
}

fn may_share_gpus() -> bool {
    std::env::var("NCCL_MULTI_RANK_GPU_ENABLE").is_ok_and(|value| value == "1")
}

/// Whether several ranks may have one GPU.
fn shares_gpus(version: NcclVersion) -> bool {
    version >= SHARES_GPUS && may_share_gpus()
}

/// Whether ranks of several processes may have one GPU.
pub fn nccl_shares_gpus() -> bool {
    may_share_gpus() && links_on_one_gpu().unwrap_or(false)
}

/// Whether NCCL links several ranks on one GPU. An error if it is not there.
pub(in super::super) fn links_on_one_gpu() -> Result<bool> {
    NcclLibrary::open().map(|library| shares_gpus(library.version))
}

/// An error if the ranks cannot make a communicator.
fn check_facts(all: &[Vec<u8>]) -> Result<()> {
    let mut facts: Vec<RankFacts> = Vec::new();
    for (rank, said) in all.iter().enumerate() {
        let Some(found) = RankFacts::read(said) else {
            return Err(ended(format!("rank {rank}: {}", String::from_utf8_lossy(said))));
        };
        if let Some(first) = facts.first().filter(|first| first.version != found.version) {
            return Err(ended(format!(
                "rank 0 has NCCL {}, rank {rank} has NCCL {}: install one version on all hosts",
                first.version, found.version
            )));
        }
        let shares = shares_gpus(found.version);
        if let Some(other) = facts.iter().position(|other| other.gpu == found.gpu).filter(|_| !shares) {
            let gpu: String = found.gpu.iter().map(|byte| format!("{byte:02x}")).collect();
            return Err(ended(format!(
                "ranks {other} and {rank} are on the same GPU ({gpu}): give each rank a GPU of its own with --devices or \
                 CUDA_VISIBLE_DEVICES"
            )));
        }
        facts.push(found);
    }
    Ok(())
}

/// The id of this group's communicator, which rank 0 makes.
fn share_id(library: &NcclLibrary, link: &dyn Collective) -> Result<[u8; 128]> {
    let made = if link.rank() == 0 { library.id().map(|id| id.0.to_vec()) } else { Ok(Vec::new()) };
    let mut said = made.as_ref().map_or_else(|_| Vec::new(), Vec::clone);
    link.share(0, &mut said)?;
    made.map_err(of_group)?;
    <[u8; 128]>::try_from(&*said).map_err(|_| ended("rank 0 could not make the id of a communicator".into()))
}

/// Waits until all ranks have joined; if they do not, says which rank is missing.
fn wait_for_all(communicator: &Communicator, link: &dyn Collective, limit: Duration) -> Result<()> {
    let (begin, watch) = (Instant::now(), link.abort_watch());
    loop {
        if let Some(reason) = watch.reason() {
            return Err(ended(reason));
        }
        match communicator.progress() {
            Some(Ok(NcclProgress::Done)) => return Ok(()),
            Some(Ok(NcclProgress::Pending)) => {}
            Some(Err(error)) => return Err(of_group(error)),
            None => return Err(ended("the communicator was aborted".into())),
        }
        if begin.elapsed() > limit {
            break;
        }
        pause();
    }
    let reason = format!("NCCL has made no communicator within {limit:?}");
    // The rank that hangs in NCCL does not answer here.
    let (give_up, (asked, answered)) = (link.give_up_handle(), std::sync::mpsc::sync_channel::<()>(1));
    let text = reason.clone();
    let waits = std::thread::Builder::new().name("rank join".into()).spawn(move || {
        if answered.recv_timeout(GRACE).is_err() {
            give_up.abort(&text);
        }
    });
    let waits = waits.map_err(|error| KernelError::Device(format!("cannot start a thread: {error}")))?;
    let all = link.gather_bytes(&[]);
    // The thread may have ended.
    let _ = asked.send(());
    let _ = waits.join();
    all?;
    Err(ended(format!("{reason}, but all ranks are there: see NCCL_DEBUG=WARN")))
}
