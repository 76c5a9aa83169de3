//! Which fast kernel multiplies what. Pure: what the kernels take and give is in kernels/cuda/fast/gemm.h.
//!
//! A plan depends on the product and on the sizes of its weight. It has three tiles, by the number of rows, whose sums
//! have the same order: so a row's bits do not depend on the number of rows.

use super::super::form::{Element, WeightForm};
use super::super::plan::{FP8_GROUP, LaunchPlan};
use super::super::tensor_map::{MapElement, TensorBoxes};

/// Blocks of every product: the multiprocessors of an H100 or H200.
const BLOCKS: usize = 132;
/// Threads of a block that copy.
const COPY_THREADS: u32 = 128;
/// Up to so many rows, a product is limited by reading its weight, and a small tile is used.
const FEW_ROWS: usize = 64;
/// Up to so many, the smallest: a box of 64 rows of which few are there costs as much as one that is full (DeepGEMM's
/// own host chooses so).
const LEAST_ROWS: usize = 16;
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
    fp8_dense_least, Fp8, Bf16, Dense, 16, 64, 16, 128, 1, 1;
    fp8_dense_few, Fp8, Bf16, Dense, 64, 64, 10, 128, 1, 1;
    fp8_dense_many, Fp8, Bf16, Dense, 128, 128, 5, 256, 2, 1;
    fp8_grouped_least_64, Fp8, Bf16, Grouped, 16, 128, 10, 128, 1, 64;
    fp8_grouped_few_64, Fp8, Bf16, Grouped, 64, 128, 8, 128, 1, 64;
    fp8_grouped_least_256, Fp8, Bf16, Grouped, 16, 128, 10, 128, 1, 256;
    fp8_grouped_few_256, Fp8, Bf16, Grouped, 64, 128, 8, 128, 1, 256;
    fp8_grouped_many_64, Fp8, Bf16, Grouped, 128, 128, 5, 256, 2, 64;
    fp8_grouped_many_256, Fp8, Bf16, Grouped, 128, 128, 5, 256, 2, 256;
    bf16_dense_least, Bf16, Bf16, Dense, 16, 64, 16, 128, 1, 1;
    bf16_dense_few, Bf16, Bf16, Dense, 64, 64, 10, 128, 1, 1;
    bf16_dense_many, Bf16, Bf16, Dense, 128, 128, 5, 256, 2, 1;
    bf16_dense_least_f32, Bf16, F32, Dense, 16, 64, 16, 128, 1, 1;
    bf16_dense_few_f32, Bf16, F32, Dense, 64, 64, 10, 128, 1, 1;
    bf16_dense_many_f32, Bf16, F32, Dense, 128, 128, 4, 256, 2, 1;
    bf16_batched_least_8, Bf16, Bf16, Batched, 16, 64, 16, 128, 1, 8;
    bf16_batched_few_8, Bf16, Bf16, Batched, 64, 64, 10, 128, 1, 8;
    bf16_batched_many_8, Bf16, Bf16, Batched, 128, 128, 5, 256, 1, 8;
    bf16_batched_least_16, Bf16, Bf16, Batched, 16, 64, 16, 128, 1, 16;
    bf16_batched_few_16, Bf16, Bf16, Batched, 64, 64, 10, 128, 1, 16;
    bf16_batched_many_16, Bf16, Bf16, Batched, 128, 128, 5, 256, 1, 16;
    bf16_batched_least_64, Bf16, Bf16, Batched, 16, 64, 16, 128, 1, 64;
    bf16_batched_few_64, Bf16, Bf16, Batched, 64, 64, 10, 128, 1, 64;
    bf16_batched_many_64, Bf16, Bf16, Batched, 128, 128, 5, 256, 1, 64;
    bf16_grouped_least_64, Bf16, Bf16, Grouped, 16, 128, 10, 128, 1, 64;
    bf16_grouped_few_64, Bf16, Bf16, Grouped, 64, 128, 8, 128, 1, 64;
    bf16_grouped_least_256, Bf16, Bf16, Grouped, 16, 128, 10, 128, 1, 256;
    bf16_grouped_few_256, Bf16, Bf16, Grouped, 64, 128, 8, 128, 1, 256;
    bf16_grouped_many_64, Bf16, Bf16, Grouped, 128, 128, 5, 256, 2, 64;
    bf16_grouped_many_256, Bf16, Bf16, Grouped, 128, 128, 5, 256, 2, 256;
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
            Element::Bf16 => (MapElement::Bf16, 64, true),
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

/// The kernels of a product.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) struct GemmPlan {
    least: &'static TileKernel,
    few: &'static TileKernel,
    many: &'static TileKernel,
}

impl Product {
    /// None: no fast kernel takes it.
    pub fn plan(&self) -> Option<GemmPlan> {
        let Product { numbers, out, form, n, k, groups } = *self;
        // Rows of x, w and out begin at multiples of 16 bytes. Scales are those of whole blocks.
        let aligned = (k * numbers.bytes()).is_multiple_of(16) && (n * out.bytes()).is_multiple_of(16);
        let blocks = numbers == OperandType::Bf16 || k.is_multiple_of(FP8_GROUP);
        let whole = numbers == OperandType::Bf16 || form == Form::Dense || n.is_multiple_of(FP8_GROUP);
        if !aligned || !blocks || !whole || n == 0 || k == 0 {
            return None;
        }
        let fitting = |rows: usize| {
            let same =
                |tile: &&TileKernel| (tile.numbers, tile.out, tile.form, tile.rows) == (numbers, out, form, rows);
            let takes = |tile: &&TileKernel| match form {
                Form::Dense => true,
                Form::Batched => groups <= tile.groups,
                // Tiles of one expert are shared in a cluster.
                Form::Grouped => groups <= tile.groups && n.is_multiple_of(tile.cols * tile.cluster),
            };
            TILES.iter().filter(same).filter(takes).min_by_key(|tile| tile.groups)
        };
        let [least, few, many] = [fitting(LEAST_ROWS)?, fitting(64)?, fitting(128)?];
        let room = |tile: &TileKernel| tile.launch(k).shared <= super::MOST_SHARED;
        [least, few, many].into_iter().all(room).then_some(GemmPlan { least, few, many })
    }
}

impl GemmPlan {
    /// `rows`: of x.
    pub fn tile(&self, rows: usize) -> &'static TileKernel {
        if rows <= LEAST_ROWS { self.least } else { self.of_more(rows) }
    }

    /// `rows`: of an expert, if all have equally many. Some have twice as many, and their weight should be read once.
    pub fn tile_of_experts(&self, rows: usize) -> &'static TileKernel {
        if rows <= LEAST_ROWS / 2 { self.least } else { self.of_more(rows) }
    }

    fn of_more(&self, rows: usize) -> &'static TileKernel {
        if rows <= FEW_ROWS { self.few } else { self.many }
    }
}

#[cfg(test)]
mod tests;
