//! Products of panels on the registers of AMX. A tile's words are in the order `[group][row][word]`.

use std::arch::x86_64::{
    _mm512_add_epi32, _mm512_castps_si512, _mm512_castsi512_ps, _mm512_loadu_si512, _mm512_permutex2var_epi16,
    _mm512_slli_epi32, _mm512_storeu_si512,
};
use std::mem::MaybeUninit;
use std::ops::Range;

use super::tiles::{add_codes, add_scaled, scales_of, widen_fp8};
use super::{CHUNK_STEPS, Packed, Tile, fits};
use crate::cpu::amx::{COLUMNS, TILE_ROWS, WIDTH, bytes, halves, pairs, released, shaped};
use crate::cpu::codes::{
    CODE_STEPS, CodeForm, FLOAT_CODES, WIDE_FACTORS, code_bytes, code_parts, high_bits, next_high_bits,
};
use crate::cpu::fp8::Fp8Form;
use crate::cpu::simd::{Avx512, Simd};
use crate::cpu::weights::{ActivationForm, GROUP_BYTES, GROUP_STEPS, PANEL, PanelForm, Panels};

const _: () = assert!(PANEL == COLUMNS);
/// Groups whose weights are widened at once.
const CHUNK_GROUPS: usize = CHUNK_STEPS / GROUP_STEPS;

#[repr(align(64))]
struct Scratch {
    /// By group, step and output: words of bf16 pairs, or of four bytes.
    weights: [f32; CHUNK_STEPS * PANEL],
    factors: [f32; CHUNK_GROUPS * WIDE_FACTORS],
    /// Sums of the rows of a tile: one, or those of high bytes and those of low ones.
    sums: [[f32; TILE_ROWS * PANEL]; 2],
}

/// What the kernels read and write.
#[derive(Clone, Copy)]
struct Work<'a> {
    panel: *const u8,
    /// Groups of inputs of the weight.
    groups: usize,
    a: &'a Packed,
    tiles: &'a [Tile],
    acc: *mut f32,
    scratch: *mut Scratch,
}

impl Work<'_> {
    /// A tile's activations of group g, and its sums.
    fn of(&self, tile: Tile, g: usize) -> (*const u32, *mut f32) {
        let of_group = self.a.row_words / self.a.groups.max(1);
        let words = self.a.words.as_ptr().wrapping_add(tile.first * self.a.row_words + g * of_group * tile.rows);
        (words.cast(), self.acc.wrapping_add((tile.first - self.tiles[0].first) * PANEL))
    }

    /// Where the scales and the sums of a tile's activations of group g are.
    fn factors_of(&self, tile: Tile, g: usize) -> [*const f32; 2] {
        let at = tile.first * self.a.groups + g * tile.rows;
        [self.a.scales.as_ptr().wrapping_add(at), self.a.sums.as_ptr().wrapping_add(2 * at)]
    }
}

/// Rows of `tiles` times panel p into acc [rows][32].
///
/// # Safety
/// The processor has AMX, and the process may use it (`are_usable`).
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx512vnni,avx2,fma")]
pub unsafe fn multiply_panel(w: &Panels, p: usize, a: &Packed, tiles: Range<usize>, acc: &mut [f32]) {
    let tiles = &a.tiles[tiles];
    if tiles.is_empty() {
        return;
    }
    assert!(fits(w, a, tiles, acc, 1));
    let mut scratch = MaybeUninit::<Scratch>::uninit();
    let (panel, groups) = (w.panel(p), a.groups);
    let work = Work { panel, groups, a, tiles, acc: acc.as_mut_ptr(), scratch: scratch.as_mut_ptr() };
    // SAFETY: the caller's promise; the sizes are asserted above.
    unsafe {
        match w.form {
            PanelForm::Bf16 => of_pairs(&work),
            PanelForm::Fp8(form) => of_fp8(&work, form),
            PanelForm::Codes(codes) if a.form == ActivationForm::Int8 => match codes.high() {
                0 => of_codes::<0>(&work, codes),
                1 => of_codes::<1>(&work, codes),
                2 => of_codes::<2>(&work, codes),
                _ => of_codes::<FLOAT_CODES>(&work, codes),
            },
            PanelForm::Codes(_) => of_integers::<true>(&work),
            PanelForm::Int8 => of_integers::<false>(&work),
            PanelForm::F32 => unreachable!("f32 is not multiplied in tile registers"),
        }
        released();
    }
}

