//! The fast tier: kernels for Hopper (sm_90a) from headers of DeepGEMM, FlashInfer and humming, beside the plain
//! kernels, which run everywhere. What no fast kernel takes is computed by a plain one. This module does not know
//! models.

mod args;
mod gemm;
mod grouped;
mod int4;
mod latent;
mod plan;

pub(super) use grouped::ExpertPlans;
pub(super) use int4::{Int4Plans, repack, tiled_scales};
pub(super) use latent::{LatentWork, WorkOf};
pub(super) use plan::{OperandType, scale_stride};

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

/// The machine code of the fast kernels, by library; empty if the binary was built without their headers.
#[repr(align(16))]
struct Aligned<T: ?Sized>(T);
static DEEP_GEMM: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/deep_gemm.cubin")));
static FLASHINFER: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/flashinfer.cubin")));
static HUMMING: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/humming.cubin")));

pub(super) fn images() -> [&'static [u8]; 3] {
    [&DEEP_GEMM.0, &FLASHINFER.0, &HUMMING.0]
}

/// Whether this binary has fast kernels.
pub fn has_fast_kernels() -> bool {
    images().iter().all(|image| !image.is_empty())
}

#[cfg(test)]
mod tests;
