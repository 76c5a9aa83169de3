//! Checkpoint weight formats to f32.

use crate::error::{Error, Result};

fn check(op: &'static str, name: &str, got: usize, want: usize) -> Result<()> {
    if got == want {
        return Ok(());
    }
    Err(Error::Shape { op, what: format!("{name} must have {want} entries, has {got}") })
}

/// The value of an e4m3 code (the "fn" kind: no infinities, 0x7f and 0xff are NaN).
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

/// DeepSeek's block-scaled FP8: e4m3 codes [rows, cols] times one scale for each block of `block` rows and columns
/// (128 x 128; the last ones may be partial). `scales` (`weight_scale_inv`, bf16 ones widened) is
/// [ceil(rows / block\[0\]), ceil(cols / block\[1\])].
pub fn fp8_block_dequant(
    codes: &[u8],
    rows: usize,
    cols: usize,
    scales: &[f32],
    block: [usize; 2],
) -> Result<Vec<f32>> {
    const OP: &str = "fp8_block_dequant";
    if block.contains(&0) {
        return Err(Error::Shape { op: OP, what: format!("blocks of {block:?}") });
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

/// compressed-tensors "pack-quantized" int4: `packed` is [rows, ceil(cols / 8)] little-endian 32-bit words holding
/// eight values each, lowest nibble first, as value + 8; `scales` (bf16 ones widened) is [rows, ceil(cols / group)].
pub fn int4_group_dequant(packed: &[u8], rows: usize, cols: usize, scales: &[f32], group: usize) -> Result<Vec<f32>> {
    const OP: &str = "int4_group_dequant";
    if group == 0 {
        return Err(Error::Shape { op: OP, what: "groups of 0".into() });
    }
    let (bytes, groups) = (cols.div_ceil(8) * 4, cols.div_ceil(group));
    check(OP, "weight_packed (in bytes)", packed.len(), rows * bytes)?;
    check(OP, "weight_scale", scales.len(), rows * groups)?;
    let mut out = Vec::with_capacity(rows * cols);
    for r in 0..rows {
        // Little-endian words with the lowest nibble first are bytes with the low nibble first.
        let row = &packed[r * bytes..][..bytes];
        out.extend((0..cols).map(|c| {
            let nibble = row[c / 2] >> (4 * (c % 2)) & 0xf;
            (f32::from(nibble) - 8.0) * scales[r * groups + c / group]
        }));
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn e4m3_codes() {
        assert_eq!(e4m3(0x00), 0.0);
        assert!(e4m3(0x80) == 0.0 && e4m3(0x80).is_sign_negative());
        assert_eq!(e4m3(0x01), 2f32.powi(-9));
        assert_eq!(e4m3(0x07), 7.0 * 2f32.powi(-9));
        assert_eq!(e4m3(0x08), 2f32.powi(-6));
        assert_eq!(e4m3(0x38), 1.0);
        assert_eq!(e4m3(0xbc), -1.5);
        assert_eq!(e4m3(0x7e), 448.0);
        assert!(e4m3(0x7f).is_nan() && e4m3(0xff).is_nan());
        let mut finite: Vec<f32> = (0..=0x7e).map(e4m3).collect();
        assert!(finite.is_sorted());
        finite.dedup();
        assert_eq!(finite.len(), 0x7f);
    }

    #[test]
    fn fp8_blocks_with_partial_edges() {
        let (rows, cols) = (130, 300);
        let codes: Vec<u8> = (0..rows * cols).map(|i| (i % 0x7f) as u8).collect();
        let scales: Vec<f32> = (0..6).map(|i| 0.5 + i as f32).collect();
        let out = fp8_block_dequant(&codes, rows, cols, &scales, [128, 128]).unwrap();
        for (r, c) in [(0, 0), (0, 127), (0, 128), (127, 256), (128, 0), (129, 299), (128, 255)] {
            let want = e4m3(codes[r * cols + c]) * scales[r / 128 * 3 + c / 128];
            assert_eq!(out[r * cols + c], want);
        }
        let nan = fp8_block_dequant(&[0x7f, 0x38], 1, 2, &[2.0], [128, 128]).unwrap();
        assert!(nan[0].is_nan() && nan[1] == 2.0);
        let error = fp8_block_dequant(&codes, rows, cols, &scales[1..], [128, 128]).unwrap_err();
        assert_eq!(error.to_string(), "fp8_block_dequant: weight_scale_inv must have 6 entries, has 5");
    }

    #[test]
    fn int4_nibbles() {
        // 0..=15 in order, lowest nibble first: values -8..=7.
        let words: [u32; 4] = [0x7654_3210, 0xfedc_ba98, 0x8888_8888, 0x0000_0000];
        let packed: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        let out = int4_group_dequant(&packed, 1, 32, &[1.0, 2.0], 16).unwrap();
        let first: Vec<f32> = (-8..8).map(|v| v as f32).collect();
        assert_eq!(out[..16], first);
        assert_eq!(out[16..24], [0.0; 8]);
        assert_eq!(out[24..], [-16.0; 8]);
        // Partial groups and words at the end of each row.
        let out = int4_group_dequant(&packed, 2, 11, &[1.0, 3.0, 1.0, 1.0], 8).unwrap();
        assert_eq!(out[6..14], [-2.0, -1.0, 0.0, 3.0, 6.0, 0.0, 0.0, 0.0]);
        assert!(int4_group_dequant(&packed, 1, 32, &[1.0], 0).is_err());
        assert!(int4_group_dequant(&packed[1..], 1, 32, &[1.0, 2.0], 16).is_err());
    }
}