/// # Safety
/// The sizes fit, and the processor has AMX: so too below.
#[inline(always)]
unsafe fn of_pairs(work: &Work) {
    for from in (0..work.groups).step_by(CHUNK_GROUPS) {
        let count = CHUNK_GROUPS.min(work.groups - from);
        for &tile in work.tiles {
            let (x, acc) = work.of(tile, from);
            // SAFETY: the tile and the panel have these groups, each of 16 steps.
            unsafe {
                let w = work.panel.cast::<f32>().add(from * GROUP_STEPS * PANEL);
                shaped(tile.rows, WIDTH);
                pairs(x, tile.rows, w, count, acc, from == 0);
            }
        }
    }
}

#[inline(always)]
unsafe fn of_fp8(work: &Work, form: Fp8Form) {
    let mut from = 0;
    while from < work.groups {
        let count = form.same_scale(from).min(work.groups - from).min(CHUNK_GROUPS);
        let [scales, codes] = form.place(from);
        // SAFETY: the panel has these groups, the scratch has room for CHUNK_GROUPS.
        unsafe {
            let weights = (&raw mut (*work.scratch).weights).cast::<f32>();
            let sums = (&raw mut (*work.scratch).sums).cast::<f32>();
            let scales = work.panel.add(scales).cast::<f32>();
            widen_fp8::<Avx512>(work.panel.add(codes), count * GROUP_STEPS, weights);
            let scales = [Avx512::load(scales), Avx512::load(scales.add(16))];
            for &tile in work.tiles {
                let (x, acc) = work.of(tile, from);
                shaped(tile.rows, WIDTH);
                pairs(x, tile.rows, weights, count, sums, true);
                for at in (0..tile.rows * PANEL).step_by(16) {
                    let before = if from == 0 { Avx512::splat(0.0) } else { Avx512::load(acc.add(at)) };
                    Avx512::store(acc.add(at), Avx512::fma(Avx512::load(sums.add(at)), scales[at / 16 % 2], before));
                }
            }
        }
        from += count;
    }
}

#[inline(always)]
unsafe fn of_codes<const HIGH: usize>(work: &Work, form: CodeForm) {
    let parts = code_parts(HIGH);
    let of_part = CODE_STEPS / parts;
    for from in (0..work.groups).step_by(CHUNK_GROUPS) {
        let count = CHUNK_GROUPS.min(work.groups - from);
        let places = form.places(work.panel, from);
        // SAFETY: the panel has these groups, the scratch has room for CHUNK_GROUPS; a tile has its words, scales and
        // sums.
        unsafe {
            let weights = (&raw mut (*work.scratch).weights).cast::<f32>();
            let factors = (&raw mut (*work.scratch).factors).cast::<f32>();
            let sums = (&raw mut (*work.scratch).sums).cast::<f32>();
            for g in 0..count {
                places.fetch::<Avx512>(g);
                form.widen_factors::<Avx512>(work.panel, from + g, factors.add(g * WIDE_FACTORS));
                wide_codes::<HIGH>(places.group(g), weights.add(g * CODE_STEPS * PANEL));
            }
            for &tile in work.tiles {
                shaped(tile.rows, 4 * of_part);
                for g in 0..count {
                    let (x, acc) = work.of(tile, from + g);
                    let [scales, halves] = work.factors_of(tile, from + g);
                    for part in 0..parts {
                        let steps = part * of_part;
                        let (x, w) = (x.add(steps).cast::<u8>(), weights.add((g * CODE_STEPS + steps) * PANEL));
                        bytes((x, 4 * CODE_STEPS), tile.rows, w, sums);
                        for r in 0..tile.rows {
                            let (sum, acc) = (sums.add(r * PANEL), acc.add(r * PANEL));
                            if from + g == 0 && part == 0 {
                                Avx512::store(acc, Avx512::splat(0.0));
                                Avx512::store(acc.add(16), Avx512::splat(0.0));
                            }
                            let sum = [Avx512::load(sum), Avx512::load(sum.add(16))];
                            let of_row = (*scales.add(r), [*halves.add(r), *halves.add(tile.rows + r)]);
                            add_codes::<Avx512, HIGH>(sum, of_row, (factors.add(g * WIDE_FACTORS), part), acc);
                        }
                    }
                }
            }
        }
    }
}

