//! Sixteen f32 lanes on each instruction set, and dispatch at run time. Kernels are written once, generic over `Simd`,
//! and compiled for each set by `simd_fn!`. Within one set every result is a pure function of its inputs; between sets
//! results agree up to rounding.

use half::bf16;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Isa {
    /// AVX-512 F, BW, DQ, VL, BF16 and VBMI.
    Avx512,
    /// AVX2 and FMA.
    Avx2,
    Portable,
}

impl Isa {
    pub fn detect() -> Isa {
        #[cfg(target_arch = "x86_64")]
        {
            let fma = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
            if fma
                && is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx512bf16")
                && is_x86_feature_detected!("avx512vbmi")
            {
                return Isa::Avx512;
            }
            if fma {
                return Isa::Avx2;
            }
        }
        Isa::Portable
    }

    /// `Simd::TILE_ROWS` of the set.
    pub fn tile_rows(self) -> usize {
        match self {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => Avx512::TILE_ROWS,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => Avx2::TILE_ROWS,
            _ => Portable::TILE_ROWS,
        }
    }

    /// The instruction sets of this machine, best first.
    pub fn available() -> Vec<Isa> {
        match Isa::detect() {
            Isa::Avx512 => vec![Isa::Avx512, Isa::Avx2, Isa::Portable],
            Isa::Avx2 => vec![Isa::Avx2, Isa::Portable],
            Isa::Portable => vec![Isa::Portable],
        }
    }
}

/// # Safety
/// All methods need the instruction set of the implementing type; pointers must be valid for the 16 elements named.
/// No alignment is asked for.
pub unsafe trait Simd: Copy + 'static {
    type V: Copy;
    /// Rows of activations that a product kernel holds in registers at once.
    const TILE_ROWS: usize;
    unsafe fn splat(x: f32) -> Self::V;
    unsafe fn load(p: *const f32) -> Self::V;
    unsafe fn load_bf16(p: *const bf16) -> Self::V;
    /// The first n < 16 elements, zeros after them; only those are read.
    unsafe fn load_n(p: *const f32, n: usize) -> Self::V;
    unsafe fn load_bf16_n(p: *const bf16, n: usize) -> Self::V;
    /// 32 f32 rounded to bf16 (nearest even), as 16 words of pairs.
    unsafe fn load_pairs(p: *const f32) -> Self::V;
    unsafe fn store(p: *mut f32, v: Self::V);
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn sub(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn div(a: Self::V, b: Self::V) -> Self::V;
    /// If either is NaN, the result is one of the two.
    unsafe fn max(a: Self::V, b: Self::V) -> Self::V;
    /// Prefetches the cache line of p, which need not be valid, into the second-level cache.
    unsafe fn prefetch(p: *const u8);
    /// a * b + c
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// Each 32-bit lane of a and b is a pair of bf16; acc + a.low * b.low + a.high * b.high.
    unsafe fn dot_pair(acc: Self::V, a: Self::V, b: Self::V) -> Self::V;
    /// e^x within 2 ulp; 0 below -104, and for -inf.
    unsafe fn exp(x: Self::V) -> Self::V;
    /// Sum of the lanes, in an order that depends on the instruction set.
    unsafe fn sum(v: Self::V) -> f32;
    /// Lane i of the result is the sum of the lanes of v[i], in the same order for every i.
    unsafe fn sums(v: [Self::V; 16]) -> Self::V;
    /// Lane j of result i is lane i of v[j].
    unsafe fn transpose(v: [Self::V; 16]) -> [Self::V; 16];
    /// 64 sign-magnitude bytes to 32 pairs of bf16, for columns 0..16 and 16..32 (see `int8_slot`).
    unsafe fn widen_int8(src: *const u8) -> [Self::V; 2];
    /// 32 numbers: the even ones and the odd ones.
    unsafe fn load_bf16_split(p: *const bf16) -> [Self::V; 2];
}

/// bf16 bits of x, rounded to nearest even; NaN stays NaN.
#[inline(always)]
pub fn round_bits(x: f32) -> u32 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
    if x.is_nan() { (bits >> 16) | 0x40 } else { rounded }
}

