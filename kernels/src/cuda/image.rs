//! The machine code that this binary has.

use super::version::Version;

/// The fat binary that `make cuda` makes; empty if the crate was built without it.
#[repr(align(16))]
struct Aligned<T: ?Sized>(T);
static IMAGE: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/rein.fatbin")));

/// The machine code of the fast kernels, by library; empty if the binary was built without their headers.
static DEEP_GEMM: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/deep_gemm.cubin")));
static FLASHINFER: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/flashinfer.cubin")));
static HUMMING: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/humming.cubin")));

/// Empty without `make cuda`.
pub(super) fn kernel_image() -> &'static [u8] {
    &IMAGE.0
}

pub(super) fn fast_images() -> [&'static [u8]; 3] {
    [&DEEP_GEMM.0, &FLASHINFER.0, &HUMMING.0]
}

/// Whether this binary has fast kernels.
pub fn has_fast_kernels() -> bool {
    fast_images().iter().all(|image| !image.is_empty())
}

/// Which machine code a device of this capability runs; None: the driver compiles the PTX.
pub fn machine_code(capability: Version) -> Option<&'static str> {
    match (capability.major, capability.minor) {
        (8, _) => Some("sm_80"),
        // Code for an architecture with `a` runs on that one alone.
        (9, 0) => Some("sm_90a"),
        (10, 0) => Some("sm_100a"),
        _ => None,
    }
}
