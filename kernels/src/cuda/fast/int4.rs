//! Experts with weights of four bits, by humming's kernels: their layout, which a weight gets when it is loaded, and
//! their tiles. There are kernels for the widths of Kimi K2 in int4 and of gpt-oss in MXFP4; what they take and give is
//! in kernels/cuda/fast/int4.h.

use cudarc::driver::sys::CUstream;
use half::bf16;

use super::super::form::{ExpertShape, WeightForm};
use super::super::plan::{LaunchPlan, int};
use super::super::tensor_map::{MapElement, TensorBoxes};
use super::super::{CudaDevice, DeviceBuffer, Result};
use super::args::Int4RepackArgs;
use crate::backend::ScaleForm;

/// Numbers that share a scale.
const GROUP: usize = 32;
/// Columns and numbers along k of a tile.
const COLS: usize = 256;
const DEPTH: usize = 64;
/// Of a block of a product.
pub(in super::super) const INT4_THREADS: u32 = 384;
/// The blocks of `int4_repack` have this many columns and numbers along k.
const REPACKED: usize = 64;
const REPACK_THREADS: u32 = 32;
/// Up to so many rows of an expert, the small tile is used.
const FEW_ROWS: usize = 16;
/// Both halves of a byte are interleaved, as the kernels unpack it.
const INTERLEAVED: u32 = 3;

/// A kernel of int4.h.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) struct Int4Tile {
    pub kernel: &'static str,
    pub rows: usize,
    pub stages: usize,
    pub n: usize,
    pub k: usize,
    /// e2m1 instead of integers.
    floats: bool,
    /// Bytes of shared memory.
    pub shared: usize,
}

const fn int4(kernel: &'static str, rows: usize, stages: usize, [n, k]: [usize; 2], shared: usize) -> Int4Tile {
    Int4Tile { kernel, rows, stages, n, k, floats: false, shared }
}

const fn mxfp4(kernel: &'static str, rows: usize, stages: usize, widths: [usize; 2], shared: usize) -> Int4Tile {
    Int4Tile { floats: true, ..int4(kernel, rows, stages, widths, shared) }
}

/// As int4.h lists them.
pub(super) const TILES: &[Int4Tile] = &[
    int4("int4_few_4096x7168", 16, 8, [4096, 7168], FEW_SHARED),
    int4("int4_many_4096x7168", 128, 4, [4096, 7168], MANY_SHARED),
    int4("int4_few_7168x2048", 16, 8, [7168, 2048], FEW_SHARED),
    int4("int4_many_7168x2048", 128, 4, [7168, 2048], MANY_SHARED),
    mxfp4("mxfp4_few_5760x2880", 16, 8, [5760, 2880], FEW_SHARED),
    mxfp4("mxfp4_many_5760x2880", 128, 4, [5760, 2880], MANY_SHARED),
    mxfp4("mxfp4_few_2880x2880", 16, 8, [2880, 2880], FEW_SHARED),
    mxfp4("mxfp4_many_2880x2880", 128, 4, [2880, 2880], MANY_SHARED),
    int4("int4_few_512x256", 16, 8, [512, 256], FEW_SHARED),
    int4("int4_many_512x256", 128, 4, [512, 256], MANY_SHARED),
    int4("int4_few_256x256", 16, 8, [256, 256], FEW_SHARED),
    int4("int4_many_256x256", 128, 4, [256, 256], MANY_SHARED),
    mxfp4("mxfp4_few_384x192", 16, 8, [384, 192], FEW_SHARED),
    mxfp4("mxfp4_many_384x192", 128, 4, [384, 192], MANY_SHARED),
    mxfp4("mxfp4_few_192x192", 16, 8, [192, 192], FEW_SHARED),
    mxfp4("mxfp4_many_192x192", 128, 4, [192, 192], MANY_SHARED),
];
const FEW_SHARED: usize = 91_136;
const MANY_SHARED: usize = 103_424;

/// The kernels of an expert's matrices: gate and up, and down. Both tiles of each sum in the same order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) struct Int4Plans([[&'static Int4Tile; 2]; 2]);

impl Int4Plans {
    /// The outputs of weights are padded to a multiple of this.
    pub const COLUMNS: usize = COLS;