const fn magnitude_table(high: bool) -> [u8; 128] {
    let mut table = [0u8; 128];
    let mut i = 1usize;
    while i < 128 {
        let exponent = (i as u32).ilog2();
        let bits = ((127 + exponent) << 7) as u16 | ((i as u16) << (7 - exponent) & 0x7f);
        table[i] = if high { (bits >> 8) as u8 } else { bits as u8 };
        i += 1;
    }
    table
}

pub static HIGH: [u8; 128] = magnitude_table(true);
pub static LOW: [u8; 128] = magnitude_table(false);

/// Byte of a 64-byte int8 step that unpacks to element `half` of output `column`: the order in which
/// `vpunpckl/hbw` of the low and high result bytes yields columns 0..16 and 16..32.
#[inline(always)]
pub fn int8_slot(column: usize, half: usize) -> usize {
    let (hi, column) = (column / 16, column % 16);
    16 * (column / 4) + 8 * hi + 2 * (column % 4) + half
}

#[inline(always)]
fn widen_int8_by_table(src: &[u8; 64]) -> [[f32; 16]; 2] {
    let at = |column, half| {
        let byte = src[int8_slot(column, half)];
        let bits = u32::from(HIGH[usize::from(byte & 0x7f)] | byte & 0x80) << 8;
        bits | u32::from(LOW[usize::from(byte & 0x7f)])
    };
    let word = |column| f32::from_bits(at(column, 0) | at(column, 1) << 16);
    [std::array::from_fn(word), std::array::from_fn(|column| word(16 + column))]
}

#[derive(Clone, Copy)]
pub struct Portable;

