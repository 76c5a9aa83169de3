//! The kernels of a product: a few rows times one panel. They do not know threads.

use half::{bf16, f16};

use super::FETCH_ROWS;
use crate::cpu::codes::{CodePlaces, WIDE_FACTORS, code_bytes, code_parts, high_bits, next_high_bits};
use crate::cpu::simd::Simd;
use crate::cpu::weights::{GROUP_BYTES, GROUP_STEPS, PANEL};

/// Adds the products of a step to the sums of each row. A macro, since a closure would be compiled without the set.
macro_rules! dot_rows {
    ($S:ty, $dot:ident, $c:ident, $a:ident, $w0:expr, $w1:expr) => {
        for (r, c) in $c.iter_mut().enumerate() {
            let x = <$S>::splat(*$a.add(r));
            (c[0], c[1]) = (<$S>::$dot(c[0], x, $w0), <$S>::$dot(c[1], x, $w1));
        }
    };
}

/// `rows` rows times one panel over `steps` steps: acc [rows][32] is overwritten if `first`, otherwise added to.
/// Meanwhile the weights `ahead` numbers further on are prefetched.
#[inline(always)]
pub unsafe fn tile_kernel<S: Simd, const ROWS: usize, const PAIRS: bool>(
    a: *const u32,
    w: *const f32,
    steps: usize,
    ahead: usize,
    acc: *mut f32,
    first: bool,
) {
    let split = PAIRS && !S::MULTIPLIES_PAIRS;
    // SAFETY: the caller gives steps * ROWS words at a (twice as many with `split`), steps * 32 at w and ROWS * 32 at
    // acc.
    unsafe {
        let mut c = [[S::splat(0.0); 2]; ROWS];
        if !first {
            for (r, c) in c.iter_mut().enumerate() {
                *c = [S::load(acc.add(r * PANEL)), S::load(acc.add(r * PANEL + 16))];
            }
        }
        let (mut a, mut w) = (a.cast::<f32>(), w);
        for _ in 0..steps {
            if split {
                for half in 0..2 {
                    let [even, odd] = S::halves(S::load(w.add(16 * half)));
                    for (r, c) in c.iter_mut().enumerate() {
                        c[half] = S::fma(S::splat(*a.add(r)), even, c[half]);
                        c[half] = S::fma(S::splat(*a.add(ROWS + r)), odd, c[half]);
                    }
                }
                a = a.add(2 * ROWS);
                w = w.add(PANEL);
                continue;
            }
            let w0 = S::load(w);
            let w1 = S::load(w.add(16));
            if ROWS >= FETCH_ROWS {
                S::prefetch(w.wrapping_add(ahead).cast());
                S::prefetch(w.wrapping_add(ahead + 16).cast());
            }
            if PAIRS {
                dot_rows!(S, dot_pair, c, a, w0, w1);
            } else {
                for (r, c) in c.iter_mut().enumerate() {
                    let x = S::splat(*a.add(r));
                    (c[0], c[1]) = (S::fma(x, w0, c[0]), S::fma(x, w1, c[1]));
                }
            }
            a = a.add(ROWS);
            w = w.add(PANEL);
        }
        for (r, c) in c.iter().enumerate() {
            S::store(acc.add(r * PANEL), c[0]);
            S::store(acc.add(r * PANEL + 16), c[1]);
        }
    }
}

/// As `tile_kernel`, for int8 groups: each group's sum is exact, then scaled and added. scales are those of a,
/// [groups][ROWS]. The weights' are bf16, with HALF f16.
#[inline(always)]
pub unsafe fn group_kernel<S: Simd, const ROWS: usize, const HALF: bool>(
    (a, scales): (*const u32, *const f32),
    panel: *const u8,
    groups: usize,
    acc: *mut f32,
    first: bool,
) {
    // SAFETY: the caller gives groups * 16 steps at a as for tile_kernel, groups * GROUP_BYTES at panel and groups *
    // ROWS scales.
    unsafe {
        if first {
            clear::<S, ROWS>(acc);
        }
        let mut a = a.cast::<f32>();
        for g in 0..groups {
            let group = panel.add(g * GROUP_BYTES);
            // Integers: the bits of 0.0 are those of 0.
            let mut c = [[S::splat(0.0); 2]; ROWS];
            for s in 0..GROUP_STEPS {
                let [w0, w1] = S::widen_int8(group.add(PANEL * 2 + s * 64));
                dot_rows!(S, dot_integers, c, a, w0, w1);
                a = a.add(ROWS);
            }
            let scale = [scales_of::<S, HALF>(group, 0), scales_of::<S, HALF>(group, 16)];
            for (r, c) in c.into_iter().enumerate() {
                add_scaled::<S>(c, scale, *scales.add(g * ROWS + r), acc.add(r * PANEL));
            }
        }
    }
}

