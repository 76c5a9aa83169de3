//! The kernels of a product: a few rows times one panel. They do not know threads.

use half::{bf16, f16};

use super::FETCH_ROWS;
use crate::cpu::codes::{CodePlaces, FETCH_GROUPS, WIDE_FACTORS, code_pairs, code_parts, high_bits, next_high_bits};
use crate::cpu::simd::Simd;
use crate::cpu::weights::{GROUP_BYTES, GROUP_STEPS, PANEL};

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
            for (r, c) in c.iter_mut().enumerate() {
                let x = S::splat(*a.add(r));
                if PAIRS {
                    c[0] = S::dot_pair(c[0], x, w0);
                    c[1] = S::dot_pair(c[1], x, w1);
                } else {
                    c[0] = S::fma(x, w0, c[0]);
                    c[1] = S::fma(x, w1, c[1]);
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
            for line in (0..GROUP_BYTES).step_by(64) {
                S::prefetch(group.wrapping_add(FETCH_GROUPS * GROUP_BYTES + line));
            }
            // Integers: the bits of 0.0 are those of 0.
            let mut c = [[S::splat(0.0); 2]; ROWS];
            for s in 0..GROUP_STEPS {
                let [w0, w1] = S::widen_int8(group.add(PANEL * 2 + s * 64));
                dot_step::<S, ROWS>([w0, w1], a, &mut c);
                a = a.add(ROWS);
            }
            let scale = [0, 16].map(|half| match HALF {
                true => S::load_f16(group.cast::<f16>().add(half)),
                false => S::load_bf16(group.cast::<bf16>().add(half)),
            });
            let scales = scales.add(g * ROWS);
            add_scaled::<S, ROWS, false>(&c, [scale; 2], (scales, scales), acc);
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

/// Adds the sums of a group, which are integers, times the scales of its outputs and of its rows. With MINIMUM also the
/// minima of its outputs times the rows' sums.
#[inline(always)]
unsafe fn add_scaled<S: Simd, const ROWS: usize, const MINIMUM: bool>(
    c: &[[S::V; 2]; ROWS],
    [scale, minimum]: [[S::V; 2]; 2],
    (scales, sums): (*const f32, *const f32),
    acc: *mut f32,
) {
    for (r, c) in c.iter().enumerate() {
        // SAFETY: the caller gives ROWS scales and sums, and ROWS * 32 numbers at acc.
        unsafe {
            let x = S::splat(*scales.add(r));
            for half in 0..2 {
                let to = acc.add(r * PANEL + 16 * half);
                let mut sum = S::fma(S::from_integers(c[half]), S::mul(scale[half], x), S::load(to));
                if MINIMUM {
                    sum = S::fma(minimum[half], S::splat(*sums.add(r)), sum);
                }
                S::store(to, sum);
            }
        }
    }
}

/// What a group's factors are.
pub const ONE_SCALE: u8 = 0;
pub const WITH_MINIMUM: u8 = 1;
pub const TWO_SCALES: u8 = 2;

/// Scales and sums of activations, [groups][ROWS].
pub type RowFactors = (*const f32, *const f32);

/// As `group_kernel`, with pairs of 16-bit integers at w and factors of WIDE_FACTORS numbers for each group.
#[inline(always)]
pub unsafe fn wide_kernel<S: Simd, const ROWS: usize, const KIND: u8>(
    (a, of_rows): (*const u32, RowFactors),
    (w, factors): (*const f32, *const f32),
    groups: usize,
    acc: *mut f32,
    first: bool,
) {
    // SAFETY: the caller gives groups * 16 steps at a and w as for tile_kernel, groups * WIDE_FACTORS factors and groups
    // * ROWS scales and sums.
    unsafe {
        if first {
            clear::<S, ROWS>(acc);
        }
        let (mut a, mut w) = (a.cast::<f32>(), w);
        let parts = if KIND == TWO_SCALES { 2 } else { 1 };
        for g in 0..groups {
            let at = factors.add(g * WIDE_FACTORS);
            let load = |part: usize| [S::load(at.add(part * PANEL)), S::load(at.add(part * PANEL + 16))];
            let of_rows = (of_rows.0.add(g * ROWS), of_rows.1.add(g * ROWS));
            for part in 0..parts {
                let mut c = [[S::splat(0.0); 2]; ROWS];
                for _ in 0..GROUP_STEPS / parts {
                    dot_step::<S, ROWS>([S::load(w), S::load(w.add(16))], a, &mut c);
                    a = a.add(ROWS);
                    w = w.add(PANEL);
                }
                match KIND {
                    WITH_MINIMUM => add_scaled::<S, ROWS, true>(&c, [load(0), load(1)], of_rows, acc),
                    _ => add_scaled::<S, ROWS, false>(&c, [load(part); 2], of_rows, acc),
                }
            }
        }
    }
}

/// As `wide_kernel`, with codes of 4 + HIGH bits.
#[inline(always)]
pub unsafe fn code_kernel<S: Simd, const ROWS: usize, const HIGH: usize>(
    (a, of_rows): (*const u32, RowFactors),
    (codes, factors): (CodePlaces, *const f32),
    groups: usize,
    acc: *mut f32,
    first: bool,
) {
    // SAFETY: the caller gives groups * 16 steps at a as for tile_kernel, as many groups of codes, groups * WIDE_FACTORS
    // factors and groups * ROWS scales and sums.
    unsafe {
        if first {
            clear::<S, ROWS>(acc);
        }
        let mut a = a.cast::<f32>();
        for g in 0..groups {
            let mut words = codes.group(g);
            codes.fetch::<S>(g);
            let at = factors.add(g * WIDE_FACTORS);
            let load = |part: usize| [S::load(at.add(part * PANEL)), S::load(at.add(part * PANEL + 16))];
            let of_rows = (of_rows.0.add(g * ROWS), of_rows.1.add(g * ROWS));
            for part in 0..code_parts(HIGH) {
                let mut c = [[S::splat(0.0); 2]; ROWS];
                let mut high = [0, 1].map(|half| high_bits::<S, HIGH>(codes.group(g), part, half));
                for _ in 0..4 / code_parts(HIGH) {
                    let low = [S::load(words.cast()), S::load(words.add(64).cast())];
                    words = words.add(128);
                    // Shifts are constants only without a loop.
                    dot_step::<S, ROWS>(code_pairs::<S, HIGH>(low, high, 0), a, &mut c);
                    dot_step::<S, ROWS>(code_pairs::<S, HIGH>(low, high, 1), a.add(ROWS), &mut c);
                    dot_step::<S, ROWS>(code_pairs::<S, HIGH>(low, high, 2), a.add(2 * ROWS), &mut c);
                    dot_step::<S, ROWS>(code_pairs::<S, HIGH>(low, high, 3), a.add(3 * ROWS), &mut c);
                    high = high.map(|high| next_high_bits::<S, HIGH>(high));
                    a = a.add(4 * ROWS);
                }
                match HIGH {
                    2 => add_scaled::<S, ROWS, false>(&c, [load(part); 2], of_rows, acc),
                    _ => add_scaled::<S, ROWS, true>(&c, [load(0), load(1)], of_rows, acc),
                }
            }
        }
    }
}

#[inline(always)]
unsafe fn dot_step<S: Simd, const ROWS: usize>(w: [S::V; 2], a: *const f32, c: &mut [[S::V; 2]; ROWS]) {
    for (r, c) in c.iter_mut().enumerate() {
        // SAFETY: the caller gives ROWS words at a.
        unsafe {
            let x = S::splat(*a.add(r));
            c[0] = S::dot_integers(c[0], x, w[0]);
            c[1] = S::dot_integers(c[1], x, w[1]);
        }
    }
}

/// A group of int8 weights as `CodeForm::widen` makes it.
#[inline(always)]
pub unsafe fn widen_group<S: Simd>(group: *const u8, words: *mut f32, factors: *mut f32) {
    // SAFETY: the caller gives GROUP_BYTES, and room as for `CodeForm::widen`.
    unsafe {
        for s in 0..GROUP_STEPS {
            let [low, high] = S::widen_int8(group.add(PANEL * 2 + s * 64));
            S::store(words.add(s * PANEL), low);
            S::store(words.add(s * PANEL + 16), high);
        }
        for half in [0, 16] {
            S::store(factors.add(half), S::load_bf16(group.cast::<bf16>().add(half)));
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
