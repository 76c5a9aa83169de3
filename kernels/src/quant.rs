//! Dequantizes checkpoint weight formats.

use std::ops::Range;

use half::bf16;

use crate::backend::{GroupScales, HostBuffer, HostData, HostForm, HostMatrix, HostNumber, StoredForm};
pub use crate::blocks::{BlockForm, CODE_GROUP, CodeGroup, Factors};
use crate::error::{KernelError, Result};
pub use crate::storage::MXFP4_GROUP;
use crate::storage::{BY_OUTPUT, FP8_BLOCK};

fn check(op: &'static str, name: &str, got: usize, want: usize) -> Result<()> {
    if got == want {
        return Ok(());
    }
    Err(KernelError::Shape { op, what: format!("{name} must have {want} entries, got {got}") })
}

/// The value of an e4m3 code (the "fn" variant: no infinities; 0x7f and 0xff are NaN).
pub const fn e4m3(code: u8) -> f32 {
    let sign = (code as u32 & 0x80) << 24;
    let exponent = (code as u32 >> 3) & 0xf;
    let mantissa = code as u32 & 7;
    if exponent == 15 && mantissa == 7 {
        return f32::from_bits(sign | 0x7fc0_0000);
    }
    if exponent == 0 {
        // Subnormal: mantissa * 2^-9.
        let magnitude = mantissa as f32 / 512.0;
        return f32::from_bits(sign | magnitude.to_bits());
    }
    f32::from_bits(sign | (exponent + 127 - 7) << 23 | mantissa << 20)
}

static E4M3: [f32; 256] = {
    let mut table = [0.0; 256];
    let mut code = 0;
    while code < 256 {
        table[code] = e4m3(code as u8);
        code += 1;
    }
    table
};

/// The largest number of e4m3.
pub const E4M3_MAX: f32 = 448.0;

/// The code of the nearest e4m3 number, of two the even one; beyond the largest, that.
pub fn to_e4m3(x: f32) -> u8 {
    let (sign, bits) = ((x.to_bits() >> 24 & 0x80) as u8, x.to_bits() & 0x7fff_ffff);
    // 2^-6, the smallest number that is not subnormal.
    if bits < 0x3c80_0000 {
        return sign | (f32::from_bits(bits) * 512.0).round_ties_even() as u8;
    }
    let rounded = bits + 0x7_ffff + (bits >> 20 & 1);
    let code = (rounded >> 20).saturating_sub((127 - 7) << 3);
    sign | code.min(0x7e) as u8
}

/// The smallest power of two by which numbers up to `largest` fit in e4m3: their codes times it are exact in bf16.
pub fn e4m3_scale(largest: f32) -> f32 {
    let ratio = (largest / E4M3_MAX).to_bits();
    // None, or too small for a scale that is a normal number.
    if ratio < 0x0080_0000 {
        return if largest > 0.0 { f32::MIN_POSITIVE } else { 1.0 };
    }
    f32::from_bits((ratio + 0x007f_ffff) & 0xff80_0000)
}

/// The number of an e8m0 scale: a power of two (OCP Microscaling Formats 1.0).
pub fn e8m0(code: u8) -> f32 {
    f32::powi(2.0, i32::from(code) - 127)
}

/// The numbers of e2m1 by code (OCP Microscaling Formats 1.0).
pub const E2M1: [f32; 16] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// DeepSeek's block-scaled FP8: e4m3 codes [rows, cols] times one scale per block of `block` rows and columns (128 x
/// 128; the last ones may be partial). `scales` (`weight_scale_inv`, widened if bf16) is [ceil(rows / block\[0\]),
/// ceil(cols / block\[1\])].
pub fn fp8_block_dequant(
    codes: &[u8],
    rows: usize,
    cols: usize,
    scales: &[f32],
    block: [usize; 2],
) -> Result<Vec<f32>> {
    const OP: &str = "fp8_block_dequant";
    if block.contains(&0) {
        return Err(KernelError::Shape { op: OP, what: format!("block size must be at least 1 by 1, got {block:?}") });
    }
    let per_row = cols.div_ceil(block[1]);
    check(OP, "weight", codes.len(), rows * cols)?;
    check(OP, "weight_scale_inv", scales.len(), rows.div_ceil(block[0]) * per_row)?;
    let mut out = Vec::with_capacity(codes.len());
    for (r, row) in codes.chunks_exact(cols.max(1)).enumerate() {
        let scales = &scales[r / block[0] * per_row..][..per_row];
        for (codes, scale) in row.chunks(block[1]).zip(scales) {
            out.extend(codes.iter().map(|&code| E4M3[usize::from(code)] * scale));
        }
    }
    Ok(out)
}

