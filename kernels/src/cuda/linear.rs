//! Products: which kernel multiplies which forms. It does not know layers.

use super::arena::ArenaBlock;
use super::args::{LinearArgs, QuantizeArgs};
use super::backend::{Cuda, int};
use super::tensor::{DeviceTensor, Element};
use super::weights::{DeviceVector, Matrix, WeightForm};

/// Rows and columns of a tile of the result.
const TILE: usize = 64;
const FP8_GROUP: usize = 128;

/// The left side of a product, as the weight's form needs it.
pub(super) struct Operand<'a> {
    pub address: u64,
    pub stride: usize,
    pub scales: u64,
    element: Element,
    /// The FP8 codes and their scales, which must outlive the launch.
    _codes: Option<[ArenaBlock; 2]>,
    _of: &'a DeviceTensor,
}

/// Products of each head's columns with its own weight [outs, ins]; head h of x begins at column h * x_head.
#[derive(Clone, Copy)]
pub(super) struct Batched {
    pub heads: usize,
    pub outs: usize,
    pub ins: usize,
    pub x_head: usize,
}

/// The type of a product: that of x, or f32 with f32 weights.
pub(super) fn result_of(x: Element, form: WeightForm) -> Element {
    if form == WeightForm::F32 { Element::F32 } else { x }
}

impl Cuda {
    /// Quantizes x for an FP8 weight.
    pub(super) fn operand<'a>(&self, x: &'a DeviceTensor, form: WeightForm) -> Operand<'a> {
        if form != WeightForm::Fp8 {
            return Operand {
                address: x.address,
                stride: x.stride,
                scales: 0,
                element: x.element,
                _codes: None,
                _of: x,
            };
        }
        let groups = x.cols.div_ceil(FP8_GROUP);
        let (codes, scales) = (self.take(x.rows * x.cols), self.take(x.rows * groups * 4));
        let args = QuantizeArgs {
            x: x.address,
            codes: codes.address,
            scales: scales.address,
            k: int(x.cols),
            x_stride: int(x.stride),
        };
        let name = x.element.of("quantize_fp8_f32", "quantize_fp8_bf16");
        // SAFETY: codes has a byte for each number of x, scales a number for each group.
        unsafe { self.launch(name, [groups, x.rows, 1], 128, 0, &args) };
        Operand {
            address: codes.address,
            stride: x.cols,
            scales: scales.address,
            element: x.element,
            _codes: Some([codes, scales]),
            _of: x,
        }
    }

    /// Puts a product into the stream. `args` has the rest: sizes, and what batches and experts need.
    ///
    /// # Safety
    /// `args` and `grid` fit the matrices as linear.cu says.
    pub(super) unsafe fn multiply(
        &self,
        x: &Operand,
        form: WeightForm,
        out: (u64, Element),
        products: [usize; 2],
        args: LinearArgs,
    ) {
        let (name, threads) = match (form, x.element, out.1) {
            (WeightForm::F32, Element::F32, Element::F32) => ("linear_f32", 256),
            (WeightForm::F32, Element::Bf16, Element::F32) => ("linear_mixed", 256),
            (WeightForm::Bf16, Element::Bf16, out) => (out.of("linear_bf16_f32", "linear_bf16"), 128),
            (WeightForm::Fp8, _, out) => (out.of("linear_fp8_f32", "linear_fp8"), 128),
            (WeightForm::Int4 { .. }, Element::Bf16, out) => (out.of("linear_int4_f32", "linear_int4"), 128),
            (form, x, out) => panic!("no product of {x:?} and {form:?} as {out:?}"),
        };
        let group = if let WeightForm::Int4 { group } = form { int(group) } else { 0 };
        let [rows, count] = products;
        let grid = [(args.n as usize).div_ceil(TILE), rows.div_ceil(TILE), count];
        let args = LinearArgs {
            x: x.address,
            x_stride: int(x.stride),
            x_scales: x.scales,
            out: out.0,
            rows: int(rows),
            group,
            ..args
        };
        // SAFETY: the caller's promise.
        unsafe { self.launch(name, grid, threads, 0, &args) };
    }

    /// x times the weight transposed, plus bias.
    pub(super) fn product(
        &self,
        x: &DeviceTensor,
        weight: &Matrix,
        bias: Option<&DeviceVector>,
        out: Element,
    ) -> DeviceTensor {
        let Matrix { outs, ins, form, .. } = *weight;
        assert_eq!(x.cols, ins, "linear: inputs");
        assert!(bias.is_none_or(|b| b.len == outs), "linear: the bias needs {outs} numbers");
        let operand = self.operand(x, form);
        let result = self.tensor(x.rows, outs, result_of(out, form));
        let args = LinearArgs {
            w: weight.data.address(),
            w_scales: weight.scales(),
            bias: bias.map_or(0, |bias| bias.data.address()),
            n: int(outs),
            k: int(ins),
            out_stride: int(outs),
            ..LinearArgs::default()
        };
        // SAFETY: x, the weight and the result have these shapes.
        unsafe { self.multiply(&operand, form, (result.address, result.element), [x.rows, 1], args) };
        result
    }

    pub(super) fn product_by_head(&self, x: &DeviceTensor, weight: &Matrix, spec: Batched) -> DeviceTensor {
        let Batched { heads, outs, ins, x_head } = spec;
        assert_eq!((weight.outs, weight.ins), (heads * outs, ins), "a weight for each head");
        assert!((heads - 1) * x_head + ins <= x.cols, "columns for each head");
        let operand = self.operand(x, weight.form);
        let result = self.tensor(x.rows, heads * outs, result_of(x.element, weight.form));
        let args = LinearArgs {
            w: weight.data.address(),
            x_batch: x_head as u64,
            w_batch: (outs * ins) as u64,
            out_batch: outs as u64,
            n: int(outs),
            k: int(ins),
            out_stride: int(heads * outs),
            ..LinearArgs::default()
        };
        // SAFETY: head h has its columns of x, its part of the weight and its columns of the result.
        unsafe { self.multiply(&operand, weight.form, (result.address, result.element), [x.rows, heads], args) };
        result
    }
}
