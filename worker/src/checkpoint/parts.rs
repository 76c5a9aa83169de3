//! Cuts parts out of quantized matrices without dequantizing them. It does not read files.

use std::ops::Range;

use rein_kernels::HostBuffer;

/// The scales of a part of a matrix with one scale per block, and the size of a block in that part. `scales` is the
/// grid of `per_row` columns, from the block row of `rows.start` on. Where the part starts inside a block, its blocks
/// are smaller, so that they are still aligned with those of the matrix.
pub fn cut_scales<T: Copy>(
    scales: &[T],
    per_row: usize,
    block: [usize; 2],
    rows: &Range<usize>,
    cols: &Range<usize>,
) -> (Vec<T>, [usize; 2]) {
    let size = [greatest_common_divisor(rows.start, block[0]), greatest_common_divisor(cols.start, block[1])];
    let first = rows.start / block[0];
    let part = rows.clone().step_by(size[0]).flat_map(|row| {
        let row = &scales[(row / block[0] - first) * per_row..][..per_row];
        cols.clone().step_by(size[1]).map(move |col| row[col / block[1]])
    });
    (part.collect(), size)
}

fn greatest_common_divisor(a: usize, b: usize) -> usize {
    if a == 0 { b } else { greatest_common_divisor(b % a, a) }
}

/// Columns of rows of `stride` bytes.
pub fn cut_bytes(bytes: HostBuffer<u8>, stride: usize, cols: Range<usize>) -> HostBuffer<u8> {
    if cols.len() == stride {
        return bytes;
    }
    bytes.chunks_exact(stride.max(1)).flat_map(|row| &row[cols.clone()]).copied().collect()
}

/// Columns of rows of `stride` bytes, each of which holds `width` values of four bits, low bits first. The rows of the
/// part are padded to whole 32-bit words.
pub fn cut_nibbles(bytes: HostBuffer<u8>, stride: usize, width: usize, cols: Range<usize>) -> HostBuffer<u8> {
    if cols.len() == width {
        return bytes;
    }
    let padded = cols.len().div_ceil(8) * 4;
    let mut part = Vec::with_capacity(bytes.len() / stride.max(1) * padded);
    for row in bytes.chunks_exact(stride.max(1)) {
        let nibble = |col: usize| if col < cols.end { row[col / 2] >> (4 * (col % 2)) & 0xf } else { 0 };
        part.extend((0..padded).map(|i| nibble(cols.start + 2 * i) | nibble(cols.start + 2 * i + 1) << 4));
    }
    part.into()
}

#[cfg(test)]
mod tests;
