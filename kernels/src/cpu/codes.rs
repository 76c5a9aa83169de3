//! Panels of integer codes, as files store weights: bytes per weight as in the file. It does not know how products are
//! computed.
//!
//! A group of 32 inputs of a panel has its factors, one for each output, then the codes. A 32-bit word has the low
//! four bits of the codes of eight inputs of an output, so that a shift and a mask give four bytes; a fifth and a sixth
//! bit are in further words, likewise. Codes of eight bits are pairs of bytes, as those of int8 weights. Where eight
//! groups share factors, these come before the eight.

use half::{bf16, f16};

use super::simd::Simd;
use crate::backend::GroupScales;
use crate::error::{KernelError, Result};
use crate::quant::{BlockForm, CodeGroup, E2M1, Factors, e8m0};

/// Outputs per panel.
pub const PANEL: usize = 32;
/// Inputs that share one int8 scale; inputs are padded to a multiple of it in every precision.
pub const GROUP: usize = 32;
/// How far ahead weights are prefetched, at any number of rows (measured; the factors of codes are read first).
pub const FETCH_GROUPS: usize = 16;
/// Steps of a group of codes of less than eight bits.
pub const CODE_STEPS: usize = GROUP / 4;
/// Numbers of a group's widened factors.
pub const WIDE_FACTORS: usize = 2 * PANEL;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CodeForm {
    bits: u32,
    zero: u8,
    factors: Factors,
    /// Groups that share factors.
    sharing: usize,
    /// Scales are bf16 instead of f16.
    bf16: bool,
    /// Codes are floats (e2m1) instead of integers.
    floats: bool,
}

/// Twice the numbers of e2m1 by code, plus `FLOAT_ZERO`.
const FLOATS: [u8; 16] = {
    let (mut table, mut code) = ([0; 16], 0);
    while code < 16 {
        table[code] = (2.0 * E2M1[code] + FLOAT_ZERO as f32) as u8;
        code += 1;
    }
    table
};
const FLOAT_ZERO: u8 = 12;

impl CodeForm {
    fn of(form: BlockForm) -> CodeForm {
        let (factors, sharing) = (form.factors(), form.numbers() / GROUP);
        CodeForm { bits: form.bits(), zero: form.zero(), factors, sharing, bf16: false, floats: false }
    }

    /// Of int4 with groups of this many inputs.
    fn int4(factors: Factors, group: usize, bf16: bool) -> CodeForm {
        CodeForm { bits: 4, zero: 8, factors, sharing: group / GROUP, bf16, floats: false }
    }

    /// Scales are bf16 halves of powers of two.
    fn mxfp4() -> CodeForm {
        let (zero, factors) = (FLOAT_ZERO, Factors::Scale);
        CodeForm { bits: 4, zero, factors, sharing: 1, bf16: true, floats: true }
    }

    /// What distinguishes the kernels: bits above four, or 3 for floats of four bits.
    pub fn high(self) -> u32 {
        if self.floats { FLOAT_CODES as u32 } else { self.bits - 4 }
    }

    fn code_bytes(self) -> usize {
        self.bits as usize * GROUP * PANEL / 8
    }

    /// Codes of scales.
    fn own_bytes(self) -> usize {
        match self.factors {
            Factors::Scale | Factors::ScaleMin | Factors::ScaleZero => 0,
            Factors::Shared | Factors::SharedHalves => 2 * PANEL,
        }
    }

    fn group_bytes(self) -> usize {
        self.own_bytes() + self.code_bytes()
    }

    fn shared_bytes(self) -> usize {
        match self.factors {
            Factors::Scale | Factors::SharedHalves => 2 * PANEL,
            Factors::ScaleMin | Factors::ScaleZero | Factors::Shared => 4 * PANEL,
        }
    }

    pub fn panel_bytes(self, groups: usize) -> usize {
        groups * self.group_bytes() + groups.div_ceil(self.sharing) * self.shared_bytes()
    }

    /// Where the shared factors of group g and the group itself begin.
    fn place(self, g: usize) -> [usize; 2] {
        let sharing = self.sharing * self.group_bytes() + self.shared_bytes();
        let first = g / self.sharing * sharing;
        [first, first + self.shared_bytes() + g % self.sharing * self.group_bytes()]
    }

