//! Products by the kernels of gemm.h.

use super::fast::{FastMap, Form, GemmBf16Args, GemmFp8Args, GemmPlan, OperandType, Product, TileKernel};
use super::form::{Element, WeightForm};
use super::op_stream::OpStream;
use super::operand::Batched;
use super::tensor::{DeviceTensor, Operand};
use super::tensor_map::{TensorBoxes, TensorMap};
use super::weights::Matrix;

/// Matrices of a product, as its tile's maps describe them.
pub(super) struct Maps {
    pub x: (u64, TensorBoxes),
    pub w: (u64, TensorBoxes),
    pub out: (u64, TensorBoxes),
    /// The scales of x, and those of w.
    pub scales: Option<((u64, TensorBoxes), u64)>,
}

impl OpStream {
    /// The plan of a product, if a fast kernel takes it.
    pub fn fast_plan(&self, product: Product) -> Option<GemmPlan> {
        self.fast.as_ref().and_then(|_| product.plan())
    }

    /// Of x [any, ins] with a weight.
    pub fn dense_plan(&self, x: &DeviceTensor, weight: &Matrix, out: Element) -> Option<GemmPlan> {
        let Matrix { outs: n, ins: k, form, .. } = *weight;
        let numbers = OperandType::of(form)?;
        let product = Product { numbers, out, form: Form::Dense, n, k, groups: 1 };
        // FP8 codes are made from any x.
        let taken = numbers == OperandType::Fp8 || reads_bf16(x);
        self.fast_plan(product).filter(|_| taken)
    }

    /// Of each head's columns with its own weight.
    pub fn batched_plan(&self, x: &DeviceTensor, form: WeightForm, spec: Batched) -> Option<GemmPlan> {
        let Batched { heads, outs: n, ins: k, x_head } = spec;
        if OperandType::of(form)? != OperandType::Bf16 || !reads_bf16(x) || x_head % 8 != 0 {
            return None;
        }
        self.fast_plan(Product {
            numbers: OperandType::Bf16,
            out: Element::Bf16,
            form: Form::Batched,
            n,
            k,
            groups: heads,
        })
    }

    /// x times the weight transposed. x has scales by group if the weight is FP8.
    pub fn fast_dense(&self, tile: &TileKernel, x: &Operand, weight: &Matrix, out: &DeviceTensor) {
        let Matrix { outs: n, ins: k, .. } = *weight;
        let rows = out.rows;
        let scales = (tile.numbers == OperandType::Fp8).then(|| ((x.scales, tile.x_scales(rows, k)), weight.scales()));
        let maps = Maps {
            x: (x.address, tile.x([1, rows, k], [x.stride, 0])),
            w: (weight.data.address(), tile.w([1, n, k])),
            out: (out.address, tile.out([1, rows, n], [out.stride, 0])),
            scales,
        };
        // SAFETY: x, the weight, the result and the scales have these shapes.
        unsafe { self.fast_gemm(tile, &maps, 0, [rows, n, k]) };
    }

    pub fn fast_batched(&self, plan: GemmPlan, x: &DeviceTensor, weight: &Matrix, out: &DeviceTensor, spec: Batched) {
        let Batched { heads, outs: n, ins: k, x_head } = spec;
        let (rows, tile) = (x.rows, plan.tile(x.rows));
        let maps = Maps {
            x: (x.address, tile.x([heads, rows, k], [x.stride, x_head])),
            w: (weight.data.address(), tile.w([heads, n, k])),
            out: (out.address, tile.out([heads, rows, n], [out.stride, n])),
            scales: None,
        };
        // SAFETY: head h has its columns of x, its part of the weight and its columns of the result.
        unsafe { self.fast_gemm(tile, &maps, 0, [rows, n, k]) };
    }

    /// Puts a product into the stream. `ends`: of the experts, as gemm.h says.
    ///
    /// # Safety
    /// The maps describe memory that outlives the kernel, in which all that `ends` says is there.
    pub unsafe fn fast_gemm(&self, tile: &TileKernel, maps: &Maps, ends: u64, [rows, n, k]: [usize; 3]) {
        if rows == 0 || self.check().is_err() {
            return;
        }
        let [rows, n, k_] = [rows, n, k].map(|size| size as u32);
        let map = |(address, boxes): &(u64, TensorBoxes)| self.keep(TensorMap::new(*address, boxes)).map(FastMap);
        let (Some(x), Some(w), Some(out)) = (map(&maps.x), map(&maps.w), map(&maps.out)) else { return };
        let plan = tile.launch(k);
        match &maps.scales {
            Some((of_x, w_scales)) => {
                let Some(x_scales) = map(of_x) else { return };
                let args = GemmFp8Args { w_scales: *w_scales, ends, rows, n, k: k_, x, w, out, x_scales };
                // SAFETY: the caller's promise.
                unsafe { self.launch(&plan, &args) };
            }
            None => {
                let args = GemmBf16Args { ends, rows, n, k: k_, x, w, out };
                // SAFETY: as above.
                unsafe { self.launch(&plan, &args) };
            }
        }
    }
}

/// Whether rows can be copied as they are.
fn reads_bf16(x: &DeviceTensor) -> bool {
    x.element == Element::Bf16 && x.stride.is_multiple_of(8) && x.address.is_multiple_of(16)
}
