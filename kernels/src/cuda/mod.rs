//! CUDA through the driver API. The driver is loaded at run time, so a binary with this module starts without a GPU.
//! This module does not know models.

mod angles;
mod arena;
mod args;
mod attention;
mod backend;
mod batch;
mod blocking;
mod device;
mod devices;
mod draw;
mod driver;
mod error;
mod experts;
mod fast;
mod flash;
mod graphs;
mod linear;
mod memory;
mod moe;
mod plan;
mod ranks;
pub mod selftest;
mod step;
mod tensor;
#[cfg(test)]
mod tests;
mod topology;
mod upload;
mod weights;

pub use attention::DeviceCache;
pub use backend::Cuda;
pub use batch::DeviceBatch;
pub use blocking::LAST_KERNEL;
pub use device::{CudaDevice, Properties, machine_code};
pub use devices::CudaDevices;
pub use driver::{Driver, Version, separate_streams};
pub use error::CudaError;
pub use experts::DeviceExperts;
pub use fast::{KernelTier, has_fast_kernels};
pub use memory::{DeviceBuffer, PinnedBuffer};
pub use moe::DeviceRoutes;
pub use plan::LaunchPlan;
pub use ranks::nccl_shares_gpus;
pub use tensor::DeviceTensor;
use tensor::Element;
pub use topology::GpuPlaces;
pub use weights::{DeviceEmbedding, DeviceExpansion, DeviceLinear, DeviceVector};

type Result<T> = std::result::Result<T, CudaError>;