/// compressed-tensors "pack-quantized" int4: `packed` is [rows, ceil(cols / 8)] little-endian 32-bit words with eight
/// values each, lowest nibble first, as value + 8; `scales` (widened if bf16) is [rows, ceil(cols / group)].
pub fn int4_group_dequant(packed: &[u8], rows: usize, cols: usize, scales: &[f32], group: usize) -> Result<Vec<f32>> {
    const OP: &str = "int4_group_dequant";
    if group == 0 {
        return Err(KernelError::Shape { op: OP, what: "group size must be at least 1".into() });
    }
    let groups = cols.div_ceil(group);
    check(OP, "weight_scale", scales.len(), rows * groups)?;
    nibble_numbers(packed, rows, cols, |r, c, code| (f32::from(code) - 8.0) * scales[r * groups + c / group])
}

/// Rows of ceil(cols / 8) words of eight codes, lowest nibble first. `number` gets row, column and code.
fn nibble_numbers(
    packed: &[u8],
    rows: usize,
    cols: usize,
    number: impl Fn(usize, usize, u8) -> f32,
) -> Result<Vec<f32>> {
    let bytes = cols.div_ceil(8) * 4;
    check("int4_dequant", "weight (in bytes)", packed.len(), rows * bytes)?;
    // Little-endian words with the lowest nibble first are bytes with the low nibble first.
    let code = |r: usize, c: usize| packed[r * bytes + c / 2] >> (4 * (c % 2)) & 0xf;
    Ok((0..rows).flat_map(|r| (0..cols).map(move |c| (r, c))).map(|(r, c)| number(r, c, code(r, c))).collect())
}

fn extended<T>(all: &mut Vec<T>, part: Vec<T>) -> bool {
    all.extend(part);
    true
}

fn appended<T: HostNumber>(all: &mut HostBuffer<T>, part: HostBuffer<T>) -> bool {
    all.append(part);
    true
}

fn extended_scales(all: &mut GroupScales, part: GroupScales) -> bool {
    match (all, part) {
        (GroupScales::F32(all), GroupScales::F32(part)) => extended(all, part),
        (GroupScales::Bf16(all), GroupScales::Bf16(part)) => extended(all, part),
        _ => false,
    }
}

impl HostMatrix {
    /// One below the other. FP8 parts must end where a block of scales does.
    pub fn stack(parts: Vec<HostMatrix>) -> Result<HostMatrix> {
        let mut parts = parts.into_iter();
        let mut all = parts.next().unwrap_or(HostMatrix { rows: 0, cols: 0, data: HostData::F32(Vec::new()) });
        for part in parts {
            let fits = all.takes_below(&part);
            let extended = match (&mut all.data, part.data) {
                (HostData::F32(all), HostData::F32(part)) => extended(all, part),
                (HostData::Bf16(all), HostData::Bf16(part)) => appended(all, part),
                (HostData::Fp8 { codes, scales, .. }, HostData::Fp8 { codes: more, scales: more_scales, .. }) => {
                    appended(codes, more) && extended(scales, more_scales)
                }
                (HostData::Int4 { packed, scales, .. }, HostData::Int4 { packed: more, scales: more_scales, .. }) => {
                    extended_scales(scales, more_scales) && appended(packed, more)
                }
                (
                    HostData::Int4Zeros { packed, scales, zeros, .. },
                    HostData::Int4Zeros { packed: more, scales: more_scales, zeros: more_zeros, .. },
                ) => extended_scales(scales, more_scales) && extended(packed, more) && extended(zeros, more_zeros),
                (HostData::Mxfp4 { packed, scales }, HostData::Mxfp4 { packed: more, scales: more_scales }) => {
                    extended(packed, more) && extended(scales, more_scales)
                }
                (HostData::Blocks { bytes, .. }, HostData::Blocks { bytes: more, .. }) => extended(bytes, more),
                _ => false,
            };
            if !(fits && extended) {
                return Err(KernelError::Shape { op: "stack", what: "parts of a weight do not fit together".into() });
            }
            all.rows += part.rows;
        }
        Ok(all)
    }

