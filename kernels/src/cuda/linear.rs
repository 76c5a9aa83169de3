//! Products: which kernel multiplies which forms. It does not know layers.

use std::sync::Arc;

use super::arena::ArenaBlock;
use super::args::{LinearArgs, QuantizeArgs, SiluMulQuantArgs};
use super::backend::{Cuda, int};
use super::plan::{FP8_GROUP, LaunchPlan};
use super::tensor::{DeviceTensor, Element};
use super::weights::{DeviceVector, Matrix, WeightForm};
use crate::backend::Backend;

/// The left side of a product, as the weight's form needs it.
pub(super) struct Operand {
    address: u64,
    stride: usize,
    scales: u64,
    /// Of the numbers before they were quantized.
    pub element: Element,
    /// It must outlive the launch.
    _memory: [Arc<ArenaBlock>; 2],
}

impl Operand {
    fn plain(x: &DeviceTensor) -> Operand {
        let (address, stride, element) = (x.address, x.stride, x.element);
        Operand { address, stride, scales: 0, element, _memory: [Arc::clone(&x.block), Arc::clone(&x.block)] }
    }
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
    pub(super) fn operand(&self, x: &DeviceTensor, form: WeightForm) -> Operand {
        if form != WeightForm::Fp8 {
            return Operand::plain(x);
        }
        self.codes(x, |codes, scales| {
            let args = QuantizeArgs { x: x.address, codes, scales, k: int(x.cols), x_stride: int(x.stride) };
            let kernel = x.element.of("quantize_fp8_f32", "quantize_fp8_bf16");
            // SAFETY: codes has a byte for each number of x, scales a number for each group.
            unsafe { self.launch(&LaunchPlan::by_fp8_group(kernel, x.rows, x.cols), &args) }
        })
    }

    /// silu(gate) * up, for the weight that comes next.
    pub(super) fn silu_mul_operand(&self, gate: &DeviceTensor, up: &DeviceTensor, form: WeightForm) -> Operand {
        if form != WeightForm::Fp8 {
            return Operand::plain(&self.silu_mul(gate, up));
        }
        assert_eq!(
            (gate.rows, gate.cols, gate.stride),
            (up.rows, up.cols, up.stride),
            "silu_mul: gate and up must have the same shape and stride"
        );
        self.codes(gate, |codes, scales| {
            let (k, stride) = (int(gate.cols), int(gate.stride));
            let args = SiluMulQuantArgs { gate: gate.address, up: up.address, codes, scales, k, stride };
            let kernel = gate.element.of("silu_mul_quant_f32", "silu_mul_quant_bf16");
            // SAFETY: gate and up have one shape; codes and scales as above.
            unsafe { self.launch(&LaunchPlan::by_fp8_group(kernel, gate.rows, gate.cols), &args) }
        })
    }

    /// Room for FP8 codes and scales of the shape of x, which `fill` launches the kernel for.
    fn codes(&self, x: &DeviceTensor, fill: impl FnOnce(u64, u64)) -> Operand {
        let scales = x.rows * x.cols.div_ceil(FP8_GROUP) * 4;
        let (codes, scales) = (self.take(x.rows * x.cols), self.take(scales));
        fill(codes.address, scales.address);
        Operand {
            address: codes.address,
            stride: x.cols,
            scales: scales.address,
            element: x.element,
            _memory: [Arc::new(codes), Arc::new(scales)],
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
        let group = if let WeightForm::Int4 { group, .. } = form { int(group) } else { 0 };
        let [rows, count] = products;
        let plan = LaunchPlan::product(form, x.element, out.1, [rows, args.n as usize, count]);
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
        unsafe { self.launch(&plan, &args) };
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
