//! The left side of products, as the forms of weights need it. It does not know which kernel multiplies.

use super::args::{CodesTo, QuantizeArgs, SiluMulQuantArgs};
use super::fast::scale_stride;
use super::form::{Element, WeightForm};
use super::op_stream::OpStream;
use super::plan::{FP8_GROUP, LaunchPlan, int};
use super::tensor::{CodeRows, DeviceTensor, Operand, PlaceRows};

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
        let places = which.places();
        let rows = places.map_or(x.rows, |places| places.room);
        self.codes([rows, x.cols], x.element, which, |to| {
            let PlaceRows { routes, used, .. } = places.unwrap_or_default();
            let per_row = if let CodeRows::Places { per_row, .. } = which { int(per_row) } else { 1 };
            let args =
                QuantizeArgs { x: x.address, to, routes, used, k: int(x.cols), x_stride: int(x.stride), per_row };
            let kernel = x.element.of("quantize_fp8_f32", "quantize_fp8_bf16");
            let plan = LaunchPlan::by_fp8_group(kernel, PlaceRows::blocks(places, rows), x.cols);
            // SAFETY: codes has a byte for each number, scales a number for each group; routes come from rows of x.
            unsafe { self.launch(&plan, &args) }
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
        let places = which.places();
        if !form.is_fp8() {
            return Operand::plain(&self.silu_mul_rows(gate, up, places));
        }
        assert_eq!(
            (gate.rows, gate.cols, gate.stride),
            (up.rows, up.cols, up.stride),
            "silu_mul: gate and up must have the same shape and stride"
        );
        let kernel = gate.element.of("silu_mul_quant_f32", "silu_mul_quant_bf16");
        let plan = LaunchPlan::by_fp8_group(kernel, PlaceRows::blocks(places, gate.rows), gate.cols);
        self.codes([gate.rows, gate.cols], gate.element, which, |to| {
            let PlaceRows { routes, used, .. } = places.unwrap_or_default();
            let (k, stride) = (int(gate.cols), int(gate.stride));
            let (gate, up) = (gate.address, up.address);
            let args = SiluMulQuantArgs { gate, up, to, routes, used, k, stride };
            // SAFETY: gate and up have one shape; codes and scales as above.
            unsafe { self.launch(&plan, &args) }
        })
    }

    /// Where a norm stores the codes of its result `out`, if products with FP8 weights take them.
    pub fn codes_of_norm(&self, out: &DeviceTensor) -> CodesTo {
        let mut norm = CodesTo::default();
        if self.has_codes.get() {
            let fast = self.fast.is_some() && out.element == Element::Bf16;
            let which = if fast { CodeRows::ByGroup } else { CodeRows::All };
            out.codes(which, || self.codes([out.rows, out.cols], out.element, which, |to| norm = to));
        }
        norm
    }

    /// Room for FP8 codes [rows, cols] and scales, which `fill` launches the kernel for.
    fn codes(
        &self,
        [rows, cols]: [usize; 2],
        element: Element,
        which: CodeRows,
        fill: impl FnOnce(CodesTo),
    ) -> Operand {
        let groups = cols.div_ceil(FP8_GROUP);
        let stride = if which == CodeRows::All { 0 } else { scale_stride(rows) };
        let (codes, scales) = (self.take(rows * cols), self.take(groups * rows.max(stride) * 4));
        fill(CodesTo { codes: codes.address, scales: scales.address, stride: int(stride) });
        Operand::coded(codes, scales, cols, element)
    }
}
