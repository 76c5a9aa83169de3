//! SIMD lanes with AVX-512, and with AVX2, FMA and F16C.
// Every block below is an intrinsic that only needs the instruction set, which the trait's contract guarantees, or a
// load or store of the elements that the contract names.
#![allow(clippy::undocumented_unsafe_blocks)]

use std::arch::asm;
use std::arch::x86_64::*;

use half::{bf16, f16};

use super::{Simd, round_bits};

const LOG2_E: f32 = std::f32::consts::LOG2_E;
// ln 2 in two parts, so that n * LN2_HIGH is exact for the n that occur.
const LN2_HIGH: f32 = 0.693_359_4;
const LN2_LOW: f32 = -2.121_944_4e-4;
// Minimax polynomial of (e^r - 1 - r) / r^2 on |r| <= ln 2 / 2 (Cephes, expf).
const POLY: [f32; 6] = [1.987_569_1e-4, 1.398_2e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 5.0e-1];
const EXP_MIN: f32 = -104.0;
const EXP_MAX: f32 = 89.0;

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
        unsafe { dot_bytes_512(acc, a, b) }
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
    unsafe fn load_f16(p: *const f16) -> __m512 {
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) }
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

/// The compiler would split the intrinsic into a product and a sum, to shorten chains, and run out of registers.
#[inline]
#[target_feature(enable = "avx512f,avx512vnni")]
fn dot_integers_512(acc: __m512, a: __m512, b: __m512) -> __m512 {
    let mut acc = acc;
    // SAFETY: an instruction of AVX512_VNNI, which is enabled here, that touches only registers.
    unsafe {
        asm!(
            "vpdpwssd {acc}, {a}, {b}",
            acc = inout(zmm_reg) acc,
            a = in(zmm_reg) a,
            b = in(zmm_reg) b,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    acc
}

#[inline]
#[target_feature(enable = "avx512f,avx512vnni")]
fn dot_bytes_512(acc: __m512, a: __m512, b: __m512) -> __m512 {
    let mut acc = acc;
    // SAFETY: as for dot_integers_512.
    unsafe {
        asm!(
            "vpdpbusd {acc}, {a}, {b}",
            acc = inout(zmm_reg) acc,
            a = in(zmm_reg) a,
            b = in(zmm_reg) b,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    acc
}

// Functions, not closures: a closure is compiled without the instruction set of the kernel that it ends up in, and
// then calls each intrinsic (30 times slower).

/// The low halves of 32-bit lanes, as f32.
#[inline(always)]
unsafe fn even_halves(words: __m256i) -> __m256 {
    unsafe { _mm256_castsi256_ps(_mm256_slli_epi32::<16>(words)) }
}

/// The high halves of 32-bit lanes, as f32.
#[inline(always)]
unsafe fn odd_halves(words: __m256i) -> __m256 {
    unsafe { _mm256_castsi256_ps(_mm256_and_si256(words, _mm256_set1_epi32(0xffff_0000_u32 as i32))) }
}

#[inline(always)]
unsafe fn exp_256(x: __m256) -> __m256 {
    unsafe {
        let x = _mm256_min_ps(_mm256_set1_ps(EXP_MAX), _mm256_max_ps(_mm256_set1_ps(EXP_MIN), x));
        let n = _mm256_round_ps::<0x08>(_mm256_mul_ps(x, _mm256_set1_ps(LOG2_E)));
        let r = _mm256_fnmadd_ps(n, _mm256_set1_ps(LN2_HIGH), x);
        let r = _mm256_fnmadd_ps(n, _mm256_set1_ps(LN2_LOW), r);
        let mut p = _mm256_set1_ps(POLY[0]);
        for &c in &POLY[1..] {
            p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(c));
        }
        let y = _mm256_fmadd_ps(p, _mm256_mul_ps(r, r), r);
        let y = _mm256_add_ps(y, _mm256_set1_ps(1.0));
        // 2^n as two factors, because n exceeds the exponents of normal numbers.
        let n = _mm256_cvtps_epi32(n);
        let half = _mm256_srai_epi32::<1>(n);
        _mm256_mul_ps(_mm256_mul_ps(y, power_of_two(half)), power_of_two(_mm256_sub_epi32(n, half)))
    }
}

#[inline(always)]
unsafe fn power_of_two(n: __m256i) -> __m256 {
    unsafe { _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_add_epi32(n, _mm256_set1_epi32(127)))) }
}

#[inline(always)]
unsafe fn dot_integers_256(acc: __m256, a: __m256, b: __m256) -> __m256 {
    unsafe {
        let product = _mm256_madd_epi16(_mm256_castps_si256(a), _mm256_castps_si256(b));
        _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(acc), product))
    }
}

