//! Sixteen f32 lanes on each instruction set, and dispatch at run time. Kernels are written once, generic over `Simd`,
//! and compiled for each set by `simd_fn!`. Within one set every result is a pure function of its inputs; between sets
//! results agree up to rounding.

use half::{bf16, f16};

#[cfg(target_arch = "x86_64")]
use super::amx;
use crate::quant::e4m3;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Isa {
    /// As `Avx512`, with AMX (tiles, BF16 and INT8) for products.
    Amx,
    /// AVX-512 F, BW, DQ, VL, BF16 and VNNI.
    Avx512,
    /// AVX2, FMA and F16C.
    Avx2,
    Portable,
}

impl Isa {
    pub fn detect() -> Isa {
        #[cfg(target_arch = "x86_64")]
        {
            let fma =
                is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c");
            if fma
                && is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx512bf16")
                && is_x86_feature_detected!("avx512vnni")
            {
                return if amx::are_usable() { Isa::Amx } else { Isa::Avx512 };
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
            Isa::Avx512 | Isa::Amx => Avx512::TILE_ROWS,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => Avx2::TILE_ROWS,
            _ => Portable::TILE_ROWS,
        }
    }

    /// `Simd::MULTIPLIES_PAIRS` of the set.
    pub fn multiplies_pairs(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Amx => Avx512::MULTIPLIES_PAIRS,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => Avx2::MULTIPLIES_PAIRS,
            _ => Portable::MULTIPLIES_PAIRS,
        }
    }

