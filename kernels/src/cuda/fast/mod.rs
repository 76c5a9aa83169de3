//! The fast tier: kernels for Hopper (sm_90a) from headers of DeepGEMM, FlashInfer and humming, beside the plain
//! kernels, which run everywhere: what they take and give. `gemm`, `grouped` and `latent` launch them; what no fast
//! kernel takes is computed by a plain one. This module does not know models.

mod args;
mod int4;
mod plan;

pub(super) use args::{FastDivisor, FastMap, GemmBf16Args, GemmFp8Args, Int4Args, LatentArgs};
pub(super) use int4::{INT4_THREADS, Int4Plans, Int4Tile, repack, tiled_scales};
pub(super) use plan::{Form, GemmPlan, OperandType, Product, TileKernel, scale_stride};

/// Bytes of shared memory that a block can have on sm_90.
const MOST_SHARED: usize = 227 << 10;

/// Which kernels compute.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KernelTier {
    /// Those that run on every device.
    #[default]
    Plain,
    /// Where there is one, a kernel for Hopper.
    Fast,
}

#[cfg(test)]
mod tests;