/// The products of neighbours, of at most 127 * 127 each, do not overflow 16 bits in pairs.
#[inline(always)]
unsafe fn dot_bytes_256(acc: __m256, a: __m256, b: __m256) -> __m256 {
    unsafe {
        let pairs = _mm256_maddubs_epi16(_mm256_castps_si256(a), _mm256_castps_si256(b));
        let sums = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
        _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(acc), sums))
    }
}

#[inline(always)]
unsafe fn lookup_256(v: __m256, table: __m256i) -> __m256 {
    unsafe { _mm256_castsi256_ps(_mm256_shuffle_epi8(table, _mm256_castps_si256(v))) }
}

/// 16 bytes as 8 pairs of 16-bit integers.
#[inline(always)]
unsafe fn widen_256(src: *const u8) -> __m256 {
    unsafe { _mm256_castsi256_ps(_mm256_cvtepi8_epi16(_mm_loadu_si128(src.cast()))) }
}

/// Lane i of the result is the sum of the lanes of v[i].
#[inline(always)]
unsafe fn sums_256(v: [__m256; 8]) -> __m256 {
    unsafe {
        let low = _mm256_hadd_ps(_mm256_hadd_ps(v[0], v[1]), _mm256_hadd_ps(v[2], v[3]));
        let high = _mm256_hadd_ps(_mm256_hadd_ps(v[4], v[5]), _mm256_hadd_ps(v[6], v[7]));
        _mm256_add_ps(_mm256_permute2f128_ps::<0x20>(low, high), _mm256_permute2f128_ps::<0x31>(low, high))
    }
}

