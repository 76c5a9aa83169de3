//! SIMD lanes with AVX-512.
// Every block below is an intrinsic that only needs the instruction set, which the trait's contract guarantees, or a
// load or store of the elements that the contract names.
#![allow(clippy::undocumented_unsafe_blocks)]

use std::arch::asm;
use std::arch::x86_64::*;

use half::{bf16, f16};

use super::Simd;

pub(super) const LOG2_E: f32 = std::f32::consts::LOG2_E;
// ln 2 in two parts, so that n * LN2_HIGH is exact for the n that occur.
pub(super) const LN2_HIGH: f32 = 0.693_359_4;
pub(super) const LN2_LOW: f32 = -2.121_944_4e-4;
// Minimax polynomial of (e^r - 1 - r) / r^2 on |r| <= ln 2 / 2 (Cephes, expf).
pub(super) const POLY: [f32; 6] = [1.987_569_1e-4, 1.398_2e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 5.0e-1];
pub(super) const EXP_MIN: f32 = -104.0;
pub(super) const EXP_MAX: f32 = 89.0;

#[derive(Clone, Copy)]
pub struct Avx512;

// SAFETY: implemented with AVX-512 intrinsics only; the contract is the trait's.
unsafe impl Simd for Avx512 {
    type V = __m512;
    const TILE_ROWS: usize = 12;
    const MULTIPLIES_PAIRS: bool = true;
    const MANY_REGISTERS: bool = true;
    #[inline(always)]
    unsafe fn load_n(p: *const f32, n: usize) -> __m512 {
        unsafe { _mm512_maskz_loadu_ps((1u16 << n) - 1, p) }
    }
    #[inline(always)]
    unsafe fn load_bf16_n(p: *const bf16, n: usize) -> __m512 {
        unsafe {
            let bits = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16((1u16 << n) - 1, p.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(bits))
        }
    }
    #[inline(always)]
    unsafe fn load_pairs(p: *const f32) -> __m512 {
        unsafe {
            let pairs = _mm512_cvtne2ps_pbh(_mm512_loadu_ps(p.add(16)), _mm512_loadu_ps(p));
            std::mem::transmute::<__m512bh, __m512>(pairs)
        }
    }
    #[inline(always)]
    unsafe fn splat(x: f32) -> __m512 {
        unsafe { _mm512_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> __m512 {
        unsafe { _mm512_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const bf16) -> __m512 {
        unsafe {
            let bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(bits))
        }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: __m512) {
        unsafe { _mm512_storeu_ps(p, v) }
    }
    #[inline(always)]
    unsafe fn add(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn sub(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_sub_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn mul(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn div(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_div_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn max(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_max_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn prefetch(p: *const u8) {
        unsafe { _mm_prefetch::<_MM_HINT_T1>(p.cast()) }
    }
    #[inline(always)]
    unsafe fn fma(a: __m512, b: __m512, c: __m512) -> __m512 {
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    unsafe fn dot_pair(acc: __m512, a: __m512, b: __m512) -> __m512 {
        // The casts reinterpret 32-bit lanes as pairs of bf16.
        unsafe {
            let (a, b) = (std::mem::transmute::<__m512, __m512bh>(a), std::mem::transmute::<__m512, __m512bh>(b));
            _mm512_dpbf16_ps(acc, a, b)
        }
    }
    #[inline(always)]
    unsafe fn halves(pairs: __m512) -> [__m512; 2] {
        unsafe {
            let words = _mm512_castps_si512(pairs);
            let odd = _mm512_and_si512(words, _mm512_set1_epi32(0xffff_0000_u32 as i32));
            [_mm512_castsi512_ps(_mm512_slli_epi32::<16>(words)), _mm512_castsi512_ps(odd)]
        }
    }
    #[inline(always)]
    unsafe fn dot_integers(acc: __m512, a: __m512, b: __m512) -> __m512 {
        unsafe { dot_integers_512(acc, a, b) }
    }
    #[inline(always)]
    unsafe fn dot_bytes(acc: __m512, a: __m512, b: __m512) -> __m512 {
        // The instruction takes the unsigned ones first.
        unsafe { dot_bytes_512(acc, b, a) }
    }
    #[inline(always)]
    unsafe fn from_integers(v: __m512) -> __m512 {
        unsafe { _mm512_cvtepi32_ps(_mm512_castps_si512(v)) }
    }
    #[inline(always)]
    unsafe fn exp(x: __m512) -> __m512 {
        unsafe {
            // If one operand is NaN, the second one is returned, so NaN propagates.
            let x = _mm512_min_ps(_mm512_set1_ps(EXP_MAX), _mm512_max_ps(_mm512_set1_ps(EXP_MIN), x));
            let n = _mm512_roundscale_ps::<0x08>(_mm512_mul_ps(x, _mm512_set1_ps(LOG2_E)));
            let r = _mm512_fnmadd_ps(n, _mm512_set1_ps(LN2_HIGH), x);
            let r = _mm512_fnmadd_ps(n, _mm512_set1_ps(LN2_LOW), r);
            let mut p = _mm512_set1_ps(POLY[0]);
            for &c in &POLY[1..] {
                p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(c));
            }
            let y = _mm512_fmadd_ps(p, _mm512_mul_ps(r, r), r);
            _mm512_scalef_ps(_mm512_add_ps(y, _mm512_set1_ps(1.0)), n)
        }
    }
    #[inline(always)]
    unsafe fn sum(v: __m512) -> f32 {
        unsafe { _mm512_reduce_add_ps(v) }
    }
    #[inline(always)]
    unsafe fn sums(v: [__m512; 16]) -> __m512 {
        // At each level two vectors are folded into one; a lane is always added to the lane 8, then 4, 2, 1 away.
        unsafe {
            let mut t = [_mm512_setzero_ps(); 8];
            for i in 0..8 {
                let low = _mm512_shuffle_f32x4::<0x44>(v[i], v[i + 8]);
                let high = _mm512_shuffle_f32x4::<0xee>(v[i], v[i + 8]);
                t[i] = _mm512_add_ps(low, high);
            }
            let mut u = [_mm512_setzero_ps(); 4];
            for i in 0..4 {
                let low = _mm512_shuffle_f32x4::<0x88>(t[i], t[i + 4]);
                let high = _mm512_shuffle_f32x4::<0xdd>(t[i], t[i + 4]);
                u[i] = _mm512_add_ps(low, high);
            }
            let mut w = [_mm512_setzero_ps(); 2];
            for i in 0..2 {
                let low = _mm512_shuffle_ps::<0x44>(u[i], u[i + 2]);
                let high = _mm512_shuffle_ps::<0xee>(u[i], u[i + 2]);
                w[i] = _mm512_add_ps(low, high);
            }
            let low = _mm512_shuffle_ps::<0x88>(w[0], w[1]);
            let high = _mm512_shuffle_ps::<0xdd>(w[0], w[1]);
            // Lane 4q + w now holds v[[0, 8, 4, 12][q] + [0, 2, 1, 3][w]].
            let order = _mm512_setr_epi32(0, 2, 1, 3, 8, 10, 9, 11, 4, 6, 5, 7, 12, 14, 13, 15);
            _mm512_permutexvar_ps(order, _mm512_add_ps(low, high))
        }
    }
    #[inline(always)]
    unsafe fn transpose(v: [__m512; 16]) -> [__m512; 16] {
        unsafe {
            // Within 128-bit lanes: t[4 * q + i] holds column i (of every four) of rows 4q..4q + 4.
            let mut t = v;
            for q in 0..4 {
                let [a, b, c, d] = [v[4 * q], v[4 * q + 1], v[4 * q + 2], v[4 * q + 3]];
                let (ab_low, ab_high) = (_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
                let (cd_low, cd_high) = (_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
                t[4 * q] = _mm512_shuffle_ps::<0x44>(ab_low, cd_low);
                t[4 * q + 1] = _mm512_shuffle_ps::<0xee>(ab_low, cd_low);
                t[4 * q + 2] = _mm512_shuffle_ps::<0x44>(ab_high, cd_high);
                t[4 * q + 3] = _mm512_shuffle_ps::<0xee>(ab_high, cd_high);
            }
            // Then transposes the 4 x 4 lanes of t[i], t[4 + i], t[8 + i], t[12 + i].
            let mut out = t;
            for i in 0..4 {
                let low = _mm512_shuffle_f32x4::<0x44>(t[i], t[4 + i]);
                let high = _mm512_shuffle_f32x4::<0xee>(t[i], t[4 + i]);
                let low2 = _mm512_shuffle_f32x4::<0x44>(t[8 + i], t[12 + i]);
                let high2 = _mm512_shuffle_f32x4::<0xee>(t[8 + i], t[12 + i]);
                out[i] = _mm512_shuffle_f32x4::<0x88>(low, low2);
                out[4 + i] = _mm512_shuffle_f32x4::<0xdd>(low, low2);
                out[8 + i] = _mm512_shuffle_f32x4::<0x88>(high, high2);
                out[12 + i] = _mm512_shuffle_f32x4::<0xdd>(high, high2);
            }
            out
        }
    }
    #[inline(always)]
    unsafe fn widen_int8(src: *const u8) -> [__m512; 2] {
        unsafe {
            let low = _mm512_cvtepi8_epi16(_mm256_loadu_si256(src.cast()));
            let high = _mm512_cvtepi8_epi16(_mm256_loadu_si256(src.add(32).cast()));
            [_mm512_castsi512_ps(low), _mm512_castsi512_ps(high)]
        }
    }
    #[inline(always)]
    unsafe fn widen_fp8(src: *const u8) -> [__m512; 2] {
        unsafe { [fp8_pairs(_mm256_loadu_si256(src.cast())), fp8_pairs(_mm256_loadu_si256(src.add(32).cast()))] }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const f16) -> __m512 {
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) }
    }
    /// Shifted by 7, a code is an f16 whose exponent is smaller by 8.
    #[inline(always)]
    unsafe fn load_e4m3(p: *const u8) -> __m512 {
        unsafe {
            let code = _mm256_cvtepu8_epi16(_mm_loadu_si128(p.cast()));
            let sign = _mm256_slli_epi16::<8>(_mm256_and_si256(code, _mm256_set1_epi16(0x80)));
            let rest = _mm256_slli_epi16::<7>(_mm256_and_si256(code, _mm256_set1_epi16(0x7f)));
            _mm512_cvtph_ps(_mm256_or_si256(sign, rest))
        }
    }
    #[inline(always)]
    unsafe fn load_u8(p: *const u8) -> __m512 {
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(p.cast()))) }
    }
    #[inline(always)]
    unsafe fn load_i8(p: *const i8) -> __m512 {
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(p.cast()))) }
    }
    #[inline(always)]
    unsafe fn shift_right(v: __m512, bits: u32) -> __m512 {
        unsafe { _mm512_castsi512_ps(_mm512_srl_epi32(_mm512_castps_si512(v), _mm_cvtsi32_si128(bits as i32))) }
    }
    #[inline(always)]
    unsafe fn shift_left(v: __m512, bits: u32) -> __m512 {
        unsafe { _mm512_castsi512_ps(_mm512_sll_epi32(_mm512_castps_si512(v), _mm_cvtsi32_si128(bits as i32))) }
    }
    #[inline(always)]
    unsafe fn and_bits(v: __m512, mask: u32) -> __m512 {
        unsafe { _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(v), _mm512_set1_epi32(mask as i32))) }
    }
    #[inline(always)]
    unsafe fn or_bits(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_castsi512_ps(_mm512_or_si512(_mm512_castps_si512(a), _mm512_castps_si512(b))) }
    }
    #[inline(always)]
    unsafe fn lookup(v: __m512, table: &[u8; 16]) -> __m512 {
        unsafe {
            let table = _mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast()));
            _mm512_castsi512_ps(_mm512_shuffle_epi8(table, _mm512_castps_si512(v)))
        }
    }
    #[inline(always)]
    unsafe fn load_bf16_split(p: *const bf16) -> [__m512; 2] {
        unsafe { Self::halves(_mm512_castsi512_ps(_mm512_loadu_si512(p.cast()))) }
    }
}

