//! The arguments of the fast kernels, as kernels/cuda/fast/args.h declares them.

use std::mem::offset_of;

use super::super::tensor_map::TensorMap;

/// A tensor map as a parameter of its own.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(128))]
pub struct FastMap(pub TensorMap);

/// gemm.h, FP8
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct GemmFp8Args {
    pub w_scales: u64,
    pub ends: u64,
    pub rows: u32,
    pub n: u32,
    pub k: u32,
    pub x: FastMap,
    pub w: FastMap,
    pub out: FastMap,
    pub x_scales: FastMap,
}

/// gemm.h, bf16
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct GemmBf16Args {
    pub ends: u64,
    pub rows: u32,
    pub n: u32,
    pub k: u32,
    pub x: FastMap,
    pub w: FastMap,
    pub out: FastMap,
}

/// int4.h, products
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Int4Args {
    pub x: FastMap,
    pub w: FastMap,
    pub out: u64,
    pub unused: [u64; 2],
    pub scales: FastMap,
    pub none: [u64; 6],
    pub starts: u64,
    pub buffers: [u64; 2],
    pub rows: u32,
    pub top_k: u32,
    pub long_starts: bool,
}

/// int4.h, int4_repack
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Int4RepackArgs {
    pub from: u64,
    pub to: u64,
    pub zeros: u64,
    pub n: u32,
    pub k: u32,
    pub padded_n: u32,
    pub padded_k: u32,
    pub interleaved: u32,
}

/// A divisor with what a division by it needs: the quotient is `(x + add) * multiplier >> (32 + shift)`, or `x >>
/// shift` for a power of two.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct FastDivisor {
    pub by: u32,
    pub multiplier: u32,
    pub add: u32,
    pub shift: i32,
    pub again: u32,
}

impl FastDivisor {
    /// The round-up method for unsigned division (<https://arxiv.org/abs/2412.03680>).
    pub fn new(by: u32) -> FastDivisor {
        assert!(by > 0, "a division by zero");
        let shift = by.ilog2();
        let mut divisor = FastDivisor { by, multiplier: 0, add: 0, shift: shift as i32, again: by };
        if !by.is_power_of_two() {
            let power = 1u64 << (32 + shift);
            let (quotient, rest) = (power / u64::from(by), power % u64::from(by));
            let rounds_up = rest >= u64::from(by) - (1 << shift);
            divisor.multiplier = quotient as u32 + u32::from(rounds_up);
            divisor.add = u32::from(!rounds_up);
        }
        divisor
    }
}

/// flashinfer.cu
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub struct LatentArgs {
    pub q_latent: u64,
    pub q_rope: u64,
    pub latent: u64,
    pub rope: u64,
    pub partial: u64,
    pub partial_scale: u64,
    pub out: u64,
    pub out_scale: u64,
    pub first_row: u64,
    pub first_block: u64,
    pub partial_at: u64,
    pub merge: [u64; 5],
    pub tables: u64,
    pub row_count: u64,
    pub positions: u64,
    pub first_query: u64,
    pub from: u64,
    pub to: u64,
    pub work: u64,
    pub block_size: FastDivisor,
    pub heads: FastDivisor,
    pub q_latent_stride: u32,
    pub q_latent_head_stride: u32,
    pub q_rope_stride: u32,
    pub q_rope_head_stride: u32,
    pub latent_block_stride: u32,
    pub latent_stride: u32,
    pub rope_block_stride: u32,
    pub rope_stride: u32,
    pub out_stride: u32,
    pub out_head_stride: u32,
    pub scale: f32,
    pub latent_scale: f32,
    pub rope_scale: f32,
    pub scales: u64,
    pub natural_log: bool,
}

// As args.h asserts.
const _: () = {
    assert!(offset_of!(GemmFp8Args, k) == 24 && offset_of!(GemmFp8Args, x) == 128 && size_of::<GemmFp8Args>() == 640);
    assert!(offset_of!(GemmBf16Args, k) == 16 && offset_of!(GemmBf16Args, x) == 128);
    assert!(size_of::<GemmBf16Args>() == 512);
    assert!(offset_of!(Int4Args, scales) == 384 && offset_of!(Int4Args, starts) == 560);
    assert!(offset_of!(Int4Args, rows) == 584 && offset_of!(Int4Args, long_starts) == 592);
    assert!(offset_of!(Int4RepackArgs, n) == 24 && size_of::<Int4RepackArgs>() == 48);
    assert!(offset_of!(LatentArgs, block_size) == 184 && offset_of!(LatentArgs, q_latent_stride) == 224);
    assert!(offset_of!(LatentArgs, scale) == 264 && offset_of!(LatentArgs, scales) == 280);
    assert!(size_of::<LatentArgs>() == 296);
};