    /// A group of one output.
    fn write(self, group: &CodeGroup, c: usize, g: usize, panel: &mut [u8]) {
        let [shared, own] = self.place(g);
        let mut put = |at: usize, word: u16| panel[at + 2 * c..][..2].copy_from_slice(&word.to_ne_bytes());
        let words = if self.own_bytes() == 0 { group.own } else { group.shared };
        for (i, word) in words.into_iter().take(self.shared_bytes() / (2 * PANEL)).enumerate() {
            put(shared + i * 2 * PANEL, word);
        }
        if self.own_bytes() > 0 {
            panel[own + c] = group.own[0] as u8;
            panel[own + PANEL + c] = group.own[1] as u8;
        }
        let codes = &mut panel[own + self.own_bytes()..][..self.code_bytes()];
        if self.bits == 8 {
            for (step, pair) in group.codes.as_chunks::<2>().0.iter().enumerate() {
                codes[step * 2 * PANEL + 2 * c..][..2].copy_from_slice(pair);
            }
            return;
        }
        for (w, word) in self.words(&group.codes).enumerate() {
            codes[word_place(w, c)..][..4].copy_from_slice(&word.to_ne_bytes());
        }
    }

    /// The words of an output's codes: four with their low bits, then those with their high bits.
    fn words(self, codes: &[u8; GROUP]) -> impl Iterator<Item = u32> {
        let high = self.bits - 4;
        let fours = codes.as_chunks::<4>().0;
        // Fours of inputs whose high bits are in one word.
        let sharing = if high == 2 { 4 } else { 8 };
        let low = fours.as_chunks::<2>().0.iter().map(|[first, second]| {
            u32::from_le_bytes(first.map(|code| code & 0xf)) | u32::from_le_bytes(second.map(|code| code & 0xf)) << 4
        });
        let highs = fours.chunks(sharing).take(high as usize).map(move |fours| {
            let bits = |four: &[u8; 4]| u32::from_le_bytes(four.map(|code| code >> 4));
            fours.iter().enumerate().fold(0, |word, (i, four)| word | bits(four) << (high as usize * i))
        });
        low.chain(highs)
    }

    /// Group g of output c.
    pub fn read(self, panel: &[u8], c: usize, g: usize) -> [f32; GROUP] {
        let [shared, own] = self.place(g);
        let word = |at: usize| u16::from_ne_bytes([panel[at + 2 * c], panel[at + 2 * c + 1]]);
        let second = if self.shared_bytes() > 2 * PANEL { word(shared + 2 * PANEL) } else { 0 };
        let (mut own_factors, mut of_all) = ([word(shared), second], [0; 2]);
        if self.own_bytes() > 0 {
            (of_all, own_factors) = (own_factors, [panel[own + c], panel[own + PANEL + c]].map(u16::from));
        }
        let group = CodeGroup { codes: [0; GROUP], own: own_factors, shared: of_all };
        let factors = match self.bf16 {
            true => [bf16::from_bits(own_factors[0]).to_f32(), f32::from(f16::from_bits(own_factors[1]))],
            false => group.factors(self.factors),
        };
        let codes = &panel[own + self.own_bytes()..][..self.code_bytes()];
        let byte = |w: usize, i: usize| codes[word_place(w, c) + i % 4];
        let high = self.bits - 4;
        std::array::from_fn(|i| {
            let code = if self.bits == 8 {
                f32::from(codes[i / 2 * 2 * PANEL + 2 * c + i % 2] as i8)
            } else {
                let four = i / 4;
                let low = byte(four / 2, i) >> (4 * (four % 2)) & 0xf;
                let more = match high {
                    0 => 0,
                    1 => byte(4, i) >> four & 1,
                    _ => byte(4 + four / 4, i) >> (2 * (four % 4)) & 3,
                };
                f32::from(if self.floats { FLOATS[usize::from(low)] } else { low | more << 4 })
            };
            self.factors.number(i, code, f32::from(self.zero), factors)
        })
    }

    pub fn bits(self) -> u32 {
        self.bits
    }

    /// Where the codes of groups from `from` on are.
    pub fn places(self, panel: *const u8, from: usize) -> CodePlaces {
        let codes = panel.wrapping_add(self.shared_bytes() + self.own_bytes());
        let (group_bytes, shared_bytes, sharing) = (self.group_bytes(), self.shared_bytes(), self.sharing);
        CodePlaces { codes, group_bytes, shared_bytes, sharing, from }
    }