/// One instruction of AVX512_VNNI. The compiler would split its intrinsic into a product and a sum, to shorten chains,
/// and run out of registers.
macro_rules! dot_instruction {
    ($name:ident, $instruction:literal) => {
        #[inline]
        #[target_feature(enable = "avx512f,avx512vnni")]
        fn $name(mut acc: __m512, a: __m512, b: __m512) -> __m512 {
            // SAFETY: an instruction of the set that is enabled here, which touches only registers.
            unsafe {
                asm!(
                    concat!($instruction, " {acc}, {a}, {b}"),
                    acc = inout(zmm_reg) acc,
                    a = in(zmm_reg) a,
                    b = in(zmm_reg) b,
                    options(pure, nomem, nostack, preserves_flags)
                );
            }
            acc
        }
    };
}

dot_instruction!(dot_integers_512, "vpdpwssd");
dot_instruction!(dot_bytes_512, "vpdpbusd");

/// 32 codes of e4m3 as bf16: exponents differ by 120. Those below 2^-6 have no exponent and are looked up.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn fp8_pairs(codes: __m256i) -> __m512 {
    // By code: code * 2^-9.
    const SMALL: [u16; 8] = [0, 0x3b00, 0x3b80, 0x3bc0, 0x3c00, 0x3c20, 0x3c40, 0x3c60];
    let small = _mm512_set1_epi32(0);
    let small = _mm512_inserti32x4::<0>(
        small,
        _mm_setr_epi16(
            SMALL[0] as i16,
            SMALL[1] as i16,
            SMALL[2] as i16,
            SMALL[3] as i16,
            SMALL[4] as i16,
            SMALL[5] as i16,
            SMALL[6] as i16,
            SMALL[7] as i16,
        ),
    );
    let codes = _mm512_cvtepu8_epi16(codes);
    let size = _mm512_and_si512(codes, _mm512_set1_epi16(0x7f));
    let sign = _mm512_slli_epi16::<8>(_mm512_andnot_si512(_mm512_set1_epi16(0x7f), codes));
    let normal = _mm512_add_epi16(_mm512_slli_epi16::<4>(size), _mm512_set1_epi16(120 << 7));
    let is_small = _mm512_cmplt_epu16_mask(size, _mm512_set1_epi16(8));
    let bits = _mm512_mask_permutexvar_epi16(normal, is_small, size, small);
    _mm512_castsi512_ps(_mm512_or_si512(bits, sign))
}
