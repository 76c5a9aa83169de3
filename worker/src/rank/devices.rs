//! The kinds of devices that ranks compute on. Only this file and `ModelLoader` name them.

use std::any::Any;
use std::sync::Arc;

use rein_control_plane::RankPlacement;
use rein_control_plane::records::Locality;
use rein_kernels::Backend;
use rein_kernels::cpu::{CpuDevices, Isa};
#[cfg(feature = "cuda")]
use rein_kernels::cuda::{
    CudaDevice, CudaDevices, CudaError, GpuPlaces, KernelTier, Properties, has_fast_kernels, machine_code,
};
use rein_kernels::lockstep::{LockstepDevices, LockstepReport};

#[cfg(feature = "cuda")]
use super::choice::GpuKernels;
use super::choice::{DeviceChoice, Gpus};
use super::{ModelOptions, Quantize};
#[cfg(feature = "cuda")]
use crate::bytes::ByteCount;
use crate::checkpoint::LoadError;
use crate::model::{Network, StateSize};

/// The devices of this process.
pub enum AnyDevices {
    Cpu(CpuDevices),
    #[cfg(feature = "cuda")]
    Cuda(CudaDevices),
}

impl AnyDevices {
    pub fn open(options: &ModelOptions) -> Result<Self, LoadError> {
        match &options.devices {
            DeviceChoice::Cpu => Ok(AnyDevices::Cpu(CpuDevices { threads: threads(options) })),
            DeviceChoice::Cuda(indices) => {
                check_cuda(options)?;
                open_cuda(indices, options)
            }
        }
    }

    /// Where the GPUs are; None on the CPU.
    pub fn locality(&self) -> Option<Locality> {
        match self {
            AnyDevices::Cpu(_) => None,
            #[cfg(feature = "cuda")]
            AnyDevices::Cuda(devices) => gpu_locality(devices),
        }
    }

    pub fn arithmetic(&self) -> String {
        match self {
            AnyDevices::Cpu(_) => format!("{:?}", Isa::detect()),
            #[cfg(feature = "cuda")]
            AnyDevices::Cuda(devices) => {
                let named = |device: &CudaDevice| match devices.kernels_of(device) {
                    KernelTier::Plain => device.properties.name.clone(),
                    KernelTier::Fast => format!("{} fast", device.properties.name),
                };
                devices.devices().iter().map(named).collect::<Vec<_>>().join(",")
            }
        }
    }
}

/// Of the CPU.
pub fn threads(options: &ModelOptions) -> usize {
    options.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from))
}

/// The same devices, with every op repeated on the CPU.
pub fn lockstep<D: Clone>(devices: &D, options: &ModelOptions, report: &LockstepReport) -> LockstepDevices<D> {
    LockstepDevices::new(devices.clone(), threads(options), report.clone())
}

#[cfg(not(feature = "cuda"))]
fn open_cuda(_: &Gpus, _: &ModelOptions) -> Result<AnyDevices, LoadError> {
    Err(LoadError::Device(
        "this binary is for CPUs alone (built without the feature `cuda`): make serve ENGINE=cuda builds one for GPUs"
            .into(),
    ))
}

#[cfg(feature = "cuda")]
fn open_cuda(gpus: &Gpus, options: &ModelOptions) -> Result<AnyDevices, LoadError> {
    let failed = |error: CudaError| LoadError::Device(error.to_string());
    let kernels = match gpus.kernels {
        GpuKernels::Plain => KernelTier::Plain,
        GpuKernels::Fast => KernelTier::Fast,
    };
    let devices = CudaDevices::open(&gpus.indices).map_err(failed)?;
    let devices = devices.within(options.step_deadline).with_kernels(kernels);
    for device in devices.devices() {
        let (index, Properties { name, capability, .. }) = (device.index, &device.properties);
        let (free, total) = device.memory().map_err(failed)?;
        let used = ByteCount((total - free) as u64);
        tracing::debug!(index, name, %capability, %used, "a device");
        if total - free > OWN_MEMORY {
            tracing::warn!("device {index}: {used} of its memory are in use by other processes");
        }
        if kernels == KernelTier::Fast && has_fast_kernels() && devices.kernels_of(device) == KernelTier::Plain {
            tracing::warn!(
                "device {index}: has compute capability {capability}; the fast kernels need 9.0, so the plain ones run"
            );
        }
        if machine_code(*capability).is_none() {
            tracing::warn!(
                "device {index}: no machine code for compute capability {capability}; the driver compiles the kernels"
            );
        }
    }
    Ok(AnyDevices::Cuda(devices))
}

/// What the kernel calls this start of the host: equal for all of its processes, containers included.
#[cfg(feature = "cuda")]
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

