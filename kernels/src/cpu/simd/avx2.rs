//! SIMD lanes with AVX2, FMA and F16C.
// As in `avx512`: intrinsics that need the instruction set, and loads and stores that the contract names.
#![allow(clippy::undocumented_unsafe_blocks)]

use std::arch::x86_64::*;

use half::{bf16, f16};

use super::avx512::{EXP_MAX, EXP_MIN, LN2_HIGH, LN2_LOW, LOG2_E, POLY};
use super::{Simd, round_bits};

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
        let pairs = _mm256_maddubs_epi16(_mm256_castps_si256(b), _mm256_castps_si256(a));
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
    /// FP8 weights stay so only where pairs are multiplied.
    #[inline(always)]
    unsafe fn widen_fp8(src: *const u8) -> [Pair; 2] {
        unsafe { super::Portable::widen_fp8(src).map(|words| Self::load(words.as_ptr())) }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const f16) -> Pair {
        unsafe { [_mm256_cvtph_ps(_mm_loadu_si128(p.cast())), _mm256_cvtph_ps(_mm_loadu_si128(p.add(8).cast()))] }
    }
    /// Shifted by 7, a code is an f16 whose exponent is smaller by 8.
    #[inline(always)]
    unsafe fn load_e4m3(p: *const u8) -> Pair {
        unsafe {
            let code = _mm256_cvtepu8_epi16(_mm_loadu_si128(p.cast()));
            let sign = _mm256_slli_epi16::<8>(_mm256_and_si256(code, _mm256_set1_epi16(0x80)));
            let rest = _mm256_slli_epi16::<7>(_mm256_and_si256(code, _mm256_set1_epi16(0x7f)));
            let halves = _mm256_or_si256(sign, rest);
            [_mm256_cvtph_ps(_mm256_castsi256_si128(halves)), _mm256_cvtph_ps(_mm256_extracti128_si256::<1>(halves))]
        }
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
