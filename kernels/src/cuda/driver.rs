//! The driver library: whether it is there, which version it has, and how many devices it sees.

use cudarc::driver::sys;

use super::error::check;
use super::version::{MINIMUM_CUDA, Version};
use super::{CudaDevice, CudaError, Properties, Result};

/// How many queues the driver makes for a device, of which each stream gets one: from 1 to 32, and 8 if it is not set
/// (CUDA programming guide, "Environment Variables").
const QUEUES: &str = "CUDA_DEVICE_MAX_CONNECTIONS";
const MOST_QUEUES: &str = "32";

/// Gives each stream of a device a queue of its own. Of two streams in one queue, the second waits while the next
/// kernel of the first does; ranks that share a device would wait for each other for ever. Call it before the process
/// has a second thread; later it does nothing.
pub fn separate_streams() {
    let alone = std::fs::read_dir("/proc/self/task").is_ok_and(|threads| threads.count() == 1);
    if alone && std::env::var_os(QUEUES).is_none() {
        // SAFETY: there is no other thread that could read the environment meanwhile.
        unsafe { std::env::set_var(QUEUES, MOST_QUEUES) };
    }
}

/// The loaded and initialized driver.
#[derive(Debug, Clone)]
pub struct Driver {
    pub version: Version,
    pub devices: usize,
}

impl Driver {
    pub fn open() -> Result<Driver> {
        // SAFETY: loading the library runs its initializers, which NVIDIA's driver allows in any process.
        if !unsafe { sys::is_culib_present() } {
            return Err(CudaError::NoDriver);
        }
        let mut number = 0;
        // SAFETY: writes one int; allowed before cuInit, which drivers that are too old may refuse.
        check("cuDriverGetVersion", unsafe { sys::cuDriverGetVersion(&mut number) })?;
        let version = Version { major: number as u32 / 1000, minor: number as u32 % 1000 / 10 };
        if version < MINIMUM_CUDA {
            return Err(CudaError::OldDriver { found: version });
        }
        // SAFETY: takes no pointers.
        let code = unsafe { sys::cuInit(0) };
        if code == sys::CUresult::CUDA_ERROR_NO_DEVICE {
            return Ok(Driver { version, devices: 0 });
        }
        check("cuInit", code)?;
        let mut count = 0;
        // SAFETY: writes one int.
        check("cuDeviceGetCount", unsafe { sys::cuDeviceGetCount(&mut count) })?;
        Ok(Driver { version, devices: count as usize })
    }

    /// CudaDevice `index` of those that CUDA_VISIBLE_DEVICES leaves.
    pub fn device(&self, index: usize) -> Result<CudaDevice> {
        CudaDevice::open(index, self.handle(index)?)
    }

    /// Those of a device, which need not be one that can be used.
    pub fn properties(&self, index: usize) -> Result<Properties> {
        Properties::of(self.handle(index)?)
    }

    fn handle(&self, index: usize) -> Result<sys::CUdevice> {
        if index >= self.devices {
            let visible = std::env::var("CUDA_VISIBLE_DEVICES").ok();
            return Err(CudaError::NoDevice { index, count: self.devices, visible });
        }
        let mut device = 0;
        // SAFETY: writes one handle.
        check("cuDeviceGet", unsafe { sys::cuDeviceGet(&mut device, index as i32) })?;
        Ok(device)
    }
}