    /// None: no kernel has these widths, or takes weights of this form.
    pub fn of(shape: &ExpertShape) -> Option<Int4Plans> {
        let floats = match shape.forms {
            [WeightForm::Int4 { group: GROUP, scales: ScaleForm::Bf16 }, ..] => false,
            [WeightForm::Mxfp4, ..] => true,
            _ => return None,
        };
        if shape.forms != [shape.forms[0]; 3] {
            return None;
        }
        let plan = |which: usize| {
            let (n, k, _) = shape.matrix(which);
            let of = |t: &Int4Tile| (t.n, t.k, t.floats, t.rows <= FEW_ROWS);
            let tile = |few: bool| TILES.iter().find(|t| of(t) == (n, k, floats, few));
            Some([tile(true)?, tile(false)?])
        };
        Some(Int4Plans([plan(0)?, plan(2)?]))
    }

    /// The kernel for matrix `which` if an expert has so many rows.
    pub fn tile(&self, which: usize, rows: usize) -> &'static Int4Tile {
        self.0[usize::from(which == 2)][usize::from(rows > FEW_ROWS)]
    }
}

/// The columns of a weight of n columns in the kernels' layout.
fn padded(n: usize) -> usize {
    n.next_multiple_of(COLS)
}

/// The scales [n, k / 32] of a weight as the kernels read them: [k / 32, n], in each 64 columns of which number 8 i + j
/// is that of column 8 j + i, then zeros for the padding of n.
pub(in super::super) fn tiled_scales(scales: &[bf16], n: usize) -> Vec<bf16> {
    let (groups, wide) = (scales.len() / n, padded(n));
    let mut tiled = vec![bf16::ZERO; groups * wide];
    // The scales of 64 columns fit in the first cache.
    for (first, columns) in scales.chunks(64 * groups.max(1)).enumerate() {
        for (group, tiled) in tiled.chunks_exact_mut(wide).enumerate() {
            for (column, scales) in columns.chunks_exact(groups).enumerate() {
                tiled[64 * first + column % 8 * 8 + column / 8] = scales[group];
            }
        }
    }
    tiled
}

/// Gives the weight [n, k] at the start of `from` the kernels' layout, at an address. In a stream.
pub(in super::super) fn repack(
    device: &CudaDevice,
    stream: CUstream,
    from: &DeviceBuffer,
    to: u64,
    [n, k]: [usize; 2],
) -> Result<()> {
    assert!(from.bytes() >= n * k / 2 && n % REPACKED == 0 && k % REPACKED == 0, "a weight of [{n}, {k}]");
    let grid = [padded(n) / REPACKED, k / REPACKED, 1];
    let (padded_n, n, k, interleaved) = (int(padded(n)) as u32, int(n) as u32, int(k) as u32, INTERLEAVED);
    let args = Int4RepackArgs { from: from.address(), to, zeros: 0, n, k, padded_n, padded_k: k, interleaved };
    // SAFETY: both have the words of such a weight, by the caller's promise for `to`.
    unsafe { device.launch_in(stream, &LaunchPlan::apart("int4_repack", grid, REPACK_THREADS), &args) }
}

impl Int4Tile {
    /// The maps of x, of the weights of `experts` experts, and of their scales.
    pub fn maps(&self, rows: usize, experts: usize) -> [TensorBoxes; 3] {
        let (n, k) = (padded(self.n), self.k);
        let x = TensorBoxes {
            element: MapElement::Bf16,
            dims: [k, rows, 1],
            strides: [k, 0],
            boxes: [DEPTH, self.rows, 1],
            swizzled: true,
        };
        let weights = TensorBoxes {
            element: MapElement::Word,
            dims: [16, n / 8, experts * k / 16],
            strides: [16, 2 * n],
            boxes: [16, COLS / 8, DEPTH / 16],
            swizzled: false,
        };
        let scales = TensorBoxes {
            element: MapElement::Bf16,
            dims: [16, n / 16, experts * k / GROUP],
            strides: [16, n],
            boxes: [16, COLS / 16, DEPTH / GROUP],
            swizzled: false,
        };
        [x, weights, scales]
    }
}

#[cfg(test)]
mod tests;