/// The scales of 16 outputs of a group of int8 weights.
#[inline(always)]
pub unsafe fn scales_of<S: Simd, const HALF: bool>(group: *const u8, outs: usize) -> S::V {
    // SAFETY: the caller gives a group, which begins with 32 scales.
    unsafe {
        match HALF {
            true => S::load_f16(group.cast::<f16>().add(outs)),
            false => S::load_bf16(group.cast::<bf16>().add(outs)),
        }
    }
}

#[inline(always)]
unsafe fn clear<S: Simd, const ROWS: usize>(acc: *mut f32) {
    for i in 0..2 * ROWS {
        // SAFETY: the caller gives ROWS * 32 numbers.
        unsafe { S::store(acc.add(16 * i), S::splat(0.0)) };
    }
}

/// Adds the sums of a group, which are integers, times the scales of its outputs and of its row.
#[inline(always)]
pub unsafe fn add_scaled<S: Simd>(sums: [S::V; 2], scale: [S::V; 2], of_row: f32, acc: *mut f32) {
    // SAFETY: the caller gives 32 numbers at acc.
    unsafe {
        let x = S::splat(of_row);
        for half in 0..2 {
            let to = acc.add(16 * half);
            S::store(to, S::fma(S::from_integers(sums[half]), S::mul(scale[half], x), S::load(to)));
        }
    }
}

/// The same for a part of a group of codes of 4 + HIGH bits. A row has a scale and the sums of both halves of the
/// group's inputs, a group WIDE_FACTORS factors.
#[inline(always)]
pub unsafe fn add_codes<S: Simd, const HIGH: usize>(
    sums: [S::V; 2],
    (of_row, halves): (f32, [f32; 2]),
    (factors, part): (*const f32, usize),
    acc: *mut f32,
) {
    // SAFETY: the caller gives 32 numbers at acc.
    unsafe {
        let x = S::splat(of_row);
        let load = |part: usize, half: usize| S::load(factors.add(part * PANEL + 16 * half));
        for half in 0..2 {
            let to = acc.add(16 * half);
            let (before, sum) = (S::load(to), S::from_integers(sums[half]));
            S::store(
                to,
                match HIGH {
                    // Each half has a scale, and zero is the code 32.
                    2 => S::fma(S::fma(sum, x, S::splat(-32.0 * halves[part])), load(part, half), before),
                    _ => {
                        let scaled = S::fma(sum, S::mul(load(0, half), x), before);
                        S::fma(load(1, half), S::splat(halves[0] + halves[1]), scaled)
                    }
                },
            );
        }
    }
}

/// As `group_kernel`, with pairs of 16-bit integers at w and WIDE_FACTORS numbers for each group, of which the first
/// half are scales.
#[inline(always)]
pub unsafe fn wide_kernel<S: Simd, const ROWS: usize, const NONE: u8>(
    (a, scales): (*const u32, *const f32),
    (w, factors): (*const f32, *const f32),
    groups: usize,
    acc: *mut f32,
    first: bool,
) {
    // SAFETY: the caller gives groups * 16 steps at a and w as for tile_kernel, WIDE_FACTORS factors for each group and
    // groups * ROWS scales.
    unsafe {
        if first {
            clear::<S, ROWS>(acc);
        }
        let (mut a, mut w) = (a.cast::<f32>(), w);
        for g in 0..groups {
            let mut c = [[S::splat(0.0); 2]; ROWS];
            for _ in 0..GROUP_STEPS {
                let (w0, w1) = (S::load(w), S::load(w.add(16)));
                dot_rows!(S, dot_integers, c, a, w0, w1);
                a = a.add(ROWS);
                w = w.add(PANEL);
            }
            let scale = factors.add(g * WIDE_FACTORS);
            let scale = [S::load(scale), S::load(scale.add(16))];
            for (r, c) in c.into_iter().enumerate() {
                add_scaled::<S>(c, scale, *scales.add(g * ROWS + r), acc.add(r * PANEL));
            }
        }
    }
}

