//! Which fast kernel multiplies what. Pure: what the kernels take and give is in kernels/cuda/fast/gemm.h.
//!
//! Whether there is a plan depends on the product and on the sizes of its weight, never on the number of rows. Its
//! tiles, of which the number of rows chooses one, sum in the same order: so a row's bits do not depend on that number.

use std::cmp::Reverse;

use super::super::form::{Element, WeightForm};
use super::super::plan::{FP8_GROUP, LaunchPlan};
use super::super::tensor_map::{MapElement, TensorBoxes};

/// Blocks of every product: the multiprocessors of an H100 or H200.
const BLOCKS: usize = 132;
/// Threads of a block that copy.
const COPY_THREADS: u32 = 128;
/// A tile with more rows is of two warpgroups, for products that are limited by multiplying.
const FEW_ROWS: usize = 64;
/// Bytes along k in a stage.
const STAGE_BYTES: usize = 128;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum OperandType {
    Fp8,
    Bf16,
}

impl OperandType {
    pub fn of(form: WeightForm) -> Option<OperandType> {
        match form {
            WeightForm::Fp8 { .. } => Some(OperandType::Fp8),
            WeightForm::Bf16 => Some(OperandType::Bf16),
            WeightForm::F32 | WeightForm::Int4 { .. } | WeightForm::Mxfp4 => None,
        }
    }
}

/// One product, one for each head, or one for each expert.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Form {
    Dense,
    Batched,
    Grouped,
}

/// A kernel of gemm.h.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) struct TileKernel {
    pub kernel: &'static str,
    pub numbers: OperandType,
    pub out: Element,
    pub form: Form,
    pub rows: usize,
    pub cols: usize,
    pub stages: usize,
    pub threads: u32,
    pub cluster: usize,
    /// The most heads, and exactly so many experts.
    pub groups: usize,
}

macro_rules! tiles {
    ($($kernel:ident, $numbers:ident, $out:ident, $form:ident,
        $rows:literal, $cols:literal, $stages:literal, $threads:literal, $cluster:literal, $groups:literal;)*) => {
        /// As gemm.h lists them.
        pub(super) const TILES: &[TileKernel] = &[$(TileKernel {
            kernel: stringify!($kernel),
            numbers: OperandType::$numbers,
            out: Element::$out,
            form: Form::$form,
            rows: $rows,
            cols: $cols,
            stages: $stages,
            threads: $threads,
            cluster: $cluster,
            groups: $groups,
        }),*];
    };
}