/// The codes of a group as bytes: eight steps.
#[inline(always)]
unsafe fn wide_codes<const HIGH: usize>(group: *const u8, to: *mut f32) {
    // SAFETY: the group has its words, `to` room for eight steps.
    unsafe {
        let (mut words, mut to) = (group, to);
        for part in 0..code_parts(HIGH) {
            let mut high = [0, 1].map(|half| high_bits::<Avx512, HIGH>(group, part, half));
            for _ in 0..4 / code_parts(HIGH) {
                let low = [Avx512::load(words.cast()), Avx512::load(words.add(WIDTH).cast())];
                words = words.add(2 * WIDTH);
                for second in [false, true] {
                    for half in 0..2 {
                        let bytes = code_bytes::<Avx512, HIGH>(low[half], high[half], second);
                        Avx512::store(to.add(16 * half), bytes);
                    }
                    to = to.add(PANEL);
                }
                for high in &mut high {
                    *high = next_high_bits::<Avx512, HIGH>(*high);
                }
            }
        }
    }
}

#[inline(always)]
unsafe fn of_integers<const HALF: bool>(work: &Work) {
    for from in (0..work.groups).step_by(CHUNK_GROUPS) {
        let count = CHUNK_GROUPS.min(work.groups - from);
        // SAFETY: as in `of_codes`.
        unsafe {
            let weights = (&raw mut (*work.scratch).weights).cast::<f32>();
            let factors = (&raw mut (*work.scratch).factors).cast::<f32>();
            let high = (&raw mut (*work.scratch).sums).cast::<f32>();
            let low = high.add(TILE_ROWS * PANEL);
            for g in 0..count {
                let group = work.panel.add((from + g) * GROUP_BYTES);
                for half in [0, 16] {
                    Avx512::store(factors.add(g * PANEL + half), scales_of::<Avx512, HALF>(group, half));
                }
                fours(group.add(2 * PANEL), weights.add(g * CODE_STEPS * PANEL));
            }
            for &tile in work.tiles {
                shaped(tile.rows, 4 * CODE_STEPS);
                for g in 0..count {
                    let (x, acc) = work.of(tile, from + g);
                    let [scales, _] = work.factors_of(tile, from + g);
                    halves(x, tile.rows, weights.add(g * CODE_STEPS * PANEL), [high, low]);
                    let factors = factors.add(g * PANEL);
                    let factors = [Avx512::load(factors), Avx512::load(factors.add(16))];
                    for r in 0..tile.rows {
                        let acc = acc.add(r * PANEL);
                        if from + g == 0 {
                            Avx512::store(acc, Avx512::splat(0.0));
                            Avx512::store(acc.add(16), Avx512::splat(0.0));
                        }
                        let both = |at: usize| {
                            let high = _mm512_slli_epi32::<8>(_mm512_castps_si512(Avx512::load(high.add(at))));
                            let low = _mm512_castps_si512(Avx512::load(low.add(at)));
                            _mm512_castsi512_ps(_mm512_add_epi32(high, low))
                        };
                        let sum = [both(r * PANEL), both(r * PANEL + 16)];
                        add_scaled::<Avx512>(sum, factors, *scales.add(r), acc);
                    }
                }
            }
        }
    }
}

/// Sixteen steps of pairs of bytes as eight of fours.
#[inline(always)]
unsafe fn fours(pairs: *const u8, to: *mut f32) {
    // By half of the panel: its pairs of one step and, from 32 on, those of the next, in turn.
    const ORDER: [[u16; 32]; 2] = {
        let (mut order, mut i) = ([[0; 32]; 2], 0);
        while i < 32 {
            let pair = i as u16 / 2 + 32 * (i as u16 % 2);
            (order[0][i], order[1][i]) = (pair, pair + 16);
            i += 1;
        }
        order
    };
    for step in 0..CODE_STEPS {
        // SAFETY: the caller gives 16 * 64 bytes, and room for 8 * 32 words; the processor has AVX-512.
        unsafe {
            let load = |step: usize| _mm512_loadu_si512(pairs.add(step * 2 * PANEL).cast());
            let (first, second) = (load(2 * step), load(2 * step + 1));
            for (half, order) in ORDER.iter().enumerate() {
                let order = _mm512_loadu_si512(order.as_ptr().cast());
                let fours = _mm512_permutex2var_epi16(first, order, second);
                _mm512_storeu_si512(to.add(step * PANEL + 16 * half).cast(), fours);
            }
        }
    }
}
