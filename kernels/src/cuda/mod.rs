//! CUDA through the driver API. The driver is loaded at run time, so a binary with this module starts without a GPU.
//! This module does not know models.

mod args;
mod device;
mod driver;
mod error;
mod memory;
pub mod selftest;
#[cfg(test)]
mod tests;

pub use device::{CudaDevice, Properties};
pub use driver::{Driver, Version};
pub use error::CudaError;
pub use memory::{DeviceBuffer, PinnedBuffer};

type Result<T> = std::result::Result<T, CudaError>;