    /// Two factors of group g for each output: the scale and the minimum, or the scales of the halves.
    ///
    /// # Safety
    /// `panel` has the group.
    #[inline(always)]
    unsafe fn factors_of<S: Simd>(self, panel: *const u8, g: usize) -> [[S::V; 2]; 2] {
        let [shared, own] = self.place(g);
        // SAFETY: the caller's promise; the offsets are those that `write` fills.
        unsafe {
            let mut all = [[S::splat(0.0); 2]; 2];
            for half in 0..2 {
                let outs = 16 * half;
                let f16s = |at: usize| panel.add(at).cast::<f16>().add(outs);
                let [first, second] = match self.factors {
                    Factors::Scale | Factors::ScaleZero => {
                        let scale = match self.bf16 {
                            true => S::load_bf16(panel.add(shared).cast::<bf16>().add(outs)),
                            false => S::load_f16(f16s(shared)),
                        };
                        let zero = match self.factors {
                            Factors::ScaleZero => S::load_f16(f16s(shared + 2 * PANEL)),
                            _ => S::splat(f32::from(self.zero)),
                        };
                        [scale, S::sub(S::splat(0.0), S::mul(scale, zero))]
                    }
                    Factors::ScaleMin => [S::load_f16(f16s(shared)), S::load_f16(f16s(shared + 2 * PANEL))],
                    Factors::Shared => {
                        let scale = S::load_u8(panel.add(own + outs));
                        let minimum = S::load_u8(panel.add(own + PANEL + outs));
                        let minimum = S::mul(S::load_f16(f16s(shared + 2 * PANEL)), minimum);
                        [S::mul(S::load_f16(f16s(shared)), scale), S::sub(S::splat(0.0), minimum)]
                    }
                    Factors::SharedHalves => {
                        let d = S::load_f16(f16s(shared));
                        let [a, b] = [own, own + PANEL].map(|at| panel.add(at + outs).cast::<i8>());
                        [S::mul(d, S::load_i8(a)), S::mul(d, S::load_i8(b))]
                    }
                };
                (all[0][half], all[1][half]) = (first, second);
            }
            all
        }
    }

    /// The factors of group g as f32.
    ///
    /// # Safety
    /// `panel` has the group, `wide` room for WIDE_FACTORS numbers.
    #[inline(always)]
    pub unsafe fn widen_factors<S: Simd>(self, panel: *const u8, g: usize, wide: *mut f32) {
        // SAFETY: the caller's promise.
        unsafe {
            for (part, factors) in self.factors_of::<S>(panel, g).into_iter().enumerate() {
                S::store(wide.add(part * PANEL), factors[0]);
                S::store(wide.add(part * PANEL + 16), factors[1]);
            }
        }
    }
}

/// Of word w of an output of a panel.
fn word_place(w: usize, c: usize) -> usize {
    (2 * w + c / 16) * 64 + c % 16 * 4
}

/// Where the codes of groups are.
#[derive(Clone, Copy)]
pub struct CodePlaces {
    /// Of group 0.
    codes: *const u8,
    group_bytes: usize,
    shared_bytes: usize,
    sharing: usize,
    from: usize,
}

impl CodePlaces {
    /// The codes of the g-th group from `from` on.
    #[inline(always)]
    pub fn group(self, g: usize) -> *const u8 {
        let g = self.from + g;
        self.codes.wrapping_add(g * self.group_bytes + g / self.sharing * self.shared_bytes)
    }

    /// Prefetches what follows `FETCH_GROUPS` later.
    #[inline(always)]
    pub fn fetch<S: Simd>(self, g: usize) {
        let from = self.group(g + FETCH_GROUPS);
        for line in (0..self.group_bytes).step_by(64) {
            // SAFETY: the address need not be valid.
            unsafe { S::prefetch(from.wrapping_add(line)) };
        }
    }
}

/// As a number of high bits: four bits that are floats.
pub const FLOAT_CODES: usize = 3;

/// Parts of a group, each with its own scale and its own word of high bits.
pub const fn code_parts(high: usize) -> usize {
    if high == 2 { 2 } else { 1 }
}

/// The high bits of a part, of a half of a panel.
///
/// # Safety
/// `codes` has a group with codes of 4 + HIGH bits.
#[inline(always)]
pub unsafe fn high_bits<S: Simd, const HIGH: usize>(codes: *const u8, part: usize, half: usize) -> S::V {
    // SAFETY: the caller's promise.
    unsafe {
        match HIGH {
            0 | FLOAT_CODES => S::splat(0.0),
            _ => S::load(codes.add(word_place(4 + part, 16 * half)).cast()),
        }
    }
}

/// Those of the next eight inputs.
///
/// # Safety
/// The processor has the set.
#[inline(always)]
pub unsafe fn next_high_bits<S: Simd, const HIGH: usize>(high: S::V) -> S::V {
    // SAFETY: the caller's promise.
    if HIGH == 0 || HIGH == FLOAT_CODES { high } else { unsafe { S::shift_right(high, 2 * HIGH as u32) } }
}

/// The first or the second four of eight inputs as bytes.
///
/// # Safety
/// The processor has the set.
#[inline(always)]
pub unsafe fn code_bytes<S: Simd, const HIGH: usize>(low: S::V, high: S::V, second: bool) -> S::V {
    // SAFETY: the caller's promise.
    unsafe {
        let bytes = S::and_bits(if second { S::shift_right(low, 4) } else { low }, 0x0f0f_0f0f);
        match HIGH {
            0 => return bytes,
            FLOAT_CODES => return S::lookup(bytes, &FLOATS),
            _ => {}
        }
        let high = S::shift_left(high, 4 - if second { HIGH as u32 } else { 0 });
        S::or_bits(bytes, S::and_bits(high, if HIGH == 1 { 0x1010_1010 } else { 0x3030_3030 }))
    }
}

