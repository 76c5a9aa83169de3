//! The left side of products, as the forms of weights need it. It does not know which kernel multiplies.

use super::args::{QuantizeArgs, SiluMulQuantArgs};
use super::fast::scale_stride;
use super::form::{Element, WeightForm};
use super::op_stream::OpStream;
use super::plan::{FP8_GROUP, LaunchPlan, int};
use super::tensor::{CodeRows, DeviceTensor, Operand};

/// Products of each head's columns with its own weight [outs, ins]; head h of x begins at column h * x_head.
#[derive(Clone, Copy)]
pub(super) struct Batched {
    pub heads: usize,
    pub outs: usize,
    pub ins: usize,
    pub x_head: usize,
}

impl OpStream {
    /// Quantizes x for an FP8 weight.
    pub fn operand(&self, x: &DeviceTensor, form: WeightForm) -> Operand {
        if form.is_fp8() { self.quantized(x, CodeRows::All) } else { Operand::plain(x) }
    }

    /// The codes and scales of rows of x, which several products share.
    pub fn quantized(&self, x: &DeviceTensor, which: CodeRows) -> Operand {
        match which {
            CodeRows::All | CodeRows::ByGroup => x.codes(which, || self.quantize(x, which)),
            CodeRows::Places { .. } => self.quantize(x, which),
        }
    }

    fn quantize(&self, x: &DeviceTensor, which: CodeRows) -> Operand {
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
    pub fn silu_mul_operand(
        &self,
        gate: &DeviceTensor,
        up: &DeviceTensor,
        form: WeightForm,
        which: CodeRows,
    ) -> Operand {
        let routes = if let CodeRows::Places { routes, .. } = which { routes } else { 0 };
        if !form.is_fp8() {
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
        Operand::coded(codes, scales, cols, element)
    }
}