tiles! {
    fp8_dense_16x16, Fp8, Bf16, Dense, 16, 16, 16, 128, 1, 1;
    fp8_dense_16x32, Fp8, Bf16, Dense, 16, 32, 16, 128, 1, 1;
    fp8_dense_16x64, Fp8, Bf16, Dense, 16, 64, 16, 128, 1, 1;
    fp8_dense_16x128, Fp8, Bf16, Dense, 16, 128, 10, 128, 1, 1;
    fp8_dense_32x32, Fp8, Bf16, Dense, 32, 32, 16, 128, 1, 1;
    fp8_dense_32x64, Fp8, Bf16, Dense, 32, 64, 14, 128, 1, 1;
    fp8_dense_32x128, Fp8, Bf16, Dense, 32, 128, 10, 128, 1, 1;
    fp8_dense_64x32, Fp8, Bf16, Dense, 64, 32, 14, 128, 1, 1;
    fp8_dense_64x64, Fp8, Bf16, Dense, 64, 64, 10, 128, 1, 1;
    fp8_dense_64x128, Fp8, Bf16, Dense, 64, 128, 8, 128, 1, 1;
    fp8_dense_128x128, Fp8, Bf16, Dense, 128, 128, 5, 256, 2, 1;
    fp8_grouped_16x128_of_64, Fp8, Bf16, Grouped, 16, 128, 10, 128, 1, 64;
    fp8_grouped_32x128_of_64, Fp8, Bf16, Grouped, 32, 128, 10, 128, 1, 64;
    fp8_grouped_64x128_of_64, Fp8, Bf16, Grouped, 64, 128, 8, 128, 1, 64;
    fp8_grouped_128x128_of_64, Fp8, Bf16, Grouped, 128, 128, 5, 256, 2, 64;
    fp8_grouped_128x128_of_64_alone, Fp8, Bf16, Grouped, 128, 128, 5, 256, 1, 64;
    fp8_grouped_16x128_of_128, Fp8, Bf16, Grouped, 16, 128, 10, 128, 1, 128;
    fp8_grouped_32x128_of_128, Fp8, Bf16, Grouped, 32, 128, 10, 128, 1, 128;
    fp8_grouped_64x128_of_128, Fp8, Bf16, Grouped, 64, 128, 8, 128, 1, 128;
    fp8_grouped_128x128_of_128, Fp8, Bf16, Grouped, 128, 128, 5, 256, 2, 128;
    fp8_grouped_128x128_of_128_alone, Fp8, Bf16, Grouped, 128, 128, 5, 256, 1, 128;
    fp8_grouped_16x128_of_256, Fp8, Bf16, Grouped, 16, 128, 10, 128, 1, 256;
    fp8_grouped_32x128_of_256, Fp8, Bf16, Grouped, 32, 128, 10, 128, 1, 256;
    fp8_grouped_64x128_of_256, Fp8, Bf16, Grouped, 64, 128, 8, 128, 1, 256;
    fp8_grouped_128x128_of_256, Fp8, Bf16, Grouped, 128, 128, 5, 256, 2, 256;
    fp8_grouped_128x128_of_256_alone, Fp8, Bf16, Grouped, 128, 128, 5, 256, 1, 256;
    bf16_dense_16x16, Bf16, Bf16, Dense, 16, 16, 16, 128, 1, 1;
    bf16_dense_16x32, Bf16, Bf16, Dense, 16, 32, 16, 128, 1, 1;
    bf16_dense_16x64, Bf16, Bf16, Dense, 16, 64, 16, 128, 1, 1;
    bf16_dense_16x128, Bf16, Bf16, Dense, 16, 128, 10, 128, 1, 1;
    bf16_dense_32x32, Bf16, Bf16, Dense, 32, 32, 16, 128, 1, 1;
    bf16_dense_32x64, Bf16, Bf16, Dense, 32, 64, 14, 128, 1, 1;
    bf16_dense_32x128, Bf16, Bf16, Dense, 32, 128, 10, 128, 1, 1;
    bf16_dense_64x32, Bf16, Bf16, Dense, 64, 32, 14, 128, 1, 1;
    bf16_dense_64x64, Bf16, Bf16, Dense, 64, 64, 10, 128, 1, 1;
    bf16_dense_64x128, Bf16, Bf16, Dense, 64, 128, 8, 128, 1, 1;
    bf16_dense_128x128, Bf16, Bf16, Dense, 128, 128, 5, 256, 2, 1;
    bf16_dense_128x256, Bf16, Bf16, Dense, 128, 256, 3, 256, 2, 1;
    bf16_dense_16x64_f32, Bf16, F32, Dense, 16, 64, 16, 128, 1, 1;
    bf16_dense_16x128_f32, Bf16, F32, Dense, 16, 128, 10, 128, 1, 1;
    bf16_dense_64x64_f32, Bf16, F32, Dense, 64, 64, 10, 128, 1, 1;
    bf16_dense_64x128_f32, Bf16, F32, Dense, 64, 128, 7, 128, 1, 1;
    bf16_dense_128x128_f32, Bf16, F32, Dense, 128, 128, 4, 256, 2, 1;
    bf16_batched_16x64_of_8, Bf16, Bf16, Batched, 16, 64, 16, 128, 1, 8;
    bf16_batched_64x64_of_8, Bf16, Bf16, Batched, 64, 64, 10, 128, 1, 8;
    bf16_batched_128x128_of_8, Bf16, Bf16, Batched, 128, 128, 5, 256, 1, 8;
    bf16_batched_16x64_of_16, Bf16, Bf16, Batched, 16, 64, 16, 128, 1, 16;
    bf16_batched_64x64_of_16, Bf16, Bf16, Batched, 64, 64, 10, 128, 1, 16;
    bf16_batched_128x128_of_16, Bf16, Bf16, Batched, 128, 128, 5, 256, 1, 16;
    bf16_batched_16x64_of_64, Bf16, Bf16, Batched, 16, 64, 16, 128, 1, 64;
    bf16_batched_64x64_of_64, Bf16, Bf16, Batched, 64, 64, 10, 128, 1, 64;
    bf16_batched_128x128_of_64, Bf16, Bf16, Batched, 128, 128, 5, 256, 1, 64;
    bf16_grouped_16x128_of_64, Bf16, Bf16, Grouped, 16, 128, 10, 128, 1, 64;
    bf16_grouped_32x128_of_64, Bf16, Bf16, Grouped, 32, 128, 10, 128, 1, 64;
    bf16_grouped_64x128_of_64, Bf16, Bf16, Grouped, 64, 128, 8, 128, 1, 64;
    bf16_grouped_128x128_of_64, Bf16, Bf16, Grouped, 128, 128, 5, 256, 2, 64;
    bf16_grouped_128x128_of_64_alone, Bf16, Bf16, Grouped, 128, 128, 5, 256, 1, 64;
    bf16_grouped_16x128_of_128, Bf16, Bf16, Grouped, 16, 128, 10, 128, 1, 128;
    bf16_grouped_32x128_of_128, Bf16, Bf16, Grouped, 32, 128, 10, 128, 1, 128;
    bf16_grouped_64x128_of_128, Bf16, Bf16, Grouped, 64, 128, 8, 128, 1, 128;
    bf16_grouped_128x128_of_128, Bf16, Bf16, Grouped, 128, 128, 5, 256, 2, 128;
    bf16_grouped_128x128_of_128_alone, Bf16, Bf16, Grouped, 128, 128, 5, 256, 1, 128;
    bf16_grouped_16x128_of_256, Bf16, Bf16, Grouped, 16, 128, 10, 128, 1, 256;
    bf16_grouped_32x128_of_256, Bf16, Bf16, Grouped, 32, 128, 10, 128, 1, 256;
    bf16_grouped_64x128_of_256, Bf16, Bf16, Grouped, 64, 128, 8, 128, 1, 256;
    bf16_grouped_128x128_of_256, Bf16, Bf16, Grouped, 128, 128, 5, 256, 2, 256;
    bf16_grouped_128x128_of_256_alone, Bf16, Bf16, Grouped, 128, 128, 5, 256, 1, 256;
}