    /// Whether rows of `part` can lie below these.
    pub fn takes_below(&self, part: &HostMatrix) -> bool {
        let alike = match (&self.data, &part.data) {
            (HostData::Fp8 { block, .. }, HostData::Fp8 { block: same, .. }) => {
                block == same && self.rows.is_multiple_of(block[0])
            }
            (HostData::Int4 { scales, group, .. }, HostData::Int4 { scales: others, group: same, .. })
            | (HostData::Int4Zeros { scales, group, .. }, HostData::Int4Zeros { scales: others, group: same, .. }) => {
                group == same && scales.form() == others.form()
            }
            (HostData::Blocks { form, .. }, HostData::Blocks { form: same, .. }) => form == same,
            (one, other) => std::mem::discriminant(one) == std::mem::discriminant(other),
        };
        alike && self.cols == part.cols
    }

    /// Runs of columns, one after the other, of numbers or of whole blocks.
    pub fn columns(self, runs: &[Range<usize>]) -> Result<HostMatrix> {
        /// `unit`: columns of an element.
        fn pick<T: Copy>(all: &[T], rows: usize, runs: &[Range<usize>], [unit, size]: [usize; 2]) -> Vec<T> {
            let of = |run: &Range<usize>| run.start / unit * size..run.end / unit * size;
            let row = |row: &[T]| runs.iter().flat_map(|run| row[of(run)].to_vec()).collect::<Vec<T>>();
            all.chunks_exact((all.len() / rows.max(1)).max(1)).flat_map(row).collect()
        }
        let HostMatrix { rows, data, .. } = self;
        let data = match data {
            HostData::F32(numbers) => HostData::F32(pick(&numbers, rows, runs, [1, 1])),
            HostData::Bf16(numbers) => HostData::Bf16(pick(&numbers, rows, runs, [1, 1]).into()),
            HostData::Blocks { form, bytes }
                if runs.iter().all(|run| [run.start, run.end].iter().all(|col| col.is_multiple_of(form.numbers()))) =>
            {
                HostData::Blocks { form, bytes: pick(&bytes, rows, runs, [form.numbers(), form.bytes()]) }
            }
            _ => {
                let what = "columns in another order must be F32, BF16 or in whole blocks".into();
                return Err(KernelError::Shape { op: "columns", what });
            }
        };
        Ok(HostMatrix { rows, cols: runs.iter().map(Range::len).sum(), data })
    }

    /// Every `step`th row, from the first.
    pub fn every(self, step: usize) -> Result<HostMatrix> {
        let HostMatrix { rows, cols, data } = self;
        fn pick<T: Copy>(all: Vec<T>, rows: usize, step: usize) -> Vec<T> {
            let width = (all.len() / rows.max(1)).max(1);
            all.chunks_exact(width).step_by(step).flatten().copied().collect()
        }
        let data = match data {
            HostData::F32(numbers) => HostData::F32(pick(numbers, rows, step)),
            HostData::Bf16(numbers) => HostData::Bf16(pick(numbers.into_vec(), rows, step).into()),
            HostData::Mxfp4 { packed, scales } => {
                HostData::Mxfp4 { packed: pick(packed, rows, step), scales: pick(scales, rows, step) }
            }
            _ => {
                let what = "weights of gates and ups in turn must be F32, BF16 or MXFP4".into();
                return Err(KernelError::Shape { op: "every", what });
            }
        };
        Ok(HostMatrix { rows: rows.div_ceil(step.max(1)), cols, data })
    }