    /// The instruction sets of this machine, best first. In tests those that are emulated too.
    pub fn available() -> Vec<Isa> {
        match Isa::detect() {
            Isa::Amx => vec![Isa::Amx, Isa::Avx512, Isa::Avx2, Isa::Portable],
            #[cfg(all(test, target_os = "linux", target_arch = "x86_64"))]
            Isa::Avx512 => {
                amx::emulate();
                vec![Isa::Amx, Isa::Avx512, Isa::Avx2, Isa::Portable]
            }
            #[allow(unreachable_patterns)]
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
    /// Whether `dot_pair` is one instruction. Elsewhere products take f32, which are the `halves` of weights.
    const MULTIPLIES_PAIRS: bool;
    /// Whether 16 accumulators and their operands fit in registers; otherwise 4 do.
    const MANY_REGISTERS: bool;
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
    /// The low and the high numbers of 32-bit lanes that are pairs of bf16.
    unsafe fn halves(pairs: Self::V) -> [Self::V; 2];
    /// Each 32-bit lane of a and b is a pair of 16-bit integers, and acc is 32-bit integers; as `dot_pair`.
    unsafe fn dot_integers(acc: Self::V, a: Self::V, b: Self::V) -> Self::V;
    /// Each 32-bit lane of a is four integers from -127 to 127, of b four from 0 to 127, and acc is 32-bit integers:
    /// acc + the sum of the four products.
    unsafe fn dot_bytes(acc: Self::V, a: Self::V, b: Self::V) -> Self::V;
    /// 32-bit integers as f32.
    unsafe fn from_integers(v: Self::V) -> Self::V;
    /// e^x within 2 ulp; 0 below -104, and for -inf.
    unsafe fn exp(x: Self::V) -> Self::V;
    /// Sum of the lanes, in an order that depends on the instruction set.
    unsafe fn sum(v: Self::V) -> f32;
    /// Lane i of the result is the sum of the lanes of v[i], in the same order for every i.
    unsafe fn sums(v: [Self::V; 16]) -> Self::V;
    /// Lane j of result i is lane i of v[j].
    unsafe fn transpose(v: [Self::V; 16]) -> [Self::V; 16];
    /// 64 bytes, which are integers, as 32 pairs of 16-bit integers.
    unsafe fn widen_int8(src: *const u8) -> [Self::V; 2];
    /// 64 codes of e4m3, none of them NaN, as 32 pairs of bf16.
    unsafe fn widen_fp8(src: *const u8) -> [Self::V; 2];
    unsafe fn load_f16(p: *const f16) -> Self::V;
    /// 16 codes of e4m3, none of them NaN, divided by 256.
    unsafe fn load_e4m3(p: *const u8) -> Self::V;
    /// 16 integers as f32.
    unsafe fn load_u8(p: *const u8) -> Self::V;
    unsafe fn load_i8(p: *const i8) -> Self::V;
    /// Of the bits of 32-bit lanes.
    unsafe fn shift_right(v: Self::V, bits: u32) -> Self::V;
    unsafe fn shift_left(v: Self::V, bits: u32) -> Self::V;
    unsafe fn and_bits(v: Self::V, mask: u32) -> Self::V;
    unsafe fn or_bits(a: Self::V, b: Self::V) -> Self::V;
    /// Each byte of v, which is below 16, becomes that entry of the table.
    unsafe fn lookup(v: Self::V, table: &[u8; 16]) -> Self::V;
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

#[derive(Clone, Copy)]
pub struct Portable;

// SAFETY: plain Rust over arrays; the only needs are the pointers' validity, which the trait asks for.
unsafe impl Simd for Portable {
    type V = [f32; 16];
    const TILE_ROWS: usize = 4;
    const MULTIPLIES_PAIRS: bool = false;
    const MANY_REGISTERS: bool = false;
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
        // SAFETY: no need beyond the type's own.
        let ([a, odd_a], [b, odd_b]) = unsafe { (Self::halves(a), Self::halves(b)) };
        std::array::from_fn(|i| acc[i] + a[i] * b[i] + odd_a[i] * odd_b[i])
    }
    #[inline(always)]
    unsafe fn halves(pairs: [f32; 16]) -> [[f32; 16]; 2] {
        [pairs.map(|x| f32::from_bits(x.to_bits() << 16)), pairs.map(|x| f32::from_bits(x.to_bits() & 0xffff_0000))]
    }
    #[inline(always)]
    unsafe fn dot_integers(acc: [f32; 16], a: [f32; 16], b: [f32; 16]) -> [f32; 16] {
        let low = |x: f32| i32::from(x.to_bits() as i16);
        let high = |x: f32| (x.to_bits() as i32) >> 16;
        std::array::from_fn(|i| {
            let sum = (acc[i].to_bits() as i32).wrapping_add(low(a[i]) * low(b[i]));
            f32::from_bits(sum.wrapping_add(high(a[i]) * high(b[i])) as u32)
        })
    }
    #[inline(always)]
    unsafe fn dot_bytes(acc: [f32; 16], a: [f32; 16], b: [f32; 16]) -> [f32; 16] {
        std::array::from_fn(|i| {
            let (a, b) = (a[i].to_bits().to_le_bytes(), b[i].to_bits().to_le_bytes());
            let sum: i32 = a.iter().zip(b).map(|(&a, b)| i32::from(a as i8) * i32::from(b)).sum();
            f32::from_bits((acc[i].to_bits() as i32).wrapping_add(sum) as u32)
        })
    }
    #[inline(always)]
    unsafe fn from_integers(v: [f32; 16]) -> [f32; 16] {
        v.map(|x| x.to_bits() as i32 as f32)
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
        let bytes = unsafe { src.cast::<[i8; 64]>().read() };
        let word = |i: usize| f32::from_bits(bytes[2 * i] as u32 & 0xffff | (bytes[2 * i + 1] as u32) << 16);
        [std::array::from_fn(word), std::array::from_fn(|i| word(16 + i))]
    }
    #[inline(always)]
    unsafe fn widen_fp8(src: *const u8) -> [[f32; 16]; 2] {
        // SAFETY: valid for 64 bytes by the trait's contract.
        let bytes = unsafe { src.cast::<[u8; 64]>().read() };
        let word = |i: usize| {
            let [low, high] = [bytes[2 * i], bytes[2 * i + 1]].map(|code| e4m3(code).to_bits());
            f32::from_bits(low >> 16 | high & 0xffff_0000)
        };
        [std::array::from_fn(word), std::array::from_fn(|i| word(16 + i))]
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const f16) -> [f32; 16] {
        // SAFETY: valid for 16 elements by the trait's contract.
        unsafe { p.cast::<[f16; 16]>().read_unaligned() }.map(f16::to_f32)
    }
    #[inline(always)]
    unsafe fn load_e4m3(p: *const u8) -> [f32; 16] {
        // SAFETY: as for load_f16.
        unsafe { p.cast::<[u8; 16]>().read_unaligned() }.map(|code| e4m3(code) / 256.0)
    }
    #[inline(always)]
    unsafe fn load_u8(p: *const u8) -> [f32; 16] {
        // SAFETY: as for load_f16.
        unsafe { p.cast::<[u8; 16]>().read_unaligned() }.map(f32::from)
    }
    #[inline(always)]
    unsafe fn load_i8(p: *const i8) -> [f32; 16] {
        // SAFETY: as for load_f16.
        unsafe { p.cast::<[i8; 16]>().read_unaligned() }.map(f32::from)
    }
    #[inline(always)]
    unsafe fn shift_right(v: [f32; 16], bits: u32) -> [f32; 16] {
        v.map(|x| f32::from_bits(x.to_bits() >> bits))
    }
    #[inline(always)]
    unsafe fn shift_left(v: [f32; 16], bits: u32) -> [f32; 16] {
        v.map(|x| f32::from_bits(x.to_bits() << bits))
    }
    #[inline(always)]
    unsafe fn and_bits(v: [f32; 16], mask: u32) -> [f32; 16] {
        v.map(|x| f32::from_bits(x.to_bits() & mask))
    }
    #[inline(always)]
    unsafe fn or_bits(a: [f32; 16], b: [f32; 16]) -> [f32; 16] {
        std::array::from_fn(|i| f32::from_bits(a[i].to_bits() | b[i].to_bits()))
    }
    #[inline(always)]
    unsafe fn lookup(v: [f32; 16], table: &[u8; 16]) -> [f32; 16] {
        let entry = |code: u8| table[usize::from(code & 15)];
        v.map(|x| f32::from_bits(u32::from_le_bytes(x.to_bits().to_le_bytes().map(entry))))
    }
    #[inline(always)]
    unsafe fn load_bf16_split(p: *const bf16) -> [[f32; 16]; 2] {
        // SAFETY: valid for 32 elements, which are 16 pairs, by the trait's contract.
        unsafe { Self::halves(Self::load(p.cast())) }
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
pub use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
pub use avx512::Avx512;

/// Defines `unsafe fn name(isa, args)`, which calls the generic kernel compiled for that instruction set.
macro_rules! simd_fn {
    ($(#[$meta:meta])* $vis:vis fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? = $kernel:ident) => {
        $(#[$meta])*
        #[allow(clippy::too_many_arguments)]
        $vis unsafe fn $name(isa: $crate::cpu::simd::Isa, $($arg: $ty),*) $(-> $ret)? {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx512vnni,avx2,fma")]
            unsafe fn avx512($($arg: $ty),*) $(-> $ret)? {
                // SAFETY: the features are enabled here; the rest is the caller's promise.
                unsafe { $kernel::<$crate::cpu::simd::Avx512>($($arg),*) }
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c")]
            unsafe fn avx2($($arg: $ty),*) $(-> $ret)? {
                // SAFETY: the features are enabled here; the rest is the caller's promise.
                unsafe { $kernel::<$crate::cpu::simd::Avx2>($($arg),*) }
            }
            // SAFETY: an `Isa` other than Portable comes from `Isa::detect`, which asked the processor; the rest is
            // the caller's promise.
            unsafe {
                match isa {
                    #[cfg(target_arch = "x86_64")]
                    $crate::cpu::simd::Isa::Avx512 | $crate::cpu::simd::Isa::Amx => avx512($($arg),*),
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