#[cfg(feature = "cuda")]
fn gpu_locality(devices: &CudaDevices) -> Option<Locality> {
    let unknown = |what: &dyn std::fmt::Display| {
        tracing::warn!("where this worker's GPUs are is not known, so its group may be far apart: {what}");
    };
    let host = std::fs::read_to_string(BOOT_ID).inspect_err(|error| unknown(&format!("{BOOT_ID}: {error}"))).ok()?;
    let host = host.trim().to_owned();
    let GpuPlaces { nvlink, adapters } =
        GpuPlaces::of(devices.devices(), &host).inspect_err(|error| unknown(error)).ok()?;
    Some(Locality { host, nvlink, adapters })
}

/// More than the driver takes for the context of this process.
#[cfg(feature = "cuda")]
const OWN_MEMORY: usize = 1 << 30;

/// What the CUDA backend cannot do.
fn check_cuda(options: &ModelOptions) -> Result<(), LoadError> {
    match options.quantize {
        Quantize::None => Ok(()),
        Quantize::Int8 => Err(LoadError::Device(
            "--quantize int8 is for CPUs: use a checkpoint that is stored as FP8 or int4, which a GPU computes as it is"
                .to_owned(),
        )),
    }
}

/// A rank's weights on their device, which outlive its group: a `DeviceWeights` of some backend.
pub struct ResidentWeights(Box<dyn Any + Send>);

impl ResidentWeights {
    pub fn new<B: Backend>(weights: DeviceWeights<B>) -> Self {
        ResidentWeights(Box::new(weights))
    }

    /// None: they are on another kind of device.
    pub fn on<B: Backend>(self) -> Option<DeviceWeights<B>> {
        self.0.downcast().ok().map(|weights| *weights)
    }
}

/// A rank's weights on one kind of device.
pub struct DeviceWeights<B: Backend> {
    pub network: Network<B>,
    /// The size of the group, on which a rank's weights depend.
    pub ranks: usize,
    /// Index of the device.
    pub device: usize,
    /// The ranks of this process, which shared its memory.
    pub here: usize,
}

/// Called with a rank's weights when its group ends. The receiver may be gone.
pub type ReturnWeights<B> = Arc<dyn Fn(DeviceWeights<B>) + Send + Sync>;

impl<B: Backend> DeviceWeights<B> {
    pub fn take(resident_weights: &mut Vec<Self>, rank: &RankPlacement, ranks: usize) -> Option<Self> {
        // Experts may have moved; the missing ones are loaded.
        let holds = |resident: &Self| {
            let known = resident.network.rank();
            let same = (known.rank, &known.heads, &known.kv_heads) == (rank.rank, &rank.heads, &rank.kv_heads);
            same && resident.ranks == ranks
        };
        resident_weights.iter().position(holds).map(|i| resident_weights.swap_remove(i))
    }
}

/// The blocks of the KV caches that the ranks of this process have kept. None: not all of them have one, it has another
/// size, or other ranks shared the memory.
pub fn kept_blocks<B: Backend>(
    found: &[Option<DeviceWeights<B>>],
    block_size: usize,
    kv_ranks: usize,
) -> Option<usize> {
    let kept = |found: &Option<DeviceWeights<B>>| {
        let found = found.as_ref()?;
        Some((found.network.state_size(), found.here))
    };
    let first = kept(found.first()?)?;
    let (StateSize { blocks, block_size: of_block, kv_ranks: of_ranks, .. }, here) = first;
    let same = found.iter().all(|other| kept(other) == Some(first));
    let fits = (of_block, of_ranks) == (block_size, kv_ranks);
    (same && blocks > 0 && fits && here == found.len()).then_some(blocks * kv_ranks)
}

/// The device of each rank of this process: that of its weights, or else the first of those with the fewest ranks.
/// `count`: of the devices; None: as many as ranks.
pub fn assign(known: &[Option<usize>], count: Option<usize>) -> Vec<usize> {
    let count = count.map_or(known.len(), |count| count.min(known.len()));
    let mut assigned: Vec<usize> = known.iter().flatten().copied().collect();
    let mut choose = || {
        let ranks = |device: &usize| assigned.iter().filter(|other| *other == device).count();
        let device = (0..count).min_by_key(ranks).unwrap_or(0);
        assigned.push(device);
        device
    };
    known.iter().map(|device| device.unwrap_or_else(&mut choose)).collect()
}

/// The most ranks that a process with GPUs for `here` of them can have, if `fits` fit in its memory. All ranks of a
/// group in one process may share a GPU, where they read each other's memory; ranks of several processes only if
/// `nccl_shares` GPUs. So it can take the ranks of the other half of a group, but not of a smaller part.
#[cfg(feature = "cuda")]
pub fn most_on_gpus(fits: usize, here: usize, group_size: usize, nccl_shares: bool) -> usize {
    let whole = fits >= group_size && group_size <= 2 * here;
    if whole || nccl_shares { fits } else { here }
}

#[cfg(test)]
mod tests;