    /// An FP8 weight of one scale, though it is stored for each output, has it for each block.
    pub fn with_one_scale(self) -> HostMatrix {
        match &self.data {
            HostData::Fp8 { scales, .. } if self.stored_form() == StoredForm::Fp8 { block: BY_OUTPUT } => {
                match scales.split_first() {
                    Some((&first, rest)) if rest.iter().all(|scale| *scale == first) => self.in_blocks_of(first).0,
                    _ => self,
                }
            }
            _ => self,
        }
    }

    /// An FP8 weight with a scale for each output as one whose blocks have the scale 1, with the scales of its outputs.
    /// Of others, none.
    pub fn split_output_scales(self) -> (HostMatrix, Vec<f32>) {
        match self.stored_form() {
            StoredForm::Fp8 { block: BY_OUTPUT } => self.in_blocks_of(1.0),
            _ => (self, Vec::new()),
        }
    }

    /// FP8 codes with one scale for all blocks, and the scales that they had.
    fn in_blocks_of(self, scale: f32) -> (HostMatrix, Vec<f32>) {
        let HostMatrix { rows, cols, data } = self;
        let HostData::Fp8 { codes, scales: before, .. } = data else {
            return (HostMatrix { rows, cols, data }, Vec::new());
        };
        let scales = vec![scale; rows.div_ceil(FP8_BLOCK) * cols.div_ceil(FP8_BLOCK)];
        (HostMatrix { rows, cols, data: HostData::Fp8 { codes, scales, block: [FP8_BLOCK; 2] } }, before)
    }

    /// Converts the quantized forms, unless they are to stay as they are stored.
    pub fn into_form(self, form: HostForm) -> Result<HostMatrix> {
        let HostMatrix { rows, cols, data } = self;
        if form == HostForm::Stored {
            return Ok(HostMatrix { rows, cols, data });
        }
        let wide = match data {
            HostData::Fp8 { codes, scales, block } => fp8_block_dequant(&codes, rows, cols, &scales, block)?,
            HostData::Int4 { packed, scales, group } => {
                int4_group_dequant(&packed, rows, cols, &scales.into_f32(), group)?
            }
            HostData::Int4Zeros { packed, scales, zeros, group } => {
                let (scales, groups) = (scales.into_f32(), cols.div_ceil(group.max(1)));
                check("int4_dequant", "scales", scales.len(), rows * groups)?;
                check("int4_dequant", "zeros", zeros.len(), rows * groups)?;
                nibble_numbers(&packed, rows, cols, |r, c, code| {
                    let at = r * groups + c / group;
                    (f32::from(code) - f32::from(zeros[at])) * scales[at]
                })?
            }
            HostData::Mxfp4 { packed, scales } => {
                let groups = cols.div_ceil(MXFP4_GROUP);
                check("mxfp4_dequant", "scales", scales.len(), rows * groups)?;
                let scale = |r: usize, c: usize| e8m0(scales[r * groups + c / MXFP4_GROUP]);
                nibble_numbers(&packed, rows, cols, |r, c, code| E2M1[usize::from(code)] * scale(r, c))?
            }
            HostData::Blocks { form, bytes } => {
                check(
                    "block_dequant",
                    "weight (in bytes)",
                    bytes.len(),
                    rows * form.row_bytes(cols).unwrap_or_default(),
                )?;
                form.decode(&bytes)
            }
            data => return Ok(HostMatrix { rows, cols, data }),
        };
        let data = match form {
            HostForm::Bf16 => HostData::Bf16(wide.into_iter().map(bf16::from_f32).collect()),
            HostForm::F32 | HostForm::Stored => HostData::F32(wide),
        };
        Ok(HostMatrix { rows, cols, data })
    }
}

#[cfg(test)]
mod tests;