impl OperandType {
    pub fn bytes(self) -> usize {
        match self {
            OperandType::Fp8 => 1,
            OperandType::Bf16 => 2,
        }
    }

    fn map(self) -> MapElement {
        match self {
            OperandType::Fp8 => MapElement::Byte,
            OperandType::Bf16 => MapElement::Bf16,
        }
    }
}

impl TileKernel {
    /// Bytes of shared memory: the tile of out, the stages, the weight's scales of a row of blocks, and two barriers
    /// for each stage.
    fn shared(&self, k: usize) -> usize {
        let out = (self.rows * self.cols * self.out.bytes()).next_multiple_of(1024);
        let scales = |bytes| if self.numbers == OperandType::Fp8 { bytes } else { 0 };
        let stage = (self.rows + self.cols) * STAGE_BYTES + scales((4 * self.rows).next_multiple_of(128));
        out + self.stages * (stage + 16) + scales((4 * k.div_ceil(FP8_GROUP)).next_multiple_of(8))
    }

    pub fn launch(&self, k: usize) -> LaunchPlan {
        LaunchPlan {
            shared: self.shared(k),
            cluster: self.cluster,
            ..LaunchPlan::new(self.kernel, [BLOCKS, 1, 1], COPY_THREADS + self.threads)
        }
    }

    /// The maps of `count` matrices of x or w [rows, k], whose rows and matrices are so far apart.
    fn operand(&self, [count, rows, k]: [usize; 3], strides: [usize; 2], tile: usize) -> TensorBoxes {
        let boxes = [STAGE_BYTES / self.numbers.bytes(), tile, 1];
        TensorBoxes { element: self.numbers.map(), dims: [k, rows, count], strides, boxes, swizzled: true }
    }

    pub fn x(&self, shape: [usize; 3], strides: [usize; 2]) -> TensorBoxes {
        self.operand(shape, strides, self.rows)
    }

    /// Weights follow each other.
    pub fn w(&self, [count, n, k]: [usize; 3]) -> TensorBoxes {
        match self.form {
            Form::Batched => self.operand([count, n, k], [k, n * k], self.cols),
            Form::Dense | Form::Grouped => self.operand([1, count * n, k], [k, 0], self.cols),
        }
    }

    /// Matrices of out [rows, n].
    pub fn out(&self, [count, rows, n]: [usize; 3], strides: [usize; 2]) -> TensorBoxes {
        let (element, columns, swizzled) = match self.out {
            Element::Bf16 => (MapElement::Bf16, self.cols.min(64), true),
            Element::F32 => (MapElement::F32, self.cols, false),
        };
        TensorBoxes { element, dims: [n, rows, count], strides, boxes: [columns, self.rows, 1], swizzled }
    }

