//! Inference-level ops behind one trait, and the collectives that link ranks. This crate must not know tokio, protobuf
//! or model names.

pub mod backend;
pub mod blocks;
pub mod collective;
pub mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
pub mod diff;
pub mod error;
pub mod expert_inputs;
pub mod host_buffer;
pub mod host_matrix;
pub mod inputs;
pub mod kv_split;
pub mod lockstep;
mod ops;
pub mod probe;
pub mod quant;
#[cfg(any(test, feature = "cuda"))]
mod random;
pub mod reference;
pub mod rounding;
pub mod sample;
pub mod storage;

pub use backend::*;
pub use error::{KernelError, Result};
pub use storage::{CudaStorage, DeviceStorage};