/// The rows of a weight in a form of codes.
#[derive(Debug, Clone, Copy)]
pub enum StoredCodes<'a> {
    Blocks {
        form: BlockForm,
        bytes: &'a [u8],
        row_bytes: usize,
    },
    /// As `HostData::Int4`, or as `HostData::Int4Zeros`.
    Int4 {
        packed: &'a [u8],
        scales: &'a GroupScales,
        zeros: Option<&'a [u8]>,
        group: usize,
        cols: usize,
    },
    Mxfp4 {
        packed: &'a [u8],
        scales: &'a [u8],
        cols: usize,
    },
}

impl<'a> StoredCodes<'a> {
    /// The number of bytes must fit.
    pub fn blocks(form: BlockForm, bytes: &'a [u8], rows: usize, cols: usize) -> Result<StoredCodes<'a>> {
        match form.row_bytes(cols) {
            Some(row_bytes) if row_bytes * rows == bytes.len() => Ok(StoredCodes::Blocks { form, bytes, row_bytes }),
            _ => {
                let what =
                    format!("[{rows}, {cols}] of {} must be whole blocks, got {} bytes", form.name(), bytes.len());
                Err(KernelError::Shape { op: "weight", what })
            }
        }
    }

    /// None if the groups are not whole groups of panels, or the scales need more than 16 bits.
    pub fn int4(
        packed: &'a [u8],
        scales: &'a GroupScales,
        zeros: Option<&'a [u8]>,
        group: usize,
        cols: usize,
    ) -> Option<StoredCodes<'a>> {
        let narrow = match scales {
            GroupScales::Bf16(_) => true,
            GroupScales::F32(scales) => scales.iter().all(|&scale| f16::from_f32(scale).to_f32() == scale),
        };
        let whole = group > 0 && group.is_multiple_of(GROUP);
        (narrow && whole).then_some(StoredCodes::Int4 { packed, scales, zeros, group, cols })
    }

    pub fn form(self) -> CodeForm {
        match self {
            StoredCodes::Blocks { form, .. } => CodeForm::of(form),
            StoredCodes::Int4 { scales, zeros, group, .. } => {
                let factors = if zeros.is_some() { Factors::ScaleZero } else { Factors::Scale };
                CodeForm::int4(factors, group, matches!(scales, GroupScales::Bf16(_)))
            }
            StoredCodes::Mxfp4 { .. } => CodeForm::mxfp4(),
        }
    }

    fn group(self, row: usize, g: usize) -> CodeGroup {
        // Inputs beyond the end count as this code.
        let nibbles = |packed: &[u8], row_bytes: usize, cols: usize, beyond: u8| {
            let bytes = &packed[row * row_bytes..][..row_bytes];
            std::array::from_fn(|i| match g * GROUP + i {
                input if input >= cols => beyond,
                input => bytes[input / 2] >> (4 * (input % 2)) & 0xf,
            })
        };
        match self {
            StoredCodes::Blocks { form, bytes, row_bytes } => {
                let per_block = form.numbers() / GROUP;
                let at = row * row_bytes + g / per_block * form.bytes();
                form.group(&bytes[at..at + form.bytes()], g % per_block)
            }
            StoredCodes::Int4 { packed, scales, zeros, group, cols } => {
                let at = row * cols.div_ceil(group) + g * GROUP / group;
                let scale = match scales {
                    GroupScales::F32(scales) => f16::from_f32(scales[at]).to_bits(),
                    GroupScales::Bf16(scales) => scales[at].to_bits(),
                };
                let zero = zeros.map_or(8, |zeros| zeros[at]);
                let codes = nibbles(packed, cols.div_ceil(8) * 4, cols, zero.min(15));
                CodeGroup { codes, own: [scale, f16::from_f32(f32::from(zero)).to_bits()], shared: [0; 2] }
            }
            StoredCodes::Mxfp4 { packed, scales, cols } => {
                let exponent = scales[row * cols.div_ceil(GROUP) + g];
                let scale = bf16::from_f32(e8m0(exponent) / 2.0).to_bits();
                CodeGroup { codes: nibbles(packed, cols.div_ceil(8) * 4, cols, 0), own: [scale, 0], shared: [0; 2] }
            }
        }
    }

    /// Panel p of `rows` outputs.
    pub fn pack(self, p: usize, rows: usize, groups: usize, panel: &mut [u8]) {
        let form = self.form();
        for g in 0..groups {
            for c in 0..PANEL.min(rows - p * PANEL) {
                form.write(&self.group(p * PANEL + c, g), c, g, panel);
            }
        }
    }
}