#[inline(always)]
unsafe fn transpose_256(v: [__m256; 8]) -> [__m256; 8] {
    unsafe {
        // Within 128-bit lanes: t[4 * q + i] holds columns i and 4 + i of rows 4q..4q + 4.
        let mut t = v;
        for q in 0..2 {
            let [a, b, c, d] = [v[4 * q], v[4 * q + 1], v[4 * q + 2], v[4 * q + 3]];
            let (ab_low, ab_high) = (_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
            let (cd_low, cd_high) = (_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
            t[4 * q] = _mm256_shuffle_ps::<0x44>(ab_low, cd_low);
            t[4 * q + 1] = _mm256_shuffle_ps::<0xee>(ab_low, cd_low);
            t[4 * q + 2] = _mm256_shuffle_ps::<0x44>(ab_high, cd_high);
            t[4 * q + 3] = _mm256_shuffle_ps::<0xee>(ab_high, cd_high);
        }
        let mut out = t;
        for i in 0..4 {
            out[i] = _mm256_permute2f128_ps::<0x20>(t[i], t[4 + i]);
            out[4 + i] = _mm256_permute2f128_ps::<0x31>(t[i], t[4 + i]);
        }
        out
    }
}

/// Part `half` of eight of the vectors, from `first` on.
#[inline(always)]
unsafe fn eight(v: &[Pair; 16], first: usize, half: usize) -> [__m256; 8] {
    let mut out = [v[first][half]; 8];
    for i in 0..8 {
        out[i] = v[first + i][half];
    }
    out
}

#[derive(Clone, Copy)]
pub struct Avx2;

type Pair = [__m256; 2];

// SAFETY: implemented with AVX2 and FMA intrinsics only; the contract is the trait's.
unsafe impl Simd for Avx2 {
    type V = Pair;
    const TILE_ROWS: usize = 3;
    const MULTIPLIES_PAIRS: bool = false;
    const MANY_REGISTERS: bool = false;
    #[inline(always)]
    unsafe fn load_n(p: *const f32, n: usize) -> Pair {
        let mut all = [0.0f32; 16];
        // SAFETY: n < 16 elements are readable by the trait's contract, and all has 16.
        unsafe {
            std::ptr::copy_nonoverlapping(p, all.as_mut_ptr(), n);
            Self::load(all.as_ptr())
        }
    }
    #[inline(always)]
    unsafe fn load_bf16_n(p: *const bf16, n: usize) -> Pair {
        let mut all = [bf16::ZERO; 16];
        // SAFETY: as for load_n.
        unsafe {
            std::ptr::copy_nonoverlapping(p, all.as_mut_ptr(), n);
            Self::load_bf16(all.as_ptr())
        }
    }
    #[inline(always)]
    unsafe fn load_pairs(p: *const f32) -> Pair {
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
    unsafe fn splat(x: f32) -> Pair {
        unsafe { [_mm256_set1_ps(x); 2] }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Pair {
        unsafe { [_mm256_loadu_ps(p), _mm256_loadu_ps(p.add(8))] }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const bf16) -> Pair {
        unsafe {
            let low = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
            let high = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.add(8).cast()));
            [even_halves(low), even_halves(high)]
        }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: Pair) {
        unsafe {
            _mm256_storeu_ps(p, v[0]);
            _mm256_storeu_ps(p.add(8), v[1]);
        }
    }
    #[inline(always)]
    unsafe fn add(a: Pair, b: Pair) -> Pair {
        unsafe { [_mm256_add_ps(a[0], b[0]), _mm256_add_ps(a[1], b[1])] }
    }
    #[inline(always)]
    unsafe fn sub(a: Pair, b: Pair) -> Pair {
        unsafe { [_mm256_sub_ps(a[0], b[0]), _mm256_sub_ps(a[1], b[1])] }
    }
    #[inline(always)]
    unsafe fn mul(a: Pair, b: Pair) -> Pair {
        unsafe { [_mm256_mul_ps(a[0], b[0]), _mm256_mul_ps(a[1], b[1])] }
    }
    #[inline(always)]
    unsafe fn div(a: Pair, b: Pair) -> Pair {
        unsafe { [_mm256_div_ps(a[0], b[0]), _mm256_div_ps(a[1], b[1])] }
    }
    #[inline(always)]
    unsafe fn max(a: Pair, b: Pair) -> Pair {
        unsafe { [_mm256_max_ps(a[0], b[0]), _mm256_max_ps(a[1], b[1])] }
    }
    #[inline(always)]
    unsafe fn prefetch(p: *const u8) {
        unsafe { _mm_prefetch::<_MM_HINT_T1>(p.cast()) }
    }
    #[inline(always)]
    unsafe fn fma(a: Pair, b: Pair, c: Pair) -> Pair {
        unsafe { [_mm256_fmadd_ps(a[0], b[0], c[0]), _mm256_fmadd_ps(a[1], b[1], c[1])] }
    }
    #[inline(always)]
    unsafe fn dot_pair(acc: Pair, a: Pair, b: Pair) -> Pair {
        unsafe {
            let ([a, odd_a], [b, odd_b]) = (Self::halves(a), Self::halves(b));
            Self::fma(odd_a, odd_b, Self::fma(a, b, acc))
        }
    }
    #[inline(always)]
    unsafe fn halves(pairs: Pair) -> [Pair; 2] {
        unsafe {
            let (a, b) = (_mm256_castps_si256(pairs[0]), _mm256_castps_si256(pairs[1]));
            [[even_halves(a), even_halves(b)], [odd_halves(a), odd_halves(b)]]
        }
    }
    #[inline(always)]
    unsafe fn dot_integers(acc: Pair, a: Pair, b: Pair) -> Pair {
        unsafe { [dot_integers_256(acc[0], a[0], b[0]), dot_integers_256(acc[1], a[1], b[1])] }
    }
    #[inline(always)]
    unsafe fn dot_bytes(acc: Pair, a: Pair, b: Pair) -> Pair {
        unsafe { [dot_bytes_256(acc[0], a[0], b[0]), dot_bytes_256(acc[1], a[1], b[1])] }
    }
    #[inline(always)]
    unsafe fn from_integers(v: Pair) -> Pair {
        unsafe { [_mm256_cvtepi32_ps(_mm256_castps_si256(v[0])), _mm256_cvtepi32_ps(_mm256_castps_si256(v[1]))] }
    }
    #[inline(always)]
    unsafe fn exp(x: Pair) -> Pair {
        unsafe { [exp_256(x[0]), exp_256(x[1])] }
    }
    #[inline(always)]
    unsafe fn sum(v: Pair) -> f32 {
        unsafe {
            let v = _mm256_add_ps(v[0], v[1]);
            let v = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let v = _mm_add_ps(v, _mm_movehl_ps(v, v));
            _mm_cvtss_f32(_mm_add_ss(v, _mm_shuffle_ps::<1>(v, v)))
        }
    }
    #[inline(always)]
    unsafe fn sums(v: [Pair; 16]) -> Pair {
        unsafe {
            let mut folded = v;
            for i in 0..16 {
                folded[i][0] = _mm256_add_ps(v[i][0], v[i][1]);
            }
            [sums_256(eight(&folded, 0, 0)), sums_256(eight(&folded, 8, 0))]
        }
    }
    #[inline(always)]
    unsafe fn transpose(v: [Pair; 16]) -> [Pair; 16] {
        unsafe {
            let mut out = v;
            for half in 0..2 {
                let top = transpose_256(eight(&v, 0, half));
                let bottom = transpose_256(eight(&v, 8, half));
                for i in 0..8 {
                    out[8 * half + i] = [top[i], bottom[i]];
                }
            }
            out
        }
    }
    #[inline(always)]
    unsafe fn widen_int8(src: *const u8) -> [Pair; 2] {
        unsafe { [[widen_256(src), widen_256(src.add(16))], [widen_256(src.add(32)), widen_256(src.add(48))]] }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const f16) -> Pair {
        unsafe { [_mm256_cvtph_ps(_mm_loadu_si128(p.cast())), _mm256_cvtph_ps(_mm_loadu_si128(p.add(8).cast()))] }
    }
    #[inline(always)]
    unsafe fn load_u8(p: *const u8) -> Pair {
        unsafe {
            let low = _mm256_cvtepu8_epi32(_mm_loadl_epi64(p.cast()));
            let high = _mm256_cvtepu8_epi32(_mm_loadl_epi64(p.add(8).cast()));
            [_mm256_cvtepi32_ps(low), _mm256_cvtepi32_ps(high)]
        }
    }
    #[inline(always)]
    unsafe fn load_i8(p: *const i8) -> Pair {
        unsafe {
            let low = _mm256_cvtepi8_epi32(_mm_loadl_epi64(p.cast()));
            let high = _mm256_cvtepi8_epi32(_mm_loadl_epi64(p.add(8).cast()));
            [_mm256_cvtepi32_ps(low), _mm256_cvtepi32_ps(high)]
        }
    }
    #[inline(always)]
    unsafe fn shift_right(v: Pair, bits: u32) -> Pair {
        unsafe {
            let (a, b, bits) = (_mm256_castps_si256(v[0]), _mm256_castps_si256(v[1]), _mm_cvtsi32_si128(bits as i32));
            [_mm256_castsi256_ps(_mm256_srl_epi32(a, bits)), _mm256_castsi256_ps(_mm256_srl_epi32(b, bits))]
        }
    }
    #[inline(always)]
    unsafe fn shift_left(v: Pair, bits: u32) -> Pair {
        unsafe {
            let (a, b, bits) = (_mm256_castps_si256(v[0]), _mm256_castps_si256(v[1]), _mm_cvtsi32_si128(bits as i32));
            [_mm256_castsi256_ps(_mm256_sll_epi32(a, bits)), _mm256_castsi256_ps(_mm256_sll_epi32(b, bits))]
        }
    }
    #[inline(always)]
    unsafe fn and_bits(v: Pair, mask: u32) -> Pair {
        unsafe {
            let mask = _mm256_castsi256_ps(_mm256_set1_epi32(mask as i32));
            [_mm256_and_ps(v[0], mask), _mm256_and_ps(v[1], mask)]
        }
    }
    #[inline(always)]
    unsafe fn or_bits(a: Pair, b: Pair) -> Pair {
        unsafe { [_mm256_or_ps(a[0], b[0]), _mm256_or_ps(a[1], b[1])] }
    }
    #[inline(always)]
    unsafe fn lookup(v: Pair, table: &[u8; 16]) -> Pair {
        unsafe {
            let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()));
            [lookup_256(v[0], table), lookup_256(v[1], table)]
        }
    }
    #[inline(always)]
    unsafe fn load_bf16_split(p: *const bf16) -> [Pair; 2] {
        unsafe { Self::halves(Self::load(p.cast())) }
    }
}
