//! CUDA through the driver API. The driver is loaded at run time, so a binary with this module starts without a GPU.
//! This module does not know models.
//!
//! From the bottom: `device` and `memory`; `op_stream`, on which ops put their kernels; `step_state`, what is kept
//! between steps; `ranks`, the link to other ranks; the ops, a file for each kind; `backend`, which holds these parts.

mod angles;
mod arena;
mod args;
mod attention;
mod backend;
mod batch;
mod blocking;
mod clamped;
mod delta;
mod device;
mod devices;
mod draw;
mod draw_plan;
mod driver;
mod dry;
mod elementwise;
mod error;
mod event;
mod experts;
mod fast;
mod flash;
mod form;
mod gemm;
mod graphs;
mod grouped;
mod image;
mod lanes;
mod latent;
mod linear;
mod low_rank;
mod memory;
mod moe;
mod op_stream;
mod operand;
mod outputs;
mod piece_lists;
mod pinned_blocks;
mod plan;
mod ranks;
mod routes;
pub mod selftest;
mod step;
mod step_state;
mod tensor;
mod tensor_map;
#[cfg(test)]
mod tests;
mod topology;
mod upload;
mod version;
mod weights;

pub use attention::DeviceCache;
pub use backend::Cuda;
pub use batch::DeviceBatch;
pub use blocking::LAST_KERNEL;
pub use delta::DeviceStates;
pub use device::{CudaDevice, Properties};
pub use devices::CudaDevices;
pub use driver::{Driver, separate_streams};
pub use error::CudaError;
pub use experts::DeviceExperts;
pub use fast::KernelTier;
pub use image::{has_fast_kernels, machine_code};
pub use memory::{DeviceBuffer, PinnedBuffer};
pub use plan::LaunchPlan;
pub use ranks::nccl_shares_gpus;
pub use routes::DeviceRoutes;
pub use tensor::DeviceTensor;
pub use topology::GpuPlaces;
pub use version::Version;
pub use weights::{DeviceEmbedding, DeviceExpansion, DeviceLinear, DeviceVector};

type Result<T> = std::result::Result<T, CudaError>;
