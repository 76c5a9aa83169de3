//! Ranks that share the device, or that NCCL links, and what runs on each. It does not know what is checked.

use super::super::backend::Cuda;
use super::super::fast::KernelTier;
use super::super::ranks::links_on_one_gpu;
use super::super::{CudaDevices, Driver};
use crate::backend::{Backend, Devices};
use crate::collective::threads;
use crate::error::{KernelError, Result};

/// The devices of ranks, and how they are linked.
#[derive(Clone)]
pub(super) struct Group {
    devices: Vec<usize>,
    over_nccl: bool,
}

impl Group {
    pub fn of_peers(device: usize, ranks: usize) -> Group {
        Group { devices: vec![device; ranks], over_nccl: false }
    }

    /// The inner error says why NCCL cannot link so many ranks here.
    pub fn over_nccl(device: usize, ranks: usize) -> Result<std::result::Result<Group, String>> {
        let shares = match links_on_one_gpu() {
            Ok(shares) => shares,
            Err(error) => return Ok(Err(error.to_string())),
        };
        Ok(match Driver::open()?.devices {
            count if count >= ranks => Ok(Group { devices: (0..ranks).collect(), over_nccl: true }),
            _ if shares => Ok(Group { devices: vec![device; ranks], over_nccl: true }),
            count => Err(format!(
                "{ranks} ranks need as many GPUs, got {count}; or NCCL 2.30 or later with NCCL_MULTI_RANK_GPU_ENABLE=1"
            )),
        })
    }

    pub fn is_over_nccl(&self) -> bool {
        self.over_nccl
    }

    pub fn ranks(&self) -> usize {
        self.devices.len()
    }
}

/// Runs `f` on every rank.
pub(super) fn on_ranks<R: Send>(
    group: &Group,
    kernels: KernelTier,
    f: impl Fn(&mut Cuda) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let (ranks, devices) = (group.ranks(), CudaDevices::open(&group.devices)?.with_kernels(kernels));
    // Fewer ranks in this process than in the group use NCCL alone.
    let here = if group.over_nccl { 1 } else { ranks };
    let run = |rank: usize, link: threads::Threads| {
        let mut cuda = devices.open(rank, ranks, Box::new(link))?;
        cuda.connect(here)?;
        let result = f(&mut cuda)?;
        cuda.group.meet_on_hosts()?;
        Ok(result)
    };
    std::thread::scope(|scope| {
        let run = &run;
        let links = threads::group(ranks).into_iter().enumerate();
        let started: Vec<_> = links.map(|(rank, link)| scope.spawn(move || run(rank, link))).collect();
        let ended = |thread: std::thread::ScopedJoinHandle<'_, Result<R>>| {
            thread.join().unwrap_or_else(|_| Err(KernelError::Device("a rank panicked".into())))
        };
        started.into_iter().map(ended).collect()
    })
}