// SAFETY: plain Rust over arrays; the only needs are the pointers' validity, which the trait asks for.
unsafe impl Simd for Portable {
    type V = [f32; 16];
    const TILE_ROWS: usize = 4;
    #[inline(always)]
    unsafe fn load_n(p: *const f32, n: usize) -> [f32; 16] {
        let mut all = [0.0f32; 16];
        // SAFETY: n < 16 elements are readable by the trait's contract, and all has 16.
        unsafe {
            std::ptr::copy_nonoverlapping(p, all.as_mut_ptr(), n);
            Self::load(all.as_ptr())
        }
    }
    #[inline(always)]
    unsafe fn load_bf16_n(p: *const bf16, n: usize) -> [f32; 16] {
        let mut all = [bf16::ZERO; 16];
        // SAFETY: as for load_n.
        unsafe {
            std::ptr::copy_nonoverlapping(p, all.as_mut_ptr(), n);
            Self::load_bf16(all.as_ptr())
        }
    }
    #[inline(always)]
    unsafe fn load_pairs(p: *const f32) -> [f32; 16] {
        let mut words = [0.0f32; 16];
        // SAFETY: 32 elements are readable by the trait's contract.
        let x = unsafe { p.cast::<[f32; 32]>().read_unaligned() };
        for (i, word) in words.iter_mut().enumerate() {
            *word = f32::from_bits(round_bits(x[2 * i]) | round_bits(x[2 * i + 1]) << 16);
        }
        // SAFETY: words has 16 elements.
        unsafe { Self::load(words.as_ptr()) }
    }
    #[inline(always)]
    unsafe fn splat(x: f32) -> [f32; 16] {
        [x; 16]
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> [f32; 16] {
        // SAFETY: valid for 16 elements by the trait's contract; arrays of f32 may be read unaligned so.
        unsafe { p.cast::<[f32; 16]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const bf16) -> [f32; 16] {
        // SAFETY: as for load.
        let bits = unsafe { p.cast::<[u16; 16]>().read_unaligned() };
        bits.map(|b| f32::from_bits(u32::from(b) << 16))
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: [f32; 16]) {
        // SAFETY: as for load, for writes.
        unsafe { p.cast::<[f32; 16]>().write_unaligned(v) }
    }
    #[inline(always)]
    unsafe fn add(a: [f32; 16], b: [f32; 16]) -> [f32; 16] {
        std::array::from_fn(|i| a[i] + b[i])
    }
    #[inline(always)]
    unsafe fn sub(a: [f32; 16], b: [f32; 16]) -> [f32; 16] {
        std::array::from_fn(|i| a[i] - b[i])
    }
    #[inline(always)]
    unsafe fn mul(a: [f32; 16], b: [f32; 16]) -> [f32; 16] {
        std::array::from_fn(|i| a[i] * b[i])
    }
    #[inline(always)]
    unsafe fn div(a: [f32; 16], b: [f32; 16]) -> [f32; 16] {
        std::array::from_fn(|i| a[i] / b[i])
    }
    #[inline(always)]
    unsafe fn max(a: [f32; 16], b: [f32; 16]) -> [f32; 16] {
        std::array::from_fn(|i| if a[i] > b[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    unsafe fn prefetch(p: *const u8) {
        let _ = p;
    }
    #[inline(always)]
    unsafe fn fma(a: [f32; 16], b: [f32; 16], c: [f32; 16]) -> [f32; 16] {
        std::array::from_fn(|i| a[i] * b[i] + c[i])
    }
    #[inline(always)]
    unsafe fn dot_pair(acc: [f32; 16], a: [f32; 16], b: [f32; 16]) -> [f32; 16] {
        let low = |x: f32| f32::from_bits(x.to_bits() << 16);
        let high = |x: f32| f32::from_bits(x.to_bits() & 0xffff_0000);
        std::array::from_fn(|i| acc[i] + low(a[i]) * low(b[i]) + high(a[i]) * high(b[i]))
    }
    #[inline(always)]
    unsafe fn exp(x: [f32; 16]) -> [f32; 16] {
        x.map(f32::exp)
    }
    #[inline(always)]
    unsafe fn sum(v: [f32; 16]) -> f32 {
        let mut v = v;
        for width in [8, 4, 2, 1] {
            for i in 0..width {
                v[i] += v[i + width];
            }
        }
        v[0]
    }
    #[inline(always)]
    unsafe fn sums(v: [[f32; 16]; 16]) -> [f32; 16] {
        // SAFETY: no need beyond the type's own.
        v.map(|lanes| unsafe { Self::sum(lanes) })
    }
    #[inline(always)]
    unsafe fn transpose(v: [[f32; 16]; 16]) -> [[f32; 16]; 16] {
        std::array::from_fn(|i| std::array::from_fn(|j| v[j][i]))
    }
    #[inline(always)]
    unsafe fn widen_int8(src: *const u8) -> [[f32; 16]; 2] {
        // SAFETY: valid for 64 bytes by the trait's contract.
        widen_int8_by_table(unsafe { &*src.cast() })
    }
    #[inline(always)]
    unsafe fn load_bf16_split(p: *const bf16) -> [[f32; 16]; 2] {
        // SAFETY: valid for 32 elements by the trait's contract.
        let bits = unsafe { p.cast::<[u16; 32]>().read_unaligned() };
        let widen = |i: usize| f32::from_bits(u32::from(bits[i]) << 16);
        [std::array::from_fn(|i| widen(2 * i)), std::array::from_fn(|i| widen(2 * i + 1))]
    }
}

#[cfg(target_arch = "x86_64")]
pub use super::x86::{Avx2, Avx512};

/// Defines `unsafe fn name(isa, args)`, which calls the generic kernel compiled for that instruction set.
macro_rules! simd_fn {
    ($(#[$meta:meta])* $vis:vis fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? = $kernel:ident) => {
        $(#[$meta])*
        #[allow(clippy::too_many_arguments)]
        $vis unsafe fn $name(isa: $crate::cpu::simd::Isa, $($arg: $ty),*) $(-> $ret)? {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx512vbmi,avx2,fma")]
            unsafe fn avx512($($arg: $ty),*) $(-> $ret)? {
                // SAFETY: the features are enabled here; the rest is the caller's promise.
                unsafe { $kernel::<$crate::cpu::simd::Avx512>($($arg),*) }
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            unsafe fn avx2($($arg: $ty),*) $(-> $ret)? {
                // SAFETY: the features are enabled here; the rest is the caller's promise.
                unsafe { $kernel::<$crate::cpu::simd::Avx2>($($arg),*) }
            }
            // SAFETY: an `Isa` other than Portable comes from `Isa::detect`, which asked the processor; the rest is
            // the caller's promise.
            unsafe {
                match isa {
                    #[cfg(target_arch = "x86_64")]
                    $crate::cpu::simd::Isa::Avx512 => avx512($($arg),*),
                    #[cfg(target_arch = "x86_64")]
                    $crate::cpu::simd::Isa::Avx2 => avx2($($arg),*),
                    _ => $kernel::<$crate::cpu::simd::Portable>($($arg),*),
                }
            }
        }
    };
}
pub(crate) use simd_fn;

#[cfg(test)]
mod tests;