    /// The scales of x [rows, k], group by group.
    pub fn x_scales(&self, rows: usize, k: usize) -> TensorBoxes {
        let stride = scale_stride(rows);
        let dims = [stride, k.div_ceil(FP8_GROUP), 1];
        TensorBoxes { element: MapElement::F32, dims, strides: [stride, 0], boxes: [self.rows, 1, 1], swizzled: false }
    }
}

/// How far the scales of two groups of x are apart.
pub(in super::super) fn scale_stride(rows: usize) -> usize {
    rows.next_multiple_of(4)
}

/// What is multiplied: x [rows, k] and weights [n, k].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) struct Product {
    pub numbers: OperandType,
    pub out: Element,
    pub form: Form,
    pub n: usize,
    pub k: usize,
    /// Heads, or experts.
    pub groups: usize,
}

/// A product that fast kernels take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) struct GemmPlan(Product);

impl Product {
    /// None: no fast kernel takes it.
    pub fn plan(self) -> Option<GemmPlan> {
        let Product { numbers, out, n, k, .. } = self;
        // Rows of x, w and out begin at multiples of 16 bytes.
        let aligned = (k * numbers.bytes()).is_multiple_of(16) && (n * out.bytes()).is_multiple_of(16);
        // One of the largest tile is there for any number of rows.
        let room = |tile: &TileKernel| tile.launch(k).shared <= super::MOST_SHARED;
        (aligned && n > 0 && k > 0 && self.tiles().any(|tile| tile.rows > FEW_ROWS) && self.tiles().all(room))
            .then_some(GemmPlan(self))
    }

    /// The tiles that take it.
    fn tiles(self) -> impl Iterator<Item = &'static TileKernel> {
        let Product { numbers, out, form, n, groups, .. } = self;
        let same = move |tile: &&TileKernel| (tile.numbers, tile.out, tile.form) == (numbers, out, form);
        let least = TILES.iter().filter(same).map(|tile| tile.groups).filter(|&most| groups <= most).min();
        TILES.iter().filter(same).filter(move |tile| match form {
            Form::Dense => true,
            Form::Batched => Some(tile.groups) == least,
            // Tiles of one expert are shared in a cluster.
            Form::Grouped => {
                let shared = n.is_multiple_of(2 * tile.cols);
                Some(tile.groups) == least && (tile.rows <= FEW_ROWS || shared == (tile.cluster > 1))
            }
        })
    }

    /// Bytes that a multiprocessor takes in for so many rows, for each byte along k: those of a tile's x and w, in as
    /// many waves as there are. A multiprocessor takes in about 110 GB/s, so narrow weights need narrow tiles.
    fn intake(self, tile: &TileKernel, rows: usize) -> usize {
        let count = if self.form == Form::Batched { self.groups } else { 1 };
        let tiles = rows.div_ceil(tile.rows) * self.n.div_ceil(tile.cols) * count;
        tiles.div_ceil(BLOCKS) * (tile.rows + tile.cols)
    }
}

impl GemmPlan {
    /// All tiles that take the product.
    pub fn tiles(self) -> impl Iterator<Item = &'static TileKernel> {
        self.0.tiles()
    }

    /// `rows`: of x.
    pub fn tile(self, rows: usize) -> &'static TileKernel {
        // A box of 64 rows of which few are there costs as much as one that is full (DeepGEMM's own host chooses so),
        // and a weight is read once.
        let enough = |tile: &&TileKernel| tile.rows >= rows.min(FEW_ROWS);
        let least = self.0.tiles().filter(enough).map(|tile| tile.rows).min();
        let takes = |tile: &&TileKernel| Some(tile.rows) == least || (rows > FEW_ROWS && tile.rows > FEW_ROWS);
        let best = |tile: &&TileKernel| (self.0.intake(tile, rows), Reverse(tile.rows * tile.cols));
        self.0.tiles().filter(takes).min_by_key(best).unwrap_or_else(|| unreachable!("{self:?} has tiles"))
    }

    /// `rows`: of an expert, if all have equally many. Some have twice as many, and their weight should be read once.
    pub fn tile_of_experts(self, rows: usize) -> &'static TileKernel {
        let enough = |tile: &&TileKernel| tile.rows >= if rows > FEW_ROWS { rows } else { FEW_ROWS.min(2 * rows) };
        let tiles = || self.0.tiles();
        let tile = tiles().filter(enough).min_by_key(|tile| tile.rows).or_else(|| tiles().max_by_key(|tile| tile.rows));
        tile.unwrap_or_else(|| unreachable!("{self:?} has tiles"))
    }
}

#[cfg(test)]
mod tests;
