//! The CUDA devices that the ranks of this process compute on.

use std::sync::Arc;
use std::time::Duration;

use super::backend::Cuda;
use super::fast::KernelTier;
use super::ranks::{PeerRegistry, hang_time};
use super::{CudaDevice, Driver};
use crate::backend::{Devices, HostForm, Precision, StoredForm, WeightRole};
use crate::collective::{Collective, threads};
use crate::error::{KernelError, Result};
use crate::storage::{CudaStorage, DeviceStorage};

/// 1 / this of a device's memory is left for activations and recorded steps.
const ACTIVATIONS: usize = 16;
/// 1 / this, for recorded steps and what the driver takes for itself.
const RECORDED: usize = 64;

/// A rank computes on each. A device that is there several times has several ranks.
#[derive(Clone)]
pub struct CudaDevices {
    driver: Driver,
    devices: Arc<Vec<CudaDevice>>,
    peers: Arc<PeerRegistry>,
    kernels: KernelTier,
    /// How long a device of a group may pass no exchange between ranks.
    hang_time: Duration,
}

impl CudaDevices {
    /// Devices by their index among those that CUDA_VISIBLE_DEVICES leaves.
    pub fn open(indices: &[usize]) -> super::Result<CudaDevices> {
        let driver = Driver::open()?;
        let devices: super::Result<Vec<_>> = indices.iter().map(|&index| driver.device(index)).collect();
        let (devices, kernels) = (Arc::new(devices?), KernelTier::default());
        Ok(CudaDevices { devices, driver, peers: Arc::default(), kernels, hang_time: hang_time(None) })
    }

    /// With these kernels, on the devices that have them.
    pub fn with_kernels(self, kernels: KernelTier) -> CudaDevices {
        CudaDevices { kernels, ..self }
    }

    /// A device that hangs is noticed before this deadline of a step.
    pub fn within(self, step_deadline: Option<Duration>) -> CudaDevices {
        CudaDevices { hang_time: hang_time(step_deadline), ..self }
    }

    /// The kernels that a device runs.
    pub fn kernels_of(&self, device: &CudaDevice) -> KernelTier {
        if device.takes_fast() { self.kernels } else { KernelTier::Plain }
    }

    pub fn devices(&self) -> &[CudaDevice] {
        &self.devices
    }

    fn backend(&self, index: usize, link: Box<dyn Collective>) -> Result<Cuda> {
        let device = self.devices.get(index).ok_or_else(|| {
            let what = format!("rank {} needs a device of its own, got {} devices", index, self.devices.len());
            KernelError::Device(what)
        })?;
        let (device, peers) = (self.driver.device(device.index)?, Arc::clone(&self.peers));
        Cuda::new(device, self.kernels, link, peers, self.hang_time)
    }
}

impl Devices for CudaDevices {
    type Backend = Cuda;
    const KIND: &'static str = "cuda";
    /// Of a layer of Kimi K2 in FP8 (docs/benchmarks/cuda.md): 1 row takes 1,142 us, 64 rows take 1,824.
    const STEP_COST: usize = 100;
    const KEEPS_CACHES: bool = true;
    const PREPARES: bool = true;

    fn open(&self, index: usize, _: usize, link: Box<dyn Collective>) -> Result<Cuda> {
        self.backend(index, link)
    }

    fn open_beside(&self, index: usize) -> Result<Cuda> {
        self.backend(index, Box::new(threads::alone()))
    }

    fn count(&self) -> Option<usize> {
        Some(self.devices.len())
    }

    /// What the driver reports, for all devices together, without the room for activations; other processes count too.
    fn free_memory(&self) -> Result<usize> {
        let free = |(_, device): (usize, &CudaDevice)| {
            let (free, total) = device.memory()?;
            Ok(free.saturating_sub(total / ACTIVATIONS))
        };
        let first = |(i, device): &(usize, &CudaDevice)| self.devices[..*i].iter().all(|d| d.index != device.index);
        self.devices.iter().enumerate().filter(first).map(free).sum()
    }

    fn free_after_dry_run(&self, index: usize) -> Result<usize> {
        let (free, total) = self.devices[index].memory()?;
        Ok(free.saturating_sub(total / RECORDED))
    }
}

impl DeviceStorage for CudaDevices {
    fn host_form(&self, role: WeightRole, stored: StoredForm, precision: Precision) -> HostForm {
        CudaStorage.host_form(role, stored, precision)
    }

    fn weight_bytes(&self, role: WeightRole, stored: StoredForm, precision: Precision, numbers: usize) -> usize {
        CudaStorage.weight_bytes(role, stored, precision, numbers)
    }
}
