//! The forms of numbers that a KV cache has, and the order in which attention loads them.

use half::bf16;

use crate::cpu::simd::Simd;

/// Numbers of the cache. 32 of them are loaded in the cheapest order, which queries and outputs follow: number i of
/// whole 32 is at `place(i)`. The rest after the last whole 32 keeps its order.
pub trait CachedNumber: Copy {
    /// Loaded numbers are multiplied with this and, if it is not 1, with the scale of their entry.
    const FACTOR: f32 = 1.0;
    fn place(i: usize) -> usize;
    unsafe fn load_32<S: Simd>(p: *const Self) -> [S::V; 2];
    /// At most 16.
    unsafe fn load_n<S: Simd>(p: *const Self, n: usize) -> S::V;
}

/// Copies a vector into the order of `CachedNumber::place`, or back.
#[inline(always)]
pub fn permute<T: CachedNumber>(from: &[f32], to: &mut [f32], back: bool) {
    let whole = from.len().min(to.len()) / 32 * 32;
    for base in (0..whole).step_by(32) {
        for i in 0..32 {
            let (a, b) = if back { (T::place(i), i) } else { (i, T::place(i)) };
            to[base + b] = from[base + a];
        }
    }
    let end = from.len().min(to.len());
    to[whole..end].copy_from_slice(&from[whole..end]);
}

impl CachedNumber for f32 {
    #[inline(always)]
    fn place(i: usize) -> usize {
        i
    }
    #[inline(always)]
    unsafe fn load_32<S: Simd>(p: *const f32) -> [S::V; 2] {
        // SAFETY: valid for 32 numbers by the caller's promise.
        unsafe { [S::load(p), S::load(p.add(16))] }
    }
    #[inline(always)]
    unsafe fn load_n<S: Simd>(p: *const f32, n: usize) -> S::V {
        // SAFETY: the same contract.
        unsafe { if n == 16 { S::load(p) } else { S::load_n(p, n) } }
    }
}

impl CachedNumber for bf16 {
    #[inline(always)]
    fn place(i: usize) -> usize {
        i / 2 + 16 * (i % 2)
    }
    #[inline(always)]
    unsafe fn load_32<S: Simd>(p: *const bf16) -> [S::V; 2] {
        // SAFETY: valid for 32 numbers by the caller's promise.
        unsafe { S::load_bf16_split(p) }
    }
    #[inline(always)]
    unsafe fn load_n<S: Simd>(p: *const bf16, n: usize) -> S::V {
        // SAFETY: the same contract.
        unsafe { if n == 16 { S::load_bf16(p) } else { S::load_bf16_n(p, n) } }
    }
}

/// A code of e4m3.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Fp8Code(u8);

impl CachedNumber for Fp8Code {
    const FACTOR: f32 = 256.0;
    #[inline(always)]
    fn place(i: usize) -> usize {
        i
    }
    #[inline(always)]
    unsafe fn load_32<S: Simd>(p: *const Fp8Code) -> [S::V; 2] {
        // SAFETY: valid for 32 codes by the caller's promise.
        unsafe { [S::load_e4m3(p.cast()), S::load_e4m3(p.add(16).cast())] }
    }
    #[inline(always)]
    unsafe fn load_n<S: Simd>(p: *const Fp8Code, n: usize) -> S::V {
        let mut codes = [0u8; 16];
        // SAFETY: valid for n codes by the caller's promise.
        unsafe {
            std::ptr::copy_nonoverlapping(p.cast(), codes.as_mut_ptr(), n);
            S::load_e4m3(codes.as_ptr())
        }
    }
}