/// As `group_kernel`, with codes of 4 + HIGH bits, and 8-bit integers at a. sums are those of a, [groups][2][ROWS].
#[inline(always)]
pub unsafe fn code_kernel<S: Simd, const ROWS: usize, const HIGH: usize>(
    (a, (scales, sums)): (*const u32, (*const f32, *const f32)),
    (codes, factors): (CodePlaces, *const f32),
    groups: usize,
    acc: *mut f32,
    first: bool,
) {
    // SAFETY: the caller gives groups * 8 steps at a, as many groups of codes, WIDE_FACTORS factors for each group, and
    // groups * ROWS scales and twice as many sums.
    unsafe {
        if first {
            clear::<S, ROWS>(acc);
        }
        let mut a = a.cast::<f32>();
        for g in 0..groups {
            codes.fetch::<S>(g);
            let mut words = codes.group(g);
            let factors = factors.add(g * WIDE_FACTORS);
            for part in 0..code_parts(HIGH) {
                let mut c = [[S::splat(0.0); 2]; ROWS];
                let mut high =
                    [high_bits::<S, HIGH>(codes.group(g), part, 0), high_bits::<S, HIGH>(codes.group(g), part, 1)];
                for _ in 0..4 / code_parts(HIGH) {
                    let low = [S::load(words.cast()), S::load(words.add(64).cast())];
                    words = words.add(128);
                    for second in [false, true] {
                        let w = [
                            code_bytes::<S, HIGH>(low[0], high[0], second),
                            code_bytes::<S, HIGH>(low[1], high[1], second),
                        ];
                        dot_rows!(S, dot_bytes, c, a, w[0], w[1]);
                        a = a.add(ROWS);
                    }
                    high = [next_high_bits::<S, HIGH>(high[0]), next_high_bits::<S, HIGH>(high[1])];
                }
                let (scales, sums) = (scales.add(g * ROWS), sums.add(2 * g * ROWS));
                for (r, c) in c.into_iter().enumerate() {
                    let of_row = (*scales.add(r), [*sums.add(r), *sums.add(ROWS + r)]);
                    add_codes::<S, HIGH>(c, of_row, (factors, part), acc.add(r * PANEL));
                }
            }
        }
    }
}

/// A group of int8 weights for `wide_kernel`. Its scales are bf16, with HALF f16.
#[inline(always)]
pub unsafe fn widen_group<S: Simd, const HALF: bool>(group: *const u8, words: *mut f32, factors: *mut f32) {
    // SAFETY: the caller gives GROUP_BYTES, and room for GROUP_STEPS * PANEL words and WIDE_FACTORS numbers.
    unsafe {
        for s in 0..GROUP_STEPS {
            let [low, high] = S::widen_int8(group.add(PANEL * 2 + s * 64));
            S::store(words.add(s * PANEL), low);
            S::store(words.add(s * PANEL + 16), high);
        }
        for half in [0, 16] {
            S::store(factors.add(half), scales_of::<S, HALF>(group, half));
        }
    }
}

/// Steps of bf16 pairs as twice as many steps of f32.
#[inline(always)]
pub unsafe fn halves_into<S: Simd>(from: *const f32, steps: usize, to: *mut f32) {
    for s in 0..steps {
        for half in 0..2 {
            // SAFETY: the caller gives steps * 32 words at `from`, and twice as many at `to`.
            unsafe {
                let [even, odd] = S::halves(S::load(from.add(s * PANEL + 16 * half)));
                S::store(to.add(2 * s * PANEL + 16 * half), even);
                S::store(to.add((2 * s + 1) * PANEL + 16 * half), odd);
            }
        }
    }
}

/// As `tile_kernel`, for FP8 weights with the same scales: their sum is scaled and added. With WIDENED, the weights are
/// at `widened` as pairs of bf16.
#[inline(always)]
pub unsafe fn fp8_kernel<S: Simd, const ROWS: usize, const WIDENED: bool>(
    a: *const u32,
    (codes, widened): (*const u8, *const f32),
    scales: *const f32,
    steps: usize,
    acc: *mut f32,
    first: bool,
) {
    // SAFETY: the caller gives steps * ROWS words at a, steps * 64 codes or steps * 32 words, 32 scales and ROWS * 32
    // numbers at acc.
    unsafe {
        if first {
            clear::<S, ROWS>(acc);
        }
        let mut a = a.cast::<f32>();
        let mut c = [[S::splat(0.0); 2]; ROWS];
        for s in 0..steps {
            let [w0, w1] = if WIDENED {
                [S::load(widened.add(s * PANEL)), S::load(widened.add(s * PANEL + 16))]
            } else {
                S::prefetch(codes.wrapping_add(s * 2 * PANEL + FP8_AHEAD));
                S::widen_fp8(codes.add(s * 2 * PANEL))
            };
            dot_rows!(S, dot_pair, c, a, w0, w1);
            a = a.add(ROWS);
        }
        let scale = [S::load(scales), S::load(scales.add(16))];
        for (r, c) in c.iter().enumerate() {
            for half in 0..2 {
                let to = acc.add(r * PANEL + 16 * half);
                S::store(to, S::fma(c[half], scale[half], S::load(to)));
            }
        }
    }
}

/// How far ahead FP8 weights are prefetched.
const FP8_AHEAD: usize = 8 << 10;

/// Steps of FP8 weights for `fp8_kernel`.
#[inline(always)]
pub unsafe fn widen_fp8<S: Simd>(codes: *const u8, steps: usize, words: *mut f32) {
    for s in 0..steps {
        // SAFETY: the caller gives steps * 64 codes, and room for steps * PANEL words.
        unsafe {
            let [low, high] = S::widen_fp8(codes.add(s * 2 * PANEL));
            S::store(words.add(s * PANEL), low);
            S::store(words.add(s * PANEL + 16), high);
        }
    }
}
