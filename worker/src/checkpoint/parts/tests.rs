use rein_kernels::quant::{fp8_block_dequant, int4_group_dequant};

use super::*;

const ROWS: usize = 21;
const COLS: usize = 37;
const PARTS: [(Range<usize>, Range<usize>); 6] =
    [(0..ROWS, 0..COLS), (8..16, 0..COLS), (0..ROWS, 8..24), (3..20, 5..36), (4..5, 36..37), (12..21, 20..20)];

fn scales(count: usize) -> Vec<f32> {
    (0..count).map(|i| 0.5 + i as f32).collect()
}

fn cut(wide: &[f32], rows: &Range<usize>, cols: &Range<usize>) -> Vec<f32> {
    rows.clone().flat_map(|row| &wide[row * COLS + cols.start..row * COLS + cols.end]).copied().collect()
}

#[test]
fn parts_of_fp8_have_the_values_of_the_whole() {
    let codes: Vec<u8> = (0..ROWS * COLS).map(|i| (i * 7 % 126) as u8).collect();
    for block in [[4, 8], [5, 6], [1, 1], [128, 128]] {
        let per_row = COLS.div_ceil(block[1]);
        let grid = scales(ROWS.div_ceil(block[0]) * per_row);
        let wide = fp8_block_dequant(&codes, ROWS, COLS, &grid, block).expect("fits");
        for (rows, cols) in PARTS {
            let (part, size) = cut_scales(&grid[rows.start / block[0] * per_row..], per_row, block, &rows, &cols);
            let codes = cut_bytes(codes[rows.start * COLS..rows.end * COLS].to_vec().into(), COLS, cols.clone());
            let got = fp8_block_dequant(&codes, rows.len(), cols.len(), &part, size).expect("fits");
            assert_eq!(got, cut(&wide, &rows, &cols), "{block:?} {rows:?} {cols:?}");
        }
    }
}

#[test]
fn parts_of_int4_have_the_values_of_the_whole() {
    let stride = COLS.div_ceil(8) * 4;
    let packed: Vec<u8> = (0..ROWS * stride).map(|i| (i * 37 % 256) as u8).collect();
    for group in [8, 32, 5] {
        let per_row = COLS.div_ceil(group);
        let grid = scales(ROWS * per_row);
        let wide = int4_group_dequant(&packed, ROWS, COLS, &grid, group).expect("fits");
        for (rows, cols) in PARTS {
            let (part, [_, size]) = cut_scales(&grid[rows.start * per_row..], per_row, [1, group], &rows, &cols);
            let packed =
                cut_nibbles(packed[rows.start * stride..rows.end * stride].to_vec().into(), stride, COLS, cols.clone());
            let got = int4_group_dequant(&packed, rows.len(), cols.len(), &part, size).expect("fits");
            assert_eq!(got, cut(&wide, &rows, &cols), "{group} {rows:?} {cols:?}");
        }
    }
}
