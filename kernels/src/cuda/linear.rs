//! Products: which kernel multiplies which forms. It does not know layers.

use std::sync::Arc;

use super::arena::ArenaBlock;
use super::args::{LinearArgs, QuantizeArgs, SiluMulQuantArgs};
use super::backend::{Cuda, int};
use super::fast::{OperandType, scale_stride};
use super::plan::{FP8_GROUP, LaunchPlan};
use super::tensor::{DeviceTensor, Element};
use super::weights::{DeviceVector, Matrix, WeightForm};

/// The left side of a product, as the weight's form needs it.
pub(super) struct Operand {
    pub address: u64,
    pub stride: usize,
    pub scales: u64,
    /// Of the numbers before they were quantized.
    pub element: Element,
    /// It must outlive the launch.
    _memory: [Arc<ArenaBlock>; 2],
}

impl Operand {
    pub fn plain(x: &DeviceTensor) -> Operand {
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

/// Which rows get FP8 codes, and how their scales lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CodeRows {
    /// All; scales row by row, for the plain kernels.
    All,
    /// All; scales group by group, for the fast kernels.
    ByGroup,
    /// Those of places: place p has row routes[p] / per_row of x; scales group by group.
    Places { routes: u64, count: usize, per_row: usize },
}

impl CodeRows {
    fn count(self, rows: usize) -> usize {
        if let CodeRows::Places { count, .. } = self { count } else { rows }
    }
}

/// The type of a product: that of x, or f32 with f32 weights.
pub(super) fn result_of(x: Element, form: WeightForm) -> Element {
    if form == WeightForm::F32 { Element::F32 } else { x }
}

impl Cuda {
    /// Quantizes x for an FP8 weight.
    pub(super) fn operand(&self, x: &DeviceTensor, form: WeightForm) -> Operand {
        if form == WeightForm::Fp8 { self.quantized(x, CodeRows::All) } else { Operand::plain(x) }
    }

    /// The codes and scales of rows of x.
    pub(super) fn quantized(&self, x: &DeviceTensor, which: CodeRows) -> Operand {
        let rows = which.count(x.rows);
        self.codes([rows, x.cols], x.element, which, |codes, scales, scale_stride| {
            let (routes, per_row) = match which {
                CodeRows::Places { routes, per_row, .. } => (routes, int(per_row)),
                CodeRows::All | CodeRows::ByGroup => (0, 1),
            };
            let (k, x_stride) = (int(x.cols), int(x.stride));
            let args = QuantizeArgs { x: x.address, codes, scales, routes, k, x_stride, per_row, scale_stride };
            let kernel = x.element.of("quantize_fp8_f32", "quantize_fp8_bf16");
            // SAFETY: codes has a byte for each number, scales a number for each group; routes come from rows of x.
            unsafe { self.launch(&LaunchPlan::by_fp8_group(kernel, rows, x.cols), &args) }
        })
    }

    /// silu(gate) * up, for the weight that comes next.
    pub(super) fn silu_mul_operand(
        &self,
        gate: &DeviceTensor,
        up: &DeviceTensor,
        form: WeightForm,
        which: CodeRows,
    ) -> Operand {
        let routes = if let CodeRows::Places { routes, .. } = which { routes } else { 0 };
        if form != WeightForm::Fp8 {
            return Operand::plain(&self.silu_mul_rows(gate, up, routes));
        }
        assert_eq!(
            (gate.rows, gate.cols, gate.stride),
            (up.rows, up.cols, up.stride),
            "silu_mul: gate and up must have the same shape and stride"
        );
        let kernel = gate.element.of("silu_mul_quant_f32", "silu_mul_quant_bf16");
        let plan = LaunchPlan::by_fp8_group(kernel, gate.rows, gate.cols);
        self.codes([gate.rows, gate.cols], gate.element, which, |codes, scales, scale_stride| {
            let (k, stride) = (int(gate.cols), int(gate.stride));
            let (gate, up) = (gate.address, up.address);
            let args = SiluMulQuantArgs { gate, up, codes, scales, routes, k, stride, scale_stride };
            // SAFETY: gate and up have one shape; codes and scales as above.
            unsafe { self.launch(&plan, &args) }
        })
    }

    /// Room for FP8 codes [rows, cols] and scales, which `fill` launches the kernel for: it gets their addresses, and
    /// how far the scales of two groups are apart (0: they lie row by row).
    fn codes(
        &self,
        [rows, cols]: [usize; 2],
        element: Element,
        which: CodeRows,
        fill: impl FnOnce(u64, u64, i32),
    ) -> Operand {
        let groups = cols.div_ceil(FP8_GROUP);
        let stride = if which == CodeRows::All { 0 } else { scale_stride(rows) };
        let (codes, scales) = (self.take(rows * cols), self.take(groups * rows.max(stride) * 4));
        fill(codes.address, scales.address, int(stride));
        Operand {
            address: codes.address,
            stride: cols,
            scales: scales.address,
            element,
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
        assert!(
            args.starts == 0 || form != WeightForm::F32 || x.element == Element::F32,
            "linear_mixed has no experts"
        );
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
        let result = self.tensor(x.rows, outs, result_of(out, form));
        if let Some(plan) = self.dense_plan(x, weight, result.element).filter(|_| bias.is_none()) {
            let fp8 = OperandType::of(form) == Some(OperandType::Fp8);
            let operand = if fp8 { self.quantized(x, CodeRows::ByGroup) } else { Operand::plain(x) };
            self.fast_dense(plan, &operand, weight, &result);
            return result;
        }
        let operand = self.operand(x, form);
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
        let result = self.tensor(x.rows, heads * outs, result_of(x.element, weight.form));
        if let Some(plan) = self.batched_plan(x, weight.form, spec) {
            self.fast_batched(plan, x, weight, &result, spec);
            return result;
        }
        let operand = self.operand(x, weight.form);
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
